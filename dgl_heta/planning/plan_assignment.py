"""The assignment in a plan's JSON, read back; all else that stands there must follow from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.planning.metatree import parse_metapaths, sub_metatrees
from dgl_heta.planning.ownership import Ownership, check_counts
from dgl_heta.planning.partition_shares import (
    Piece,
    Share,
    check_pieces,
    is_whole,
    partitions_of_pieces,
    partitions_of_shares,
    used_relations,
)

Made = TypeVar("Made")


def read_assignment(data: dict[str, Any], schema: Schema, origin: str, make: Callable[..., Made]
                    ) -> Made | None:
    """The plan that `make`, its class, makes of the assignment, with the partitions that follow
    from it and without relations that are offloaded; None if none do."""
    targets = tuple(data["target"] if isinstance(data["target"], list) else [data["target"]])
    paths = parse_metapaths(data["metapaths"], schema, origin) if data["metapaths"] else []
    hops, replication = data["hops"], data["replication"]
    # First of all, because what follows takes time in proportion to the number of hops.
    if not data["partitions"] or any(len(p["layers"]) != hops for p in data["partitions"]):
        return None
    ownership: dict[Relation, Ownership] = {}
    if replication == "none":
        trees = tuple(sub_metatrees(schema, targets, hops))
        ownership = {schema.find_relation(entry["relation"]): Ownership.from_json(entry)
                     for entry in data.get("ownership", ())}
        pieces = [[piece for piece in _pieces(p, schema) if piece[0] not in ownership]
                  for p in data["partitions"]]
        used = used_relations(schema, trees)
        check_pieces(pieces, [r for r in used if r not in ownership], schema, len(pieces),
                     data["method"])
        if not (ownership.keys() <= set(used) and check_counts(ownership, schema, len(pieces))):
            return None
        partitions = partitions_of_pieces(schema, targets, hops, trees, pieces, ownership)
    else:
        trees = tuple(sub_metatrees(schema, targets, hops, paths))
        assigned = [
            (int(p["group"]), {int(i): Share(*map(int, s))
                               for i, s in zip(p["sub_metatrees"], p["shares"])})
            for p in data["partitions"]]
        if not is_whole(assigned, len(trees)):
            return None
        partitions = partitions_of_shares(schema, targets, hops, trees, assigned)
    return make(schema, targets, hops, data["method"], tuple(paths), trees, partitions,
                replication, ownership)


def _pieces(partition: dict[str, Any], schema: Schema) -> list[Piece]:
    """The pieces of a partition from its JSON."""
    ranges = {Relation(*r): (int(low), int(high)) for r, low, high in partition["ranges"]}
    relations = [schema.find_relation(names) for names in partition["relations"]]
    return [(r, *ranges.get(r, (0, schema.node_counts[r.dst]))) for r in relations]
