"""All edges of a layer as those of one relation, made before they are moved to a device.

The states of a layer stand in one tensor, a type after the other, and so do the rows that it
computes. Relations follow each other in tiles of :data:`TILE` rows and of as many edges, so that
products with a weight of each relation are one batched product. What fills a relation's last tile
are edges that repeat its last one; they end at a row after its own, whose result is added to a row
after all others, which nobody reads: so their gradients are zero.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from dgl_heta.tools import Block, kernel

TILE = 64


class LayerEdges:
    """The edges of a block. S source states, N results, P rows and E edges of relations, R
    relations, n tiles of edges, m tiles of rows.

    Attributes
    ----------
    relations : the R relations in the order of their tiles.
    row_counts, edge_counts : rows and edges of each, with those that fill tiles.
    sources : (type, rows) of the source states, in their order.
    results : (type, rows) of the N results.
    items : int32 (E + P,), source state of each edge, then of each row, its destination.
    row : int32 (E,), the row of each edge.
    indptr, degree : int64 (P + 1,), int32 (P, 1), the edges of each row; at least 1.
    target : int32 (P,), the result that a row counts for.
    own : int32 (N + 1,), source state of each result.
    tiles : int32 (n + m,), relation of each tile of edges, then of each of rows.
    sides : int32 (n + m,), the same, R + relation of those of rows.
    tile_ends : int64 (2 R + 1,), where the tiles of each side begin.
    row_tile_ends : int64 (R + 1,), the same for tiles of rows alone.
    source_types, result_types : the types at either end of relations.
    source_type, result_type : int32 (R,), that of each relation, as its place among them.
    result_of : int32 (N,), the place of each result's type among the results.
    """

    _MOVED = ("items", "row", "indptr", "degree", "target", "own", "tiles", "sides", "tile_ends",
              "row_tile_ends", "source_type", "result_type",
              "result_of")

    _ENDS = ("indptr", "tile_ends", "row_tile_ends")

    def __init__(self, block: Block) -> None:
        self.relations = [edges for ntype in block.num_dst for edges in block.into(ntype)]
        self.sources = [(t, n) for t, n in block.num_src.items() if n]
        self.results = list(block.num_dst.items())
        self.number = sum(n for _, n in self.results)
        of_sources, of_results = _starts(block.num_src), _starts(block.num_dst)
        filled = [rows_that_have(e.indptr.numpy()) for e in self.relations]
        # A row more at least, at which the edges that fill the last tile end.
        self.row_counts = [-(-(n + 1) // TILE) * TILE if n else 0 for n in filled]
        self.edge_counts = [-(-len(e.indices) // TILE) * TILE for e in self.relations]
        self.edges, rows = sum(self.edge_counts), sum(self.row_counts)
        made = {"items": np.empty(self.edges + rows, np.int32),
                "row": np.empty(self.edges, np.int32), "indptr": np.zeros(rows + 1, np.int64),
                "degree": np.empty((rows, 1), np.int32), "target": np.empty(rows, np.int32)}
        edge = row = 0
        for e, edge_count, row_count in zip(self.relations, self.edge_counts, self.row_counts):
            if row_count:
                fill_tiles(e.indptr.numpy(), e.indices.numpy(), e.start,
                           None if e.rows is None else e.rows.numpy(), of_sources[e.relation.src],
                           of_sources.get(e.relation.dst, 0), of_results[e.relation.dst],
                           self.number, edge, edge + edge_count, row, row + row_count, self.edges,
                           made["items"], made["row"], made["indptr"], made["degree"],
                           made["target"])
            edge, row = edge + edge_count, row + row_count
        numbers = np.arange(len(self.relations), dtype=np.int32)
        of_edges, of_rows = (np.array(counts, np.int64) // TILE
                             for counts in (self.edge_counts, self.row_counts))
        tiles = [np.repeat(numbers, of_edges), np.repeat(numbers, of_rows)]
        own = [np.arange(at, at + n, dtype=np.int32)
               for at, n in ((of_sources.get(t, 0), n) for t, n in self.results)]
        self.source_types = list(dict.fromkeys(e.relation.src for e in self.relations))
        self.result_types = list(dict.fromkeys(e.relation.dst for e in self.relations))
        made |= {
            "result_of": np.repeat(np.arange(len(self.results), dtype=np.int32),
                                   [n for _, n in self.results]),
            "source_type": [self.source_types.index(e.relation.src) for e in self.relations],
            "result_type": [self.result_types.index(e.relation.dst) for e in self.relations],
            "own": np.concatenate([*own, np.zeros(1, np.int32)]), "tiles": np.concatenate(tiles),
            "sides": np.concatenate([tiles[0], tiles[1] + len(numbers)]),
            "tile_ends": np.cumsum([0, *of_edges, *of_rows]),
            "row_tile_ends": np.cumsum([0, *of_rows])}
        self._tensors = {name: torch.from_numpy(np.ascontiguousarray(
            made[name], np.int64 if name in self._ENDS else np.int32)) for name in self._MOVED}

    def __getattr__(self, name: str) -> Tensor:
        if name in LayerEdges._MOVED:
            return self._tensors[name]
        raise AttributeError(name)

    def tensors(self) -> list[Tensor]:
        return list(self._tensors.values())

    def move(self, moved: Iterator[Tensor]) -> None:
        self._tensors = {name: next(moved) for name in self._tensors}

    @property
    def source(self) -> Tensor:
        """The source state of each edge, int32 (E,)."""
        return self.items[:self.edges]

    @property
    def destination(self) -> Tensor:
        """The source state of each row's destination, int32 (P,)."""
        return self.items[self.edges:]

    @property
    def row_tiles(self) -> Tensor:
        """The relation of each tile of rows, int32 (m,)."""
        return self.tiles[self.edges // TILE:]


def _starts(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(zip(counts, itertools.accumulate(counts.values(), initial=0)))


@kernel
def rows_that_have(indptr):  # type: ignore[no-untyped-def]
    """The number of rows that have edges."""
    count = 0
    for row in range(len(indptr) - 1):
        count += indptr[row + 1] > indptr[row]
    return count


@kernel
def fill_tiles(  # type: ignore[no-untyped-def]
        indptr, indices, start, rows, of_sources, of_destinations, of_results, beyond, edge,
        edge_stop, row, row_stop, every, items, row_of, ends, degrees, targets):
    """Write a relation's tiles: its edges and those that fill the last tile from `edge` on, its
    rows that have edges, and more, from `row` on. The states of its sources and of its destinations
    and its results begin at `of_…`; nobody reads the result `beyond`. Rows' items begin at `every`.
    See :class:`LayerEdges`."""
    at = edge
    for place in range(len(indptr) - 1):
        low, high = indptr[place], indptr[place + 1]
        if high == low:
            continue
        number = place + start if rows is None else rows[place]
        for i in range(low, high):
            items[at] = indices[i] + of_sources
            row_of[at] = row
            at += 1
        items[every + row] = number + of_destinations
        degrees[row, 0] = high - low
        targets[row] = number + of_results
        ends[row + 1] = at
        row += 1
    last, destination, more = items[at - 1], items[every + row - 1], edge_stop - at
    while at < edge_stop:
        items[at] = last
        row_of[at] = row
        at += 1
    degrees[row, 0] = max(more, 1)
    while row < row_stop:
        items[every + row] = destination
        targets[row] = beyond
        ends[row + 1] = at
        row += 1
        if row < row_stop:
            degrees[row, 0] = 1
