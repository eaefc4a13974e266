"""A directory of edge lists with a `metadata.json`.

::

    {"name": "mag",
     "nodes": {"paper": {"count": 736389,
                         "arrays": {"feat": "nodes/feat.npy", "label": "nodes/label.npy",
                                    "train_mask": "nodes/train.npy"}},
               "author": {"count": 1134649}},
     "edges": [{"src": "author", "etype": "writes", "dst": "paper",
                "files": ["writes-0.npy", "writes-1.csv.gz",
                          {"src_file": "writes-2-src.npy", "dst_file": "writes-2-dst.npy"}]}],
     "task": {"target": "paper", "num_classes": 349, "label": "label"}}

Optional are `arrays`, `task`, and in it `kind` (classification, multilabel or regression),
`num_classes` (then: largest label plus one) and
`label`. Paths are relative to the directory. An edge file is a `.npy` integer array of shape
(2, E), a `.csv` or `.csv.gz` with two columns and an optional header line, a `.parquet` with
columns `src` and `dst`, or a pair of one-dimensional `.npy` files; the files of a relation are
read one after the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.errors import InputError, listing, nearest
from dgl_heta.graph.readers.arrays import node_array, node_task
from dgl_heta.graph.readers.files import (
    JoinedEdges,
    NpyEdges,
    inside,
    open_edges,
    open_npy,
    read_text,
)
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeSource, GraphSource

METADATA = "metadata.json"


def read_edge_files(directory: str | Path) -> GraphSource:
    """Describe the graph in `directory`. Edges stay in their files, node arrays are mapped.

    Raises
    ------
    InputError
        Anything in `metadata.json` or the files that is not as described above.
    """
    directory = Path(directory)
    path = directory / METADATA
    try:
        data = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}") from None
    _keys(data, str(path), required=("name", "nodes", "edges"), optional=("task",))
    name = _text(data["name"], f"{path}: 'name'")
    nodes, edges = data["nodes"], data["edges"]
    if not isinstance(nodes, dict) or not nodes:
        raise InputError(f"{path}: 'nodes' must be an object of node type: {{\"count\": …}}")
    if not isinstance(edges, list) or not edges:
        raise InputError(f"{path}: 'edges' must be a list of {{src, etype, dst, files}}")

    node_counts: dict[str, int] = {}
    node_arrays: dict[str, dict[str, np.ndarray]] = {}
    for ntype, item in nodes.items():
        where = f"{path}: node type '{ntype}'"
        _keys(item, where, required=("count",), optional=("arrays",))
        count = node_counts[ntype] = _positive(item["count"], f"{where}: 'count'")
        arrays = item.get("arrays", {})
        if not isinstance(arrays, dict):
            raise InputError(f"{where}: 'arrays' must be an object of array name: .npy file")
        for array_name, text in arrays.items():
            file = inside(directory, text, f"{where}: array '{array_name}'")
            node_arrays.setdefault(ntype, {})[array_name] = node_array(
                array_name, open_npy(file), ntype, count, origin=text)

    sources: dict[Relation, EdgeSource] = {}
    for index, item in enumerate(edges):
        where = f"{path}: edges[{index}]"
        _keys(item, where, required=("src", "etype", "dst", "files"))
        relation = Relation(*(_text(item[key], f"{where}: '{key}'")
                              for key in ("src", "etype", "dst")))
        for key, ntype in (("src", relation.src), ("dst", relation.dst)):
            if ntype not in node_counts:
                raise InputError(f"{where}: '{key}' is '{ntype}', which is not in 'nodes'; node "
                                 f"types: {listing(node_counts)}" + nearest(ntype, node_counts))
        if relation in sources:
            raise InputError(f"{where}: relation '{relation}' is named twice; list all its files "
                             "in one entry")
        sources[relation] = _edges(directory, item["files"], f"{where} ('{relation}')")

    task = None
    if "task" in data:
        where = f"{path}: task"
        _keys(data["task"], where, required=("target",), optional=("num_classes", "label", "kind"))
        classes = data["task"].get("num_classes")
        task = node_task(
            _text(data["task"]["target"], f"{where}: 'target'"),
            None if classes is None else _positive(classes, f"{where}: 'num_classes'"),
            _text(data["task"].get("label", "label"), f"{where}: 'label'"),
            node_arrays, node_counts,
            _text(data["task"].get("kind", "classification"), f"{where}: 'kind'"))
    return GraphSource(name, node_counts, sources, node_arrays, task,
                       {"format": "edge files", "path": str(directory)})


def _edges(directory: Path, files: Any, where: str) -> EdgeSource:
    if not isinstance(files, list) or not files:
        raise InputError(f"{where}: 'files' must be a list with at least one file")
    parts: list[EdgeSource] = []
    for index, item in enumerate(files):
        entry = f"{where}: files[{index}]"
        if isinstance(item, dict):
            _keys(item, entry, required=("src_file", "dst_file"))
            parts.append(NpyEdges(*(inside(directory, item[key], f"{entry}: '{key}'")
                                    for key in ("src_file", "dst_file"))))
            continue
        path = inside(directory, item, entry)
        if not path.name.endswith((".csv", ".csv.gz", ".npy", ".parquet")):
            raise InputError(f"{entry} is '{item}'; edge files end in .npy, .csv, .csv.gz or "
                             ".parquet")
        parts.append(open_edges(path))
    return parts[0] if len(parts) == 1 else JoinedEdges(parts)


def _keys(item: Any, where: str, required: Iterable[str], optional: Iterable[str] = ()) -> None:
    """Check that `item` is an object with the required keys and no unknown ones."""
    required = tuple(required)
    allowed = (*required, *optional)
    if not isinstance(item, dict):
        raise InputError(f"{where} is {_short(item)}; it must be an object with {listing(allowed)}")
    for key in item:
        if key not in allowed:
            raise InputError(f"{where}: unknown key '{key}'; keys: {listing(allowed)}"
                             + nearest(key, allowed))
    missing = [key for key in required if key not in item]
    if missing:
        raise InputError(f"{where} lacks {listing(missing)}")


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise InputError(f"{where} is {_short(value)}; it must be a name in quotes")
    return value


def _positive(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{where} is {_short(value)}; it must be a whole number, 1 or more")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
