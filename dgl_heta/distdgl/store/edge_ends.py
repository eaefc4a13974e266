"""Edges of a meta-partitioned graph by their ids: their positions in its store, and their ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgl_heta.errors import InputError
from dgl_heta.features.row_kernels import check_ids
from dgl_heta.graph.schema import Relation
from dgl_heta.store import Store
from dgl_heta.store.structure import edge_ends

_PIECE = 2**20
"""So many edges are looked at at once."""


class EdgeEnds:
    """Ends of edges by their ids, from the store of this machine.

    A relation that was asked for keeps 4 bytes per edge (8 from 2³¹ edges on) in memory, unless its
    edges came by destination.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._order: dict[Relation, np.ndarray | None] = {}

    def positions(self, relation: Relation, ids: Any) -> np.ndarray:
        """Return where edges are in the relation's CSC, int64.

        Raises
        ------
        InputError
            An id is not that of an edge, or the store keeps none.
        """
        edges = self._store.schema.edge_counts[relation]
        numbers = np.asarray(ids, np.int64)
        if numbers.ndim != 1:
            raise InputError(f"edges of '{relation}' have ids of shape {numbers.shape}; they must "
                             "be one-dimensional")
        check_ids(numbers, edges)
        if relation not in self._order:
            self._order[relation] = self._ordered(relation, edges)
        order = self._order[relation]
        return numbers if order is None else order[numbers].astype(np.int64)

    def of(self, relation: Relation, ids: Any) -> tuple[Tensor, Tensor]:
        """Return sources and destinations of edges, int64, in the order of their ids."""
        positions = self.positions(relation, ids)
        sources, destinations = edge_ends(relation, self._store.relation(relation), positions,
                                          self._store.schema.node_counts)
        return torch.from_numpy(sources), torch.from_numpy(destinations)

    def _ordered(self, relation: Relation, edges: int) -> np.ndarray | None:
        """Return the position of each edge by its id; None where it is the id."""
        ids = self._store.edge_ids(relation)
        # Half the memory: a position is below the number of edges.
        kind = np.int32 if edges < 2**31 else np.int64
        order: Any = np.full(edges, -1, kind)
        same = True
        for low in range(0, edges, _PIECE):
            piece = np.array(ids[low:low + _PIECE])
            check_ids(piece, edges)
            positions = np.arange(low, low + len(piece))
            same = same and bool((piece == positions).all())
            order[piece] = positions
        # Ids that are in range may still be there twice, and then others are not.
        if (order < 0).any():
            raise InputError(f"the edge ids of '{relation}' in store {self._store.directory} are "
                             "not those of its edges; partition the graph again")
        return None if same else np.asarray(order)
