"""What a user asks of a partition backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dgl_heta.planning.metatree import Metapath
from dgl_heta.planning.workload import Workload


@dataclass(frozen=True)
class PartitionRequest:
    """What the user asks of a partition backend."""

    parts: int
    target: tuple[str, ...] = ()
    hops: int | None = None
    metapaths: Sequence[Metapath] = ()
    seed: int = 0
    edge_ids: bool = False
    """Whether a store that is written keeps the edges' positions in the source."""
    replication: str | None = None
    """`full`, `none`, or the backend's own."""
    memory_limit: int | None = None
    """Bytes that a partition may hold, as predicted for `workload`."""
    workload: Workload = field(default_factory=Workload)
