"""A DistDGL script of the tests that asks for degrees, ends of edges and neighbours.

Arguments: --ip-config, --part-config, --out (a directory, where each trainer writes an npz).
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("DGLBACKEND", "pytorch")

import dgl
import numpy as np
import torch

ASKED = ("author", "writes", "paper")


def by_chance(g: Any, seeds: dict[str, torch.Tensor]) -> torch.Tensor:
    """Ids of all in-edges that have a chance."""
    frontier = g.sample_neighbors(seeds, -1, prob="chance")
    g.barrier()
    return frontier.edges[ASKED].data[dgl.EID]


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--ip-config", "--part-config", "--out"):
        parser.add_argument(name, required=True)
    options = parser.parse_args()
    dgl.distributed.initialize(options.ip_config)
    torch.distributed.init_process_group("gloo")
    name = json.loads(Path(options.part_config).read_text())["graph_name"]
    g = dgl.distributed.DistGraph(name, part_config=options.part_config)
    book, found = g.get_partition_book(), {}
    for ntype in g.ntypes:
        nodes = book.map_to_homo_nid(torch.arange(g.num_nodes(ntype)), ntype)
        found[f"in/{ntype}"] = g.in_degrees(nodes)
        found[f"out/{ntype}"] = g.out_degrees(nodes)
    found["ends"] = torch.stack(g.find_edges(torch.arange(g.num_edges(ASKED)), etype=ASKED))
    seeds = {"paper": torch.arange(20)}
    for name, frontier in (
            ("neighbours", g.sample_neighbors(seeds, -1)),
            ("neighbours by the function", dgl.distributed.sample_neighbors(g, seeds, -1))):
        found[name] = torch.stack([*frontier.edges(etype=ASKED),
                                   frontier.edges[ASKED].data[dgl.EID]])
    found["by chance"] = by_chance(g, seeds)
    if torch.distributed.get_rank() == 0:
        every = torch.arange(g.num_edges(ASKED))
        g.edges[ASKED].data["chance"][every] = (every % 3 == 1).float()
    g.barrier()
    found["by what is written"] = by_chance(g, seeds)
    found["numbers"] = torch.tensor([
        g.num_edges(), g.num_edges(ASKED), int(g.in_degrees().sum()), int(g.out_degrees().sum()),
        g.edge_subgraph({ASKED: torch.arange(20)}).num_edges(ASKED)])
    found["few"] = g.sample_neighbors(seeds, 1).in_degrees(
        torch.arange(20), etype=ASKED)
    np.savez(Path(options.out) / f"{torch.distributed.get_rank()}.npz",
             **{key: value.numpy() for key, value in found.items()})
    torch.distributed.barrier()


if __name__ == "__main__":
    main()
