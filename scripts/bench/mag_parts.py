"""A user's partitioning script for DistDGL: a synthetic ogbn-mag with the names of DGL's examples.

    python scripts/bench/mag_parts.py --part_method metis --output data/metis
    dgl-heta run scripts/bench/mag_parts.py --part_method meta --output data/meta
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("DGLBACKEND", "pytorch")

import dgl

from dgl_heta.datasets import load_dataset, parse_dataset
from dgl_heta.dgl_partition import to_dgl_graph
from dgl_heta.plugins import plugins


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="synthetic-mag:scale=0.05")
    parser.add_argument("--classes", type=int, default=0, help="fold the labels into so many")
    parser.add_argument("--part_method", default="metis")
    parser.add_argument("--num_parts", type=int, default=2)
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    name, options = parse_dataset(args.dataset)
    graph = to_dgl_graph(load_dataset(plugins().providers("dataset")[name].value, options))
    data = graph.nodes["paper"].data
    data["labels"] = data.pop("label").long()
    if args.classes:
        data["labels"] %= args.classes
    for mask in ("train_mask", "val_mask", "test_mask"):
        data[mask] = data[mask].bool()
    dgl.distributed.partition_graph(graph, "mag", args.num_parts, args.output,
                                    part_method=args.part_method)


if __name__ == "__main__":
    main()
