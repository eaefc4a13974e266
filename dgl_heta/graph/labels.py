"""Labels of nodes: what they hold for each kind of task, and which nodes and entries have one.

Readers, the writer of a store, its checks and training ask here, so that all of them accept and
refuse the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dgl_heta.errors import InputError
from dgl_heta.graph.source import KINDS, MOST_CLASSES

_NODES = 1 << 18
"""Nodes whose labels are looked at together."""
_NEEDS = {"classification": "whole numbers (nodes,)",
          "multilabel": "zeros and ones (nodes, labels)",
          "regression": "numbers (nodes,) or (nodes, outputs)"}


@dataclass(frozen=True)
class NodeLabels:
    """The labels of the nodes of a type, for a kind of task.

    Parameters
    ----------
    array : classification: classes, (nodes,); multilabel: 0 and 1, (nodes, labels); regression:
        numbers, (nodes,) or (nodes, outputs). NaN is of no label.
    kind : one of :data:`~dgl_heta.graph.source.KINDS`.
    classes : number of classes of a classification; default: the largest label plus one.
    unlabelled : a further value of nodes and entries that have no label.
    what : whose they are, for errors.

    Raises
    ------
    InputError
        An unknown kind, an array of another form, more than
        :data:`~dgl_heta.graph.source.MOST_CLASSES`.
    """

    array: np.ndarray
    kind: str
    classes: int | None = None
    unlabelled: float | None = None
    what: str = "labels"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"task kind '{self.kind}' is unknown; known are {', '.join(KINDS)}")
        if self.unlabelled is not None and not np.isfinite(self.unlabelled):
            raise InputError(f"{self.what}: unlabelled is {self.unlabelled}; it must be a finite "
                             "number: NaN stands for no label in any case")
        dimensions = {"classification": (1,), "multilabel": (2,), "regression": (1, 2)}[self.kind]
        numbers = "iub" if self.kind == "classification" else "iubf"
        if self.array.ndim not in dimensions or self.array.dtype.kind not in numbers:
            raise InputError(f"{self.what} is {self.array.dtype}{list(self.array.shape)}, but a "
                             f"task of kind '{self.kind}' needs {_NEEDS[self.kind]}; name another "
                             "kind or another array of labels (task.kind, task.label)")
        if self.outputs < 1 and self.kind == "classification" and self.classes is None:
            raise InputError(f"{self.what} labels no node; at least one must have a class")
        if not 1 <= self.outputs <= MOST_CLASSES:
            columns = "classes" if self.kind == "classification" else "columns"
            raise InputError(f"{self.what} has {self.outputs:,} {columns}; there must be from 1 to "
                             f"{MOST_CLASSES:,}" + (
                                 "; larger numbers are codes, which readers number where nobody "
                                 "says the number of classes" if columns == "classes" else ""))

    @cached_property
    def outputs(self) -> int:
        """Classes, labels or numbers to predict of a node."""
        if self.kind != "classification":
            return int(np.prod(self.array.shape[1:], dtype=np.int64))
        if self.classes is not None:
            return int(self.classes)
        known = [values[self._known(values)] for _, values in self._pieces(
            np.arange(len(self.array)))]
        return max((int(values.max()) for values in known if len(values)), default=-1) + 1

    def labelled(self, nodes: np.ndarray) -> np.ndarray:
        """Those of some nodes, int64, that have a label, or at least one of several."""
        if self.unlabelled is None and self.array.dtype.kind != "f":
            return nodes
        kept = [ids[self._known(values).reshape(len(ids), -1).any(1)]
                for ids, values in self._pieces(nodes)]
        return np.concatenate(kept) if kept else nodes

    def rows(self, nodes: np.ndarray, where: str = "a batch") -> np.ndarray:
        """The labels of some nodes: int64 classes (nodes,), else float64 (nodes, outputs), NaN
        where there is none.

        Raises
        ------
        InputError
            One is no label; `where` says what the node is in.
        """
        values = np.asarray(self.array[nodes])
        if fault := self._fault(nodes, values, where):
            raise InputError(f"{self.what}: {fault}")
        if self.kind == "classification":
            return values.astype(np.int64, copy=False)
        rows = np.where(self._known(values), values, np.nan).astype(np.float64, copy=False)
        return rows.reshape(len(nodes), self.outputs)

    def fault(self, nodes: np.ndarray, where: str) -> str:
        """Return what is wrong with the labels of some nodes, or "". `where` names the labels."""
        for ids, values in self._pieces(nodes):
            if self.kind == "classification" and self.unlabelled is not None:
                known = self._known(values)
                ids, values = ids[known], values[known]
            if fault := self._fault(ids, values, where):
                return fault
        return ""

    def check(self, nodes: np.ndarray, where: str) -> None:
        """Check the labels of some nodes; those that have none are right.

        Raises
        ------
        InputError
            One is no label, by its node, its column and its value.
        """
        if fault := self.fault(nodes, where):
            raise InputError(f"{self.what}: {fault}")

    def count(self, nodes: np.ndarray) -> int:
        """Labels that some nodes have: at most as many as nodes times outputs, or as nodes."""
        return sum(int(self._known(values).sum()) for _, values in self._pieces(nodes))

    def _pieces(self, nodes: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Some nodes at a time, with their labels as they are stored."""
        step = max(_NODES // max(int(np.prod(self.array.shape[1:], dtype=np.int64)), 1), 1)
        for low in range(0, len(nodes), step):
            ids = nodes[low:low + step]
            yield ids, np.asarray(self.array[ids])

    def _known(self, values: np.ndarray) -> np.ndarray:
        return known_entries(values, self.unlabelled)

    def _fault(self, nodes: np.ndarray, values: np.ndarray, where: str) -> str:
        if self.kind == "classification":
            wrong = (values < 0) | (values >= self.outputs)
        elif self.kind == "multilabel":
            wrong = ~((values == 0) | (values == 1)) & self._known(values)
        else:
            wrong = np.isinf(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)
        if not wrong.any():
            return ""
        row, *column = np.argwhere(wrong)[0].tolist()
        value = values[(row, *column)].item()
        said = f"node {nodes[row]} is in {where} and has "
        empty = self.kind == "classification" and value == -1
        unknown = (f"if {value:g}{' (as NaN and empty cells are read)' * empty} stands for no "
                   f"label, {unlabelled_text(value)}")
        if self.kind == "classification":
            return (f"{said}label {value}; labels go from 0 to {self.outputs - 1}"
                    + (f"; {unknown}, or take the node out of the mask" if value < 0 else ""))
        if self.kind == "multilabel":
            return (f"{said}{value} for label {column[0]}; a label is 0 or 1: "
                    + ("if it stands for no, write 0; " if value < 0 else
                       "if these are numbers to predict, name the kind regression; ") + unknown)
        return f"{said}{value}; numbers must be finite, or NaN where there is none"


def known_entries(values: np.ndarray, unlabelled: float | None) -> np.ndarray:
    """Which entries of labels are there, bool of the same shape: no NaN, nor the value that stands
    for none."""
    known = ~np.isnan(values) if values.dtype.kind == "f" else np.ones(values.shape, np.bool_)
    if unlabelled is not None:
        # A value such as 0.1 has other digits in single precision.
        known &= values != (values.dtype.type(unlabelled) if values.dtype.kind == "f"
                            else unlabelled)
    return known


def in_mask(mask: np.ndarray) -> np.ndarray:
    """The nodes of a mask, ascending; any number but 0 is true."""
    # To count bools NumPy sums their bytes, which in a damaged file may be others than 0 and 1.
    return np.flatnonzero(mask.view(np.uint8) if mask.dtype == np.bool_ else mask)


def masked(*masks: np.ndarray) -> Iterator[np.ndarray]:
    """The nodes that are in any of some masks (bool, of one length), ascending, some at a time."""
    for start in range(0, len(masks[0]) if masks else 0, _NODES):
        yield start + in_mask(np.logical_or.reduce(
            [mask[start:start + _NODES] for mask in masks]))


def unlabelled_text(value: float) -> str:
    """How one says that a value of labels stands for none."""
    return (f"say so by unlabelled = {value:g} (of the task in metadata.json, FILE:unlabelled="
            f"{value:g} of other files, task.unlabelled of a store)")
