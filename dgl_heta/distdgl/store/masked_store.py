"""The graph as a sampler with `mask=` or `prob=` sees it: of a relation that has edge data of that
name, the edges where it is not 0, with their values for weights; of others all.

As in DGL, neighbours are sampled without replacement, one after the other with a chance
proportional to the weight of an edge among those that are left: evenly where all values are 0 and
1. Edge data that a script makes itself are read from DistDGL's servers when a data loader is made.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping

import numpy as np

from dgl_heta.distdgl.state import state_of
from dgl_heta.distdgl.store.edge_ends import EdgeEnds
from dgl_heta.errors import InputError
from dgl_heta.features.row_kernels import check_ids
from dgl_heta.graph.schema import Relation
from dgl_heta.store import CSC, Store

_PIECE = 2**20
"""So many edges are looked at at once."""

Columns = Mapping[Relation, Callable[[], np.ndarray]]
"""Readers of edge data that the store has not, each with a value per edge of its relation."""


def masked_store(store: Store, mask: str, columns: Columns | None = None) -> _MaskedStore:
    """Return the store of the edges with a mask, whose values are the store's or in `columns`.

    All samplers of a process with that mask share it, while the values in `columns` are the same:
    a script may write to its edge data between data loaders.

    A relation with the mask keeps, once it was asked for, 4 bytes for each edge that is left (8
    from 2³¹ nodes on) and 8 for each destination in memory; with other values than 0 and 1 also
    8 for each edge that is left.
    """
    columns = columns or {}
    versions = state_of(_MaskedStores).of.setdefault(store, {}).setdefault(mask, [])
    for version in versions:
        if version.reads(columns):
            return version
    versions.append(_MaskedStore(store, mask, columns))
    return versions[-1]


def sampled_positions(store: Store, ends: EdgeEnds, relation: Relation, ids: np.ndarray
                      ) -> np.ndarray:
    """Return where edges are in the CSC that a sampler draws from, int64, ascending; without those
    that its mask leaves out.

    Parameters
    ----------
    store : the sampler's, maybe a masked one.
    ends : of the store that is not masked.
    ids : of edges of the relation, int64, in any order.

    Raises
    ------
    InputError
        An id is not that of an edge, or the store keeps none.
    """
    positions = np.unique(ends.positions(relation, ids))
    return store.positions_left(relation, positions) if isinstance(store, _MaskedStore) else (
        positions)


def sampled_edge_ids(store: Store, relation: Relation, csc: CSC) -> np.ndarray:
    """Return edge ids, int64, for each position of a relation's CSC that a sampler draws from: the
    store's own, or that of a masked one."""
    for versions in state_of(_MaskedStores).of.get(store, {}).values():
        for masked in versions:
            if masked.has(relation, csc):
                return masked.edge_ids(relation)
    return store.edge_ids(relation)


