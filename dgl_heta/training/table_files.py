"""Safetensors files that are written and read a block of rows at a time, or mapped.

Tables of learnable features can be larger than memory, so neither side holds one as a whole. The
layout is that of safetensors: the length of the header, the header in JSON, the data.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dgl_heta.errors import HetaError, InputError
from dgl_heta.features.learnable import Table
from dgl_heta.features.row_table import BLOCK
from dgl_heta.system.atomic_files import plainly, replacing, utf8_name
from dgl_heta.system.disk import reserve

PARTS = ("value", "first", "second")
"""Of a table: its rows and their moments."""
_TYPES = {torch.float32: "F32", torch.float64: "F64", torch.float16: "F16",
          torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32", torch.int16: "I16",
          torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"}
_DTYPES = {name: dtype for dtype, name in _TYPES.items()}
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # of Linux; Python names it from 3.13 on


class TensorFile:
    """A safetensors file that is written a block of rows at a time; a context.

    Parameters
    ----------
    layout : name → dtype and shape, in the order of the file.
    notes : texts that the file carries, by name.

    Raises
    ------
    HetaError
        The disk has no room for all of it.
    """

    def __init__(self, path: Path, layout: Mapping[str, tuple[torch.dtype, Sequence[int]]],
                 notes: Mapping[str, str] | None = None) -> None:
        header: dict[str, Any] = {"__metadata__": dict(notes)} if notes is not None else {}
        end = 0
        for name, (dtype, shape) in layout.items():
            start, end = end, end + math.prod(shape) * dtype.itemsize
            header[name] = {"dtype": _TYPES[dtype], "shape": list(shape),
                            "data_offsets": [start, end]}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self._begins = {name: 8 + len(text) + header[name]["data_offsets"][0] for name in layout}
        self._file = path.open("wb")
        self._file.write(len(text).to_bytes(8, "little") + text)
        self._file.flush()
        reserve(self._file.fileno(), 8 + len(text) + end, path)

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def put(self, name: str, rows: Tensor, first: int = 0) -> None:
        """Write rows of a tensor, the first of which is row `first`."""
        if rows.numel():
            row_bytes = math.prod(rows.shape[1:]) * rows.element_size()
            self._file.seek(self._begins[name] + first * row_bytes)
            flat = rows.detach().cpu().contiguous().reshape(-1)
            self._file.write(flat.view(torch.uint8).numpy().data)


class StoredTensors:
    """A safetensors file of which parts are read; a context.

    PyTorch's own reader of such files maps a whole one in a way that Linux refuses where it is
    larger than memory.

    Attributes
    ----------
    layout : name → dtype and shape.
    notes : texts that the file carries, by name.

    Raises
    ------
    InputError
        The file cannot be read, or is no such file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mapped: mmap.mmap | None = None
        try:
            with utf8_name(path) as utf8, safe_open(utf8, "np") as checked:
                self.notes: dict[str, str] = checked.metadata() or {}
            self._file = open(path, "rb", opener=plainly)  # noqa: SIM115
            size = int.from_bytes(self._file.read(8), "little")
            header = json.loads(self._file.read(size))
            header.pop("__metadata__", None)
            self.layout = {name: (_DTYPES[entry["dtype"]], tuple(entry["shape"]))
                           for name, entry in header.items()}
        except (OSError, SafetensorError, KeyError) as error:
            raise InputError(f"cannot read {path}: {error}") from None
        self._begins = {name: 8 + size + entry["data_offsets"][0]
                        for name, entry in header.items()}

    def __enter__(self) -> StoredTensors:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def rows(self, name: str, low: int, high: int) -> Tensor:
        """Rows `low … high - 1` of a tensor; nothing else is read.

        Raises
        ------
        KeyError, ValueError
            There is no such tensor, or it has not these rows.
        """
        dtype, shape = self.layout[name]
        if not 0 <= low <= high <= (shape[0] if shape else 0):
            raise ValueError(f"{name} has the shape {list(shape)}, so not rows {low} to {high}")
        rows = torch.empty((high - low, *shape[1:]), dtype=dtype)
        if rows.numel():
            self._file.seek(self._begins[name] + low * (rows.nbytes // len(rows)))
            if self._file.readinto(rows.view(-1).view(torch.uint8).numpy()) != rows.nbytes:
                raise InputError(f"cannot read {self._path}: it was cut off")
        return rows

    def mapped(self, name: str) -> Tensor:
        """A tensor whose pages are read when they are touched. What is written to it stays in this
        process."""
        dtype, shape = self.layout[name]
        if not math.prod(shape):
            return torch.empty(shape, dtype=dtype)
        if self._mapped is None:
            self._mapped = mmap.mmap(self._file.fileno(), 0, mmap.MAP_PRIVATE | _NO_RESERVE,
                                     mmap.PROT_READ | mmap.PROT_WRITE)
        return torch.frombuffer(self._mapped, dtype=dtype, count=math.prod(shape),
                                offset=self._begins[name]).reshape(shape)


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """:func:`replacing`, for writers of tensors too."""
    try:
        with replacing(path) as temporary:
            yield temporary
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise HetaError(f"cannot write {path}: {reason}") from error


def write_tables(path: Path, tables: Mapping[str, Table]) -> None:
    """Write all rows of the tables with their moments and steps."""
    layout = {f"{name}.{part}": (table.dtype, table.shape)
              for name, table in tables.items() for part in PARTS}
    with TensorFile(path, layout, {n: str(t.step) for n, t in tables.items()}) as file:
        for name, table in tables.items():
            first = 0
            for block in table.blocks():
                for part in PARTS:
                    file.put(f"{name}.{part}", block[part], first)
                first += len(block["value"])


def load_tables(path: Path, tables: Mapping[str, Table]) -> None:
    """Read what :func:`write_tables` wrote into tables of the same names and shapes.

    Raises
    ------
    InputError
        The file cannot be read.
    KeyError, ValueError
        It holds other tables.
    """
    with StoredTensors(path) as file:
        for name, table in tables.items():
            for part in PARTS:
                dtype, shape = file.layout[f"{name}.{part}"]
                if shape != tuple(table.shape) or dtype != table.dtype:
                    raise ValueError(f"{name}.{part} is {_TYPES[dtype]}{list(shape)}, not "
                                     f"{_TYPES[table.dtype]}{list(table.shape)}")
            table.load(_blocks(file, name, table.shape[0]), int(file.notes[name]))


def _blocks(file: StoredTensors, table: str, rows: int) -> Iterator[dict[str, Tensor]]:
    for low in range(0, rows, BLOCK):
        yield {part: file.rows(f"{table}.{part}", low, min(low + BLOCK, rows)) for part in PARTS}
