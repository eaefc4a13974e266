"""Where the trainers are, for one that waits for them in vain.

All trainers must create and iterate data loaders alike. A script of plain DistDGL may do otherwise
(evaluation on trainer 0 alone, the others at a barrier), and would wait until the time-out. Each
trainer posts in the process group's store when it comes to such a point, and which batch it takes;
who waits there looks after the others.
"""

from __future__ import annotations

import atexit
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from dgl_heta.comm.collectives import PeerLostError
from dgl_heta.distdgl.state import state_of
from dgl_heta.errors import HetaError

_PATIENCE_S = 3.0
"""After so long a trainer that waits looks where the others are."""
_SURE_S = 2.0
"""A trainer that was in a barrier all this time will not leave it by itself."""


class _Meetings:
    """The meetings of this trainer; where others look, it says at exit that it has ended."""

    def __init__(self) -> None:
        self.skips = itertools.count()
        atexit.register(_post, "ended")

    def close(self) -> None:
        atexit.unregister(_post)


Batch = tuple[int, int, int]
"""Data loader, epoch and step, from 0 on."""


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()


def _key(rank: int) -> str:
    return f"dgl-heta at {rank}"


def _post(text: str) -> None:
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        with suppress(Exception):  # the store may be gone at the end
            _store().set(_key(dist.get_rank()), text)


@contextmanager
def at(place: str) -> Iterator[None]:
    """This trainer waits for all others at a place."""
    _post(f"{time.time()} {place}")
    try:
        yield
    finally:
        _post("")


def took(batch: Batch) -> None:
    """This trainer takes a batch."""
    with suppress(Exception):
        _store().set(_batch_key(dist.get_rank()), " ".join(map(str, batch)))


def meet(number: int, timeout_s: float, left: Batch | None = None) -> None:
    """Wait until all trainers have come to the `number`-th point of meeting.

    Parameters
    ----------
    left : the last batch that this trainer took of a pass over a data loader, if there are more.

    Raises
    ------
    HetaError
        Another trainer has ended, or waits for all at a barrier, or has gone on in the pass that
        this one has left, so it will not come.
    """
    store, size = _store(), dist.get_world_size()
    state_of(_Meetings)
    key, start, pause = f"dgl-heta meeting {number}", time.monotonic(), 0.0005
    if store.add(key, 1) >= size:
        return
    looked: dict[int, str] = {}
    at_batch: dict[int, str] = {}
    since = start
    while store.add(key, 0) < size:
        now = time.monotonic()
        if now - start > timeout_s:
            return  # the collective that follows says what there is to say
        if now - start > _PATIENCE_S and now - since > _SURE_S:
            found = {rank: _where(store, rank) for rank in range(size) if rank != dist.get_rank()}
            for rank, place in found.items():
                if place == "ended" or (place and looked.get(rank) == place):
                    text = "has ended" if place == "ended" else (
                        f"waits at {place.partition(' ')[2]}")
                    raise HetaError(
                        f"trainer {dist.get_rank()} is at a data loader, trainer {rank} {text}: "
                        "all trainers of a meta-partitioned graph must create and iterate their "
                        "data loaders alike, in evaluation, too; give each its share of the nodes "
                        "(dgl.distributed.node_split) and gather the results")
            _look_after_batches(store, size, left, at_batch)
            looked, since = found, now
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def skip_alike(skipped: Iterable[tuple[int, str]], ranks: Sequence[int], timeout_s: float) -> None:
    """Wait until the other trainers of a group have skipped the same merges of relations, by their
    layers and node types.

    Raises
    ------
    HetaError
        One has skipped others.
    PeerLostError
        One has skipped none within `timeout_s`.
    """
    store, own, number = _store(), dist.get_rank(), next(state_of(_Meetings).skips)
    key = f"dgl-heta skipped {number} by"
    mine = ", ".join(f"'{ntype}' at layer {layer}" for layer, ntype in sorted(skipped))
    store.set(f"{key} {own}", mine)
    end = time.monotonic() + timeout_s
    for rank in ranks:
        left = timedelta(seconds=max(end - time.monotonic(), 0.01))
        theirs = _value(store, f"{key} {rank}", left)
        if theirs != mine:
            raise (HetaError if theirs else PeerLostError)(
                f"trainer {own} has skipped the merge of relations into {mine}, and trainer {rank} "
                + (f"that into {theirs}" if theirs else f"none within {timeout_s:g} s") +
                ": a layer that is left out at random (LayerDrop) must be left out by all trainers "
                "at once, by random numbers that are the same on all (a torch.Generator that all "
                "seed alike and nothing else draws from); every other layer is merged by "
                "dgl.nn.HeteroGraphConv or block.multi_update_all")
    store.delete_key(f"dgl-heta skipped {number - 1} by {own}")  # all have read it


def _look_after_batches(store: Any, size: int, left: Batch | None, seen: dict[int, str]) -> None:
    """
    Raises
    ------
    HetaError
        A trainer has been at a later batch of the same pass for two looks.
    """
    if left is None:
        return
    for rank in range(size):
        text = _value(store, _batch_key(rank))
        loader, epoch, step = map(int, text.split()) if text else (-1, -1, -1)
        if (loader, epoch) == left[:2] and step > left[2] and seen.get(rank) == text:
            raise HetaError(
                f"trainer {dist.get_rank()} has left a pass over a data loader after "
                f"{left[2] + 1} batches and is at another, trainer {rank} goes on with batch "
                f"{step + 1}: all trainers of a meta-partitioned graph must leave it at the same "
                "batch; let them agree on it first (torch.distributed.all_reduce)")
        seen[rank] = text


def _batch_key(rank: int) -> str:
    return f"dgl-heta batch {rank}"


def _where(store: Any, rank: int) -> str:
    return _value(store, _key(rank))


def _value(store: Any, key: str, limit: timedelta = timedelta(milliseconds=20)) -> str:
    try:
        store.wait([key], limit)
        return str(store.get(key).decode())
    except RuntimeError:  # nothing was posted yet
        return ""
