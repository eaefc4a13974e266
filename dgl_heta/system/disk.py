"""Files on disks that may be full: room is reserved before a file is mapped, and kept safe."""

from __future__ import annotations

import errno
import io
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.errors import HetaError


def reserve(handle: int, size: int, file: Path) -> None:
    """Give an open file its size, with room on the disk for all of it.

    Writing to a mapped file that the disk has no room for ends a process by SIGBUS, without a word.

    Raises
    ------
    HetaError
        The disk is full; the message says how much is missing.
    """
    try:
        if size and hasattr(os, "posix_fallocate"):  # not on macOS
            os.posix_fallocate(handle, 0, size)
        os.truncate(handle, size)
    except OSError as error:
        if not is_full(error) and error.errno != errno.EFBIG:
            raise
        raise HetaError(f"no space left on the disk: {file} needs {size / 1e6:,.1f} MB, "
                        f"{free_bytes(file.parent) / 1e6:,.1f} MB are free") from None


def check_room(directory: Path, size: int) -> None:
    """Before a writer that does not notice a full disk: that `size` bytes are free.

    Raises
    ------
    HetaError
        They are not.
    """
    free = free_bytes(directory)
    if free < size:
        raise HetaError(f"no space left on the disk: {directory} needs {size / 1e6:,.1f} MB more, "
                        f"{free / 1e6:,.1f} MB are free")


def is_full(error: BaseException) -> bool:
    """Return whether an error of the operating system says that the disk, or a quota, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def no_space(error: BaseException) -> str | None:
    """What to tell of a full disk, or None of another error; temporary files have no name."""
    if not is_full(error):
        return None
    file = getattr(error, "filename", None)
    return "no space left on the disk: cannot write " + (
        str(file) if file else f"a file; temporary ones are in {tempfile.gettempdir()} (TMPDIR)")


def free_bytes(directory: Path) -> int:
    """Bytes free on the disk of a directory."""
    return shutil.disk_usage(directory).free


def row_starts(rows: int, row_bytes: int) -> range:
    """Where pieces of 32 MB begin in an array; a row at least."""
    return range(0, rows, max(2**25 // max(row_bytes, 1), 1))


def forget(array: np.ndarray) -> None:
    """Let go of the pages of a memory map that were read, so that memory stays bounded."""
    mapped = getattr(array, "_mmap", None)
    # Pages of a copy-on-write map (mode "c") may hold changes that are nowhere else.
    if mapped is not None and hasattr(mapped, "madvise") and getattr(array, "mode", "c") != "c":
        import mmap

        mapped.madvise(mmap.MADV_DONTNEED)


def npy_header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """Return the header of a `.npy` file."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {
        "descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape})
    return header.getvalue()


def new_array(file: Path, dtype: Any, shape: tuple[int, ...]) -> np.memmap:
    """A `.npy` file of zeros to write through memory, with room for it on the disk.

    Raises
    ------
    HetaError
        The disk is full, or the file cannot be made.
    """
    kind = np.dtype(dtype)
    try:
        with file.open("wb") as opened:
            start = opened.write(npy_header(kind, shape))
            opened.flush()
            reserve(opened.fileno(), start + int(np.prod(shape, dtype=np.int64)) * kind.itemsize,
                    file)
    except OSError as error:
        file.unlink(missing_ok=True)
        raise HetaError(f"cannot write {file}: {error.strerror or error}") from None
    except HetaError:
        file.unlink(missing_ok=True)
        raise
    array: np.memmap = np.lib.format.open_memmap(file, mode="r+")
    return array


def array_of(file: Path | None, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    """An array of zeros: :func:`new_array`, or in memory where no file is given."""
    return np.zeros(shape, dtype) if file is None else new_array(file, dtype, shape)


def sync_file(file: Path) -> None:
    """Have a file on the disk, whatever happens to the machine."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def sync_directory(directory: Path) -> None:
    """Have the names in a directory on the disk; where directories cannot be synced, nothing."""
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(handle)


def sync_tree(directory: Path) -> None:
    """Have a directory with all that is below it on the disk."""
    for path, _, files in os.walk(directory):
        for name in files:
            file = Path(path) / name
            if file.is_file() and not file.is_symlink():
                sync_file(file)
        sync_directory(Path(path))
