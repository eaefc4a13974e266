"""Batches for a training loop of one's own: the same draws as those of `dgl-heta train`."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dgl_heta.comm.collectives import Comm, make_comms
from dgl_heta.errors import HetaError, InputError, listing, several
from dgl_heta.features.row_files import move
from dgl_heta.graph.schema import Relation
from dgl_heta.sampling.blocks import Block, MiniBatch
from dgl_heta.training.batches import Batches, Sampler, closing
from dgl_heta.training.tasks import SPLITS, NodeStep, Step, node_steps
from dgl_heta.training.tasks.seed_table import SeedTable, check_rows
from dgl_heta.training.tasks.task import share_of
from dgl_heta.training.worker_partition import WorkerPartition

Ids = np.ndarray | Tensor | Sequence[int]
_UNSHUFFLED = 1 << 40  # their draws are of no epoch, those of `dgl-heta train` when it evaluates


class Batch:
    """What this worker has of a step: its seeds, their neighbourhood, its input rows, its labels.

    Attributes
    ----------
    blocks : the message flow, input side first; see :class:`dgl_heta.sampling.blocks.Block`.
    input_nodes : ids of the nodes whose features are read, int64, per node type.
    seeds : ids of this worker's own seeds, int64, per target type. What the model returns is for
        them, in this order.
    times : of a graph with times, those of the seeds, int64 seconds since 1970, per target type.
    """

    def __init__(self, part: WorkerPartition, mini: MiniBatch, step: NodeStep, source: Batches,
                 tables: Mapping[str, SeedTable]) -> None:
        self.part, self._mini, self._source, self._tables = part, mini, source, tables
        self._rows = {t: share_of(rows, *part.share(step)) for t, rows in step.nodes.items()}
        self.times = {t: table.times[self._rows[t]] for t, table in tables.items()}
        self._sizes = {t: len(nodes) for t, nodes in step.nodes.items()}
        self.blocks: list[Block] = mini.blocks
        self.input_nodes, self.seeds = mini.input_nodes, mini.own_seeds

    @cached_property
    def labels(self) -> dict[str, Tensor]:
        """The labels of the own seeds, per target type, on the model's device.

        Raises
        ------
        InputError
            The graph has none; or it has times, and seeds were given with theirs.
        """
        labels = {t: self._tables[t].labels if self._tables else self.part.labels(t)
                  for t in self._rows}
        if unknown := [t for t, known in labels.items() if known is None]:
            raise InputError(f"seeds of '{unknown[0]}' were given with their times, so nothing "
                             "says what their labels are; take a split of the task")
        return {t: move(torch.from_numpy(known.rows(self._rows[t])), self.part.device)
                for t, known in labels.items() if known is not None}

    def inputs(self, train: bool) -> dict[str, Tensor]:
        """The rows of the input nodes, per node type: those with features, and learnable ones,
        which with `train` are leaves that collect gradients.

        All workers must call it in every step. :class:`DistributedModel` does.

        Raises
        ------
        HetaError
            Learnable rows of an earlier batch have gradients that no step has taken.
        """
        if train and self.part.learnable.pending:
            raise HetaError("learnable rows of the batch before have gradients that nothing took; "
                            "call step() of part.row_optimizer() after each backward pass")
        return self._source.rows(self._mini, train)

    def mean(self, losses: Tensor, ntype: str | None = None) -> Tensor:
        """This worker's part of the mean of a step's losses, over the seeds of all workers.

        The mean of the workers' parts, which is what gradients are averaged to, is that mean,
        whatever number of seeds each worker has.

        Parameters
        ----------
        losses : one for each own seed of the type, (own seeds, …); may be empty.
        ntype : the target type; needed where there are several.
        """
        if ntype is None:
            (ntype,) = self._sizes if len(self._sizes) == 1 else (None,)
        if ntype not in self._sizes:
            raise InputError(f"a batch has seeds of {listing(self._sizes)}; say of which the "
                             "losses are, as in batch.mean(losses, 'paper')")
        if losses.dim() == 0 or len(losses) != len(self.seeds[ntype]):
            raise InputError(f"{losses.numel()} losses for {len(self.seeds[ntype])} own "
                             f"seeds of '{ntype}'; give one for each (reduction='none')")
        each = losses[0].numel() if len(losses) else max(losses[:0].numel(), 1)
        return losses.sum() * (self.part.world.size / max(self._sizes[ntype] * each, 1))

    def mini_batch(self) -> MiniBatch:
        """The batch as models of this package take it."""
        return self._mini


class Loader:
    """Batches over nodes; iterate over it, once for each epoch.

    All workers make the same loaders, in the same order, and take their batches alike: a step is of
    all of them, with a share of its seeds for each. Iterating again goes on to the next epoch.

    :meth:`dgl_heta.Partition.loader` makes one.
    """

    def __init__(self, part: WorkerPartition, seeds: str | Ids | Mapping[str, Ids],
                 fanouts: Sequence[int], batch_size: int, shuffle: bool | None, seed: int | None
                 ) -> None:
        self._part, self._epoch = part, 1
        self._ids, self._tables = _ids(part, seeds)
        named = isinstance(seeds, str) and seeds == "train"
        self._shuffle = named if shuffle is None else shuffle
        self._seed = part.settings.train.seed if seed is None else seed
        if len(fanouts) != part.plan.hops:
            raise InputError(f"{several(len(fanouts), 'fanout')} for a partition of "
                             f"{several(part.plan.hops, 'hop')}; give one for each layer of the "
                             "model, and partition for as many (--hops)")
        fanouts = [f.item() if isinstance(f, np.integer) else f for f in fanouts]
        if any(not isinstance(f, int) or f < -1 or f == 0 for f in fanouts):
            raise InputError(f"fanouts are {list(fanouts)}; each must be a number of edges, or -1 "
                             "for all")
        if not isinstance(batch_size, int) or batch_size < 1:
            raise InputError(f"batch_size is {batch_size}; it must be a whole number, 1 at least")
        self._size = batch_size * part.world.size
        _same(part, {
            "seeds": {t: [len(ids), zlib.crc32(np.ascontiguousarray(self._given(t, ids)).data)]
                      for t, ids in self._ids.items()},
            "fanouts": list(fanouts), "batch_size": batch_size, "shuffle": self._shuffle,
            "seed": self._seed})
        apart = None
        if part.plan.exchanges_while_sampling and part.source.ahead:
            # Several loaders may sample at once, each by a thread of its own: what workers agree on
            # must not meet in one process group.
            _, apart = make_comms(part.plan, part.traffic[1], part.settings.run.timeout_s,
                                  apart=True)
        self._sampler = self.sampler(fanouts, self._seed, apart)
        self._batches = Batches(part, self)

    def sampler(self, fanouts: Sequence[int], seed: int, apart: Comm | None) -> Sampler:
        """What samples the batches; arguments are as of :meth:`WorkerPartition.sampler`."""
        return self._part.sampler(fanouts, seed=seed, apart=apart)

    def __len__(self) -> int:
        return -(-sum(map(len, self._ids.values())) // self._size)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is of this epoch, from 1 on; its order and its draws follow from it.
        """
        if epoch < 0:
            raise InputError(f"epoch is {epoch}; it must be 0 or more")
        self._epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        if not self._shuffle:  # the same batches each time
            return self._pass(node_steps(self._ids, self._size, None), _UNSHUFFLED)
        epoch, self._epoch = self._epoch, self._epoch + 1
        return self._pass(node_steps(self._ids, self._size, (self._seed, epoch)), epoch << 20)

    def _pass(self, steps: Sequence[Step], first: int) -> Iterator[Batch]:
        batches = self._batches.of_steps(self._sampler, steps, first)
        with closing(batches):
            for step, mini in zip(steps, batches):
                assert isinstance(step, NodeStep)
                yield Batch(self._part, mini, step, self._batches, self._tables)

    def seeds(self, step: NodeStep, worker: int, workers: int) -> dict[str, np.ndarray]:
        """The seeds of a worker's share of a step."""
        return {t: self._given(t, share_of(nodes, worker, workers))
                for t, nodes in step.nodes.items()}

    def _given(self, ntype: str, ids: np.ndarray) -> np.ndarray:
        """Seeds as samplers take them: ids, or of rows of a table their nodes and times."""
        return self._tables[ntype].pairs(ids) if ntype in self._tables else ids

    def without(self, step: NodeStep) -> Mapping[Relation, np.ndarray] | None:
        """The edges that must not carry messages: none."""


