"""Stream partitioners: partition backends that see their graph as an edge stream.

One's own derives from :class:`NodePartitioner` and says the part of each node, or from
:class:`EdgePartitioner` and says the part of each edge. The rest follows from it: who owns a
training node, its full neighbour list, figures, files.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from pydantic import BaseModel, Field

from dgl_heta import (
    AUTO,
    GraphSource,
    InputError,
    PartitionBackend,
    PartitionRequest,
    PartitionResult,
    Store,
    as_source,
)
from dgl_heta.tools import section_name
from dgl_heta_catgnn.memory import EDGE_BYTES, Footprint, choose_parts, footprint, row_bytes
from dgl_heta_catgnn.memory import MOST_PARTS as MOST
from dgl_heta_catgnn.replicas import Replicas
from dgl_heta_catgnn.streams import CHUNK, Chunk, EdgeStream

MOST_PARTS = 2**15 - 1


class StreamSettings(BaseModel):
    """Options of every stream partitioner."""

    balance: float = Field(1.05, ge=1, allow_inf_nan=False, description="balance factor β: "
                           "nodes (of partitioners of edges: edges) of a partition, in shares of "
                           "an even one")
    chunk: int = Field(CHUNK, ge=1, description="edges in memory at a time")
    hops: int = Field(1, ge=1, description="hops of neighbours that a part has around its own "
                      "nodes; a script's num_hops, if larger")
    memory: int | None = Field(None, gt=0, description="bytes that a worker may use in training: "
                               "decides the number of parts with --parts auto; --memory-mb wins")
    training: float = Field(3.0, ge=1, allow_inf_nan=False, description="what training on a part "
                            "takes, in multiples of its graph and features (CATGNN, §3.4)")


@dataclass(frozen=True)
class Assignment:
    """The decision of the first stream.

    Attributes
    ----------
    parts : partitions.
    owner : the partition that trains on a node, int16 (nodes,). Every node has one owner.
    replicas : where nodes are before neighbour lists are completed.
    edges : edges of each partition, int64 (parts,), where edges were assigned.
    figures : what the partitioner tells of itself, by name.
    """

    parts: int
    owner: np.ndarray
    replicas: Replicas
    edges: np.ndarray | None
    figures: dict[str, float]

    def owned(self) -> np.ndarray:
        """Nodes that each partition owns, int64 (parts,)."""
        return np.bincount(self.owner, minlength=self.parts)

    def complete(self, stream: EdgeStream, *, hops: int = 1, training: np.ndarray | None = None,
                 size: int = CHUNK) -> Replicas:
        """Where nodes are after the second stream: whole neighbour lists where a node is owned.

        Edges that an EdgePartitioner assigned stay where they are (CATGNN, §3.2), so their ends
        count, too. An edge counts in both directions.

        Parameters
        ----------
        stream : the same edges again; a pass for each hop.
        hops : hops of neighbours; 0 leaves neighbour lists as the first stream has torn them.
        training : which nodes need their neighbours, bool (nodes,); None: all.
        """
        near = Replicas.of_owners(self.owner, self.parts, training)
        for _ in range(hops):
            near = near.with_neighbours(stream.chunks(size))
        return self.replicas.union(near)


class StreamPartitioner(PartitionBackend):
    """A partition backend over an edge stream; see the two classes below."""

    needs_target = False
    honours = frozenset({"num_hops", "graph_formats"})
    decides_parts = True
    settings: StreamSettings = StreamSettings()
    name = ""
    description = ""

    @abstractmethod
    def assign(self, stream: EdgeStream, parts: int, seed: int = 0) -> Assignment:
        """Read the stream, once or more, and say who owns which node.

        Raises
        ------
        InputError
            Too few or too many parts, or what the stream finds wrong.
        """

    def partition(self, source: GraphSource | Store, request: PartitionRequest, out: Path, *,
                  overwrite: bool = False, progress: Callable[[str, float], None] | None = None
                  ) -> PartitionResult:
        """Write parts in DistDGL's format: who owns a node has all its in-edges.

        Raises
        ------
        InputError
            The graph or the request is wrong, or asks for what only meta-partitioning has; the
            graph has times.
        """
        from dgl_heta_catgnn.parts import write_parts

        auto = request.parts == AUTO
        for what, given in (("replication", request.replication), ("metapaths", request.metapaths),
                            ("memory limit", None if auto else request.memory_limit),
                            ("cut of relations", request.cutter)):
            if given:
                raise InputError(f"method '{self.name}' knows no {what}, which goes with "
                                 "meta-partitioning; leave it out, or use method meta"
                                 + " (a memory limit goes with --parts auto, too)"
                                 * (what == "memory limit"))
        graph, progress = as_source(source), progress or (lambda what, done: None)
        graph.check_untimed(f"method '{self.name}' goes")
        hops = max(self.settings.hops, request.script.num_hops)
        chosen = None
        if auto:
            chosen = self.fitting(graph, request.memory_limit or self.settings.memory, hops,
                                  request.seed, lambda parts: progress(
                                      f"trying {parts} parts", 0.0))
            request = replace(request, parts=chosen.parts)
        check(request.parts, self.settings)
        written = write_parts(self, graph, request, out, hops=hops, overwrite=overwrite,
                              progress=progress)
        if chosen is None:
            return written
        return replace(written, statistics={**written.statistics,
                                            "estimated_bytes": chosen.bytes.tolist()})

    def fitting(self, source: GraphSource, limit: int | None, hops: int, seed: int = 0,
                trying: Callable[[int], None] = lambda parts: None) -> Footprint:
        """The number of parts that a limit of bytes asks for, with what each is estimated to take.

        Raises
        ------
        InputError
            There is no limit, or it is too small; then the message names the smallest.
        """
        if limit is None:
            raise InputError("parts is auto, which needs the bytes that a worker may use; give "
                             f"--memory-mb, or plugins.{section_name(self.name)}.memory")
        stream, rows = EdgeStream.of_graph(source), row_bytes(source)

        def measure(parts: int) -> Footprint:
            trying(parts)
            return footprint(self.assign(stream, parts, seed), stream, rows, hops,
                             self.settings.training, self.settings.chunk)

        total = self.settings.training * (int(rows.sum()) + EDGE_BYTES * stream.num_edges)
        return choose_parts(measure, int(total), limit, min(MOST, max(len(rows), 1)))


class NodePartitioner(StreamPartitioner):
    """A partitioner of nodes: every node is in one part, and edges are cut."""

    @abstractmethod
    def nodes(self, stream: EdgeStream, parts: int, seed: int) -> np.ndarray:
        """The part of each node, integers (nodes,).

        `stream.chunks(self.settings.chunk)` is a pass over the edges; there may be several.
        """

    def assign(self, stream: EdgeStream, parts: int, seed: int = 0) -> Assignment:
        check(parts, self.settings)
        owner = _parts(self.nodes(stream, parts, seed), stream.num_nodes, parts, self.name, "node")
        owner = owner.astype(np.int16, copy=False)
        return Assignment(parts, owner, Replicas.of_owners(owner, parts), None, self.figures())

    def figures(self) -> dict[str, float]:
        """Return figures about the last assignment, by name."""
        return {}


class EdgePartitioner(StreamPartitioner):
    """A partitioner of edges: every edge is in one part, and nodes are replicated (vertex cut)."""

    @abstractmethod
    def edges(self, stream: EdgeStream, parts: int, seed: int
              ) -> Iterator[tuple[Chunk, np.ndarray]]:
        """Yield each chunk with the part of each of its edges, integers (edges,).

        -1 leaves an edge to a later pass, whose chunks are then yielded, too. Every edge gets a
        part once.
        """

    def assign(self, stream: EdgeStream, parts: int, seed: int = 0) -> Assignment:
        check(parts, self.settings)
        replicas, loads = Replicas(stream.num_nodes, parts), np.zeros(parts, np.int64)
        for chunk, part in self.edges(stream, parts, seed):
            part = _parts(part, len(chunk.src), parts, self.name, "edge", least=-1)
            replicas.add(chunk, part)
            loads += np.bincount(part[part >= 0], minlength=parts)
        if loads.sum() != stream.num_edges:
            raise InputError(f"method '{self.name}' has assigned {loads.sum()} edges of "
                             f"{stream.num_edges}; every edge must be assigned once")
        return Assignment(parts, replicas.owners(seed), replicas, loads, {})


def check(parts: int, settings: StreamSettings) -> None:
    """Refuse numbers of partitions and balance factors that nothing can be done with."""
    if not 1 <= parts <= MOST_PARTS:
        raise InputError(f"the number of partitions is {parts}; it must be from 1 to {MOST_PARTS}")
    if not 1 <= settings.balance < math.inf:  # also NaN; a copied model may not have been checked
        raise InputError(f"the balance factor is {settings.balance}; it must be a number from "
                         "1 on")


def capacity(total: int, parts: int, balance: float) -> int:
    """The most that a part may hold: `balance` even shares, and so much that all fits."""
    return max(math.floor(balance * total / parts), -(-total // parts), 1)


def _parts(part: np.ndarray, count: int, parts: int, name: str, what: str, least: int = 0
           ) -> np.ndarray:
    """The array of parts that a plugin has made, checked."""
    part = np.asarray(part)
    if part.shape != (count,) or part.dtype.kind not in "iu":
        raise InputError(f"method '{name}' gave parts of shape {part.shape} and type {part.dtype}; "
                         f"it must give one whole number for each of {count} {what}s")
    if count and not least <= part.min() <= part.max() < parts:
        raise InputError(f"method '{name}' gave {what}s to parts {part.min()} to {part.max()}; "
                         f"there are parts 0 to {parts - 1}")
    return part
