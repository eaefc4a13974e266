"""Batches of a data loader on a meta-partitioned graph.

All trainers of a group step together: the seeds of a step are those of every trainer, and each
trainer samples its machine's relations for all of them, from its disk. What comes out is as
without dgl-heta: input nodes, the trainer's own seeds, blocks.
"""

from __future__ import annotations

import itertools
import logging
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgl_heta.distdgl.blocks.dgl_block import PlainBlock, tell
from dgl_heta.distdgl.blocks.raf_block import RafBlock
from dgl_heta.distdgl.loading.group_sampling import Drawing, check_once
from dgl_heta.distdgl.loading.loader_scope import check_types, fanouts_of, loader_scope
from dgl_heta.distdgl.modules.merging_block import make_blocks
from dgl_heta.distdgl.proof import step_proof
from dgl_heta.distdgl.proof.recording import recorder
from dgl_heta.distdgl.session import Session
from dgl_heta.distdgl.source_trainers import SourceTrainers
from dgl_heta.distdgl.store.masked_store import masked_store
from dgl_heta.distdgl.watchdog import watchdog
from dgl_heta.errors import HetaError, InputError, several
from dgl_heta.sampling.blocks import MiniBatch, forget_reads
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.stages import Making

log = logging.getLogger("dgl_heta")
Sample = tuple[dict[str, Tensor], dict[str, Tensor], list[RafBlock | PlainBlock]]
_IGNORED = {"queue_size", "persistent_workers", "prefetch_factor", "pin_memory",
            "use_ddp", "ddp_seed", "use_uva", "use_prefetch_thread", "use_alternate_streams"}


