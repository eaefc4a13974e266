"""PyG's `HeteroData`, in memory or saved by `torch.save`. torch_geometric is not needed.

In memory it is asked for `to_dict()`. A saved one is a pickle that names classes of
torch_geometric; it is walked as data (:mod:`dgl_heta.graph.readers.torch_file`), so nothing in it
is imported or called. Of a node type `x` becomes `feat` and `y` becomes `label`; `train_idx`,
`val_idx` or `valid_idx` and `test_idx` become masks; `edge_attr` and other arrays with a row per
node or edge keep their names. Edges are `edge_index`, or `adj_t` as PyTorch's sparse tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.errors import InputError, listing, quoted, several
from dgl_heta.graph.readers.arrays import joined_labels, node_array, node_mask, node_task
from dgl_heta.graph.readers.torch_file import SavedObject, read_saved
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import MASKS, TRAIN_MASK, EdgeArrays, EdgeSource, GraphSource

_OF_WHOLE, _NAMES = "_global_store", {"x": "feat", "y": "label"}
_STORES = ("_node_store_dict", "_edge_store_dict")
_COUNTING = ("x", "feat", "pos", "batch", "node_type", "n_id")
"""Arrays by which PyG knows the number of nodes, as it does by any with `node` in its name."""
_SPLITS = {"train_idx": MASKS[0], "val_idx": MASKS[1], "valid_idx": MASKS[1], "test_idx": MASKS[2]}


def read_hetero_data(data: Any, name: str, target: str | None = None,
                     num_classes: int | None = None, kind: str | None = None,
                     unlabelled: float | None = None, fold: int | None = None) -> GraphSource:
    """Describe a `HeteroData` in memory, or what its `to_dict()` gives.

    Parameters
    ----------
    data : a `torch_geometric.data.HeteroData`, or a dict: node type → arrays by name,
        (source type, name, destination type) → arrays by name, with `edge_index` (2, edges).
    name : name of the graph.
    target : node type to predict; default: the only one with `y` and `train_mask`.
    num_classes : default: the largest label plus one.
    kind : of the task: classification, multilabel or regression; default: what follows from `y`
        (:func:`dgl_heta.graph.readers.arrays.node_task`).
    unlabelled : a value of `y` that stands for no label, besides NaN.
    fold : which column of masks that have several (nodes, folds), from 0.

    Raises
    ------
    InputError
        It is something else, a type without a number of nodes, arrays that do not fit, masks of
        several folds where none is chosen.
    """
    stores = data if isinstance(data, Mapping) else _asked(data)
    return _source(stores, name, target, num_classes, kind, unlabelled, fold)


def read_saved_hetero_data(path: Path, target: str | None = None, num_classes: int | None = None,
                           kind: str | None = None, unlabelled: float | None = None,
                           fold: int | None = None) -> GraphSource:
    """Describe a file of `torch.save(data)`, of `torch.save(data.to_dict())`, or the
    `processed/data.pt` of a PyG data set with one graph.

    Raises
    ------
    InputError
        It is something else, or as :func:`read_hetero_data`.
    """
    return _source(_stores(read_saved(path), path), path.stem, target, num_classes, kind,
                   unlabelled, fold)


def _asked(data: Any) -> Mapping[Any, Any]:
    if not all(hasattr(data, name) for name in ("to_dict", "node_types", "edge_types")):
        raise InputError(f"{type(data).__module__}.{type(data).__name__} is no HeteroData of "
                         "torch_geometric; give one, or a dict as its to_dict() makes it")
    stores: Mapping[Any, Any] = data.to_dict()
    return stores


def _stores(saved: Any, path: Path) -> Mapping[Any, Any]:
    """The arrays of all types, from what a file describes."""
    if isinstance(saved, tuple | list) and saved:
        # Of a data set: the graph's dict, None or where its graphs begin, its class.
        graphs = [item for item in saved if isinstance(item, dict) or _is_graph(item)]
        if len(graphs) != 1 or graphs[0] is not saved[0]:
            raise InputError(f"{path} holds several graphs, of a data set or of a split of links; "
                             "save the one to train on, by torch.save(dataset[0], FILE)")
        saved = saved[0]
    if isinstance(saved, dict):
        return saved
    if not _is_graph(saved):
        what = saved.kind if isinstance(saved, SavedObject) else type(saved).__name__
        raise InputError(f"{path} holds {quoted(what, 80)}, no HeteroData; save one by torch.save("
                         "data.to_dict(), FILE); a Data becomes one by to_heterogeneous()")
    stores = {}
    for part in _STORES:
        for key, store in saved.state[part].items():
            inner = store.state if isinstance(store, SavedObject) else store
            mapping = inner.get("_mapping") if isinstance(inner, dict) else None
            if not isinstance(mapping, dict):
                raise InputError(f"{path}: what it holds of {quoted(key, 80)} is not known here; "
                                 "save it by torch.save(data.to_dict(), FILE)")
            stores[key] = mapping
    return stores


def _is_graph(saved: Any) -> bool:
    """Return whether a file describes a HeteroData, or an object of a class derived from it."""
    return (isinstance(saved, SavedObject) and isinstance(saved.state, dict)
            and all(isinstance(saved.state.get(part), dict) for part in _STORES))


def _source(stores: Mapping[Any, Any], name: str, target: str | None, num_classes: int | None,
            kind: str | None, unlabelled: float | None, fold: int | None) -> GraphSource:
    notes: list[str] = []
    nodes: dict[str, dict[str, Any]] = {}
    ends: dict[Relation, dict[str, Any]] = {}
    for key, arrays in stores.items():
        if key == _OF_WHOLE or (isinstance(key, str) and not isinstance(arrays, Mapping)):
            continue
        if isinstance(key, str) and isinstance(arrays, Mapping):
            nodes[key] = dict(arrays)
        elif (isinstance(key, tuple) and len(key) == 3 and all(isinstance(k, str) for k in key)
              and isinstance(arrays, Mapping)):
            ends[Relation(*key)] = dict(arrays)
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
                           {"edge_index", "adj_t"}):
            edge_arrays[relation] = kept
    counts = {t: _count(t, nodes.get(t, {})) for t in dict.fromkeys(
        [*nodes, *(t for r in ends for t in (r.src, r.dst))])}
    if fold is not None and not any(_folds(arrays.get(m)) for arrays in nodes.values()
                                    for m in MASKS):
        raise InputError(f"fold is {fold}, but no mask has several columns; leave it out")
    node_arrays = {}
    for ntype, arrays in nodes.items():
        _make_masks(ntype, arrays, counts[ntype], fold)
        readable = _arrays(arrays, counts[ntype], ntype, notes, {"num_nodes", *_SPLITS})
        if {"x", "feat"} <= set(readable) or {"y", "label"} <= set(readable):
            raise InputError(f"node type '{ntype}' has x and feat, or y and label; leave one out")
        node_arrays[ntype] = {_NAMES.get(k, k): node_array(_NAMES.get(k, k), a, ntype,
                                                           counts[ntype])
                              for k, a in readable.items()}
    labelled = [t for t, arrays in node_arrays.items() if "label" in arrays
                and TRAIN_MASK in arrays]
    chosen = target or (labelled[0] if len(labelled) == 1 else None)
    info: dict[str, Any] = {"format": "PyG HeteroData", **({"not kept": notes} if notes else {})}
    task = None if chosen is None else node_task(chosen, num_classes, "label", node_arrays, counts,
                                                 kind, unlabelled, info)
    return GraphSource(name, counts, edges, node_arrays, task, info, edge_arrays).without_empty()


def _edges(relation: Relation, arrays: dict[str, Any]) -> EdgeArrays:
    """The edges of a type; weights that `adj_t` has become its `edge_weight`."""
    if "edge_index" not in arrays and "adj_t" in arrays:
        edges, weights = _adjacency(relation, arrays["adj_t"])
        if not (weights == 1).all():
            arrays.setdefault("edge_weight", weights)
        return edges
    if "edge_index" not in arrays:
        raise InputError(f"edge type '{relation}' has no edge_index, but {listing(arrays)}; give "
                         "edges as edge_index (2, edges), or as adj_t")
    ends = _array(arrays["edge_index"])
    if ends is not None and not ends.size:
        ends = np.empty((2, 0), np.int64)
    if ends is None or ends.ndim != 2 or len(ends) != 2 or ends.dtype.kind not in "iu":
        raise InputError(f"edge_index of '{relation}' must be whole numbers of shape (2, edges)"
                         + ("" if ends is None else f"; it has shape {ends.shape} and type "
                            f"{ends.dtype}"))
    return EdgeArrays(ends[0], ends[1])


def _adjacency(relation: Relation, matrix: Any) -> tuple[EdgeArrays, np.ndarray]:
    """The edges and their weights of a sparse tensor, destinations by sources."""
    layout, parts = _sparse(matrix)
    tensors = [array for part in parts if (array := _array(part)) is not None]
    if layout == "torch.sparse_coo" and len(tensors) == 2:
        ends, weights = tensors
        if ends.ndim == 2 and ends.shape == (2, len(weights)):
            return EdgeArrays(ends[1], ends[0]), weights
    elif len(tensors) == 3:
        pointers, others, weights = tensors
        degrees = np.diff(pointers)
        if (pointers.ndim == others.ndim == 1 and len(pointers) and pointers[0] == 0
                and (degrees >= 0).all() and degrees.sum() == len(others) == len(weights)):
            rows = np.repeat(np.arange(len(degrees)), degrees)
            return (EdgeArrays(others, rows) if layout == "torch.sparse_csr"
                    else EdgeArrays(rows, others)), weights
    raise InputError(f"adj_t of '{relation}' is no sparse tensor of PyTorch (COO, CSR or CSC); of "
                     "torch_sparse's SparseTensor give edges as edge_index: row, col, _ = "
                     "adj_t.coo(); edge_index = torch.stack([col, row])")


def _sparse(matrix: Any) -> tuple[str, tuple[Any, ...]]:
    """The layout of a sparse tensor, in memory or saved, and the tensors that it is made of."""
    if isinstance(matrix, SavedObject) and matrix.kind == "torch._utils._rebuild_sparse_tensor":
        layout, parts = matrix.arguments
        return layout.arguments[0], parts[:2] if layout.arguments[0] == "torch.sparse_coo" else (
            parts[:3])
    layout = str(getattr(matrix, "layout", ""))
    if layout == "torch.sparse_coo":
        return layout, (matrix._indices(), matrix._values())
    if layout == "torch.sparse_csr":
        return layout, (matrix.crow_indices(), matrix.col_indices(), matrix.values())
    if layout == "torch.sparse_csc":
        return layout, (matrix.ccol_indices(), matrix.row_indices(), matrix.values())
    return "", ()


def _count(ntype: str, arrays: Mapping[str, Any]) -> int:
    """Nodes of a type: as it says, or as many as its arrays have rows, those first that PyG counts.
    """
    if (said := arrays.get("num_nodes")) is not None:
        if (count := _whole(said)) is None:
            raise InputError(f"num_nodes of node type '{ntype}' is {quoted(said, 80)}; it must be "
                             "a whole number, 0 or more")
        return count
    rows = {key: len(array) for key, value in arrays.items()
            if key not in _SPLITS and (array := _array(value)) is not None and array.ndim}
    for key, count in rows.items():
        if key in _COUNTING or "node" in key:
            return count
    if len(set(rows.values())) == 1:
        return next(iter(rows.values()))
    if rows:
        raise InputError(f"node type '{ntype}' has no num_nodes, and its arrays have different "
                         f"numbers of rows ({listing(f'{k} {n}' for k, n in rows.items())}); set "
                         f"data['{ntype}'].num_nodes")
    raise InputError(f"node type '{ntype}' has no num_nodes and no array with a row per node, so "
                     f"that nobody knows how many nodes it has; set data['{ntype}'].num_nodes")


def _whole(value: Any) -> int | None:
    """A number of nodes, whatever it is written as; None for anything else."""
    array = np.asarray(value) if isinstance(value, int | float | np.generic) else _array(value)
    if array is None or array.size != 1 or array.dtype.kind not in "iuf":
        return None
    number = array.reshape(()).item()
    return int(number) if 0 <= number < 2**63 and number == int(number) else None


def _make_masks(ntype: str, arrays: dict[str, Any], count: int, fold: int | None) -> None:
    """Turn ids of a split and masks of several folds into masks, and labels of such ids into `y`.
    """
    _take_fold(ntype, arrays, count, fold)
    labelled: list[tuple[np.ndarray, np.ndarray]] = []
    for name, split in _SPLITS.items():
        if name not in arrays:
            continue
        given = arrays[name]
        ids = np.asarray(given) if isinstance(given, list) else _array(given)
        what = f"{name} of node type '{ntype}'"
        if ids is None:
            raise InputError(f"{what} is {quoted(given, 80)}; it must be ids of nodes")
        chosen = ids if ids.dtype == np.bool_ and ids.shape == (count,) else node_mask(
            ids, count, what)
        known = _array(arrays.get(split))
        if known is not None and not np.array_equal(known, chosen):
            raise InputError(f"node type '{ntype}' has {split} and {name}, which differ; leave one "
                             "out")
        arrays[split] = chosen
        own = name.replace("idx", "y")  # labels of these nodes alone, as in PyG's Entities
        if "y" in arrays or (values := _array(arrays.pop(own, None))) is None:
            continue
        if values.ndim == 0 or len(values) != len(ids) or ids.dtype == np.bool_:
            raise InputError(f"{own} of node type '{ntype}' has shape {values.shape}; it must have "
                             f"a label for each of {several(len(ids), 'id')} in {name}")
        labelled.append((ids, values))
    if labelled:
        arrays["y"] = joined_labels(labelled, count, f"labels of node type '{ntype}'")


def _take_fold(ntype: str, arrays: dict[str, Any], count: int, fold: int | None) -> None:
    """Put one column in place of masks with a column for each fold."""
    for name in MASKS:
        mask = _array(arrays.get(name))
        if mask is None or not mask.ndim:
            continue
        if folds := _folds(mask):
            if fold is None or not 0 <= fold < folds:
                raise InputError(
                    f"{name} of node type '{ntype}' has {folds} columns, one for each fold; "
                    + ("say which to take" if fold is None else f"fold {fold} is none of them")
                    + f": fold=0 … {folds - 1} (data.pt:fold=0, read_hetero_data(…, fold=0))")
            arrays[name] = mask[:, fold]
        elif len(mask) != count and mask.dtype.kind in "iu":
            raise InputError(f"{name} of node type '{ntype}' has {several(len(mask), 'row')} for "
                             f"{several(count, 'node')}; if these are ids of nodes, call it "
                             f"{name.replace('mask', 'idx')}")



def _folds(mask: Any) -> int:
    """The number of columns of a mask that has several; 0 for any other."""
    array = _array(mask)
    return array.shape[1] if array is not None and array.ndim == 2 and array.shape[1] > 1 else 0


def _arrays(arrays: Mapping[str, Any], rows: int, what: str, notes: list[str],
            aside: set[str]) -> dict[str, np.ndarray]:
    """The arrays with a row for each node or edge; the names of others are noted."""
    kept = {}
    for key, value in arrays.items():
        if key in aside:
            continue
        array = _array(value)
        needed = key in ("x", "y") or key.endswith("_mask")
        if array is not None and array.ndim and (len(array) == rows or needed):
            kept[str(key)] = array
        elif needed:
            raise InputError(f"{key} of '{what}' is no dense array of numbers; convert it (a "
                             "sparse tensor by to_dense())")
        else:
            notes.append(f"{key} of {what}")
    return kept


def _array(value: Any) -> np.ndarray | None:
    """A tensor or array of numbers as an array; None for anything else."""
    if isinstance(value, SavedObject) and value.kind == "torch._tensor._rebuild_from_type_v2":
        state = value.arguments[3]  # of a subclass of Tensor, such as PyG's EdgeIndex
        value = state.get("_data") if isinstance(state, dict) else None
    if hasattr(value, "detach") and hasattr(value, "cpu") and hasattr(value, "numpy"):
        if str(getattr(value, "layout", "torch.strided")) != "torch.strided":
            return None
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    return value if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" else None
