"""Files of a data set: paths inside its directory, `.npy` arrays, and edges read in chunks.

Edge files are read, not mapped: pages of a mapping count as memory of the process, so that
streaming a mapped file of 100 GB would look like using 100 GB. Nothing here unpickles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from dgl_heta.errors import HetaError, InputError, listing
from dgl_heta.graph.readers.column_files import TEXT_ENDINGS, ParquetColumns
from dgl_heta.graph.readers.column_values import arrow, sort_of
from dgl_heta.graph.readers.whole_numbers import header_bytes, pairs
from dgl_heta.graph.source import PIECE, EdgeSource
from dgl_heta.system.remote_files import RemotePath, file_path

#: Rows of a CSV file that are in memory at once while its edges are counted.
COUNT_CHUNK = 1 << 18
_NPY = b"\x93NUMPY"


def inside(directory: Path, text: Any, where: str) -> Path:
    """The file that `text` names inside `directory`; `where` says which entry names it.

    The check is on the text alone: a symbolic link inside the directory may point anywhere,
    it was put there by whoever owns the directory.
    """
    path = directory / _relative(directory, text, where)
    if not path.is_file():
        raise InputError(f"{where} names {path}, which is not a file")
    return path


def files_of(directory: Path, text: Any, where: str) -> list[Path]:
    """The files that `text` names inside `directory`: one, all in a directory, or those that a
    name with wildcards fits; sorted. Hidden ones (.name, _name) are left out, as Spark's _SUCCESS.

    Raises
    ------
    InputError
        There is none, or it lies elsewhere.
    """
    relative = _relative(directory, text, where)
    path = directory / relative
    if path.is_file():
        return [path]
    if not path.is_dir() and not any(mark in text for mark in "*?["):
        raise InputError(f"{where} names {path}, which is not a file")
    try:
        roots = [path] if path.is_dir() else directory.glob(text)
        files = {file for one in roots for file in ([one] if one.is_file() else one.rglob("*"))
                 if file.is_file() and not any(
                     part.startswith((".", "_")) and part not in relative.parts
                     for part in file.relative_to(directory).parts)}
    except (ValueError, OSError) as error:
        raise InputError(f"{where} is '{text}', which does not name files: {error}") from None
    if not files:
        raise InputError(f"{where} is '{text}', but there is no such file in {directory}")
    return sorted(files)


def _relative(directory: Path, text: Any, where: str) -> PurePosixPath:
    """A path that stays inside a directory."""
    if not isinstance(text, str) or not text or "\0" in text:
        raise InputError(f"{where} is {text!r}; it must be the path of a file in {directory}")
    relative = PurePosixPath(text)
    if relative.is_absolute() or ".." in relative.parts:
        raise InputError(
            f"{where} is '{text}', which leaves {directory}; paths must be relative to it, "
            "without '..'"
        )
    return relative


@dataclass(frozen=True)
class NpyRows:
    """A `.npy` file of which the header was read; rows are read when they are asked for.

    It is an array for whoever asks for dtype, shape, size, and some rows in order (`[...]`: all).
    """

    path: Path
    dtype: np.dtype
    shape: tuple[int, ...]
    fortran: bool
    offset: int

    @classmethod
    def open(cls, path: Path) -> NpyRows:
        """Read the header of a file.

        Raises
        ------
        InputError
            It is no such file, ends too early, or has pickled contents (arrays of objects).
        """
        with _reading_npy(path), path.open("rb") as file:
            begin = file.read(len(_NPY))
            if begin.startswith(b"PK"):
                raise InputError(f"{path} is a .npz archive; it must be a .npy file with one array")
            if begin != _NPY:
                raise InputError(f"{path} does not begin as a .npy file does; if it has numbers "
                                 "alone, as tofile and np.memmap write them, save it by np.save")
            file.seek(0)
            version, _ = np.lib.format.read_magic(file)
            shape, fortran, dtype = (np.lib.format.read_array_header_1_0 if version == 1 else
                                     np.lib.format.read_array_header_2_0)(file)
            rows = cls(path, dtype, shape, fortran and len(shape) > 1, file.tell())
            if dtype.hasobject:
                raise ValueError("it has Python objects, which are never loaded")
            if rows.offset + rows.nbytes > path.stat().st_size:
                raise ValueError("it ends before its last number")
            return rows

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        if rows is ...:
            return self.items(0, math.prod(self.shape), "its last row").reshape(
                self.shape, order="F" if self.fortran else "C")
        start, stop, _ = rows.indices(len(self))
        width, count = math.prod(self.shape[1:]), max(stop - start, 0)
        return self.items(start * width, count * width, f"row {stop}").reshape(
            count, *self.shape[1:])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[...].astype(dtype or self.dtype, copy=False)

    def items(self, first: int, count: int, last: str) -> np.ndarray:
        """Some numbers in the order of the file, in the byte order of this machine; `last` says
        what the last of them is of."""
        values = np.empty(count, self.dtype)
        with _reading_npy(self.path), self.path.open("rb") as file:
            file.seek(self.offset + first * self.dtype.itemsize)
            read = file.readinto(values.view(np.uint8).data) if count else 0
        if read != values.nbytes:
            raise InputError(f"{self.path} ends before {last}; it was cut while being read")
        return values.astype(self.dtype.newbyteorder("="), copy=False)


@contextmanager
def _reading_npy(path: Path) -> Iterator[None]:
    try:
        yield
    except HetaError:
        raise
    except Exception as error:  # numpy's parser raises almost anything at a damaged header
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"cannot read {path} as a .npy array of numbers: {reason}") from None


def open_npy(path: Path) -> Any:
    """A `.npy` file as an array: mapped, or, in object storage, :class:`NpyRows` where rows lie one
    after the other.

    Raises
    ------
    InputError
        As :meth:`NpyRows.open`.
    """
    rows = NpyRows.open(path)
    if isinstance(path, RemotePath):
        return rows[...] if rows.fortran else rows
    with _reading_npy(path):
        return np.load(path, mmap_mode="r", allow_pickle=False)


@dataclass(frozen=True)
class _Column:
    """`count` integers in a file from its item `first` on, `step` items apart; those of a piece of
    the file's edges begin with edge `edge`."""

    rows: NpyRows
    first: int
    count: int
    step: int = 1
    edge: int = 0

    def between(self, start: int, stop: int) -> _Column:
        return replace(self, first=self.first + start * self.step, edge=self.edge + start,
                       count=min(stop, self.count) - start)

    def read(self, start: int, stop: int) -> np.ndarray:
        return self.rows.items(self.first + start * self.step, (stop - start - 1) * self.step + 1,
                               f"edge {self.edge + stop}")[::self.step]


