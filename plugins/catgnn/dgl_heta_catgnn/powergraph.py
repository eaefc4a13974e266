"""PowerGraph's greedy vertex cut (Gonzalez et al., 2012, §5.2)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dgl_heta.tools import kernel
from dgl_heta_catgnn.clustering import degrees
from dgl_heta_catgnn.partitioner import EdgePartitioner, capacity
from dgl_heta_catgnn.replicas import Replicas
from dgl_heta_catgnn.streams import Chunk, EdgeStream


class PowerGraph(EdgePartitioner):
    """Where both ends are; else where the end with more edges to come is; else the least loaded.

    1. Parts that both ends are on; 2. where both are somewhere, those of the end with more edges
    still to be assigned (the source, if equal); 3. those of the only end that is somewhere; 4. all.
    Of these the least loaded, the first of equals. Degrees, to know what is to come, cost a pass.

    Parts are full at the balance factor, and rules pass over them. The paper has no such limit, but
    without one a stream in which every edge touches an earlier one goes to one part as a whole.
    """

    name = "powergraph"
    description = "PowerGraph: greedy, edges to where their ends are"

    def edges(self, stream: EdgeStream, parts: int, seed: int
              ) -> Iterator[tuple[Chunk, np.ndarray]]:
        left = degrees(stream, self.settings.chunk)
        most = capacity(stream.num_edges, parts, self.settings.balance)
        replicas, load = Replicas(stream.num_nodes, parts), np.zeros(parts, np.int64)
        for chunk in stream.chunks(self.settings.chunk):
            yield chunk, _assign(chunk.src, chunk.dst, left, replicas.bits, load, most)


@kernel
def _least(first, second, mode, load, most):
    """The least loaded part in both sets (0), in the first (1), or at all (2); -1 if none."""
    best = -1
    for p in range(len(load)):
        if load[p] >= most or (best >= 0 and load[p] >= load[best]):
            continue
        one = (first[p >> 3] >> (p & 7)) & 1
        two = (second[p >> 3] >> (p & 7)) & 1
        if mode == 2 or (one and (mode == 1 or two)):
            best = p
    return best


@kernel
def _assign(src, dst, left, bits, load, most):
    part = np.empty(len(src), np.int16)
    for i in range(len(src)):
        u, v = src[i], dst[i]
        if left[u] < left[v]:
            u, v = v, u
        chosen = _least(bits[u], bits[v], 0, load, most)
        if chosen < 0:
            chosen = _least(bits[u], bits[v], 1, load, most)
        if chosen < 0:
            chosen = _least(bits[v], bits[u], 1, load, most)
        if chosen < 0:
            chosen = _least(bits[u], bits[v], 2, load, most)
        bit = np.uint8(1 << (chosen & 7))
        bits[u, chosen >> 3] |= bit
        bits[v, chosen >> 3] |= bit
        load[chosen] += 1
        part[i] = chosen
        if u != v:
            left[u] -= np.uint32(1)
            left[v] -= np.uint32(1)
    return part
