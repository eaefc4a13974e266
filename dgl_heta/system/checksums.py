"""Checksums: SHA-256 of files, and of JSON that carries its own.

They find damage, and edits by those who did not mean to; they are no signatures. A core hashes more
than 1 GB/s where it has instructions for SHA-256; what was just written is read back from memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.errors import InputError
from dgl_heta.system.atomic_files import plainly, write_atomic
from dgl_heta.system.disk import npy_header

KEY = "sha256"
_BLOCK = 2**22


def file_sum(path: Path, advance: Callable[[int], None] = lambda size: None) -> str:
    """The SHA-256 of a file in hexadecimal; `advance` gets the bytes of each piece that was read.

    Raises
    ------
    OSError
        It cannot be read.
    """
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0, opener=plainly) as file:
        while data := file.read(_BLOCK):
            digest.update(data)
            advance(len(data))
    return digest.hexdigest()


def npy_sum(dtype: np.dtype, shape: tuple[int, ...], pieces: Iterable[np.ndarray]) -> str:
    """The SHA-256 of the `.npy` file of an array, of which `pieces` are the rows in their order."""
    digest = hashlib.sha256(npy_header(dtype, shape))
    for rows in pieces:
        digest.update(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def json_sum(content: Mapping[str, Any]) -> str:
    """The SHA-256 of what an object will be when it is read, whatever its layout as text."""
    plain = json.loads(json.dumps(content))  # as it will be read: keys that are text, lists
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def signed(content: Mapping[str, Any]) -> dict[str, Any]:
    """An object with the checksum of all else in it."""
    return {**content, KEY: json_sum(content)}


def agrees(data: Mapping[str, Any]) -> bool:
    """Return whether an object has its checksum, and it is that of all else in it."""
    try:
        return bool(data.get(KEY) == json_sum({k: v for k, v in data.items() if k != KEY}))
    except (RecursionError, ValueError):  # what can be read but not written is not of ours
        return False


def write_signed(path: Path, content: Mapping[str, Any], indent: int | None = None) -> Path:
    """Write an object with its checksum, whole or not at all.

    Raises
    ------
    HetaError
        It cannot be written.
    """
    return write_atomic(path, json.dumps(signed(content), indent=indent) + "\n")


def read_signed(path: Path, remedy: str) -> dict[str, Any]:
    """Read what :func:`write_signed` wrote, without the checksum.

    Parameters
    ----------
    remedy : what a user can do about a damaged file, the end of a sentence.

    Raises
    ------
    InputError
        It cannot be read, or it is not what was written.
    """
    try:
        with open(path, encoding="utf-8", opener=plainly) as file:
            data = json.loads(file.read())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged: it is not JSON ({str(error)[:100]}); {remedy}"
                         ) from None
    if not isinstance(data, dict):
        raise InputError(f"{path} is damaged: it holds no object; {remedy}")
    if not agrees(data):
        raise InputError(f"{path} was edited or damaged: its checksum does not agree; {remedy}")
    return {key: value for key, value in data.items() if key != KEY}


def check_file(path: Path, wanted: object, note: str, remedy: str) -> None:
    """Compare a file with the checksum that `note` has of it.

    Raises
    ------
    InputError
        They differ, or the file cannot be read.
    """
    try:
        same = file_sum(path) == wanted
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; {remedy}") from None
    if not same:
        raise InputError(f"{path} was edited or damaged: its checksum does not agree with {note}; "
                         f"{remedy}")
