"""Arrays of published graphs: mapped, with what is wrong said of the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dgl_heta import EdgeArrays, InputError


def mapped(path: Path, width: int | None = None) -> np.ndarray:
    """A `.npy` file as a memory map.

    Files of IGB's sizes large and full are called `.npy` and have no header: float32, in rows of
    `width` numbers (None: one number a row).

    Raises
    ------
    InputError
        It is not there, is no array, or its size is no multiple of a row's.
    """
    try:
        with path.open("rb") as file:
            headed = file.read(6) == b"\x93NUMPY"
        if headed:
            array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
            return array
        size, row = path.stat().st_size, 4 * (width or 1)
        if not size or size % row:
            raise InputError(f"{path} has no header of a .npy file and {size:,} bytes, which are "
                             f"no rows of {width or 1} float32 numbers")
        return np.memmap(path, np.float32, "r", shape=(size // row, width) if width else None)
    except FileNotFoundError:
        raise InputError(f"{path} is not there; download the whole graph") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is no array: {error}") from None


def edges(path: Path, columns: int) -> EdgeArrays:
    """The two columns (`columns=1`) or rows (0) of an array of edges."""
    pairs = mapped(path)
    if pairs.ndim != 2 or pairs.shape[columns] != 2 or pairs.dtype.kind not in "iu":
        form = "(edges, 2)" if columns else "(2, edges)"
        raise InputError(f"{path} has shape {pairs.shape} and type {pairs.dtype}; edges are "
                         f"whole numbers in {form}")
    src, dst = (pairs[:, 0], pairs[:, 1]) if columns else (pairs[0], pairs[1])
    return EdgeArrays(src, dst)


def classes(path: Path, count: int, known: int | None = None) -> np.ndarray:
    """Labels of so many nodes as int64, -1 where there is none: NaN, or from `known` on."""
    given = mapped(path)
    if given.shape != (count,):
        raise InputError(f"{path} has shape {given.shape} for {count:,} nodes with features")
    labels = np.full(count, -1, np.int64)
    for start in range(0, count if known is None else known, 1 << 24):
        piece = given[start:min(start + (1 << 24), known or count)]
        there = ~np.isnan(piece) if piece.dtype.kind == "f" else np.ones(len(piece), bool)
        if (wrong := piece[there][piece[there] != np.floor(piece[there])]).size:
            raise InputError(f"{path} holds {wrong[0]}; labels are whole class numbers")
        labels[start:start + len(piece)][there] = piece[there].astype(np.int64)
    return labels


def mask(ids: np.ndarray, count: int, what: str) -> np.ndarray:
    """True at the node ids."""
    ids = np.asarray(ids)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or (
            len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < count):
        raise InputError(f"{what} has shape {ids.shape} and type {ids.dtype}; it must be a list of "
                         f"node ids from 0 to {count - 1:,}")
    found = np.zeros(count, np.bool_)
    found[ids] = True
    return found
