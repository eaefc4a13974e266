"""The request to a partition backend, and its result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.errors import InputError, listing
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.hooks.cutter_protocol import Cutter
from dgl_heta.partition.arguments import BackendTraits, ScriptArguments, script_arguments
from dgl_heta.planning.making import check_parts
from dgl_heta.planning.metatree import Metapath, load_metapaths, parse_metapaths
from dgl_heta.planning.owner_choice import WAYS
from dgl_heta.planning.workload import DEFAULT_HOPS, Workload
from dgl_heta.settings import Origin
from dgl_heta.store.builders import ALONE, Builders

MOST_MB = 1e12
AUTO = 0
"""The number of partitions is for the backend to decide (`parts = "auto"`)."""


@dataclass(frozen=True)
class PartitionRequest:
    """A user's request to a partition backend; made by :func:`make_request`."""

    parts: int
    """Number of partitions; :data:`AUTO` only for backends that decide it (`decides_parts`)."""
    target: tuple[str, ...] = ()
    """Target node types; empty only for backends that need none (`needs_target`)."""
    hops: int | None = None
    metapaths: Sequence[Metapath] = ()
    seed: int = 0
    edge_ids: bool = False
    """True if a store that is written keeps the edges' positions in the source."""
    replication: str | None = None
    """`full`, `none`, or the backend's own."""
    memory_limit: int | None = None
    """Bytes that a partition may hold, as predicted for `workload`."""
    cutter: Cutter | None = None
    """The cutter of relations that are too large for a partition; None: the backend itself."""
    hubs: float = 1.0
    """From how many in-edges on, in even pieces of a relation that is cut, those of one node may
    be cut, too; 0: never."""
    workload: Workload = field(default_factory=Workload)
    shared: str = "auto"
    """How learnable features that several partitions read are shared: rows move, or one partition
    aggregates them for the others (:mod:`dgl_heta.planning.shared_rows`)."""
    script: ScriptArguments = field(default_factory=ScriptArguments)
    shared_origin: Origin = Origin.DEFAULT
    """Who asked for `shared`."""
    builders: Builders = ALONE
    """The processes that write the partition together."""


@dataclass(frozen=True)
class PartitionResult:
    """The partition that a backend has written.

    Attributes
    ----------
    part_config : path of the part_config JSON.
    parts : number of partitions.
    nodes : node type → id in the source of each node, by its id in the partitions (int64); None
        if ids have not changed.
    edges : the same per relation; ids of edges are positions in the source's order.
    statistics : figures to show, by name: numbers, texts, or lists with one per partition.
    """

    part_config: Path
    parts: int
    nodes: Mapping[str, np.ndarray] | None = None
    edges: Mapping[Relation, np.ndarray] | None = None
    statistics: Mapping[str, Any] = field(default_factory=dict)


def option(name: str) -> str:
    """The name of an argument on the command line."""
    return f"--{name.replace('_', '-')}"


def make_request(
    backend: BackendTraits,
    schema: Schema,
    parts: int | str,
    target: Iterable[str] = (),
    *,
    hops: int | None = None,
    metapaths: str | Path | Any = None,
    seed: int = 0,
    edge_ids: bool = False,
    replication: str | None = None,
    memory_mb: float | None = None,
    cutter: Cutter | None = None,
    hubs: float = 1.0,
    workload: Workload | None = None,
    shared: str | None = None,
    shared_origin: Origin = Origin.DEFAULT,
    script: Mapping[str, Any] | None = None,
    word: Callable[[str], str] = str,
) -> PartitionRequest:
    """The request for a graph, checked as far as the backend and the graph's schema allow.

    Parameters
    ----------
    parts : number of partitions, or "auto".
    hops : default: 2, or with metapaths the length of the longest.
    metapaths : a list of them, or the path of a JSON file with one.
    memory_mb : MB that a partition may hold, as predicted for `workload`.
    shared : auto (default), rows or delegate.
    shared_origin : who asked for `shared`.
    script : arguments of a script's `partition_graph`, by name; they are checked, and those that
        the backend does not honour left out
        (:func:`~dgl_heta.partition.arguments.script_arguments`).
    word : what the user calls an argument of this function: its own name, an option
        (:func:`option`), a setting.

    Raises
    ------
    InputError
        An argument is wrong or not for this backend; named as the user knows it.
    """
    what = f"{word('method')}='{backend.name}'"
    if parts == "auto":
        if not backend.decides_parts:
            raise InputError(f"{word('parts')} is auto, but {what} does not decide the number of "
                             "partitions; give a number")
        parts = AUTO
    elif isinstance(parts, str):
        raise InputError(f"{word('parts')} is '{parts}'; it must be a number, or auto")
    else:
        check_parts(parts)
    if replication not in (None, "full", "none"):
        raise InputError(f"{word('replication')} is '{replication}'; it must be full or none")
    if memory_mb is not None and not (0 < memory_mb <= MOST_MB):
        raise InputError(f"{word('memory_mb')} is {memory_mb}; it must be a number above 0 and at "
                         f"most {MOST_MB:g}")
    if shared not in (None, *WAYS):
        raise InputError(f"{word('shared')} is '{shared}'; it must be {' or '.join(WAYS)}")
    targets = tuple(target)
    if backend.needs_target and not targets:
        raise InputError(f"{what} needs {word('target')}, the node type to train for; node types: "
                         f"{listing(schema.node_types)}")
    if isinstance(metapaths, str | Path):
        paths = load_metapaths(metapaths, schema)
    else:
        paths = [] if metapaths is None else parse_metapaths(metapaths, schema)
    return PartitionRequest(
        parts, targets, DEFAULT_HOPS if hops is None and metapaths is None else hops, paths, seed,
        edge_ids, replication, None if memory_mb is None else round(memory_mb * 1e6), cutter, hubs,
        workload or Workload(), shared or "auto",
        script_arguments(backend, script or {}, schema, what), shared_origin)
