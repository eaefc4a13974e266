"""The manifest of a relation store: what it holds, where, and the checksums."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.graph.source import MOST_CLASSES, Given, Task
from dgl_heta.store.types import check_types
from dgl_heta.system.checksums import agrees, signed

FILE_NAME = "manifest.json"
FORMAT = "dgl-heta-store"
VERSIONS = (1, 2, 3, 4, 5)
_INDICES = (np.int32, np.int64)


@dataclass(frozen=True)
class ArrayEntry:
    """One `.npy` file: path relative to the store, content type, size and SHA-256; of features that
    are kept as int8 the scale of each column (:mod:`dgl_heta.store.encoding`)."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    sha256: str
    scale: tuple[float, ...] | None = None


@dataclass(frozen=True)
class RelationEntry:
    """One relation in CSC: in-edges of destination node v are indices[indptr[v]:indptr[v+1]].

    `edge_ids`, where kept, gives for each CSC position the edge's position in the source. `arrays`
    have a row per edge, in the order of the source. `times`, where edges have some, are those from
    which on they are there, for each CSC position; they ascend among a node's in-edges.
    """

    relation: Relation
    edges: int
    indptr: ArrayEntry
    indices: ArrayEntry
    edge_ids: ArrayEntry | None = None
    arrays: dict[str, ArrayEntry] = field(default_factory=dict)
    times: ArrayEntry | None = None

    @property
    def files(self) -> list[ArrayEntry]:
        """Its files, those of the CSC first."""
        return [self.indptr, self.indices, *([self.edge_ids] if self.edge_ids else []),
                *([self.times] if self.times else []), *self.arrays.values()]


@dataclass(frozen=True)
class IdsEntry:
    """Ids of the nodes of a type, as :class:`~dgl_heta.graph.node_ids.NodeIds`."""

    offsets: ArrayEntry
    text: ArrayEntry