def _ids(part: WorkerPartition, seeds: str | Ids | Mapping[str, Ids]
         ) -> tuple[dict[str, np.ndarray], dict[str, SeedTable]]:
    """The nodes that a loader is about, per target type, in the plan's order; in a graph with times
    rows of tables, and these."""
    targets, timed = part.plan.targets, part.store.manifest.timed
    if isinstance(seeds, str):
        if seeds not in SPLITS:
            raise InputError(f"'{seeds}' is no split; splits are {listing(SPLITS)}; or give the "
                             "ids of nodes")
        tables = part.seed_tables if timed else {}
        return {t: tables[t].rows(seeds) if timed else part.split(t, seeds)
                for t in targets}, tables
    if not isinstance(seeds, Mapping):
        if len(targets) > 1:
            raise InputError(f"the partition has targets {listing(targets)}; give the ids of each, "
                             "as {'paper': ids}")
        seeds = {targets[0]: seeds}
    if others := [t for t in seeds if t not in targets]:
        raise InputError(f"the partition was made for target {listing(targets)}, not for "
                         f"'{others[0]}'; partition the graph with --target {others[0]}")
    checked = {t: _checked(part, t, seeds.get(t, ())) for t in targets}
    if not timed:
        return checked, {}
    return ({t: np.arange(len(pairs)) for t, pairs in checked.items()},
            {t: SeedTable(*pairs.T) for t, pairs in checked.items()})


