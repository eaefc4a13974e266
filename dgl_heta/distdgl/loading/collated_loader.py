"""Data loaders whose batches are made by DGL's own collators, when they are asked for.

That is so for edges, and where a script has derived a class from NeighborSampler. The collator
calls the script's sampler. What this asks NeighborSampler for (`super().sample_blocks`) comes from
here: the trainers of the group tell each other their seeds, and each samples its relations for
those of all. The script's class may change what comes out; one that asks for nothing samples by
itself, as in plain DistDGL.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from dgl_heta.distdgl.loading.group_sampling import Drawn, draw_told
from dgl_heta.distdgl.loading.loader_scope import BY_ITSELF, fanouts_of
from dgl_heta.distdgl.loading.raf_loader import RafLoader
from dgl_heta.distdgl.loading.seed_loader import edges_at
from dgl_heta.distdgl.session import Session
from dgl_heta.distdgl.state import state_of
from dgl_heta.distdgl.versions import homes
from dgl_heta.errors import HetaError, InputError, listing
from dgl_heta.sampling.sampling_kernels import hash_key
from dgl_heta.system.patching import patch_all

log = logging.getLogger("dgl_heta")


class CollatedLoader(RafLoader):
    """Batches that a collator makes.

    Parameters
    ----------
    what : the loader's name.
    collator : DGL's collator of this trainer's nodes or edges, whose sampler is :class:`Sampler`.
    graph_sampler, batch_size, … : as for :class:`RafLoader`.
    kind : of the loader, which all trainers must have alike.
    ntypes : node types of the seeds.
    """

    def __init__(self, what: str, session: Session, collator: Any, graph_sampler: Any,
                 batch_size: int = 1, shuffle: bool = False, drop_last: bool = False,
                 num_workers: int = 0, kind: int = 0, ntypes: Iterable[str] = (), **ignored: Any
                 ) -> None:
        self._collator = collator
        self._order = torch.arange(self.seeds)
        self._prepare(what, session, self.seeds, graph_sampler, batch_size, shuffle, drop_last,
                      num_workers, ignored, kind, ntypes)
        self._fanouts = fanouts_of(graph_sampler, session)
        self._calls = 0
        if self._source.ahead:
            log.warning("batches of %s are made when they are asked for, not ahead of time: DGL or "
                        "%s may draw by the script's own random numbers", what,
                        type(graph_sampler).__name__)

    @property
    def seeds(self) -> int:
        """The number of this trainer's nodes or edges."""
        return len(self._collator.dataset)

    def start(self) -> None:
        """Begin an epoch: shuffle as DGL's own loader does."""
        self._begin_pass()
        if self._shuffle:
            self._order = self._order[torch.randperm(len(self._order))]

    def next(self) -> Any:
        """What the collator gives for the next batch; StopIteration at the end of the epoch."""
        self._begin_step()
        sizes = self.sizes[self._session.world.rank]
        begin = sum(sizes[:self._step - 1])
        chosen = self._order[begin:begin + sizes[self._step - 1]]
        collating, self._calls = state_of(_Collating), 0
        before, collating.loader = collating.loader, self
        try:
            sample = self._collator.collate(edges_at(self._collator, chosen))
        finally:
            collating.loader = before
        if not self._calls:
            self._session.say(BY_ITSELF)
        return sample

    def sample_blocks(self, sampler: Any, seeds: Any, left_out: Any) -> Any:
        """What `NeighborSampler.sample_blocks` gives a collator's sampler; all trainers of the
        group call it alike."""
        session = self._session
        if fanouts_of(sampler, session) != self._fanouts:
            raise HetaError(f"the fanouts of {type(sampler).__name__} have changed since the data "
                            f"loader was made: {self._fanouts} then; make a loader for each")
        if not isinstance(seeds, Mapping):
            seeds = {session.plan.targets[0]: seeds}
        number = self._draws(self._epoch, self._step - 1)
        number = hash_key(number, self._calls) >> 2 if self._calls else number
        self._calls += 1
        return self._hand_out(*self._drawn(seeds, left_out, number), number)

    def _drawn(self, seeds: Mapping[str, Tensor], left_out: Any, number: int) -> Drawn:
        """The batch of the group, whose trainers all call it, from this trainer's seeds and the
        edges that it leaves out."""
        self._check([t for t, ids in seeds.items() if len(ids)])
        return draw_told(self._session, self.sampler, seeds, number, self._excluded(left_out),
                         self._of.targets)

    def _check(self, ntypes: list[str]) -> None:
        """
        Raises
        ------
        InputError
            Seeds are of a type that the loader cannot sample for.
        """
        others = sorted({*ntypes} - {*self._of.targets})
        if others:
            raise InputError(f"seeds of the data loader are of type {listing(others)}, but it was "
                             f"made for nodes of type {listing(self._of.targets)}; give all types "
                             "when it is made, and partition the graph with these targets")

    def _excluded(self, left_out: Any) -> Any:
        """Where the edges are that the trainers leave out; None for nowhere."""
        if left_out is not None:
            raise InputError("NeighborSampler.sample_blocks with exclude_eids cannot be used on a "
                             "meta-partitioned graph, but by DistEdgeDataLoader with exclude; "
                             "leave it out")

    def _numbers_of_seeds(self, own: int) -> list[int]:
        world = self._session.world
        numbers: list[int] = world.all_gather_rows(torch.tensor([own]), [1] * world.size,
                                                   "control").tolist()
        return numbers


class Sampler:
    """What a collator has in the place of the script's sampler, which it calls."""

    prob = None  # which DGL 2.4's collators ask for

    def __init__(self, sampler: Any) -> None:
        self.sample_blocks = sampler.sample_blocks


def collators() -> Any:
    """The module of DGL's collators, which is where its loaders are."""
    return sys.modules[next(iter(homes("DistEdgeDataLoader"))).partition(":")[0]]


class _Collating:
    """The loader whose collator is at work, if one is."""

    loader: CollatedLoader | None = None


def _sample_blocks(original: Any) -> Any:
    def sample_blocks(self: Any, g: Any, seed_nodes: Any, exclude_eids: Any = None) -> Any:
        loader = state_of(_Collating).loader
        if loader is None or getattr(g, "heta", None) is None:
            return original(self, g, seed_nodes, exclude_eids)
        return loader.sample_blocks(self, seed_nodes, exclude_eids)
    return sample_blocks


PATCHES = (
    *patch_all(homes("NeighborSampler", "sample_blocks"), _sample_blocks,
               "sample by plan for a data loader's own class of samplers, and for edges"),
)
