"""Where workers compute: each on a GPU of its own, all on those that they share, or all on CPUs."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dgl_heta.comm.collectives import Comm
from dgl_heta.comm.machines import machine_name
from dgl_heta.errors import InputError, several

log = logging.getLogger("dgl_heta")
SHARED = "cuda-shared"
"""`train.device` with which workers share GPUs. What they exchange goes through memory, as NCCL
takes one worker per GPU."""


@dataclass(frozen=True)
class Seen:
    """What a worker sees.

    Attributes
    ----------
    place, workers : its number on its machine and how many are there; None where nobody said so.
    gpus : names of its CUDA devices; one GPU has one name.
    """

    machine: str
    place: int | None
    workers: int | None
    gpus: Sequence[str]

    @classmethod
    def here(cls) -> Seen:
        """What this worker sees."""
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return cls(machine_name(), _number("LOCAL_RANK"), _number("LOCAL_WORLD_SIZE"),
                   [_name(index) for index in range(count)])


def choose_device(choice: str, world: Comm) -> torch.device:
    """The device of this worker; all workers choose together, so all of them compute on GPUs or
    none does.

    Parameters
    ----------
    choice : "cpu"; "cuda"; "cuda-shared", where a GPU may be several workers'; or "auto", for GPUs
        if each worker has one of its own.
    world : all workers; sends what is in memory.

    Raises
    ------
    InputError
        "cuda", and a worker has no GPU of its own, or "cuda-shared" and it sees none; on all
        workers alike.
    """
    if choice == "cpu":
        return torch.device("cpu")
    own = Seen.here()
    every = [Seen(*seen) for seen in world.all_gather_json(
        [own.machine, own.place, own.workers, own.gpus], "control")]
    indices = deal(every, choice == SHARED)
    index = indices[world.rank]
    if index is not None and None not in indices:
        torch.cuda.set_device(index)
        return torch.device("cuda", index)
    rank = indices.index(None)
    gpus, workers = len(every[rank].gpus), _beside(every, rank)
    text = (f"worker {rank} has no GPU of its own: {every[rank].machine.split()[0]} shows it "
            f"{several(gpus, 'CUDA device')} for {several(workers, 'worker')}")
    if choice != "auto":
        others = "cpu" if choice == SHARED or not gpus else f"cpu, {SHARED}"
        raise InputError(f"train.device is '{choice}', but {text}; use train.device={others} or "
                         "fewer workers")
    if world.rank == 0 and any(seen.gpus for seen in every):
        log.warning("train.device = auto: all workers compute on CPUs, as %s", text)
    return torch.device("cpu")


def deal(every: Sequence[Seen], shared: bool = False) -> list[int | None]:
    """Per worker the index of its GPU, None for one that has none of its own, or if GPUs may be
    shared, for one that sees none.

    Where a worker sees one for each on its machine, it takes that of its place. Where it sees
    fewer, as schedulers show each the one that is meant for it, it takes its first, unless another
    worker has taken that.
    """
    indices: list[int | None] = []
    taken = set()
    for rank, seen in enumerate(every):
        before = sum(other.machine == seen.machine for other in every[:rank])
        index = before if seen.place is None else seen.place
        if shared and seen.gpus:
            index %= len(seen.gpus)
        elif len(seen.gpus) < _beside(every, rank):
            index = 0
            if not seen.gpus or (seen.machine, seen.gpus[0]) in taken:
                indices.append(None)
                continue
        taken.add((seen.machine, seen.gpus[index]))
        indices.append(index)
    return indices


def _beside(every: Sequence[Seen], rank: int) -> int:
    """Workers on the machine of one, with it."""
    seen = every[rank]
    return seen.workers or sum(other.machine == seen.machine for other in every)


def _name(index: int) -> str:
    """A GPU's name, the same for all processes that see it."""
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)  # since torch 2.4
    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return str(uuid or (shown[index] if index < len(shown) and shown[index] else index))


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else None
