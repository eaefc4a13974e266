"""The proof inside a script: outermost modules that are given blocks are replayed on copies.

At a step to prove (`run.prove`) every call of a module is looked at. One that is given blocks of a
meta-partitioned graph, and is not inside another such call, is computed twice more after it has
returned: with RAF, and the plain way, on DGL's own blocks (:mod:`dgl_heta.proof`).
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import dgl
import torch
from dgl.distributed import DistEmbedding, DistGraph, DistTensor
from dgl.heterograph import DGLBlock
from torch import Tensor, nn

from dgl_heta.comm.collectives import Comm, Traffic
from dgl_heta.comm.remote_destinations import delivery
from dgl_heta.distdgl.batch_ids import bare
from dgl_heta.distdgl.blocks.dgl_block import note_seeds
from dgl_heta.distdgl.blocks.layer import csc_with_ids
from dgl_heta.distdgl.blocks.raf_block import RafBlock
from dgl_heta.distdgl.modules.merging_block import make_blocks
from dgl_heta.distdgl.modules.module_hooks import own_hook
from dgl_heta.distdgl.session import Session
from dgl_heta.distdgl.state import state_of
from dgl_heta.errors import HetaError
from dgl_heta.proof.copies import NotProvedError, unwrap
from dgl_heta.proof.gather import CAUSE, Ids, PlainLayer, fewer_seeds, levels
from dgl_heta.proof.module_call import Call, complete
from dgl_heta.proof.proving import Instead, Proof
from dgl_heta.proof.replay import Reads
from dgl_heta.proof.schedule import Schedule
from dgl_heta.raf import chain as links
from dgl_heta.raf.chain import Chain
from dgl_heta.sampling.blocks import Block, MiniBatch, mark_reads
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_kernels import hash_key
from dgl_heta.sampling.seeds import join_seeds
from dgl_heta.system.nested import of_type

log = logging.getLogger("dgl_heta")
_CALLS = 16
"""Calls of a step that are proved."""


@dataclass(eq=False)
class Origin:
    """Where blocks came from, at a step to prove.

    Attributes
    ----------
    number : of the step, which the draws follow from.
    random_state : of the generator when the batch was handed out.
    first : whether it is the loader's first step, the one at which inference is proved.
    planned : whether relations are where the plan has them.
    calls : how many were proved.
    """

    session: Session
    sampler: NeighborSampler
    batch: MiniBatch
    number: int
    random_state: Tensor
    first: bool
    planned: bool
    calls: int = 0


def schedule_of(session: Session) -> Schedule:
    """When a session's steps are proved."""
    run = session.settings.run
    if session.wrapper.uneven_steps or run.record is not None or run.reference:
        return Schedule()  # trainers do not step together, or are compared from outside
    return Schedule.parse(run.prove)


@dataclass(frozen=True)
class Step:
    """A step of a data loader, whose blocks a script is given.

    Attributes
    ----------
    sampler : the loader's.
    seed : the loader's, the same on all trainers.
    epoch, step, steps : which one it is, from 0 on, and how many an epoch has.
    number : what the samples of the step follow from.
    planned : whether relations are where the plan has them.
    """

    sampler: NeighborSampler
    seed: int
    epoch: int
    step: int
    steps: int
    number: int
    planned: bool


