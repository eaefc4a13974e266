"""Tables of learnable features in safetensors files, a block at a time.

The tables can be larger than memory, so neither side holds one as a whole. The layout is that of
safetensors: the length of the header, the header in JSON, the data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dgl_heta.errors import InputError
from dgl_heta.features.learnable import Table
from dgl_heta.features.row_table import BLOCK
from dgl_heta.system.atomic_files import utf8_name

_PARTS = ("value", "first", "second")
_TYPES = {torch.float32: "F32", torch.float64: "F64"}


def write_tables(path: Path, tables: Mapping[str, Table]) -> None:
    """Write all rows of the tables with their moments and steps."""
    header: dict[str, Any] = {"__metadata__": {n: str(t.step) for n, t in tables.items()}}
    end = 0
    for name, table in tables.items():
        rows, width = table.shape
        for part in _PARTS:
            start, end = end, end + rows * width * table.dtype.itemsize
            header[f"{name}.{part}"] = {"dtype": _TYPES[table.dtype], "shape": [rows, width],
                                        "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
        for name, table in tables.items():
            places = {part: 8 + len(text) + header[f"{name}.{part}"]["data_offsets"][0]
                      for part in _PARTS}
            for block in table.blocks():
                for part in _PARTS:
                    data = block[part].contiguous().numpy().data.cast("B") if len(
                        block[part]) and block[part].shape[1] else b""
                    file.seek(places[part])
                    file.write(data)
                    places[part] += len(data)


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
