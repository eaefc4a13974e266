"""Tables of learnable features in safetensors files, a block at a time.

The tables can be larger than memory, so neither side holds one as a whole. The layout is that of
safetensors: the length of the header, the header in JSON, the data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dgl_heta.errors import InputError
from dgl_heta.features.learnable import Table
from dgl_heta.features.row_table import BLOCK
from dgl_heta.system.atomic_files import utf8_name
from dgl_heta.system.disk import reserve

_PARTS = ("value", "first", "second")
_TYPES = {torch.float32: "F32", torch.float64: "F64", torch.float16: "F16",
          torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32", torch.int16: "I16",
          torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"}


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


def write_tables(path: Path, tables: Mapping[str, Table]) -> None:
    """Write all rows of the tables with their moments and steps."""
    layout = {f"{name}.{part}": (table.dtype, table.shape)
              for name, table in tables.items() for part in _PARTS}
    with TensorFile(path, layout, {n: str(t.step) for n, t in tables.items()}) as file:
        for name, table in tables.items():
            first = 0
            for block in table.blocks():
                for part in _PARTS:
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
    try:
        with utf8_name(path) as utf8, safe_open(utf8, "pt") as file:
            steps = file.metadata() or {}
            for name, table in tables.items():
                slices = {part: file.get_slice(f"{name}.{part}") for part in _PARTS}
                for part, stored in slices.items():
                    shape = tuple(stored.get_shape())
                    if shape != tuple(table.shape) or stored.get_dtype() != _TYPES[table.dtype]:
                        raise ValueError(f"{name}.{part} is {stored.get_dtype()}{list(shape)}, not "
                                         f"{_TYPES[table.dtype]}{list(table.shape)}")
                table.load(_blocks(slices, table.shape[0]), int(steps[name]))
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot read {path}: {error}") from None


def _blocks(slices: Mapping[str, Any], rows: int) -> Iterator[dict[str, Tensor]]:
    for start in range(0, rows, BLOCK):
        yield {part: stored[start:start + BLOCK] for part, stored in slices.items()}
