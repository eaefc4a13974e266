"""Write a relation store: streaming, bounded in memory, complete or not at all."""

from __future__ import annotations

import hashlib
import math
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta._version import __version__
from dgl_heta.errors import HetaError
from dgl_heta.graph.readers.arrays import check_finite
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import ALWAYS, GraphSource, pieces_of
from dgl_heta.store.builders import ALONE, Builders, graph_facts
from dgl_heta.store.csc import Pieces, TimesOf, count_in_degrees, index_dtype, sorted_indices
from dgl_heta.store.encoding import EncodedRows, encoded
from dgl_heta.store.manifest import FILE_NAME, ArrayEntry, IdsEntry, Manifest, RelationEntry
from dgl_heta.store.source_checks import check_source
from dgl_heta.store.store_files import others_in_store
from dgl_heta.system.atomic_files import new_directory
from dgl_heta.system.disk import forget, npy_header, row_starts

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
    overwrite : replace an existing store (and nothing but a store, or an empty directory), which
        stays as it is until the new one is complete.
    memory_mb : memory for edges. A relation larger than this is sorted in pieces on disk, and
        the in-edges of a node, too; counts of nodes are mapped from there.
    edge_ids : keep for every edge its position in the source.

    Raises
    ------
    InputError
        `out` exists, or the graph is wrong: see the checks in docs/format.md.
    HetaError
        The disk is full or cannot be written.
    """
    check_source(source, encodes=True)
    with new_directory(Path(out), overwrite=overwrite, kind=FILE_NAME,
                       others=others_in_store) as directory:
        return fill_store(source, directory, memory_mb=memory_mb, edge_ids=edge_ids,
                          progress=progress)


def fill_store(source: GraphSource, directory: Path, *, memory_mb: int = 512,
               edge_ids: bool = False, progress: Progress | None = None,
               builders: Builders = ALONE) -> Manifest:
    """Write a checked source into an existing directory that the caller throws away on failure.

    Several builders share the arrays and the relations among them, and each relation that is more
    than a builder's share of all edges.
    """
    source = encoded(source)
    builders.each(lambda: _check_space(
        source, directory, edge_ids, _chunk(memory_mb),
        1.0 if builders.one_disk else min(builders.beside / builders.size, 1.0)))
    if builders.size > 1:
        builders.agree(graph_facts(source) | {
            "choice of edge ids or memory": f"{edge_ids} {memory_mb}"})
    manifest = _Writing(source, directory, _chunk(memory_mb), edge_ids, progress, builders).write()
    builders.each(lambda: None if builders.rank else manifest.save(directory))
    return manifest


class NpyWriter:
    """A `.npy` file written in pieces, hashed on the way; a context manager."""

    def __init__(self, directory: Path, file: str, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self._file, self._dtype, self._shape = file, np.dtype(dtype).newbyteorder("="), shape
        path = directory / file
        # Its parents are there: a directory that was removed meanwhile must not come back.
        path.parent.mkdir(exist_ok=True)
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

    def take(self, file: Path) -> None:
        """Append the bytes of a file, which is removed."""
        with file.open("rb") as part:
            while data := part.read(2**22):
                self._raw(data)
        file.unlink()

    def close(self) -> ArrayEntry:
        self._handle.close()
        return ArrayEntry(self._file, self._dtype.str, self._shape, self._bytes,
                          self._hash.hexdigest())


def _chunk(memory_mb: int) -> int:
    """Edges in memory at a time: about 40 bytes each while they are sorted."""
    return max(memory_mb * 2**20 // 40, 1024)


class _Writing:
    """A store that is being written: files of arrays, and those of relations, by tasks that are
    independent of each other."""

    def __init__(self, source: GraphSource, directory: Path, chunk: int, edge_ids: bool,
                 progress: Progress | None, builders: Builders) -> None:
        self.source, self.directory, self.chunk = source, directory, chunk
        self.edge_ids, self.builders = edge_ids, builders
        self._progress, self._done = progress or (lambda *_: None), 0
        self._total = max(_work(source) // builders.size, 1)
        self._written: dict[str, ArrayEntry] = {}
        # Indices in file names keep apart what safe_name makes alike ("a/b" and "a_b").
        self._types = {ntype: f"nodes/{index}-{safe_name(ntype)}"
                       for index, ntype in enumerate(source.node_counts)}
        self._relations = {Relation(*triple): f"relations/{index}-{safe_name('__'.join(triple))}"
                           for index, triple in enumerate(source.edges)}
        self._kept = {relation: kept_edge_arrays(source, relation, edge_ids)
                      for relation in self._relations}

    def write(self) -> Manifest:
        """Write all files; returns the manifest that describes them."""
        for kind in {Path(folder).parts[0] for folder in (*self._types.values(),
                                                          *self._relations.values())}:
            (self.directory / kind).mkdir(exist_ok=True)
        # The others would wait for the builder of a relation that is more than its share.
        most = sum(edges.num_edges for edges in self.source.edges.values()) / self.builders.size
        tasks = self._array_tasks()
        for relation in self._relations:
            edges = self.source.edges[relation]
            if self.builders.one_disk and edges.num_edges > most and len(pieces_of(edges)) > 1:
                self._write_relation(relation, self.builders)
            else:  # read twice, dealt and sorted: more than the bytes that are written
                tasks.append((24 * edges.num_edges, partial(self._write_relation, relation, ALONE)))

        def own() -> None:
            for task in self.builders.dealt([weight for weight, _ in tasks]):
                tasks[task][1]()

        self.builders.each(own)
        for written in self.builders.gather([asdict(entry) for entry in self._written.values()]):
            self._written |= {entry["file"]: ArrayEntry(**entry | {"shape": tuple(entry["shape"])})
                              for entry in written}
        return self._manifest()

    def _advance(self, what: str, amount: int) -> None:
        self._done += amount
        self._progress(what, min(self._done / self._total, 1.0))

    def _array_tasks(self) -> list[tuple[int, Callable[[], None]]]:
        """For each array of nodes and of edges its bytes, and what writes it."""
        tasks: list[tuple[int, Callable[[], None]]] = []

        def add(file: str, array: np.ndarray, what: str, check: Callable[..., None] | None = None
                ) -> None:
            tasks.append((array.nbytes, partial(self._write_rows, file, array, what, check)))

        for ntype, folder in self._types.items():
            for name, array in self.source.node_arrays.get(ntype, {}).items():
                add(self._array_file(folder, self.source.node_arrays[ntype], name), array,
                    f"{ntype} {name}", partial(check_finite, name, ntype=ntype)
                    if name == "feat" and name not in self.source.given.get(ntype, {}) else None)
            if ids := self.source.node_ids.get(ntype):
                add(f"{folder}/ids-offsets.npy", ids.offsets, f"{ntype} ids")
                add(f"{folder}/ids-text.npy", ids.text, f"{ntype} ids")
            if ntype in self.source.times:
                add(f"{folder}/times.npy", self.source.times[ntype], f"{ntype} times")
        for relation, folder in self._relations.items():
            for name, array in self._kept[relation].items():
                add(self._array_file(folder, self._kept[relation], name), array,
                    f"{relation} {name}")
        return tasks

    def _array_file(self, folder: str, arrays: Mapping[str, Any], name: str) -> str:
        return f"{folder}/{list(arrays).index(name)}-{safe_name(name)}.npy"

    def _write_rows(self, file: str, array: np.ndarray, what: str,
                    check: Callable[..., None] | None) -> None:
        """Write an array in pieces; `check` gets the `rows` of each, the first of which is `start`.
        """
        row_bytes = array.dtype.itemsize * math.prod(array.shape[1:])
        starts = row_starts(len(array), row_bytes)
        with NpyWriter(self.directory, file, array.dtype, array.shape) as writer:
            for start in starts:
                rows = np.asarray(array[start:start + starts.step])
                if check is not None:
                    check(rows=rows, start=start)
                writer.append(rows)
                forget(array)
                self._advance(what, rows.nbytes)
            self._keep(writer)

    def _write_relation(self, relation: Relation, builders: Builders) -> None:
        """Write the CSC of a relation; several builders sort ranges of it side by side."""
        edges, folder = self.source.edges[relation], self._relations[relation]
        num_src = self.source.node_counts[relation.src]
        advance = partial(self._advance, str(relation))
        scratch = self.directory / f"{folder}-buckets"
        indptr = count_in_degrees(relation, edges, num_src, self.source.node_counts[relation.dst],
                                  self.chunk, advance, builders, scratch)
        times = edge_times(self.source, relation)
        types = {"indices": index_dtype(num_src)} | {
            name: np.dtype(np.int64) for name, kept in (
                ("times", times is not None), ("edge_ids", self.edge_ids)) if kept}
        pieces = sorted_indices(relation, edges, indptr, num_src, self.chunk, self.edge_ids,
                                scratch, advance, builders, times)

        parts = [[scratch / f"{name}-{rank}" for rank in range(builders.size)] for name in types]

        def write_first() -> None:
            with NpyWriter(self.directory, f"{folder}/indptr.npy", indptr.dtype, indptr.shape
                           ) as pointer:
                for start in (starts := row_starts(len(indptr), 8)):
                    pointer.append(indptr[start:start + starts.step])
                    forget(indptr)
                self._keep(pointer)
            for name, dtype in types.items():
                writers[name] = opened.enter_context(NpyWriter(
                    self.directory, f"{folder}/{name}.npy", dtype, (int(indptr[-1]),)))
            for columns in pieces:
                for writer, rows in zip(writers.values(), columns):
                    writer.append(rows)
                del columns, rows

        def join() -> None:
            for writer, paths in zip(writers.values(), parts):
                for path in paths[1:]:
                    writer.take(path)
                self._keep(writer)
            if scratch.exists():
                shutil.rmtree(scratch)

        writers: dict[str, NpyWriter] = {}
        with ExitStack() as opened:
            builders.each(write_first if builders.rank == 0 else partial(
                _write_parts, pieces, [paths[builders.rank] for paths in parts]))
            builders.each(join if builders.rank == 0 else lambda: None)

    def _keep(self, writer: NpyWriter) -> None:
        entry = writer.close()
        self._written[entry.file] = entry

    def _manifest(self) -> Manifest:
        source = self.source

        def entries(folder: str, arrays: Mapping[str, Any]) -> dict[str, ArrayEntry]:
            return {name: replace(self._written[self._array_file(folder, arrays, name)], scale=(
                tuple(array.scale.tolist()) if isinstance(array, EncodedRows)
                and array.scale is not None else None)) for name, array in arrays.items()}

        relations = []
        for relation, folder in self._relations.items():
            indices = self._written[f"{folder}/indices.npy"]
            relations.append(RelationEntry(
                relation, indices.shape[0], self._written[f"{folder}/indptr.npy"], indices,
                self._written.get(f"{folder}/edge_ids.npy"), entries(folder, self._kept[relation]),
                self._written.get(f"{folder}/times.npy")))
        task = source.task and replace(
            source.task, num_classes=int(source.task.num_classes), unlabelled=None
            if source.task.unlabelled is None else float(source.task.unlabelled))
        given = {kind: known for kind, known in source.given.items()
                 if known and (self.edge_ids or kind in source.node_counts)}
        for item in relations:  # sums of edges that are in another order than the graph had them
            if item.relation in given:
                given[item.relation] = {
                    name: known if known.sha256 else replace(known, sha256=item.arrays[name].sha256)
                    for name, known in given[item.relation].items()}
        return Manifest(
            source.name, {t: int(n) for t, n in source.node_counts.items()},
            {t: entries(folder, source.node_arrays.get(t, {}))
             for t, folder in self._types.items()},
            tuple(relations), task, source.info, f"dgl-heta {__version__}",
            {t: IdsEntry(*(self._written[f"{self._types[t]}/ids-{part}.npy"]
                           for part in ("offsets", "text")))
             for t in self._types if t in source.node_ids}, given,
            {t: self._written[f"{self._types[t]}/times.npy"]
             for t in self._types if t in source.times})


def _write_parts(pieces: Pieces, paths: Sequence[Path]) -> None:
    """Write columns to files of one's own: shared file systems write whole pages, so that of what
    two machines write to one file some is lost."""
    with ExitStack() as opened:
        files = [opened.enter_context(path.open("wb")) for path in paths]
        for columns in pieces:
            for file, rows in zip(files, columns):
                file.write(np.ascontiguousarray(rows).data)


def edge_times(source: GraphSource, relation: Relation) -> TimesOf | None:
    """What gives the times of a relation's edges: the later of an edge's own and its source row's.
    None where neither has any."""
    rows, own = source.times.get(relation.src), source.times.get(relation)
    if rows is None and own is None:
        return None

    def of(indices: np.ndarray, ids: np.ndarray) -> np.ndarray:
        later = np.full(len(indices), ALWAYS)
        for known, at in ((rows, indices), (own, ids)):
            if known is not None:
                np.maximum(later, known[at], out=later)
                forget(known)
        return later

    return of


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


def _check_space(source: GraphSource, directory: Path, edge_ids: bool, chunk: int,
                 share: float) -> None:
    """Refuse a disk that has no room for a share of the store, or all of it."""
    need = _node_bytes(source)
    need += sum(array.nbytes for relation in source.edges
                for array in kept_edge_arrays(source, relation, edge_ids).values())
    scratch = 0
    for (src, name, dst), edges in source.edges.items():
        timed = src in source.times or (src, name, dst) in source.times
        width = index_dtype(source.node_counts[src]).itemsize + 8 * edge_ids + 8 * timed
        need += edges.num_edges * width + 8 * source.node_counts[dst]
        scratch = max(scratch, 8 * source.node_counts[dst] + (
            edges.num_edges * (width + 8) if edges.num_edges > chunk else 0))
    free = shutil.disk_usage(directory).free
    need = int(need * share)
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
    ids += [times for kind, times in source.times.items() if isinstance(kind, str)]
    return sum(array.nbytes for array in arrays + ids)


def safe_name(name: str) -> str:
    """A part of a file name that looks like `name`; different names can give the same."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:80]
