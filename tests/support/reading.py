"""The graph that the readers' tests read, in its forms."""

from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeSource, GraphSource, Task

ROOT = Path(__file__).resolve().parents[2]
WRITES = Relation("author", "writes", "paper")
CITES = Relation("paper", "cites", "paper")
AUTHORS, PAPERS, CLASSES = 7, 5, 3
EDGES = {
    WRITES: np.array([[0, 1, 2, 3, 4, 5, 6, 6], [0, 1, 2, 3, 4, 0, 1, 2]]),
    CITES: np.array([[0, 1, 4, 4], [1, 2, 0, 0]]),
}
FEAT = np.arange(PAPERS * 2, dtype=np.float32).reshape(PAPERS, 2) / 4
LABEL = np.array([2, 0, 1, 1, 0])
SPLIT = {"train": [0, 1], "valid": [2], "test": [3, 4]}
MASKS = {"train_mask": [1, 1, 0, 0, 0], "val_mask": [0, 0, 1, 0, 0], "test_mask": [0, 0, 0, 1, 1]}


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def collect(source: EdgeSource, size: int = 1 << 20) -> np.ndarray:
    chunks = list(source.chunks(size))
    for src, dst in chunks:
        assert len(src) == len(dst) <= size
        assert {src.dtype.kind, dst.dtype.kind} <= {"i", "u"}
    if not chunks:
        return np.empty((2, 0), np.int64)
    return np.stack([np.concatenate(side).astype(np.int64) for side in zip(*chunks)])


def check_mag(source: GraphSource, label: str = "label") -> None:
    """The graph of the constants above, whatever it was read from."""
    assert source.node_counts == {"author": AUTHORS, "paper": PAPERS}
    for relation, edges in EDGES.items():
        assert source.edges[relation].num_edges == edges.shape[1]
        np.testing.assert_array_equal(collect(source.edges[relation]), edges)
        np.testing.assert_array_equal(collect(source.edges[relation], 3), edges)
    paper = source.node_arrays["paper"]
    np.testing.assert_array_equal(paper["feat"], FEAT)
    assert paper["feat"].dtype == np.float32
    for name, mask in MASKS.items():
        assert paper[name].dtype == np.bool_
        np.testing.assert_array_equal(paper[name], np.array(mask, bool))
    np.testing.assert_array_equal(paper[label], LABEL)
    assert source.task == Task("paper", CLASSES, label)
    assert source.schema().feature_bytes == {"paper": 8}
    json.dumps(source.info)


# --- edge files ----------------------------------------------------------------------------


def write_edge_files(directory: Path, **changes) -> Path:
    """A directory in the format of the edge files reader; `changes` replace metadata entries."""
    for folder in ("edges", "nodes"):
        (directory / folder).mkdir(parents=True, exist_ok=True)
    np.save(directory / "edges/cites.npy", EDGES[CITES].astype(np.int32))
    np.save(directory / "edges/writes-0.npy", EDGES[WRITES][:, :3])
    with gzip.open(directory / "edges/writes-1.csv.gz", "wt") as file:
        file.write("author,paper\n" + "".join(f"{u},{v}\n" for u, v in EDGES[WRITES][:, 3:5].T))
    np.save(directory / "edges/src.npy", EDGES[WRITES][0, 5:])
    np.save(directory / "edges/dst.npy", EDGES[WRITES][1, 5:])
    np.save(directory / "nodes/feat.npy", FEAT)
    np.save(directory / "nodes/label.npy", LABEL)
    for name, mask in MASKS.items():
        np.save(directory / f"nodes/{name}.npy", np.array(mask, np.uint8))
    arrays = {name: f"nodes/{name}.npy" for name in ("feat", "label", *MASKS)}
    metadata = {
        "name": "tiny",
        "nodes": {"author": {"count": AUTHORS}, "paper": {"count": PAPERS, "arrays": arrays}},
        "edges": [
            {"src": "author", "etype": "writes", "dst": "paper",
             "files": ["edges/writes-0.npy", "edges/writes-1.csv.gz",
                       {"src_file": "edges/src.npy", "dst_file": "edges/dst.npy"}]},
            {"src": "paper", "etype": "cites", "dst": "paper", "files": ["edges/cites.npy"]},
        ],
        "task": {"target": "paper", "num_classes": CLASSES},
    }
    metadata.update(changes)
    (directory / "metadata.json").write_text(json.dumps(metadata))
    return directory


