"""Open a relation store: memory-mapped, instant, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.errors import InputError, listing
from dgl_heta.graph.labels import NodeLabels, in_mask
from dgl_heta.graph.node_ids import NodeIds
from dgl_heta.graph.readers.arrays import as_trained
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.graph.source import ALWAYS, MASKS, GraphSource, Task
from dgl_heta.store.csc import CSC
from dgl_heta.store.manifest import FILE_NAME, RelationEntry
from dgl_heta.store.store_files import StoreFiles
from dgl_heta.store.structure import pointers
from dgl_heta.system.remote_files import file_path


class Store(StoreFiles):
    """A relation store that is open for reading.

    Opening reads the manifest and compares the size of every file with it; arrays are
    memory-mapped when asked for. :meth:`verify` compares checksums and contents.

    Parameters
    ----------
    directory : the directory that `write_store` made.
    verify : compare each file when it is first opened, as :meth:`verify` does. For readers that
        do not know beforehand what they will read.

    Attributes
    ----------
    staged : which files are there, where the store was staged for some partitions; else None.

    Raises
    ------
    InputError
        Not a store, another format version, a file missing or of another size.
    """

    def __init__(self, directory: str | Path, verify: bool = False) -> None:
        super().__init__(directory, verify)
        self.schema: Schema = self.manifest.schema()
        self._relations = {entry.relation: entry for entry in self.manifest.relations}
        self._ascending: set[Relation] = set()  # whose pointers were checked

    @staticmethod
    def is_store(directory: str | Path) -> bool:
        """Return whether `directory` looks like a relation store."""
        return (file_path(directory) / FILE_NAME).is_file()

    def relation(self, relation: Relation, pieces: bool = False) -> CSC:
        """The CSC of a relation, memory-mapped; its pointers ascend to the number of edges.

        Parameters
        ----------
        pieces : the caller reads only in-edges that its partition runs, so that a staged store may
            have no others: what it has not reads as zeros.

        Raises
        ------
        InputError
            A file is damaged, or its pointers do not; it is not here, or only pieces of it are.
        """
        return CSC(self.pointers(relation), self._open(self._entry(relation).indices, pieces))

    def pointers(self, relation: Relation) -> np.ndarray:
        """For each destination node where its in-edges begin, and their end; as of
        :meth:`relation`."""
        entry = self._entry(relation)
        indptr = self._open(entry.indptr)
        if relation not in self._ascending:
            if entry.indptr.file not in self._verified:
                self._refuse(entry.indptr, pointers(entry).check(indptr))
            self._ascending.add(relation)
        return indptr

    def weights(self, relation: Relation) -> np.ndarray | None:
        """For each CSC position what the edge's chance of being sampled is proportional to,
        float64, positive and finite; None, as here, if a node's edges are all alike."""
        return None

    def times(self, relation: Relation, pieces: bool = False) -> np.ndarray | None:
        """For each CSC position the time from which on the edge is there, int64, ascending among a
        node's in-edges; None if all are there always. `pieces` as of :meth:`relation`."""
        entry = self._entry(relation).times
        return self._open(entry, pieces) if entry else None

    def row_times(self, ntype: str) -> np.ndarray | None:
        """The times of a type's rows, int64, or None if they have none."""
        entry = self.manifest.times.get(self.schema.check_node_type(ntype))
        return self._open(entry) if entry else None

    def there(self, ntype: str, nodes: np.ndarray, time: int | None) -> np.ndarray:
        """Which of some nodes are there at a time, bool; all without times."""
        times = self.row_times(ntype)
        return np.ones(len(nodes), np.bool_) if times is None else times[nodes] <= time

    def first_time(self) -> int | None:
        """The first time of rows that are on this machine; None where none have times."""
        known = [times[times != ALWAYS] for entry in self.manifest.times.values()
                 if self._is_here(entry) for times in [self._open(entry)]]
        return min((int(times.min()) for times in known if len(times)), default=None)

    def edge_ids(self, relation: Relation) -> np.ndarray:
        """For each CSC position the edge's position in the source, int64."""
        entry = self._entry(relation)
        if entry.edge_ids is None:
            raise InputError(f"store {self.directory} keeps no edge ids; write it with edge_ids")
        return self._open(entry.edge_ids)

    def has_edge_ids(self, relation: Relation) -> bool:
        return self._entry(relation).edge_ids is not None

    def edge_arrays(self, relation: Relation) -> dict[str, np.ndarray]:
        """Arrays of a relation's edges, memory-mapped, a row per edge in the source's order."""
        return {name: self._open(entry) for name, entry in self._entry(relation).arrays.items()}

    def array(self, ntype: str, name: str) -> np.ndarray:
        """A node array for training, one row per node of the type, memory-mapped if it is held so.

        Raises
        ------
        InputError
            There is none, or it is kept as it was given, in a form that training cannot read.
        """
        return as_trained(name, self.held_array(ntype, name), ntype,
                          self.manifest.given.get(ntype, {}), self.manifest.task)

    def held_array(self, ntype: str, name: str) -> np.ndarray:
        """A node array as it is held, one row per node of the type, memory-mapped.

        Raises
        ------
        InputError
            There is none, or it is features of int8, whose numbers mean nothing without scales.
        """
        self.schema.check_node_type(ntype)
        arrays = self.manifest.arrays[ntype]
        if name not in arrays:
            raise InputError(f"node type '{ntype}' has no array '{name}'; it has: "
                             f"{listing(arrays)}")
        if name == "feat":
            self.check_unscaled(ntype)
        return self._open(arrays[name])

    def check_unscaled(self, *ntypes: str) -> None:
        """Refuse features with scales, of some node types or of any, for what reads none.

        Raises
        ------
        InputError
            There are such.
        """
        for ntype in ntypes or self.schema.node_types:
            entry = self.manifest.arrays.get(ntype, {}).get("feat")
            if entry is not None and entry.scale is not None:
                raise InputError(
                    f"features of node type '{ntype}' are kept as int8, which `dgl-heta train` and "
                    "`predict` read, and loops over their batches, but nothing else; partition "
                    "the graph again without --feature-dtype int8")

    def features(self, ntype: str) -> tuple[np.ndarray, np.ndarray | None]:
        """A type's features as they are held, and what each column is to be multiplied by, float32,
        if anything."""
        entry = self.manifest.arrays[self.schema.check_node_type(ntype)].get("feat")
        if entry is None or entry.scale is None:
            return self.array(ntype, "feat"), None
        return self._open(entry), np.array(entry.scale, np.float32)

    def feature_rows(self, ntype: str, low: int, high: int) -> np.ndarray:
        """The features of nodes `low … high - 1`, a copy, floating point; of int8 as float64, in
        which their product with a scale is exact."""
        rows, scale = self.features(ntype)
        return np.array(rows[low:high]) if scale is None else rows[low:high] * scale.astype("f8")

    def width(self, ntype: str, name: str) -> int:
        """Numbers in a row of a node array as training reads it, wherever its file is."""
        entry = self.manifest.arrays[ntype][name]
        rows = as_trained(name, np.empty((0, *entry.shape[1:]), entry.dtype), ntype,
                          self.manifest.given.get(ntype, {}), self.manifest.task)
        return int(rows.shape[1])

    def ids(self, ntype: str) -> NodeIds | None:
        """The ids that nodes of a type have for whoever made the graph, or None."""
        self.schema.check_node_type(ntype)
        entry = self.manifest.ids.get(ntype)
        return NodeIds(self._open(entry.offsets), self._open(entry.text)) if entry else None

    def has_array(self, ntype: str, name: str) -> bool:
        return name in self.manifest.arrays.get(ntype, {})

    def is_here(self, ntype: str, name: str) -> bool:
        """Whether a node array is on this machine: a staged store has those that are read there."""
        return self._is_here(self.manifest.arrays[ntype][name])

    def verify(self, ntypes: Iterable[str] | None = None,
               relations: Iterable[Relation] | None = None,
               progress: Callable[[str, float], None] | None = None) -> list[str]:
        """Compare the checksums of all files that are there, or of those of some node types and
        relations, which must be.

        In the same pass their contents are checked: pointers ascend, ids are those of nodes and
        edges, truth values are 0 and 1, labels in masks are classes, arrays that were given are
        what they were then. Returns a sentence for each type with features that are not finite.

        Raises
        ------
        InputError
            A file that differs from what was written, or that a store cannot hold, by name; an
            unknown type or relation.
        """
        ntypes = None if ntypes is None else {self.schema.check_node_type(t) for t in ntypes}
        relations = None if relations is None else {self._entry(r).relation for r in relations}
        self._refuse_unlike()
        entries = self.manifest.entries(ntypes, relations)
        if ntypes is None and relations is None:
            entries = [entry for entry in entries if self._is_here(entry)]
        total = max(sum(entry.bytes for entry in entries), 1)
        done = 0
        self._not_finite = []
        for entry in entries:
            for size in self.compared(entry):
                done += size
                if progress:
                    progress(entry.file, min(done / total, 1.0))
        task = self.manifest.task
        if task and task.kind == "classification" and (ntypes is None or task.target in ntypes):
            self._check_labels(task)
        return self._not_finite

    def check_untimed(self, who: str) -> None:
        """Raise an :class:`InputError` if the graph has times, as `who` goes by none: what is later
        than a seed would reach it."""
        if self.manifest.timed:
            raise InputError(f"{who} by no times, but the graph in {self.directory} has some: what "
                             "is later than a prediction would reach it; use `dgl-heta train`, or "
                             "write the store without times")

    def check_time(self, time: int | None) -> None:
        """Raise an :class:`InputError` for predictions at no time in a graph with times, at one in
        another, and at one that is before all data."""
        first = self.first_time()
        if (time is None) == self.manifest.timed:
            raise InputError("the graph has times; say at which to predict, such as --time "
                             "2026-11-23" if time is None else
                             "the graph has no times; predict without one")
        if time is not None and first is not None and time < first:
            raise InputError(f"the time to predict at, {np.datetime64(time, 's')}Z, is before all "
                             f"data, which begin at {np.datetime64(first, 's')}Z")

    def _check_labels(self, task: Task) -> None:
        """Labels of nodes in a mask are classes."""
        arrays = self.manifest.arrays.get(task.target, {})
        label = arrays.get(task.label)
        if label is None or not self._is_here(label):
            return
        labels = NodeLabels(self.array(task.target, task.label), task.kind, task.num_classes,
                            task.unlabelled)
        for name in MASKS:
            if name in arrays:
                self._refuse(label, labels.fault(in_mask(self.array(task.target, name)), name))

    def source(self) -> GraphSource:
        """The stored graph as a source; edges come by destination, arrays are memory maps, those of
        edges in the order in which these come.

        Arrays are not compared with their checksums, whatever `verify` is: call :meth:`verify`.

        Raises
        ------
        InputError
            Only some partitions' files are there; features have scales.
        """
        manifest = self.manifest
        self.check_whole()
        self.check_unscaled()
        edge_arrays: dict[Relation, dict[str, Any]] = {
            r.relation: {name: _StoredRows(self._mapped(entry), self._mapped(r.edge_ids))
                         for name, entry in r.arrays.items()}
            for r in manifest.relations if r.arrays and r.edge_ids}
        return GraphSource(
            manifest.name, dict(manifest.node_counts),
            {r: _StoredEdges(self, r) for r in self.schema.relations},
            {t: {name: self._mapped(entry) for name, entry in arrays.items()}
             for t, arrays in manifest.arrays.items()}, manifest.task, dict(manifest.info),
            edge_arrays,
            node_ids={t: NodeIds(self._mapped(e.offsets), self._mapped(e.text))
                      for t, e in manifest.ids.items()},
            given={kind: given if isinstance(kind, str) else {
                name: replace(known, sha256="") for name, known in given.items()}
                for kind, given in manifest.given.items()},
            times={**{t: self._mapped(entry) for t, entry in manifest.times.items()},
                   **{r.relation: self._mapped(r.times) for r in manifest.relations if r.times}})

    def _entry(self, relation: Relation) -> RelationEntry:
        if relation not in self._relations:
            raise InputError(f"relation '{relation}' is not in store {self.directory}; relations: "
                             f"{listing(self._relations)}")
        return self._relations[relation]


