"""Which labelled nodes are for training, validation and test: by a column, by ratio, by time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.errors import InputError, quoted
from dgl_heta.graph.labels import known_entries
from dgl_heta.graph.readers.column_values import arrow, first
from dgl_heta.graph.readers.table_reader import ColumnTable
from dgl_heta.graph.readers.times import Instants, instants
from dgl_heta.graph.source import MASKS
from dgl_heta.system.disk import forget, row_starts

WORDS = ("train", "val", "test")
_KEYS = ("ratios", "seed", "time", "time_format")


def masks_of(split: Any, table: ColumnTable, labels: np.ndarray, kind: str, where: str,
             unlabelled: float | None = None, file: Path | None = None
             ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The three masks, bool, a row per node, and what a store keeps of a split by time.

    Nodes without a label are in none. Of each part the first and the last time are kept.

    Parameters
    ----------
    split : the name of a column with the words train, val and test, or `{"ratios": [0.8, 0.1,
        0.1]}`: at random, in each class by itself, with a `seed`; or, where `time` names a column,
        the first of them for training and the last for test (`time_format`:
        :func:`~dgl_heta.graph.readers.times.instants`).
    labels : of the nodes, for a task of a `kind`.
    where : the entry that says so, for messages.
    unlabelled : a number that stands for no label, besides NaN, and -1 for no class.
    file : a new file for dates and timestamps, which are not in memory then.

    Raises
    ------
    InputError
        It is of another form, or a column is not there or of other values.
    """
    record: dict[str, Any] = {}
    labelled = known_entries(labels, unlabelled)
    if kind == "classification":
        labelled &= labels >= 0
    labelled = labelled.reshape(len(labels), -1).any(1)
    if isinstance(split, str):
        part = split_words(table, split)
    elif isinstance(split, dict) and "ratios" in split and {*split} <= {*_KEYS}:
        times = _times(split, table, labelled, where, file)
        ratios = _ratios(split, where)
        if times is None:
            part = _drawn(ratios, split.get("seed", 0), labels, labelled, where)
        else:
            part = _by_time(ratios, times, labelled)
            record = {"time": split["time"], **_boundaries(times, part)}
    else:
        raise InputError(f"{where} is {quoted(split, 80)}; it must be the name of a column, or an "
                         "object with ratios, as {\"ratios\": [0.8, 0.1, 0.1]}, and seed, or time "
                         "and time_format")
    masks = {name: (part == i) & labelled for i, name in enumerate(MASKS)}
    if not masks[MASKS[0]].any():
        raise InputError(f"{where} leaves no labelled node of {table.path} for training")
    return masks, record


def split_words(table: ColumnTable, name: str, use: str = " that says which split a node is in"
                ) -> np.ndarray:
    """For each row of a table which of :data:`WORDS` a column has; -1 where it is empty."""
    pa, pc = arrow(), arrow("pyarrow.compute")
    table.check(name, use)
    codes = []
    for piece in table.pieces([name]):
        column = piece.column(name, ("text",), "a split is one of the words train, val and test")
        places = pc.index_in(column, value_set=pa.array(WORDS, pa.large_string()))
        none = pc.fill_null(pc.equal(column, ""), True)
        if (row := first(pc.invert(pc.or_(pc.is_valid(places), none)))) is not None:
            raise piece.wrong(name, row, column, "; a split is train, val, test or empty")
        codes.append(np.asarray(pc.fill_null(places, -1), np.int8))
    return np.concatenate(codes)


def _times(split: dict[str, Any], table: ColumnTable, labelled: np.ndarray, where: str,
           file: Path | None) -> Instants | None:
    """The times that a split is by, if it is."""
    form = split.get("time_format")
    if "time" not in split:
        if form is not None:
            raise InputError(f"{where} has 'time_format', but no 'time', which names a column")
        return None
    if "seed" in split:
        raise InputError(f"{where} has both 'seed' and 'time'; a split by time is not drawn")
    for key in ("time", "time_format"):
        if not isinstance(split.get(key, ""), str):
            raise InputError(f"{where}: '{key}' is {quoted(split[key], 80)}; it must be text")
    return instants(table, split["time"], form, labelled, file)


