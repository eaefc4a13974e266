"""Collectives over torch.distributed: counted in bytes, limited in time, clear when they fail."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from dgl_heta.comm.exchange_dtype import is_rounded, packed, unpacked
from dgl_heta.errors import EXIT_PEER, HetaError
from dgl_heta.graph.schema import Relation
from dgl_heta.planning.plan import Plan
from dgl_heta.system.device_seconds import DeviceSeconds

_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN,
        "or": dist.ReduceOp.BOR}


CPU = torch.device("cpu")


class PeerLostError(HetaError):
    """A collective failed because another worker is gone or did not answer in time."""

    exit_status = EXIT_PEER


class Traffic:
    """Bytes that this worker has sent, by cause, and the seconds that it waited.

    Counted are payloads as the algorithms send them: 2 (n - 1) / n of the tensor for an
    all-reduce (ring), and what goes to other workers for an all-to-all.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.bytes: Counter[str] = Counter()
        self.waited = DeviceSeconds()


class Comm:
    """One process group of workers.

    A worker by itself (`size` 1) sends nothing, and needs no process group.

    Parameters
    ----------
    wire : the dtype in which partial aggregations and learnable rows are sent, or None: their own
        (:mod:`dgl_heta.comm.exchange_dtype`).
    """

    def __init__(self, traffic: Traffic, ranks: Sequence[int] | None = None,
                 group: dist.ProcessGroup | None = None, wire: torch.dtype | None = None) -> None:
        self.traffic, self.wire = traffic, wire
        self.ranks = tuple(ranks) if ranks is not None else (0,)
        self.group = group
        self.size = len(self.ranks)
        self.machine: Comm | None = None
        """The workers of this one's machine, where rows go another way between machines
        (:mod:`dgl_heta.comm.machines`); numbers are sent there as they are."""
        self._holders: dict[str | Relation, Comm] = {}
        self._offloading: dict[str, Comm] = {}
        self.rank = self.ranks.index(dist.get_rank()) if self.size > 1 else 0

    def counted_by(self, traffic: Traffic) -> Comm:
        """The same workers, whose bytes another counter gets; without holders of types. Numbers
        are sent as they are: it is for what must be exact."""
        other = Comm(traffic, self.ranks, self.group)
        other._offloading = {t: comm.counted_by(traffic) for t, comm in self._offloading.items()}
        other.machine = self.machine and self.machine.counted_by(traffic)
        return other

    def holders(self, shared: str | Relation) -> Comm:
        """The workers of this group that hold rows of a node type in common, or a relation of
        which some nodes' in-edges are cut."""
        return self._holders.get(shared, self)

    def offloading(self, ntype: str) -> Comm:
        """The workers of this group that aggregate rows of a node type for others, and those."""
        return self._offloading.get(ntype, self)

    def all_reduce(self, tensor: Tensor, op: str = "sum", cause: str = "partials") -> Tensor:
        """Reduce over all workers; returns a new tensor."""
        if self.size == 1:
            return tensor
        if self._rounds(tensor, cause):
            return self._all_reduce_rounded(tensor, op, cause)
        # A copy: the collective works in place, and callers keep what they gave, for the backward
        # pass.
        work = tensor.to(self.device(tensor), copy=True).contiguous()
        with self._watched(cause, self._reduced_bytes(work), work.device):
            dist.all_reduce(work, _OPS[op], group=self.group)
        return work.to(tensor.device)

    def _reduced_bytes(self, work: Tensor) -> int:
        """Bytes that a worker sends in a ring's all-reduce."""
        return 2 * work.nbytes * (self.size - 1) // self.size

    def begin_all_reduce(self, tensor: Tensor, op: str, cause: str) -> Callable[[], Tensor]:
        """Begin to reduce over all workers, who go on meanwhile; returns what waits for the result.
        Every worker must begin it at the same place among its collectives."""
        if self.size == 1:
            return lambda: tensor
        work = tensor.to(self.device(tensor), copy=True)
        with self._watched(cause, self._reduced_bytes(work), work.device):
            begun = dist.all_reduce(work, _OPS[op], group=self.group, async_op=True)

        def end() -> Tensor:
            with self._watched(cause, 0, work.device):
                begun.wait()
            return work.to(tensor.device)
        return end

    def rounded(self, rows: Tensor, cause: str = "partials") -> Tensor:
        """Rows as the other workers see them when they are sent."""
        return rows.to(self.wire).to(rows.dtype) if self._rounds(rows, cause) else rows

    def _rounds(self, tensor: Tensor, cause: str) -> bool:
        return self.wire is not None and self.size > 1 and is_rounded(tensor, cause)

    def _all_reduce_rounded(self, tensor: Tensor, op: str, cause: str) -> Tensor:
        """Each worker merges one part of all workers' numbers as float32, and sends it to all: as
        many bytes as a ring, and the same result on all workers."""
        count, part = tensor.numel(), -(-tensor.numel() // self.size)
        sizes = [part] * self.size
        flat = tensor.new_zeros(part * self.size)
        flat[:count] = tensor.reshape(-1)
        pieces = self.all_to_all_rows(flat, sizes, sizes, cause).view(self.size, part)
        merged = (pieces.sum(0) if op == "sum" else
                  pieces.amax(0) if op == "max" else pieces.amin(0))
        return self.all_gather_rows(merged, sizes, cause)[:count].view(tensor.shape)

    def reduce_scatter_rows(self, rows: Tensor, sizes: Sequence[int], cause: str) -> Tensor:
        """Sum `rows` over all workers; worker i gets the `sizes[i]` rows after those of i - 1."""
        if self.size == 1:
            return rows
        own = sizes[self.rank]
        # By an all-to-all, as gloo has no reduce-scatter; the sum is made here, always in one
        # order.
        received = self.all_to_all_rows(rows.contiguous(), sizes, [own] * self.size, cause)
        return received.view(self.size, own, *rows.shape[1:]).sum(0)

    def all_gather_rows(self, rows: Tensor, sizes: Sequence[int], cause: str) -> Tensor:
        """Concatenate the workers' rows; worker i gives `sizes[i]` of them."""
        if self.size == 1:
            return rows
        # An all-to-all again: an all-gather of gloo wants equal sizes, and workers have different
        # numbers of rows.
        copies = rows.repeat(self.size, *([1] * (rows.dim() - 1)))
        return self.all_to_all_rows(copies, [len(rows)] * self.size, sizes, cause)

    def all_gather_json(self, value: Any, cause: str) -> list[Any]:
        """Gather a value of every worker, by rank; anything that JSON knows."""
        text = torch.from_numpy(np.frombuffer(json.dumps(value).encode(), np.uint8).copy())
        sizes = self.all_gather_rows(torch.tensor([len(text)]), [1] * self.size, cause).tolist()
        every = self.all_gather_rows(text, sizes, cause)
        return [json.loads(part.numpy().tobytes()) for part in every.split(sizes)]

    def all_to_all_rows(self, rows: Tensor, send: Sequence[int], receive: Sequence[int],
                        cause: str) -> Tensor:
        """Send `send[i]` rows to worker i, in order; returns the `receive[i]` rows from each."""
        return self.begin_all_to_all_rows(rows, send, receive, cause)()

    def begin_all_to_all_rows(self, rows: Tensor, send: Sequence[int], receive: Sequence[int],
                              cause: str) -> Callable[[], Tensor]:
        """Begin :meth:`all_to_all_rows`, and go on meanwhile; returns what waits for the rows.
        Every worker must begin it at the same place among its collectives."""
        if self.size == 1:
            return lambda: rows
        if self.wire is not None and self._rounds(rows, cause):
            wire = self.wire
            arrived = self.begin_all_to_all_rows(packed(rows, wire), send, receive, cause)
            return lambda: unpacked(arrived(), wire)
        work = rows.contiguous().to(self.device(rows))
        out = work.new_empty((sum(receive), *rows.shape[1:]))
        # What a worker sends to itself stays in memory, and is not counted.
        width = rows.element_size() * (rows[:1].numel() if len(rows) else 0)
        with self._watched(cause, 0, work.device):
            begun = dist.all_to_all_single(out, work, list(receive), list(send), group=self.group,
                                           async_op=True)

        def end(work: Tensor = work) -> Tensor:  # which is on its way until then
            with self._watched(cause, (sum(send) - send[self.rank]) * width, out.device):
                begun.wait()
            return out.to(rows.device)
        return end

    def broadcast(self, tensor: Tensor, cause: str, source: int = 0) -> None:
        """Copy a worker's values into `tensor` of every worker, in place."""
        if self.size == 1:
            return
        work = tensor.to(self.device(tensor)).contiguous()
        with self._watched(cause, work.nbytes if self.rank == source else 0, work.device):
            dist.broadcast(work, self.ranks[source], group=self.group)
        tensor.copy_(work)

    def barrier(self) -> None:
        """Wait for all workers."""
        self.all_reduce(torch.zeros(1), cause="control")

    def device(self, tensor: Tensor) -> torch.device:
        """Where a tensor must be for this group's collectives: where it is if there is a backend
        for that; NCCL takes GPU memory, and gloo is given what is in memory."""
        backend = dist.get_backend(self.group)
        if "nccl" not in backend:
            return CPU
        if tensor.device.type == "cuda" or "gloo" in backend:
            return tensor.device
        return torch.device("cuda", torch.cuda.current_device())

    @contextmanager
    def _watched(self, cause: str, size: int, device: torch.device) -> Iterator[None]:
        try:
            with self.traffic.waited.timed(device):
                yield
        except RuntimeError as error:
            raise PeerLostError(
                f"worker {dist.get_rank()} lost another worker of {list(self.ranks)} while "
                f"exchanging {cause}: {error}"
            ) from error
        # Counted after the collective: one that failed has sent nobody knows how much, and ends the
        # run.
        self.traffic.bytes[cause] += size


def init_workers(backend: str, timeout_s: float) -> None:
    """Join the process group that RANK and WORLD_SIZE describe.

    They meet in the file that DGL_HETA_RENDEZVOUS names, or else at MASTER_ADDR and MASTER_PORT as
    torchrun sets them. Nobody listens for a file.

    torchrun serves all its restarts with one store, and newer releases of torch no longer tell
    them apart there: a restarted worker may read the address of one that is dead. So every start
    has a name of its own in the store.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size < 2 or dist.is_initialized():
        return
    timeout = timedelta(seconds=timeout_s)
    meeting = os.environ.get("DGL_HETA_RENDEZVOUS")
    try:
        if meeting:
            store = dist.FileStore(meeting)
            store.set_timeout(timeout)
            dist.init_process_group(backend, store=store, rank=int(os.environ["RANK"]),
                                    world_size=size, timeout=timeout)
        else:
            store, rank, size = next(dist.rendezvous("env://", timeout=timeout))
            store.set_timeout(timeout)
            start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            dist.init_process_group(backend, store=dist.PrefixStore(f"start-{start}", store),
                                    rank=rank, world_size=size, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        raise PeerLostError(f"worker {os.environ.get('RANK')} could not join the others: "
                            f"{error}") from error


def everyone(traffic: Traffic, group: dist.ProcessGroup | None = None,
             wire: torch.dtype | None = None) -> Comm:
    """All workers, by the process group that they have joined, or another one of all."""
    if not dist.is_initialized():
        return Comm(traffic)
    return Comm(traffic, range(dist.get_world_size()), group, wire)


def _backend(device: torch.device) -> str | None:
    """That of groups whose tensors are on a device, too; None: that of all workers."""
    if device.type == "cpu":
        return None
    # Else a collective returns before it has begun, its seconds are not those of waiting, and
    # PyTorch aborts the process when another worker is lost.
    os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
    return "cpu:gloo,cuda:nccl"


def make_comms(plan: Plan, traffic: Traffic, timeout_s: float, apart: bool = False,
               wire: torch.dtype | None = None, device: torch.device = CPU) -> tuple[Comm, Comm]:
    """`(all workers, this worker's model-parallel group)`; every worker must call it alike.

    On GPUs what is on one goes by NCCL, and what is in memory by gloo.

    With `apart` the group has a process group of its own even if it is all workers: collectives of
    two threads must not meet in one, and not on one GPU, so it is in memory.

    `wire` is what numbers are sent as, see :class:`Comm`.

    Where relations are offloaded, the workers that aggregate rows of a node type for each other
    form a group inside it. Where the plan replicates nothing, so does every set of workers that
    has a node type in common, or pieces of the same nodes' in-edges.
    """
    if not dist.is_initialized():
        return Comm(traffic), Comm(traffic)
    timeout = timedelta(seconds=timeout_s)
    backend = "gloo" if apart else _backend(device)
    whole = None if apart or backend is None else dist.new_group(timeout=timeout, backend=backend)
    world = everyone(traffic, whole, wire)
    comms: dict[tuple[int, ...], Comm | None] = {} if apart else {world.ranks: world}

    def comm(ranks: Sequence[int]) -> Comm | None:
        """The group of some workers, or None for a worker outside."""
        key = tuple(ranks)
        if key not in comms:
            group = (dist.new_group(list(key), timeout=timeout, backend=backend)
                     if len(key) > 1 else None)
            comms[key] = Comm(traffic, key, group, wire) if dist.get_rank() in key else None
        return comms[key]

    own = [one for ranks in plan.groups if (one := comm(ranks)) is not None][-1]
    if plan.replication == "none":
        holders: dict[str | Relation, Comm] = {}
        for group in range(len(plan.groups)):
            users_of: dict[str | Relation, Sequence[int]] = {
                t: plan.users(t, group) for t in plan.schema.node_types}
            users_of |= {
                r: [p.index for p in plan.partitions if p.group == group and r in p.relations]
                for r, own in plan.ownership.items() if own.hubs}
            for key, users in users_of.items():
                sharers = comm(users) if len(users) > 1 else None
                if sharers is not None:
                    holders[key] = sharers
        own = Comm(traffic, own.ranks, own.group, wire)
        own._holders = holders
    if plan.offloaded and not apart:
        offloading: dict[str, Comm] = {}
        for ranks in plan.groups:
            for ntype in plan.schema.node_types:
                taking_part = [rank for rank in ranks if any(
                    r.dst == ntype for r in (*plan.partitions[rank].asks,
                                             *plan.partitions[rank].served))]
                workers = comm(taking_part) if len(taking_part) > 1 else None
                if workers is not None:
                    offloading[ntype] = workers
        own = Comm(traffic, own.ranks, own.group, wire)
        own._offloading = offloading
    return world, own