@dataclass(frozen=True)
class Manifest:
    """All that is known of a store without opening its arrays; `given`, and `times` of node types,
    as in a :class:`~dgl_heta.graph.source.GraphSource`."""

    name: str
    node_counts: dict[str, int]
    arrays: dict[str, dict[str, ArrayEntry]]
    relations: tuple[RelationEntry, ...]
    task: Task | None = None
    info: dict[str, Any] = field(default_factory=dict)
    created_by: str = ""
    ids: dict[str, IdsEntry] = field(default_factory=dict)
    given: dict[Any, dict[str, Given]] = field(default_factory=dict)
    times: dict[str, ArrayEntry] = field(default_factory=dict)

    @property
    def timed(self) -> bool:
        """Return whether rows or edges have times."""
        return bool(self.times) or any(entry.times for entry in self.relations)

    def schema(self) -> Schema:
        widths = {}
        for ntype, arrays in self.arrays.items():
            if "feat" in arrays:
                feat = arrays["feat"]
                widths[ntype] = int(np.dtype(feat.dtype).itemsize
                                    * np.prod(feat.shape[1:], dtype=np.int64))
        return Schema(self.node_counts, {r.relation: r.edges for r in self.relations}, widths)

    def entries(self, ntypes: Any = None, relations: Any = None) -> list[ArrayEntry]:
        """Files of the given node types and relations (default: all)."""
        names = []
        for ntype, arrays in self.arrays.items():
            if ntypes is None or ntype in ntypes:
                names += list(arrays.values())
                ids = self.ids.get(ntype)
                names += [ids.offsets, ids.text] if ids else []
                names += [self.times[ntype]] if ntype in self.times else []
        for entry in self.relations:
            if relations is None or entry.relation in relations:
                names += entry.files
        return names

    def unlike_given(self) -> str:
        """The first array that is not what a graph had, by the checksums, and how; "" if none."""
        for kind, given in self.given.items():
            for name, known in given.items():
                entry = self.held(kind)[name]
                if entry.sha256 != known.sha256:
                    return (f"data '{known.name}' of '{kind}' are not those of the graph that was "
                            f"partitioned: there they were {known.dtype} {list(known.shape)}, in "
                            f"{entry.file} they are {np.dtype(entry.dtype)} {list(entry.shape)}"
                            + (" with other values" if known.shape == entry.shape else ""))
        return ""

    def held(self, kind: str | Relation) -> dict[str, ArrayEntry]:
        """Arrays of a node type or of a relation's edges."""
        if isinstance(kind, str):
            return self.arrays[kind]
        return next(r.arrays for r in self.relations if r.relation == kind)

    @property
    def checksum(self) -> str:
        """Its own checksum, by which a graph is known: those of all files are in it."""
        return str(self.to_json()["sha256"])

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries())

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "format": FORMAT, "version": VERSIONS[-1],
            "created_by": self.created_by, "name": self.name,
            "node_types": {
                t: {"count": n, "arrays": {k: _entry_json(a)
                                           for k, a in self.arrays.get(t, {}).items()},
                    **({"ids": {k: _entry_json(getattr(self.ids[t], k))
                                for k in ("offsets", "text")}} if t in self.ids else {}),
                    **({"times": _entry_json(self.times[t])} if t in self.times else {}),
                    **self._given_json(t)}
                for t, n in self.node_counts.items()
            },
            "relations": [
                {"src": r.relation.src, "etype": r.relation.etype, "dst": r.relation.dst,
                 "edges": r.edges, "indptr": _entry_json(r.indptr),
                 "indices": _entry_json(r.indices),
                 **({"edge_ids": _entry_json(r.edge_ids)} if r.edge_ids else {}),
                 **({"times": _entry_json(r.times)} if r.times else {}),
                 **({"arrays": {k: _entry_json(a) for k, a in r.arrays.items()}}
                    if r.arrays else {}), **self._given_json(r.relation)}
                for r in self.relations
            ],
            "task": asdict(self.task) if self.task else None,
            "info": self.info,
        }
        return signed(data)

    def _given_json(self, kind: str | Relation) -> dict[str, Any]:
        given = self.given.get(kind)
        return {"given": {k: _entry_json(g) for k, g in given.items()}} if given else {}

    def save(self, directory: Path) -> None:
        text = json.dumps(self.to_json(), indent=1)
        (directory / FILE_NAME).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, directory: str | Path) -> Manifest:
        """Read and check the manifest of the store in `directory`."""
        path = Path(directory) / FILE_NAME
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(
                f"{directory} is not a relation store: cannot read {path.name}: "
                f"{error.strerror or error}"
            ) from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"store {path} is damaged: it is not JSON ({error})") from None
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise InputError(f"{path} is not the manifest of a relation store (format: {FORMAT})")
        if data.get("version") not in VERSIONS:
            raise InputError(
                f"store {path} has format version {data.get('version')!r}; this dgl-heta "
                f"reads versions {VERSIONS[0]} to {VERSIONS[-1]}"
            )
        if not agrees(data):
            raise InputError(
                f"store manifest {path} was edited or damaged: its checksum does not agree; "
                "write the store again"
            )
        try:
            check_types(data)
            manifest = cls(
                name=data["name"],
                node_counts={t: int(v["count"]) for t, v in data["node_types"].items()},
                arrays={t: {k: _entry(a) for k, a in v["arrays"].items()}
                        for t, v in data["node_types"].items()},
                relations=tuple(
                    RelationEntry(Relation(r["src"], r["etype"], r["dst"]), int(r["edges"]),
                                  _entry(r["indptr"]), _entry(r["indices"]),
                                  _entry(r["edge_ids"]) if "edge_ids" in r else None,
                                  {k: _entry(a) for k, a in r.get("arrays", {}).items()},
                                  _entry(r["times"]) if r.get("times") else None)
                    for r in data["relations"]
                ),
                task=Task(**data["task"]) if data["task"] else None,
                info=data["info"], created_by=data["created_by"],
                ids={t: IdsEntry(_entry(v["ids"]["offsets"]), _entry(v["ids"]["text"]))
                     for t, v in data["node_types"].items() if v.get("ids")},
                given={kind: {k: Given(**{**g, "shape": tuple(g["shape"])})
                              for k, g in v["given"].items()}
                       for kind, v in [*data["node_types"].items(), *(
                           (Relation(r["src"], r["etype"], r["dst"]), r)
                           for r in data["relations"])] if v.get("given")},
                times={t: _entry(v["times"]) for t, v in data["node_types"].items()
                       if v.get("times")},
            )
            manifest._check_shapes()
            manifest.schema()
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError,
                InputError) as error:
            raise InputError(f"store manifest {path} is damaged: {error}") from None
        if manifest.task is not None and manifest.task.num_classes > MOST_CLASSES:
            raise InputError(f"store {path} has a task of {manifest.task.num_classes:,} classes; "
                             f"there may be {MOST_CLASSES:,}: where labels are codes, write the "
                             "store again from the files that it was made from, to have them "
                             "numbered")
        return manifest

    def _check_shapes(self) -> None:  # noqa: C901
        """Raise ValueError for a file that cannot hold what it is said to."""
        for ntype, arrays in self.arrays.items():
            for name, entry in arrays.items():
                if entry.shape[:1] != (self.node_counts[ntype],):
                    raise ValueError(f"array '{name}' of '{ntype}' has shape {entry.shape}")
                if entry.scale is not None and (
                        name != "feat" or np.dtype(entry.dtype) != np.int8
                        or entry.shape[1:] != (len(entry.scale),)):
                    raise ValueError(f"array '{name}' of '{ntype}' has {len(entry.scale)} scales")
        for kind, given in self.given.items():
            if lost := {*given} - {*self.held(kind)}:
                raise ValueError(f"array '{min(lost)}' of '{kind}' is given, but not there")
        for ntype, ids in self.ids.items():
            if (ids.offsets.shape != (self.node_counts[ntype] + 1,) or len(ids.text.shape) != 1
                    or np.dtype(ids.offsets.dtype) != np.int64
                    or np.dtype(ids.text.dtype) != np.uint8):
                raise ValueError(f"ids of '{ntype}' have files of other shapes or numbers")
        for item in self.relations:
            shapes = [(item.indptr, self.node_counts[item.relation.dst] + 1),
                      (item.indices, item.edges), (item.edge_ids or item.indices, item.edges)]
            if any(entry.shape != (count,) for entry, count in shapes) or any(
                    entry.shape[:1] != (item.edges,) for entry in item.arrays.values()):
                raise ValueError(f"relation '{item.relation}' has files of other shapes")
            kinds = [np.dtype(entry.dtype) for entry, _ in shapes]
            if kinds[0] != np.int64 or not {*kinds[1:]} <= {np.dtype(t) for t in _INDICES}:
                raise ValueError(f"relation '{item.relation}' has files of other numbers")
        for kind, entry, count in [
                *((t, entry, self.node_counts[t]) for t, entry in self.times.items()),
                *((str(r.relation), r.times, r.edges) for r in self.relations if r.times)]:
            if entry.shape != (count,) or np.dtype(entry.dtype) != np.int64:
                raise ValueError(f"times of '{kind}' have shape {entry.shape} or are no int64")


def _entry_json(entry: ArrayEntry | Given) -> dict[str, Any]:
    return {**asdict(entry), "shape": list(entry.shape)}


def _entry(data: dict[str, Any]) -> ArrayEntry:
    path = PurePosixPath(data["file"])
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in data["file"]:
        raise ValueError(f"file {data['file']!r} lies outside the store")
    if np.dtype(data["dtype"]).kind not in "fiubc":
        raise ValueError(f"file {data['file']!r} holds {data['dtype']!r}, which are not numbers")
    return ArrayEntry(str(path), str(data["dtype"]), tuple(int(n) for n in data["shape"]),
                      int(data["bytes"]), str(data["sha256"]),
                      tuple(data["scale"]) if data.get("scale") else None)
