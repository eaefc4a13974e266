"""A user's partitioning script for DistDGL, for any of the data sets that dgl-heta knows.

    python scripts/bench/systems/distdgl/parts.py --part_method metis --output data/metis
    dgl-heta run scripts/bench/systems/distdgl/parts.py --part_method meta --output data/meta

The labels of the target are named as in DGL's examples. The last line printed is a JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import time

os.environ.setdefault("DGLBACKEND", "pytorch")

import dgl
import dgl.distributed

from dgl_heta.graph.datasets import load_dataset
from dgl_heta.hooks.manager import plugins
from dgl_heta.partition.backends.dgl_methods import to_dgl_graph


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="synthetic-mag:scale=0.05")
    parser.add_argument("--name", default="mag", help="of the graph")
    parser.add_argument("--classes", type=int, default=0, help="fold the labels into so many")
    parser.add_argument("--part_method", default="metis")
    parser.add_argument("--objtype", default="cut", help="what METIS minimises: cut or vol")
    parser.add_argument("--num_parts", type=int, default=2)
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    name, _, options = args.dataset.partition(":")
    source = load_dataset(plugins().get("dataset", name), options)
    graph = to_dgl_graph(source)
    (target,) = [t for t in graph.ntypes if "train_mask" in graph.nodes[t].data]
    data = graph.nodes[target].data
    data["labels"] = data.pop("label").long()
    if args.classes:
        data["labels"] %= args.classes
    for mask in ("train_mask", "val_mask", "test_mask"):
        data[mask] = data[mask].bool()
    started = time.perf_counter()
    dgl.distributed.partition_graph(
        graph, args.name, args.num_parts, args.output, part_method=args.part_method,
        **({"objtype": args.objtype} if args.objtype != "cut" else {}))
    print(json.dumps({"seconds": time.perf_counter() - started, "target": target,
                      "classes": int(data["labels"].max()) + 1}))


if __name__ == "__main__":
    main()
