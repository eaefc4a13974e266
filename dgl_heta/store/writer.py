"""Write a relation store: streaming, bounded in memory, complete or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from dgl_heta._version import __version__
from dgl_heta.errors import HetaError, InputError, listing
from dgl_heta.graph import GraphSource, Task
from dgl_heta.store.csc import count_in_degrees, index_dtype, sorted_indices
from dgl_heta.store.manifest import ArrayEntry, Manifest, RelationEntry

Progress = Callable[[str, float], None]
"""`progress(what, fraction done of the whole)`, called often."""

MASKS = ("train_mask", "val_mask", "test_mask")


def write_store(
    source: GraphSource,
    out: str | Path,
    *,
    overwrite: bool = False,
    memory_mb: int = 512,
    edge_ids: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Write `source` as a relation store in the directory `out`.

    Everything is written to a temporary directory beside `out`, which is renamed when
    complete; on any failure it is removed.

    Parameters
    ----------
    overwrite : replace an existing store (and nothing but a store).
    memory_mb : memory for edges. Nodes need 16 bytes each for one type at a time besides;
        a relation larger than this is sorted in pieces on disk.
    edge_ids : keep for every edge its position in the source.

    Raises
    ------
    InputError
        `out` exists, or the graph is wrong: see the checks in docs/format.md.
    HetaError
        The disk is full or cannot be written.
    """
    out = Path(out)
    source.schema()  # its checks come before any writing
    _check_task(source)
    _check_space(source, out, edge_ids)
    with new_directory(out, overwrite=overwrite, kind="manifest.json") as directory:
        manifest = _write(source, directory, memory_mb, edge_ids, progress or (lambda *_: None))
        manifest.save(directory)
    return manifest


@contextmanager
def new_directory(out: Path, *, overwrite: bool, kind: str) -> Iterator[Path]:
    """A temporary directory that becomes `out` at the end, or leaves no trace.

    An existing `out` is an error; with `overwrite` it is replaced, provided that it holds a
    file named `kind`, that is, is one of ours.
    """
    if out.exists() or out.is_symlink():
        if not overwrite:
            raise InputError(f"{out} exists; choose another directory or ask to overwrite it "
                             "(--overwrite)")
        if not any(out.glob(kind)):
            raise InputError(f"{out} exists and was not written by dgl-heta (no {kind} in it); "
                             "it is not overwritten")
    temporary = out.parent / f".{out.name}.partial-{os.getpid()}"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        yield temporary
        if out.exists():
            retired = out.parent / f".{out.name}.retired-{os.getpid()}"
            out.rename(retired)
            temporary.rename(out)
            shutil.rmtree(retired)
        else:
            temporary.rename(out)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise HetaError(f"no space left on the disk of {out.parent} while writing {out}; "
                            "nothing was kept") from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR):
            raise InputError(f"cannot write {out}: {error.strerror}") from error
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class NpyWriter:
    """A `.npy` file written in pieces, hashed on the way."""

    def __init__(self, directory: Path, file: str, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self._file, self._dtype, self._shape = file, np.dtype(dtype), shape
        path = directory / file
        path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = path.open("wb")
        self._hash = hashlib.sha256()
        self._bytes = 0
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False,
                  "shape": shape}
        np.lib.format.write_array_header_1_0(_Tee(self), header)  # type: ignore[arg-type]

    def _raw(self, data: bytes | memoryview) -> None:
        self._handle.write(data)
        self._hash.update(data)
        self._bytes += len(data)

    def append(self, rows: np.ndarray) -> None:
        rows = np.ascontiguousarray(rows, dtype=self._dtype)
        if rows.size:
            self._raw(memoryview(rows).cast("B"))

    def close(self) -> ArrayEntry:
        self._handle.close()
        return ArrayEntry(self._file, self._dtype.str, self._shape, self._bytes,
                          self._hash.hexdigest())

    def abandon(self) -> None:
        self._handle.close()


class _Tee:
    """The little of a file that NumPy's header writer uses."""

    def __init__(self, writer: NpyWriter) -> None:
        self._writer = writer

    def write(self, data: bytes) -> int:
        self._writer._raw(data)
        return len(data)


