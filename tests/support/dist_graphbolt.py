"""A DistDGL script of the tests that asks for GraphBolt and samples a neighbourhood.

Arguments: --ip-config, --part-config.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

os.environ.setdefault("DGLBACKEND", "pytorch")

import dgl
import torch


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--ip-config", "--part-config"):
        parser.add_argument(name, required=True)
    options = parser.parse_args()
    dgl.distributed.initialize(options.ip_config, use_graphbolt=True)
    name = json.loads(Path(options.part_config).read_text())["graph_name"]
    g = dgl.distributed.DistGraph(name, part_config=options.part_config)
    found = dgl.distributed.sample_etype_neighbors(g, {"paper": torch.arange(5)}, -1,
                                                   use_graphbolt=True)
    print(f"{type(g._g).__name__} gave {found.num_edges() > 0}", flush=True)


if __name__ == "__main__":
    main()
