"""Node arrays as a :class:`~dgl_heta.graph.source.GraphSource` wants them: features, labels, masks.

Every reader passes its arrays through here, so that all of them accept and refuse the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dgl_heta.errors import InputError, listing, nearest, several
from dgl_heta.graph.labels import NodeLabels, masked
from dgl_heta.graph.source import MASKS, MOST_CLASSES, TRAIN_MASK, Given, GraphSource, Task
from dgl_heta.system.disk import forget, row_starts

#: Whole numbers up to this size are exact in float32.
_EXACT = 1 << 24


def node_array(name: str, array: np.ndarray, ntype: str, count: int,
               origin: object = None) -> np.ndarray:
    """Check the array `name` of node type `ntype` and bring it into the common form.

    `feat` becomes a floating point matrix, masks become bool; other arrays stay as they are.
    Arrays that are already right are returned without a copy.

    Raises
    ------
    InputError
        As :func:`check_node_array`.
    """
    check_node_array(name, array, ntype, count, origin)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    array = common_form(name, array)
    return array.astype(np.float32) if name == "feat" and array.dtype.kind != "f" else array


def check_node_array(name: str, array: np.ndarray, ntype: str, count: int,
                     origin: object = None) -> None:
    """Check that training can use the array `name` of node type `ntype`.

    `origin` is the file that holds the array, for messages.

    Raises
    ------
    InputError
        Not numbers, not one row per node, features of more than two dimensions or without a
        column, integer features that float32 cannot hold, or a mask of other values than 0 and 1.
    """
    what = f"array '{name}' of node type '{ntype}'" + (f" ({origin})" if origin else "")
    if array.dtype.kind not in "biuf":
        raise InputError(f"{what} holds {array.dtype} values; node arrays must be numbers or bool")
    if array.ndim == 0 or len(array) != count:
        rows = "no rows (it is a single value)" if array.ndim == 0 else several(len(array), "row")
        raise InputError(f"{what} has {rows}, but the type has {several(count, 'node')}; "
                         "it must have one row per node")
    if name == "feat":
        _check_features(array, what)
    if name in MASKS:
        _check_mask(array, what)


def _check_features(array: np.ndarray, what: str) -> None:
    if array.ndim > 2:
        raise InputError(f"{what} has shape {array.shape}; features must have one or two "
                         "dimensions: flatten each row")
    if array.shape[1:] == (0,):
        raise InputError(f"{what} has shape {array.shape}; features must have a column")
    if array.dtype.kind != "f" and array.size and max(
            abs(int(array.min())), abs(int(array.max()))) > _EXACT:
        raise InputError(
            f"{what} holds {array.dtype} values beyond ±{_EXACT}, which float32 features "
            "cannot hold exactly; convert it to floating point, or give it another name"
        )


def _check_mask(array: np.ndarray, what: str) -> None:
    if array.shape[1:] not in ((), (1,)):
        raise InputError(f"{what} has shape {array.shape}; a mask must be one-dimensional: of "
                         "several folds give one column")
    if array.dtype != np.bool_ and not np.isin(array, (0, 1)).all():
        raise InputError(f"{what} holds other values than 0 and 1; a mask must be bool")


def check_finite(name: str, rows: np.ndarray, ntype: str, start: int = 0) -> None:
    """Refuse NaN and infinity in rows of the array `name`, the first of which is row `start`; they
    may be a memory map, of which a piece is in memory at a time."""
    if rows.dtype.kind != "f":
        return
    starts = row_starts(len(rows), rows.nbytes // max(len(rows), 1))
    for low in starts:
        if not (finite := np.isfinite(rows[low:low + starts.step])).all():
            bad = start + low + int(np.argwhere(~finite)[0][0])
            raise InputError(f"array '{name}' of node type '{ntype}' has a value that is not "
                             f"finite (NaN or infinity), first in row {bad}; replace or drop it")
        forget(rows)


def common_form(name: str, array: np.ndarray) -> np.ndarray:
    """An array that :func:`check_node_array` lets pass, with features as a matrix of any numbers
    and masks as bool."""
    if name == "feat" and array.ndim == 1:
        return array.reshape(-1, 1)
    if name in MASKS:
        return array.reshape(-1).astype(np.bool_, copy=False)
    return array


def as_trained(name: str, array: np.ndarray, ntype: str, given: Mapping[str, Given],
               task: Task | None) -> np.ndarray:
    """A type's array `name` as training reads it, which converts what is kept as it was given.

    Raises
    ------
    InputError
        It was given in a form that training cannot read, or with values that it cannot.
    """
    if name not in given:
        return array
    if task and (task.target, task.label) == (ntype, name):
        return array if task.kind != "classification" else class_labels(
            array, f"array '{name}' of node type '{ntype}'", task.unlabelled)
    if given[name].unfit:
        raise InputError(f"{given[name].unfit} (scripts read it as it is, training cannot)")
    return common_form(name, array)


def task_arrays(source: GraphSource, task: Task) -> dict[str, np.ndarray]:
    """Labels and masks of the type to predict, as training reads them (:func:`as_trained`)."""
    arrays, given = source.node_arrays.get(task.target, {}), source.given.get(task.target, {})
    return {name: as_trained(name, arrays[name], task.target, given, task)
            for name in (task.label, *MASKS) if name in arrays}


def class_labels(array: np.ndarray, what: str, unlabelled: float | None = None) -> np.ndarray:
    """One class per row as whole numbers, -1 where there is none: NaN, or the value `unlabelled`.

    Raises
    ------
    InputError
        Several labels per row, labels that are not whole numbers, several values below 0.
    """
    if array.ndim == 2 and array.shape[1] == 1:
        array = array.reshape(-1)
    if array.ndim != 1:
        raise InputError(f"{what} has shape {array.shape}; labels must be one class per node")
    if array.dtype.kind not in "biuf":
        raise InputError(f"{what} holds {array.dtype} values; labels must be integers")
    if array.dtype.kind == "u" and int(array.max(initial=0)) < 2**63:
        array = array.astype(np.int64)
    missing = np.zeros(len(array), np.bool_) if unlabelled is None else array == unlabelled
    if array.dtype.kind == "f":
        missing |= np.isnan(array)
        known = array[~missing]
        if (wrong := known[np.isinf(known) | (known != np.floor(known))]).size:
            raise InputError(f"{what} holds {wrong[0]}; labels must be whole class numbers, no "
                             "fractions, or NaN where there is none; if these are numbers to "
                             "predict, name the kind regression")
        exact = 2 ** (np.finfo(array.dtype).nmant + 1)
        if (wrong := known[np.abs(known) > exact]).size:
            raise InputError(f"{what} holds {wrong[0]:.0f} as {array.dtype}, which rounds whole "
                             f"numbers beyond ±{exact:,}; save labels as int64")
    elif array.dtype.kind == "u" and missing.any():
        raise InputError(f"{what} holds {array.max():,}, and nodes without a label; labels must "
                         "then be below 2^63")
    if missing.any():
        array = np.where(missing, -1, array)
    if array.dtype.kind != "u" and array.dtype != np.int64:
        array = array.astype(np.int64)
    if ((array < 0) & (array != array.min(initial=0))).any():
        below = np.unique(array[array < 0])
        raise InputError(f"{what} holds {below[0]} and {below[1]}; one value below 0 may stand "
                         "for no class, several are codes: number the classes from 0")
    return array


def _numbered(labels: np.ndarray, what: str, info: dict[str, Any] | None) -> np.ndarray:
    """Codes as their places among all codes, which `info` then has for the names of classes."""
    codes = np.unique(labels[labels >= 0])
    if info is None or len(codes) > MOST_CLASSES:
        raise InputError(
            f"{what} holds {codes[-1]:,}, and {len(codes):,} different labels; there may be "
            f"{MOST_CLASSES:,} classes" + (
                "" if len(codes) > MOST_CLASSES else "; larger numbers are codes: number them from "
                "0 (numpy.unique(labels, return_inverse=True))"))
    info["classes"] = [str(code) for code in codes.tolist()]
    places = np.searchsorted(codes, labels)
    return np.where(labels < 0, -1, places)


def _kind_of(array: np.ndarray, chosen: np.ndarray | None) -> str:
    """The kind of task that labels are for, by the type and the shape of the rows that a mask has.

    One number per node is a class, if it is whole (NaN aside), else a number to predict; several
    are labels, or numbers to predict if some are not whole.
    """
    values = array if chosen is None else array[chosen]
    whole = values.dtype.kind != "f" or bool(
        (np.isnan(values) | (values == np.floor(values))).all())
    if not whole:
        return "regression"
    return "multilabel" if values.ndim == 2 and values.shape[1] > 1 else "classification"


def joined_labels(parts: Sequence[tuple[np.ndarray, np.ndarray]], count: int, what: str
                  ) -> np.ndarray:
    """The labels of `count` nodes, of which some are given: node ids, and a label for each.

    The others have none: -1 in whole numbers (nodes,), else NaN.

    Raises
    ------
    InputError
        Labels of different forms, or that are not numbers; two labels of one node.
    """
    labels = [values for _, values in parts] or [np.empty(0, np.int64)]
    forms = {values.shape[1:] for values in labels}
    if len(forms) > 1 or any(values.dtype.kind not in "biuf" for values in labels):
        raise InputError(f"{what} are {listing(f'{v.dtype}{list(v.shape)}' for v in labels)}; they "
                         "must be numbers, as many for each node")
    dtype = np.result_type(*labels)
    whole = forms == {()} and np.can_cast(dtype, np.int64)
    joined = np.full((count, *forms.pop()), -1 if whole else np.nan,
                     np.int64 if whole else np.result_type(dtype, np.float32))
    for ids, values in parts:
        joined[ids] = values
    for ids, values in parts:
        apart = joined[ids] != values.astype(joined.dtype)
        if joined.dtype.kind == "f":
            apart &= ~(np.isnan(joined[ids]) & np.isnan(values))
        if (wrong := apart.reshape(len(ids), -1).any(1)).any():
            at = int(np.argmax(wrong))
            raise InputError(f"{what} are two for node {ids[at]}: {values[at].tolist()} and "
                             f"{joined[ids[at]].tolist()}; give each node one")
    return joined


def node_mask(ids: np.ndarray, count: int, what: str) -> np.ndarray:
    """A bool array of `count` entries that is true at the node ids."""
    check_ids(ids, count, what)
    mask = np.zeros(count, np.bool_)
    mask[ids] = True
    return mask


def check_ids(ids: np.ndarray, count: int, what: str) -> None:
    """Refuse anything but a list of node ids below `count`."""
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise InputError(f"{what} has shape {ids.shape} and type {ids.dtype}; it must be a "
                         "one-dimensional array of node ids")
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= count):
        worst = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
        raise InputError(f"{what} names node {worst}; node ids go from 0 to {count - 1}")


def node_task(target: str, num_classes: int | None, label: str,
              node_arrays: Mapping[str, dict[str, np.ndarray]],
              node_types: Mapping[str, int], kind: str | None = None,
              unlabelled: float | None = None, info: dict[str, Any] | None = None) -> Task:
    """The task of predicting `label` of `target`; its labels are brought into the common form.

    Parameters
    ----------
    num_classes : default: as many as the largest label says. Where that is more than a task may
        have, labels are codes, which are numbered from 0.
    kind : default: what follows from the labels of the nodes in masks.
    unlabelled : a value that stands for no label, besides NaN.
    info : of the graph: it has the codes then, as names of classes.

    Raises
    ------
    InputError
        An unknown target, no such labels, labels that are not of the kind, beyond the number of
        classes, or missing at a training node.
    """
    if target not in node_types:
        raise InputError(
            f"target node type '{target}' is not in the graph; node types: {listing(node_types)}"
            + nearest(target, node_types)
        )
    arrays = node_arrays.get(target, {})
    if label not in arrays:
        raise InputError(
            f"target node type '{target}' has no labels: no array '{label}'; its arrays: "
            f"{listing(arrays)}" + nearest(label, arrays)
        )
    what = f"array '{label}' of node type '{target}'"
    if num_classes is not None and num_classes < 1:
        raise InputError(f"num_classes is {num_classes}; it must be at least 1")
    masks = [arrays[name] for name in MASKS if name in arrays]
    kind = kind or _kind_of(arrays[label], np.logical_or.reduce(masks) if masks else None)
    if kind == "classification":
        class_ids = class_labels(arrays[label], what, unlabelled)
        largest = int(class_ids.max(initial=0)) if (class_ids >= 0).any() else -1
        if num_classes is None and largest < 0:
            raise InputError(f"{what} labels no node; at least one must have a class")
        if num_classes is None and largest >= MOST_CLASSES:
            class_ids = _numbered(class_ids, what, info)
        elif num_classes is not None and largest >= num_classes:
            raise InputError(f"{what} holds class {largest}, but num_classes is {num_classes}; "
                             f"classes go from 0 to {num_classes - 1}" + (
                                 "; leave num_classes out to have codes numbered"
                                 if largest >= MOST_CLASSES else ""))
        arrays[label] = class_ids
        unlabelled = None if unlabelled is None else -1
    labels = NodeLabels(arrays[label], kind, num_classes, unlabelled, what)
    if num_classes not in (None, labels.outputs):
        raise InputError(f"num_classes is {num_classes}, but {what} is for {kind}, with "
                         f"{several(labels.outputs, 'number')} per node; leave num_classes out, or "
                         "name another kind")
    if TRAIN_MASK in arrays:  # all masks are checked before a store is written
        for nodes in masked(arrays[TRAIN_MASK]):
            labels.check(nodes, TRAIN_MASK)
    return Task(target, labels.outputs, label, kind, unlabelled)