def _ratios(split: dict[str, Any], where: str) -> list[float]:
    """The shares of train, val and test."""
    ratios = split["ratios"]
    if not (isinstance(ratios, list) and len(ratios) == 3
            and all(isinstance(r, int | float) and not isinstance(r, bool) and 0 <= r <= 1
                    for r in ratios) and sum(ratios) <= 1 + 1e-9):
        raise InputError(f"{where}: 'ratios' is {quoted(ratios, 80)}; it must be three numbers "
                         "from 0 to 1, for train, val and test, together at most 1")
    return ratios


def _ends(ratios: list[float], count: int) -> list[int]:
    """Where the parts of `count` nodes end."""
    return [int(np.floor(end * count + 0.5)) for end in np.cumsum(ratios)]


def _drawn(ratios: list[float], seed: Any, labels: np.ndarray, labelled: np.ndarray, where: str
           ) -> np.ndarray:
    """The part of each node, 0 to 2, at random in each class; -1 for those of none."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise InputError(f"{where}: 'seed' is {quoted(seed, 80)}; it must be a whole number, 0 or "
                         "more")
    nodes = np.flatnonzero(labelled)
    groups: np.ndarray = np.zeros(len(nodes), np.int64)
    order = np.random.default_rng(seed).random(len(labels))[nodes]
    if labels.ndim == 1 and labels.dtype.kind in "iu":
        groups = labels[nodes].astype(np.int64)
    sequence = np.lexsort((order, groups))
    part = np.full(len(labels), -1, np.int8)
    for members in np.split(sequence, np.flatnonzero(np.diff(groups[sequence])) + 1):
        low = 0
        for number, high in enumerate(_ends(ratios, len(members))):
            part[nodes[members[low:high]]] = number
            low = high
    return part


def _by_time(ratios: list[float], times: Instants, labelled: np.ndarray) -> np.ndarray:
    """The part of each labelled node, 0 to 2, the earliest in the first; -1 for those of none."""
    part = np.full(len(labelled), -1, np.int8)
    for number, end in reversed([*enumerate(_ends(ratios, np.count_nonzero(labelled)))]):
        part[_earliest(times, labelled, end)] = number
    return part


def _earliest(times: Instants, chosen: np.ndarray, many: int) -> np.ndarray:
    """Return which are the `many` earliest of chosen rows, those of one time in their order: bool.

    No time is in memory: what time the last of them has is found by halves, in passes.
    """
    if many >= np.count_nonzero(chosen):
        return chosen
    found, left = np.zeros_like(chosen), chosen.copy()
    for key in reversed(times.keys):
        if key.dtype.kind == "f":
            key = np.unique(key, return_inverse=True)[1]
        ends = [(int(part[of].min()), int(part[of].max()))
                for part, of, _ in _pieces(key, left, found) if of.any()]
        low, high = min(least for least, _ in ends), max(most for _, most in ends)
        while low < high:
            middle = (low + high) // 2
            if many < sum(np.count_nonzero((part <= middle) & of)
                          for part, of, _ in _pieces(key, left, found)):
                high = middle
            else:
                low = middle + 1
        for part, of, own in _pieces(key, left, found):
            before = (part < low) & of
            own |= before
            of &= part == low
            many -= np.count_nonzero(before)
    for of, own in _pieces(left, found):
        own |= of & (np.cumsum(of) <= many)
        many = max(many - np.count_nonzero(of), 0)
    return found


def _pieces(*arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Views of arrays of as many rows, some rows at a time."""
    for start in (starts := row_starts(len(arrays[0]), 128)):  # with what is made of them
        yield tuple(array[start:start + starts.step] for array in arrays)
        forget(arrays[0])


def _boundaries(times: Instants, part: np.ndarray) -> dict[str, list[Any]]:
    """The first and the last time of each part that has nodes."""
    boundaries = {}
    for number, word in enumerate(WORDS):
        members = part == number
        if count := np.count_nonzero(members):
            last = members & ~_earliest(times, members, count - 1)
            boundaries[word] = [times.text(int(np.argmax(of)))
                                for of in (_earliest(times, members, 1), last)]
    return boundaries
