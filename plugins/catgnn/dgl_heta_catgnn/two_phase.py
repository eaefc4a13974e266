"""2PS-L: clusters first, then edges to one of two parts (Mayer et al., 2022)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from pydantic import Field

from dgl_heta.tools import kernel
from dgl_heta_catgnn.clustering import NONE, degrees, find_clusters
from dgl_heta_catgnn.partitioner import EdgePartitioner, StreamSettings, capacity
from dgl_heta_catgnn.replicas import Replicas, mixed
from dgl_heta_catgnn.streams import Chunk, EdgeStream


class TwoPhaseSettings(StreamSettings):
    """Settings of 2PS-L."""

    passes: int = Field(1, ge=1, description="passes of clustering")


class TwoPhase(EdgePartitioner):
    """Edges within a part's clusters stay there; the others choose between their ends' parts.

    Clusters, of at most 2|E| / p in volume, are dealt to parts by volume, largest first. A first
    pass assigns edges whose ends' clusters are in one part. A second one compares the two parts of
    each edge that is left: a part scores 1 + (1 - d(u) / (d(u) + d(v))) if u is there already,
    likewise for v, plus the share of the end's cluster, whose part it is, in the volume of both.
    The source's part wins if equal. A part that is full at the balance factor gives way to that of
    a hash of the end of higher degree, and a full one again to the least loaded.
    """

    name = "2ps-l"
    description = "2PS-L: edges by clusters found in a stream, between two parts"
    settings: TwoPhaseSettings = TwoPhaseSettings()

    def edges(self, stream: EdgeStream, parts: int, seed: int
              ) -> Iterator[tuple[Chunk, np.ndarray]]:
        settings = self.settings
        degree = degrees(stream, settings.chunk)
        limit = int(degree.sum(dtype=np.int64)) / parts
        clusters = find_clusters(stream, degree, limit, settings.chunk, settings.passes)
        clusters.richest = np.empty(0, clusters.of.dtype)  # SPRING's
        home = _homes(np.argsort(-clusters.volume, kind="stable"), clusters.volume, parts)
        most = capacity(stream.num_edges, parts, settings.balance)
        replicas, load = Replicas(stream.num_nodes, parts), np.zeros(parts, np.int64)
        for last in (False, True):
            for chunk in stream.chunks(settings.chunk):
                yield chunk, _assign(chunk.src, chunk.dst, degree, clusters.of, clusters.volume,
                                    home, replicas.bits, load, most, np.uint64(seed), last)


@kernel
def _homes(order, volume, parts):
    """The part of each cluster: the one with the least volume, the largest clusters first."""
    home, total = np.empty(len(volume), np.int16), np.zeros(parts, np.int64)
    for cluster in order:
        least = np.argmin(total)
        home[cluster] = least
        total[least] += volume[cluster]
    return home


@kernel
def _assign(src, dst, degree, of, volume, home, bits, load, most, seed, last):
    part = np.full(len(src), NONE, np.int16)
    for i in range(len(src)):
        u, v = src[i], dst[i]
        a, b = of[u], of[v]
        one, two = home[a], home[b]
        if (one == two) == last:
            continue  # the other pass has it
        chosen = one
        if last:
            share = degree[u] / (np.int64(degree[u]) + np.int64(degree[v]))
            weight = volume[a] / (volume[a] + volume[b])
            first, second = weight, 1.0 - weight
            for node, gain in ((u, 2.0 - share), (v, 1.0 + share)):
                if (bits[node, one >> 3] >> (one & 7)) & 1:
                    first += gain
                if (bits[node, two >> 3] >> (two & 7)) & 1:
                    second += gain
            if second > first:
                chosen = two
        if load[chosen] >= most:
            node = v if degree[v] > degree[u] else u
            chosen = np.int16(mixed(np.uint64(node) + seed * np.uint64(0x9E3779B97F4A7C15))
                              % np.uint64(len(load)))
        if load[chosen] >= most:
            chosen = np.int16(np.argmin(load))
        bit = np.uint8(1 << (chosen & 7))
        bits[u, chosen >> 3] |= bit
        bits[v, chosen >> 3] |= bit
        load[chosen] += 1
        part[i] = chosen
    return part