class _MaskedStore(Store):
    """A store whose relations have the edges alone that a mask leaves."""

    def __init__(self, store: Store, mask: str, columns: Columns) -> None:
        super().__init__(store.directory)
        self._mask, self._columns = mask, columns
        self._read: dict[Relation, np.ndarray] = {}
        self._left: dict[Relation, CSC] = {}
        self._ids: dict[Relation, np.ndarray] = {}
        self._positions: dict[Relation, np.ndarray] = {}
        self._weights: dict[Relation, np.ndarray | None] = {}

    def reads(self, columns: Columns) -> bool:
        """Return whether these columns have the values that were read."""
        return self._columns.keys() == columns.keys() and all(
            np.array_equal(values, columns[relation]())
            for relation, values in self._read.items())

    def _values(self, relation: Relation) -> np.ndarray | None:
        """Return the mask's value for each edge; None for a relation without."""
        # Read once and kept: the servers' values may change while a loader's pass is under way.
        if relation in self._columns and relation not in self._read:
            self._read[relation] = self._columns[relation]()
        return self._read.get(relation, self.edge_arrays(relation).get(self._mask))

    def has(self, relation: Relation, csc: CSC) -> bool:
        """Return whether a CSC is that of the edges of a relation that are left."""
        return relation in self._left and self._left[relation].indptr is csc.indptr

    def relation(self, relation: Relation, pieces: bool = False) -> CSC:
        """Return the edges that are left; `pieces` as of :meth:`Store.relation`.

        Raises
        ------
        InputError
            The edge data hold a number that is below 0 or not finite, or have several for an edge;
            or as :meth:`Store.relation`.
        """
        mask = self._values(relation)
        if mask is None:
            return super().relation(relation, pieces)
        if relation not in self._left:
            csc = super().relation(relation)
            kept, weights = self._kept(relation, mask)
            # Without weights the sampler draws evenly, which is quicker.
            self._weights[relation] = None if (weights == 1).all() else weights
            self._left[relation] = CSC(np.searchsorted(kept, csc.indptr).astype(np.int64),
                                       csc.indices[kept])
        return self._left[relation]

    def edge_ids(self, relation: Relation) -> np.ndarray:
        """Return the ids of the edges that are left; they stay in memory, 8 bytes each."""
        mask, ids = self._values(relation), super().edge_ids(relation)
        if mask is None:
            return ids
        if relation not in self._ids:
            self._ids[relation] = np.asarray(ids[self._kept(relation, mask)[0]])
        return self._ids[relation]

    def positions_left(self, relation: Relation, positions: np.ndarray) -> np.ndarray:
        """Return positions (ascending) in the CSC of all edges as positions in that of the edges
        that are left.

        A relation that was asked for keeps 4 bytes for each of these (8 from 2³¹ edges on).
        """
        mask = self._values(relation)
        if mask is None:
            return positions
        if relation not in self._positions:
            kind = np.int32 if self.schema.edge_counts[relation] < 2**31 else np.int64
            self._positions[relation] = self._kept(relation, mask)[0].astype(kind)
        kept = self._positions[relation]
        left = np.searchsorted(kept, positions.astype(kept.dtype))
        same = left < len(kept)
        same[same] = kept[left[same]] == positions[same]
        return left[same].astype(np.int64)

    def weights(self, relation: Relation) -> np.ndarray | None:
        """Return the weights of the edges that are left; None if all values are 0 and 1."""
        self.relation(relation)
        return self._weights.get(relation)

    def _kept(self, relation: Relation, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of the edges that are left in the relation's CSC, ascending, and
        their weights."""
        ids, count = super().edge_ids(relation), self.schema.edge_counts[relation]
        if mask.ndim != 1:
            raise InputError(f"edge data '{self._mask}' of '{relation}' have shape {mask.shape}; a "
                             "sampler's mask or prob has a number for each edge")
        kept, weights = [np.empty(0, np.int64)], [np.empty(0)]
        for low in range(0, count, _PIECE):
            piece = np.array(ids[low:low + _PIECE])
            check_ids(piece, count)  # or a damaged file would have values read beside the mask
            values = np.asarray(mask[piece], np.float64)
            wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
            if len(wrong):
                raise InputError(
                    f"edge data '{self._mask}' of '{relation}' are {values[wrong[0]]} for edge "
                    f"{piece[wrong[0]]}; a sampler's mask or prob is a finite number, 0 or more, "
                    "for each edge")
            chosen = np.flatnonzero(values)
            kept.append(low + chosen)
            weights.append(values[chosen])
        return np.concatenate(kept), np.concatenate(weights)


class _MaskedStores:
    """Masked stores by the store that they are of, and by the name of the mask."""

    def __init__(self) -> None:
        # Weak: the masked stores of a graph that is forgotten go with its store.
        self.of: weakref.WeakKeyDictionary[Store, dict[str, list[_MaskedStore]]] = (
            weakref.WeakKeyDictionary())
