"""Edge streams: all edges of a graph in one id space, in bounded chunks, pass after pass.

A partitioner reads its graph this way alone, so that no more than a chunk of edges is ever in
memory (CATGNN, §3.1). The node types of a heterogeneous graph follow one another in the id space;
each edge carries its relation.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from dgl_heta import GraphSource, InputError, Relation, Store, as_source, open_edges
from dgl_heta.tools import kernel

CHUNK = 2**18  # edges
_MOST_NODES = 2**40
ONLY = Relation("node", "edge", "node")
"""The relation of a homogeneous graph's edges."""


class Chunk(NamedTuple):
    """Some edges that follow one another in a stream.

    Attributes
    ----------
    src, dst : ends of the edges in the one id space, int64 (edges,).
    relation : index of each edge's relation in `EdgeStream.relations`, int32 (edges,).
    first : position of the first edge in the stream.
    """

    src: np.ndarray
    dst: np.ndarray
    relation: np.ndarray
    first: int


class Edges(Protocol):
    """The source of a stream; with three arrays in a chunk, the third is the relation."""

    def chunks(self, size: int) -> Iterable[tuple[Any, ...]]:
        """The edges, from the first one on at each call."""


@dataclass
class _Pass:
    """Marks of a pass, to tell whether the next one sees the same."""

    edges: int
    digest: int
    largest: int


