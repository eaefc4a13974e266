"""The schema of a heterogeneous graph: node types, relations and their sizes.

A schema is all that planning needs. It comes from a JSON file, a relation store or a
dataset, and never changes once made.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from dgl_heta.errors import InputError, listing, nearest, quoted
from dgl_heta.system.limited import read_limited

JSON_BYTES = 32 << 20
MOST = 2**48
"""Nodes of a type or edges of a relation, at most."""


class Relation(NamedTuple):
    """A canonical edge type `(src, etype, dst)`: edges point from `src` to `dst`."""

    src: str
    etype: str
    dst: str

    def __str__(self) -> str:
        return f"{self.src} {self.etype} {self.dst}"


@dataclass(frozen=True)
class Schema:
    """Node types with node counts and relations with edge counts.

    Parameters
    ----------
    node_counts : mapping of node type to number of nodes.
    edge_counts : mapping of :class:`Relation` to number of edges, in canonical order.
    feature_bytes : bytes of one row of static features per node type; 0 or absent means
        that the type has none and is given learnable features.

    Raises
    ------
    InputError
        A count that is no whole number or negative, an empty relation, a relation of an
        unknown node type, a node type without edges, or no relations at all.
    """

    node_counts: Mapping[str, int]
    edge_counts: Mapping[Relation, int]
    feature_bytes: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.node_counts:
            raise InputError("the schema has no node types; 'node_counts' must name at least one")
        if not self.edge_counts:
            raise InputError("the schema has no relations; 'relations' must name at least one")
        for name in {*self.node_counts, *(part for r in self.edge_counts for part in r)}:
            _check_name(name)
        for ntype, count in self.node_counts.items():
            if _count(count, f"the number of nodes of type '{ntype}'") < 1:
                raise InputError(f"node type '{ntype}' has {count} nodes; it must have at least 1")
        for relation, edges in self.edge_counts.items():
            for ntype in (relation.src, relation.dst):
                if ntype not in self.node_counts:
                    raise InputError(
                        f"relation '{relation}' names node type '{ntype}', which is not in the "
                        f"graph; node types: {listing(self.node_counts)}"
                    )
            if _count(edges, f"the number of edges of relation '{relation}'") < 1:
                raise InputError(
                    f"relation '{relation}' has {edges} edges; it must have at least 1 "
                    "(leave an empty relation out of the graph)"
                )
        used = {t for relation in self.edge_counts for t in (relation.src, relation.dst)}
        for ntype in self.node_counts:
            if ntype not in used:
                raise InputError(
                    f"node type '{ntype}' has no edges: no relation starts or ends at it; "
                    "leave the type out or add its relations"
                )

    @property
    def node_types(self) -> tuple[str, ...]:
        return tuple(self.node_counts)

    @cached_property
    def relations(self) -> tuple[Relation, ...]:
        """All relations in canonical (file) order."""
        return tuple(self.edge_counts)

    @cached_property
    def order(self) -> dict[Relation, int]:
        """The place of each relation in canonical order."""
        return {relation: place for place, relation in enumerate(self.edge_counts)}

    @cached_property
    def into(self) -> dict[str, tuple[Relation, ...]]:
        """For each node type the relations that end at it, in canonical order."""
        by_type: dict[str, list[Relation]] = {t: [] for t in self.node_counts}
        for relation in self.edge_counts:
            by_type[relation.dst].append(relation)
        return {t: tuple(relations) for t, relations in by_type.items()}

    def check_node_type(self, ntype: str, role: str = "node type") -> str:
        """Return `ntype`, or raise an :class:`InputError` that lists the node types."""
        if ntype not in self.node_counts:
            raise InputError(
                f"{role} '{ntype}' is not in the graph; node types: {listing(self.node_counts)}"
                + nearest(ntype, self.node_counts)
            )
        return ntype

    def find_relation(self, spec: str | Iterable[str]) -> Relation:
        """The relation named by `(src, etype, dst)`, `"src etype dst"` or a unique etype."""
        if isinstance(spec, str):
            # Names may hold spaces and colons themselves (RDF), so names as they are go first.
            matches = [r for r in self.edge_counts if spec in (r.etype, str(r))]
            if len(matches) == 1:
                return matches[0]
            if matches:
                raise InputError(
                    f"relation '{spec}' is ambiguous; write 'src etype dst': {listing(matches)}"
                )
            parts = tuple(spec.replace(":", " ").split())
        else:
            parts = tuple(str(part) for part in spec)
        if len(parts) == 3 and Relation(*parts) in self.edge_counts:
            return Relation(*parts)
        name = " ".join(parts)
        known = [r.etype if len(parts) == 1 else str(r) for r in self.edge_counts]
        raise InputError(
            f"relation '{name}' is not in the graph; relations: {listing(self.edge_counts)}"
            + nearest(name, known)
        )

    @classmethod
    def from_json(cls, data: Any, origin: str = "schema") -> Schema:
        """Read `{"node_counts": {…}, "relations": [{"src", "etype", "dst", "edges"}, …]}`.

        Optional: `"feature_bytes": {node type: bytes of one row}`.
        """
        if not isinstance(data, dict) or not isinstance(data.get("node_counts"), dict):
            raise InputError(f"{origin}: 'node_counts' must be an object of node type: count")
        if not isinstance(data.get("relations"), list):
            raise InputError(f"{origin}: 'relations' must be a list of src, etype, dst, edges")
        node_counts = {t: _count(n, f"{origin}: node_counts of '{t}'")
                       for t, n in data["node_counts"].items()}
        edge_counts: dict[Relation, int] = {}
        for index, item in enumerate(data["relations"]):
            where = f"{origin}: relations[{index}]"
            missing = [k for k in ("src", "etype", "dst", "edges")
                       if not isinstance(item, dict) or k not in item]
            if missing:
                raise InputError(f"{where} lacks {listing(missing)}; got {quoted(item)}")
            relation = Relation(str(item["src"]), str(item["etype"]), str(item["dst"]))
            if relation in edge_counts:
                raise InputError(f"{where}: relation '{relation}' is named twice")
            edge_counts[relation] = _count(item["edges"], f"{where}: 'edges'")
        widths = data.get("feature_bytes", {})
        if not isinstance(widths, dict):
            raise InputError(f"{origin}: 'feature_bytes' must be an object of node type: bytes")
        for ntype in widths:
            if ntype not in node_counts:
                raise InputError(f"{origin}: feature_bytes names unknown node type '{ntype}'")
        return cls(node_counts, edge_counts,
                   {t: _count(n, f"{origin}: feature_bytes of '{t}'") for t, n in widths.items()})

    @classmethod
    def load(cls, path: str | Path) -> Schema:
        """Read a schema from a JSON file."""
        return cls.from_json(read_json(path, "schema"), origin=str(path))

    def to_json(self) -> dict[str, Any]:
        """The inverse of :meth:`from_json`."""
        return {
            "node_counts": dict(self.node_counts),
            "relations": [{"src": r.src, "etype": r.etype, "dst": r.dst, "edges": n}
                          for r, n in self.edge_counts.items()],
            "feature_bytes": dict(self.feature_bytes),
        }


def read_json(path: str | Path, what: str, most: int = JSON_BYTES) -> Any:
    """The content of a JSON file of at most `most` bytes; an :class:`InputError` says `what` cannot
    be read."""
    try:
        return json.loads(read_limited(path, most).decode("utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {what} {path}: {error.strerror or error}") from None
    except RecursionError:
        raise InputError(f"{what} {path} is not JSON: it is nested too deeply") from None
    except ValueError as error:  # not JSON, not UTF-8, or a number of thousands of digits
        raise InputError(f"{what} {path} is not JSON: {error}") from None


def _count(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(f"{where} is {quoted(value)}; it must be a whole number, 0 or more")
    if value > MOST:
        raise InputError(f"{where} is {quoted(value)}; it must be at most {MOST:,}")
    return value


def _check_name(name: Any) -> None:
    """Refuse a name that files cannot hold, or that runs into another where names are joined."""
    if not isinstance(name, str) or "\0" in name or any("\ud800" <= c <= "\udfff" for c in name):
        raise InputError(f"{quoted(name)} cannot be the name of a node type or edge type: it must "
                         "be text without NUL and without halves of characters (surrogates)")
