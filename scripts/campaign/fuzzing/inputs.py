"""Valid inputs of every kind, each made once, and the commands that read them."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeArrays, GraphSource, Task
from dgl_heta.partition.directory import write_partition
from dgl_heta.planning.making import make_plan

AUTHORS, PAPERS = 7, 12
WRITES, CITES = Relation("author", "writes", "paper"), Relation("paper", "cites", "paper")
BACK = Relation("paper", "rev-writes", "author")
_DRAWN = np.random.default_rng(0)
EDGES = {WRITES: np.stack([np.arange(24) % AUTHORS, np.arange(24) % PAPERS]),
         CITES: np.stack([np.arange(30) % PAPERS, (np.arange(30) * 5 + 1) % PAPERS])}
EDGES[BACK] = EDGES[WRITES][::-1].copy()
ARRAYS = {"feat": _DRAWN.random((PAPERS, 3)).astype(np.float32),
          "label": np.arange(PAPERS) % 3,
          **{mask: np.arange(PAPERS) % 3 == i
             for i, mask in enumerate(("train_mask", "val_mask", "test_mask"))}}
CACHED = ("--set", "model.hidden=4", "--set", "cache.policy=hotness")
COUNTS = {"author": AUTHORS, "paper": PAPERS}


def graph() -> GraphSource:
    return GraphSource("tiny", dict(COUNTS), {r: EdgeArrays(*e) for r, e in EDGES.items()},
                       {"paper": dict(ARRAYS)}, Task("paper", 3))


def edge_files(at: Path) -> None:
    """metadata.json with files of all kinds."""
    for name, array in ARRAYS.items():
        np.save(at / f"{name}.npy", array)
    np.save(at / "cites.npy", EDGES[CITES])
    (at / "writes.csv").write_text("src,dst\n" + _lines(EDGES[WRITES].T))
    (at / "back.csv.gz").write_bytes(gzip.compress(_lines(EDGES[BACK].T).encode()))
    edges = [{**CITES._asdict(), "files": ["cites.npy"]},
             {**WRITES._asdict(), "files": ["writes.csv"]},
             {**BACK._asdict(), "files": ["back.csv.gz"]}]
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        pass
    else:
        pq.write_table(pa.table(dict(zip(("src", "dst"), EDGES[CITES]))), at / "cites.parquet")
        edges[0]["files"] = ["cites.parquet", "cites.npy"]
    (at / "metadata.json").write_text(json.dumps({
        "name": "tiny", "edges": edges, "task": {"target": "paper", "num_classes": 3},
        "nodes": {"author": {"count": AUTHORS}, "paper": {
            "count": PAPERS, "arrays": {name: f"{name}.npy" for name in ARRAYS}}}}))


def labelled(at: Path) -> None:
    """Files of edges and arrays; nothing says what the labels are for."""
    edge_files(at)
    described = json.loads((at / "metadata.json").read_text())
    del described["task"]["num_classes"]
    (at / "metadata.json").write_text(json.dumps(described))


def hetero_data(at: Path) -> None:
    """A HeteroData as torch.save writes it."""
    import torch
    from torch_geometric.data import HeteroData

    data = HeteroData({"author": {"num_nodes": AUTHORS}, "paper": {
        "x": torch.from_numpy(ARRAYS["feat"]), "y": torch.from_numpy(ARRAYS["label"]),
        **{name: torch.from_numpy(array) for name, array in ARRAYS.items() if "mask" in name}}})
    for relation, edges in EDGES.items():
        data[tuple(relation)].edge_index = torch.from_numpy(edges)
    torch.save(data, at / "data.pt")


def tables(at: Path) -> None:
    """Tables with ids of their own, columns that become features, and a split by time."""
    (at / "papers.csv").write_text("id,year,venue,title,kind,when\n" + "".join(
        f"p{i},{2000 + i},v{i % 3},a title of {i},k{i % 3},2024-03-{i + 1} {i}:30+01:00\n"
        for i in range(PAPERS)))
    (at / "writes.csv").write_text("src,dst,role\n" + "".join(
        f"a{author},p{paper},r{author % 2}\n" for author, paper in EDGES[WRITES].T))
    _describe(at, "papers.csv", "writes.csv", {"year": "number:indicator"})


def columns(at: Path) -> None:
    """The same in Parquet and Arrow, with columns of more types."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = range(PAPERS)
    pq.write_table(pa.table({
        "id": pa.array([bytes([i]) * 16 for i in rows], pa.binary(16)),
        "year": pa.array(rows, pa.decimal128(9, 2)),
        "venue": pa.array([f"v{i % 3}" for i in rows]).dictionary_encode(),
        "title": pa.array([f"a title of {i}, and long" for i in rows], pa.string_view()),
        "kind": [f"k{i % 3}" for i in rows],
        "list": pa.array([[i, None] for i in rows], pa.list_(pa.float32())),
        "fixed": pa.array([[i, 1] for i in rows], pa.list_(pa.float64(), 2)),
        "when": pa.array(rows, pa.timestamp("ms", "UTC"))}), at / "papers.parquet",
        row_group_size=5)
    authors, papers = EDGES[WRITES].tolist()
    writes = pa.table({
        "src": pa.array([f"author {i}, and long" for i in authors], pa.string_view()),
        "dst": [bytes([i]) * 16 for i in papers],
        "role": pa.array([f"r{i % 2}" for i in authors]).dictionary_encode()})
    with pa.ipc.new_file(str(at / "writes.arrow"), writes.schema) as file:
        file.write_table(writes)
    _describe(at, "papers.parquet", "writes.arrow", {
        "year": "number", "list": "vector:indicator", "fixed": "number"})