class EdgeStream:
    """Edges in one id space, which can be read any number of times.

    Every pass checks what it reads: ids in range, as many edges as were promised, and the same
    edges in the same order as in the first pass.

    Parameters
    ----------
    edges : where they are read from.
    num_nodes : nodes of the graph; None: one more than the largest id, which costs a pass.
    num_edges : edges that are promised, if known.
    relations : relations by index.
    node_counts : node types with their numbers of nodes, in the order of the id space.
    name : what the edges are called in errors.
    """

    def __init__(self, edges: Edges, num_nodes: int | None = None, *,
                 num_edges: int | None = None, relations: tuple[Relation, ...] = (ONLY,),
                 node_counts: Mapping[str, int] | None = None, name: str = "the edge stream"
                 ) -> None:
        if num_nodes is not None and num_nodes < 0:
            raise InputError(f"num_nodes is {num_nodes}; it must be 0 or more")
        self._edges, self._num_nodes, self._promised = edges, num_nodes, num_edges
        self._node_counts = dict(node_counts) if node_counts is not None else None
        self.relations, self.name = relations, name
        self._seen: _Pass | None = None

    @classmethod
    def of_graph(cls, graph: GraphSource | Store) -> EdgeStream:
        """The homogeneous view of a graph or relation store: its relations one after the other."""
        source = as_source(graph)
        relations = tuple(Relation(*relation) for relation in source.edges)
        first = _first(source.node_counts)
        return cls(_Relations([(edges, first[r.src], first[r.dst], source.node_counts[r.src],
                                source.node_counts[r.dst], str(r))
                               for r, edges in source.edges.items()]),
                   sum(source.node_counts.values()),
                   num_edges=sum(edges.num_edges for edges in source.edges.values()),
                   relations=relations, node_counts=source.node_counts,
                   name=f"the edge stream of '{source.name}'")

    @classmethod
    def of_relation(cls, graph: GraphSource, relation: Relation) -> EdgeStream:
        """The edges of one relation: of one type's nodes, or of sources and then destinations."""
        counts = {t: graph.node_counts[t] for t in (relation.src, relation.dst)}
        return cls.of_graph(GraphSource(graph.name, counts, {relation: graph.edges[relation]}))

    @classmethod
    def of_chunks(cls, chunks: Iterable[tuple[Any, ...]], num_nodes: int | None = None, *,
                  relations: tuple[Relation, ...] = (ONLY,)) -> EdgeStream:
        """A stream of any iterable of `(src, dst)` or `(src, dst, relation)` chunks.

        An iterator, which can be read but once, is copied to a temporary file first; a list, or
        an object whose `__iter__` starts anew, is not. Chunks of any size are cut to size.
        """
        if isinstance(chunks, Iterator):
            return cls(_Spool(chunks), num_nodes, relations=relations)
        return cls(_Again(chunks), num_nodes, relations=relations)

    @classmethod
    def open(cls, *paths: str | Path, num_nodes: int | None = None) -> EdgeStream:
        """The edges of files (`.npy`, `.csv`, `.csv.gz`, `.parquet`), or of one relation store."""
        if not paths:
            raise InputError("no file of edges is named; name at least one")
        if len(paths) == 1 and Store.is_store(paths[0]):
            return cls.of_graph(Store(paths[0]))
        files = [open_edges(path) for path in paths]
        return cls(_Joined(files), num_nodes, num_edges=sum(file.num_edges for file in files),
                   name=f"the edge stream of {', '.join(map(str, paths))}")

    @property
    def num_nodes(self) -> int:
        """Nodes of the graph, isolated ones included; found in a pass if they were not given."""
        if self._num_nodes is None:
            seen = self._first_pass()
            if seen.largest >= _MOST_NODES:
                raise InputError(f"{self.name} has {seen.edges} edges, but its largest id is "
                                 f"{seen.largest}: partitioners keep some bytes for each node; "
                                 "number the nodes from 0 on")
            self._num_nodes = seen.largest + 1
        return self._num_nodes

    @property
    def num_edges(self) -> int:
        """Edges of the graph; counted in a pass if they were not promised."""
        return self._promised if self._promised is not None else self._first_pass().edges

    @property
    def node_counts(self) -> dict[str, int]:
        """Node types with their numbers of nodes, in the order of the id space."""
        return self._node_counts or {self.relations[0].src: self.num_nodes}

    def _first_pass(self) -> _Pass:
        if self._seen is None:
            for _ in self.chunks():
                pass
        assert self._seen is not None
        return self._seen

    def chunks(self, size: int = CHUNK) -> Iterator[Chunk]:
        """A pass over all edges, at most `size` at a time.

        Raises
        ------
        InputError
            A chunk that is not edges, an id out of range, more or fewer edges than promised, or
            other edges than in the first pass. A pass that is not read to its end checks as far
            as it went.
        """
        if size < 1:
            raise InputError(f"the size of a chunk is {size}; it must be 1 or more")
        state = np.zeros(2, np.uint64)  # digest, largest id + 1
        limit = 2**62 if self._num_nodes is None else self._num_nodes
        first = 0
        for piece in self._edges.chunks(size):
            src, dst, relation = _arrays(piece, f"{self.name}, at edge {first}")
            for start in range(0, len(src), size):
                cut = slice(start, start + size)
                chunk = Chunk(src[cut], dst[cut], relation[cut], first)
                bad = _check(chunk.src, chunk.dst, chunk.relation, limit, len(self.relations),
                             state)
                if bad >= 0:
                    raise InputError(self._out_of_range(chunk, bad, limit))
                first += len(chunk.src)
                if self._promised is not None and first > self._promised:
                    raise InputError(f"{self.name} has more than the {self._promised} edges that "
                                     "it said; it must not change while it is read")
                yield chunk
        self._finish(_Pass(first, int(state[0]), int(state[1]) - 1))

    def _out_of_range(self, chunk: Chunk, at: int, limit: int) -> str:
        src, dst, relation = (int(array[at]) for array in chunk[:3])
        edge = f"{self.name}: edge {chunk.first + at} ({src}, {dst})"
        if not 0 <= relation < len(self.relations):
            return (f"{edge} has relation {relation}; there are {len(self.relations)}, numbered "
                    "from 0")
        if min(src, dst) < 0:
            return f"{edge} has a negative id; ids are 0 or more"
        return f"{edge} has an id that is not below the number of nodes, {limit}"

    def _finish(self, now: _Pass) -> None:
        if self._promised is not None and now.edges < self._promised:
            raise InputError(f"{self.name} ends after {now.edges} edges, but said that it has "
                             f"{self._promised}; it was cut, or changed while it was read")
        if self._seen is None:
            self._seen = now
        elif now != self._seen:
            what = (f"{self._seen.edges} edges in the first pass and {now.edges} now"
                    if now.edges != self._seen.edges else "the same number of other edges")
            raise InputError(f"{self.name} has changed between two passes: {what}; every pass must "
                             "give the same edges in the same order")