class NpyEdges:
    """Edges in `.npy` files: one integer array (2, E), or two one-dimensional ones."""

    def __init__(self, path: Path, dst_path: Path | None = None) -> None:
        if dst_path is None:
            self._src, self._dst = _both_rows(path)
        else:
            self._src, self._dst = _only_row(path), _only_row(dst_path)
            if self._src.count != self._dst.count:
                raise InputError(
                    f"{path} has {self._src.count} source ids and {dst_path} has "
                    f"{self._dst.count} destination ids; both must have one id per edge"
                )

    @property
    def num_edges(self) -> int:
        return self._src.count

    def chunks(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, self.num_edges, size):
            stop = min(start + size, self.num_edges)
            yield self._src.read(start, stop), self._dst.read(start, stop)

    def pieces(self) -> list[EdgeSource]:
        pieces: list[EdgeSource] = []
        for start in range(0, self.num_edges, PIECE):
            piece = copy(self)
            piece._src, piece._dst = (column.between(start, start + PIECE)
                                      for column in (self._src, self._dst))
            pieces.append(piece)
        return pieces


def _integers(path: Path) -> NpyRows:
    rows = NpyRows.open(path)
    if rows.dtype.kind not in "iu":
        raise InputError(f"{path} holds {rows.dtype} values; node ids must be integers")
    return rows


