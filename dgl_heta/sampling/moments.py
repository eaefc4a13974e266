"""Batches whose seeds have times: a row is of a node as it is seen at a time.

A seed's time goes down with it: whatever is drawn below it is there at that time. So the rows of a
batch are of pairs. A pair is one number here: place of the time among the seeds' × nodes of the
type + node. Whoever has the same seeds, as the workers of a group do, has the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dgl_heta.graph.schema import Relation
from dgl_heta.sampling.moment_kernels import find_rows, visible
from dgl_heta.sampling.rows import NodeRows
from dgl_heta.sampling.sampling_kernels import BAD
from dgl_heta.store import CSC
from dgl_heta.store.structure import changed

KEYED = 1 << 30


class TimeDraws(NamedTuple):
    """How edges with times are drawn.

    Attributes
    ----------
    latest : the last ones that are there, in place of any of them.
    strict : only what is there before a seed's time, not what begins at it.
    """

    latest: bool = False
    strict: bool = False


@dataclass(frozen=True)
class Moments:
    """The times of a batch.

    Attributes
    ----------
    times : of the seeds, int64, ascending, each once.
    counts : nodes per type.
    """

    times: np.ndarray
    counts: Mapping[str, int]
    how: TimeDraws

    @classmethod
    def of(cls, seeds: Mapping[str, np.ndarray], counts: Mapping[str, int], how: TimeDraws
           ) -> tuple[Moments, dict[str, np.ndarray]]:
        """The times of seeds, int64 (n, 2) of nodes and times, and their pairs' numbers."""
        every = np.concatenate([pairs[:, 1] for pairs in seeds.values()])
        moments = cls(np.unique(every), counts, how)  # counts are of what memory has an entry for
        return moments, {t: pairs[:, 0] + counts[t] * np.searchsorted(moments.times, pairs[:, 1])
                         for t, pairs in seeds.items()}

    def nodes(self, ntype: str, ids: np.ndarray) -> np.ndarray:
        """The nodes of some pairs."""
        return ids % self.counts[ntype]

    def seen_at(self, ntype: str, ids: np.ndarray) -> np.ndarray:
        """The times of some pairs."""
        return self.times[ids // self.counts[ntype]]

    def seen(self, relation: Relation, csc: CSC, times: np.ndarray | None, ids: np.ndarray,
             key: np.uint64) -> dict[str, Any]:
        """What :class:`dgl_heta.sampling.relation_samples.Sample` says of destination pairs."""
        places, nodes = np.divmod(ids, self.counts[relation.dst])
        until = None
        if times is not None:
            until = np.empty(len(ids), np.int64), np.empty(len(ids), np.uint64), self.how.latest
            if visible(csc.indptr, times, nodes, self.times[places], self.how.strict, key,
                       *until[:2]) == BAD:
                raise changed(relation, csc)
        return {"nodes": nodes, "until": until, "shifts": places * self.counts[relation.src]}

    def degrees(self, relation: Relation, csc: CSC, times: np.ndarray | None, nodes: np.ndarray
                ) -> np.ndarray | None:
        """How many in-edges of some nodes are there at the one time; None for all."""
        until = self.seen(relation, csc, times, nodes, np.uint64(0))["until"]
        return None if until is None else until[0]

    def keys(self, ntype: str, ids: np.ndarray) -> np.ndarray:
        """Some pairs as numbers that all batches of the graph have for them, int64: times
        :data:`KEYED` + node. For fewer nodes of a type than that, and 272 years about 1970."""
        places, nodes = np.divmod(ids, self.counts[ntype])
        return nodes + KEYED * self.times[places]

    def once(self, rows: Mapping[str, NodeRows], pairs: Mapping[str, NodeRows]
             ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Nodes of input rows, each once, and the place of each row's node among them. Input
        features are a node's, whatever the time.

        The first rows are of `pairs`, so that a node can have several; those of others are apart.
        """
        nodes, places = {}, {}
        for ntype, table in rows.items():
            ids, several = table.ids(), len(pairs[ntype])
            own = table.find(ids[:several])
            one = own == np.arange(several)
            nodes[ntype] = np.concatenate([ids[:several][one], ids[several:]])
            places[ntype] = np.arange(len(ids)) - np.count_nonzero(~one)
            places[ntype][:several] = (np.cumsum(one) - 1)[own]
        return nodes, places


def from_rows(times: np.ndarray | None, rows: np.ndarray | None, indptr: np.ndarray
              ) -> np.ndarray | None:
    """The times of a relation's edges, which are there only from those of their destinations' rows
    on, too: int64, in memory, of all edges of the CSC."""
    if rows is None:
        return times
    of_ends = np.repeat(rows, np.diff(indptr))
    return of_ends if times is None else np.maximum(times, of_ends, out=of_ends)


class TimedRows(NodeRows):
    """Rows of pairs, which are too many for an array with an entry for each: by their hashes.

    Only the first rows may be such that are not found.
    """

    def __init__(self) -> None:
        super().__init__(np.empty(0, np.int32))
        self._table, self._found_from = np.full(1 << 10, -1, np.int32), 0

    def find(self, ids: np.ndarray) -> np.ndarray:
        rows = np.empty(len(ids), np.int32)
        find_rows(ids, None, None, rows, self._table, self.buffer, self.size, False)
        return rows

    def give(self, ids: np.ndarray, out: np.ndarray, indptr: np.ndarray, shifts: np.ndarray | None
             ) -> int:
        self.size = find_rows(ids, indptr, shifts, out, self._table, self.buffer, self.size, True)
        return len(ids)

    def reserve(self, extra: int) -> None:
        most = self.size + extra
        if most > len(self.buffer):
            grown = np.empty(max(most, 2 * len(self.buffer)), np.int64)
            grown[:self.size] = self.ids()
            self.buffer = grown
        if 2 * most > len(self._table):
            self._table = np.empty(1 << (2 * most).bit_length(), np.int32)
            self.take_back(self.size)

    def add(self, ids: np.ndarray, findable: bool = True) -> None:
        self.reserve(len(ids))
        if findable:
            self.size = find_rows(ids, None, None, np.empty(len(ids), np.int32), self._table,
                                  self.buffer, self.size, True, True)
        else:
            self._found_from = self.size + len(ids)
            self.buffer[self.size:self._found_from] = ids
            self.size = self._found_from

    def take_back(self, size: int) -> None:
        found = self.buffer[self._found_from:size].copy()
        self.size = self._found_from
        self._table.fill(-1)
        self.add(found)
