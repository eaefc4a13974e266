"""The proof inside a script: outermost modules that are given blocks are replayed on copies.

At a step to prove (`run.prove`) every call of a module is looked at. One that is given blocks of a
meta-partitioned graph, and is not inside another such call, is computed twice more after it has
returned: with RAF, and the plain way, on DGL's own blocks (:mod:`dgl_heta.proof`).
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import dgl
import torch
from torch import Tensor, nn

from dgl_heta.distdgl.batch_ids import bare
from dgl_heta.distdgl.blocks.raf_block import RafBlock
from dgl_heta.distdgl.modules.module_hooks import own_hook
from dgl_heta.distdgl.proof.script_setting import DglSetting, Origin, Step
from dgl_heta.distdgl.session import Session
from dgl_heta.distdgl.state import state_of
from dgl_heta.errors import HetaError
from dgl_heta.proof.copies import NotProvedError, unwrap
from dgl_heta.proof.gather import levels
from dgl_heta.proof.module_call import Call, complete
from dgl_heta.proof.outside import drawn_since, torch_states
from dgl_heta.proof.proving import IN_SINGLE, Proof
from dgl_heta.proof.schedule import Schedule
from dgl_heta.sampling.blocks import MiniBatch
from dgl_heta.system.hashing import hash_key
from dgl_heta.system.nested import of_type

log = logging.getLogger("dgl_heta")
_CALLS = 16
"""Calls of a step that are proved."""


def schedule_of(session: Session) -> Schedule:
    """Return the schedule by which a session's steps are proved."""
    run = session.settings.run
    if session.wrapper.uneven_steps or run.record is not None or run.reference:
        return Schedule()  # trainers do not step together, or are compared from outside
    return Schedule.parse(run.prove)


def handed_out(step: Step, session: Session, batch: MiniBatch, blocks: list[RafBlock]) -> bool:
    """Note the blocks of a step to prove, and return whether this is one."""
    schedule = schedule_of(session)
    if schedule.off:
        return False
    watch = _watch_of(session)
    watch.settle()
    if not schedule.due(step.seed, step.epoch, step.step, step.steps):
        return False
    # The generators' states tell later whether random numbers were used in between.
    origin = Origin(session, step, batch, torch_states())
    for block in blocks:
        if block.layer is not None:
            block.layer.origin = origin
    watch.expect(origin)
    return True


def _watch_of(session: Session) -> Watch:
    watching = state_of(_Watching)
    if session.watch is None:
        watching.close()
        session.watch = watching.watch = Watch(session)
    watch: Watch = session.watch
    return watch


class _Watching:
    """The watch of this process, which is of the graph that was opened last."""

    watch: Watch | None = None

    def close(self) -> None:
        if self.watch is not None:
            self.watch.stop()


