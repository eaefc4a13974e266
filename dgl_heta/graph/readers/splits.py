"""Which labelled nodes are for training, validation and test: by a column, by ratio, by time."""

from __future__ import annotations

from typing import Any

import numpy as np

from dgl_heta.errors import InputError, quoted
from dgl_heta.graph.readers.columns import numbers
from dgl_heta.graph.readers.tables import Table, arrow, first, is_text, plain, whole
from dgl_heta.graph.source import MASKS

WORDS = ("train", "val", "test")
_KEYS = ("ratios", "seed", "time")
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9:.]*)?$"


def masks_of(split: Any, table: Table, labels: np.ndarray, labelled: np.ndarray, where: str
             ) -> dict[str, np.ndarray]:
    """The three masks, bool, a row per node; nodes without a label are in none.

    Parameters
    ----------
    split : the name of a column with the words train, val and test, or `{"ratios": [0.8, 0.1,
        0.1]}`: at random, in each class by itself, with a `seed`; or, where `time` names a column,
        the first of them for training and the last for test.
    labels : of the nodes; of classes, if they are whole numbers.
    where : the entry that says so, for messages.

    Raises
    ------
    InputError
        It is of another form, or a column is not there or of other values.
    """
    if isinstance(split, str):
        part = words(table, split)
    elif isinstance(split, dict) and "ratios" in split and {*split} <= {*_KEYS}:
        part = _cut(split, table, labels, labelled, where)
    else:
        raise InputError(f"{where} is {quoted(split, 80)}; it must be the name of a column, or an "
                         "object with ratios, as {\"ratios\": [0.8, 0.1, 0.1]}, and seed or time")
    masks = {name: (part == i) & labelled for i, name in enumerate(MASKS)}
    if not masks[MASKS[0]].any():
        raise InputError(f"{where} leaves no labelled node of {table.path} for training")
    return masks


def words(table: Table, name: str, use: str = " that says which split a node is in"
          ) -> np.ndarray:
    """For each row of a table which of :data:`WORDS` a column has; -1 where it is empty."""
    pa, pc = arrow(), arrow("pyarrow.compute")
    column = whole(plain(table.column(name, use)))
    if not is_text(column.type):
        raise InputError(f"column '{name}' of {table.path} holds {column.type} values; a split is "
                         "one of the words train, val and test")
    places = pc.index_in(pc.cast(column, pa.large_string()),
                         value_set=pa.array(WORDS, pa.large_string()))
    none = pc.fill_null(pc.equal(column, ""), True)
    if (row := first(pc.invert(pc.or_(pc.is_valid(places), none)))) is not None:
        raise InputError(f"{table.path}, row {row + 1}: column '{name}' is "
                         f"{quoted(column[row].as_py())}; a split is train, val, test or empty")
    found: np.ndarray = pc.fill_null(places, -1).to_numpy(zero_copy_only=False)
    return found


def _cut(split: dict[str, Any], table: Table, labels: np.ndarray, labelled: np.ndarray, where: str
         ) -> np.ndarray:
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
    if "time" in split:
        if "seed" in split:
            raise InputError(f"{where} has both 'seed' and 'time'; a split by time is not drawn")
        groups, order = np.zeros(len(nodes), np.int64), _times(table, str(split["time"]))[nodes]
    else:
        whole_numbers = labels.ndim == 1 and labels.dtype.kind in "iu"
        groups = labels[nodes].astype(np.int64) if whole_numbers else np.zeros(len(nodes), np.int64)
        order = np.random.default_rng(seed).random(len(labels))[nodes]
    sequence = np.lexsort((np.arange(len(nodes)), order, groups))
    part = np.full(len(labels), -1, np.int64)
    ends = np.cumsum(ratios)
    for members in np.split(sequence, np.flatnonzero(np.diff(groups[sequence])) + 1):
        low = 0
        for number, end in enumerate(ends):
            high = int(np.floor(end * len(members) + 0.5))
            part[nodes[members[low:high]]] = number
            low = high
    return part


def _times(table: Table, name: str) -> np.ndarray:
    """When a node was: a number, a time of Arrow's, or a date as text, year first."""
    pa, pc = arrow(), arrow("pyarrow.compute")
    column = whole(plain(table.column(name, " of times")))
    if pa.types.is_temporal(column.type):
        if (row := first(pc.is_null(column))) is not None:
            raise InputError(f"{table.path}, row {row + 1}: column '{name}' is empty; every "
                             "labelled node needs a time")
        wide = column if pa.types.is_timestamp(column.type) else pc.cast(column, pa.timestamp("ms"))
        found: np.ndarray = pc.cast(wide, pa.int64()).to_numpy(zero_copy_only=False)
        return found
    if is_text(column.type) and len(column) and pc.any(
            pc.match_substring_regex(column, "^[0-9]{4}-")).as_py():
        right = pc.fill_null(pc.match_substring_regex(column, _DATE), False)
        if (row := first(pc.invert(right))) is not None:
            raise InputError(f"{table.path}, row {row + 1}: column '{name}' is "
                             f"{quoted(column[row].as_py())}; a date is written 2026-11-23, a time "
                             "may follow")
        return np.unique(np.array(column.to_pylist()), return_inverse=True)[1]
    return numbers(table, name, np.dtype(np.float64))
