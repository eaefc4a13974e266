"""Seeds with times: rows of (node, time), of a table (`task.table`) or of a type's own rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from dgl_heta.errors import InputError, listing, several
from dgl_heta.graph.labels import NodeLabels
from dgl_heta.graph.readers.arrays import class_labels
from dgl_heta.graph.readers.columns import numbers
from dgl_heta.graph.readers.named import IdColumns
from dgl_heta.graph.readers.splits import WORDS, split_words
from dgl_heta.graph.readers.table_reader import ColumnTable
from dgl_heta.graph.readers.times import column_seconds, read_instant
from dgl_heta.graph.source import ALWAYS, MASKS, check_seconds
from dgl_heta.settings import TaskSettings
from dgl_heta.store import Store

_ENDINGS = (".parquet", ".csv", ".arrow", ".feather")


@dataclass(frozen=True)
class SeedTable(NodeLabels):
    """Labels of nodes at times, a row of the array for each; a node at any number of times.

    Parameters
    ----------
    pairs : nodes and times, int64 (rows, 2), each once.
    part : int8 (rows,), 0, 1 or 2 for rows of training, validation and test, -1 for none of them.
    """

    pairs: np.ndarray = field(default_factory=lambda: np.empty((0, 2), np.int64))
    part: np.ndarray = field(default_factory=lambda: np.empty(0, np.int8))

    def used(self, split: str) -> np.ndarray:
        """The rows of a split that have a label, ascending."""
        return self.labelled(np.flatnonzero(self.part == WORDS.index(split)))

    @cached_property
    def order(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All times, the keys of pairs, ascending, and their rows."""
        times = np.unique(self.pairs[:, 1])
        keys = self.pairs[:, 0] * len(times) + np.searchsorted(times, self.pairs[:, 1])
        rows = np.argsort(keys, kind="stable")
        return times, keys[rows], rows

    def rows(self, pairs: np.ndarray, where: str = "a batch") -> np.ndarray:
        """The labels of some pairs, as :class:`NodeLabels` has them of nodes. Raise an
        :class:`InputError` if the table has none of one."""
        times, keys, rows = self.order
        places = np.minimum(np.searchsorted(keys, pairs[:, 0] * len(times) + np.searchsorted(
            times, pairs[:, 1])), len(keys) - 1)
        if len(wrong := np.flatnonzero((self.pairs[rows[places]] != pairs).any(1))):
            node, time = pairs[wrong[0]]
            raise InputError(f"{self.what} is of no seed {node} at {said(time)}, so it has no "
                             "label; take a split of the task")
        return super().rows(rows[places], where)


def said(time: int) -> str:
    """A time as messages name it."""
    return f"{np.datetime64(int(time), 's')}Z"


def seed_files(path: str | Path) -> list[Path]:
    """The files of a table of seeds: itself, or one for each split in a directory. Raise an
    :class:`InputError` if there is no such file."""
    path = Path(path)
    if not path.is_dir():
        if not path.is_file():
            raise InputError(f"task.table: there is no file {path}")
        return [path]
    for ending in _ENDINGS:
        files = [path / f"{word}{ending}" for word in WORDS]
        if all(file.is_file() for file in files):
            return files
    raise InputError(f"task.table: {path} has no files train, val and test ({listing(_ENDINGS)})")


def seed_table(store: Store, ntype: str, task: TaskSettings, labels: NodeLabels | None
               ) -> SeedTable:
    """The seeds of a task on a graph with times.

    Parameters
    ----------
    labels : of the type's own rows, where there is no `task.table`: each row is a seed at its own
        time then.

    Raises
    ------
    InputError
        A file that is no such table, an id that no node has, a seed that is given twice, one from
        before its node's row or before all data; nothing that says what is for training.
    """
    table = None if task.table is None else ColumnTable(Path(task.table), seed_files(task.table))
    rows = store.row_times(ntype)
    part = None
    if table is None:
        if rows is None:
            raise InputError(f"the graph has times, but rows of '{ntype}' have none, so nothing "
                             "says when to predict; give a table of ids, times and labels "
                             "(task.table)")
        nodes, times = np.arange(len(rows)), np.asarray(rows)
        up = times
        if task.val_time is None and task.test_time is None:
            part = np.full(len(rows), -1, np.int8)
            for number, name in reversed([*enumerate(MASKS)]):
                if store.has_array(ntype, name):
                    part[np.asarray(store.array(ntype, name), bool)] = number
    else:
        id_, time, label = task.columns
        own = store.ids(ntype)
        table.check(id_, f" of ids of '{ntype}' (task.columns)")
        nodes = IdColumns().numbers(table, id_, ntype, store.schema.node_counts[ntype],
                                    None if own is None else own.to_arrow()).astype(np.int64)
        times, up = column_seconds(table, time)
        labels = _labels(table, label, store, ntype, task)
        part = split_of(table)
    part = split_by_time(part, times, task)
    assert labels is not None
    seeds = SeedTable(labels.array, labels.kind, labels.classes, labels.unlabelled, labels.what,
                      np.stack([nodes, times], 1), part)
    _check(seeds, up, store, ntype, (lambda row: f"node {row} of '{ntype}'")
           if table is None else table.at)
    return seeds


