"""Bytes that a DistDGL trainer causes on the network, by cause; for the training script to print.

`watch()` counts, in this trainer, what goes to and comes from other machines: sampling requests
and their answers, pulled rows (features, or learnable features where the name says embedding),
gradients of learnable features. Sizes are those of the tensors, as they are sent. On a
meta-partitioned graph dgl-heta counts what its collectives send. `link()` is what the interface
of this host has sent in all.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

counted: Counter[str] = Counter()
INTERFACE = "eth0"


def link() -> int:
    """Bytes that this host's interface has sent; 0 where it has none of that name."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name.strip() == INTERFACE:
            return int(rest.split()[8])
    return 0


def by_cause() -> Counter[str]:
    """Bytes by cause since the start."""
    session = sys.modules.get("dgl_heta.distdgl.session")
    current = session.current() if session is not None else None
    return counted + current.traffic.bytes if current is not None else Counter(counted)


def busy() -> float:
    """Processor seconds that all processes of this host have taken, in hundredths."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def host_memory() -> dict[str, int]:
    """Bytes in use by all processes of this host: private memory, and its /dev/shm."""
    own = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = status.read_text().splitlines()
        except OSError:
            continue
        own += sum(int(x.split()[1]) * 1024 for x in lines if x.startswith("RssAnon:"))
    disk = os.statvfs("/dev/shm")
    return {"own": own, "shared": (disk.f_blocks - disk.f_bfree) * disk.f_frsize}


def watch() -> None:
    """Begin to count; call it after `dgl.distributed.initialize`."""
    from dgl.distributed import graph_services, rpc
    from dgl.distributed.optim.pytorch import sparse_optim

    sampling = {graph_services.SAMPLING_SERVICE_ID, graph_services.ETYPE_SAMPLING_SERVICE_ID,
                graph_services.EDGES_SERVICE_ID}
    here = rpc.get_machine_id()

    def count(message: Any) -> None:
        machine = message.server_id // rpc.get_num_server_per_machine()
        if machine != here:
            cause = "sampling" if message.service_id in sampling else "other requests"
            counted[cause] += _size(message.tensors) + len(message.data)

    send, receive, pull = rpc.send_rpc_message, rpc.recv_rpc_message, rpc.fast_pull

    def send_rpc_message(message: Any, target: int) -> Any:
        count(message)
        return send(message, target)

    def recv_rpc_message(timeout: int = 0) -> Any:
        message = receive(timeout)
        if message is not None:
            count(message)
        return message

    def fast_pull(name: str, ids: Any, parts: Any, *rest: Any) -> Any:
        rows = pull(name, ids, parts, *rest)
        remote = int((parts != here).sum())
        width = rows[:1].nbytes if len(rows) else 0
        counted["learnable" if "emb" in name else "features"] += remote * (width + 8)
        return rows

    rpc.send_rpc_message, rpc.recv_rpc_message, rpc.fast_pull = (
        send_rpc_message, recv_rpc_message, fast_pull)
    sparse_optim.alltoall = _exchange(sparse_optim.alltoall)
    sparse_optim.alltoallv = _exchange(sparse_optim.alltoallv)


def _exchange(original: Any) -> Any:
    """Count what the sparse optimizer sends to other trainers."""
    def exchange(rank: int, world: int, out: Any, given: Any, *device: Any) -> Any:
        counted["learnable"] += _size(t for i, t in enumerate(given) if i != rank)
        return original(rank, world, out, given, *device)  # until DGL 2.3 with a device
    return exchange


def _size(tensors: Iterable[Any]) -> int:
    return sum(t.nbytes if isinstance(t, torch.Tensor)
               else torch.utils.dlpack.from_dlpack(t.to_dlpack()).nbytes for t in tensors)
