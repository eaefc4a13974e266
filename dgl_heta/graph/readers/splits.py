"""Which labelled nodes are for training, validation and test: by a column, by ratio, by time."""

from __future__ import annotations

from typing import Any

import numpy as np

from dgl_heta.errors import InputError, quoted
from dgl_heta.graph.readers.column_values import arrow, first
from dgl_heta.graph.readers.table_reader import Table
from dgl_heta.graph.readers.times import Instants, instants
from dgl_heta.graph.source import MASKS

WORDS = ("train", "val", "test")
_KEYS = ("ratios", "seed", "time", "time_format")


def masks_of(split: Any, table: Table, labels: np.ndarray, labelled: np.ndarray, where: str
             ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The three masks, bool, a row per node, and what a store keeps of a split by time.

    Nodes without a label are in none. Of each part the first and the last time are kept.

    Parameters
    ----------
    split : the name of a column with the words train, val and test, or `{"ratios": [0.8, 0.1,
        0.1]}`: at random, in each class by itself, with a `seed`; or, where `time` names a column,
        the first of them for training and the last for test (`time_format`:
        :func:`~dgl_heta.graph.readers.times.instants`).
    labels : of the nodes; of classes, if they are whole numbers.
    where : the entry that says so, for messages.

    Raises
    ------
    InputError
        It is of another form, or a column is not there or of other values.
    """
    record: dict[str, Any] = {}
    if isinstance(split, str):
        part = words(table, split)
    elif isinstance(split, dict) and "ratios" in split and {*split} <= {*_KEYS}:
        times = _times(split, table, labelled, where)
        part = _cut(split, times, labels, labelled, where)
        if times is not None:
            record = {"time": split["time"], **_boundaries(times, part)}
    else:
        raise InputError(f"{where} is {quoted(split, 80)}; it must be the name of a column, or an "
                         "object with ratios, as {\"ratios\": [0.8, 0.1, 0.1]}, and seed, or time "
                         "and time_format")
    masks = {name: (part == i) & labelled for i, name in enumerate(MASKS)}
    if not masks[MASKS[0]].any():
        raise InputError(f"{where} leaves no labelled node of {table.path} for training")
    return masks, record


def words(table: Table, name: str, use: str = " that says which split a node is in"
          ) -> np.ndarray:
    """For each row of a table which of :data:`WORDS` a column has; -1 where it is empty."""
    pa, pc = arrow(), arrow("pyarrow.compute")
    column = table.column(name, ("text",), "a split is one of the words train, val and test", use)
    places = pc.index_in(column, value_set=pa.array(WORDS, pa.large_string()))
    none = pc.fill_null(pc.equal(column, ""), True)
    if (row := first(pc.invert(pc.or_(pc.is_valid(places), none)))) is not None:
        raise table.wrong(name, row, column, "; a split is train, val, test or empty")
    codes: np.ndarray = pc.fill_null(places, -1).to_numpy(zero_copy_only=False)
    return codes


def _times(split: dict[str, Any], table: Table, labelled: np.ndarray, where: str
           ) -> Instants | None:
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
    return instants(table, split["time"], form, labelled)


def _cut(split: dict[str, Any], times: Instants | None, labels: np.ndarray,
         labelled: np.ndarray, where: str) -> np.ndarray:
    """The part of each node, 0 to 2; -1 for those of none."""
    ratios, seed = split["ratios"], split.get("seed", 0)
    if not (isinstance(ratios, list) and len(ratios) == 3
            and all(isinstance(r, int | float) and not isinstance(r, bool) and 0 <= r <= 1
                    for r in ratios) and sum(ratios) <= 1 + 1e-9):
        raise InputError(f"{where}: 'ratios' is {quoted(ratios, 80)}; it must be three numbers "
                         "from 0 to 1, for train, val and test, together at most 1")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise InputError(f"{where}: 'seed' is {quoted(seed, 80)}; it must be a whole number, 0 or "
                         "more")
    nodes = np.flatnonzero(labelled)
    groups: np.ndarray = np.zeros(len(nodes), np.int64)
    order: list[np.ndarray] = [np.arange(len(nodes))]
    if times is not None:
        order += [key[nodes] for key in times.keys]
    else:
        order += [np.random.default_rng(seed).random(len(labels))[nodes]]
        if labels.ndim == 1 and labels.dtype.kind in "iu":
            groups = labels[nodes].astype(np.int64)
    sequence = np.lexsort((*order, groups))
    part = np.full(len(labels), -1, np.int64)
    ends = np.cumsum(ratios)
    for members in np.split(sequence, np.flatnonzero(np.diff(groups[sequence])) + 1):
        low = 0
        for number, end in enumerate(ends):
            high = int(np.floor(end * len(members) + 0.5))
            part[nodes[members[low:high]]] = number
            low = high
    return part


def _boundaries(times: Instants, part: np.ndarray) -> dict[str, list[Any]]:
    """The first and the last time of each part that has nodes."""
    boundaries = {}
    for number, word in enumerate(WORDS):
        members = np.flatnonzero(part == number)
        if len(members):
            order = members[np.lexsort(tuple(key[members] for key in times.keys))]
            boundaries[word] = [times.text(int(order[0])), times.text(int(order[-1]))]
    return boundaries
