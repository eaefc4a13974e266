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
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgl_heta.tools import Block, RelationBlock

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
        self.block = block
        self.relations = [edges for ntype in block.num_dst for edges in block.into(ntype)]
        self.sources = [(t, n) for t, n in block.num_src.items() if n]
        self.results = list(block.num_dst.items())
        self.number = sum(n for _, n in self.results)
        of_sources, of_results = _starts(block.num_src), _starts(block.num_dst)
        parts = [_tiled(e, of_sources[e.relation.src], of_sources.get(e.relation.dst, 0),
                        of_results[e.relation.dst], self.number) for e in self.relations]
        source, destination, degree, target = (
            np.concatenate([part[i] for part in parts]) for i in range(4))
        self.edge_counts = [len(part[0]) for part in parts]
        self.row_counts = [len(part[2]) for part in parts]
        rows, self.edges = len(degree), len(source)
        numbers = np.arange(len(parts))
        of_edges, of_rows = (np.array(counts) // TILE
                             for counts in (self.edge_counts, self.row_counts))
        tiles = [np.repeat(numbers, of_edges), np.repeat(numbers, of_rows)]
        own = [of_sources.get(t, 0) + np.arange(n) for t, n in self.results]
        self.source_types = list(dict.fromkeys(e.relation.src for e in self.relations))
        self.result_types = list(dict.fromkeys(e.relation.dst for e in self.relations))
        made = {
            "result_of": np.repeat(np.arange(len(self.results)), [n for _, n in self.results]),
            "source_type": [self.source_types.index(e.relation.src) for e in self.relations],
            "result_type": [self.result_types.index(e.relation.dst) for e in self.relations],
            "items": np.concatenate([source, destination]),
            "row": np.repeat(np.arange(rows), degree),
            "indptr": np.concatenate([[0], np.cumsum(degree)]),
            "degree": np.maximum(degree, 1)[:, None], "target": target,
            "own": np.concatenate([*own, [0]]), "tiles": np.concatenate(tiles),
            "sides": np.concatenate([tiles[0], tiles[1] + len(parts)]),
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


def _tiled(edges: RelationBlock, source_start: int, destination_start: int, result_start: int,
           beyond: int) -> tuple[Any, Any, Any, Any]:
    """Of the rows that have edges, in tiles: the source state of each edge, the destination's state
    of each row, how many edges it has, its result."""
    degrees = np.diff(edges.indptr.numpy())
    kept = np.flatnonzero(degrees)
    if not len(kept):
        return (np.empty(0, np.int64),) * 4
    at = kept + edges.start if edges.rows is None else edges.rows.numpy()[kept]
    indices = edges.indices.numpy().astype(np.int64)
    more_edges, more_rows = -len(indices) % TILE, TILE - len(kept) % TILE  # a row at least
    source = np.concatenate([indices, np.full(more_edges, indices[-1])]) + source_start
    destination = np.concatenate([at, np.full(more_rows, at[-1])]) + destination_start
    degree = np.concatenate([degrees[kept], [more_edges], np.zeros(more_rows - 1, np.int64)])
    target = np.concatenate([at + result_start, np.full(more_rows, beyond)])
    return source, destination, degree, target
