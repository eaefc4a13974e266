"""Small graphs that tests train and partition, and random schemas."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.graph.source import ALWAYS, MASKS, EdgeArrays, EdgeSource, GraphSource, Task

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


def with_times(source: GraphSource, last: int = 100) -> GraphSource:
    """The academic graph with times from 1 to `last`: of papers and authors, some of which have
    none, and of citations and places of work, that may be earlier than their ends'."""
    rng = np.random.default_rng(2)
    for ntype in ("paper", "author"):
        source.times[ntype] = rng.integers(1, last, source.node_counts[ntype])
        source.times[ntype][rng.random(source.node_counts[ntype]) < 0.1] = ALWAYS
        for name in {*MASKS} & source.node_arrays.get(ntype, {}).keys():
            source.node_arrays[ntype][name] &= source.times[ntype] != ALWAYS
    for relation in RELATIONS:
        if relation.etype in ("cites", "rev-at"):
            source.times[relation] = rng.integers(1, last, source.edges[relation].num_edges)
    return source


def seed_rows(source: GraphSource, count: int = 150, last: int = 100) -> list[tuple[int, int, int]]:
    """Papers at times, several times each, and classes: rows of a table of seeds."""
    rng = np.random.default_rng(3)
    papers = rng.integers(0, source.node_counts["paper"], count)
    first = np.maximum(source.times["paper"][papers], 1)
    times = first + (rng.random(count) * (last + 1 - first)).astype(np.int64)
    pairs = np.unique(np.stack([papers, times], 1), axis=0)
    return [(*pair, int(label)) for pair, label in zip(
        rng.permutation(pairs).tolist(), rng.integers(0, 4, len(pairs)))]


def link_rows(source: GraphSource, name: str) -> list[tuple[int, int, int]]:
    """The edges of a relation at the times from which on they are there; some twice."""
    (relation,) = [r for r in source.edges if r.etype == name]
    edges = source.edges[relation]
    assert isinstance(edges, EdgeArrays)
    times = np.max([source.times[relation], source.times[relation.src][edges.src],
                    source.times[relation.dst][edges.dst]], 0)
    rows = np.stack([edges.src, edges.dst, times], 1)
    return [*map(tuple, np.concatenate([rows, rows[::5] + [0, 0, 3]]).tolist())]


def later_changed(source: GraphSource, time: int) -> GraphSource:
    """A graph with times, all of which that is there only from `time` on is another: features and
    ends of edges."""
    rng = np.random.default_rng(4)
    late = {t: times >= time for t, times in source.times.items() if isinstance(t, str)}
    arrays = {t: dict(named) for t, named in source.node_arrays.items()}
    arrays["paper"]["feat"] = np.where(late["paper"][:, None], 9 - 7 * arrays["paper"]["feat"],
                                       arrays["paper"]["feat"])
    edges: dict[Relation, EdgeSource] = {}
    for relation, given in source.edges.items():
        assert isinstance(given, EdgeArrays)
        own = np.zeros(given.num_edges, bool)
        if relation in source.times:
            own = source.times[relation] >= time
        both = own | late.get(relation.src, np.zeros(1 << 10, bool))[given.src]
        edges[relation] = EdgeArrays(
            np.where(own, rng.integers(0, source.node_counts[relation.src], len(own)), given.src),
            np.where(both, rng.integers(0, source.node_counts[relation.dst], len(own)), given.dst))
    return replace(source, edges=edges, node_arrays=arrays)
