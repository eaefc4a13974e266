"""ogbn-mag's schema, and random cases of planning."""

from __future__ import annotations

from hypothesis import strategies as st

from dgl_heta.graph.schema import Relation, Schema
from tests.support.graphs import schemas

WRITES = Relation("author", "writes", "paper")
REV_WRITES = Relation("paper", "rev-writes", "author")
AFFILIATED = Relation("author", "affiliated", "institution")
REV_AFFILIATED = Relation("institution", "rev-affiliated", "author")
HAS_TOPIC = Relation("paper", "has_topic", "field")
REV_HAS_TOPIC = Relation("field", "rev-has_topic", "paper")
CITES = Relation("paper", "cites", "paper")

MAG = Schema(
    {"author": 1_134_649, "field": 59_965, "institution": 8_740, "paper": 736_389},
    {AFFILIATED: 1_043_998, REV_AFFILIATED: 1_043_998, WRITES: 7_145_660, REV_WRITES: 7_145_660,
     HAS_TOPIC: 7_505_078, REV_HAS_TOPIC: 7_505_078, CITES: 10_832_542},
    {"paper": 512},
)


@st.composite
def cases(draw):
    """A schema, one or two targets, hops, and None or metapaths into every target."""
    schema = draw(schemas())
    aggregated = [t for t in schema.node_types if schema.into[t]]
    targets = draw(st.lists(st.sampled_from(aggregated), min_size=1, max_size=2, unique=True))
    hops = draw(st.integers(1, 4))
    paths = None
    if draw(st.booleans()):
        paths = []
        for index in range(draw(st.integers(len(targets), len(targets) + 4))):
            path = [draw(st.sampled_from(schema.into[targets[index % len(targets)]]))]
            for _ in range(draw(st.integers(0, hops - 1))):
                if schema.into[path[0].src]:
                    path.insert(0, draw(st.sampled_from(schema.into[path[0].src])))
            paths.append(tuple(path))
    return schema, targets, hops, paths
