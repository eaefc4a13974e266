"""The manifest of a relation store: what it holds, where, and the checksums."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.graph.source import Task

FILE_NAME = "manifest.json"
FORMAT = "dgl-heta-store"
VERSION = 1


@dataclass(frozen=True)
class ArrayEntry:
    """One `.npy` file: path relative to the store, content type, size and SHA-256."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    sha256: str


@dataclass(frozen=True)
class RelationEntry:
    """One relation in CSC: in-edges of destination node v are indices[indptr[v]:indptr[v+1]].

    `edge_ids`, where kept, gives for each CSC position the edge's position in the source.
    """

    relation: Relation
    edges: int
    indptr: ArrayEntry
    indices: ArrayEntry
    edge_ids: ArrayEntry | None = None


@dataclass(frozen=True)
class Manifest:
    """All that is known of a store without opening its arrays."""

    name: str
    node_counts: dict[str, int]
    arrays: dict[str, dict[str, ArrayEntry]]
    relations: tuple[RelationEntry, ...]
    task: Task | None = None
    info: dict[str, Any] = field(default_factory=dict)
    created_by: str = ""

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
        found = []
        for ntype, arrays in self.arrays.items():
            if ntypes is None or ntype in ntypes:
                found += list(arrays.values())
        for entry in self.relations:
            if relations is None or entry.relation in relations:
                found += [entry.indptr, entry.indices]
                found += [entry.edge_ids] if entry.edge_ids else []
        return found

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries())

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "format": FORMAT, "version": VERSION, "created_by": self.created_by,
            "name": self.name,
            "node_types": {
                t: {"count": n, "arrays": {k: _entry_json(a)
                                           for k, a in self.arrays.get(t, {}).items()}}
                for t, n in self.node_counts.items()
            },
            "relations": [
                {"src": r.relation.src, "etype": r.relation.etype, "dst": r.relation.dst,
                 "edges": r.edges, "indptr": _entry_json(r.indptr),
                 "indices": _entry_json(r.indices),
                 **({"edge_ids": _entry_json(r.edge_ids)} if r.edge_ids else {})}
                for r in self.relations
            ],
            "task": asdict(self.task) if self.task else None,
            "info": self.info,
        }
        return {**data, "sha256": _digest(data)}

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
        if data.get("version") != VERSION:
            raise InputError(
                f"store {directory} has format version {data.get('version')!r}; this dgl-heta "
                f"reads version {VERSION}"
            )
        content = {key: value for key, value in data.items() if key != "sha256"}
        if data.get("sha256") != _digest(content):
            raise InputError(
                f"store manifest {path} was edited or damaged: its checksum does not agree; "
                "write the store again"
            )
        try:
            manifest = cls(
                name=data["name"],
                node_counts={t: int(v["count"]) for t, v in data["node_types"].items()},
                arrays={t: {k: _entry(a) for k, a in v["arrays"].items()}
                        for t, v in data["node_types"].items()},
                relations=tuple(
                    RelationEntry(Relation(r["src"], r["etype"], r["dst"]), int(r["edges"]),
                                  _entry(r["indptr"]), _entry(r["indices"]),
                                  _entry(r["edge_ids"]) if "edge_ids" in r else None)
                    for r in data["relations"]
                ),
                task=Task(**data["task"]) if data["task"] else None,
                info=data["info"], created_by=data["created_by"],
            )
            manifest._check_shapes()
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InputError(f"store manifest {path} is damaged: {error!r}") from None
        return manifest

    def _check_shapes(self) -> None:
        """Raise ValueError for a file that cannot hold what it is said to."""
        for ntype, arrays in self.arrays.items():
            for name, entry in arrays.items():
                if entry.shape[:1] != (self.node_counts[ntype],):
                    raise ValueError(f"array '{name}' of '{ntype}' has shape {entry.shape}")
        for item in self.relations:
            shapes = [(item.indptr, self.node_counts[item.relation.dst] + 1),
                      (item.indices, item.edges), (item.edge_ids or item.indices, item.edges)]
            if any(entry.shape != (count,) for entry, count in shapes):
                raise ValueError(f"relation '{item.relation}' has files of other shapes")


def _digest(content: dict[str, Any]) -> str:
    plain = json.loads(json.dumps(content))  # as it will be read: keys that are text, lists
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _entry_json(entry: ArrayEntry) -> dict[str, Any]:
    return {**asdict(entry), "shape": list(entry.shape)}


def _entry(data: dict[str, Any]) -> ArrayEntry:
    path = PurePosixPath(data["file"])
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in data["file"]:
        raise ValueError(f"file {data['file']!r} lies outside the store")
    if np.dtype(data["dtype"]).kind not in "fiub":
        raise ValueError(f"file {data['file']!r} holds {data['dtype']!r}, which are not numbers")
    return ArrayEntry(str(path), str(data["dtype"]), tuple(int(n) for n in data["shape"]),
                      int(data["bytes"]), str(data["sha256"]))
