"""Edges that are left out of a batch because the batch is made of them (`exclude=`, DGL 2.4).

DistDGL draws neighbours and drops the edges of a trainer's own batch. With RAF a node has one row
in a batch of all trainers that step together. So what any of them excludes is left out for all, as
in one process whose batch is that of the group.

What is excluded goes by the ids of edges, as DGL has it. A link that is stored a second time, in
the opposite direction or by another relation, stays in messages: it is the script's, and is said.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from dgl.distributed import graph_services
from torch import Tensor

from dgl_heta.distdgl.loading.typed_ids import gather_seeds
from dgl_heta.distdgl.modules.group_merge import canonical
from dgl_heta.distdgl.session import Session
from dgl_heta.distdgl.store.edge_ends import EdgeEnds
from dgl_heta.distdgl.store.masked_store import sampled_positions
from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.sampling.same_links import MOST, Joined, Overlap, between, said
from dgl_heta.store import Store


def ignores_exclude() -> bool:
    """Return whether this DGL's DistGraph samples edges that are to be excluded, as 2.1.0 does."""
    return "exclude_edges" not in inspect.signature(
        graph_services.sample_etype_neighbors).parameters


def excluded_by_all(session: Session, own: Any, store: Store) -> dict[Relation, np.ndarray]:
    """Return where the edges are that the trainers of the group exclude, who all call it.

    Parameters
    ----------
    own : what this trainer excludes, as DGL's collator says it: relation → ids of edges, or ids
        where there is one relation; None for nothing.
    store : the one that is sampled from.

    Returns
    -------
    relation → positions in the CSC that is sampled from, int64, ascending.

    Raises
    ------
    InputError
        An id is not that of an edge of its relation, or there is no such relation.
    """
    relations = session.store.schema.relations
    if own is not None and not isinstance(own, Mapping):
        own = {tuple(relations[0]): own}
    edges: dict[Relation, Tensor] = {}
    for etype, ids in (own or {}).items():
        relation, numbers = canonical(etype, relations), torch.as_tensor(ids).flatten()
        edges[relation] = torch.cat([edges[relation], numbers]) if relation in edges else numbers
    if session.reference:  # a trainer is a group by itself there, but leaves out what RAF does
        every = gather_seeds(session.world, relations, edges)
        parts = [every[partner] for partner in session.partners]
    else:
        parts = gather_seeds(session.group, relations, edges)
    excluded = {relation: torch.cat([part[relation] for part in parts]) for relation in relations}
    return {relation: sampled_positions(store, session.edge_ends, relation, ids.numpy())
            for relation, ids in excluded.items() if len(ids)}


def stored_again(collator: Any, relations: Iterable[Relation], ends: EdgeEnds, store: Store
                 ) -> list[str]:
    """Return a line on the links of a batch that `exclude` leaves in messages.

    None where it leaves in next to nothing. It is counted on some of the edges, each as a batch by
    itself.

    Parameters
    ----------
    collator : DGL's collator of edges.
    relations : of its edges.
    ends : of all edges.
    store : the one that is sampled from.

    Raises
    ------
    InputError
        No reverse of a relation is named, where `exclude` needs it; an id is not that of an edge.
    """
    every = store.schema.relations
    overlaps: list[Overlap] = []
    for relation in relations:
        ids = torch.as_tensor(_of(collator.eids, relation, every), dtype=torch.int64)
        if len(ids) > MOST:
            ids = ids[np.random.default_rng(0).integers(0, len(ids), MOST)]
        sources, destinations = (nodes.numpy() for nodes in ends.of(relation, ids))
        excluded = _excluded(collator, relation, ids, every)
        links, by_chance = (Joined(relation, sources, right) for right in (
            destinations, np.random.default_rng(0).permutation(destinations)))
        for other in between(every, relation):
            left, chance = (pairs.counts(store, other) for pairs in (links, by_chance))
            for number, edges in enumerate(excluded.get(other, [])):
                # An edge that is its own reverse was taken off with the first of the two.
                new = (edges != ids).numpy() if number and other == relation else True
                left -= links.are(other, *(nodes.numpy() for nodes in ends.of(other, edges))) * new
            for parallel in ((True, False) if other == relation else (False,)):
                rows = slice(0, 1) if parallel else slice(int(other == relation), 2)
                share, expected = (float((counts[rows].sum(0) > 0).mean()) if len(ids) else 0.0
                                   for counts in (left, chance))
                overlaps.append(Overlap(relation, other, share, expected, parallel))
    return said(f"exclude={collator.exclude!r} of DistEdgeDataLoader leaves links of a batch in "
                "messages where they are stored again", overlaps,
                "it goes by ids, as DGL's does (docs/switching.md#edges)")


def _excluded(collator: Any, relation: Relation, ids: Tensor, every: Sequence[Relation]
              ) -> dict[Relation, list[Tensor]]:
    """Return the edges that `exclude` leaves out for these, by relation."""
    excluded = {relation: [ids]}
    if collator.exclude == "reverse_id":
        excluded[relation].append(_of(collator.reverse_eids, relation, every)[ids])
    elif collator.exclude == "reverse_types":
        back = canonical(_of(collator.reverse_etypes, relation, every), every)
        excluded.setdefault(back, []).append(ids)
    return excluded


def _of(given: Any, relation: Relation, relations: Sequence[Relation]) -> Any:
    """Return what an argument of DGL's collator has for a relation.

    Raises
    ------
    InputError
        Nothing, where each relation needs something.
    """
    if not isinstance(given, Mapping):
        return given
    for etype, value in given.items():
        if canonical(etype, relations) == relation:
            return value
    raise InputError(f"DistEdgeDataLoader has edges of '{relation}', but its reverse_eids or "
                     "reverse_etypes name no reverse of them, which its exclude needs")

