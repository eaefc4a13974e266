"""A cutter that looks at the edges: destinations, heaviest first, to the lightest piece."""

from __future__ import annotations

import heapq

import numpy as np
from pydantic import BaseModel, Field

from dgl_heta import MetatreeBackend, hookimpl


class Settings(BaseModel):
    chunk: int = Field(1000, ge=1, description="edges in memory at a time")


class HubCut(MetatreeBackend):
    name, description = "hub-cut", "relations cut so that all pieces have as many edges"
    settings: Settings = Settings()

    def assign(self, weights, parts, seed):
        return [list(range(part, len(weights), parts)) for part in range(parts)]

    def deal(self, schema, relations, parts, request):
        """Every relation cut for all partitions."""
        return [[(r, count * part // parts, count * (part + 1) // parts)
                 for r in relations for count in [schema.node_counts[r.dst]]]
                for part in range(parts)]

    def cut(self, source, relation, parts):
        degrees = np.zeros(source.node_counts[relation.dst], np.int64)
        for _, dst in source.edges[relation].chunks(self.settings.chunk):
            degrees += np.bincount(dst, minlength=len(degrees))
        pieces, loads = np.empty(len(degrees), np.int64), [(0, p) for p in range(len(parts))]
        for node in np.argsort(-degrees, kind="stable"):
            load, piece = heapq.heappop(loads)
            pieces[node] = piece
            heapq.heappush(loads, (load + max(int(degrees[node]), 1), piece))
        return pieces


@hookimpl
def dgl_heta_partition_backends():
    return [HubCut()]
