"""Columns of a table of nodes as what training reads: labels and masks.

Class names are sorted: whole numbers by value, other text by code points.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.errors import InputError, listing, nearest
from dgl_heta.graph.readers.column_values import NUMBERS, arrow, as_text, first, matrix, sort_of
from dgl_heta.graph.readers.table_reader import MISSING, ColumnTable
from dgl_heta.graph.source import MASKS, MOST_CLASSES
from dgl_heta.system.disk import array_of, forget

NO_NUMBER = ("", *MISSING, "NA", "N/A", "n/a", "<NA>", "null", "NULL", "None", "NaT", r"\N")
"""Texts that programs write where there is no number or no time."""


@dataclass(frozen=True)
class Labels:
    """The names of the classes of labels, none where they have none."""

    names: tuple[str, ...] = ()

    def info(self) -> dict[str, Any]:
        """Return the entry for a store."""
        return {"classes": list(self.names)} if self.names else {}


def task_columns(table: ColumnTable, label: str, kind: str, classes: int | None,
                 arrays: dict[str, np.ndarray], unlabelled: float | None = None,
                 file: Path | None = None) -> Labels:
    """Read the labels and the masks of a task, where no array of that name is there already.

    Parameters
    ----------
    classes : the number of classes; labels are then whole numbers below it. Without, the values
        of the column are the names of classes, whole numbers below 0 of none.
    arrays : the arrays of the target, which these are added to.
    unlabelled : a number that stands for no class.
    file : a new `.npy` file for classes, which are a map of it then.

    Raises
    ------
    InputError
        No such column, or values that cannot be labels or masks.
    """
    for name in MASKS:
        if name in table.names and name not in arrays:
            arrays[name] = _mask(table, name)
    if label in arrays:
        return Labels()
    if label not in table.names:
        raise InputError(f"{table.path} has no column '{label}' of labels; its columns: "
                         f"{listing(table.names)}; say which it is by \"label\" of \"task\""
                         + nearest(label, table.names))
    if kind == "classification":
        arrays[label], labels = class_column(table, label, classes, unlabelled, file)
        return labels
    arrays[label] = rows = numbers(table, label)
    if rows.shape[1] == 1 and kind == "regression":
        arrays[label] = rows[:, 0]
    return Labels()


def class_column(table: ColumnTable, name: str, classes: int | None, unlabelled: float | None,
                 file: Path | None = None) -> tuple[np.ndarray, Labels]:
    """Classes as int64, -1 where the column is empty, a whole number below 0 or `unlabelled`."""
    pa, pc = arrow(), arrow("pyarrow.compute")
    empty = pa.array(("", *MISSING) if table.is_text else ("",), pa.large_string())

    def texts(piece: ColumnTable) -> Any:
        column = piece.column(name, ("text", *NUMBERS), "labels must be text or whole numbers")
        text = as_text(column)
        if sort_of(column.type) in ("float", "decimal"):  # as pandas has whole ones, some missing
            whole = pc.fill_null(pc.match_substring_regex(text, "^-?[0-9]+$"), True)
            if (row := first(pc.invert(whole))) is not None:
                raise piece.wrong(name, row, column, "; classes are text or whole numbers, and "
                                  "empty where there is none")
        return pc.if_else(pc.is_in(text, value_set=empty), None, text)

    table.check(name)
    count, seen = 0, pa.array([], pa.large_string())
    for piece in table.pieces([name]):
        text = texts(piece)
        count += len(text)
        seen = pc.unique(pa.chunked_array([seen, pc.unique(text)]))
    seen = text = pc.drop_null(seen)
    if pc.all(pc.match_substring_regex(text, r"^-?[0-9]+(\.0+)?$")).as_py():
        text = pc.replace_substring_regex(text, r"\.0+$", "")  # as pandas writes such, some missing
    text = pc.if_else(pc.match_substring_regex(text, "^-[0-9]+$"), None, text)
    if unlabelled is not None and float(unlabelled).is_integer():
        text = pc.if_else(pc.equal(text, str(int(unlabelled))), None, text)
    names: list[str] = []
    wrong = np.zeros(len(seen) + 1, np.bool_)
    if classes is not None:
        right = pc.fill_null(pc.match_substring_regex(text, "^[0-9]{1,9}$"), True)
        wrong[:-1] = ~np.asarray(right)
        codes = pc.cast(pc.if_else(right, text, None), pa.int64())
    else:
        known = pc.drop_null(pc.unique(text))
        if not 0 < len(known) <= MOST_CLASSES:
            raise InputError(f"column '{name}' of {table.path} has {len(known):,} different "
                             f"labels; there must be between 1 and {MOST_CLASSES:,}")
        names = known.to_pylist()
        digits = all(value.isascii() and value.isdigit() for value in names)
        names.sort(key=(lambda value: (len(value.lstrip("0")), value.lstrip("0"), value))
                   if digits else None)
        codes = pc.index_in(text, value_set=pa.array(names, pa.large_string()))
    of_seen = np.append(np.asarray(pc.fill_null(codes, -1), np.int64), -1)
    values, low = array_of(file, np.int64, (count,)), 0
    for piece in table.pieces([name]):
        text = texts(piece)
        places = np.asarray(pc.fill_null(pc.index_in(text, value_set=seen), len(seen)))
        if (row := first(wrong[places])) is not None:
            raise piece.wrong(name, row, text, ", but num_classes is given, so that labels are "
                              "whole numbers; leave it out to take them as names")
        values[low:low + len(text)] = of_seen[places]
        forget(values)
        low += len(text)
    return values, Labels(tuple(names))


def numbers(table: ColumnTable, name: str, column: Any = None, use: str = "", some: bool = True
            ) -> np.ndarray:
    """A column of numbers, or of lists of as many, as float64 (rows, numbers in a row).

    NaN where a number or a whole row is missing.

    Parameters
    ----------
    column : what was read of it, if it was.
    some : whether a row at least must have a number.

    Raises
    ------
    InputError
        A value that is no number or not finite, by its row; lists of different lengths; no number
        at all.
    """
    pa, pc = arrow(), arrow("pyarrow.compute")
    if column is None:
        (column,) = table.columns([name], use)
    wanted = f"it must be a finite number{' with a decimal comma' * (table.form.decimal == ',')}"
    values = column
    if sort_of(column.type) == "text":
        point = r"\." if table.form.decimal == "." else table.form.decimal
        form = rf"^ *[+-]?([0-9]+{point}?[0-9]*|{point}[0-9]+)([eE][+-]?[0-9]{{1,3}})? *$"
        right = pc.match_substring_regex(column, form)
        missing = pc.is_in(column, value_set=pa.array([*NO_NUMBER, None], pa.large_string()))
        if (row := first(pc.invert(pc.or_(missing, pc.fill_null(right, False))))) is not None:
            raise table.wrong(name, row, column, f"; {wanted}" + _decimal_comma(table, column[row]))
        text = pc.replace_substring(pc.if_else(missing, "nan", column), table.form.decimal, ".")
        values = pc.cast(pc.replace_substring_regex(text, r"^ *\+?([^ ]+) *$", r"\1"), pa.float64())
    else:
        table.check_sort(name, column, (*NUMBERS, "list"), "they must be numbers, or lists of as "
                         "many numbers in each row")
    rows = matrix(values)
    if rows is None:
        lengths = pc.list_value_length(column)
        known = np.flatnonzero(lengths.is_valid())
        counts = lengths.drop_null().to_numpy()
        if (odd := first(counts != counts[:1])) is not None:
            raise InputError(f"{table.at(known[odd])}: column '{name}' has a list of "
                             f"{counts[odd]}, but one of {counts[0]} in {table.at(known[0])}; "
                             "all rows must have as many numbers")
        raise InputError(f"column '{name}' of {table.path} holds {column.type} values; each row "
                         "must have a list of numbers, as many as the others")
    if (row := first(np.isinf(rows).any(1))) is not None:
        if sort_of(column.type) == "list":
            raise InputError(f"{table.at(row)}: column '{name}' has an infinite number")
        raise table.wrong(name, row, column, f"; {wanted}")
    if some and not (~np.isnan(rows)).any():
        raise InputError(f"column '{name}' of {table.path} has no number in any row")
    return rows


def _decimal_comma(table: ColumnTable, value: Any) -> str:
    text = value.as_py() or ""
    return ('; a decimal comma is said by "decimal": "," beside "table"'
            if table.form.decimal == "." and "," in text and "." not in text else "")


def _mask(table: ColumnTable, name: str) -> np.ndarray:
    """A column of truth values: bool, 0 and 1, or the words true and false in a CSV."""
    pa, pc = arrow(), arrow("pyarrow.compute")
    wanted = "a mask is true or false, 1 or 0"
    column = table.column(name, ("text", "whole", "float", "truth"), wanted)
    text = pc.utf8_lower(as_text(column))
    yes = pc.is_in(text, value_set=pa.array(["1", "true", "1.0"], pa.large_string()))
    no = pc.is_in(text, value_set=pa.array(["0", "false", "0.0"], pa.large_string()))
    if (row := first(pc.invert(pc.or_(yes, no)))) is not None:
        raise table.wrong(name, row, column, f"; {wanted}")
    mask: np.ndarray = yes.to_numpy(zero_copy_only=False)
    return mask
