"""A streaming edge partitioner: edges in chunks, two passes, no target, its own number of parts.

Every edge goes to a part by a hash of its source; nodes get new ids, part by part, as DistDGL
numbers them. A part is a file of edges and one of edge data.
"""

from __future__ import annotations

import json

import numpy as np
from pydantic import BaseModel, Field

from dgl_heta import AUTO, PartitionBackend, PartitionResult, as_source, hookimpl


class Settings(BaseModel):
    most_edges: int = Field(100, ge=1, description="edges of a part, where parts are auto")
    chunk: int = Field(16, ge=1, description="edges in memory at a time")


class EdgeStream(PartitionBackend):
    name, description = "edge-stream", "edges by a hash of their source, in a stream"
    needs_target, decides_parts = False, True
    honours = frozenset({"num_hops", "graph_formats", "balance_edges", "shuffle_seed"})
    settings: Settings = Settings()

    def partition(self, source, request, out, *, overwrite=False, progress=None):
        graph = as_source(source)
        total = sum(edges.num_edges for edges in graph.edges.values())
        parts = request.parts
        if parts == AUTO:
            parts = -(-total // self.settings.most_edges)
        out.mkdir(parents=True, exist_ok=overwrite)
        owner = {t: np.arange(n) * 7919 % parts for t, n in graph.node_counts.items()}
        nodes = {t: np.argsort(of, kind="stable") for t, of in owner.items()}
        loads, edge_maps = np.zeros(parts, np.int64), {}
        for relation, edges in graph.edges.items():
            for src, _ in edges.chunks(self.settings.chunk):  # a first pass
                loads += np.bincount(owner[relation.src][src], minlength=parts)
        for number, (relation, edges) in enumerate(graph.edges.items()):
            found, done = [[] for _ in range(parts)], 0
            for src, dst in edges.chunks(self.settings.chunk):  # and a second one
                for part in range(parts):
                    chosen = np.flatnonzero(owner[relation.src][src] == part)
                    found[part].append((src[chosen], dst[chosen], chosen + done))
                done += len(src)
            data = graph.edge_arrays.get(relation, {})
            ids = [np.concatenate([piece[2] for piece in pieces]) for pieces in found]
            for part, pieces in enumerate(found):
                np.savez(out / f"part{part}-{number}.npz",
                         edges=np.concatenate([np.stack(piece[:2]) for piece in pieces], axis=1),
                         **{name: array[ids[part]] for name, array in data.items()})
            edge_maps[relation] = np.concatenate(ids)
        config = out / f"{graph.name}.json"
        config.write_text(json.dumps({
            "graph_name": graph.name, "num_parts": parts, "halo_hops": request.script.num_hops,
            "formats": request.script.graph_formats, "further": dict(request.script.further),
            "chunk": self.settings.chunk}))
        return PartitionResult(config, parts, nodes, edge_maps, {
            "edges": loads.tolist(), "balance": float(loads.max() / loads.mean()),
            "source": "hash"})


@hookimpl
def dgl_heta_partition_backends():
    return [EdgeStream()]
