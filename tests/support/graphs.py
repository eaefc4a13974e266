"""Small graphs that tests train and partition, and random schemas."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.graph.source import EdgeArrays, EdgeSource, GraphSource, Task

RELATIONS = (
    Relation("author", "writes", "paper"),
    Relation("paper", "rev-writes", "author"),
    Relation("field", "rev-topic", "paper"),
    Relation("paper", "topic", "field"),
    Relation("paper", "cites", "paper"),
    Relation("paper", "rev-cites", "paper"),  # parallel to cites
    Relation("institution", "rev-at", "author"),
    Relation("author", "at", "institution"),
)


def academic(seed: int = 0, papers: int = 60, dense: float = 3) -> GraphSource:
    """Papers (features, target), authors (learnable), fields (features), institutions."""
    rng = np.random.default_rng(seed)
    counts = {"author": papers * 2 // 3, "field": papers // 5, "institution": papers // 8,
              "paper": papers}
    edges: dict[Relation, EdgeSource] = {}
    for relation in RELATIONS:
        size = int(dense * papers)
        # Squared uniforms: a skewed in-degree, with destinations that have no edge.
        dst = (rng.random(size) ** 2 * counts[relation.dst]).astype(np.int64)
        src = rng.integers(0, counts[relation.src], size)
        edges[relation] = EdgeArrays(src, dst)
    labels = rng.integers(0, 4, papers)
    part = rng.permutation(papers)
    masks = {name: np.isin(part, np.arange(low, high)) for name, low, high in (
        ("train_mask", 0, papers * 6 // 10), ("val_mask", papers * 6 // 10, papers * 8 // 10),
        ("test_mask", papers * 8 // 10, papers))}
    return GraphSource(
        "academic", counts, edges,
        {"paper": {"feat": rng.standard_normal((papers, 7)), "label": labels, **masks},
         "field": {"feat": rng.standard_normal((counts["field"], 3)).astype(np.float32)}},
        Task("paper", 4), {"made": "for tests"})


def with_tasks(source: GraphSource) -> GraphSource:
    """The academic graph with more to predict, of papers and of authors."""
    rng = np.random.default_rng(1)
    papers, authors = source.node_counts["paper"], source.node_counts["author"]
    part = rng.random(authors)
    source.node_arrays["author"] = {
        "label": rng.integers(0, 3, authors), "train_mask": part < 0.6,
        "val_mask": (part >= 0.6) & (part < 0.8), "test_mask": part >= 0.8}
    source.node_arrays["paper"] |= {
        "keywords": rng.integers(0, 2, (papers, 5)).astype(np.uint8),
        "citations": rng.standard_normal((papers, 2)).astype(np.float32)}
    # The same where some are not known: of a paper all, of others some.
    there = rng.random((papers, 5)) < 0.6
    there[np.flatnonzero(source.node_arrays["paper"]["train_mask"])[:2]] = False
    source.node_arrays["paper"] |= {
        "some_keywords": np.where(there, rng.integers(0, 2, (papers, 5)), -1).astype(np.int8),
        "some_citations": np.where(there[:, :2], rng.standard_normal((papers, 2)), np.nan)}
    return source


@st.composite
def schemas(draw, max_types: int = 5, max_relations: int = 9):
    """Random schemas, with parallel relations, self-relations and cycles."""
    types = [f"t{i}" for i in range(draw(st.integers(1, max_types)))]
    ends = draw(st.lists(st.tuples(st.sampled_from(types), st.sampled_from(types)),
                         min_size=1, max_size=max_relations))
    relations = {Relation(src, f"r{i}", dst): draw(st.integers(1, 1000))
                 for i, (src, dst) in enumerate(ends)}
    used = {t for r in relations for t in (r.src, r.dst)}
    return Schema({t: draw(st.integers(1, 1000)) for t in types if t in used}, relations)
