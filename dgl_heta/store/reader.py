"""Open a relation store: memory-mapped, instant, checked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dgl_heta.errors import InputError, listing
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.graph.source import GraphSource
from dgl_heta.store.csc import CSC
from dgl_heta.store.manifest import FILE_NAME, ArrayEntry, Manifest, RelationEntry


class Store:
    """A relation store that is open for reading.

    Opening reads the manifest and compares the size of every file with it; arrays are
    memory-mapped when asked for. :meth:`verify` compares the checksums too.

    Parameters
    ----------
    directory : the directory that `write_store` made.

    Raises
    ------
    InputError
        Not a store, another format version, a file missing or of another size.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.manifest = Manifest.load(self.directory)
        self.schema: Schema = self.manifest.schema()
        self._relations = {entry.relation: entry for entry in self.manifest.relations}
        for entry in self.manifest.entries():
            self._check_size(entry)

    @staticmethod
    def is_store(directory: str | Path) -> bool:
        """Whether `directory` looks like a relation store."""
        return (Path(directory) / FILE_NAME).is_file()

    def relation(self, relation: Relation) -> CSC:
        """The CSC of a relation, memory-mapped."""
        entry = self._entry(relation)
        return CSC(self._open(entry.indptr), self._open(entry.indices))

    def edge_ids(self, relation: Relation) -> np.ndarray:
        """For each CSC position the edge's position in the source, int64."""
        entry = self._entry(relation)
        if entry.edge_ids is None:
            raise InputError(f"store {self.directory} keeps no edge ids; write it with edge_ids")
        return self._open(entry.edge_ids)

    def array(self, ntype: str, name: str) -> np.ndarray:
        """A node array, one row per node of the type, memory-mapped."""
        self.schema.check_node_type(ntype)
        arrays = self.manifest.arrays[ntype]
        if name not in arrays:
            raise InputError(f"node type '{ntype}' has no array '{name}'; it has: "
                             f"{listing(arrays)}")
        return self._open(arrays[name])

    def has_array(self, ntype: str, name: str) -> bool:
        return name in self.manifest.arrays.get(ntype, {})

    def verify(self, ntypes: Iterable[str] | None = None,
               relations: Iterable[Relation] | None = None,
               progress: Callable[[str, float], None] | None = None) -> None:
        """Compare the checksums of all files, or of those of some node types and relations.

        Raises
        ------
        InputError
            A file that differs from what was written, by name; an unknown type or relation.
        """
        ntypes = None if ntypes is None else {self.schema.check_node_type(t) for t in ntypes}
        relations = None if relations is None else {self._entry(r).relation for r in relations}
        entries = self.manifest.entries(ntypes, relations)
        total = max(sum(entry.bytes for entry in entries), 1)
        done = 0
        for entry in entries:
            digest = hashlib.sha256()
            path = self.directory / entry.file
            try:
                with path.open("rb") as file:
                    while data := file.read(2**22):
                        digest.update(data)
                        done += len(data)
                        if progress:
                            progress(entry.file, min(done / total, 1.0))
            except OSError as error:
                raise InputError(f"cannot read store file {path}: "
                                 f"{error.strerror or error}") from None
            if digest.hexdigest() != entry.sha256:
                raise InputError(
                    f"store file {path} was edited or damaged: its checksum does not agree with "
                    "the manifest; write the store again"
                )

    def source(self) -> GraphSource:
        """The stored graph as a source; edges come by destination, arrays are memory maps."""
        manifest = self.manifest
        return GraphSource(
            manifest.name, dict(manifest.node_counts),
            {r: _StoredEdges(self.relation(r)) for r in self.schema.relations},
            {t: {name: self.array(t, name) for name in arrays}
             for t, arrays in manifest.arrays.items()}, manifest.task, dict(manifest.info))

    def _entry(self, relation: Relation) -> RelationEntry:
        if relation not in self._relations:
            raise InputError(f"relation '{relation}' is not in store {self.directory}; relations: "
                             f"{listing(self._relations)}")
        return self._relations[relation]

    def _check_size(self, entry: ArrayEntry) -> None:
        path = self.directory / entry.file
        try:
            size = path.stat().st_size
        except OSError:
            raise InputError(f"store file {path} is missing; write the store again") from None
        if size != entry.bytes:
            raise InputError(
                f"store file {path} has {size} bytes, but the manifest says {entry.bytes}: it was "
                "truncated or edited; write the store again"
            )

    def _open(self, entry: ArrayEntry) -> np.ndarray:
        path = self.directory / entry.file
        try:
            array = np.lib.format.open_memmap(path, mode="r")  # never unpickles
        except Exception as error:  # NumPy's parser raises almost anything at a damaged header
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"store file {path} is damaged: {reason}") from None
        if array.dtype.str != entry.dtype or array.shape != entry.shape:
            raise InputError(
                f"store file {path} holds {array.dtype.str}{list(array.shape)}, but the manifest "
                f"says {entry.dtype}{list(entry.shape)}; write the store again"
            )
        if not array.flags.c_contiguous or array.offset + array.nbytes != entry.bytes:
            raise InputError(f"store file {path} is damaged: its header puts the rows in another "
                             "place than they were written to; write the store again")
        return array


@dataclass(frozen=True)
class _StoredEdges:
    """Edges of a stored relation, by destination."""

    csc: CSC

    @property
    def num_edges(self) -> int:
        return len(self.csc.indices)

    def chunks(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        indptr, indices = self.csc
        for start in range(0, len(indices), size):
            stop = min(start + size, len(indices))
            low = int(np.searchsorted(indptr, start, "right")) - 1
            high = int(np.searchsorted(indptr, stop, "left"))
            degrees = np.diff(np.clip(indptr[low:high + 1], start, stop))
            yield np.asarray(indices[start:stop]), np.repeat(np.arange(low, high), degrees)


def as_source(graph: GraphSource | Store) -> GraphSource:
    """A graph as a source, whether it is a store or one already."""
    return graph.source() if isinstance(graph, Store) else graph
