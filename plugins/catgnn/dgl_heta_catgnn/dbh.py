"""DBH: degree-based hashing (Xie et al., 2014), also known as Libra."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dgl_heta.tools import kernel
from dgl_heta_catgnn.clustering import degrees
from dgl_heta_catgnn.partitioner import EdgePartitioner
from dgl_heta_catgnn.replicas import mixed
from dgl_heta_catgnn.streams import Chunk, EdgeStream


class Dbh(EdgePartitioner):
    """An edge goes where its end of lower degree is hashed to, so that hubs are cut.

    Degrees cost a pass. Of two ends with one degree the lower id counts, so that both directions
    of an edge go to one part. It keeps no state, and balance is what the hash gives.
    """

    name = "dbh"
    description = "DBH: edges by a hash of their end of lower degree"

    def edges(self, stream: EdgeStream, parts: int, seed: int
              ) -> Iterator[tuple[Chunk, np.ndarray]]:
        degree = degrees(stream, self.settings.chunk)
        for chunk in stream.chunks(self.settings.chunk):
            yield chunk, _assign(chunk.src, chunk.dst, degree, np.uint64(parts), np.uint64(seed))


@kernel
def _assign(src, dst, degree, parts, seed):
    part = np.empty(len(src), np.int16)
    for i in range(len(src)):
        low, high = min(src[i], dst[i]), max(src[i], dst[i])
        node = high if degree[high] < degree[low] else low
        part[i] = np.int16(mixed(np.uint64(node) + seed * np.uint64(0x9E3779B97F4A7C15)) % parts)
    return part