def _describe(at: Path, papers: str, writes: str, features: dict[str, str]) -> None:
    (at / "metadata.json").write_text(json.dumps({
        "name": "tiny", "edges": [{"src": "author", "etype": {"column": "role"}, "dst": "paper",
                                   "files": [writes], "columns": ["src", "dst"]}],
        "nodes": {"author": {}, "paper": {"table": papers, "id": "id", "features": {
            **features, "venue": "category", "title": "text"}}},
        "task": {"target": "paper", "label": "kind", "split": {"ratios": [0.6, 0.2, 0.2],
                                                               "time": "when"}}}))


def bombs(at: Path) -> None:
    """A table of few bytes with many rows, as edges."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = pa.table({name: np.zeros(1 << 20, np.int64) for name in ("src", "dst")})
    with pq.ParquetWriter(at / "writes.parquet", rows.schema, compression="zstd") as parquet:
        for _ in range(300):
            parquet.write_table(rows)
    (at / "metadata.json").write_text(json.dumps({
        "name": "tiny", "edges": [{**WRITES._asdict(), "files": ["writes.parquet"]}],
        "nodes": {"author": {"count": AUTHORS}, "paper": {"count": PAPERS}}}))


def graphbolt(at: Path) -> None:
    """metadata.yaml, arrays of NumPy and of torch."""
    import torch

    (at / "data").mkdir()
    np.save(at / "data/seeds.npy", np.arange(PAPERS))
    torch.save(torch.arange(PAPERS) % 3, at / "data/labels.pt")
    torch.save(torch.from_numpy(ARRAYS["feat"]), at / "data/feat.pt")
    edges = []
    for number, (relation, pairs) in enumerate(EDGES.items()):
        name = f"data/{number}.{'csv' if number else 'npy'}"
        if number:
            (at / name).write_text(_lines(pairs.T))
        else:
            np.save(at / name, pairs)
        edges.append({"type": ":".join(relation), "format": "csv" if number else "numpy",
                      "path": name})
    (at / "metadata.yaml").write_text(json.dumps({
        "dataset_name": "tiny", "graph": {"edges": edges, "nodes": [
            {"type": t, "num": n} for t, n in COUNTS.items()]},
        "feature_data": [{"domain": "node", "type": "paper", "name": "feat", "format": "torch",
                          "path": "data/feat.pt"}],
        "tasks": [{"name": "node_classification", "num_classes": 3, "train_set": [
            {"type": "paper", "data": [
                {"name": "seed_nodes", "format": "numpy", "path": "data/seeds.npy"},
                {"name": "labels", "format": "torch", "path": "data/labels.pt"}]}]}]}))


def ogb(at: Path) -> None:
    """ogbn-mag's layout, with few nodes."""
    raw, split = at / "ogbn_mag/raw", at / "ogbn_mag/split/time"

    def save(path: Path, rows: Any, header: str = "") -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress((header + _lines(rows)).encode()))

    save(raw / "num-node-dict.csv.gz", [[AUTHORS, PAPERS]], "author,paper\n")
    save(raw / "triplet-type-list.csv.gz", [list(WRITES), list(CITES)])
    for relation in (WRITES, CITES):
        folder = raw / "relations" / "___".join(relation)
        save(folder / "edge.csv.gz", EDGES[relation].T)
        save(folder / "num-edge-list.csv.gz", [[EDGES[relation].shape[1]]])
        save(folder / "edge_reltype.csv.gz", [[0]] * EDGES[relation].shape[1])
    save(raw / "node-feat/paper/node-feat.csv.gz", ARRAYS["feat"])
    save(raw / "node-feat/paper/node_year.csv.gz", ARRAYS["label"][:, None] + 2010)
    save(raw / "nodetype-has-label.csv.gz", [["False", "True"]], "author,paper\n")
    save(raw / "node-label/paper/node-label.csv.gz", ARRAYS["label"][:, None])
    save(split / "nodetype-has-split.csv.gz", [["False", "True"]], "author,paper\n")
    for name, mask in zip(("train", "valid", "test"), ("train_mask", "val_mask", "test_mask")):
        save(split / f"paper/{name}.csv.gz", np.nonzero(ARRAYS[mask])[0][:, None])
    (at / "ogbn_mag/RELEASE_v2.txt").write_text("release\n")


