"""The run of a script as its proof needs it: where blocks came from, a session to replay on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import dgl
import numpy as np
import torch
from dgl.distributed import DistEmbedding, DistGraph, DistTensor
from dgl.heterograph import DGLBlock
from torch import Tensor

from dgl_heta.comm.collectives import Comm, Traffic
from dgl_heta.distdgl.blocks.dgl_block import note_seeds
from dgl_heta.distdgl.blocks.raf_block import RafBlock
from dgl_heta.distdgl.blocks.relation_graph import csc_with_ids
from dgl_heta.distdgl.modules.script_blocks import make_blocks
from dgl_heta.distdgl.session import Session
from dgl_heta.proof.copies import NotProvedError
from dgl_heta.proof.gather import CAUSE, Ids, PlainLayer, fewer_seeds
from dgl_heta.proof.replay import Reads
from dgl_heta.proof.setting import Instead
from dgl_heta.raf.chain import Chain, NotedLinks
from dgl_heta.sampling.blocks import Block, MiniBatch
from dgl_heta.system.nested import of_type

Resample = Callable[[Sequence[Mapping[str, np.ndarray]]], MiniBatch]
"""Samples a step's blocks again, for seeds of each trainer of the group (target type → ids)."""


@dataclass(frozen=True)
class Step:
    """A step of a data loader, whose blocks a script is given.

    Attributes
    ----------
    sample : samples the step again, by the same key, for other seeds.
    seed : the loader's, the same on all trainers.
    epoch, step, steps : which one it is, from 0 on, and how many an epoch has.
    key : what the samples of the step follow from.
    planned : whether relations are where the plan has them.
    """

    sample: Resample
    seed: int
    epoch: int
    step: int
    steps: int
    key: int
    planned: bool

    @property
    def first(self) -> bool:
        """Return whether it is the loader's first step, the one at which inference is proved."""
        return self.epoch == self.step == 0


@dataclass(eq=False)
class Origin:
    """Where blocks came from, at a step to prove.

    Attributes
    ----------
    random_states : of PyTorch's generators when the batch was handed out.
    calls : how many were proved.
    """

    session: Session
    step: Step
    batch: MiniBatch
    random_states: list[Tensor]
    calls: int = 0


class DglSetting:
    """The setting of a proof in a script's run; see :class:`dgl_heta.proof.setting.Setting`."""

    def __init__(self, session: Session, origin: Origin) -> None:
        self._session, self._origin = session, origin
        self._batch = origin.batch
        self._traffic = Traffic()
        self.world, self.group = self._apart(session.world), self._apart(session.group)
        schema = session.store.schema
        self.relations, self.types = schema.relations, schema.node_types
        self.nones, self.links = True, NotedLinks()
        self.links.flags = session.order.flags  # so that links carry what those of the run do
        self._replayed: list[Block] = []

    def _apart(self, comm: Comm) -> Comm:
        return Comm(self._traffic, comm.ranks, comm.group)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Let the session be another one in the body; afterwards it is as it was.

        A replay runs through the same convolutions as the script, which find their exchange and
        their order of collectives on the session. What it sends is counted under a cause of its
        own, and by Comms of its own, so that bytes of training stay those of training.
        """
        with torch.inference_mode(False), torch.enable_grad():
            chain = Chain(0, self.links)
        try:
            with self._session.replayed(self.world, self.group, chain):
                yield
        finally:
            self._session.traffic.bytes[CAUSE] += sum(self._traffic.bytes.values())

    def sample(self, most: int) -> MiniBatch:
        pieces = fewer_seeds(self._origin.batch, most)
        self._batch = self._origin.batch if pieces is None else self._origin.step.sample(pieces)
        return self._batch

    def shared(self, value: Any) -> bool:
        return isinstance(value, DistEmbedding | DistGraph | DistTensor | dgl.DGLGraph | Session
                          | Comm) or type(value).__name__ in ("ProcessGroup", "ProcessGroupGloo")

    def known(self, value: Any) -> bool:
        return isinstance(value, RafBlock | DistEmbedding | DistGraph | DistTensor)

    def ours(self, batch: MiniBatch) -> Instead:
        done: set[tuple[int, str]] = set()
        batch = replace(batch, blocks=[replace(block, done=done) for block in batch.blocks])
        blocks = make_blocks(self._session, batch, planned=self._origin.step.planned)

        def instead(given: Any) -> Callable[[Any], Any]:
            self._replayed = [batch.blocks[layer - 1] for layer in given["frames"]]
            return _instead(blocks, given)
        return instead

    def plain(self, layers: Sequence[PlainLayer], ids: Sequence[Ids]) -> Instead:
        def instead(given: Any) -> Callable[[Any], Any]:
            blocks = [self._plain_block(layer, *ids[number:number + 2])
                      for number, layer in enumerate(layers)]
            note_seeds(blocks, self._batch)
            return _instead(blocks, given)
        return instead

    def _plain_block(self, layer: PlainLayer, sources: Ids, destinations: Ids) -> DGLBlock:
        """Return DGL's own block, with every relation of the graph."""
        edges = {tuple(r): ("csc", csc_with_ids(torch.from_numpy(p), torch.from_numpy(i)))
                 for r, (p, i) in zip(self.relations, layer)}
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


def _instead(blocks: Sequence[Any], given: Any) -> Callable[[Any], Any]:
    """Return what puts blocks in the place of the script's, by layer, with its data on nodes."""
    of_script = of_type(RafBlock, (given["args"], given["kwargs"]))
    moved = {b.layer.block.layer: blocks[b.layer.block.layer - 1].to(b.device)
             for b in of_script if b.layer is not None}
    for layer, ends in given["frames"].items():
        for end, types in ends.items():
            nodes = moved[layer].srcnodes if end == "src" else moved[layer].dstnodes
            for ntype, columns in types.items():
                for name, column in columns.items():
                    nodes[ntype].data[name] = column

    def replaced(item: Any) -> Any:
        if not isinstance(item, RafBlock):
            return item
        if item.layer is None:
            raise NotProvedError("the model is given a slice of a block")
        return moved[item.layer.block.layer]
    return replaced
