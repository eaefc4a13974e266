"""Columns of a table of nodes as what training reads: labels and masks.

Class names are sorted: whole numbers by value, other text by code points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dgl_heta.errors import InputError, listing, nearest, quoted
from dgl_heta.graph.readers.tables import MISSING, Table, arrow, first, is_text, plain, whole
from dgl_heta.graph.source import MASKS

MOST_CLASSES = 1 << 16


@dataclass(frozen=True)
class Labels:
    """What was found out about labels: the names of the classes, none where they have none."""

    names: tuple[str, ...] = ()

    def info(self) -> dict[str, Any]:
        """What a store keeps of it."""
        return {"classes": list(self.names)} if self.names else {}


def task_columns(table: Table, label: str, kind: str, classes: int | None,
                 arrays: dict[str, np.ndarray]) -> Labels:
    """Read the labels and the masks of a task, where no array of that name is there already.

    Parameters
    ----------
    classes : the number of classes; labels are then whole numbers below it. Without, the values
        of the column are the names of classes, whole numbers below 0 of none.
    arrays : the arrays of the target, which these are added to.

    Raises
    ------
    InputError
        No such column, or values that cannot be labels or masks.
    """
    found = Labels()
    for name in MASKS:
        if name in table.names and name not in arrays:
            arrays[name] = _mask(table, name)
    if label in arrays:
        return found
    if label not in table.names:
        raise InputError(f"{table.path} has no column '{label}' of labels; its columns: "
                         f"{listing(table.names)}; say which it is by \"label\" of \"task\""
                         + nearest(label, table.names))
    if kind == "classification":
        arrays[label], found = class_column(table, label, classes)
    elif kind == "regression":
        arrays[label] = numbers(table, label, np.dtype(np.float64))
    else:
        raise InputError(f"labels of kind {kind} are an array with a row per node, not a column of "
                         f"{table.path}; give it in 'arrays'")
    return found


def class_column(table: Table, name: str, classes: int | None) -> tuple[np.ndarray, Labels]:
    """Classes as int64, -1 where the column is empty or a whole number below 0."""
    pa, pc = arrow(), arrow("pyarrow.compute")
    column = plain(table.column(name))
    if not is_text(column.type) and not pa.types.is_boolean(column.type):
        column = _whole_numbers(table, name, column)
    text = whole(pc.cast(column, pa.large_string()))
    empty = pa.array(("", *MISSING) if table.is_text else ("",), pa.large_string())
    text = pc.if_else(pc.is_in(text, value_set=empty), None, text)
    text = pc.if_else(pc.match_substring_regex(text, "^-[0-9]+$"), None, text)
    if classes is not None:
        wrong = pc.invert(pc.fill_null(pc.match_substring_regex(text, "^[0-9]{1,9}$"), True))
        if (row := first(wrong)) is not None:
            raise InputError(f"{table.path}, row {row + 1}: column '{name}' is "
                             f"{quoted(text[row].as_py())}, but num_classes is given, so that "
                             "labels are whole numbers; leave it out to take them as names")
        numbers = pc.fill_null(pc.cast(text, pa.int64()), -1)
        return numbers.to_numpy(zero_copy_only=False), Labels()
    known = pc.drop_null(pc.unique(text)).to_pylist()
    if not 0 < len(known) <= MOST_CLASSES:
        raise InputError(f"column '{name}' of {table.path} has {len(known):,} different labels; "
                         f"there must be between 1 and {MOST_CLASSES:,}")
    digits = all(value.isascii() and value.isdigit() and len(value) < 16 for value in known)
    names = sorted(known, key=(lambda value: (int(value), value)) if digits else None)
    places = pc.index_in(text, value_set=pa.array(names, pa.large_string()))
    values: np.ndarray = pc.fill_null(places, -1).to_numpy(zero_copy_only=False)
    return values.astype(np.int64), Labels(tuple(names))


def numbers(table: Table, name: str, dtype: np.dtype) -> np.ndarray:
    """A column of finite numbers.

    Raises
    ------
    InputError
        A value that is empty, no number or not finite, by its row.
    """
    pa, pc = arrow(), arrow("pyarrow.compute")
    column = whole(plain(table.column(name)))
    if is_text(column.type):
        form = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?$"
        right = pc.fill_null(pc.match_substring_regex(column, form), False)
        values = pc.cast(pc.replace_substring_regex(pc.if_else(right, column, "nan"), r"^\+", ""),
                         pa.float64())
    elif (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
            or pa.types.is_boolean(column.type) or pa.types.is_decimal(column.type)):
        values = pc.cast(column, pa.float64(), safe=False)
    else:
        raise InputError(f"column '{name}' of {table.path} holds {column.type} values; they must "
                         "be numbers")
    found: np.ndarray = pc.fill_null(values, float("nan")).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        found = found.astype(dtype)
    wrong = np.flatnonzero(~np.isfinite(found))
    if len(wrong):
        row = int(wrong[0])
        value = column[row].as_py()
        said = "empty" if value in (None, "") else quoted(value)
        raise InputError(f"{table.path}, row {row + 1}: column '{name}' is {said}; it must be a "
                         "finite number")
    return found


def _mask(table: Table, name: str) -> np.ndarray:
    """A column of truth values: bool, 0 and 1, or the words true and false in a CSV."""
    pa, pc = arrow(), arrow("pyarrow.compute")
    column = whole(plain(table.column(name)))
    text = pc.utf8_lower(pc.cast(column, pa.large_string()))
    truth = pa.array(["1", "true", "1.0"], pa.large_string())
    falsehood = pa.array(["0", "false", "0.0"], pa.large_string())
    yes = pc.is_in(text, value_set=truth)
    known = pc.or_(yes, pc.is_in(text, value_set=falsehood))
    if (row := first(pc.invert(known))) is not None:
        raise InputError(f"{table.path}, row {row + 1}: column '{name}' is "
                         f"{quoted(column[row].as_py())}; a mask is true or false, 1 or 0")
    found: np.ndarray = yes.to_numpy(zero_copy_only=False)
    return found


def _whole_numbers(table: Table, name: str, column: Any) -> Any:
    """Floating point labels (as pandas has them where one is missing) as whole numbers."""
    pa, pc = arrow(), arrow("pyarrow.compute")
    if pa.types.is_integer(column.type):
        return column
    if not pa.types.is_floating(column.type):
        raise InputError(f"column '{name}' of {table.path} holds {column.type} values; labels must "
                         "be text or whole numbers")
    column = whole(pc.cast(column, pa.float64()))
    column = pc.if_else(pc.is_nan(column), None, column)
    right = pc.and_(pc.equal(pc.floor(column), column), pc.less(pc.abs(column), 2.0**31))
    if (row := first(pc.invert(pc.fill_null(right, True)))) is not None:
        raise InputError(f"{table.path}, row {row + 1}: column '{name}' is {column[row].as_py()}; "
                         "classes are text or whole numbers, and empty where there is none")
    return pc.cast(column, pa.int64())
