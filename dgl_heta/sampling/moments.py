"""Batches whose seeds have times: a row is of a node as it is seen at a time.

A seed's time goes down with it: whatever is drawn below it is there at that time. So the rows of a
batch are of pairs. A pair is one number here, its id: place of the time among the seeds' × nodes of
the type + node. Whoever has the same seeds, as the workers of a group do, has the same ids. In a
batch of one moment, as all are in a graph without times, they are the nodes.
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
    """How edges with times are drawn: the `latest` ones that are there, in place of any of them;
    with `strict` only what is there before a seed's time, not what begins at it."""

    latest: bool = False
    strict: bool = False


@dataclass
class Moments:
    """The times of a batch.

    Attributes
    ----------
    times : of the seeds, int64, ascending, each once; any one of a graph without times.
    counts : nodes per type.
    one : whether there is one time, so that ids are nodes.
    """

    times: np.ndarray
    counts: Mapping[str, int]
    how: TimeDraws

    def __post_init__(self) -> None:
        self.one = len(self.times) == 1

    def ids(self, ntype: str, nodes: np.ndarray, times: np.ndarray) -> np.ndarray:
        """The ids of some pairs."""
        return nodes if self.one else nodes + self.counts[ntype] * np.searchsorted(
            self.times, times)

    def _split(self, ntype: str, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The places of the times of some pairs, and their nodes."""
        return (np.zeros_like(ids), ids) if self.one else np.divmod(ids, self.counts[ntype])

    def nodes(self, ntype: str, ids: np.ndarray) -> np.ndarray:
        """The nodes of some pairs."""
        return ids if self.one else ids % self.counts[ntype]

    def pairs(self, ntype: str, ids: np.ndarray) -> np.ndarray:
        """The nodes and times of some pairs, int64 (n, 2)."""
        places, nodes = self._split(ntype, ids)
        return np.stack([nodes, self.times[places]], 1)

    def keys(self, ntype: str, ids: np.ndarray) -> np.ndarray:
        """Some pairs as numbers that all batches of the graph have for them, int64: times
        :data:`KEYED` + node. For fewer nodes of a type than that, and 272 years about 1970."""
        places, nodes = self._split(ntype, ids)
        return nodes + KEYED * self.times[places]

    def seen(self, relation: Relation, csc: CSC, times: np.ndarray | None, ids: np.ndarray,
             key: np.uint64) -> dict[str, Any]:
        """What :class:`dgl_heta.sampling.relation_samples.Sample` says of destination pairs."""
        if self.one and times is None:
            return {"nodes": ids, "until": None}
        places, nodes = self._split(relation.dst, ids)
        until = None
        if times is not None:
            until = np.empty(len(ids), np.int64), np.empty(len(ids), np.uint64), self.how.latest
            if visible(csc.indptr, times, nodes, self.times[places], self.how.strict, key,
                       *until[:2]) == BAD:
                raise changed(relation, csc)
        return {"nodes": nodes, "until": until, "shifts": places * self.counts[relation.src]}

    def rows(self, of_nodes: dict[str, NodeRows]) -> dict[str, NodeRows]:
        """Rows of pairs, given those of nodes; none yet."""
        return of_nodes if self.one else {t: TimedRows() for t in of_nodes}

    def inputs(self, rows: Mapping[str, NodeRows], of_nodes: dict[str, NodeRows]
               ) -> dict[str, NodeRows]:
        """Rows of nodes that begin with those of pairs: input features are a node's, whatever the
        time."""
        for ntype, table in () if self.one else of_nodes.items():
            table.add(self.nodes(ntype, rows[ntype].ids()))
        return of_nodes

    def once(self, inputs: Mapping[str, NodeRows], nodes: dict[str, np.ndarray],
             rows: Mapping[str, NodeRows]) -> dict[str, Any]:
        """What :class:`dgl_heta.sampling.blocks.MiniBatch` says of `inputs`, of which `nodes` has
        each row's node; the first ones are of pairs, `rows`, and several of these can be of one."""
        if self.one:
            return {"input_nodes": nodes, "pairs": nodes}
        unique, places = {}, {}
        for ntype, ids in nodes.items():
            first = len(rows[ntype])
            own = inputs[ntype].find(ids[:first])
            kept = own == np.arange(first)
            unique[ntype] = np.concatenate([ids[:first][kept], ids[first:]])
            places[ntype] = np.arange(len(ids)) - np.count_nonzero(~kept)
            places[ntype][:first] = (np.cumsum(kept) - 1)[own]
        return {"input_nodes": unique, "places": places, "pairs": {t: rows[t].ids() for t in nodes}}


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
        find_rows(ids, rows, self._table, self.buffer, self.size, False)
        return rows

    def give(self, ids: np.ndarray, out: np.ndarray, indptr: np.ndarray, shifts: np.ndarray | None
             ) -> int:
        assert shifts is not None
        ids = ids + np.repeat(shifts, np.diff(indptr))
        self.size = find_rows(ids, out, self._table, self.buffer, self.size, True)
        return len(ids)

    def reserve(self, extra: int) -> None:
        self._hidden = 2 * (self.size + extra)  # all of them
        super().reserve(extra)
        if self._hidden > len(self._table):
            self._table = np.empty(1 << self._hidden.bit_length(), np.int32)
            self.take_back(self.size)

    def add(self, ids: np.ndarray, findable: bool = True) -> None:
        self.reserve(len(ids))
        if findable:
            self.size = find_rows(ids, np.empty(len(ids), np.int32), self._table,
                                  self.buffer, self.size, True, True)
        else:
            self.buffer[self.size:self.size + len(ids)] = ids
            self.size = self._found_from = self.size + len(ids)

    def take_back(self, size: int) -> None:
        found = self.buffer[self._found_from:size].copy()
        self.size = self._found_from
        self._table.fill(-1)
        self.add(found)