@kernel
def _check(src, dst, relation, nodes, relations, state):
    """The position of the first bad edge, or -1; digest and largest id go to `state`."""
    digest, above = state[0], np.int64(state[1])
    for i in range(len(src)):
        u, v, r = src[i], dst[i], np.int64(relation[i])
        if u < 0 or v < 0 or u >= nodes or v >= nodes or r < 0 or r >= relations:
            return i
        above = max(above, u + 1, v + 1)
        word = (np.uint64(u) * np.uint64(0x9E3779B97F4A7C15)
                + np.uint64(v) * np.uint64(0xC2B2AE3D27D4EB4F) + np.uint64(r))
        digest = (digest ^ (word ^ (word >> np.uint64(31)))) * np.uint64(0x100000001B3)
    state[0], state[1] = digest, np.uint64(above)
    return -1


def _arrays(piece: Any, where: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The arrays of a chunk, which anybody may have made; relation 0 where it has none."""
    if not isinstance(piece, tuple) or len(piece) not in (2, 3):
        raise InputError(f"{where}: a chunk must be a tuple (src, dst) or (src, dst, relation) of "
                         "arrays")
    arrays = [np.asarray(array) for array in piece]
    if any(array.ndim != 1 or len(array) != len(arrays[0]) for array in arrays):
        raise InputError(f"{where}: the arrays of a chunk have shapes "
                         f"{', '.join(str(a.shape) for a in arrays)}; they must be "
                         "one-dimensional and equally long")
    if any(array.dtype.kind not in "iu" for array in arrays if len(array)):
        raise InputError(f"{where}: a chunk holds {', '.join(str(a.dtype) for a in arrays)} "
                         "values; ids must be integers")
    src, dst = (_fitted(array, np.int64, f"{where}: a chunk has id") for array in arrays[:2])
    relation = (_fitted(arrays[2], np.int32, f"{where}: a chunk has relation")
                if len(arrays) == 3 else np.zeros(len(src), np.int32))
    return src, dst, relation


def _fitted(array: np.ndarray, dtype: Any, what: str) -> np.ndarray:
    """Whole numbers as another type, checked: NumPy would wrap what does not fit.

    In memory of their own: a mapped file could change after :func:`_check` has seen it.
    """
    if len(array) and not np.can_cast(array.dtype, dtype):
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        for value in (int(array.min()), int(array.max())):
            if not least <= value <= most:
                raise InputError(f"{what} {value}; it must be from 0 to {most}")
    return array.astype(dtype)


def _first(counts: Mapping[str, int]) -> dict[str, int]:
    """Node type → its first id in the one id space."""
    first, total = {}, 0
    for ntype, count in counts.items():
        first[ntype] = total
        total += count
    return first


class _Relations:
    """The relations of a graph one after the other, ids moved into the one id space."""

    def __init__(self, relations: list[tuple[Any, int, int, int, int, str]]) -> None:
        self._relations = relations

    def chunks(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        for index, (edges, first_src, first_dst, sources, destinations, name
                    ) in enumerate(self._relations):
            for src, dst in edges.chunks(size):
                for ids, count in ((src, sources), (dst, destinations)):
                    if len(ids) and not 0 <= ids.min() <= ids.max() < count:
                        raise InputError(f"relation '{name}' has ids from {ids.min()} to "
                                         f"{ids.max()}; the type has {count} nodes")
                yield (src.astype(np.int64) + first_src, dst.astype(np.int64) + first_dst,
                       np.full(len(src), index, np.int32))


class _Joined:
    """Files of edges, one after the other."""

    def __init__(self, files: list[Any]) -> None:
        self._files = files

    def chunks(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for file in self._files:
            yield from file.chunks(size)


class _Again:
    """An iterable that starts anew."""

    def __init__(self, pieces: Iterable[tuple[Any, ...]]) -> None:
        self._pieces = pieces

    def chunks(self, size: int) -> Iterator[tuple[Any, ...]]:
        return iter(self._pieces)


class _Spool:
    """The chunks of an iterator in a temporary file, which goes when nothing refers to it."""

    def __init__(self, pieces: Iterator[tuple[Any, ...]]) -> None:
        self._file = tempfile.TemporaryFile(prefix="dgl-heta-edges-")  # noqa: SIM115
        for piece in pieces:
            rows = np.stack(_arrays(piece, "the edge stream"), axis=1, dtype=np.int64)
            self._file.write(rows.tobytes())

    def chunks(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        position = 0
        while True:
            self._file.seek(position)  # another pass may have moved it
            data = self._file.read(size * 24)
            if not data:
                return
            position += len(data)
            rows = np.frombuffer(data, np.int64).reshape(-1, 3)
            src, dst, relation = rows.T
            yield src.copy(), dst.copy(), relation.astype(np.int32)
