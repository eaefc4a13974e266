"""Where the trainers are, for one that waits for them in vain.

All trainers must create and iterate data loaders alike. A script of plain DistDGL may do otherwise
(evaluation on trainer 0 alone, the others at a barrier), and would wait until the time-out. Each
trainer posts in the process group's store when it comes to such a point; who waits there looks
after the others.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from dgl_heta.errors import HetaError

_PATIENCE_S = 3.0
"""After so long a trainer that waits looks where the others are."""
_SURE_S = 2.0
"""A trainer that was in a barrier all this time will not leave it by itself."""
_posted: list[bool] = []


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


def meet(number: int, timeout_s: float) -> None:
    """Wait until all trainers have come to the `number`-th point of meeting.

    Raises
    ------
    HetaError
        Another trainer has ended, or waits for all at a barrier, so it will not come.
    """
    store, size = _store(), dist.get_world_size()
    if not _posted:
        _posted.append(True)
        atexit.register(_post, "ended")
    key, start, pause = f"dgl-heta meeting {number}", time.monotonic(), 0.0005
    if store.add(key, 1) >= size:
        return
    looked: dict[int, str] = {}
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
            looked, since = found, now
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def _where(store: Any, rank: int) -> str:
    try:
        store.wait([_key(rank)], timedelta(milliseconds=20))
        return str(store.get(_key(rank)).decode())
    except RuntimeError:  # nothing was posted yet
        return ""
