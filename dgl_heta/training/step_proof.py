"""The proof inside `dgl-heta train`: steps are replayed on copies of the model (`run.prove`).

At a step to prove the model is run twice more, on a perturbed copy in fp64 and on few of the step's
seeds: with RAF, and on blocks as one worker by itself samples them, made of the edges of all
workers of the group. Outputs of the own seeds and gradients must be the same
(:mod:`dgl_heta.proof`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dgl_heta.comm.collectives import Comm, Traffic
from dgl_heta.errors import HetaError
from dgl_heta.hooks.protocols import ModuleWrapper
from dgl_heta.nn.cross import Alone, CrossRelation, Exchange
from dgl_heta.proof.copies import NotProvedError
from dgl_heta.proof.gather import CAUSE, Ids, PlainLayer, fewer_seeds, levels
from dgl_heta.proof.module_call import Call, complete
from dgl_heta.proof.proving import IN_SINGLE, Proof
from dgl_heta.proof.replay import Reads
from dgl_heta.proof.schedule import Schedule
from dgl_heta.proof.setting import Instead
from dgl_heta.raf.chain import Chain, NotedLinks
from dgl_heta.raf.exchange import GroupExchange
from dgl_heta.raf.wrapper import Raf, data_parallel
from dgl_heta.sampling.blocks import Block, MiniBatch, RelationBlock
from dgl_heta.sampling.moments import KEYED
from dgl_heta.sampling.sampling_scope import SamplingScope, by_destination
from dgl_heta.sampling.seeds import SeedShares
from dgl_heta.system.hashing import hash_key
from dgl_heta.training.batches import Batch, Place
from dgl_heta.training.worker_partition import WorkerPartition

log = logging.getLogger("dgl_heta")


class StepProof:
    """Proves steps of a partition with several workers a group (`run.prove`); all make it and call
    it alike. What proofs send is counted by the cause `proof`.

    Attributes
    ----------
    proved : how many steps were compared, without a difference.
    seconds : that proofs took; they are no part of an epoch's seconds.
    told : why steps are not proved, or one was not.
    """

    def __init__(self, part: WorkerPartition, wrapper: ModuleWrapper) -> None:
        self.proved, self.seconds, self.told = 0, 0.0, _never(part, wrapper)
        self._part, self._traffic = part, part.traffic[0]
        self._single: str | None = None
        self._schedule = Schedule.parse("off" if self.told else part.settings.run.prove)
        if self.told and part.rank == 0:
            log.warning("not proved: %s", self.told)

    def due(self, place: Place | None) -> bool:
        """Return whether to prove a step; the same on all workers."""
        return place is not None and not self._schedule.off and self._schedule.due(
            self._part.settings.train.seed, *place)

    def setting(self, batch: Batch) -> TrainingSetting:
        """How a batch is computed both ways."""
        return TrainingSetting(self._part, batch)

    def prove(self, model: nn.Module, batch: Batch, inputs: Mapping[str, Any],
              outputs: Iterable[Tensor]) -> None:
        """Compare a step with the plain way, before its backward pass, where one is due.

        Parameters
        ----------
        inputs : what the model is given with the blocks.

        Raises
        ------
        HetaError
            They differ; the same on all workers.
        """
        part, started = self._part, time.perf_counter()
        if not self.due(batch.place):
            return
        wrong = torch.tensor([float(not all(rows.isfinite().all() for rows in outputs))])
        if part.world.all_reduce(wrong, "max", CAUSE).item():
            self._tell("an output of a step is NaN or infinite, as is all that would be compared")
            return
        setting = self.setting(batch)
        mini = setting.whole()
        ids = levels(mini, setting.types)
        call = Call(
            model, {"args": [mini, inputs], "kwargs": {}}, ids, complete(mini, ids),
            first=0, complete=True, trained=True, drawn=False,
            seed=hash_key(batch.number, 1) >> 2,
            replicas=part.settings.train.learnable == "replica")
        handle, text = model.register_forward_pre_hook(_exchange_of_batch), None
        try:
            proof = Proof(setting, call)
            text = proof.verdict()
            self.proved += text is None
            if proof.single and not self._single and part.rank == 0:
                log.warning(IN_SINGLE, proof.single)
            self._single = self._single or proof.single
        except NotProvedError as reason:  # on all workers
            self._tell(str(reason))
        finally:
            handle.remove()
            self._traffic.bytes[CAUSE] += sum(setting.traffic.bytes.values())
            self.seconds += time.perf_counter() - started
        if text is not None:
            raise HetaError(text)

    def _tell(self, reason: str) -> None:
        """Say once why a step is not proved; on all workers alike."""
        if self.told is None and self._part.rank == 0:
            log.warning("not proved: %s; run.prove=off leaves the proof out", reason)
        self.told = self.told or reason


def _never(part: WorkerPartition, wrapper: ModuleWrapper) -> str | None:
    """Why no step of a run can be proved."""
    plan, train = part.plan, part.settings.train
    if type(wrapper) is not Raf:
        return f"train.wrapper is '{wrapper.name}'; only 'raf' is compared with the plain way"
    if part.store.manifest.timed and max(part.store.schema.node_counts.values()) >= KEYED:
        return f"the graph has times, and {KEYED:,} nodes of a type or more"
    if plan.metapaths:
        return "the plan follows metapaths, where a node can have two rows"
    if plan.replication != "full":
        return "the plan is one without replication"
    if part.precomputed is not None:
        return "the model reads inputs that were computed before"
    if not train.seed_states:
        return "train.seed_states is false"
    return None


@dataclass
class _Given(MiniBatch):
    """The batch that a copy is given, with the exchange that it is to merge with."""

    exchange: Exchange | None = None


def _exchange_of_batch(model: nn.Module, args: tuple[Any, ...]) -> None:
    """Copies of a model have this hook: the batch says how they merge."""
    for part in model.modules():
        if isinstance(part, CrossRelation) and isinstance(args[0], _Given):
            part.exchange = args[0].exchange or Alone()


class TrainingSetting:
    """The parts of a run that a proof needs; see :class:`dgl_heta.proof.setting.Setting`."""

    def __init__(self, part: WorkerPartition, batch: Batch) -> None:
        self.part, self.batch = part, batch
        self.traffic = Traffic()
        self.world, self.group = (comm.counted_by(self.traffic)
                                  for comm in (part.world, part.group))
        self.relations = part.store.schema.relations
        self.types: Sequence[str] = part.store.schema.node_types
        self.nones, self.links = False, NotedLinks()  # which the chain, without flags, never tells
        self.exchange = GroupExchange(self.group)
        self._scope = SamplingScope.of(data_parallel(part.plan), 0)

    def whole(self) -> MiniBatch:
        """The batch."""
        return self.batch.mini_batch()

    def sample(self, most: int) -> MiniBatch:
        seeds = fewer_seeds(self.whole(), most)
        if seeds is None:
            return self.whole()
        return self.batch.again(seeds, self.group)

    def shared(self, value: Any) -> bool:
        return isinstance(value, GroupExchange | Comm)

    def known(self, value: Any) -> bool:
        return isinstance(value, MiniBatch)

    def ours(self, batch: MiniBatch) -> Instead:
        with torch.inference_mode(False), torch.enable_grad():
            self.exchange.chain = Chain()
        return lambda given: _instead(_Given(**vars(batch), exchange=self.exchange), given)

    def plain(self, layers: Sequence[PlainLayer], ids: Sequence[Ids]) -> Instead:
        scope, seeds = self._scope, {t: ids[-1][t] for t in self._scope.targets}
        used = set(scope.roots).union(*scope.inner.values())
        reached = {*scope.targets, *(t for r in used for t in (r.src, r.dst))}
        types = [t for t in self.types if t in reached]
        shares = {t: SeedShares((len(own),)) for t, own in seeds.items()}
        counts = [{t: len(level[t]) for t in types} for level in ids]
        blocks = [self._plain_block(i + 1, layer, counts[i], counts[i + 1], shares)
                  for i, layer in enumerate(layers)]
        batch = _Given(blocks, {t: ids[0][t] for t in types}, seeds, dict(seeds), exchange=Alone())
        batch.to(self.part.device)
        return lambda given: _instead(batch, given)

    def _plain_block(self, number: int, layer: PlainLayer, sources: dict[str, int],
                     destinations: dict[str, int], shares: dict[str, SeedShares]) -> Block:
        """A layer as one worker by itself samples it."""
        scope, last = self._scope, number == self._scope.hops
        edges = []
        for i, (relation, (indptr, indices)) in enumerate(zip(self.relations, layer)):
            seeds = shares[relation.dst].total if relation.dst in shares else 0
            low = 0 if relation in scope.roots else seeds
            high = destinations.get(relation.dst, 0) if relation in scope.inner[number] else seeds
            if low < high:
                chosen = indices[indptr[low]:indptr[high]].astype(np.int32)
                edges.append(RelationBlock(
                    relation, low, torch.from_numpy(indptr[low:high + 1] - indptr[low]),
                    torch.from_numpy(chosen), i))
        return Block(number, sources,
                     {t: rows for t, rows in destinations.items() if not last or t in shares},
                     edges, shares, last, scope.seed_relations, by_destination(scope.inner[number]))

    def reading(self, reads: Reads) -> AbstractContextManager[None]:
        return nullcontext()

    def chain(self) -> list[Tensor]:
        return self.exchange.chain.tokens


def _instead(batch: _Given, given: Any) -> Callable[[Any], Any]:
    """The batch, with inputs of its node types."""
    inputs = given["args"][1]
    rows = {t: inputs[t] for t in batch.input_nodes}
    inputs.clear()
    inputs.update(rows)
    return lambda item: batch if isinstance(item, MiniBatch) else item
