"""DistNodeDataLoader on a meta-partitioned graph.

All trainers of a group step together: the seeds of a step are those of every trainer, and each
trainer samples its machine's relations for all of them, from its disk. What comes out is as
without dgl-heta: input nodes, the trainer's own seeds, blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgl_heta.distdgl.blocks import RafBlock, make_blocks
from dgl_heta.distdgl.reach import reached_by
from dgl_heta.distdgl.session import Batch, Session
from dgl_heta.errors import InputError, listing
from dgl_heta.sampling.blocks import MiniBatch, mark_reads
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.scope import SamplingScope
from dgl_heta.sampling.seeds import join_seeds

Sample = tuple[dict[str, Tensor], dict[str, Tensor], list[RafBlock]]
_IGNORED = {"queue_size", "num_workers", "persistent_workers", "prefetch_factor", "pin_memory",
            "use_ddp", "ddp_seed", "use_uva", "use_prefetch_thread", "use_alternate_streams"}


class RafLoader:
    """Batches of one data loader.

    Parameters
    ----------
    session : of this trainer.
    nids : target node type → ids of this trainer's nodes.
    graph_sampler : DGL's NeighborSampler (MultiLayerNeighborSampler) or
        MultiLayerFullNeighborSampler.

    Raises
    ------
    InputError
        Another sampler, more layers than the partition has hops, nodes of another type, or a
        trainer that has not a node for every step.
    """

    def __init__(self, session: Session, nids: Mapping[str, Tensor], graph_sampler: Any,
                 batch_size: int = 1, shuffle: bool = False, drop_last: bool = False,
                 **ignored: Any) -> None:
        for name in ignored:
            if name not in _IGNORED:
                raise InputError(f"DistNodeDataLoader has no argument '{name}' on a "
                                 "meta-partitioned graph")
        targets = session.plan.targets
        for ntype in nids:
            if ntype not in targets:
                raise InputError(
                    f"the data loader is for nodes of type '{ntype}', but the graph was "
                    f"partitioned for the target {listing(targets)}; partition it with target "
                    f"'{ntype}'")
        if batch_size < 1:
            raise InputError(f"batch_size is {batch_size}; it must be 1 or more")
        fanouts = _fanouts(graph_sampler, session)
        session.connect()
        self._session, self._shuffle, self._batch_size = session, shuffle, batch_size
        self._number = session.loaders
        session.loaders += 1
        kinds = [np.full(len(ids), targets.index(t), np.int64) for t, ids in nids.items()]
        ids = [np.asarray(ids, np.int64) for ids in nids.values()]
        self._check_ids(nids)
        mine = np.stack([np.concatenate(kinds), np.concatenate(ids)], 1) if ids else np.empty(
            (0, 2), np.int64)
        session.agree("the data loaders", [self._number, batch_size, int(shuffle), int(drop_last),
                                           *(f for layer in fanouts for f in (
                                               layer.values() if isinstance(layer, dict)
                                               else [layer]))])
        ones = [1] * session.world.size
        counts = session.world.all_gather_rows(torch.tensor([len(mine)]), ones, "control").tolist()
        self.sizes = _step_sizes(counts, batch_size, drop_last)
        group = session.group
        ranks = group.ranks if session.world.size > 1 else (0,)
        gathered = group.all_gather_rows(torch.from_numpy(mine), [counts[r] for r in ranks],
                                         "seeds").numpy()
        bounds = np.cumsum([0] + [counts[r] for r in ranks])
        self._seeds = [gathered[a:b] for a, b in itertools.pairwise(bounds)]
        self._ranks = ranks
        seed = torch.tensor([torch.initial_seed() % 2**62])
        seed = session.world.all_gather_rows(seed, ones, "control")[:1]
        scope = SamplingScope.of(session.plan, session.part, len(fanouts))
        self._sampler = NeighborSampler(session.store, scope, fanouts, int(seed))
        self._epoch = -1
        self._step = 0

    def _check_ids(self, nids: Mapping[str, Tensor]) -> None:
        for ntype, ids in nids.items():
            count = self._session.store.schema.node_counts[ntype]
            if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < count:
                raise InputError(f"the data loader's nodes of type '{ntype}' reach from "
                                 f"{int(ids.min())} to {int(ids.max())}, but the graph has {count}")

    def __len__(self) -> int:
        return len(self.sizes[0])

    def start(self) -> None:
        """Begin an epoch: shuffle as each trainer's own generator says."""
        self._epoch += 1
        self._step = 0
        session = self._session
        session.agree("the epoch of a data loader, and whether all states are complete",
                      [self._number, self._epoch, int(session.all_complete)])
        if self._shuffle:
            state = torch.get_rng_state()
            states = session.group.all_gather_rows(state[None], [1] * session.group.size, "seeds")
            for place, seeds in enumerate(self._seeds):
                generator = torch.Generator()
                generator.set_state(states[place])
                order = torch.randperm(len(seeds), generator=generator).numpy()
                self._seeds[place] = seeds[order]
            torch.randperm(len(self._seeds[session.group.rank]))  # as DGL's own loader draws

    def next(self) -> Sample:
        """The next batch; StopIteration at the end of the epoch."""
        session = self._session
        if self._step >= len(self):
            session.check_last()
            raise StopIteration
        pieces = []
        for seeds, rank in zip(self._seeds, self._ranks):
            start = sum(self.sizes[rank][:self._step])
            pieces.append(seeds[start:start + self.sizes[rank][self._step]])
        step = (self._number << 48) + (self._epoch << 28) + self._step
        self._step += 1
        seeds, shares = join_seeds(
            [{t: piece[piece[:, 0] == kind, 1] for kind, t in enumerate(session.plan.targets)}
             for piece in pieces], session.group.rank)
        batch = self._sampler.sample(seeds, shares, step)
        if len(batch.blocks) > 1 and not session.all_complete:
            mark_reads(batch.blocks[-2], batch.blocks[-1])
        session.begin(Batch({(block.layer, t) for block in batch.blocks
                             for t, s in block.seeds.items() if s.total},
                            reached_by(session, batch)))
        return _sample(session, batch)


