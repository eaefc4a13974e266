"""DistEdgeDataLoader on a meta-partitioned graph.

What an edge batch is made of is DGL's own doing: its collator finds the ends of the edges (by
`find_edges`, from this machine's store), draws negatives and compacts the pair graphs. The nodes of
these are the trainer's seeds. They are told to the trainers of the group, and what follows is as
for seeds of a node loader.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import dgl
from dgl.dataloading import negative_sampler

from dgl_heta.distdgl.loading.collated_loader import CollatedLoader, Sampler, collators
from dgl_heta.distdgl.loading.excluded_edges import excluded_by_all, ignores_exclude, stored_again
from dgl_heta.distdgl.loading.loader_scope import BY_ITSELF, fanouts_of, way_of
from dgl_heta.distdgl.loading.node_loader import forget_loader, open_options, start_pass, take_batch
from dgl_heta.distdgl.loading.seed_loader import PairLoader
from dgl_heta.distdgl.modules.merging import canonical
from dgl_heta.distdgl.proof.recording import recorder
from dgl_heta.distdgl.rows.local_partition import refuse_edges
from dgl_heta.distdgl.session import Session
from dgl_heta.distdgl.versions import homes
from dgl_heta.errors import InputError, listing
from dgl_heta.graph.schema import Relation
from dgl_heta.system.patching import patch_all

log = logging.getLogger("dgl_heta")
_COLLATING = ("g_sampling", "exclude", "reverse_eids", "reverse_etypes", "negative_sampler")
"""Arguments that DGL's collator of edges takes."""


class EdgeLoader(CollatedLoader):
    """Batches of edges of one data loader.

    Parameters
    ----------
    relations : of the edges.
    collator : DGL's collator of this trainer's edges.
    graph_sampler : as for :class:`CollatedLoader`.

    Raises
    ------
    InputError
        An end of the edges is of no target type, or as :class:`CollatedLoader`.
    """

    def __init__(self, session: Session, relations: Iterable[Relation], collator: Any,
                 graph_sampler: Any, **options: Any) -> None:
        missing = {t for r in relations for t in (r.src, r.dst)} - {*session.plan.targets}
        if missing:
            raise InputError(_no_target(sorted(missing), session))
        self._excludes = _excludes(collator.exclude)
        super().__init__("DistEdgeDataLoader", session, collator, graph_sampler,
                         kind=1 + self._excludes, **options)
        if self._excludes and session.group.size > 1:
            log.warning("exclude=%r of DistEdgeDataLoader leaves out of a step's blocks what any "
                        "of the %d trainers that step together excludes: they have one batch",
                        collator.exclude, session.group.size)
        if self._excludes and session.world.rank == 0:
            for line in stored_again(collator, relations, session.edge_ends, self._store):
                log.warning("%s", line)

    def _check(self, ntypes: list[str]) -> None:
        others = sorted({*ntypes} - {*self._session.plan.targets})
        if others:
            raise InputError(_no_target(others, self._session))

    def _excluded(self, left_out: Any) -> Any:
        return excluded_by_all(self._session, left_out, self._store) if self._excludes else None


def open_edge_loader(session: Session, graph: Any, eids: Any, graph_sampler: Any, device: Any,
                     options: dict[str, Any]) -> tuple[EdgeLoader | PairLoader | None, Any]:
    """The loader of a DistEdgeDataLoader on a meta-partitioned graph, and DGL's collator; None
    where the script samples by itself, so that DGL's own does.

    Parameters
    ----------
    graph : the DistGraph.
    eids : relation → ids of this trainer's edges (or ids, where there is one relation).
    options : of the data loader and of DGL's collator: `negative_sampler` and others.
    """
    if way_of(graph_sampler) == "own":
        session.say(BY_ITSELF)
        return None, None
    options = open_options("DistEdgeDataLoader", device, options)
    collating = {name: options.pop(name) for name in _COLLATING if name in options}
    relations = _relations(session, eids)
    _check_collating(graph, collating)
    collator = collators().EdgeCollator(graph, eids, Sampler(graph_sampler), **collating)
    if not fanouts_of(graph_sampler, session):
        return PairLoader(collator, **{name: options[name] for name in (
            "batch_size", "shuffle", "drop_last") if name in options}), collator
    return EdgeLoader(session, relations, collator, graph_sampler, **options), collator


def _relations(session: Session, eids: Any) -> list[Relation]:
    """The relations of a loader's edges."""
    every = session.store.schema.relations
    if not isinstance(eids, Mapping) and len(every) > 1:
        raise InputError("DistEdgeDataLoader needs a dictionary, edge type → ids of edges, on a "
                         "graph with several relations")
    return [canonical(e, every) for e in eids] if isinstance(eids, Mapping) else [every[0]]


def _no_target(missing: list[str], session: Session) -> str:
    types = session.store.schema.node_types
    wanted = [t for t in types if t in missing or t in session.plan.targets]
    return (f"edges of the data loader end at nodes of type {listing(missing)}, but the graph was "
            f"partitioned for the target {listing(session.plan.targets)}; partition it with "
            f"target_ntype={wanted} (with a file of settings, partition.target = {wanted})")


def _check_collating(graph: Any, collating: Mapping[str, Any]) -> None:
    if collating.get("g_sampling") not in (None, graph):
        raise InputError("DistEdgeDataLoader with g_sampling cannot be used on a meta-partitioned "
                         "graph; leave it out, neighbours are sampled from the whole graph")
    if isinstance(collating.get("negative_sampler"), negative_sampler.GlobalUniform):
        raise InputError("negative sampler GlobalUniform asks a graph that is whole on one "
                         "machine, and DistDGL's has no such function; use "
                         "negative_sampler.Uniform (PerSourceUniform), or a function of your own")


def _excludes(exclude: Any) -> bool:
    """Whether edges are left out of batches; that this DGL leaves none out is said."""
    if exclude is None:
        return False
    if ignores_exclude():
        log.warning("exclude=%r of DistEdgeDataLoader has no effect, as in plain DistDGL %s, which "
                    "samples the edges of a batch like others", exclude,
                    dgl.__version__.partition("+")[0])
        return False
    return True


def _init(original: Any) -> Any:
    def __init__(self: Any, g: Any, eids: Any, graph_sampler: Any, device: Any = None,
                 **kwargs: Any) -> None:
        session = getattr(g, "heta", None)
        if session is None:
            refuse_edges()
            original(self, g, eids, graph_sampler, device, **kwargs)
            return
        self.heta, collator = open_edge_loader(session, g, eids, graph_sampler, device, kwargs)
        if self.heta is None:
            original(self, g, eids, graph_sampler, device, **kwargs)
            return
        self.collator, self.device = collator, "cpu"
        self.batch_size = kwargs.get("batch_size", 1)
        self.shuffle, self.drop_last = kwargs.get("shuffle", False), kwargs.get("drop_last", False)
        # As DistNodeDataLoader has it.
        self.expected_idxs = len(self.heta) if recorder() is None else 1
    return __init__


PATCHES = (
    *patch_all(homes("DistEdgeDataLoader", "__init__"), _init, "sample by plan"),
    *patch_all(homes("DistEdgeDataLoader", "__iter__"), start_pass,
               "sample by plan; module wrappers are told when an epoch ends"),
    *patch_all(homes("DistEdgeDataLoader", "__next__"), take_batch,
               "sample by plan; module wrappers are told when an epoch ends"),
    *patch_all(homes("DistEdgeDataLoader", "__del__"), forget_loader, "sample by plan"),
)
