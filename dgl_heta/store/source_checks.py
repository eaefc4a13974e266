"""Checks of a graph before its edges are read: counts, arrays, labels, masks, the task."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from dgl_heta.errors import InputError, listing
from dgl_heta.graph.labels import NodeLabels, masked
from dgl_heta.graph.readers.arrays import task_arrays
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import MASKS, TRAIN_MASK, GraphSource, Task, check_seconds

_MASKS_OF_EDGE_FILES = ("; in a metadata.json give 'task' a 'split', which makes the masks, or "
                        "name arrays or columns for them")


def check_source(source: GraphSource, encodes: bool = False) -> None:
    """Check what can be known of a graph before its edges are read.

    `encodes` is whether what is written keeps features in another dtype, as a store does.

    Raises
    ------
    InputError
        Counts, array shapes and types, labels, masks or the task are wrong, or features are to be
        kept in another dtype where they cannot be.
    """
    if source.feature_dtype and not encodes:
        raise InputError(f"this method writes parts as DGL does, with features as they are, not as "
                         f"{source.feature_dtype}; leave --feature-dtype out, or use method meta")
    source.schema()
    try:
        json.dumps([source.name, source.info])
    except (TypeError, ValueError) as error:
        raise InputError(f"name and info of a graph must be what JSON can hold: {error}") from None
    _check_arrays(source)
    for ntype, ids in source.node_ids.items():
        if len(ids) != source.node_counts.get(ntype):
            raise InputError(f"node type '{ntype}' has {source.node_counts.get(ntype, 0)} nodes, "
                             f"but {len(ids)} ids; it must have one for each node")
    _check_times(source)
    if source.task is not None:
        _check_task(source, source.task)


def _check_arrays(source: GraphSource) -> None:
    """Refuse arrays of nodes that a store cannot have; features must be matrices."""
    for ntype, arrays in source.node_arrays.items():
        if ntype not in source.node_counts:
            raise InputError(f"arrays are given for node type '{ntype}', which is not in the "
                             f"graph; node types: {listing(source.node_counts)}")
        count, given = source.node_counts[ntype], source.given.get(ntype, {})
        for name, array in arrays.items():
            if array.ndim == 0 or array.shape[0] != count:
                rows = array.shape[0] if array.ndim else "no"
                raise InputError(f"array '{name}' of node type '{ntype}' has {rows} rows; it must "
                                 f"have {count}, one for each node")
            if name not in given and (array.dtype.kind not in "fiub" or array.dtype.itemsize > 8):
                raise InputError(f"array '{name}' of node type '{ntype}' has dtype {array.dtype}; "
                                 "it must be numbers of at most 64 bits or booleans")
        feat = None if "feat" in given else arrays.get("feat")
        if feat is not None and (feat.ndim != 2 or feat.dtype.kind != "f" or not feat.shape[1]):
            raise InputError(f"features 'feat' of node type '{ntype}' are {feat.dtype} of shape "
                             f"{feat.shape}; they must be floating point, one row per node and "
                             "one column per feature")


def _check_times(source: GraphSource) -> None:
    """Refuse times that are not one whole number for each row or edge."""
    counts: dict[Any, int] = {**source.node_counts, **{
        r: edges.num_edges for r, edges in source.edges.items()}}
    for kind, times in source.times.items():
        if kind not in counts:
            raise InputError(f"times are given for '{kind}', which is not in the graph")
        what = kind if isinstance(kind, str) else Relation(*kind)
        if times.dtype != np.int64 or times.shape != (counts[kind],):
            raise InputError(f"times of '{what}' are {times.dtype}{list(times.shape)}; they must "
                             f"be int64[{counts[kind]}], seconds since 1970 in UTC")
        check_seconds(times, lambda place: f"time {place} of '{what}'")  # noqa: B023 - at once


def _check_task(source: GraphSource, task: Task) -> None:
    """Refuse a task whose labels or masks are not what it needs."""
    if task.target not in source.node_counts:
        raise InputError(f"target node type '{task.target}' is not in the graph; node types: "
                         f"{listing(source.node_counts)}")
    arrays = source.node_arrays.get(task.target, {})
    for name in (task.label, TRAIN_MASK):
        if name not in arrays:
            raise InputError(f"target node type '{task.target}' has no array '{name}'; it has: "
                             f"{listing(arrays)}" + (_MASKS_OF_EDGE_FILES if name == TRAIN_MASK
                                                     else ""))
    arrays = task_arrays(source, task)
    labels = NodeLabels(arrays[task.label], task.kind, task.num_classes, task.unlabelled,
                    f"array '{task.label}' of node type '{task.target}'")
    if labels.outputs != task.num_classes:
        raise InputError(f"the task has {task.num_classes} labels, but {labels.what} has "
                         f"{labels.outputs} columns")
    for name in MASKS:
        if name not in arrays:
            continue
        mask = arrays[name]
        if mask.ndim != 1 or mask.dtype.kind not in "biu":
            raise InputError(f"mask '{name}' of '{task.target}' is {mask.dtype} of shape "
                             f"{mask.shape}; it must be boolean, one entry per node")
        for nodes in masked(mask):
            labels.check(nodes, name)