def _checked(part: WorkerPartition, ntype: str, ids: Ids) -> np.ndarray:
    array = np.asarray(ids.cpu() if isinstance(ids, Tensor) else ids)
    timed = part.store.manifest.timed
    if not array.size:
        array = np.empty((0, 2) if timed else 0, np.int64)
    if array.dtype.kind not in "iu" or array.shape[1:] != ((2,) if timed else ()):
        raise InputError(f"seeds of '{ntype}' are {array.dtype}{list(array.shape)}; give their "
                         + ("ids and times, whole numbers (seeds, 2), as the graph has times"
                            if timed else "ids, whole numbers (nodes,)"))
    ids, count = array[:, 0] if timed else array, part.store.schema.node_counts[ntype]
    if ids.size and not 0 <= ids.min() <= ids.max() < count:
        raise InputError(f"seeds of '{ntype}' are from {ids.min()} to {ids.max()}, but its "
                         f"nodes are 0 to {count - 1}")
    if len(np.unique(array, axis=0)) != len(array):
        raise InputError(f"a seed of '{ntype}' is given twice; give each node once"
                         + " at a time" * timed)
    array = array.astype(np.int64)
    if timed and (rows := part.store.row_times(ntype)) is not None:
        check_rows(array, rows, ntype)
    return array


def _same(part: WorkerPartition, given: dict[str, object]) -> None:
    """Refuse, on all workers alike, loaders that differ between them."""
    every = part.world.all_gather_json(given, "control")
    for name in given:
        for rank, other in enumerate(every):
            if other[name] != every[0][name]:
                what = "other ids" if name == "seeds" else f"{other[name]}"
                raise InputError(f"worker {rank} made a loader with {name} = {what}, worker 0 with "
                                 f"{'its own' if name == 'seeds' else every[0][name]}; all workers "
                                 "must make it alike")