def _both_rows(path: Path) -> tuple[_Column, _Column]:
    rows = _integers(path)
    if rows.ndim != 2 or rows.shape[0] != 2:
        raise InputError(
            f"{path} has shape {rows.shape}; edges must have shape (2, number of edges): source "
            "ids in row 0, destination ids in row 1"
        )
    count = rows.shape[1]
    if rows.fortran:
        return _Column(rows, 0, count, step=2), _Column(rows, 1, count, step=2)
    return _Column(rows, 0, count), _Column(rows, count, count)


def _only_row(path: Path) -> _Column:
    rows = _integers(path)
    if rows.ndim != 1:
        raise InputError(f"{path} has shape {rows.shape}; ids of one end of the edges must be "
                         "one-dimensional")
    return _Column(rows, 0, len(rows))


class CsvEdges:
    """Edges in a CSV file (`.gz` too): a source id and a destination id per line.

    A first line in which neither field is a number is a header. Counting the edges reads the
    file once; the count is kept.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._header = header_bytes(path)

    @cached_property
    def num_edges(self) -> int:
        return sum(len(src) for src, _ in self.chunks(COUNT_CHUNK))

    def chunks(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        yield from pairs(self._path, size, self._header)


class ParquetEdges:
    """Edges in a Parquet file: its columns `src` and `dst`, or its only two, of integers."""

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, ParquetColumns(path)
        self._group: int | None = None
        names, self._coded = self._file.names, set[str]()
        self._columns = ["src", "dst"] if {"src", "dst"} <= set(names) else list(names)
        if len(self._columns) != 2:
            raise InputError(f"{path} has columns {listing(names)}; edges are the columns src "
                             "and dst, or the only two")
        for name in self._columns:
            kind = self._file.schema.field(name).type
            if arrow().types.is_dictionary(kind):
                self._coded.add(name)
                kind = kind.value_type
            if sort_of(kind) != "whole":
                raise InputError(f"column '{name}' of {path} holds {kind} values; node ids "
                                 "must be integers")

    @property
    def num_edges(self) -> int:
        return (self._file.num_rows if self._group is None
                else self._file.group_rows[self._group])

    def chunks(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for batch in self._file.batches(self._columns, size, self._group):
            src, dst = (batch[name].dictionary_decode() if name in self._coded else batch[name]
                        for name in self._columns)
            if src.null_count or dst.null_count:
                raise InputError(f"{self._path} has an edge without an end; every row must "
                                 "have two ids")
            yield src.to_numpy(), dst.to_numpy()

    def pieces(self) -> list[EdgeSource]:
        pieces: list[EdgeSource] = []
        for group in range(len(self._file.group_rows)):
            piece = copy(self)
            piece._group = group
            pieces.append(piece)
        return pieces


def open_edges(path: str | Path) -> EdgeSource:
    """The edges in a file, by its path or URL: `.npy` (2, E), CSV or `.parquet`, as its name says.

    They are read in chunks, anew at each call of `chunks`, and never all at once.

    Raises
    ------
    InputError
        Another ending, no such file, or what the file holds is not edges.
    """
    path = file_path(path)
    for endings, kind in EDGE_FILES.items():
        if path.name.endswith(endings):
            if not path.is_file():
                raise InputError(f"{path} is not a file")
            return kind(path)
    raise InputError(f"'{path}' is not a file of edges by its name; they end in "
                     f"{listing(e for endings in EDGE_FILES for e in endings)}")


EDGE_FILES: dict[tuple[str, ...], Callable[[Path], EdgeSource]] = {
    (".npy",): NpyEdges, TEXT_ENDINGS: CsvEdges, (".parquet",): ParquetEdges}