class Watch:
    """Looks at calls of modules while there are blocks of a step to prove.

    Attributes
    ----------
    proved : how many calls were compared, without a difference.
    told : why something was not proved, the first time.
    single : why something was compared in single precision, the first time.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._origins: weakref.WeakSet[Origin] = weakref.WeakSet()
        self._last: Origin | None = None
        self._original: Any = None
        self._inside = False
        self.proved = 0
        self.told: str | None = None
        self.single: str | None = None

    def expect(self, origin: Origin) -> None:
        """Look at calls from now on: blocks of a step to prove are in the script's hands."""
        self._origins.add(origin)
        self._last = origin
        if self._original is None:
            # On the class, since nobody knows which module a script will give the blocks to. Only
            # while there are such blocks: it costs every call of every module.
            self._original = original = nn.Module.__call__

            def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
                if self._inside:
                    return original(module, *args, **kwargs)
                return self._call(original, module, args, kwargs)

            nn.Module.__call__ = own_hook(call)  # type: ignore[method-assign,assignment]

    def settle(self) -> None:
        """Stop looking where no blocks are left, and tell if nothing was proved."""
        # A script that keeps no block lets go of the origin with them: it is a weak reference.
        last, self._last = self._last, None
        if last is not None and not last.calls and last.session.exchange.done:
            self._tell("blocks were used outside modules, or nothing could be compared")
        del last
        if not self._origins:
            self.stop()

    def stop(self) -> None:
        """Look no longer."""
        if self._original is not None:
            nn.Module.__call__ = self._original  # type: ignore[method-assign]
            self._original = None

    def _call(self, original: Any, module: nn.Module, args: tuple[Any, ...],
              kwargs: dict[str, Any]) -> Any:
        """Call a module, and prove the call if it is given blocks of a step to prove."""
        blocks = [b for b in of_type(RafBlock, (args, kwargs)) if b.layer is not None]
        origins = {id(o): o for b in blocks if b.layer and (o := b.layer.origin) is not None}
        if not origins:
            return original(module, *args, **kwargs)
        # Before the call, which may put data on the blocks or change lists that it is given.
        given = _containers((args, kwargs))
        frames = {b.layer.block.layer: _frames(b) for b in blocks if b.layer}
        self._inside = True
        try:
            returned = original(module, *args, **kwargs)
            origin = next(iter(origins.values()))
            if origin.calls < _CALLS and (origin.step.first or torch.is_grad_enabled()):
                origin.calls += 1
                self._prove(origin, module, given, frames, len(origins) > 1)
        except BaseException:
            # The script ends, or goes on with an error that it has caught: without the proof.
            self.stop()
            raise
        finally:
            self._inside = False
        return returned

    def _prove(self, origin: Origin, module: nn.Module, given: Any, frames: dict[int, Any],
               several: bool) -> None:
        """Compute a call twice more, with RAF and the plain way, and compare.

        Raises
        ------
        HetaError
            They differ.
        """
        session = self._session
        # DGL's blocks have one row for a node.
        if session.plan.metapaths:
            self._tell("the partition follows metapaths, where a node can have two rows")
            return
        if several:
            self._tell("a module is given blocks of several batches")
            return
        setting = DglSetting(session, origin)
        by_edge = any(b.layer.edges_read for b in of_type(RafBlock, given) if b.layer)
        ids = levels(origin.batch, session.store.schema.node_types)
        call = Call(
            unwrap(module), {"args": given[0], "kwargs": given[1], "frames": frames},
            ids, complete(origin.batch, ids), min(frames) - 1,
            max(frames) == len(ids) - 1,
            torch.is_grad_enabled(), drawn_since(origin.random_states),
            hash_key(origin.step.key, origin.calls) >> 2,
            session.settings.train.learnable == "replica",
            "data of edges is read by the ids of a block's edges" if by_edge else None,
            rough=(torch.is_autocast_enabled() or torch.is_autocast_cpu_enabled()
                   or session.settings.train.exchange_dtype != "same"))
        proof = Proof(setting, call)
        try:
            with session.scope.aside(), setting.aside(), (
                    torch.inference_mode(False)), torch.enable_grad():
                text = proof.verdict()
        except NotProvedError as reason:
            self._tell(str(reason))
            return
        if text is not None:
            raise HetaError(text)
        self.proved += 1
        if proof.single and self.single is None and session.world.rank == 0:
            log.warning(IN_SINGLE, proof.single)
        self.single = self.single or proof.single

    def _tell(self, reason: str) -> None:
        if self.told is None and self._session.world.rank == 0:
            log.warning("not proved: %s. `dgl-heta prove -- python script.py …` compares whole "
                        "steps; run.prove=off leaves the proof out", reason)
        self.told = self.told or reason


def _frames(block: RafBlock) -> dict[str, dict[str, dict[str, Tensor]]]:
    """Return a script's data on a block's nodes, by source or destination, type and name."""
    def of(nodes: Any, types: Sequence[str]) -> dict[str, dict[str, Tensor]]:
        return {t: {name: column for name, column in nodes[t].data.items() if name != dgl.NID}
                for t in types}
    return {"src": of(block.srcnodes, block.srctypes), "dst": of(block.dstnodes, block.dsttypes)}


def _containers(value: Any) -> Any:
    """Return a value in containers of its own, with ids of batches as ordinary tensors.

    So what the module takes out of them or puts in later is not seen.
    """
    if isinstance(value, Mapping):
        return {key: _containers(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_containers, value))
    if isinstance(value, list | tuple):
        return type(value)(map(_containers, value))
    return bare(value)
