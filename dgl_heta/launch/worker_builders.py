"""The processes of a scheduler that write a partition together."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from dgl_heta.comm.collectives import Comm, Traffic, everyone, init_workers
from dgl_heta.store.builders import Builders

_LONGEST_S = 24 * 3600.0
"""One builder may be busy with a relation for hours while others wait. They do not wait for one
that is gone: its connection ends."""


class WorkerBuilders(Builders):
    """Workers that write together; every method raises PeerLostError where one of them is gone."""

    def __init__(self, comm: Comm) -> None:
        self._comm, self.rank, self.size = comm, comm.rank, comm.size
        self.beside = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

    @classmethod
    def of_scheduler(cls, timeout_s: float) -> WorkerBuilders:
        """The workers that torchrun or SLURM has started; they come within `timeout_s`."""
        init_workers("gloo", timeout_s)
        return cls(everyone(Traffic(), dist.new_group(timeout=timedelta(seconds=_LONGEST_S))))

    def gather(self, value: Any) -> list[Any]:
        return self._comm.all_gather_json(value, "what was written")

    def total(self, counts: np.ndarray) -> np.ndarray:
        return self._comm.all_reduce(torch.from_numpy(counts), cause="in-degrees").numpy()
