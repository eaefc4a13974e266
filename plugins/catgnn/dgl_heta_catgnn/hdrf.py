"""HDRF: high-degree nodes are replicated first (Petroni et al., 2015)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from pydantic import Field

from dgl_heta.tools import kernel
from dgl_heta_catgnn.partitioner import EdgePartitioner, StreamSettings, capacity
from dgl_heta_catgnn.replicas import Replicas
from dgl_heta_catgnn.streams import Chunk, EdgeStream


class HdrfSettings(StreamSettings):
    """Settings of HDRF."""

    weight: float = Field(1.1, ge=0, allow_inf_nan=False,
                          description="λ, the weight of balance against replication")


class Hdrf(EdgePartitioner):
    """The part with the best score of replication and balance, by the degrees seen so far.

    With θ(u) = d(u) / (d(u) + d(v)), a part scores 1 + (1 - θ(u)) if u is there already, likewise
    for v, plus λ (most - load) / (1 + most - least). The first of equals wins. Parts are full at
    the balance factor, which the paper does not have; it needs the number of edges beforehand.
    """

    name = "hdrf"
    description = "HDRF: edges by replication and balance, hubs replicated first"
    settings: HdrfSettings = HdrfSettings()

    def edges(self, stream: EdgeStream, parts: int, seed: int
              ) -> Iterator[tuple[Chunk, np.ndarray]]:
        settings = self.settings
        most = capacity(stream.num_edges, parts, settings.balance)
        degree = np.zeros(stream.num_nodes, np.uint32)
        replicas, load = Replicas(stream.num_nodes, parts), np.zeros(parts, np.int64)
        for chunk in stream.chunks(settings.chunk):
            yield chunk, _assign(chunk.src, chunk.dst, degree, replicas.bits, load, most,
                                settings.weight)


@kernel
def _assign(src, dst, degree, bits, load, most, weight):
    part = np.empty(len(src), np.int16)
    for i in range(len(src)):
        u, v = src[i], dst[i]
        degree[u] += np.uint32(1)
        degree[v] += np.uint32(1)
        share = degree[u] / (np.int64(degree[u]) + np.int64(degree[v]))
        highest, lowest = load.max(), load.min()
        best, chosen = -1.0, 0
        for p in range(len(load)):
            if load[p] >= most:
                continue
            score = weight * (highest - load[p]) / (1.0 + highest - lowest)
            if (bits[u, p >> 3] >> (p & 7)) & 1:
                score += 2.0 - share
            if (bits[v, p >> 3] >> (p & 7)) & 1:
                score += 1.0 + share
            if score > best:
                best, chosen = score, p
        bit = np.uint8(1 << (chosen & 7))
        bits[u, chosen >> 3] |= bit
        bits[v, chosen >> 3] |= bit
        load[chosen] += 1
        part[i] = chosen
    return part