def _sample(session: Session, batch: MiniBatch) -> Sample:
    none = np.empty(0, np.int64)
    inputs = {t: torch.from_numpy(batch.input_nodes.get(t, none))
              for t in session.store.schema.node_types}
    seeds = {t: torch.from_numpy(ids) for t, ids in batch.own_seeds.items() if len(ids)}
    return inputs, seeds, make_blocks(session, batch)


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
                f"trainer {rank} has {count} seeds, but {steps} steps are needed for the "
                f"{max(counts)} seeds of another trainer in batches of {batch_size}; every trainer "
                "needs a seed in each step: split the nodes evenly (node_split with "
                "force_even=True) or use larger batches")
        left, mine = count, []
        for step in range(steps):
            mine.append(min(batch_size, left - (steps - step - 1)))
            left -= mine[-1]
        sizes.append(mine)
    return sizes


def _fanouts(sampler: Any, session: Session) -> list[Any]:
    """Fanouts of a sampler, input layer first, or an InputError that it cannot be used."""
    import dgl

    name = type(sampler).__name__
    known = (dgl.dataloading.NeighborSampler, dgl.dataloading.MultiLayerFullNeighborSampler)
    if type(sampler) not in known:
        raise InputError(f"sampler {name} cannot be used on a meta-partitioned graph; use "
                         "dgl.dataloading.NeighborSampler (MultiLayerNeighborSampler) or "
                         "MultiLayerFullNeighborSampler")
    for attribute, plain in (("edge_dir", "in"), ("prob", None), ("replace", False)):
        if getattr(sampler, attribute, plain) != plain:
            raise InputError(f"{name} with {attribute}={getattr(sampler, attribute)!r} cannot be "
                             "used on a meta-partitioned graph; leave it out")
    for attribute in ("prefetch_node_feats", "prefetch_labels", "prefetch_edge_feats"):
        if getattr(sampler, attribute, None):
            raise InputError(f"{name} with {attribute} cannot be used with a DistGraph; leave it "
                             "out")
    found: list[Any] = []
    for fanout in sampler.fanouts:
        if isinstance(fanout, Mapping):
            from dgl_heta.distdgl.hetero import canonical

            found.append({canonical(e, session.store.schema.relations): int(f)
                          for e, f in fanout.items()})
        else:
            found.append(int(fanout))
    if len(found) > session.plan.hops:
        raise InputError(
            f"{name} samples {len(found)} layers, but the graph was partitioned for "
            f"{session.plan.hops} hops; partition it with {len(found)} hops "
            "(model.layers in the settings, or --hops)")
    return found


def batches(loader: RafLoader) -> Iterator[Sample]:
    """One epoch."""
    loader.start()
    while True:
        try:
            yield loader.next()
        except StopIteration:
            return