@dataclass(frozen=True)
class _StoredEdges:
    """Edges of a stored relation, by destination."""

    store: Store
    relation: Relation

    @property
    def num_edges(self) -> int:
        return self.store.schema.edge_counts[self.relation]

    def chunks(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        indptr, indices = self.store.relation(self.relation)
        for start in range(0, len(indices), size):
            stop = min(start + size, len(indices))
            low = int(np.searchsorted(indptr, start, "right")) - 1
            high = int(np.searchsorted(indptr, stop, "left"))
            degrees = np.diff(np.clip(indptr[low:high + 1], start, stop))
            yield np.asarray(indices[start:stop]), np.repeat(np.arange(low, high), degrees)


class _StoredRows:
    """An array of a relation's edges in the order in which a store has these: rows are read when
    they are asked for, by slices, positions or masks."""

    def __init__(self, rows: np.ndarray, edge_ids: np.ndarray) -> None:
        self._rows, self._edge_ids = rows, edge_ids
        self.dtype, self.shape, self.ndim = rows.dtype, rows.shape, rows.ndim
        self.nbytes = rows.nbytes

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, edges: Any) -> np.ndarray:
        return np.asarray(self._rows[self._edge_ids[edges]])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype)


def as_source(graph: GraphSource | Store) -> GraphSource:
    """A graph as a source, whether it is a store or one already."""
    return graph.source() if isinstance(graph, Store) else graph
