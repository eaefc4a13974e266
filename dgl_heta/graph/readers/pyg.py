"""PyG's `HeteroData`, in memory or saved by `torch.save`. torch_geometric is not needed.

In memory it is asked for `to_dict()`. A saved one is a pickle that names classes of
torch_geometric; it is walked as data (:mod:`dgl_heta.graph.readers.torch_file`), so nothing in it
is imported or called. Of a node type `x` becomes `feat` and `y` becomes `label`; `edge_attr` and
other arrays with a row per node or edge keep their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.errors import InputError, listing, quoted
from dgl_heta.graph.readers.arrays import node_array, node_task
from dgl_heta.graph.readers.torch_file import SavedObject, read_saved
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import TRAIN_MASK, EdgeArrays, EdgeSource, GraphSource

_OF_WHOLE, _NAMES = "_global_store", {"x": "feat", "y": "label"}
_KIND = "torch_geometric.data.hetero_data.HeteroData"


def read_hetero_data(data: Any, name: str, target: str | None = None,
                     num_classes: int | None = None) -> GraphSource:
    """Describe a `HeteroData` in memory, or what its `to_dict()` gives.

    Parameters
    ----------
    data : a `torch_geometric.data.HeteroData`, or a dict: node type → arrays by name,
        (source type, name, destination type) → arrays by name, with `edge_index` (2, edges).
    name : name of the graph.
    target : node type to predict; default: the only one with `y` and `train_mask`.
    num_classes : default: the largest label plus one.

    Raises
    ------
    InputError
        It is something else, a type without a number of nodes, arrays that do not fit.
    """
    stores = data if isinstance(data, Mapping) else _asked(data)
    return _source(stores, name, target, num_classes)


def read_saved_hetero_data(path: Path, target: str | None = None, num_classes: int | None = None
                           ) -> GraphSource:
    """Describe a file of `torch.save(data)`, of `torch.save(data.to_dict())`, or the
    `processed/data.pt` of a PyG data set with one graph.

    Raises
    ------
    InputError
        It is something else, or as :func:`read_hetero_data`.
    """
    return _source(_stores(read_saved(path), path), path.stem, target, num_classes)


def _asked(data: Any) -> Mapping[Any, Any]:
    if not all(hasattr(data, name) for name in ("to_dict", "node_types", "edge_types")):
        raise InputError(f"{type(data).__module__}.{type(data).__name__} is no HeteroData of "
                         "torch_geometric; give one, or a dict as its to_dict() makes it")
    stores: Mapping[Any, Any] = data.to_dict()
    return stores


def _stores(saved: Any, path: Path) -> Mapping[Any, Any]:
    """The arrays of all types, from what a file describes."""
    if isinstance(saved, tuple) and saved and isinstance(saved[0], dict | SavedObject):
        if len(saved) > 1 and isinstance(saved[1], dict) and saved[1]:
            raise InputError(f"{path} holds several graphs of a data set; save the one to train on "
                             "by torch.save(dataset[0], FILE)")
        saved = saved[0]
    if isinstance(saved, dict):
        return saved
    state = saved.state if isinstance(saved, SavedObject) and saved.kind == _KIND else None
    if not isinstance(state, dict):
        what = saved.kind if isinstance(saved, SavedObject) else type(saved).__name__
        raise InputError(f"{path} holds {quoted(what, 80)}, no HeteroData; save one by torch.save("
                         "data.to_dict(), FILE); a Data becomes one by to_heterogeneous()")
    found = {}
    for part in ("_node_store_dict", "_edge_store_dict"):
        stores = state.get(part)
        if not isinstance(stores, dict):
            raise InputError(f"{path} holds a HeteroData without {part}, of a version of "
                             "torch_geometric that is not known here; save it by torch.save("
                             "data.to_dict(), FILE)")
        for key, store in stores.items():
            inner = store.state if isinstance(store, SavedObject) else store
            mapping = inner.get("_mapping") if isinstance(inner, dict) else None
            if not isinstance(mapping, dict):
                raise InputError(f"{path}: what it holds of {quoted(key, 80)} is not known here; "
                                 "save it by torch.save(data.to_dict(), FILE)")
            found[key] = mapping
    return found


def _source(stores: Mapping[Any, Any], name: str, target: str | None, num_classes: int | None
            ) -> GraphSource:
    notes: list[str] = []
    nodes: dict[str, Mapping[str, Any]] = {}
    ends: dict[Relation, Mapping[str, Any]] = {}
    for key, arrays in stores.items():
        if key == _OF_WHOLE or (isinstance(key, str) and not isinstance(arrays, Mapping)):
            continue
        if isinstance(key, str) and isinstance(arrays, Mapping):
            nodes[key] = arrays
        elif (isinstance(key, tuple) and len(key) == 3 and all(isinstance(k, str) for k in key)
              and isinstance(arrays, Mapping)):
            ends[Relation(*key)] = arrays
        else:
            raise InputError(f"{quoted(key, 80)} is neither a node type nor an edge type with its "
                             "arrays; a HeteroData, or its to_dict(), has nothing else")
    if not ends:
        raise InputError("it has no edge types; a HeteroData has some, with edge_index")
    edges: dict[Relation, EdgeSource] = {}
    edge_arrays: dict[Relation, dict[str, np.ndarray]] = {}
    for relation, arrays in ends.items():
        edges[relation] = _edges(relation, arrays)
        if kept := _arrays(arrays, edges[relation].num_edges, str(relation), notes,
                           {"edge_index"}):
            edge_arrays[relation] = kept
    counts = {t: _count(t, nodes.get(t, {})) for t in dict.fromkeys(
        [*nodes, *(t for r in ends for t in (r.src, r.dst))])}
    node_arrays = {}
    for ntype, arrays in nodes.items():
        found = _arrays(arrays, counts[ntype], ntype, notes, {"num_nodes"})
        if {"x", "feat"} <= set(found) or {"y", "label"} <= set(found):
            raise InputError(f"node type '{ntype}' has x and feat, or y and label; leave one out")
        node_arrays[ntype] = {_NAMES.get(k, k): node_array(_NAMES.get(k, k), a, ntype,
                                                           counts[ntype])
                              for k, a in found.items()}
    labelled = [t for t, arrays in node_arrays.items() if "label" in arrays
                and TRAIN_MASK in arrays]
    chosen = target or (labelled[0] if len(labelled) == 1 else None)
    task = None if chosen is None else node_task(chosen, num_classes, "label", node_arrays, counts)
    info = {"format": "PyG HeteroData", **({"not kept": notes} if notes else {})}
    return GraphSource(name, counts, edges, node_arrays, task, info, edge_arrays)


def _edges(relation: Relation, arrays: Mapping[str, Any]) -> EdgeArrays:
    if "edge_index" not in arrays:
        raise InputError(f"edge type '{relation}' has no edge_index, but {listing(arrays)}; give "
                         "edges as edge_index (2, edges), not as adj_t")
    ends = _array(arrays["edge_index"])
    if ends is None or ends.ndim != 2 or len(ends) != 2 or ends.dtype.kind not in "iu":
        raise InputError(f"edge_index of '{relation}' must be whole numbers of shape (2, edges)"
                         + ("" if ends is None else f"; it has shape {ends.shape} and type "
                            f"{ends.dtype}"))
    return EdgeArrays(ends[0], ends[1])


def _count(ntype: str, arrays: Mapping[str, Any]) -> int:
    """Nodes of a type: as it says, or as many as its arrays have rows."""
    said = arrays.get("num_nodes")
    if type(said) is int:
        return said
    for key in ("x", "y", TRAIN_MASK):
        array = _array(arrays.get(key))
        if array is not None and array.ndim:
            return len(array)
    raise InputError(f"node type '{ntype}' has no num_nodes, x or y, so that nobody knows how many "
                     f"nodes it has; set data['{ntype}'].num_nodes")


def _arrays(arrays: Mapping[str, Any], rows: int, what: str, notes: list[str],
            aside: set[str]) -> dict[str, np.ndarray]:
    """The arrays with a row for each node or edge; the names of others are noted."""
    found = {}
    for key, value in arrays.items():
        if key in aside:
            continue
        array = _array(value)
        needed = key in ("x", "y") or key.endswith("_mask")
        if array is not None and array.ndim and (len(array) == rows or needed):
            found[str(key)] = array
        elif needed:
            raise InputError(f"{key} of '{what}' is no dense array of numbers; convert it")
        else:
            notes.append(f"{key} of {what}")
    return found


def _array(value: Any) -> np.ndarray | None:
    """A tensor or array of numbers as an array; None for anything else."""
    if hasattr(value, "detach") and hasattr(value, "cpu") and hasattr(value, "numpy"):
        if str(getattr(value, "layout", "torch.strided")) != "torch.strided":
            return None
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    return value if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" else None
