"""Node arrays as a :class:`~dgl_heta.graph.source.GraphSource` wants them: features, labels, masks.

Every reader passes its arrays through here, so that all of them accept and refuse the same.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dgl_heta.errors import InputError, listing, nearest, several
from dgl_heta.graph.source import KINDS, MASKS, TRAIN_MASK, Given, Task

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
        raise InputError(f"{what} has shape {array.shape}; a mask must be one-dimensional")
    if array.dtype != np.bool_ and not np.isin(array, (0, 1)).all():
        raise InputError(f"{what} holds other values than 0 and 1; a mask must be bool")


def check_finite(name: str, rows: np.ndarray, ntype: str, start: int = 0) -> None:
    """Refuse NaN and infinity in rows of the array `name`, the first of which is row `start`."""
    if rows.dtype.kind == "f" and not (finite := np.isfinite(rows)).all():
        bad = start + int(np.argwhere(~finite)[0][0])
        raise InputError(f"array '{name}' of node type '{ntype}' has a value that is not finite "
                         f"(NaN or infinity), first in row {bad}; replace or drop it")


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
    if task and task.kind == "classification" and (task.target, task.label) == (ntype, name):
        return class_labels(array, f"array '{name}' of node type '{ntype}'")
    if given[name].unfit:
        raise InputError(f"{given[name].unfit} (scripts read it as it is, training cannot)")
    return common_form(name, array)


def class_labels(array: np.ndarray, what: str) -> np.ndarray:
    """One class per row as int64, -1 where there is none (NaN in floating point labels).

    Raises
    ------
    InputError
        Several labels per row, or labels that are not whole numbers.
    """
    if array.ndim == 2 and array.shape[1] == 1:
        array = array.reshape(-1)
    if array.ndim != 1:
        raise InputError(f"{what} has shape {array.shape}; labels must be one class per node")
    if array.dtype.kind == "f":
        missing = np.isnan(array)
        known = array[~missing]
        # The bound keeps the conversion to int64 defined; no data set has that many classes.
        if not (np.all(np.abs(known) < 2**31) and np.all(known == np.floor(known))):
            raise InputError(f"{what} holds fractions; labels must be whole class numbers, or NaN "
                             "where there is none")
        labels = np.full(len(array), -1, np.int64)
        labels[~missing] = known.astype(np.int64)
        return labels
    if array.dtype.kind not in "biu":
        raise InputError(f"{what} holds {array.dtype} values; labels must be integers")
    return array if array.dtype == np.int64 else array.astype(np.int64)


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
              node_types: Mapping[str, int], kind: str = "classification") -> Task:
    """The task of predicting `label` of `target`; its labels are brought into the common form.

    Without `num_classes` there are as many as the largest label says.

    Raises
    ------
    InputError
        An unknown target, no such labels, labels beyond the number of classes, or training
        nodes without a label.
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
    if kind not in KINDS:
        raise InputError(f"task kind '{kind}' is unknown; known are {', '.join(KINDS)}")
    if kind != "classification":
        columns = arrays[label].shape[1] if arrays[label].ndim == 2 else 1
        if num_classes not in (None, columns):
            raise InputError(f"num_classes is {num_classes}, but {what} has {columns} columns")
        return Task(target, columns, label, kind)
    labels = arrays[label] = class_labels(arrays[label], what)
    largest = int(labels.max()) if len(labels) else -1
    if num_classes is None:
        if largest < 0:
            raise InputError(f"{what} labels no node; at least one must have a class")
        num_classes = largest + 1
    if num_classes < 1:
        raise InputError(f"num_classes is {num_classes}; it must be at least 1")
    if largest >= num_classes:
        raise InputError(f"{what} holds class {largest}, but num_classes is {num_classes}; classes "
                         f"go from 0 to {num_classes - 1}")
    train = arrays.get(TRAIN_MASK)
    if train is not None:
        unlabelled = int(np.count_nonzero(train & (labels < 0)))
        if unlabelled:
            raise InputError(f"{unlabelled} training nodes of '{target}' have no label; take them "
                             "out of the train mask")
    return Task(target, num_classes, label)
