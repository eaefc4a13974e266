"""DistNodeDataLoader on a meta-partitioned graph.

All trainers of a group step together: the seeds of a step are those of every trainer, and each
trainer samples its machine's relations for all of them, from its disk. What comes out is as
without dgl-heta: input nodes, the trainer's own seeds, blocks.
"""

from __future__ import annotations

import itertools
import logging
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import dgl
import numpy as np
import torch
from torch import Tensor

from dgl_heta.distdgl import proof
from dgl_heta.distdgl.blocks import RafBlock, make_blocks
from dgl_heta.distdgl.drawing import Drawing
from dgl_heta.distdgl.epochs import current_epochs
from dgl_heta.distdgl.group_seeds import tell
from dgl_heta.distdgl.merging import canonical
from dgl_heta.distdgl.own_part import open_nodes, refuse_edges
from dgl_heta.distdgl.reach import Reached
from dgl_heta.distdgl.recording import recorder
from dgl_heta.distdgl.reference import PlainBlock
from dgl_heta.distdgl.session import Session
from dgl_heta.distdgl.versions import homes
from dgl_heta.distdgl.whereabouts import took
from dgl_heta.errors import HetaError, InputError, listing
from dgl_heta.sampling.blocks import MiniBatch, forget_reads
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.scope import SamplingScope
from dgl_heta.sampling.stages import Making
from dgl_heta.system.patching import patch_all

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
                 num_workers: int = 0, **ignored: Any) -> None:
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
        self._source = session.source_for(num_workers)
        self._number = session.loaders
        session.loaders += 1
        kinds = [np.full(len(ids), targets.index(t), np.int64) for t, ids in nids.items()]
        ids = [np.asarray(ids, np.int64) for ids in nids.values()]
        self._check_ids(nids)
        mine = np.stack([np.concatenate(kinds), np.concatenate(ids)], 1) if ids else np.empty(
            (0, 2), np.int64)
        source = zlib.crc32(f"{self._source.name} {self._source.settings!r}".encode())
        session.agree("the data loaders", [self._number, batch_size, int(shuffle), int(drop_last),
                                           source, *(f for layer in fanouts for f in (
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
        self.seed = int(seed)
        threads = session.settings.train.sampling_threads or torch.get_num_threads()
        self.sampler = NeighborSampler(session.store, scope, fanouts, self.seed, threads=threads)
        self._epoch = -1
        self._step = 0
        self._making = Making(("sample",))
        self._batches: Iterator[Any] = iter(())
        self._open = ExitStack()

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
        self._close()
        self._epoch += 1
        self._step = 0
        session = self._session
        session.agree("the epoch of a data loader, and whether all states are complete",
                      [self._number, self._epoch, int(session.all_complete)])
        session.forget_agreements()
        if (recording := recorder()) is not None:
            recording.start_pass(session)
        if self._shuffle:
            state = torch.get_rng_state()
            states = session.group.all_gather_rows(state[None], [1] * session.group.size, "seeds")
            for place, seeds in enumerate(self._seeds):
                generator = torch.Generator()
                generator.set_state(states[place])
                order = torch.randperm(len(seeds), generator=generator).numpy()
                self._seeds[place] = seeds[order]
            torch.randperm(len(self._seeds[session.group.rank]))  # as DGL's own loader draws

        in_order = bool(session.embeddings) and any(
            len(members) > 1 for members in session.plan.groups)
        group = (self._open.enter_context(session.drawing.one(session)) if in_order
                 else session.group)
        drawing = Drawing(session, self.sampler, [*self._seeds],
                          [self.sizes[rank] for rank in self._ranks], group,
                          self._draws(self._epoch, 0))
        self._batches = self._making.start(self._source, len(self), in_order,
                                           {"sample": drawing.draw})

    def next(self) -> Sample:
        """The next batch; StopIteration at the end of the epoch."""
        session = self._session
        recording = recorder()
        if self._step >= len(self) or (recording is not None and recording.ends_pass(self._step)):
            session.check_batches()
            self._close()
            session.at_batch = None
            raise StopIteration
        if session.world.size > 1:
            session.at_batch = (self._number, self._epoch, self._step)
            took(session.at_batch)
        self._step += 1
        drawn = self._making.next(self._batches)
        if drawn is None:
            raise HetaError(f"batch source '{self._source.name}' gave {self._step - 1} batches "
                            f"for {len(self)} steps; it must give one for each")
        batch, reached = drawn
        if session.all_complete:  # since it was drawn, maybe
            forget_reads(batch.blocks)
        session.begin({(block.layer, t) for block in batch.blocks
                       for t, s in block.seeds.items() if s.total}, batch.blocks[0].done)
        sample = _sample(session, batch, reached)
        if session.reference:
            tell(sample[2], self._seeds_with_raf(sample[1]))
        if recording is not None:
            recording.begin_batch(*sample[:2])
        step = self._step - 1
        proof.handed_out(self, session, batch, sample[2], self._epoch, step,
                         self._draws(self._epoch, step))
        return sample

    def _seeds_with_raf(self, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Reference mode: what `all_seeds` would give with RAF."""
        session = self._session
        mine = [torch.stack([torch.full_like(own[t], kind), own[t]], 1)
                for kind, t in enumerate(session.plan.targets) if t in own]
        sizes = [of_trainer[self._step - 1] for of_trainer in self.sizes]
        every = session.world.all_gather_rows(torch.cat(mine), sizes, "control").split(sizes)
        rows = torch.cat([*mine, *(every[rank] for rank in session.partners
                                   if rank != session.world.rank)])
        return {t: rows[rows[:, 0] == kind, 1] for kind, t in enumerate(session.plan.targets)}

    def _draws(self, epoch: int, step: int) -> int:
        """The number that a step's draws follow from."""
        return (self._number << 48) + (epoch << 28) + step

    def _close(self) -> None:
        """End a pass, maybe early: no more is drawn, and nobody uses its process group."""
        getattr(self._batches, "close", lambda: None)()
        self._batches = iter(())
        self._open.close()
        if self._source.ahead:
            self._session.drew_ahead(**self._making.seconds["sample"])
        self._making.reset()


def _sample(session: Session, batch: MiniBatch, reached: Reached) -> Sample:
    levels = session.handed.hand_out(batch, reached, session.world.rank)
    inputs = {t: levels[0].get(t, torch.empty(0, dtype=torch.int64))
              for t in session.store.schema.node_types}
    seeds = {t: ids for t, ids in levels[-1].items() if len(ids)}
    return inputs, seeds, make_blocks(session, batch, levels)


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
    fanouts: list[Any] = []
    for fanout in sampler.fanouts:
        if isinstance(fanout, Mapping):
            fanouts.append({canonical(e, session.store.schema.relations): int(f)
                            for e, f in fanout.items()})
        else:
            fanouts.append(int(fanout))
    if len(fanouts) > session.plan.hops:
        raise InputError(
            f"{name} samples {len(fanouts)} layers, but the graph was partitioned for "
            f"{session.plan.hops} hops; partition it with {len(fanouts)} hops "
            "(model.layers in the settings, or --hops)")
    return fanouts


def open_loader(session: Session, nids: Any, sampler: Any, device: Any, options: dict[str, Any]
                ) -> RafLoader:
    """The loader of a DistNodeDataLoader on a meta-partitioned graph."""
    if device not in (None, "cpu"):
        raise InputError(f"DistNodeDataLoader with device={device!r} cannot be used with a "
                         "DistGraph; leave it out and move blocks with block.to(device)")
    options["num_workers"] = max(int(options.get("num_workers", 0)),
                                 int(os.environ.get("DGL_NUM_SAMPLER", "0")))
    if not isinstance(nids, Mapping):
        nids = {session.plan.targets[0]: nids}
    nids = {t: torch.as_tensor(ids, dtype=torch.int64) for t, ids in nids.items()}
    return RafLoader(session, nids, sampler, **options)


def _init(original: Any) -> Any:
    def __init__(self: Any, g: Any, nids: Any, graph_sampler: Any, device: Any = None,
                 **kwargs: Any) -> None:
        session = getattr(g, "heta", None)
        if session is None:
            original(self, g, nids, graph_sampler, device, **kwargs)
            open_nodes(self)
            return
        self.heta = open_loader(session, nids, graph_sampler, device, kwargs)
        self.device = "cpu"
    return __init__


def _iter(original: Any) -> Any:
    def __iter__(self: Any) -> Any:
        loader = getattr(self, "heta", None)
        current_epochs().started(self, _seeds_of(self))
        if loader is None:
            return original(self)
        loader.start()
        return self
    return __iter__


def _next(original: Any) -> Any:
    def __next__(self: Any) -> Any:
        loader = getattr(self, "heta", None)
        try:
            return original(self) if loader is None else loader.next()
        except StopIteration:
            current_epochs().ended(self, _seeds_of(self))
            raise
    return __next__


def _seeds_of(loader: Any) -> int:
    """The nodes or edges of this trainer that a data loader goes through."""
    ours = getattr(loader, "heta", None)
    return len(loader.dataset) if ours is None else ours.seeds


def _del(original: Any) -> Any:
    def __del__(self: Any) -> None:
        if getattr(self, "heta", None) is None:
            original(self)
    return __del__


def _edge_init(original: Any) -> Any:
    def __init__(self: Any, g: Any, *args: Any, **kwargs: Any) -> None:
        if getattr(g, "heta", None) is not None:
            raise InputError("DistEdgeDataLoader cannot be used on a meta-partitioned graph yet; "
                             "train on nodes (DistNodeDataLoader), or partition the graph by a "
                             "method of DGL")
        refuse_edges()
        original(self, g, *args, **kwargs)
    return __init__


PATCHES = (
    *patch_all(homes("DistNodeDataLoader", "__init__"), _init,
               "sample by plan, or inside a part"),
    *patch_all(homes("DistNodeDataLoader", "__iter__"), _iter,
               "sample by plan; module wrappers are told when an epoch ends"),
    *patch_all(homes("DistNodeDataLoader", "__next__"), _next,
               "sample by plan; module wrappers are told when an epoch ends"),
    *patch_all(homes("DistNodeDataLoader", "__del__"), _del, "sample by plan"),
    *patch_all(homes("DistEdgeDataLoader", "__init__"), _edge_init, "refuse it"),
    *patch_all(homes("DistEdgeDataLoader", "__iter__"), _iter,
               "module wrappers are told when an epoch ends"),
    *patch_all(homes("DistEdgeDataLoader", "__next__"), _next,
               "module wrappers are told when an epoch ends"),
)