def _labels(table: ColumnTable, name: str, store: Store, ntype: str, task: TaskSettings
            ) -> NodeLabels:
    """The labels of a table's rows."""
    features = store.manifest.info.get("columns", {})
    if name in [record.get("column") for record in features.get(ntype, ())]:
        raise InputError(f"column '{name}' of {table.path} is the label, and a feature of "
                         f"'{ntype}', too; leave it out of the features")
    rows, what = numbers(table, name), f"column '{name}' of {table.path}"
    if task.kind == "classification":
        return NodeLabels(class_labels(rows, what, task.unlabelled), "classification", None, -1,
                          what)
    rows = rows[:, 0] if task.kind == "regression" and rows.shape[1] == 1 else rows  # as of nodes
    return NodeLabels(rows, str(task.kind), None, task.unlabelled, what)


def split_of(table: ColumnTable) -> np.ndarray | None:
    """The split of each row, by the file or the word that it has."""
    if table.path.is_dir():
        return np.repeat(np.arange(len(WORDS), dtype=np.int8), table.counts)
    if "split" in table.names:
        return split_words(table, "split", " of task.table").astype(np.int8)
    return None


def split_by_time(part: np.ndarray | None, times: np.ndarray, task: TaskSettings) -> np.ndarray:
    """The split of each seed, int8, by its time where nothing else says it (`part`). Raise an
    :class:`InputError` if nothing says it, or both do."""
    bounds = [None if text is None else read_instant(text, f"task.{name}") for name, text in (
        ("val_time", task.val_time), ("test_time", task.test_time))]
    if part is not None:
        if any(bound is not None for bound in bounds):
            raise InputError(f"{task.table or 'the graph'} says which rows are for training, "
                             "validation and test; leave task.val_time and task.test_time out")
        return part
    val, test = bounds
    if val is None and test is None:
        raise InputError(f"nothing says which {f'rows of {task.table}' if task.table else 'links'} "
                         "are for training: give task.val_time and task.test_time, the times from "
                         "which they are for validation and test"
                         + ", or a column 'split'" * (task.table is not None))
    if val is not None and test is not None and val >= test:
        raise InputError(f"task.val_time = {task.val_time} must be before task.test_time = "
                         f"{task.test_time}")
    last = np.inf if test is None else test
    return np.add(times >= (last if val is None else val), times >= last, dtype=np.int8)


def _check(seeds: SeedTable, up: np.ndarray, store: Store, ntype: str, name: Callable[[int], str]
           ) -> None:
    """Refuse seeds that a model must not be asked for; `name` says which a row is.

    `up` are their times rounded up, as those of rows are: a seed may be at the time of its row.
    """
    used = np.concatenate([seeds.used(word) for word in WORDS])
    seeds.check(used, "a split")
    _, keys, order = seeds.order
    if len(again := np.flatnonzero(np.diff(keys) == 0)):
        one, two = order[again[0]:again[0] + 2].tolist()
        raise InputError(f"{name(two)}: it is of the same node at the same time as {name(one)}; "
                         "give each once")
    check_seeds(np.stack([seeds.pairs[:, 0], up], 1)[used], store, ntype,
                lambda row: name(int(used[row])))


def check_seeds(pairs: np.ndarray, store: Store, ntype: str, name: Callable[[int], str]) -> None:
    """Refuse seeds, int64 (seeds, 2) nodes and times, without a time, from before all data or
    their row, or after the year 9999; `name` says which one is."""
    times, first, rows = pairs[:, 1], store.first_time(), store.row_times(ntype)
    if (times == ALWAYS).any():
        raise InputError(f"{name(int(np.flatnonzero(times == ALWAYS)[0]))}: the seed has no time")
    check_seconds(times, lambda at: f"{name(at)}: the seed")
    if first is not None and len(wrong := np.flatnonzero(times < first)):
        raise InputError(f"{name(int(wrong[0]))}: the seed is at {said(times[wrong[0]])}, before "
                         f"all data, which begin at {said(first)}; "
                         f"{several(len(wrong), 'seed')} of {len(times):,} are such")
    if rows is not None and len(wrong := np.flatnonzero(times < rows[pairs[:, 0]])):
        node, time = pairs[wrong[0]]
        raise InputError(f"seed {node} of '{ntype}' is at {said(time)}, before its row, which is "
                         f"of {said(rows[node])}; {several(len(wrong), 'seed')} of "
                         f"{len(times):,} are such")
