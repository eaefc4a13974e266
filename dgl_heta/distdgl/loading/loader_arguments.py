"""Arguments of DGL's distributed data loaders, checked once for nodes and edges."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dgl_heta.distdgl.refusals import refuse
from dgl_heta.errors import InputError

_WITHOUT_EFFECT = {"queue_size", "persistent_workers", "prefetch_factor", "pin_memory",
                   "use_ddp", "ddp_seed", "use_uva", "use_prefetch_thread",
                   "use_alternate_streams"}
"""Arguments that only say how DGL's own workers and queues are run: no result depends on them."""


@dataclass(frozen=True)
class LoaderOptions:
    """How a data loader goes through its seeds.

    Attributes
    ----------
    batch_size : seeds of this trainer in a batch.
    shuffle : whether each pass has them in another order.
    drop_last : whether batches that are not full are left out.
    num_workers : sampling workers that were asked for. None are started; with some a batch source
        that works ahead may be chosen (:meth:`~..batch_sources.BatchSources.serving`).

    Raises
    ------
    InputError
        The batch size is below 1.
    """

    batch_size: int = 1
    shuffle: bool = False
    drop_last: bool = False
    num_workers: int = 0

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InputError(f"batch_size is {self.batch_size}; it must be 1 or more")


def read_options(loader: str, device: Any, given: Mapping[str, Any]) -> LoaderOptions:
    """Return a data loader's options from the arguments of a script.

    The environment may ask for sampling workers, too (DGL_NUM_SAMPLER), as in DGL.

    Raises
    ------
    InputError
        The device is not the CPU, a name is no argument, or as :class:`LoaderOptions`.
    """
    if device not in (None, "cpu"):
        refuse("loader on a device", loader=loader, device=device)
    known = {name: given[name] for name in ("batch_size", "shuffle", "drop_last") if name in given}
    for name in given:
        if name not in (*known, "num_workers", *_WITHOUT_EFFECT):
            raise InputError(f"{loader} has no argument '{name}' on a meta-partitioned graph")
    workers = max(int(given.get("num_workers", 0)), int(os.environ.get("DGL_NUM_SAMPLER", "0")))
    return LoaderOptions(**known, num_workers=workers)
