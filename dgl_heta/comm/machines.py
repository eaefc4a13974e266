"""Which workers are on one machine: what they send each other crosses no network.

It decides by which way rows go (:mod:`dgl_heta.comm.row_routing`), never what is computed: two
machines that are taken for one, or one that is taken for two, cost bytes and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from dgl_heta.comm.collectives import Comm

VARIABLE = "DGL_HETA_MACHINE"
"""Names this worker's machine, where it is not to be found out."""


def machine_name() -> str:
    """The groups that the workers of a machine form by themselves.

    The host's name, the kernel's start, and the network namespace: containers and emulated hosts
    have networks of their own, and what goes from one to the other is sent.
    """
    if chosen := os.environ.get(VARIABLE):
        return chosen
    words = [platform.node()]
    with contextlib.suppress(OSError):
        words.append(Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip())
    with contextlib.suppress(OSError):
        words.append(os.readlink("/proc/self/ns/net"))
    return " ".join(words)


def join_machine(world: Comm, names: Sequence[str], timeout_s: float) -> None:
    """Give `world` the workers of this one's machine (`world.machine`), where there are several
    machines and one of them has several workers; every worker must call it alike.

    Parameters
    ----------
    names : of each worker's machine, by rank, the same on all workers.
    """
    of_machine: dict[str, list[int]] = {}
    for rank, name in zip(world.ranks, names):
        of_machine.setdefault(name, []).append(rank)
    if len(of_machine) in (1, world.size):
        return
    own = names[world.rank]
    for name, ranks in of_machine.items():  # every worker must take part in making every group
        group = (dist.new_group(ranks, timeout=timedelta(seconds=timeout_s), backend="gloo")
                 if len(ranks) > 1 else None)
        if name == own:
            world.machine = Comm(world.traffic, ranks, group)