def handed_out(step: Step, session: Session, batch: MiniBatch, blocks: list[RafBlock]) -> bool:
    """Note the blocks of a step to prove, and return whether this is one."""
    schedule = schedule_of(session)
    if schedule.off:
        return False
    watch = _watch_of(session)
    watch.settle()
    if not schedule.due(step.seed, step.epoch, step.step, step.steps):
        return False
    origin = Origin(session, step.sampler, batch, step.number, torch.get_rng_state(),
                    step.epoch == step.step == 0, step.planned)
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
    """What looks at calls of modules in this process, of the graph that was opened last."""

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
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._origins: weakref.WeakSet[Origin] = weakref.WeakSet()
        self._last: Origin | None = None
        self._original: Any = None
        self._inside = False
        self.proved = 0
        self.told: str | None = None

    def expect(self, origin: Origin) -> None:
        """Blocks of a step to prove are in the script's hands."""
        self._origins.add(origin)
        self._last = origin
        if self._original is None:
            self._original = original = nn.Module.__call__

            def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
                if self._inside:
                    return original(module, *args, **kwargs)
                return self._called(original, module, args, kwargs)

            nn.Module.__call__ = own_hook(call)  # type: ignore[method-assign,assignment]

    def settle(self) -> None:
        """Stop looking where no blocks are left, and tell if nothing was proved."""
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

    def _called(self, original: Any, module: nn.Module, args: tuple[Any, ...],
                kwargs: dict[str, Any]) -> Any:
        blocks = [b for b in of_type(RafBlock, (args, kwargs)) if b.layer is not None]
        origins = {id(o): o for b in blocks if b.layer and (o := b.layer.origin) is not None}
        if not origins:
            return original(module, *args, **kwargs)
        given = _containers((args, kwargs))
        frames = {b.layer.block.layer: _frames(b) for b in blocks if b.layer}
        self._inside = True
        try:
            returned = original(module, *args, **kwargs)
            origin = next(iter(origins.values()))
            if origin.calls < _CALLS and (origin.first or torch.is_grad_enabled()):
                origin.calls += 1
                self._prove(origin, module, given, frames, len(origins) > 1)
        except BaseException:
            self.stop()
            raise
        finally:
            self._inside = False
        return returned

    def _prove(self, origin: Origin, module: nn.Module, given: Any, frames: dict[int, Any],
               several: bool) -> None:
        session = self._session
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
            torch.is_grad_enabled(), not torch.equal(origin.random_state, torch.get_rng_state()),
            hash_key(origin.number, origin.calls) >> 2,
            session.settings.train.learnable == "replica",
            "data of edges is read by the ids of a block's edges" if by_edge else None)
        try:
            with session.scope.aside(), setting.aside(), (
                    torch.inference_mode(False)), torch.enable_grad():
                text = Proof(setting, call).verdict()
        except NotProvedError as reason:
            self._tell(str(reason))
            return
        if text is not None:
            raise HetaError(text)
        self.proved += 1

    def _tell(self, reason: str) -> None:
        if self.told is None and self._session.world.rank == 0:
            log.warning("not proved: %s. `dgl-heta prove -- python script.py …` compares whole "
                        "steps; run.prove=off leaves the proof out", reason)
        self.told = self.told or reason


class _Alike(links.Watch):
    """Links of a replay carry what those of the run do."""

    def __init__(self, flags: bool) -> None:
        self.flags = flags
        self.places: set[links.Place] = set()

    def unused(self, place: links.Place) -> None:
        self.places.add(place)