class RafLoader:
    """Batches of one data loader.

    Parameters
    ----------
    session : of this trainer.
    nids : target node type → ids of this trainer's nodes.
    graph_sampler : DGL's NeighborSampler (MultiLayerNeighborSampler) or a class derived from it.

    Raises
    ------
    InputError
        Another sampler, more layers than the partition has hops, nodes of another type, or a
        trainer that has not a node for every step.
    """

    def __init__(self, session: Session, nids: Mapping[str, Tensor], graph_sampler: Any,
                 batch_size: int = 1, shuffle: bool = False, drop_last: bool = False,
                 num_workers: int = 0, **ignored: Any) -> None:
        counts = self._prepare("DistNodeDataLoader", session, sum(map(len, nids.values())),
                               graph_sampler, batch_size, shuffle, drop_last, num_workers, ignored,
                               ntypes=nids)
        targets = self._of.targets
        kinds = [np.full(len(ids), targets.index(t), np.int64) for t, ids in nids.items()]
        ids = [np.asarray(ids, np.int64) for ids in nids.values()]
        mine = np.stack([np.concatenate(kinds), np.concatenate(ids)], 1) if ids else np.empty(
            (0, 2), np.int64)
        self._check_ids(nids)
        group = session.group
        ranks = group.ranks if session.world.size > 1 else (0,)
        gathered = group.all_gather_rows(torch.from_numpy(mine), [counts[r] for r in ranks],
                                         "seeds").numpy()
        bounds = np.cumsum([0] + [counts[r] for r in ranks])
        self._seeds = [gathered[a:b] for a, b in itertools.pairwise(bounds)]
        self._ranks = ranks
        self._repeated = any(len(np.unique((seeds[:, 0] << 48) + seeds[:, 1])) < len(seeds)
                             for seeds in self._seeds)

    def _prepare(self, what: str, session: Session, seeds: int, graph_sampler: Any,
                 batch_size: int, shuffle: bool, drop_last: bool, num_workers: int,
                 ignored: Mapping[str, Any], kind: int = 0, ntypes: Iterable[str] = (),
                 fanouts: Sequence[Any] | None = None) -> list[int]:
        """What all loaders have, agreed on by all trainers; returns how many seeds each has."""
        for name in ignored:
            if name not in _IGNORED:
                raise InputError(f"{what} has no argument '{name}' on a meta-partitioned graph")
        if batch_size < 1:
            raise InputError(f"batch_size is {batch_size}; it must be 1 or more")
        fanouts = fanouts_of(graph_sampler, session) if fanouts is None else fanouts
        check_types(session, ntypes, len(fanouts))
        session.connect()
        self._of = loader_scope(session, ntypes, len(fanouts))
        self._session, self._shuffle, self._batch_size = session, shuffle, batch_size
        self._source = session.sources.serving(num_workers)
        self._number = session.loaders
        session.loaders += 1
        mask = getattr(graph_sampler, "prob", None)
        source = zlib.crc32(f"{self._source.name} {self._source.settings!r} {mask!r}".encode())
        session.groups.agree("the data loaders", [
            self._number, batch_size, int(shuffle), int(drop_last), source, kind,
            int(self._of.planned), *(f for layer in fanouts for f in (
                layer.values() if isinstance(layer, dict) else [layer]))])
        ones = [1] * session.world.size
        counts: list[int] = session.world.all_gather_rows(
            torch.tensor([seeds]), ones, "control").tolist()
        self.sizes = _step_sizes(counts, batch_size, drop_last)
        seed = torch.tensor([torch.initial_seed() % 2**62])
        seed = session.world.all_gather_rows(seed, ones, "control")[:1]
        self.seed = int(seed)
        threads = session.settings.train.sampling_threads or torch.get_num_threads()
        self._store = session.store if mask is None else masked_store(
            session.store, mask, session.edge_columns(mask))
        self.sampler = NeighborSampler(self._store, self._of.scope, fanouts, self.seed,
                                       threads=threads, guest_states=False, together=True)
        self._epoch = -1
        self._step = 0
        self._making = Making(("sample",))
        self._batches: Iterator[Any] = iter(())
        self._open = ExitStack()
        return counts

    def _check_ids(self, nids: Mapping[str, Tensor]) -> None:
        for ntype, ids in nids.items():
            count = self._session.store.schema.node_counts[ntype]
            if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < count:
                raise InputError(f"the data loader's nodes of type '{ntype}' reach from "
                                 f"{int(ids.min())} to {int(ids.max())}, but the graph has {count}")

    @property
    def seeds(self) -> int:
        """The number of this trainer's nodes."""
        return len(self._seeds[self._session.group.rank])

    def __len__(self) -> int:
        return len(self.sizes[0])

    def start(self) -> None:
        """Begin an epoch: shuffle as each trainer's own generator says."""
        self._begin_pass()
        session = self._session
        if self._shuffle:
            state = torch.get_rng_state()
            states = session.group.all_gather_rows(state[None], [1] * session.group.size, "seeds")
            for place, seeds in enumerate(self._seeds):
                generator = torch.Generator()
                generator.set_state(states[place])
                order = torch.randperm(len(seeds), generator=generator).numpy()
                self._seeds[place] = seeds[order]
            torch.randperm(len(self._seeds[session.group.rank]))  # as DGL's own loader draws
        if self._repeated:
            self._check_batches()
        in_order = bool(session.plan.delegates) or (bool(session.embeddings) and any(
            len(members) > 1 for members in session.plan.groups))
        group = (self._open.enter_context(session.groups.sampling.one(session.world)) if in_order
                 else session.group)
        drawing = Drawing(session, self.sampler, self._of.targets, [*self._seeds],
                          [self.sizes[rank] for rank in self._ranks], group,
                          self._draws(self._epoch, 0))
        self._batches = self._making.start(self._source, len(self), in_order,
                                           {"sample": drawing.draw})

    def _check_batches(self) -> None:
        """
        Raises
        ------
        InputError
            A node is twice in one of a trainer's batches of this pass.
        """
        for rank, seeds in zip(self._ranks, self._seeds):
            sizes = self.sizes[rank]
            for step, batch in enumerate(np.split(seeds, np.cumsum(sizes))[:len(sizes)]):
                for kind, ntype in enumerate(self._of.targets):
                    check_once(batch[batch[:, 0] == kind, 1], ntype,
                               f"batch {step + 1} of trainer {rank}")

    def _begin_pass(self) -> None:
        self._close()
        self._epoch += 1
        self._step = 0
        session = self._session
        session.groups.agree("the epoch of a data loader, and whether all states are complete",
                      [self._number, self._epoch, int(session.all_complete)])
        session.groups.agreed.forget()
        if (recording := recorder()) is not None:
            recording.start_pass(session)

    def next(self) -> Any:
        """The next batch; StopIteration at the end of the epoch."""
        self._begin_step()
        drawn = self._making.next(self._batches)
        if drawn is None:
            raise HetaError(f"batch source '{self._source.name}' gave {self._step - 1} batches "
                            f"for {len(self)} steps; it must give one for each")
        return self._hand_out(*drawn)

    def _begin_step(self) -> None:
        recording = recorder()
        if self._step >= len(self) or (recording is not None and recording.ends_pass(self._step)):
            self._end_pass()
            raise StopIteration
        self._take_step()

    def _end_pass(self) -> None:
        if not torch.is_grad_enabled():  # else batches may be in the script's hands
            self._session.scope.end()
        self._session.merges.check_earlier()
        self._close()
        watchdog().end_pass()

    def _take_step(self) -> None:
        session = self._session
        if session.world.size > 1:
            watchdog().take((self._number, self._epoch, self._step))
        self._step += 1

    def _hand_out(self, batch: MiniBatch, trainers: SourceTrainers, number: int | None = None
                  ) -> Sample:
        """What a script is given of a batch, whose draws follow from `number` (or the step)."""
        session = self._session
        if session.all_complete:  # since it was drawn, maybe
            forget_reads(batch.blocks)
        session.begin(batch.blocks)
        sample = _sample(session, batch, trainers, self._of.planned)
        if session.reference:
            tell(sample[2], self._seeds_with_raf(sample[1]))
        if (recording := recorder()) is not None:
            recording.begin_batch(*sample[:2])
        step = self._step - 1
        due = step_proof.handed_out(step_proof.Step(
            self.sampler, self.seed, self._epoch, step, len(self),
            self._draws(self._epoch, step) if number is None else number, self._of.planned),
            session, batch, sample[2])
        session.scope.begin(batch, (sample[0], *sample[2]), due)
        return sample

    def _seeds_with_raf(self, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Reference mode: what `all_seeds` would give with RAF."""
        session = self._session
        mine = [torch.stack([torch.full_like(own[t], kind), own[t]], 1)
                for kind, t in enumerate(self._of.targets) if t in own]
        sizes = self._numbers_of_seeds(sum(map(len, mine)))
        every = session.world.all_gather_rows(torch.cat(mine), sizes, "control").split(sizes)
        rows = torch.cat([*mine, *(every[rank] for rank in session.partners
                                   if rank != session.world.rank)])
        return {t: rows[rows[:, 0] == kind, 1] for kind, t in enumerate(self._of.targets)}

    def _numbers_of_seeds(self, own: int) -> list[int]:
        """Of all trainers in this step."""
        return [of_trainer[self._step - 1] for of_trainer in self.sizes]

    def _draws(self, epoch: int, step: int) -> int:
        """The number that a step's draws follow from."""
        return (self._number << 48) + (epoch << 28) + step

    def _close(self) -> None:
        """End a pass, maybe early: no more is drawn, and nobody uses its process group."""
        getattr(self._batches, "close", lambda: None)()
        self._batches = iter(())
        self._open.close()
        if self._source.ahead:
            self._session.sources.count(**self._making.seconds["sample"])
        self._making.reset()


def _sample(session: Session, batch: MiniBatch, trainers: SourceTrainers, planned: bool) -> Sample:
    levels = session.batch_ids.hand_out(batch, trainers, session.world.rank)
    inputs = {t: levels[0].get(t, torch.empty(0, dtype=torch.int64))
              for t in session.store.schema.node_types}
    seeds = {t: ids for t, ids in levels[-1].items() if len(ids)}
    return inputs, seeds, make_blocks(session, batch, levels, planned)


def _step_sizes(counts: Sequence[int], batch_size: int, drop_last: bool) -> list[list[int]]:
    """Per trainer the number of its seeds in every step; every trainer has one in each.

    As many steps as the trainer with most seeds needs; one that has fewer gives fewer per step
    at the end. With `drop_last` every batch is full, and the trainer with fewest decides.
    """
    if drop_last:
        return [[batch_size] * (min(counts) // batch_size)] * len(counts)
    steps = -(-max(counts) // batch_size)
    sizes = []
    for rank, count in enumerate(counts):
        if count < steps:
            raise InputError(
                f"trainer {rank} has {several(count, 'seed')}, but {steps} steps are needed for "
                f"the {max(counts)} seeds of another trainer in batches of {batch_size}; every "
                "trainer needs a seed in each step: split the nodes evenly (node_split with "
                "force_even=True)" + (" or use larger batches" if count else
                                      ", of as many nodes as there are trainers at least"))
        left, mine = count, []
        for step in range(steps):
            mine.append(min(batch_size, left - (steps - step - 1)))
            left -= mine[-1]
        sizes.append(mine)
    return sizes
