"""A DistDGL script of the tests, for one process: what it may ask of a graph, and what it may not.

Arguments: part_config, a file for arrays (npz), a file for messages (json).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("DGLBACKEND", "pytorch")

import dgl
import dgl.distributed
import dgl.function as fn
import numpy as np
import torch
from dgl.dataloading import (
    DistEdgeDataLoader,
    DistNodeDataLoader,
    MultiLayerFullNeighborSampler,
    NeighborSampler,
)
from dgl.distributed import graph_services

SEEDS = torch.arange(5, 30)
CHOSEN = {"writes": -1, "rev-writes": 0, "rev-topic": -1, "topic": -1, "cites": 0, "rev-cites": -1,
          "rev-at": -1, "at": 0}


def batch(g: Any, sampler: Any, nids: Any = None, **options: Any) -> Any:
    loader = DistNodeDataLoader(g, {"paper": SEEDS} if nids is None else nids, sampler,
                                batch_size=100, **options)
    return next(iter(loader))


def samples(g: Any, found: dict[str, np.ndarray]) -> None:
    """Edges of batches, by the ids of their ends."""
    for name, sampler in (("full", MultiLayerFullNeighborSampler(2)),
                          ("chosen", NeighborSampler([CHOSEN, CHOSEN])),
                          ("few", NeighborSampler([2, 3]))):
        ids, seeds, blocks = batch(g, sampler)
        found[f"{name}/seeds"] = seeds["paper"].numpy()
        for t, i in ids.items():
            found[f"{name}/ids/{t}"] = i.numpy()
        for layer, block in enumerate(blocks):
            for src, etype, dst in block.canonical_etypes:
                rows, columns = block.edges(etype=(src, etype, dst))
                found[f"{name}/{layer}/{etype}"] = torch.stack([
                    block.srcnodes[src].data[dgl.NID][rows],
                    block.dstnodes[dst].data[dgl.NID][columns]]).numpy()


def attempts(g: Any) -> dict[str, Any]:
    """What cannot be done on a meta-partitioned graph."""
    two = NeighborSampler([2, 2])
    paper = g.nodes["paper"].data

    def update_all() -> None:
        block = batch(g, two)[2][0]
        block.srcnodes["author"].data["h"] = torch.ones(block.num_src_nodes("author"), 2)
        block.update_all(fn.copy_u("h", "m"), fn.sum("m", "h"), etype="writes")

    def write() -> None:
        paper["feat"][torch.arange(2)] = torch.zeros(2, 7)

    return {
        "another sampler": lambda: batch(g, dgl.dataloading.ShaDowKHopSampler([2, 2])),
        "prob": lambda: batch(g, NeighborSampler([2, 2], prob=0.5)),
        "edge_dir": lambda: batch(g, NeighborSampler([2, 2], edge_dir="out")),
        "prefetch": lambda: batch(g, NeighborSampler([2, 2], prefetch_node_feats={
            "paper": ["feat"]}, prefetch_labels={"paper": ["labels"]})),
        "replace": lambda: batch(g, NeighborSampler([2, 2], replace=True)),
        "layers": lambda: batch(g, NeighborSampler([2, 2, 2])),
        "type": lambda: batch(g, two, {"author": SEEDS}),
        "range": lambda: batch(g, two, {"paper": torch.tensor([0, 240])}),
        "device": lambda: batch(g, two, device="cuda"),
        "argument": lambda: batch(g, two, nonsense=1),
        "edges": lambda: DistEdgeDataLoader(g, {"writes": SEEDS}, two, batch_size=2),
        "sample_neighbors": lambda: g.sample_neighbors({"paper": SEEDS}, 2),
        "find_edges": lambda: g.find_edges(torch.arange(2), etype=("author", "writes", "paper")),
        "in_degrees": lambda: graph_services.in_degrees(g, SEEDS),
        "out_degrees": lambda: g.out_degrees(SEEDS),
        "in_subgraph": lambda: dgl.distributed.in_subgraph(g, SEEDS),
        "out-edges": lambda: dgl.distributed.sample_neighbors(g, {"paper": SEEDS}, 2,
                                                              edge_dir="out"),
        "weights": lambda: g.sample_neighbors({"paper": SEEDS}, 2, prob="p"),
        "graphbolt": lambda: dgl.distributed.sample_etype_neighbors(g, {"paper": SEEDS}, 2,
                                                                    use_graphbolt=True),
        "update_all": update_all,
        "write": write,
    }


def main() -> None:
    dgl.distributed.initialize("")
    g = dgl.distributed.DistGraph("academic", part_config=sys.argv[1])
    found: dict[str, np.ndarray] = {}
    samples(g, found)
    np.savez(sys.argv[2], **found)
    messages = {}
    for name, attempt in attempts(g).items():
        try:
            attempt()
            messages[name] = "nothing"
        except Exception as error:
            messages[name] = f"{type(error).__name__}: {error}"
    Path(sys.argv[3]).write_text(json.dumps(messages))


if __name__ == "__main__":
    main()
