"""Safetensors files that are written a block of rows at a time, and mapped to be read.

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


def mapped_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file, and the texts that it carries, by name.

    Memory has the pages that are touched; what is written to them stays in this process. PyTorch's
    own reader maps a file in a way that Linux refuses where it is larger than memory.

    Raises
    ------
    InputError
        The file cannot be read, or is no such file.
    """
    try:
        with utf8_name(path) as utf8, safe_open(utf8, "np") as checked:
            notes: dict[str, str] = checked.metadata() or {}
        with open(path, "rb", opener=plainly) as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
            header.pop("__metadata__", None)
            data = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE | _NO_RESERVE,
                             mmap.PROT_READ | mmap.PROT_WRITE)
        tensors = {}
        for name, entry in header.items():
            (first, end), dtype = entry["data_offsets"], _DTYPES[entry["dtype"]]
            flat = (torch.frombuffer(data, dtype=dtype, offset=8 + size + first,
                                     count=(end - first) // dtype.itemsize)
                    if first < end else torch.empty(0, dtype=dtype))
            tensors[name] = flat.reshape(entry["shape"])
        return tensors, notes
    except (OSError, SafetensorError, KeyError) as error:
        raise InputError(f"cannot read {path}: {error}") from None


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
