"""Batches for a training loop of one's own: the same draws as those of `dgl-heta train`."""

from __future__ import annotations

import logging
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from dgl_heta.comm.collectives import Comm, make_comms
from dgl_heta.errors import HetaError, InputError, listing, several
from dgl_heta.graph.schema import Relation
from dgl_heta.sampling.sampler import Fanout
from dgl_heta.training.batches import Batch, Batches, Sampler
from dgl_heta.training.caches import attach
from dgl_heta.training.tasks import SPLITS, Step, node_steps
from dgl_heta.training.tasks.task import share_of
from dgl_heta.training.tasks.timed_seeds import check_seeds
from dgl_heta.training.worker_partition import WorkerPartition

log = logging.getLogger("dgl_heta")
Ids = np.ndarray | Tensor | Sequence[int]
_UNSHUFFLED = 1 << 40  # their draws are of no epoch, those of `dgl-heta train` when it evaluates


class Loader:
    """Batches over nodes; iterate over it, once for each epoch.

    All workers make the same loaders, in the same order, and take their batches alike: a step is of
    all of them, with a share of its seeds for each. Iterating again goes on to the next epoch.

    :meth:`dgl_heta.Partition.loader` makes one.
    """

    def __init__(self, part: WorkerPartition, seeds: str | Ids | Mapping[str, Ids],
                 fanouts: Sequence[Fanout], batch_size: int, shuffle: bool | None, seed: int | None,
                 drop_last: bool = False) -> None:
        self.part, self._epoch, self._drop = part, 1, drop_last
        self._ids = _ids(part, seeds)
        named = isinstance(seeds, str) and seeds == "train"
        self._shuffle = named if shuffle is None else shuffle
        self._seed = part.settings.train.seed if seed is None else seed
        if len(fanouts) != part.plan.hops:
            raise InputError(f"{several(len(fanouts), 'fanout')} for a partition of "
                             f"{several(part.plan.hops, 'hop')}; give one for each layer of the "
                             "model, and partition for as many (--hops)")
        fanouts = [f.item() if isinstance(f, np.integer) else f for f in fanouts]
        for f in fanouts:
            # A layer that names relations may leave one out.
            least, numbers = (0, f.values()) if isinstance(f, Mapping) else (1, [f])
            if any(not isinstance(n, int) or (n < least and n != -1) for n in numbers):
                raise InputError(f"fanouts are {_told(fanouts)}; each must be a number of edges, "
                                 "or -1 for all")
        if not isinstance(batch_size, int) or batch_size < 1:
            raise InputError(f"batch_size is {batch_size}; it must be a whole number, 1 at least")
        self._size = batch_size * part.world.size
        _same(part, {
            "seeds": {t: [len(ids), zlib.crc32(np.ascontiguousarray(ids).data)]
                      for t, ids in self.asked().items()},
            "fanouts": _told(fanouts), "batch_size": batch_size, "shuffle": self._shuffle,
            "seed": self._seed})
        apart = None
        # Two passes at once would meet in one process group.
        self._one_at_a_time = part.plan.exchanges_while_sampling and part.source.ahead
        self._running: weakref.ref[_Pass] | None = None
        if self._one_at_a_time:
            # Several loaders may sample at once, each by a thread of its own: what workers agree on
            # must not meet in one process group.
            _, apart = make_comms(part.plan, part.traffic[1], part.settings.run.timeout_s,
                                  apart=True)
        self._sampler = self.sampler(fanouts, self._seed, apart)
        self._batches = Batches(part, self)

    def sampler(self, fanouts: Sequence[Fanout], seed: int, apart: Comm | None) -> Sampler:
        """What samples the batches; arguments are as of :meth:`WorkerPartition.sampler`."""
        return self.part.sampler(fanouts, seed=seed, apart=apart)

    def asked(self) -> Mapping[str, np.ndarray]:
        """What the batches are about; the same on all workers."""
        return self._ids

    def ordered(self, shuffle: tuple[int, int] | None) -> Sequence[Any]:
        """The steps in an order; arguments are as of :func:`node_steps`."""
        return node_steps(self._ids, self._size, shuffle)

    def _kept(self, steps: Sequence[Any]) -> Sequence[Any]:
        """The steps; without a last one that has fewer seeds, where that is left out."""
        asked = sum(map(len, self.asked().values()))
        return steps[:asked // self._size] if self._drop else steps

    def __len__(self) -> int:
        return len(self._kept(self.ordered(None)))

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is of this epoch, from 1 on; its order and its draws follow from it.
        """
        if epoch < 0:
            raise InputError(f"epoch is {epoch}; it must be 0 or more")
        self._epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        if not self._shuffle:  # the same batches each time
            return self._pass(self._kept(self.ordered(None)), _UNSHUFFLED, epoch)
        attach(self, report=_note)
        return self._pass(self.steps("train", epoch), epoch << 20, epoch)

    def _pass(self, steps: Sequence[Step], first: int, epoch: int) -> Iterator[Batch]:
        batches = self._batches.of_steps(self._sampler, steps, first, max(epoch - 1, 0))
        if not self._one_at_a_time:
            return batches
        before = None if self._running is None else self._running()
        if before is not None:
            before.end()
        running = _Pass(batches)
        self._running = weakref.ref(running)
        return running

    def steps(self, split: str, epoch: int) -> Sequence[Any]:
        """The steps of an epoch of training."""
        return self._kept(self.ordered((self._seed, epoch)))

    def sample(self, step: Any, number: int) -> Batch:
        """This worker's batch of a step; `number` differs from step to step."""
        return self._batches.of_step(self._sampler, step, number)

    def seeds(self, step: Any, worker: int, workers: int) -> dict[str, np.ndarray]:
        """The seeds of a worker's share of a step, per target type; unique."""
        return {t: share_of(nodes, worker, workers) for t, nodes in step.nodes.items()}

    def without(self, step: Any) -> Mapping[Relation, np.ndarray] | None:
        """The edges that must not carry messages: none."""


class _Pass(Iterator[Batch]):
    """The batches of a pass, until another one begins."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches, self._ended = batches, False

    def __next__(self) -> Batch:
        if self._ended:
            raise HetaError("a pass over a loader ended where another one over it began, as they "
                            "sample ahead by one process group; make a loader for each, or set "
                            "train.batches = on-demand")
        return next(self._batches)

    def close(self) -> None:
        """End it early, as that of a generator."""
        getattr(self._batches, "close", lambda: None)()

    def end(self) -> None:
        """End it for another one, if it has not ended by itself."""
        if getattr(self._batches, "gi_frame", None) is not None:
            self._ended = True
            self.close()


class LinkLoader(Loader):
    """Batches over the links of a split, as `dgl-heta train` has them with `task.relation`: the
    ends of links and of negative samples are the seeds, links that are held out carry no messages,
    nor do those of a step of training in it."""

    def __init__(self, part: WorkerPartition, split: str, fanouts: Sequence[Fanout],
                 batch_size: int, shuffle: bool | None, seed: int | None, drop_last: bool = False
                 ) -> None:
        if split not in SPLITS:
            raise InputError(f"'{split}' is no split of links; splits are {listing(SPLITS)}")
        if seed not in (None, part.settings.train.seed):
            raise InputError("links are held out and negatives drawn by train.seed; leave seed out")
        self._task, self._split = part.link_task, split
        super().__init__(part, {}, fanouts, batch_size, split == "train" if shuffle is None else
                         shuffle, seed, drop_last)

    def sampler(self, fanouts: Sequence[Fanout], seed: int, apart: Comm | None) -> Sampler:
        return self.part.sampler(fanouts, self._task.held_out, seed=seed, apart=apart)

    def asked(self) -> Mapping[str, np.ndarray]:
        return {"links": self._task.splits[self._split]}

    def ordered(self, shuffle: tuple[int, int] | None) -> Sequence[Any]:
        return self._task.steps(self._split, 0 if shuffle is None else shuffle[1], self._size,
                                shuffle=shuffle is not None)

    def seeds(self, step: Any, worker: int, workers: int) -> dict[str, np.ndarray]:
        return self._task.seeds(step, worker, workers)

    def without(self, step: Any) -> Mapping[Relation, np.ndarray] | None:
        return self._task.without(step)


def _note(event: Mapping[str, Any]) -> None:
    if event["event"] == "note":
        log.warning("%s", event["text"])


def _ids(part: WorkerPartition, seeds: str | Ids | Mapping[str, Ids]) -> dict[str, np.ndarray]:
    """The nodes that a loader is about, per target type, in the plan's order."""
    targets = part.plan.targets
    if isinstance(seeds, str):
        if seeds not in SPLITS:
            raise InputError(f"'{seeds}' is no split; splits are {listing(SPLITS)}; or give the "
                             "ids of nodes")
        return {t: part.split(t, seeds) for t in targets}
    if not isinstance(seeds, Mapping):
        if len(targets) > 1:
            raise InputError(f"the partition has targets {listing(targets)}; give the ids of each, "
                             "as {'paper': ids}")
        seeds = {targets[0]: seeds}
    if others := [t for t in seeds if t not in targets]:
        raise InputError(f"the partition was made for target {listing(targets)}, not for "
                         f"'{others[0]}'; partition the graph with --target {others[0]}")
    return {t: _checked(part, t, seeds.get(t, ())) for t in targets}


def _checked(part: WorkerPartition, ntype: str, ids: Ids) -> np.ndarray:
    array = np.asarray(ids.cpu() if isinstance(ids, Tensor) else ids)
    timed = part.store.manifest.timed
    if not array.size:
        array = np.empty((0, 2) if timed else 0, np.int64)
    if array.shape[1:] != ((2,) if timed else ()) or array.dtype.kind not in "iu":
        raise InputError(f"seeds of '{ntype}' are {array.dtype}{list(array.shape)}; give their ids"
                         + (" and times, whole numbers (seeds, 2), as the graph has times" if timed
                            else ", whole numbers (nodes,)"))
    ids, count = array[:, 0] if timed else array, part.store.schema.node_counts[ntype]
    if ids.size and not 0 <= ids.min() <= ids.max() < count:
        raise InputError(f"seeds of '{ntype}' are from {ids.min()} to {ids.max()}, but its "
                         f"nodes are 0 to {count - 1}")
    if len(np.unique(array, axis=0)) != len(array):
        raise InputError(f"a seed of '{ntype}' is given twice; give each node once"
                         + " at a time" * timed)
    if timed:
        check_seeds(array, part.store, ntype, lambda row: f"seed {ids[row]} of '{ntype}'")
    return array.astype(np.int64)


def _told(fanouts: Sequence[Fanout]) -> list[object]:
    return [{str(r): n for r, n in f.items()} if isinstance(f, Mapping) else f for f in fanouts]


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
