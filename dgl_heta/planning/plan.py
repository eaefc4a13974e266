"""The plan: which partition runs which (layer, relation) (Heta §5, steps 3 and 4).

A plan is made from a schema alone and only refers to data, so another number of partitions
is another plan. It is about (layer, relation) and not about relations: in ogbn-mag a
partition that owns `cites` runs `writes` at layer 1, because papers are the children of
`cites`, while at layer 2 `writes` belongs to another partition.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation, Schema, read_json
from dgl_heta.planning.metatree import Metapath, SubMetatree, metagraph
from dgl_heta.planning.offloading import SharingDecision, partitions_with_owners
from dgl_heta.planning.ownership import Ownership
from dgl_heta.planning.partition_shares import Partition, Share, holders, partitions_of_shares
from dgl_heta.planning.plan_assignment import read_assignment
from dgl_heta.system.checksums import agrees, signed

if TYPE_CHECKING:
    import networkx as nx

FORMAT, VERSIONS = "dgl-heta-plan", (1, 2, 3)
PLAN_BYTES = 1 << 30
"""Of a plan's file, at most."""


@dataclass(frozen=True)
class Plan:
    """An assignment of sub-metatrees to partitions, with all that follows from it.

    With `replication` "full" every partition has all relations that its sub-metatrees need, so
    that only seeds have partial aggregations. With "none" every relation, or every piece of a
    relation that is cut, is on one partition, and rows of any type are exchanged at every layer
    (Heta Algorithm 1 in general); partitions have no sub-metatrees then.
    """

    schema: Schema
    targets: tuple[str, ...]
    hops: int
    method: str
    metapaths: tuple[Metapath, ...]
    sub_metatrees: tuple[SubMetatree, ...]
    partitions: tuple[Partition, ...]
    replication: str = "full"
    ownership: dict[Relation, Ownership] = field(default_factory=dict)
    """Relations that are cut by an array, not by ranges; without replication."""
    offloaded: dict[Relation, int] = field(default_factory=dict)
    """Relations that one partition runs at layer 1 for all others of its group → the index of that
    owner partition in the group (:mod:`dgl_heta.planning.offloading`)."""
    shared: SharingDecision | None = field(default=None, compare=False)
    """The decision on `partition.shared`, with its reason; None where nobody has decided yet."""

    @property
    def delegates(self) -> dict[Relation, int]:
        """`offloaded`, by the name that it had before."""
        return self.offloaded

    @property
    def num_parts(self) -> int:
        return len(self.partitions)

    @property
    def exchanges_while_sampling(self) -> bool:
        """Whether workers of a group tell each other rows while they sample, all in one order."""
        return self.replication == "none" or bool(self.offloaded)

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Model-parallel groups, each a tuple of partition indices."""
        members: dict[int, list[int]] = {}
        for partition in self.partitions:
            members.setdefault(partition.group, []).append(partition.index)
        return tuple(tuple(members[g]) for g in sorted(members))

    def roots(self, part: int) -> dict[Relation, Share]:
        """Root relations of a partition with its share of the group's seeds."""
        return {self.sub_metatrees[i].root: share
                for i, share in self.partitions[part].sub_metatrees.items()}

    def owners(self, layer: int, relation: Relation) -> tuple[int, ...]:
        """Partitions that run `relation` at `layer` (1 … hops)."""
        return tuple(p.index for p in self.partitions if relation in p.layers[layer])

    def held(self, part: int) -> dict[Relation, float]:
        """Relations of a partition, with the share of their destinations that it has: 1 but for
        those that are cut."""
        own, counts = self.partitions[part], self.schema.node_counts
        rows = {**{r: high - low for r, (low, high) in own.ranges.items()},
                **{r: rows for r, (rows, _) in own.owned.items()}}
        return {r: rows[r] / max(counts[r.dst], 1) if r in rows else 1.0 for r in own.relations}

    def keepers(self, ntype: str) -> tuple[int, ...]:
        """Partitions that keep the rows of a learnable node type for all that use it."""
        owner = self._owner_of.get(ntype)
        return self.users(ntype) if owner is None else tuple(group[owner] for group in self.groups)

    def shared_learnable(self) -> list[str]:
        """Node types without static features that several partitions read at layer 1."""
        readers = Counter(t for p in self.partitions for t in {r.src for r in p.layers[1]})
        return [t for t in self.schema.node_types
                if not self.schema.feature_bytes.get(t, 0) and readers[t] > 1]

    def why_not_offload(self) -> str | None:
        """Return why no relation can be offloaded; None if some can."""
        if self.replication != "full":
            return "without replication no relation is on two partitions"
        if self.metapaths:
            return "metapaths follow other relations from a neighbour than from a seed"
        if self.hops < 2:
            return ("with one hop only seeds are destinations, and their aggregations are partial "
                    "anyway")
        if len(self.groups) != 1 or self.num_parts < 2:
            return "every worker is by itself, or there are several groups of partitions"
        return None

    def with_owners(self, owners: Mapping[str, int]) -> Plan:
        """The plan in which one partition aggregates a node type for all others.

        Parameters
        ----------
        owners : learnable node type → its owner partition, which has its rows.

        Raises
        ------
        InputError
            Nothing can be offloaded, or an owner is no partition of the plan.
        """
        if not owners:
            return self
        why = self.why_not_offload()
        if why is not None:
            raise InputError(f"nothing can be delegated: {why}; use partition.shared = rows")
        for ntype, owner in owners.items():
            if ntype not in self.schema.node_counts or not 0 <= owner < self.num_parts:
                raise InputError(f"node type '{ntype}' cannot be delegated to partition {owner}")
        run = {r for p in self.partitions for r in p.layers[1]}
        offloaded = {r: owners[r.src] for r in self.schema.relations
                     if r.src in owners and r in run}
        roots = [set(self.roots(p.index)) for p in self.partitions]
        return replace(self, offloaded=offloaded, partitions=partitions_with_owners(
            self.schema, self.targets, roots, self.partitions, offloaded))

    def for_scripts(self) -> Plan:
        """The plan as trainers of a DistDGL script run it.

        They merge alike, and agree on what they merge. So without replication all take part
        wherever rows are in common, as users of each type that several partitions use.
        """
        if self.replication == "full":
            return self
        common = {t for t in self.schema.node_types if len(self.users(t)) > 1}
        return replace(self, partitions=tuple(replace(p, node_types=tuple(
            t for t in self.schema.node_types if t in common or t in p.node_types))
            for p in self.partitions))

    def without_owners(self) -> Plan:
        """The plan in which every partition runs its relations by itself."""
        if not self.offloaded:
            return self
        return replace(self, offloaded={}, partitions=partitions_of_shares(
            self.schema, self.targets, self.hops, self.sub_metatrees,
            [(p.group, p.sub_metatrees) for p in self.partitions]))

    def roots_at_first(self, part: int) -> dict[Relation, Share]:
        """Root relations that a partition runs on the seeds at layer 1, with its share of them."""
        kept = {r: share for r, share in self.roots(part).items() if r not in self.offloaded}
        # `offloaded` knows a partition by its position in its group.
        owner = self.groups[self.partitions[part].group].index(part)
        every_root = {tree.root for tree in self.sub_metatrees}
        return {**kept, **{r: Share() for r, by in self.offloaded.items()
                           if by == owner and r in every_root}}

    def users(self, ntype: str, group: int | None = None) -> tuple[int, ...]:
        """Partitions, of a group or of all, that need the features of a node type."""
        return tuple(p for p in self._users_of.get(ntype, ())
                     if group in (None, self.partitions[p].group))

    @cached_property
    def _users_of(self) -> dict[str, list[int]]:
        return holders(p.node_types for p in self.partitions)

    @cached_property
    def _owner_of(self) -> dict[str, int]:
        return {relation.src: owner for relation, owner in self.offloaded.items()}

    @property
    def boundary_nodes(self) -> int:
        """Nodes with neighbours in more than one partition of a group.

        The target nodes; without replication, all nodes of a type that several partitions have.
        """
        if all(len(group) == 1 for group in self.groups):
            return 0
        types = self.targets if self.replication == "full" else [
            t for t in self.schema.node_types if len(self.users(t)) > 1]
        return sum(self.schema.node_counts[t] for t in types)

    def replication_factor(self) -> float:
        """Nodes stored over all partitions, per node of the graph that any of them stores."""
        stored = sum(p.num_nodes for p in self.partitions)
        types = {t for p in self.partitions for t in p.node_types}
        return stored / sum(self.schema.node_counts[t] for t in types)

    def to_networkx(self) -> nx.MultiDiGraph:
        """The metagraph with who has what, for NetworkX's algorithms and drawing.

        Vertices are node types, with

        - `weight`: number of nodes, `feature_bytes`: bytes of a static row, 0 if learnable;
        - `target`: whether it is a target, `partitions`: indices of those that need its features.

        Edges are relations, from source to destination type, their key is the etype, with

        - `weight`: number of edges, `relation`: the :class:`Relation`;
        - `partitions`: indices of those that have the relation, `layers`: layer (1 … hops) →
          indices of those that run it there. Both are empty for what no layer needs.

        Examples
        --------
        >>> from dgl_heta import Relation, Schema, make_plan
        >>> schema = Schema({"author": 5, "paper": 8}, {
        ...     Relation("author", "writes", "paper"): 20,
        ...     Relation("paper", "cites", "paper"): 30})
        >>> graph = make_plan(schema, "paper", hops=2, parts=2).to_networkx()
        >>> graph.edges["author", "paper", "writes"]["layers"]
        {1: (0, 1), 2: (1,)}
        >>> graph.nodes["author"]["partitions"]
        (0, 1)
        >>> [key for *_, key, parts in graph.edges(keys=True, data="partitions") if len(parts) > 1]
        ['writes']
        """
        graph = metagraph(self.schema)
        for ntype, vertex in graph.nodes.items():
            vertex.update(feature_bytes=self.schema.feature_bytes.get(ntype, 0),
                          target=ntype in self.targets, partitions=self.users(ntype))
        having = holders(p.relations for p in self.partitions)
        running = {layer: holders(p.layers[layer] for p in self.partitions)
                   for layer in range(1, self.hops + 1)}
        for *_, edge in graph.edges(data=True):
            relation = edge["relation"]
            edge["partitions"] = tuple(having.get(relation, ()))
            edge["layers"] = {layer: tuple(by[relation]) for layer, by in running.items()
                              if relation in by}
        return graph

    def to_json(self) -> dict[str, Any]:
        """One JSON object; the fields are listed in docs/format.md.

        Raises
        ------
        InputError
            It would take more than :data:`PLAN_BYTES`.
        """
        size = {r: sum(map(len, r)) + len('["", "", ""], ') for r in self.schema.relations}
        _check_bytes(sum(map(size.__getitem__, relations)) for relations in chain(
            (tree.relations for tree in self.sub_metatrees),
            *((p.relations, *p.layers.values()) for p in self.partitions)))
        # One list per relation: a dense schema names each of them millions of times.
        listed = {r: list(r) for r in self.schema.relations}
        return {
            "target": self.targets[0] if len(self.targets) == 1 else list(self.targets),
            "hops": self.hops,
            "parts": self.num_parts,
            "method": self.method,
            "replication": self.replication,
            "metapaths": [[listed[r] for r in path] for path in self.metapaths] or None,
            "sub_metatrees": [
                {"root_relation": list(tree.root), "weight": tree.weight,
                 "relations": [listed[r] for r in tree.relations],
                 "node_types": list(tree.node_types)}
                for tree in self.sub_metatrees
            ],
            "partitions": [
                {"sub_metatrees": list(p.sub_metatrees),
                 "shares": [s.to_json() for s in p.sub_metatrees.values()],
                 "group": p.group,
                 "relations": [listed[r] for r in p.relations],
                 "ranges": [[listed[r], low, high] for r, (low, high) in p.ranges.items()],
                 "node_types": list(p.node_types),
                 "num_nodes": p.num_nodes, "num_edges": p.num_edges, "weight": p.weight,
                 "layers": {str(layer): [listed[r] for r in relations]
                            for layer, relations in p.layers.items()}}
                for p in self.partitions
            ],
            "boundary_nodes": self.boundary_nodes,
            **({"ownership": [own.to_json(r) for r, own in self.ownership.items()]}
               if self.ownership else {}),
            **({"delegates": [[listed[r], owner] for r, owner in self.offloaded.items()]}
               if self.offloaded else {}),
        }

    def save(self, path: str | Path) -> None:
        """Write the plan and its schema as JSON, arrays of ownership beside it.

        Raises
        ------
        InputError
            It would take more than :data:`PLAN_BYTES`; nothing is written.
        """
        content = self.to_json()
        for number, entry in enumerate(content.get("ownership", ())):
            entry["file"] = f"owner-{number}.npy"
        data = signed({"format": FORMAT, "version": VERSIONS[-1],
                       "schema": self.schema.to_json(), "plan": content,
                       **({"shared": self.shared.to_json()} if self.shared else {})})
        text = json.dumps(data) + "\n"
        _check_bytes([len(text)])
        for entry, own in zip(content.get("ownership", ()), self.ownership.values()):
            own.save(Path(path).with_name(entry["file"]))
        Path(path).write_text(text, encoding="utf-8")

    def verify(self) -> None:
        """Compare the arrays of ownership with their checksums.

        Raises
        ------
        InputError
            A file that differs from what was written, by name.
        """
        for own in self.ownership.values():
            own.verify()

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan written by :meth:`save`."""
        data = read_json(path, "plan", PLAN_BYTES)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise InputError(f"{path} is not a dgl-heta plan (no field format: {FORMAT})")
        if data.get("version") not in VERSIONS:
            raise InputError(f"plan {path} has format version {data.get('version')!r}; this "
                             f"dgl-heta reads versions {VERSIONS[0]} to {VERSIONS[-1]}")
        if not agrees(data):
            raise InputError(f"plan {path} was edited or damaged: its checksum does not agree; "
                             "make the partition again")
        for name in ("schema", "plan"):
            if name not in data:
                raise InputError(f"plan {path} is damaged: it lacks the field '{name}'")
        plan = cls.from_json(data["plan"], Schema.from_json(data["schema"], str(path)), str(path),
                             Path(path).absolute().parent)
        return replace(plan, shared=SharingDecision.from_json(data.get("shared"), str(path)))

    @classmethod
    def from_json(cls, data: dict[str, Any], schema: Schema, origin: str,
                  directory: Path | None = None) -> Plan:
        """Rebuild a plan from its assignment and check that the rest of the file agrees.

        Files of arrays lie in `directory`, if it is given.

        Raises
        ------
        InputError
            A field is missing, of the wrong type or does not follow from the assignment; says
            that it stands in `origin`.
        """
        try:
            for entry in data.get("ownership", ()) if directory else ():
                entry["file"] = str(directory / entry["file"])
            plan = read_assignment(data, schema, origin, cls)
            if plan is not None:
                plan = plan.with_owners({schema.find_relation(names).src: int(owner)
                                         for names, owner in data.get("delegates", ())})
            same = plan is not None and plan.to_json() == data
        except KeyError as error:
            raise InputError(f"plan {origin} is damaged: it lacks the field {error}") from None
        except (TypeError, ValueError, AttributeError, IndexError, OverflowError):
            raise InputError(f"plan {origin} is damaged: a field has the wrong type") from None
        if plan is None or not same:
            raise InputError(
                f"plan {origin} was edited: its fields do not follow from its assignment; "
                "make it again with `dgl-heta partition`"
            )
        return plan


def _check_bytes(sizes: Iterable[int]) -> None:
    """Refuse a plan whose file would be larger than is read, before memory is full of it."""
    if any(total > PLAN_BYTES for total in accumulate(sizes)):
        raise InputError(f"the plan takes more than {PLAN_BYTES:,} bytes of JSON, the most that is "
                         "read; use fewer partitions or hops, metapaths, or a graph with fewer "
                         "relations")
