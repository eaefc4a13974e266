"""A DistDGL script of the tests that reads features batch by batch, and checks every row.

Arguments: --ip-config, --part-config, --out. Feature rows say their own ids and type, so that any
trainer can check what it reads of any graph.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

os.environ.setdefault("DGLBACKEND", "pytorch")

import dgl
import dgl.distributed
import torch

WIDTHS = {"paper": 6, "author": 3}


def rows(ntype: str, ids: torch.Tensor) -> torch.Tensor:
    """The features of nodes: `id + column / 8`, of a type's own sign."""
    sign = 1 if ntype == "paper" else -1
    return sign * (ids.view(-1, 1) + torch.arange(WIDTHS[ntype]) / 8)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--ip-config", "--part-config", "--out"):
        parser.add_argument(name, required=True)
    options = parser.parse_args()
    dgl.distributed.initialize(options.ip_config)
    torch.distributed.init_process_group("gloo")
    name = json.loads(Path(options.part_config).read_text())["graph_name"]
    g = dgl.distributed.DistGraph(name, part_config=options.part_config)
    rank, wrong, found = torch.distributed.get_rank(), 0, {}
    generator = torch.Generator().manual_seed(rank)
    for _ in range(12):
        for ntype in WIDTHS:
            count = g.num_nodes(ntype)
            ids = (torch.rand(200, generator=generator) ** 3 * count).long()
            given = g.nodes[ntype].data["orig"][ids]  # partitioning renumbers nodes
            read = g.nodes[ntype].data["feat"][ids]
            wrong += int((read != rows(ntype, given)).sum())
    assert g.nodes["paper"].data["label"][torch.arange(3)].shape == (3,)
    try:
        g.nodes["paper"].data["feat"][torch.arange(2)] = torch.zeros(2, 6)
        found["message"] = ""
    except Exception as error:
        found["message"] = f"{type(error).__name__}: {error}"
    torch.distributed.barrier()
    (Path(options.out) / f"{rank}.json").write_text(json.dumps({"wrong": wrong, **found}))


if __name__ == "__main__":
    main()