def partition(at: Path) -> None:
    """A store with a plan over it."""
    source = graph()
    write_partition(source, make_plan(source.schema(), "paper", hops=2, parts=2), at / "data")


def settings(at: Path) -> None:
    """A schema, metapaths, settings, a cluster, hosts: what a plan or a launch reads."""
    (at / "schema.json").write_text(json.dumps(graph().schema().to_json()))
    (at / "metapaths.json").write_text(json.dumps(
        [[list(WRITES)], ["cites"], [list(BACK), list(WRITES)]]))
    (at / "heta.toml").write_text("[partition]\nparts = 2\nmethod = 'meta'\n[model]\nlayers = 2\n"
                                  "name = 'rgcn'\nhidden = 8\n[train]\nfanouts = [2, 3]\n"
                                  "lr = 0.01\n[task]\ntargets = ['paper']\n[cache]\n"
                                  "capacity_mb = 1.0\n[run]\nprove = 'off'\n")
    (at / "cluster.toml").write_text("machines = 2\ncores = 4\nlink_gbit = 10\nmemory_gb = 8.0\n"
                                     "trainers = 1\nlatency_us = 50.0\nspeed = 1.0\n"
                                     "metis_cut = 0.2\ngpu = 'h100'\n")
    (at / "cluster.json").write_text(json.dumps({
        "machines": 2, "link_gbit": 10.0, "coefficients": "coefficients.json",
        "gpu": {"memory_gb": 8.0, "memory_bandwidth": 300.0, "host_bandwidth": 8.0, "tflops": 10.0,
                "bf16_tflops": 40.0, "launch_us": 5.0}}))
    (at / "coefficients.json").write_text(
        (Path(__file__).parents[3] / "dgl_heta/planning/coefficients.json").read_text())
    (at / "ip_config.txt").write_text("10.0.0.1 30050\n10.0.0.2\n")
    (at / "part.json").write_text(json.dumps({"graph_name": "tiny", "num_parts": 2, "part-0": {}}))
    (at / "train.py").write_text("")


def saved_by_dgl(at: Path) -> None:
    """A graph in DGL's own format, as dgl-heta-hifuse reads it."""
    import dgl
    import torch

    made = dgl.heterograph({tuple(r): tuple(map(torch.from_numpy, np.ascontiguousarray(e)))
                            for r, e in EDGES.items() if r != BACK}
                           | {("author", "at", "Personen"): ([0, 1, 2], [0, 1, 2])})
    made.nodes["Personen"].data["label"] = torch.tensor([0, 1, 2])
    made.nodes["Personen"].data["train_mask"] = torch.tensor([1, 1, 0])
    dgl.save_graphs(str(at / "aifb-hetero_dgl_graph.bin"), [made])


def parts(at: Path) -> None:
    """What DistDGL's partition_graph writes, with the original ids kept as GraphStorm does."""
    import dgl
    import torch

    made = dgl.heterograph({tuple(r): tuple(map(torch.from_numpy, np.ascontiguousarray(e)))
                            for r, e in EDGES.items()}, COUNTS)
    for name, array in ARRAYS.items():
        made.nodes["paper"].data[name] = torch.from_numpy(np.ascontiguousarray(array))
    with contextlib.redirect_stdout(io.StringIO()):
        dgl.seed(1)
        mapping = dgl.distributed.partition_graph(
            made, "g", 1, str(at / "parts"), part_method="random", return_mapping=True)
    for name, ids in zip(("node_mapping.pt", "edge_mapping.pt"), mapping):
        torch.save(ids, at / "parts" / name)


def run(at: Path, call: Callable[[Sequence[str]], Any]) -> None:
    """A finished training; `call` runs a command in `at`."""
    partition(at)
    call(["train", "data", "--run-dir", "run", "--set", "train.epochs=1", "--set",
          "model.hidden=4", "--set", "run.prove=off"])
    if not (at / "run/model.json").is_file():
        raise subprocess.SubprocessError("the training that is to be damaged did not end")


def profiled(at: Path, call: Callable[[Sequence[str]], Any]) -> None:
    """A partition with a profile; `call` runs a command in `at`."""
    partition(at)
    call(["profile", "data", "--out", "prof", *CACHED])


def _lines(rows: Any) -> str:
    return "".join(",".join(str(x) for x in row) + "\n" for row in rows)
