"""Partition a synthetic graph for GraphLearn-for-PyTorch, by its random partitioner.

Two steps, because GraphLearn needs a newer PyTorch than DGL has, in an environment of its own:

    python scripts/bench/systems/graphlearn/parts.py export synthetic-donor:scale=0.08 DIR
    GRAPHLEARN_PYTHON scripts/bench/systems/graphlearn/parts.py partition DIR OUT --parts 2

The first writes plain .npy files and a manifest.json; the second what train.py reads. Edges go with
their destination, so that a trainer finds the in-edges of its own nodes at home.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path

import numpy as np


def export(dataset: str, out: Path) -> None:
    """Edges, features of all types, labels and training nodes of one of dgl-heta's data sets."""
    from dgl_heta.graph.datasets import load_dataset
    from dgl_heta.hooks.manager import plugins
    from dgl_heta.partition.backends.dgl_methods import to_dgl_graph

    name, _, options = dataset.partition(":")
    graph = to_dgl_graph(load_dataset(plugins().get("dataset", name), options))
    (target,) = [t for t in graph.ntypes if "train_mask" in graph.nodes[t].data]
    without = [t for t in graph.ntypes if "feat" not in graph.nodes[t].data]
    if without:
        raise SystemExit(f"error: {', '.join(without)} of {dataset} have no features; GraphLearn "
                         "has no learnable ones")
    out.mkdir(parents=True, exist_ok=True)
    for place, etype in enumerate(graph.canonical_etypes):
        np.save(out / f"edges_{place}.npy", np.stack([x.numpy() for x in graph.edges(etype=etype)]))
    for t in graph.ntypes:
        np.save(out / f"feat_{t}.npy", graph.nodes[t].data["feat"].float().numpy())
    data = graph.nodes[target].data
    np.save(out / "labels.npy", data["label"].long().numpy())
    np.save(out / "train.npy", data["train_mask"].bool().nonzero().flatten().numpy())
    (out / "manifest.json").write_text(json.dumps({
        "node_types": {t: graph.num_nodes(t) for t in graph.ntypes}, "target": target,
        "edges": graph.canonical_etypes, "classes": int(data["label"].max()) + 1,
        "widths": {t: graph.nodes[t].data["feat"].shape[1] for t in graph.ntypes}}))


def partition(source: Path, out: Path, parts: int) -> None:
    """GraphLearn's random partition, and each trainer's training nodes, as many for each."""
    import graphlearn_torch as glt
    import torch

    manifest = json.loads((source / "manifest.json").read_text())
    torch.manual_seed(0)
    started = time.perf_counter()

    def read(name: str) -> torch.Tensor:
        return torch.from_numpy(np.load(source / f"{name}.npy"))

    shutil.rmtree(out, ignore_errors=True)  # GraphLearn appends to what it finds
    out.mkdir(parents=True)
    glt.partition.RandomPartitioner(
        output_dir=str(out), num_parts=parts, num_nodes=manifest["node_types"],
        edge_index={tuple(e): read(f"edges_{i}") for i, e in enumerate(manifest["edges"])},
        node_feat={t: read(f"feat_{t}") for t in manifest["node_types"]},
        node_feat_dtype=torch.float32, edge_assign_strategy="by_dst",
        chunk_size=100_000).partition()
    torch.save(read("labels"), out / "labels.pt")
    book = torch.load(out / "node_pb" / f"{manifest['target']}.pt")
    train = read("train")
    train = train[book[train].argsort(stable=True)]
    for part, ids in enumerate(train[:len(train) // parts * parts].chunk(parts)):
        torch.save(ids.clone(), out / f"train_{part}.pt")  # nearly all of its own part
    shutil.copy(source / "manifest.json", out)
    print(json.dumps({"seconds": time.perf_counter() - started}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("export")
    one.add_argument("dataset")
    one.add_argument("out", type=Path)
    two = commands.add_parser("partition")
    two.add_argument("source", type=Path)
    two.add_argument("out", type=Path)
    two.add_argument("--parts", type=int, default=2)
    args = parser.parse_args()
    if args.command == "export":
        export(args.dataset, args.out)
    else:
        partition(args.source, args.out, args.parts)


if __name__ == "__main__":
    main()
