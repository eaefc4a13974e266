"""A GraphBolt OnDiskDataset directory in its original form: `metadata.yaml` and its files.

What `dgl.graphbolt.OnDiskDataset` makes of it (`preprocessed/`) is not read: the graph there
is a pickle. Nothing of dgl is needed, and nothing is written.

Node types and relations are in GraphBolt's order (sorted by their type string), so that type
ids agree; a homogeneous graph has node type `_N` and relation `_N _E _N`. Node features keep
their names. `feat` are the static features of a type; where it has none, its only node
feature takes that place if it is a floating point vector per node, and neither labels nor a mask.
Labels and masks come from the item sets of the task: seed nodes with their labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.errors import InputError, listing, nearest
from dgl_heta.graph.readers.array_files import CsvEdges, NpyEdges, inside, open_npy
from dgl_heta.graph.readers.arrays import joined_labels, node_array, node_mask, node_task
from dgl_heta.graph.readers.sizes import YAML_BYTES, parse_yaml, read_text
from dgl_heta.graph.readers.torch_file import read_tensor
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import MASKS, EdgeSource, GraphSource, Task
from dgl_heta.system.optional import optional

METADATA = "metadata.yaml"
PREPROCESSED = "preprocessed"

_SETS = dict(zip(("train_set", "validation_set", "test_set"), MASKS))
_SEEDS = ("seed_nodes", "seeds")
_ANSWERS = ("label", "labels", *MASKS)  # no features, though a type may have no other
_NODE, _EDGE = "_N", Relation("_N", "_E", "_N")


def read_graphbolt(directory: str | Path, task: str | None = None, kind: str | None = None,
                   unlabelled: float | None = None) -> GraphSource:
    """Describe the data set in `directory`. Edges stay in their files, node arrays are mapped.

    Parameters
    ----------
    directory : the directory with `metadata.yaml`.
    task : name of the task; without it, the first one that classifies nodes.
    kind : classification, multilabel or regression; default: what follows from the labels.
    unlabelled : a value of labels that stands for none, besides NaN.

    Edge features and features for sampling are left out; `info["notes"]` says so.

    Raises
    ------
    InputError
        Only the preprocessed form is there, or the metadata or a file is not as GraphBolt
        describes them.
    """
    directory = Path(directory)
    data = _metadata(directory)
    reader = _Reader(directory, kind, unlabelled)
    try:
        reader.graph(data["graph"])
        for index, feature in enumerate(_list(data, "feature_data", reader.where)):
            reader.feature(feature, f"{reader.where}: feature_data[{index}]")
        reader.promote_only_feature()
        chosen = reader.task(_list(data, "tasks", reader.where), task)
    except InputError as error:
        if (directory / PREPROCESSED).is_dir() and "is not a file" in str(error):
            raise InputError(f"{error} ({PREPROCESSED}/ is not used: its graph is a pickle; the "
                             "original files are needed)") from None
        raise
    name = data.get("dataset_name") or directory.resolve().name
    info: dict[str, Any] = {"format": "GraphBolt OnDiskDataset", "path": str(directory),
                            **reader.info}
    if reader.notes:
        info["notes"] = reader.notes
    return GraphSource(str(name), reader.node_counts, reader.edges, reader.node_arrays, chosen,
                       info)


def _metadata(directory: Path) -> dict[str, Any]:
    yaml = optional("yaml", "a GraphBolt directory", "readers")
    path = directory / METADATA
    if not path.is_file() and (directory / PREPROCESSED / METADATA).is_file():
        raise _only_preprocessed(directory)
    data = parse_yaml(yaml, read_text(path, YAML_BYTES), path)
    if not isinstance(data, dict):
        raise InputError(f"{path} must be a mapping with 'graph', 'feature_data' and 'tasks'")
    if "graph" not in data and "graph_topology" in data:
        raise _only_preprocessed(directory)
    if not isinstance(data.get("graph"), dict):
        raise InputError(f"{path} has no 'graph' with 'nodes' and 'edges'" + nearest("graph", [
            key for key in data if isinstance(key, str)]))
    return data


def _only_preprocessed(directory: Path) -> InputError:
    return InputError(
        f"{directory} is the preprocessed form of a GraphBolt data set, whose graph is a pickle "
        "and is not loaded; give the directory with the original metadata.yaml and edge files"
    )


class _Reader:
    """Reads one data set, and keeps what it has read."""

    def __init__(self, directory: Path, kind: str | None, unlabelled: float | None) -> None:
        self.directory, self.kind, self.unlabelled = directory, kind, unlabelled
        self.info: dict[str, Any] = {}
        self.where = str(directory / METADATA)
        self.homogeneous = False
        self.node_counts: dict[str, int] = {}
        self.edges: dict[Relation, EdgeSource] = {}
        self.node_arrays: dict[str, dict[str, np.ndarray]] = {}
        self.notes: list[str] = []

    def graph(self, graph: dict[str, Any]) -> None:
        where = f"{self.where}: graph"
        nodes, edges = _list(graph, "nodes", where), _list(graph, "edges", where)
        typed = ["type" in item for item in (*nodes, *edges)]
        self.homogeneous = len(nodes) == len(edges) == 1 and not any(typed)
        if not self.homogeneous and not all(typed):
            raise InputError(f"{where}: some nodes or edges have no 'type'; only a graph with one "
                             "entry of each can leave it out")
        counts: dict[str, int] = {}
        for index, item in enumerate(nodes):
            entry = f"{where}.nodes[{index}]"
            ntype = self._node_type(item, entry, known=False)
            if ntype in counts:
                raise InputError(f"{entry}: node type '{ntype}' is named twice")
            num = item.get("num")
            if isinstance(num, bool) or not isinstance(num, int) or num < 1:
                raise InputError(f"{entry}: 'num' is {num!r}; it must be the number of nodes")
            counts[ntype] = num
        self.node_counts = dict(sorted(counts.items()))
        sources: dict[str, tuple[Relation, EdgeSource]] = {}
        for index, item in enumerate(edges):
            entry = f"{where}.edges[{index}]"
            relation = self._relation(item, entry)
            key = ":".join(relation)
            if key in sources:
                raise InputError(f"{entry}: relation '{relation}' is named twice")
            sources[key] = relation, self._edge_file(item, entry)
        self.edges = dict(source for _, source in sorted(sources.items()))
        if graph.get("feature_data"):
            self.notes.append("features for sampling (graph.feature_data) left out")

    def _node_type(self, item: dict[str, Any], where: str, known: bool = True) -> str:
        ntype = item.get("type")
        if self.homogeneous and ntype is None:
            return _NODE
        if not isinstance(ntype, str) or not ntype:
            raise InputError(f"{where}: 'type' is {ntype!r}; it must be the name of a node type, "
                             "in quotes if it looks like a number")
        if known and ntype not in self.node_counts:
            raise InputError(f"{where}: 'type' is '{ntype}', which is not in the graph; node "
                             f"types: {listing(self.node_counts)}"
                             + nearest(ntype, self.node_counts))
        return ntype

    def _relation(self, item: dict[str, Any], where: str) -> Relation:
        if self.homogeneous:
            return _EDGE
        text = item.get("type")
        parts = text.split(":") if isinstance(text, str) else []
        if len(parts) != 3 or not all(parts):
            raise InputError(f"{where}: 'type' is {text!r}; it must be \"src:etype:dst\"")
        for ntype in (parts[0], parts[2]):
            if ntype not in self.node_counts:
                raise InputError(
                    f"{where}: relation '{text}' names node type '{ntype}', which is not in the "
                    f"graph; node types: {listing(self.node_counts)}"
                    + nearest(ntype, self.node_counts)
                )
        return Relation(*parts)

    def _edge_file(self, item: dict[str, Any], where: str) -> EdgeSource:
        kind = item.get("format")
        if kind not in ("csv", "numpy"):
            raise InputError(f"{where}: 'format' is {kind!r}; edges are csv or numpy")
        path = inside(self.directory, item.get("path"), f"{where}: 'path'")
        return CsvEdges(path) if kind == "csv" else NpyEdges(path)

    def _array(self, item: dict[str, Any], where: str) -> np.ndarray:
        kind = item.get("format")
        if kind not in ("numpy", "torch"):
            raise InputError(f"{where}: 'format' is {kind!r}; arrays are numpy or torch")
        path = inside(self.directory, item.get("path"), f"{where}: 'path'")
        return open_npy(path) if kind == "numpy" else read_tensor(path)

    def feature(self, item: dict[str, Any], where: str) -> None:
        domain, name = item.get("domain"), item.get("name")
        if domain not in ("node", "edge", "graph"):
            raise InputError(f"{where}: 'domain' is {domain!r}; it must be node, edge or graph")
        if not isinstance(name, str) or not name:
            raise InputError(f"{where}: 'name' is {name!r}; it must be the name of the feature")
        if domain != "node":
            of = f" of '{item['type']}'" if item.get("type") else ""
            self.notes.append(f"{domain} feature '{name}'{of} left out")
            return
        ntype = self._node_type(item, where)
        arrays = self.node_arrays.setdefault(ntype, {})
        if name in arrays:
            raise InputError(f"{where}: feature '{name}' of node type '{ntype}' is named twice")
        arrays[name] = node_array(name, self._array(item, where), ntype, self.node_counts[ntype],
                                  origin=item.get("path"))

    def promote_only_feature(self) -> None:
        for ntype, arrays in self.node_arrays.items():
            if len(arrays) == 1 and "feat" not in arrays:
                (name, array), = arrays.items()
                if array.dtype.kind == "f" and array.ndim <= 2 and name not in _ANSWERS:
                    self.node_arrays[ntype] = {"feat": node_array("feat", array, ntype, len(array))}
                    self.notes.append(f"features of '{ntype}' are its feature '{name}'")

    def task(self, tasks: list[dict[str, Any]], wanted: str | None) -> Task | None:
        """Labels and masks from the item sets of one task."""
        names = [str(item.get("name")) for item in tasks]
        if wanted is not None and wanted not in names:
            raise InputError(f"{self.where} has no task '{wanted}'; tasks: {listing(names)}"
                             + nearest(wanted, names))
        for index, item in enumerate(tasks):
            if wanted is not None and names[index] != wanted:
                continue
            where = f"{self.where}: tasks[{index}]"
            if not self._classifies_nodes(item, where):
                if wanted is not None:
                    raise InputError(f"{where}: task '{wanted}' has no seed nodes; only node "
                                     "classification can be read")
                self.notes.append(f"task '{names[index]}' left out: it has no seed nodes")
                continue
            others = [n for i, n in enumerate(names) if i > index]
            if wanted is None and others:
                self.notes.append(f"tasks left out: {listing(others)}")
            return self._node_task(item, where)
        return None

    def _classifies_nodes(self, task: dict[str, Any], where: str) -> bool:
        """Return whether every item set consists of nodes, not of pairs of nodes."""
        has_sets = False
        for _, entry, item in _item_sets(task, where):
            files = _files(item, entry)
            if "seeds" not in files:
                return False
            if self._array(files["seeds"], f"{entry}: seeds").ndim != 1:
                return False
            has_sets = True
        return has_sets

    def _node_task(self, task: dict[str, Any], where: str) -> Task | None:
        classes = task.get("num_classes")
        if classes is not None and (isinstance(classes, bool) or not isinstance(classes, int)
                                    or classes < 1):
            raise InputError(f"{where}: 'num_classes' is {classes!r}; it must be a whole number, "
                             "1 or more")
        by_type: dict[str, dict[str, np.ndarray]] = {}
        labelled: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        for mask, entry, item in _item_sets(task, where):
            ntype = self._node_type(item, entry)
            count, files = self.node_counts[ntype], _files(item, entry)
            seeds = self._array(files["seeds"], f"{entry}: seeds")
            arrays = by_type.setdefault(ntype, {})
            arrays[mask] = arrays.get(mask, False) | node_mask(seeds, count, f"{entry}: seeds")
            if "labels" in files:
                labels = self._array(files["labels"], f"{entry}: labels")
                if labels.ndim == 0 or len(labels) != len(seeds):
                    raise InputError(f"{entry} has {len(seeds)} seeds, and labels of shape "
                                     f"{labels.shape}; there must be one label per seed")
                labelled.setdefault(ntype, []).append((seeds, labels))
        for ntype, arrays in by_type.items():
            arrays["label"] = joined_labels(labelled.get(ntype, []), self.node_counts[ntype],
                                            f"{where}: labels of '{ntype}'")
            own = self.node_arrays.setdefault(ntype, {})
            for name in own.keys() & arrays.keys():
                self.notes.append(f"feature '{name}' of '{ntype}' left out: the item sets give it")
            own.update(arrays)
        if len(by_type) != 1:
            self.notes.append(f"no task: item sets of several types ({listing(by_type)})")
            return None
        return node_task(next(iter(by_type)), classes, "label", self.node_arrays, self.node_counts,
                         self.kind, self.unlabelled, self.info)


def _item_sets(task: dict[str, Any], where: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """`(mask, where, item set)` of every set of a task."""
    for key, mask in _SETS.items():
        for index, item in enumerate(_list(task, key, where)):
            yield mask, f"{where}.{key}[{index}]", item


def _files(item: dict[str, Any], where: str) -> dict[str, dict[str, Any]]:
    """The entries of an item set for `seeds` and `labels`, as far as they are there.

    Entries without names are in the order of GraphBolt's examples: seeds, then labels.
    """
    files = {}
    for position, entry in enumerate(_list(item, "data", where)):
        name = entry.get("name")
        if name in _SEEDS or (name is None and position == 0):
            files["seeds"] = entry
        elif name == "labels" or (name is None and position == 1):
            files["labels"] = entry
    return files


def _list(item: dict[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    """The list of mappings at `key`, empty where there is none."""
    value = item.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise InputError(f"{where}: '{key}' must be a list of mappings")
    return value
