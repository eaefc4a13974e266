"""Write a relation store: streaming, bounded in memory, complete or not at all."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from dgl_heta._version import __version__
from dgl_heta.errors import HetaError, InputError, listing
from dgl_heta.graph.labels import NodeLabels, in_mask
from dgl_heta.graph.readers.arrays import check_finite, task_arrays
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import MASKS, TRAIN_MASK, GraphSource, Task
from dgl_heta.store.csc import count_in_degrees, index_dtype, sorted_indices
from dgl_heta.store.manifest import FILE_NAME, ArrayEntry, IdsEntry, Manifest, RelationEntry
from dgl_heta.system.atomic_files import new_directory
from dgl_heta.system.disk import forget, npy_header, row_starts

_MASKS_OF_EDGE_FILES = ("; in a metadata.json give 'task' a 'split', which makes the masks, or "
                        "name arrays or columns for them")

Progress = Callable[[str, float], None]
"""`progress(what, fraction done of the whole)`, called often."""


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
    complete; on any failure, Ctrl-C and SIGTERM included, it is removed.

    Parameters
    ----------
    overwrite : replace an existing store (and nothing but a store), which stays as it is
        until the new one is complete.
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
    check_source(source)
    with new_directory(Path(out), overwrite=overwrite, kind=FILE_NAME) as directory:
        return fill_store(source, directory, memory_mb=memory_mb, edge_ids=edge_ids,
                          progress=progress)


def fill_store(source: GraphSource, directory: Path, *, memory_mb: int = 512,
               edge_ids: bool = False, progress: Progress | None = None) -> Manifest:
    """Write a checked source into an existing directory that the caller throws away on failure."""
    _check_space(source, directory, edge_ids, _chunk(memory_mb))
    manifest = _write(source, directory, _chunk(memory_mb), edge_ids,
                      progress or (lambda *_: None))
    manifest.save(directory)
    return manifest


class NpyWriter:
    """A `.npy` file written in pieces, hashed on the way; a context manager."""

    def __init__(self, directory: Path, file: str, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self._file, self._dtype, self._shape = file, np.dtype(dtype).newbyteorder("="), shape
        path = directory / file
        path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = path.open("wb")
        self._hash = hashlib.sha256()
        self._bytes = 0
        self._raw(npy_header(self._dtype, shape))

    def __enter__(self) -> NpyWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.close()

    def _raw(self, data: bytes | memoryview) -> None:
        self._handle.write(data)
        self._hash.update(data)
        self._bytes += len(data)

    def append(self, rows: np.ndarray) -> None:
        rows = np.ascontiguousarray(rows, dtype=self._dtype)
        if rows.size:
            self._raw(rows.reshape(-1).view(np.uint8).data)

    def close(self) -> ArrayEntry:
        self._handle.close()
        return ArrayEntry(self._file, self._dtype.str, self._shape, self._bytes,
                          self._hash.hexdigest())


def _chunk(memory_mb: int) -> int:
    """Edges in memory at a time: about 40 bytes each while they are sorted."""
    return max(memory_mb * 2**20 // 40, 1024)


def _write(source: GraphSource, directory: Path, chunk: int, edge_ids: bool,
           progress: Progress) -> Manifest:
    total = _work(source)
    done = 0

    def advancing(what: str) -> Callable[[int], None]:
        def advance(amount: int) -> None:
            nonlocal done
            done += amount
            progress(what, min(done / total, 1.0))
        return advance

    # Indices in file names keep apart what safe_name makes alike ("a/b" and "a_b").
    arrays: dict[str, dict[str, ArrayEntry]] = {}
    named: dict[str, IdsEntry] = {}
    for index, ntype in enumerate(source.node_counts):
        arrays[ntype] = {}
        for number, (name, array) in enumerate(source.node_arrays.get(ntype, {}).items()):
            file = f"nodes/{index}-{safe_name(ntype)}/{number}-{safe_name(name)}.npy"
            arrays[ntype][name] = _write_rows(
                directory, file, array, advancing(f"{ntype} {name}"),
                partial(check_finite, name, ntype=ntype)
                if name == "feat" and name not in source.given.get(ntype, {}) else None)
        if ntype in source.node_ids:
            named[ntype] = IdsEntry(*(
                _write_rows(directory, f"nodes/{index}-{safe_name(ntype)}/ids-{part}.npy",
                            getattr(source.node_ids[ntype], part), advancing(f"{ntype} ids"))
                for part in ("offsets", "text")))
    relations = []
    for index, (triple, edges) in enumerate(source.edges.items()):
        relation = Relation(*triple)
        num_src, num_dst = source.node_counts[relation.src], source.node_counts[relation.dst]
        folder = f"relations/{index}-{safe_name('__'.join(relation))}"
        advance = advancing(str(relation))
        indptr = count_in_degrees(relation, edges, num_src, num_dst, chunk, advance)
        shape = (int(indptr[-1]),)
        with NpyWriter(directory, f"{folder}/indptr.npy", indptr.dtype, indptr.shape) as pointer:
            pointer.append(indptr)
        with ExitStack() as files:
            body = files.enter_context(
                NpyWriter(directory, f"{folder}/indices.npy", index_dtype(num_src), shape))
            ids = files.enter_context(
                NpyWriter(directory, f"{folder}/edge_ids.npy", np.dtype(np.int64), shape)
            ) if edge_ids else None
            for indices, positions in sorted_indices(relation, edges, indptr, num_src, chunk,
                                                     edge_ids, directory, advance):
                body.append(indices)
                if ids:
                    ids.append(positions)
            entry = RelationEntry(relation, shape[0], pointer.close(), body.close(),
                                  ids.close() if ids else None)
        kept = kept_edge_arrays(source, relation, edge_ids)
        for number, (name, array) in enumerate(kept.items()):
            entry.arrays[name] = _write_rows(directory, f"{folder}/{number}-{safe_name(name)}.npy",
                                             array, advancing(f"{relation} {name}"))
        relations.append(entry)
    task = source.task and replace(
        source.task, num_classes=int(source.task.num_classes), unlabelled=None
        if source.task.unlabelled is None else float(source.task.unlabelled))
    given = {kind: known for kind, known in source.given.items()
             if known and (edge_ids or kind in source.node_counts)}
    return Manifest(source.name, {t: int(n) for t, n in source.node_counts.items()}, arrays,
                    tuple(relations), task, source.info, f"dgl-heta {__version__}", named, given)


def kept_edge_arrays(source: GraphSource, relation: Relation, edge_ids: bool
                     ) -> dict[str, np.ndarray]:
    """Arrays of a relation's edges that a store holds: numbers of at most 64 bits, a row per edge,
    and all that are kept as they were given.

    They go by the edges' ids, so none where these are not kept.
    """
    count, given = source.edges[relation].num_edges, source.given.get(relation, {})
    return {name: array for name, array in source.edge_arrays.get(relation, {}).items()
            if edge_ids and array.ndim and len(array) == count and (name in given or (
                array.dtype.kind in "fiub" and array.dtype.itemsize <= 8))}


def _write_rows(directory: Path, file: str, array: np.ndarray, advance: Callable[[int], None],
                check: Callable[..., None] | None = None) -> ArrayEntry:
    """Write an array in pieces; `check` gets the `rows` of each, the first of which is `start`."""
    row_bytes = array.dtype.itemsize * math.prod(array.shape[1:])
    starts = row_starts(len(array), row_bytes)
    with NpyWriter(directory, file, array.dtype, array.shape) as writer:
        for start in starts:
            rows = np.asarray(array[start:start + starts.step])
            if check is not None:
                check(rows=rows, start=start)
            writer.append(rows)
            forget(array)
            advance(rows.nbytes)
        return writer.close()


def check_source(source: GraphSource) -> None:
    """Check what can be known of a graph before its edges are read.

    Raises
    ------
    InputError
        Counts, array shapes and types, labels, masks or the task are wrong.
    """
    source.schema()
    try:
        json.dumps([source.name, source.info])
    except (TypeError, ValueError) as error:
        raise InputError(f"name and info of a graph must be what JSON can hold: {error}") from None
    _check_arrays(source)
    for ntype, ids in source.node_ids.items():
        if len(ids) != source.node_counts.get(ntype):
            raise InputError(f"node type '{ntype}' has {source.node_counts.get(ntype, 0)} nodes, "
                             f"but {len(ids)} ids; it must have one for each node")
    if source.task is not None:
        _check_task(source, source.task)


def _check_arrays(source: GraphSource) -> None:
    """Refuse arrays of nodes that a store cannot have; features must be matrices."""
    for ntype, arrays in source.node_arrays.items():
        if ntype not in source.node_counts:
            raise InputError(f"arrays are given for node type '{ntype}', which is not in the "
                             f"graph; node types: {listing(source.node_counts)}")
        count, given = source.node_counts[ntype], source.given.get(ntype, {})
        for name, array in arrays.items():
            if array.ndim == 0 or array.shape[0] != count:
                rows = array.shape[0] if array.ndim else "no"
                raise InputError(f"array '{name}' of node type '{ntype}' has {rows} rows; it must "
                                 f"have {count}, one for each node")
            if name not in given and (array.dtype.kind not in "fiub" or array.dtype.itemsize > 8):
                raise InputError(f"array '{name}' of node type '{ntype}' has dtype {array.dtype}; "
                                 "it must be numbers of at most 64 bits or booleans")
        feat = None if "feat" in given else arrays.get("feat")
        if feat is not None and (feat.ndim != 2 or feat.dtype.kind != "f" or not feat.shape[1]):
            raise InputError(f"features 'feat' of node type '{ntype}' are {feat.dtype} of shape "
                             f"{feat.shape}; they must be floating point, one row per node and "
                             "one column per feature")


def _check_task(source: GraphSource, task: Task) -> None:
    """Refuse a task whose labels or masks are not what it needs."""
    if task.target not in source.node_counts:
        raise InputError(f"target node type '{task.target}' is not in the graph; node types: "
                         f"{listing(source.node_counts)}")
    arrays = source.node_arrays.get(task.target, {})
    for name in (task.label, TRAIN_MASK):
        if name not in arrays:
            raise InputError(f"target node type '{task.target}' has no array '{name}'; it has: "
                             f"{listing(arrays)}" + (_MASKS_OF_EDGE_FILES if name == TRAIN_MASK
                                                     else ""))
    arrays = task_arrays(source, task)
    labels = NodeLabels(arrays[task.label], task.kind, task.num_classes, task.unlabelled,
                    f"array '{task.label}' of node type '{task.target}'")
    if labels.outputs != task.num_classes:
        raise InputError(f"the task has {task.num_classes} labels, but {labels.what} has "
                         f"{labels.outputs} columns")
    for name in MASKS:
        if name not in arrays:
            continue
        mask = arrays[name]
        if mask.ndim != 1 or mask.dtype.kind not in "biu":
            raise InputError(f"mask '{name}' of '{task.target}' is {mask.dtype} of shape "
                             f"{mask.shape}; it must be boolean, one entry per node")
        labels.check(in_mask(mask), name)


def _check_space(source: GraphSource, directory: Path, edge_ids: bool, chunk: int) -> None:
    need = _node_bytes(source)
    need += sum(array.nbytes for relation in source.edges
                for array in kept_edge_arrays(source, relation, edge_ids).values())
    scratch = 0
    for (src, _, dst), edges in source.edges.items():
        width = index_dtype(source.node_counts[src]).itemsize + 8 * edge_ids
        need += edges.num_edges * width + 8 * source.node_counts[dst]
        if edges.num_edges > chunk:
            scratch = max(scratch, edges.num_edges * (width + 8))
    free = shutil.disk_usage(directory).free
    if need + scratch > free:
        raise HetaError(f"no space left on the disk: the store needs {need:,} bytes and "
                        f"{scratch:,} more while it is written, but {free:,} are free")


def _work(source: GraphSource) -> int:
    """Bytes of arrays plus two passes over the edges, the unit of the progress."""
    return max(_node_bytes(source) + 2 * sum(edges.num_edges for edges in source.edges.values()), 1)


def _node_bytes(source: GraphSource) -> int:
    """Of arrays and ids of nodes."""
    arrays = [a for named in source.node_arrays.values() for a in named.values()]
    ids = [a for named in source.node_ids.values() for a in (named.offsets, named.text)]
    return sum(array.nbytes for array in arrays + ids)


def safe_name(name: str) -> str:
    """A part of a file name that looks like `name`; different names can give the same."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:80]
