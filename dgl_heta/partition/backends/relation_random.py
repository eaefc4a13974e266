"""`relation-random`: RAF without meta-partitioning (Heta §8.5)."""

from __future__ import annotations

import random
from collections.abc import Sequence

from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.partition.backends.metatree_backend import MetatreeBackend
from dgl_heta.partition.request import PartitionRequest
from dgl_heta.planning.partition_shares import Piece


class RelationRandom(MetatreeBackend):
    """Relations at random to partitions, none replicated (Heta §8.5, Fig. 14)."""

    name = "relation-random"
    description = "relations to partitions at random, none on two (RAF without meta-partitioning)"
    replication = "none"

    def assign(self, weights: Sequence[int], parts: int, seed: int) -> Sequence[Sequence[int]]:
        order = random.Random(seed).sample(range(len(weights)), len(weights))
        return [sorted(order[part::parts]) for part in range(parts)]

    def deal(self, schema: Schema, relations: Sequence[Relation], parts: int,
             request: PartitionRequest) -> Sequence[Sequence[Piece]]:
        if request.memory_limit is not None or parts > len(relations):
            return super().deal(schema, relations, parts, request)
        generator = random.Random(request.seed)
        order = generator.sample(range(len(relations)), len(relations))
        # One relation each first, so that no partition is without.
        places = [*range(parts), *(generator.randrange(parts) for _ in order[parts:])]
        return [[(relations[i], 0, schema.node_counts[relations[i].dst])
                 for i in sorted(i for i, target in zip(order, places) if target == part)]
                for part in range(parts)]