class DglSetting:
    """What a proof needs of a script's run; see :class:`dgl_heta.proof.proving.Setting`."""

    def __init__(self, session: Session, origin: Origin) -> None:
        self._session, self._origin = session, origin
        self._batch = origin.batch
        self._traffic = Traffic()
        self.world, self.group = self._apart(session.world), self._apart(session.group)
        schema = session.store.schema
        self.relations, self.types = schema.relations, schema.node_types
        self.nones, self._links = True, _Alike(session.order.flags)
        self._replayed: list[Block] = []

    def _apart(self, comm: Comm) -> Comm:
        return Comm(self._traffic, comm.ranks, comm.group)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Let the session compute on communicators whose bytes are those of the proof."""
        with torch.inference_mode(False), torch.enable_grad():
            chain = Chain(0, self._links)
        try:
            with self._session.replayed(self.world, self.group, chain):
                yield
        finally:
            self._session.traffic.bytes[CAUSE] += sum(self._traffic.bytes.values())

    def sample(self, most: int) -> MiniBatch:
        self._batch = self._sampled(most)
        return self._batch

    def _sampled(self, most: int) -> MiniBatch:
        batch, session = self._origin.batch, self._session
        pieces = fewer_seeds(batch, most)
        if pieces is None:
            return batch
        deliver = delivery(session.store, session.group) if session.plan.delegates else None
        small = self._origin.sampler.sample(
            *join_seeds(pieces, session.group.rank), self._origin.number, deliver=deliver,
            excluded=batch.excluded)
        if len(small.blocks) > 1 and not session.all_complete:
            mark_reads(small.blocks[-2], small.blocks[-1])
        return small

    def shared(self, value: Any) -> bool:
        return isinstance(value, DistEmbedding | DistGraph | DistTensor | dgl.DGLGraph | Session
                          | Comm) or type(value).__name__ in ("ProcessGroup", "ProcessGroupGloo")

    def known(self, value: Any) -> bool:
        return isinstance(value, RafBlock | DistEmbedding | DistGraph | DistTensor)

    def ours(self, batch: MiniBatch) -> Instead:
        done: set[tuple[int, str]] = set()
        batch = replace(batch, blocks=[replace(block, done=done) for block in batch.blocks])
        blocks = make_blocks(self._session, batch, planned=self._origin.planned)

        def instead(given: Any) -> Callable[[Any], Any]:
            self._replayed = [batch.blocks[layer - 1] for layer in given["frames"]]
            return _instead(blocks, given)
        return instead

    def plain(self, layers: Sequence[PlainLayer], ids: Sequence[Ids]) -> Instead:
        def instead(given: Any) -> Callable[[Any], Any]:
            blocks = [self._plain_block(layer, *ids[place:place + 2])
                      for place, layer in enumerate(layers)]
            note_seeds(blocks, self._batch)
            return _instead(blocks, given)
        return instead

    def _plain_block(self, layer: PlainLayer, sources: Ids, destinations: Ids) -> DGLBlock:
        """DGL's own block with every relation of the graph."""
        edges = {tuple(r): ("csc", csc_with_ids(torch.from_numpy(p), torch.from_numpy(i)))
                 for r, (p, i) in zip(self.relations, layer.edges)}
        block = dgl.create_block(edges, {t: len(sources[t]) for t in self.types},
                                 {t: len(destinations[t]) for t in self.types})
        for t in self.types:
            block.srcnodes[t].data[dgl.NID] = torch.from_numpy(sources[t])
            block.dstnodes[t].data[dgl.NID] = torch.from_numpy(destinations[t])
        return block

    @contextmanager
    def reading(self, reads: Reads) -> Iterator[None]:
        before, self._session.reading = self._session.reading, reads
        try:
            yield
        finally:
            self._session.reading = before

    def chain(self) -> list[Tensor]:
        session = self._session
        if done := self._replayed[0].done:
            session.merges.check(self._replayed, done)
        return session.exchange.chain.tokens

    def unused(self) -> set[links.Place]:
        return self._links.places


def _instead(blocks: Sequence[Any], given: Any) -> Callable[[Any], Any]:
    """Blocks by layer, with the data that the script had put on their nodes."""
    for layer, sides in given["frames"].items():
        for side, types in sides.items():
            nodes = blocks[layer - 1].srcnodes if side == "src" else blocks[layer - 1].dstnodes
            for ntype, columns in types.items():
                for name, column in columns.items():
                    nodes[ntype].data[name] = column

    def replaced(item: Any) -> Any:
        if not isinstance(item, RafBlock):
            return item
        if item.layer is None:
            raise NotProvedError("the model is given a slice of a block")
        return blocks[item.layer.block.layer - 1]
    return replaced


def _frames(block: RafBlock) -> dict[str, dict[str, dict[str, Tensor]]]:
    """The data that a script has put on a block's nodes, by side, node type and name."""
    def of(nodes: Any, types: Sequence[str]) -> dict[str, dict[str, Tensor]]:
        return {t: {name: column for name, column in nodes[t].data.items() if name != dgl.NID}
                for t in types}
    return {"src": of(block.srcnodes, block.srctypes), "dst": of(block.dstnodes, block.dsttypes)}


def _containers(value: Any) -> Any:
    """The same with containers of its own, so that what is taken out or put in later is not seen;
    ids of batches as ordinary tensors."""
    if isinstance(value, Mapping):
        return {key: _containers(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_containers, value))
    if isinstance(value, list | tuple):
        return type(value)(map(_containers, value))
    return bare(value)
