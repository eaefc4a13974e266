"""Commands of `dgl-heta`, what they are given and what they answer."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.graph.source import GraphSource
from tests.support.graphs import academic

MAG = {
    "node_counts": {"author": 1_134_649, "field": 59_965, "institution": 8_740, "paper": 736_389},
    "relations": [
        {"src": src, "etype": etype, "dst": dst, "edges": edges} for src, etype, dst, edges in (
            ("author", "affiliated", "institution", 1_043_998),
            ("institution", "rev-affiliated", "author", 1_043_998),
            ("author", "writes", "paper", 7_145_660),
            ("paper", "rev-writes", "author", 7_145_660),
            ("paper", "has_topic", "field", 7_505_078),
            ("field", "rev-has_topic", "paper", 7_505_078),
            ("paper", "cites", "paper", 10_832_542))],
    "feature_bytes": {"paper": 512},
}

@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out.splitlines()[-1])

def edge_files(directory: Path, source: GraphSource | None = None, **changes: Any) -> Path:
    """A graph as edge files; `changes` are called with the metadata or replace its entries."""
    source = source or academic()
    directory.mkdir(exist_ok=True)
    nodes: dict[str, Any] = {}
    for ntype, count in source.node_counts.items():
        nodes[ntype] = {"count": count, "arrays": {}}
        for name, array in source.node_arrays.get(ntype, {}).items():
            np.save(directory / f"{ntype}-{name}.npy", array)
            nodes[ntype]["arrays"][name] = f"{ntype}-{name}.npy"
    edges = []
    for relation, arrays in source.edges.items():
        ((src, dst),) = arrays.chunks(2**30)
        for side, ids in (("src", src), ("dst", dst)):
            np.save(directory / f"{relation.etype}-{side}.npy", ids)
        edges.append({**relation._asdict(), "files": [
            {f"{side}_file": f"{relation.etype}-{side}.npy" for side in ("src", "dst")}]})
    task = {"target": source.task.target, "num_classes": source.task.num_classes}
    metadata = {"name": source.name, "nodes": nodes, "edges": edges, "task": task, **changes}
    (directory / "metadata.json").write_text(json.dumps(metadata))
    return directory


def graphbolt(directory: Path) -> Path:
    """Papers and authors as a GraphBolt data set."""
    (directory / "data").mkdir(parents=True)
    np.save(directory / "data/ids.npy", np.arange(20))
    np.save(directory / "data/labels.npy", np.arange(20) % 3)
    for name in ("writes", "rev-writes"):
        np.save(directory / f"data/{name}.npy", np.stack([np.arange(20), np.arange(20)[::-1]]))
    (directory / "metadata.yaml").write_text("""
dataset_name: bolt
graph:
  nodes: [{type: author, num: 20}, {type: paper, num: 20}]
  edges:
  - {type: "author:writes:paper", format: numpy, path: data/writes.npy}
  - {type: "paper:rev-writes:author", format: numpy, path: data/rev-writes.npy}
feature_data: []
tasks:
- name: node_classification
  num_classes: 3
  train_set:
  - type: paper
    data:
    - {name: seed_nodes, format: numpy, path: data/ids.npy}
    - {name: labels, format: numpy, path: data/labels.npy}
""")
    return directory


def tree(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() if p.is_file() else b"/"
            for p in directory.rglob("*")}


def refused(result: Result, message: str, status: int = 2) -> None:
    """One line on standard error that matches `message`, nothing else, and the exit status."""
    assert result.out == ""
    (line,) = result.err.splitlines()
    assert line.startswith("error: ")
    assert re.search(message, line), line
    assert result.status == status
