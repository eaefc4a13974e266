"""The end of training in a script: module wrappers finish, all trainers together.

A script tells nobody which epoch is its last. Trainers have ended when they destroy the process
group, or else when their scripts have ended without an error. A trainer that has ended waits for
the others, which may be in their last epoch; one that fails does not, and ends the launch.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from typing import Any

import torch.distributed as dist

from dgl_heta.comm.collectives import Comm
from dgl_heta.distdgl.state import selected, state_of
from dgl_heta.distdgl.versions import homes
from dgl_heta.errors import HetaError
from dgl_heta.hooks.protocols import WrappedModule
from dgl_heta.system.patching import patch_all


class _Ending:
    """Modules whose wrappers finish at the end of this script, with all trainers of each."""

    def __init__(self) -> None:
        self.wrapped: list[tuple[WrappedModule, Comm]] = []
        atexit.register(_leave)

    def close(self) -> None:
        atexit.unregister(_leave)


def at_end(wrapped: WrappedModule, world: Comm) -> None:
    """Let a module's wrapper finish at the end of this script."""
    state_of(_Ending).wrapped.append((wrapped, world))


def end() -> None:
    """Let all wrappers finish, once; all trainers come here, or the wait is limited.

    Raises
    ------
    HetaError
        Not all trainers have ended within the limit of every wait.
    """
    ending = state_of(_Ending)
    waiting, ending.wrapped = ending.wrapped, []
    if any(type(wrapped).finish is not WrappedModule.finish and world.size > 1
           for wrapped, world in waiting):
        _meet(selected().run.timeout_s)
    for wrapped, _ in waiting:
        wrapped.finish()


def _leave() -> None:
    """Finish at exit, without `dgl-heta run`; a script that could not finish has failed."""
    if hasattr(sys, "last_value"):  # of an error that ended the script: the others must not wait
        return
    try:
        end()
    except Exception as error:  # at exit Python would print it, and leave with status 0
        print(f"error: {error}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _meet(timeout_s: float) -> None:
    """Wait until all trainers have ended."""
    if not dist.is_initialized():
        raise HetaError("the process group was gone before training was finished, so trainers "
                        "cannot finish together; leave it to torch.distributed."
                        "destroy_process_group, or to the end of the script")
    store, size = dist.distributed_c10d._get_default_store(), dist.get_world_size()
    # A counter in the store, not a barrier: a trainer that waits in a collective cannot tell who
    # is missing, and a failed one would leave it there.
    key, start, pause = "dgl-heta ended", time.monotonic(), 0.0005
    ended = store.add(key, 1)
    while ended < size:
        if time.monotonic() - start > timeout_s:
            raise HetaError(f"trainer {dist.get_rank()} has ended, but {size - ended} of {size} "
                            f"trainers have not after {timeout_s:g} s, so they cannot finish "
                            "together (run.timeout_s)")
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
        ended = store.add(key, 0)


def _destroy(original: Any) -> Any:
    def destroy_process_group(group: Any = None) -> None:
        if group is None and sys.exc_info()[0] is None:  # in no `finally` after an error
            end()
        original(group)
    return destroy_process_group


PATCHES = (
    *patch_all(homes("destroy_process_group"), _destroy,
               "module wrappers finish before it, on all trainers"),
)
