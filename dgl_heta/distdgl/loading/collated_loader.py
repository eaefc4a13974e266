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

import numpy as np
import torch
from torch import Tensor

from dgl_heta.distdgl.loading.group_sampling import SampledBatch, sample_own_seeds
from dgl_heta.distdgl.loading.loader_arguments import LoaderOptions
from dgl_heta.distdgl.loading.raf_loader import RafLoader
from dgl_heta.distdgl.loading.script_sampler import BY_ITSELF, Fanouts, fanouts_of
from dgl_heta.distdgl.loading.seed_loader import items_at
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.session import Session
from dgl_heta.distdgl.state import state_of
from dgl_heta.distdgl.versions import homes
from dgl_heta.errors import listing
from dgl_heta.graph.schema import Relation
from dgl_heta.system.hashing import hash_key
from dgl_heta.system.patching import patch_all

log = logging.getLogger("dgl_heta")


class CollatedLoader(RafLoader):
    """Batches that a collator makes.

    Parameters
    ----------
    collator : DGL's collator of this trainer's nodes or edges, whose sampler is a
        :class:`SamplerProxy`.
    fanouts, options, ntypes : as for :class:`RafLoader`.
    """

    name = ""

    def __init__(self, session: Session, collator: Any, fanouts: Fanouts, options: LoaderOptions,
                 ntypes: Iterable[str] = ()) -> None:
        self.collator = collator
        super().__init__(session, fanouts, options, len(collator.dataset), ntypes)
        self._order = torch.arange(self.seeds)
        self._fanouts = fanouts
        self._calls = 0
        if self._source.ahead:
            log.warning("batches of %s are made when they are asked for, not ahead of time: DGL or "
                        "%s may draw by the script's own random numbers", self.name,
                        collator.graph_sampler.name)

    def start(self) -> None:
        """Begin an epoch: shuffle as DGL's own loader does."""
        self._begin_pass()
        # DGL shuffles what the last epoch has left.
        if self.options.shuffle:
            self._order = self._order[torch.randperm(len(self._order))]

    def next(self) -> Any:
        """Return what the collator gives for the next batch; StopIteration at the end."""
        self._begin_step()
        sizes = self.plan.sizes[self._session.world.rank]
        begin = sum(sizes[:self._step - 1])
        positions = self._order[begin:begin + sizes[self._step - 1]]
        collating, self._calls = state_of(_Collating), 0
        # A sampler of the script's may iterate over another loader meanwhile.
        before, collating.loader = collating.loader, self
        try:
            sample = self.collator.collate(items_at(self.collator, positions))
        finally:
            collating.loader = before
        if not self._calls:
            self._session.say(BY_ITSELF)
        return sample

    def sample_blocks(self, sampler: Any, seeds: Any, left_out: Any) -> Any:
        """Return what `NeighborSampler.sample_blocks` gives a collator's sampler.

        All trainers of the group call it alike. `left_out` is what this trainer excludes, as DGL's
        collator says it.
        """
        session = self._session
        if (now := fanouts_of(sampler, session)) != self._fanouts:
            then, mask = self._fanouts, now.layers == self._fanouts.layers
            refuse("loader that changes", what="prob" if mask else "fanouts",
                   then=then.mask if mask else then.layers, now=now.mask if mask else now.layers)
        if not isinstance(seeds, Mapping):
            seeds = {session.plan.targets[0]: seeds}
        key = self._key()
        # A sampler may ask several times in a step, and must not be given the same edges again.
        key = hash_key(key, self._calls) >> 2 if self._calls else key
        self._calls += 1
        return self._hand_out(self._sampled(seeds, left_out, key))

    def _sampled(self, seeds: Mapping[str, Tensor], left_out: Any, key: int) -> SampledBatch:
        """Sample the group's batch, whose trainers all call it."""
        self._check([t for t, ids in seeds.items() if len(ids)])
        return sample_own_seeds(self._session, self.sampler, seeds, key, self._excluded(left_out),
                                self._scope.targets)

    def _check(self, ntypes: list[str]) -> None:
        """Check the types of a batch's seeds.

        Raises
        ------
        InputError
            The loader cannot sample for one.
        """
        others = sorted({*ntypes} - {*self._scope.targets})
        if others:
            refuse("seeds of types that came later", others=listing(others),
                   types=listing(self._scope.targets))

    def _excluded(self, left_out: Any) -> Mapping[Relation, np.ndarray] | None:
        """Return where the edges are that the trainers leave out; None for nowhere."""
        if left_out is not None:
            refuse("sampler with exclude_eids")
        return None


class CollatedNodeLoader(CollatedLoader):
    """Batches of nodes, by a class of samplers of the script's own."""

    kind, name = 3, "DistNodeDataLoader"


class SamplerProxy:
    """The sampler that a collator calls, in the place of the script's."""

    prob = None  # which DGL 2.4's collators ask for

    def __init__(self, sampler: Any) -> None:
        self._sampler, self.name = sampler, type(sampler).__name__

    def sample_blocks(self, *args: Any, **kwargs: Any) -> Any:
        return self._sampler.sample_blocks(*args, **kwargs)


def dgl_collators() -> Any:
    """Return the module of DGL's collators, which is where its loaders are."""
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
