"""DistEdgeDataLoader on a meta-partitioned graph.

What an edge batch is made of is DGL's own doing: its collator finds the ends of the edges (by
`find_edges`, from this machine's store), draws negatives and compacts the pair graphs. The nodes of
these are the trainer's seeds. They are told to the trainers of the group, and what follows is as
for seeds of a node loader.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dgl
import numpy as np
from dgl.dataloading import negative_sampler

from dgl_heta.distdgl.loading.collated_loader import CollatedLoader, SamplerProxy, dgl_collators
from dgl_heta.distdgl.loading.excluded_edges import excluded_by_all, ignores_exclude, stored_again
from dgl_heta.distdgl.loading.loader_arguments import LoaderOptions, read_options
from dgl_heta.distdgl.loading.script_sampler import BY_ITSELF, Fanouts, fanouts_of, way_of
from dgl_heta.distdgl.loading.seed_loader import EdgeSeedLoader
from dgl_heta.distdgl.modules.group_merge import canonical
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.session import Session
from dgl_heta.errors import InputError, listing
from dgl_heta.graph.schema import Relation

log = logging.getLogger("dgl_heta")
_OF_COLLATOR = ("g_sampling", "exclude", "reverse_eids", "reverse_etypes", "negative_sampler")
"""Arguments that DGL's collator of edges takes."""


class EdgeLoader(CollatedLoader):
    """Batches of edges of one data loader.

    Parameters
    ----------
    relations : of the edges.
    collator, fanouts, options : as for :class:`CollatedLoader`.

    Raises
    ------
    InputError
        An end of the edges is of no target type, or as :class:`CollatedLoader`.
    """

    name = "DistEdgeDataLoader"

    def __init__(self, session: Session, relations: Sequence[Relation], collator: Any,
                 fanouts: Fanouts, options: LoaderOptions) -> None:
        _check_targets(session, (ntype for r in relations for ntype in (r.src, r.dst)))
        self._excludes = _excludes(collator.exclude)
        self.kind = 1 + self._excludes  # trainers that exclude tell each other what
        super().__init__(session, collator, fanouts, options)
        if self._excludes and session.group.size > 1:
            log.warning("exclude=%r of DistEdgeDataLoader leaves out of a step's blocks what any "
                        "of the %d trainers that step together excludes: they have one batch",
                        collator.exclude, session.group.size)
        if self._excludes and session.world.rank == 0:
            for line in stored_again(collator, relations, session.edge_ends, self._store):
                log.warning("%s", line)

    def _check(self, ntypes: list[str]) -> None:
        _check_targets(self._session, ntypes)

    def _excluded(self, left_out: Any) -> Mapping[Relation, np.ndarray] | None:
        return excluded_by_all(self._session, left_out, self._store) if self._excludes else None


def open_edge_loader(session: Session, graph: Any, eids: Any, sampler: Any, device: Any,
                     given: Mapping[str, Any]) -> EdgeLoader | EdgeSeedLoader | None:
    """Return the loader of a DistEdgeDataLoader on a meta-partitioned graph.

    None where the script samples by itself, so that DGL's own does.

    Parameters
    ----------
    graph : the DistGraph.
    eids : relation → ids of this trainer's edges (or ids, where there is one relation).
    given : arguments of the data loader and of DGL's collator: `negative_sampler` and others.
    """
    if way_of(sampler) == "own":
        session.say(BY_ITSELF)
        return None
    collating = {name: given[name] for name in _OF_COLLATOR if name in given}
    options = read_options("DistEdgeDataLoader", device, {
        name: value for name, value in given.items() if name not in collating})
    relations = _relations(session, eids)
    _check_collating(graph, collating)
    fanouts = fanouts_of(sampler, session)
    collator = dgl_collators().EdgeCollator(graph, eids, SamplerProxy(sampler), **collating)
    if not fanouts.layers:
        return EdgeSeedLoader(collator, options)
    return EdgeLoader(session, relations, collator, fanouts, options)


def _relations(session: Session, eids: Any) -> list[Relation]:
    """Return the relations of a loader's edges."""
    every = session.store.schema.relations
    if not isinstance(eids, Mapping) and len(every) > 1:
        raise InputError("DistEdgeDataLoader needs a dictionary, edge type → ids of edges, on a "
                         "graph with several relations")
    return [canonical(e, every) for e in eids] if isinstance(eids, Mapping) else [every[0]]


def _check_targets(session: Session, ends: Iterable[str]) -> None:
    """Check that ends of edges are of target types, for which alone all layers are sampled.

    Raises
    ------
    InputError
        One is not.
    """
    missing = sorted({*ends} - {*session.plan.targets})
    if missing:
        wanted = [t for t in session.store.schema.node_types
                  if t in missing or t in session.plan.targets]
        refuse("edges that end at no target", missing=listing(missing),
               targets=listing(session.plan.targets), wanted=wanted)


def _check_collating(graph: Any, collating: Mapping[str, Any]) -> None:
    if collating.get("g_sampling") not in (None, graph):
        refuse("edges with g_sampling")
    if isinstance(collating.get("negative_sampler"), negative_sampler.GlobalUniform):
        refuse("negatives of the whole graph")


def _excludes(exclude: Any) -> bool:
    """Return whether edges are left out of batches, and say where this DGL leaves none out."""
    if exclude is None:
        return False
    if ignores_exclude():
        log.warning("exclude=%r of DistEdgeDataLoader has no effect, as in plain DistDGL %s, which "
                    "samples the edges of a batch like others", exclude,
                    dgl.__version__.partition("+")[0])
        return False
    return True