# --- OGB -----------------------------------------------------------------------------------

needs_ogb = pytest.mark.skipif(importlib.util.find_spec("ogb") is None, reason="needs ogb")


def csv_gz(path: Path, rows, header: str | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        if header is not None:
            file.write(header + "\n")
        for row in rows:
            file.write(",".join(str(x) for x in np.atleast_1d(row)) + "\n")


def write_ogb_mag(root: Path) -> Path:
    """ogbn-mag's layout with the graph of the constants above."""
    directory = root / "ogbn_mag"
    raw, split = directory / "raw", directory / "split" / "time"
    csv_gz(raw / "num-node-dict.csv.gz", [[AUTHORS, PAPERS]], "author,paper")
    csv_gz(raw / "triplet-type-list.csv.gz", [list(r) for r in EDGES])
    for relation, edges in EDGES.items():
        folder = raw / "relations" / "___".join(relation)
        csv_gz(folder / "edge.csv.gz", edges.T)
        csv_gz(folder / "num-edge-list.csv.gz", [edges.shape[1]])
        csv_gz(folder / "edge_reltype.csv.gz", [[0]] * edges.shape[1])
    csv_gz(raw / "node-feat/paper/node-feat.csv.gz", FEAT)
    csv_gz(raw / "node-feat/paper/node_year.csv.gz", LABEL + 2010)
    csv_gz(raw / "nodetype-has-label.csv.gz", [["False", "True"]], "author,paper")
    csv_gz(raw / "node-label/paper/node-label.csv.gz", LABEL)
    csv_gz(split / "nodetype-has-split.csv.gz", [["False", "True"]], "author,paper")
    for name, ids in SPLIT.items():
        csv_gz(split / f"paper/{name}.csv.gz", ids)
    (directory / "processed").mkdir()
    (directory / "RELEASE_v2.txt").write_text("release\n")
    return directory


# --- GraphBolt -----------------------------------------------------------------------------


def write_graphbolt(directory: Path, fmt: str = "numpy", edges: str = "csv", **changes) -> Path:
    """A GraphBolt data set with the graph of the constants above, item sets for paper."""
    yaml = pytest.importorskip("yaml")
    (directory / "data").mkdir(parents=True, exist_ok=True)

    def save(name: str, array: np.ndarray) -> dict:
        path = f"data/{name}.{'npy' if fmt == 'numpy' else 'pt'}"
        if fmt == "numpy":
            np.save(directory / path, array)
        else:
            import torch
            torch.save(torch.from_numpy(np.ascontiguousarray(array)), directory / path)
        return {"format": fmt, "path": path}

    entries = []
    for relation, pairs in EDGES.items():
        path = f"data/{relation.etype}.{'csv' if edges == 'csv' else 'npy'}"
        if edges == "csv":
            (directory / path).write_text("".join(f"{u},{v}\n" for u, v in pairs.T))
        else:
            np.save(directory / path, pairs)
        entries.append({"type": ":".join(relation), "format": edges, "path": path})
    ids = {key: np.array(value) for key, value in SPLIT.items()}
    task = {"name": "node_classification", "num_classes": CLASSES}
    for key, which in (("train_set", "train"), ("validation_set", "valid"), ("test_set", "test")):
        task[key] = [{"type": "paper", "data": [
            {"name": "seed_nodes", **save(f"{which}-seeds", ids[which])},
            {"name": "labels", **save(f"{which}-labels", LABEL[ids[which]])}]}]
    metadata = {
        "dataset_name": "tiny",
        "graph": {"nodes": [{"type": "paper", "num": PAPERS}, {"type": "author", "num": AUTHORS}],
                  "edges": entries},
        "feature_data": [
            {"domain": "node", "type": "paper", "name": "feat", "in_memory": False,
             **save("feat", FEAT)},
            {"domain": "node", "type": "paper", "name": "year", **save("year", LABEL + 2010)},
            {"domain": "node", "type": "author", "name": "emb",
             **save("emb", np.ones((AUTHORS, 1), np.float64))},
            {"domain": "edge", "type": "paper:cites:paper", "name": "weight",
             **save("weight", np.ones(EDGES[CITES].shape[1], np.float32))}],
        "tasks": [task],
    }
    for key, value in changes.items():
        metadata[key] = value(metadata[key]) if callable(value) else value
    (directory / "metadata.yaml").write_text(yaml.safe_dump(metadata))
    return directory