def _write(source: GraphSource, directory: Path, memory_mb: int, edge_ids: bool,
           progress: Progress) -> Manifest:
    total = _work(source)
    done = 0

    def advancing(what: str) -> Callable[[int], None]:
        def advance(amount: int) -> None:
            nonlocal done
            done += amount
            progress(what, min(done / total, 1.0))
        return advance

    arrays: dict[str, dict[str, ArrayEntry]] = {}
    for index, ntype in enumerate(source.node_counts):
        arrays[ntype] = {}
        for name, array in source.node_arrays.get(ntype, {}).items():
            file = f"nodes/{index}-{_safe(ntype)}/{_safe(name)}.npy"
            arrays[ntype][name] = _write_array(
                directory, file, ntype, name, array, source.node_counts[ntype], source.task,
                advancing(f"{ntype} {name}"))
    chunk = max(memory_mb * 2**20 // 40, 1024)
    relations = []
    for index, (relation, edges) in enumerate(source.edges.items()):
        num_src, num_dst = source.node_counts[relation.src], source.node_counts[relation.dst]
        folder = f"relations/{index}-{_safe('__'.join(relation))}"
        advance = advancing(str(relation))
        indptr = count_in_degrees(relation, edges, num_src, num_dst, chunk, advance)
        pointer = NpyWriter(directory, f"{folder}/indptr.npy", indptr.dtype, indptr.shape)
        pointer.append(indptr)
        shape = (edges.num_edges,)
        body = NpyWriter(directory, f"{folder}/indices.npy", index_dtype(num_src), shape)
        ids = (NpyWriter(directory, f"{folder}/edge_ids.npy", np.dtype(np.int64), shape)
               if edge_ids else None)
        for indices, positions in sorted_indices(edges, indptr, num_src, chunk, edge_ids,
                                                 directory, advance):
            body.append(indices)
            if ids:
                ids.append(positions)
        relations.append(RelationEntry(relation, edges.num_edges, pointer.close(), body.close(),
                                       ids.close() if ids else None))
    return Manifest(source.name, dict(source.node_counts), arrays, tuple(relations), source.task,
                    source.info, f"dgl-heta {__version__}")


def _write_array(directory: Path, file: str, ntype: str, name: str, array: np.ndarray,
                 count: int, task: Task | None, advance: Callable[[int], None]) -> ArrayEntry:
    writer = NpyWriter(directory, file, array.dtype, array.shape)
    row_bytes = max(array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64)), 1)
    step = max(2**25 // row_bytes, 1)
    for start in range(0, count, step):
        rows = np.asarray(array[start:start + step])
        if rows.dtype.kind == "f":
            finite = np.isfinite(rows)
            if not finite.all():
                bad = start + int(np.argwhere(~finite)[0][0])
                raise InputError(
                    f"array '{name}' of node type '{ntype}' has a value that is not finite "
                    f"(NaN or infinity), first in row {bad}; replace or drop it"
                )
        writer.append(rows)
        _forget(array)
        advance(len(rows) * row_bytes)
    return writer.close()


def _forget(array: np.ndarray) -> None:
    """Let go of the pages of a memory map that were read, so that memory stays bounded."""
    mapped = getattr(array, "_mmap", None)
    if mapped is not None and hasattr(mapped, "madvise"):
        import mmap

        mapped.madvise(mmap.MADV_DONTNEED)


def _check_task(source: GraphSource) -> None:
    for ntype, arrays in source.node_arrays.items():
        if ntype not in source.node_counts:
            raise InputError(f"arrays are given for node type '{ntype}', which is not in the "
                             f"graph; node types: {listing(source.node_counts)}")
        count = source.node_counts[ntype]
        for name, array in arrays.items():
            if array.ndim == 0 or array.shape[0] != count:
                rows = array.shape[0] if array.ndim else "no"
                raise InputError(f"array '{name}' of node type '{ntype}' has {rows} rows; it must "
                                 f"have {count}, one for each node")
            if array.dtype.kind not in "fiub":
                raise InputError(f"array '{name}' of node type '{ntype}' has dtype {array.dtype}; "
                                 "it must be numbers or booleans")
        feat = arrays.get("feat")
        if feat is not None and (feat.ndim != 2 or feat.dtype.kind != "f"):
            raise InputError(f"features 'feat' of node type '{ntype}' are {feat.dtype} of shape "
                             f"{feat.shape}; they must be floating point, one row per node and "
                             "one column per feature")
    task = source.task
    if task is None:
        return
    if task.target not in source.node_counts:
        raise InputError(f"target node type '{task.target}' is not in the graph; node types: "
                         f"{listing(source.node_counts)}")
    arrays = source.node_arrays.get(task.target, {})
    for name in (task.label, "train_mask"):
        if name not in arrays:
            raise InputError(f"target node type '{task.target}' has no array '{name}'; it has: "
                             f"{listing(arrays)}")
    label = arrays[task.label]
    if label.ndim != 1 or label.dtype.kind not in "iu":
        raise InputError(f"labels '{task.label}' of '{task.target}' are {label.dtype} of shape "
                         f"{label.shape}; they must be integers, one per node")
    for name in MASKS:
        if name not in arrays:
            continue
        mask = arrays[name]
        if mask.ndim != 1 or mask.dtype.kind not in "biu":
            raise InputError(f"mask '{name}' of '{task.target}' is {mask.dtype} of shape "
                             f"{mask.shape}; it must be boolean, one entry per node")
        chosen = np.flatnonzero(mask)
        values = np.asarray(label[chosen])
        wrong = np.flatnonzero((values < 0) | (values >= task.num_classes))
        if len(wrong):
            raise InputError(f"node {chosen[wrong[0]]} of '{task.target}' is in {name} but has "
                             f"label {values[wrong[0]]}; labels go from 0 to "
                             f"{task.num_classes - 1}")


def _check_space(source: GraphSource, out: Path, edge_ids: bool) -> None:
    need = sum(array.nbytes for arrays in source.node_arrays.values() for array in arrays.values())
    for relation, edges in source.edges.items():
        width = index_dtype(source.node_counts[relation.src]).itemsize + 8 * edge_ids
        need += edges.num_edges * width + 8 * source.node_counts[relation.dst]
    parent = out.parent
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    free = shutil.disk_usage(parent).free
    if need > free:
        raise HetaError(f"the store needs {need / 1e9:.2f} GB, but the disk of {parent} has "
                        f"{free / 1e9:.2f} GB free")


def _work(source: GraphSource) -> int:
    """Bytes of arrays plus two passes over the edges, the unit of the progress."""
    arrays = sum(a.nbytes for named in source.node_arrays.values() for a in named.values())
    return max(arrays + 2 * sum(edges.num_edges for edges in source.edges.values()), 1)


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:80]
