"""Tell a trainer that waits in vain for the others where they are.

All trainers must create and iterate data loaders alike. A script of plain DistDGL may do otherwise
(evaluation on trainer 0 alone, the others at a barrier), and would wait until the time-out. Each
trainer posts in the process group's store when it comes to such a point, and which batch it takes;
who waits there looks after the others.

All of this goes through the store and not by collectives: these are what is waited for.
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

Batch = tuple[int, int, int]
"""Data loader, epoch and step, from 0 on."""


class Watchdog:
    """Tells the other trainers where this one is, and reads where they are.

    Keys of the store are numbered, and all trainers count alike.
    """

    # Of the process, not of the time between `enable` and `disable`: the store of a process group
    # never forgets a key, so no number may come twice.
    _meetings, _skips = itertools.count(1), itertools.count()

    def __init__(self) -> None:
        self._batch: Batch | None = None  # the last one, if it was not the last of its pass
        # Others wait for a trainer that has ended, also if it has called `disable` before.
        atexit.unregister(_post)
        atexit.register(_post, "ended")

    def take(self, batch: Batch) -> None:
        """Post the batch that this trainer takes."""
        self._batch = batch
        with suppress(Exception):  # the store may be gone at the end
            _store().set(_batch_key(dist.get_rank()), " ".join(map(str, batch)))

    def end_pass(self) -> None:
        """Note that the pass over a data loader has come to its end."""
        self._batch = None

    def meet(self, timeout_s: float) -> None:
        """Wait until all trainers have come to this point; all call it alike.

        Raises
        ------
        HetaError
            Another trainer has ended, or waits for all at a barrier, or has gone on in the pass
            that this one has left, so it will not come.
        """
        store, size = _store(), dist.get_world_size()
        key, pause = f"dgl-heta meeting {next(self._meetings)}", 0.0005
        start = looked = time.monotonic()
        if store.add(key, 1) >= size:
            return
        others = _Others(store, self._batch)
        while store.add(key, 0) < size:
            now = time.monotonic()
            if now - start > timeout_s:
                return  # the collective that follows says what there is to say
            if now - start > _PATIENCE_S and now - looked > _SURE_S:
                others.look()
                looked = now
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def skip_alike(self, skipped: Iterable[tuple[int, str]], ranks: Sequence[int],
                   timeout_s: float) -> None:
        """Wait until the other trainers of a group have skipped the same merges of relations, by
        their layers and node types.

        Raises
        ------
        HetaError
            One has skipped others.
        PeerLostError
            One has skipped none within `timeout_s`.
        """
        store, rank, number = _store(), dist.get_rank(), next(self._skips)
        key = f"dgl-heta skipped {number} by"
        here = ", ".join(f"'{ntype}' at layer {layer}" for layer, ntype in sorted(skipped))
        store.set(f"{key} {rank}", here)
        end = time.monotonic() + timeout_s
        for other in ranks:
            left = timedelta(seconds=max(end - time.monotonic(), 0.01))
            there = _value(store, f"{key} {other}", left)
            if there != here:
                raise (HetaError if there else PeerLostError)(
                    f"trainer {rank} has skipped the merge of relations into {here}, and trainer "
                    f"{other} " + (f"that into {there}" if there else
                                   f"none within {timeout_s:g} s") +
                    ": a layer that is left out at random (LayerDrop) must be left out by all "
                    "trainers at once, by random numbers that are the same on all (a "
                    "torch.Generator that all seed alike and nothing else draws from); every other "
                    "layer is merged by dgl.nn.HeteroGraphConv or block.multi_update_all")
        store.delete_key(f"dgl-heta skipped {number - 1} by {rank}")  # all have read it


class _Others:
    """The other trainers, as one that waits saw them at its last look."""

    def __init__(self, store: Any, left: Batch | None) -> None:
        self._store, self._left = store, left
        self._points: dict[int, str] = {}
        self._batches: dict[int, str] = {}

    def look(self) -> None:
        """
        Raises
        ------
        HetaError
            A trainer has ended, or for two looks been at one barrier, or at a later batch of the
            pass that this one has left.
        """
        rank = dist.get_rank()
        points = {other: _value(self._store, _key(other)) for other in range(dist.get_world_size())
                  if other != rank}
        for other, point in points.items():
            if point == "ended" or (point and self._points.get(other) == point):
                text = "has ended" if point == "ended" else f"waits at {point.partition(' ')[2]}"
                raise HetaError(
                    f"trainer {rank} is at a data loader, trainer {other} {text}: "
                    "all trainers of a meta-partitioned graph must create and iterate their "
                    "data loaders alike, in evaluation, too; give each its share of the nodes "
                    "(dgl.distributed.node_split) and gather the results")
        if self._left is not None:
            self._look_at_batches(self._left)
        self._points = points

    def _look_at_batches(self, left: Batch) -> None:
        for other in range(dist.get_world_size()):
            text = _value(self._store, _batch_key(other))
            loader, epoch, step = map(int, text.split()) if text else (-1, -1, -1)
            if (loader, epoch) == left[:2] and step > left[2] and (
                    self._batches.get(other) == text):
                raise HetaError(
                    f"trainer {dist.get_rank()} has left a pass over a data loader after "
                    f"{left[2] + 1} batches and is at another, trainer {other} goes on with batch "
                    f"{step + 1}: all trainers of a meta-partitioned graph must leave it at the "
                    "same batch; let them agree on it first (torch.distributed.all_reduce)")
            self._batches[other] = text


def watchdog() -> Watchdog:
    """Return the watchdog of this process."""
    return state_of(Watchdog)


@contextmanager
def at(point: str) -> Iterator[None]:
    """Tell the others that this trainer waits at a barrier while the body runs."""
    _post(f"{time.time()} {point}")  # the time tells one wait from the next at the same barrier
    try:
        yield
    finally:
        _post("")


def _post(text: str) -> None:
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        with suppress(Exception):  # the store may be gone at the end
            _store().set(_key(dist.get_rank()), text)


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()


def _key(rank: int) -> str:
    return f"dgl-heta at {rank}"


def _batch_key(rank: int) -> str:
    return f"dgl-heta batch {rank}"


def _value(store: Any, key: str, limit: timedelta = timedelta(milliseconds=20)) -> str:
    try:
        store.wait([key], limit)
        return str(store.get(key).decode())
    except RuntimeError:  # nothing was posted yet
        return ""
