"""Changes to a graph between reading it and writing it as a store."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from dgl_heta.errors import InputError, listing, nearest
from dgl_heta.graph.labels import NodeLabels, masked
from dgl_heta.graph.readers.arrays import check_node_array, node_array, task_arrays
from dgl_heta.graph.readers.columns import NO_NUMBER
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.graph.source import ALWAYS, MASKS, EdgeSource, GraphSource, Task, pieces_of

FEAT = "feat"
ENCODINGS = ("float16", "int8")
"""What a store may keep features as, if not as they are."""
REVERSE = "rev-"
"""The prefix of a reverse relation's name."""


@dataclass(frozen=True)
class ReverseEdges:
    """The edges of a relation, each from its end to its beginning."""

    edges: EdgeSource

    @property
    def num_edges(self) -> int:
        return self.edges.num_edges

    def chunks(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for src, dst in self.edges.chunks(size):
            yield dst, src

    def pieces(self) -> list[EdgeSource]:
        return [ReverseEdges(piece) for piece in pieces_of(self.edges)]


def with_reverse(source: GraphSource) -> GraphSource:
    """The graph with a relation `dst rev-etype src` for each `src etype dst` that has none yet."""
    back = {Relation(r.dst, REVERSE + r.etype, r.src): ReverseEdges(edges)
            for r, edges in source.edges.items() if not _is_reverse(r, source.edges)}
    new = {r: edges for r, edges in back.items() if r not in source.edges}
    times = {Relation(r.dst, REVERSE + r.etype, r.src): source.times[r]
             for r in source.edges if r in source.times}
    return replace(source, edges={**source.edges, **new},
                   times={**source.times, **{r: times[r] for r in new if r in times}})


def _is_reverse(relation: Relation, relations: Iterable[Relation]) -> bool:
    name = relation.etype.removeprefix(REVERSE)
    return name != relation.etype and Relation(relation.dst, name, relation.src) in relations


def with_features(source: GraphSource, chosen: Mapping[str, str]) -> GraphSource:
    """The graph with these arrays, by node type, as the features; others of that name are left out.

    Raises
    ------
    InputError
        No such type or array, or an array that cannot be features.
    """
    arrays = {ntype: dict(named) for ntype, named in source.node_arrays.items()}
    given = {kind: dict(known) for kind, known in source.given.items()}
    for ntype, name in chosen.items():
        if ntype not in source.node_counts:
            raise InputError(f"--feature names node type '{ntype}', which is not in the graph; "
                             f"node types: {listing(source.node_counts)}"
                             + nearest(ntype, source.node_counts))
        named = arrays.get(ntype, {})
        if name not in named:
            raise InputError(f"node type '{ntype}' has no array '{name}' to take for features; its "
                             f"arrays: {listing(named)}" + nearest(name, named))
        array, known = named.pop(name), given.get(ntype, {})
        if name in known:
            check_node_array(FEAT, array, ntype, source.node_counts[ntype])
            named[FEAT], known[FEAT] = array, known.pop(name)
        else:
            named[FEAT] = node_array(FEAT, array, ntype, source.node_counts[ntype])
            known.pop(FEAT, None)
    return replace(source, node_arrays=arrays, given=given)


def with_feature_dtype(source: GraphSource, dtype: str) -> GraphSource:
    """The graph whose features a store keeps as `dtype`, "float16" or "int8".

    Raises
    ------
    InputError
        Another dtype, or no node type has features: learnable rows are kept as they are trained.
    """
    if dtype not in ENCODINGS:
        raise InputError(f"--feature-dtype is '{dtype}'; it must be {' or '.join(ENCODINGS)}")
    if not any(FEAT in arrays for arrays in source.node_arrays.values()):
        raise InputError(f"--feature-dtype is {dtype}, but no node type has features; learnable "
                         "ones are kept as they are trained: leave it out")
    return replace(source, feature_dtype=dtype)


def unreached(schema: Schema, targets: Iterable[str]) -> list[Relation]:
    """Relations along which nothing comes to a target, over any number of hops."""
    reached, new = set(targets), list(targets)
    while new:
        for relation in schema.into[new.pop()]:
            if relation.src not in reached:
                reached.add(relation.src)
                new.append(relation.src)
    return [r for r in schema.relations if r.dst not in reached]


def unreached_text(schema: Schema, targets: Iterable[str]) -> str:
    """One sentence about relations that are of no use to the targets, or ""."""
    targets = tuple(targets)
    unused = unreached(schema, targets)
    if not unused:
        return ""
    one = len(unused) == 1
    return (f"{len(unused)} of {len(schema.relations)} relations {'does' if one else 'do'} not "
            f"lead to {' or '.join(targets)} and {'is' if one else 'are'} of no use: "
            f"{listing(unused, 6)}; --reverse adds reverse relations when a graph is read")


def columns_text(source: GraphSource) -> list[str]:
    """Sentences about what was made of columns: times that lack, a split by time, means where
    numbers lack."""
    texts = []
    told = set[int]()
    for kind, times in source.times.items():
        # A reverse relation has the times of its relation; an edge without one has its source's.
        count = np.count_nonzero(times == ALWAYS) if id(times) not in told and (
            isinstance(kind, str) or kind[0] not in source.times) else 0
        told.add(id(times))
        if count:
            what = f"rows of '{kind}'" if isinstance(kind, str) else (
                f"edges of '{Relation(*kind)}'")
            texts.append(f"{count:,} of {len(times):,} {what} have no time, so they are always "
                         "there, for seeds of any time")
    if split := source.info.get("times"):
        parts = [f"{part} {first} to {last}" for part, (first, last) in (
            (part, split[part]) for part in ("train", "val", "test") if part in split)]
        texts.append(f"split by time ('{split['time']}'): {', '.join(parts)}")
    for ntype, records in source.info.get("columns", {}).items():
        for record in records:
            if record.get("missing"):
                texts.append(f"features of {ntype}: {record['missing']:,} of "
                             f"{source.node_counts[ntype]:,} rows lack a number in "
                             f"'{record['column']}', the mean stands in its place")
    return texts


def features_text(source: GraphSource) -> str:
    """One sentence: which types have features, which learn them, which arrays nobody reads."""
    own, learned, unused = [], [], []
    task = source.task
    for ntype in source.node_counts:
        arrays = source.node_arrays.get(ntype, {})
        if FEAT in arrays:
            own.append(f"{ntype} ({math.prod(arrays[FEAT].shape[1:])} wide)")
        else:
            learned.append(ntype)
        read = {FEAT, *MASKS, *([task.label] if task and task.target == ntype else [])}
        unused += [f"{name} of {ntype}" for name in arrays if name not in read]
    tables = source.info.get("columns that are not used", {})
    left = [f"{name} of {ntype}" for ntype, names in tables.items() for name in names]
    return (f"features: {listing(own)}; learned: {listing(learned)}"
            + (f"; not used: {listing(unused)} (--feature TYPE=ARRAY takes an array for the "
               "features)" if unused else "")
            + (f"; columns that are not used: {listing(left)}" if left else ""))


def labels_text(source: GraphSource, task: Task) -> str:
    """One sentence: what the graph's own task is, and how many labels its nodes in masks lack."""
    arrays = task_arrays(source, task)
    if task.label not in arrays:
        return f"labels: {task}"
    labels = NodeLabels(arrays[task.label], task.kind, task.num_classes, task.unlabelled)
    have = all_of = 0
    for nodes in masked(*(arrays[mask] for mask in MASKS if mask in arrays)):
        have += labels.count(nodes)
        all_of += len(nodes) * (1 if task.kind == "classification" else labels.outputs)
    names = source.info.get("classes", ())
    doubtful = [f"'{name}'" for name in names if name in NO_NUMBER]
    return f"labels: {task}{f' ({listing(names, 4)})' if names else ''}" + (
        f"; {listing(doubtful)} is a class: leave cells empty where there is none"
        if doubtful else "") + (
        f"; {all_of - have:,} of {all_of:,} labels of nodes in masks are not known, and count in "
        "no loss and no score" if have < all_of else "")
