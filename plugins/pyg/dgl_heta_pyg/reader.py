"""HeteroData, in memory or saved by `torch.save`, as a graph of dgl-heta.

A saved one is a pickle that names classes; it is read as data (:func:`dgl_heta.read_saved`), so
nothing in it is imported or called. Of a node type `x` becomes `feat` and `y` becomes `label`;
`train_idx`, `val_idx` or `valid_idx` and `test_idx` become masks; `edge_attr` and other arrays with
a row per node or edge keep their names. Edges are `edge_index`, or `adj_t` as PyTorch's sparse
tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgl_heta import EdgeArrays, GraphSource, InputError, Relation, SavedObject, read_saved
from dgl_heta.tools import MASKS, joined_labels, listing, node_array, node_mask, node_task, quoted

_OF_WHOLE, _NAMES = "_global_store", {"x": "feat", "y": "label"}
_STORES = ("_node_store_dict", "_edge_store_dict")
_COUNTING = ("x", "feat", "pos", "batch", "node_type", "n_id")
"""Arrays by which PyG knows the number of nodes, as it does by any with `node` in its name."""
_SPLITS = {"train_idx": MASKS[0], "val_idx": MASKS[1], "valid_idx": MASKS[1], "test_idx": MASKS[2]}


def read_hetero_data(data: Any, name: str, target: str | None = None,
                     num_classes: int | None = None, kind: str | None = None,
                     unlabelled: float | None = None, fold: int | None = None,
                     time_attr: str | None = None) -> GraphSource:
    """Describe a `HeteroData` in memory, or what its `to_dict()` gives.

    Parameters
    ----------
    data : a `torch_geometric.data.HeteroData`, or a dict: node type → arrays by name,
        (source type, name, destination type) → arrays by name, with `edge_index` (2, edges).
    name : name of the graph.
    target : node type to predict; default: the only one with `y` and `train_mask`.
    num_classes : default: the largest label plus one.
    kind : of the task: classification, multilabel or regression; default: what follows from `y`.
    unlabelled : a value of `y` that stands for no label, besides NaN.
    fold : which column of masks that have several (nodes, folds), from 0.
    time_attr : array of node or edge types with the time of each row, whole seconds.

    Raises
    ------
    InputError
        It is something else, a type without a number of nodes, arrays that do not fit, masks of
        several folds where none is chosen, times that are none.
    """
    if not isinstance(data, Mapping):
        if not all(hasattr(data, each) for each in ("to_dict", "node_types", "edge_types")):
            raise InputError(f"{type(data).__module__}.{type(data).__name__} is no HeteroData of "
                             "torch_geometric; give one, or a dict as its to_dict() makes it")
        data = data.to_dict()
    nodes, ends = _types(data)
    notes: list[str] = []
    edges: dict[Relation, Any] = {}
    edge_arrays: dict[Relation, dict[str, np.ndarray]] = {}
    for relation, arrays in ends.items():
        edges[relation] = _edges(relation, arrays)
        if kept := _arrays(arrays, edges[relation].num_edges, str(relation), notes,
                           {"edge_index", "adj_t"}):
            edge_arrays[relation] = kept
    _take_fold(nodes, fold)
    counts, node_arrays = {t: _count(t, arrays) for t, arrays in nodes.items()}, {}
    for ntype, arrays in nodes.items():
        _make_masks(ntype, arrays, counts[ntype])
        readable = _arrays(arrays, counts[ntype], ntype, notes, {"num_nodes", *_SPLITS})
        if {"x", "feat"} <= set(readable) or {"y", "label"} <= set(readable):
            raise InputError(f"node type '{ntype}' has x and feat, or y and label; leave one out")
        named = {_NAMES.get(key, key): array for key, array in readable.items()}
        node_arrays[ntype] = {key: node_array(key, array, ntype, counts[ntype])
                              for key, array in named.items()}
    labelled = [t for t, of in node_arrays.items() if {"label", MASKS[0]} <= set(of)]
    chosen = target or (labelled[0] if len(labelled) == 1 else None)
    info: dict[str, Any] = {"format": "PyG HeteroData", **({"not kept": notes} if notes else {})}
    task = None if chosen is None else node_task(chosen, num_classes, "label", node_arrays, counts,
                                                 kind, unlabelled, info)
    times = _times({**nodes, **ends}, time_attr)
    return GraphSource(name, counts, edges, node_arrays, task, info, edge_arrays,
                       times=times).without_empty()


def _times(stores: Mapping[Any, Mapping[str, Any]], name: str | None) -> dict[Any, np.ndarray]:
    """The times of the types that have some; refused where none has."""
    times = {} if name is None else {
        key: _array(arrays[name]) for key, arrays in stores.items() if name in arrays}
    for key, array in times.items():
        if array is None or array.ndim != 1 or array.dtype.kind not in "iu":
            raise InputError(f"{name} of '{key}' must be whole numbers, one for each row")
    if name is not None and not times:
        raise InputError(f"no node or edge type has '{name}', the times (time_attr)")
    return {key: np.asarray(array, np.int64) for key, array in times.items()}


def read_saved_hetero_data(path: Path, **options: Any) -> GraphSource:
    """Describe a file of `torch.save(data)`, of `torch.save(data.to_dict())`, or the
    `processed/data.pt` of a PyG data set with one graph; options are as of
    :func:`read_hetero_data`.

    Raises
    ------
    InputError
        It is something else, or as :func:`read_hetero_data`.
    """
    saved = read_saved(path)
    if isinstance(saved, tuple | list) and saved:
        # Of a data set: the graph's dict, None or where its graphs begin, its class.
        graphs = [item for item in saved if isinstance(item, dict) or _is_graph(item)]
        if len(graphs) != 1 or graphs[0] is not saved[0]:
            raise InputError(f"{path} holds several graphs, of a data set or of a split of links; "
                             "save the one to train on, by torch.save(dataset[0], FILE)")
        saved = saved[0]
    if isinstance(saved, dict):
        return read_hetero_data(saved, path.stem, **options)
    if not _is_graph(saved):
        what = saved.kind if isinstance(saved, SavedObject) else type(saved).__name__
        raise InputError(f"{path} holds {quoted(what, 80)}, no HeteroData; save one by torch.save("
                         "data.to_dict(), FILE); a Data becomes one by to_heterogeneous()")
    stores = {}
    for key, store in (item for part in _STORES for item in saved.state[part].items()):
        inner = store.state if isinstance(store, SavedObject) else store
        mapping = inner.get("_mapping") if isinstance(inner, dict) else None
        if not isinstance(mapping, dict):
            raise InputError(f"{path}: what it holds of {quoted(key, 80)} is not known here; "
                             "save it by torch.save(data.to_dict(), FILE)")
        stores[key] = mapping
    return read_hetero_data(stores, path.stem, **options)


def _is_graph(saved: Any) -> bool:
    """Return whether a file describes a HeteroData, or an object of a class derived from it."""
    return (isinstance(saved, SavedObject) and isinstance(saved.state, dict)
            and all(isinstance(saved.state.get(part), dict) for part in _STORES))


def _types(stores: Mapping[Any, Any]
           ) -> tuple[dict[str, dict[str, Any]], dict[Relation, dict[str, Any]]]:
    """Arrays of node types, of those that edges alone name, too, and of relations."""
    nodes: dict[str, dict[str, Any]] = {}
    ends: dict[Relation, dict[str, Any]] = {}
    for key, arrays in stores.items():
        whole = isinstance(arrays, Mapping)
        if key == _OF_WHOLE or (isinstance(key, str) and not whole):
            continue
        if isinstance(key, str):
            nodes[key] = dict(arrays)
        elif (isinstance(key, tuple) and len(key) == 3 and all(isinstance(k, str) for k in key)
              and whole):
            ends[Relation(*key)] = dict(arrays)
        else:
            raise InputError(f"{quoted(key, 80)} is neither a node type nor an edge type with its "
                             "arrays; a HeteroData, or its to_dict(), has nothing else")
    if not ends:
        raise InputError("it has no edge types; a HeteroData has some, with edge_index")
    for relation in ends:
        for ntype in (relation.src, relation.dst):
            nodes.setdefault(ntype, {})
    return nodes, ends


def _edges(relation: Relation, arrays: dict[str, Any]) -> EdgeArrays:
    """The edges of a type; weights that `adj_t` has become its `edge_weight`."""
    if "edge_index" not in arrays and "adj_t" in arrays:
        matrix = _sparse(arrays["adj_t"])
        if matrix is None:
            raise InputError(f"adj_t of '{relation}' is no sparse tensor of PyTorch (COO, CSR or "
                             "CSC); of torch_sparse's SparseTensor give edges as edge_index: row, "
                             "col, _ = adj_t.coo(); edge_index = torch.stack([col, row])")
        (rows, columns), weights = matrix._indices().numpy(), matrix._values().numpy()
        if not (weights == 1).all():
            arrays.setdefault("edge_weight", weights)
        return EdgeArrays(columns, rows)
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


def _sparse(matrix: Any) -> Tensor | None:
    """A sparse tensor of two dimensions, in memory or saved, by its coordinates; None for anything
    else."""
    if isinstance(matrix, SavedObject) and matrix.kind == "torch._utils._rebuild_sparse_tensor":
        try:
            layout, parts = matrix.arguments
            kind = getattr(torch, layout.arguments[0].removeprefix("torch."))
            count = 2 if kind == torch.sparse_coo else 3
            given: list[Any] = [*(torch.from_numpy(np.array(part)) for part in parts[:count]),
                                *parts[count].arguments]
            matrix = (torch.sparse_coo_tensor(*given, check_invariants=True)
                      if kind == torch.sparse_coo else torch.sparse_compressed_tensor(
                          *given, layout=kind, check_invariants=True))
        except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
            return None  # its parts are not as torch writes them, or do not fit
    layouts = torch.sparse_coo, torch.sparse_csr, torch.sparse_csc
    if not isinstance(matrix, Tensor) or matrix.layout not in layouts or matrix.dim() != 2:
        return None
    return matrix.detach().cpu().to_sparse_coo()


def _count(ntype: str, arrays: Mapping[str, Any]) -> int:
    """Nodes of a type: as it says, or as many as its arrays have rows, those first that PyG counts.
    """
    if (said := arrays.get("num_nodes")) is not None:
        number = np.asarray(said) if isinstance(said, int | float | np.generic) else _array(said)
        if number is None or number.size != 1 or number.dtype == np.bool_ or not (
                0 <= number.item() < 2**63 and number.item() == int(number.item())):
            raise InputError(f"num_nodes of node type '{ntype}' is {quoted(said, 80)}; it must be "
                             "a whole number, 0 or more")
        return int(number.item())
    rows = {key: len(array) for key, value in arrays.items()
            if key not in _SPLITS and (array := _array(value)) is not None and array.ndim}
    counting = [count for key, count in rows.items() if key in _COUNTING or "node" in key]
    if counting or len(set(rows.values())) == 1:
        return [*counting, *rows.values()][0]
    if rows:
        raise InputError(f"node type '{ntype}' has no num_nodes, and its arrays have different "
                         f"numbers of rows ({listing(f'{k} {n}' for k, n in rows.items())}); set "
                         f"data['{ntype}'].num_nodes")
    raise InputError(f"node type '{ntype}' has no num_nodes and no array with a row per node, so "
                     f"that nobody knows how many nodes it has; set data['{ntype}'].num_nodes")


def _make_masks(ntype: str, arrays: dict[str, Any], count: int) -> None:
    """Turn ids of a split into masks, and labels of such ids into `y`."""
    for name in MASKS:
        mask = _array(arrays.get(name))
        if mask is not None and mask.ndim and len(mask) != count and mask.dtype.kind in "iu":
            raise InputError(f"{name} of node type '{ntype}' has {len(mask)} rows for {count} "
                             f"nodes; if these are ids of nodes, call it "
                             f"{name.replace('mask', 'idx')}")
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
                             f"a label for each of {len(ids)} ids in {name}")
        labelled.append((ids, values))
    if labelled:
        arrays["y"] = joined_labels(labelled, count, f"labels of node type '{ntype}'")


def _take_fold(nodes: Mapping[str, dict[str, Any]], fold: int | None) -> None:
    """Put one column in place of masks with a column for each fold."""
    masks = [(ntype, name, mask) for ntype, arrays in nodes.items() for name in MASKS
             if (mask := _array(arrays.get(name))) is not None and mask.ndim == 2
             and mask.shape[1] > 1]
    if fold is not None and not masks:
        raise InputError(f"fold is {fold}, but no mask has several columns; leave it out")
    for ntype, name, mask in masks:
        folds = mask.shape[1]
        if fold is None or not 0 <= fold < folds:
            raise InputError(
                f"{name} of node type '{ntype}' has {folds} columns, one for each fold; "
                + ("say which to take" if fold is None else f"fold {fold} is none of them")
                + f": fold=0 … {folds - 1} (data.pt:fold=0, read_hetero_data(…, fold=0))")
        nodes[ntype][name] = mask[:, fold]


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
    if isinstance(value, Tensor):
        if value.layout != torch.strided:
            return None
        value = value.detach().cpu()
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    return value if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" else None
