"""Open a relation store: memory-mapped, instant, checked."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dgl_heta.errors import InputError, listing, several
from dgl_heta.graph.labels import NodeLabels, in_mask
from dgl_heta.graph.node_ids import NodeIds
from dgl_heta.graph.readers.arrays import as_trained
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.graph.source import ALWAYS, MASKS, GraphSource, Task
from dgl_heta.store.csc import CSC
from dgl_heta.store.manifest import FILE_NAME, ArrayEntry, Manifest, RelationEntry
from dgl_heta.store.staged import Staged, pieces_sum
from dgl_heta.store.structure import Finite, Rule, pointers, rule_of
from dgl_heta.system.remote_files import file_path

_BLOCK = 2**22  # bytes


class Store:
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
        self.directory = Path(directory)
        self._verify_opened = verify
        self._verified: set[str] = set()  # files
        self._ascending: set[Relation] = set()  # whose pointers were checked
        self._not_finite: list[str] = []  # of the features that were compared last
        self._mapped_files: dict[str, tuple[ArrayEntry, tuple[int, int]]] = {}  # device and inode
        self.manifest = Manifest.load(self.directory)
        self.schema: Schema = self.manifest.schema()
        self._relations = {entry.relation: entry for entry in self.manifest.relations}
        entries = self.manifest.entries()
        self.staged = Staged.load(self.directory, self.manifest.to_json,
                                  {entry.file: entry.bytes for entry in entries})
        for entry in entries:
            if self._is_here(entry):
                self._check_size(entry)
        if verify:
            self._refuse_unlike()

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

    def check_whole(self) -> None:
        """Check that all files are there.

        Raises
        ------
        InputError
            The store was staged for some partitions.
        """
        if self.staged is not None:
            raise InputError(f"{self.directory} is staged for {self.staged}, and holds no whole "
                             "graph; give the store that it was staged from")

    def check_untimed(self, who: str) -> None:
        """Refuse times for `who` goes by none: what is later than a seed would reach it.

        Raises
        ------
        InputError
            The graph has some.
        """
        if self.manifest.timed:
            raise InputError(f"{who} by no times, but the graph in {self.directory} has some: what "
                             "is later than a prediction would reach it; use `dgl-heta train`, or "
                             "write the store without times")

    def check_time(self, time: int | None) -> None:
        """Refuse predictions at no time in a graph with times, at one in another, and at one that
        is before all data.

        Raises
        ------
        InputError
            They are such.
        """
        first = self.first_time()
        if (time is None) == self.manifest.timed:
            raise InputError("the graph has times; say at which to predict, such as --time "
                             "2026-11-23" if time is None else
                             "the graph has no times; predict without one")
        if time is not None and first is not None and time < first:
            raise InputError(f"the time to predict at, {np.datetime64(time, 's')}Z, is before all "
                             f"data, which begin at {np.datetime64(first, 's')}Z")

    def check_sizes(self) -> None:
        """Look whether a file that is mapped was cut since: reading it would end the process by
        SIGBUS. What has another file in its place is still there.

        Raises
        ------
        InputError
            It was, by name.
        """
        for entry, file in self._mapped_files.values():
            with contextlib.suppress(OSError):  # it has no name any more, but is still there
                if _identity(self.directory / entry.file) == file:
                    self._check_size(entry)

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

    def compared(self, entry: ArrayEntry) -> Iterator[int]:
        """Compare a file with its checksum, and its content with its rule; yields bytes done."""
        self._check_here(entry)
        pieces = self.staged.files[entry.file] if self.staged else None
        if pieces is not None:  # its rule was checked where the whole file was
            self._compare_sum(entry, pieces_sum(pieces, self.directory / entry.file), pieces.sha256)
            yield entry.bytes
            return
        digest, path = hashlib.sha256(), self.directory / entry.file
        rule, dtype = rule_of(self.manifest, entry), np.dtype(entry.dtype)
        skip, rest = max(entry.bytes - dtype.itemsize * math.prod(entry.shape), 0), b""
        try:
            with path.open("rb", buffering=0) as file:
                while data := file.read(_BLOCK):
                    digest.update(data)
                    if rule is not None:
                        body, skip = data[skip:] if skip else data, max(skip - len(data), 0)
                        body = rest + body if rest else body
                        whole = len(body) // dtype.itemsize
                        rule.add(np.frombuffer(body, dtype, whole))
                        rest = body[whole * dtype.itemsize:]
                    yield len(data)
        except OSError as error:
            raise InputError(f"cannot read store file {path}: "
                             f"{error.strerror or error}") from None
        self._compare_sum(entry, digest.hexdigest(), entry.sha256)
        self._refuse(entry, rule.end() if isinstance(rule, Rule) else "")
        if isinstance(rule, Finite) and rule.wrong:
            self._not_finite.append(
                f"features {path} have {several(rule.wrong, 'number')} that single precision has "
                f"no finite value for (NaN, infinity or too large), first in row "
                f"{rule.first // max(math.prod(entry.shape[1:]), 1)}; what is computed of these "
                "nodes and of those around them is NaN, too")
        self._verified.add(entry.file)

    def _compare_sum(self, entry: ArrayEntry, is_now: str, was: str) -> None:
        if is_now != was:
            raise InputError(
                f"store file {self.directory / entry.file} was edited or damaged: its checksum "
                f"does not agree with the manifest; {self._remedy}"
            )

    def _refuse_unlike(self) -> None:
        if fault := self.manifest.unlike_given():
            raise InputError(f"store {self.directory}: {fault}; partition the graph again")

    @property
    def _remedy(self) -> str:
        return "stage it again (--overwrite)" if self.staged else "write the store again"

    def _refuse(self, entry: ArrayEntry, fault: str) -> None:
        if fault:
            raise InputError(f"store file {self.directory / entry.file} cannot be of a graph: "
                             f"{fault}; write the store again")

    def source(self) -> GraphSource:
        """The stored graph as a source; edges come by destination, arrays are memory maps.

        Arrays are not compared with their checksums, whatever `verify` is: call :meth:`verify`.

        Raises
        ------
        InputError
            Only some partitions' files are there; features have scales.
        """
        manifest = self.manifest
        self.check_whole()
        self.check_unscaled()
        return GraphSource(
            manifest.name, dict(manifest.node_counts),
            {r: _StoredEdges(self, r) for r in self.schema.relations},
            {t: {name: self._mapped(entry) for name, entry in arrays.items()}
             for t, arrays in manifest.arrays.items()}, manifest.task, dict(manifest.info),
            node_ids={t: NodeIds(self._mapped(e.offsets), self._mapped(e.text))
                      for t, e in manifest.ids.items()},
            given={t: given for t, given in manifest.given.items() if isinstance(t, str)},
            times={**{t: self._mapped(entry) for t, entry in manifest.times.items()},
                   **{r.relation: self._mapped(r.times) for r in manifest.relations if r.times}})

    def _entry(self, relation: Relation) -> RelationEntry:
        if relation not in self._relations:
            raise InputError(f"relation '{relation}' is not in store {self.directory}; relations: "
                             f"{listing(self._relations)}")
        return self._relations[relation]

    def _is_here(self, entry: ArrayEntry) -> bool:
        return self.staged is None or entry.file in self.staged.files

    def _check_here(self, entry: ArrayEntry) -> None:
        if not self._is_here(entry):
            raise InputError(
                f"store file {self.directory / entry.file} is not on this machine: the store was "
                f"staged for {self.staged}, where it is not read; stage it with --also and the "
                "name of its relation or node type, or use the whole store")

    def _check_size(self, entry: ArrayEntry) -> None:
        path = self.directory / entry.file
        try:
            size = path.stat().st_size
        except OSError:
            raise InputError(f"store file {path} is missing; {self._remedy}") from None
        if size != entry.bytes:
            raise InputError(
                f"store file {path} has {size} bytes, but the manifest says {entry.bytes}: it was "
                f"truncated or edited; {self._remedy}"
            )

    def _open(self, entry: ArrayEntry, pieces: bool = False) -> np.ndarray:
        if not pieces and self.staged is not None and self.staged.files.get(entry.file):
            raise InputError(
                f"only pieces of store file {self.directory / entry.file} are on this machine: the "
                f"store was staged for {self.staged}; stage it with --also and the name of its "
                "relation, or use the whole store")
        if self._verify_opened and entry.file not in self._verified:
            for _ in self.compared(entry):
                pass
        return self._mapped(entry)

    def _mapped(self, entry: ArrayEntry) -> np.ndarray:
        self._check_here(entry)
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
        with contextlib.suppress(OSError):
            self._mapped_files[entry.file] = entry, _identity(path)
        return array


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


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def short_files(directory: str | Path) -> list[str]:
    """Files of a store that are shorter than its manifest says, with both sizes; none where the
    manifest cannot be read."""
    notes = []
    try:
        entries = Manifest.load(directory).entries()
    except InputError:
        return []
    for entry in entries:
        path = Path(directory) / entry.file
        with contextlib.suppress(OSError):
            if (size := path.stat().st_size) < entry.bytes:
                notes.append(f"{path} ({size} of {entry.bytes} bytes)")
    return notes


def as_source(graph: GraphSource | Store) -> GraphSource:
    """A graph as a source, whether it is a store or one already."""
    return graph.source() if isinstance(graph, Store) else graph
