"""The second stream: every edge to the files of the parts that need it.

A part owns the in-edges of its own nodes, which are the full neighbour lists of these. With more
than one hop it also gets those of its halo nodes, which other parts own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dgl_heta.tools import kernel
from dgl_heta_catgnn.numbering import NodeNumbers, as_ranges
from dgl_heta_catgnn.replicas import Replicas
from dgl_heta_catgnn.streams import EdgeStream

COLUMNS = {"src": np.int64, "dst": np.int64, "relation": np.int32, "owner": np.int16,
           "rank": np.int64, "position": np.int64}


@dataclass(frozen=True)
class PartEdges:
    """Edges of a part, in files: its own, or those of its halo nodes.

    Columns are `src` and `dst` (new node ids), `relation` (index), `owner` (the part that owns the
    edge), `rank` (among the owner's edges of the relation), `position` (in the source's order).
    """

    directory: Path
    name: str

    def column(self, name: str) -> np.ndarray:
        return np.fromfile(self.file(name), COLUMNS[name])

    def file(self, name: str) -> Path:
        return self.directory / f"{self.name}.{name}"

    def delete(self) -> None:
        for name in COLUMNS:
            self.file(name).unlink()


@dataclass(frozen=True)
class Spooled:
    """The files that the second stream has written.

    Attributes
    ----------
    own, halo : edges of each part; no `halo` with a single hop.
    ranges : ids of edges as DistDGL numbers them, int64 (relations, parts, 2).
    """

    own: list[PartEdges]
    halo: list[PartEdges]
    ranges: np.ndarray


def spool(stream: EdgeStream, owner: np.ndarray, numbers: NodeNumbers, parts: int, hops: int,
          directory: Path, size: int, advance: Callable[[int], None]) -> Spooled:
    """Read the stream once more, or `hops` times, and write each part's edges to files.

    Parameters
    ----------
    hops : hops of neighbours around a part's own nodes, 1 or more.
    advance : called with the number of edges that have been written.
    """
    # Nodes whose in-edges a part has: its own, and with further hops what is around these.
    near = Replicas.of_owners(owner, parts)
    for _ in range(hops - 1):
        near = near.with_neighbours(stream.chunks(size), directed=True)
    own = [PartEdges(directory, f"own-{part}") for part in range(parts)]
    halo = [PartEdges(directory, f"halo-{part}") for part in range(parts)] if hops > 1 else []
    counts = np.zeros((len(stream.relations), parts), np.int64)
    seen = np.zeros(len(stream.relations), np.int64)
    with ExitStack() as stack:
        files = {edges: {name: stack.enter_context(edges.file(name).open("wb"))
                         for name in COLUMNS} for edges in (*own, *halo)}
        for chunk in stream.chunks(size):
            columns = {"src": numbers.new[chunk.src].astype(np.int64),
                       "dst": numbers.new[chunk.dst].astype(np.int64),
                       "relation": chunk.relation, "owner": owner[chunk.dst]}
            columns["rank"], columns["position"] = _count(chunk.relation, columns["owner"],
                                                          counts, seen)
            for part in range(parts):
                in_part = columns["owner"] == part
                chosen = [(own[part], in_part)]
                if halo:
                    there = near.bits[chunk.dst, part >> 3] & np.uint8(1 << (part & 7)) != 0
                    chosen.append((halo[part], there & ~in_part))
                for edges, mask in chosen:
                    for name, values in columns.items():
                        files[edges][name].write(values[mask].tobytes())
            advance(len(chunk.src))
    return Spooled(own, halo, as_ranges(counts))


@kernel
def _count(relation, owner, counts, seen):
    """Each edge's number among its owner's of the relation, and among all of the relation."""
    rank, position = np.empty(len(owner), np.int64), np.empty(len(owner), np.int64)
    for i in range(len(owner)):
        rank[i] = counts[relation[i], owner[i]]
        counts[relation[i], owner[i]] += 1
        position[i] = seen[relation[i]]
        seen[relation[i]] += 1
    return rank, position
