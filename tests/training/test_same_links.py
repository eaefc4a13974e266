"""Links give themselves away in no form in which a graph may hold them.

Each form is a random graph, where nothing says who is linked: what a model is to predict follows
from no message, and it ranks no better than by chance.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeArrays, GraphSource
from dgl_heta.planning.making import make_plan
from dgl_heta.sampling.held_out import HeldOut, SameLinks
from dgl_heta.sampling.same_links import overlaps
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_kernels import (
    count_sampled,
    sample_neighbors,
    sample_pieces,
)
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.settings import load_settings
from dgl_heta.store import Store, write_store
from dgl_heta.system.hashing import hash_key
from dgl_heta.training.tasks import LinkPrediction, make_task
from tests.support.copies import copies, within
from tests.support.waiting import PATIENCE

Ends = tuple[np.ndarray, np.ndarray]


def stored(form: set[str], links: Ends, a: str = "a", b: str = "b", etype: str = "r"
           ) -> dict[Relation, Ends]:
    """Relations that hold some links in a form, first the one to predict. Both ends are of the type
    `a` for forms that need it."""
    u, v = links
    b = a if form & {"both ways", "loops", "both ways elsewhere", "one type"} else b
    if "loops" in form:
        u, v = np.append(u, np.arange(5)), np.append(v, np.arange(5))
    if "both ways" in form:
        u, v = np.append(u, v), np.append(v, u)
    if "parallel" in form:
        u, v = np.tile(u, 2), np.tile(v, 2)
    found = {Relation(a, etype, b): (u, v)}
    if "reverse" in form:
        found[Relation(b, f"back-{etype}", a)] = (v, u)
    if "copy" in form:
        found[Relation(a, f"copy-{etype}", b)] = (u, v)
    if "both ways elsewhere" in form:
        found[Relation(a, f"both-{etype}", a)] = (np.append(u, v), np.append(v, u))
    return found


FORMS = ("both ways", "loops", "parallel", "reverse", "copy", "both ways elsewhere", "one type")


def task_of(store: Store, **task: Any) -> LinkPrediction:
    made = make_task(store, load_settings(
        base={"task": {"relation": "r", "eval_negatives": 3, **task}}, environ={}))
    assert isinstance(made, LinkPrediction)
    return made


def write_links(path: Path, links: Ends, splits: np.ndarray) -> str:
    """A table of links; `splits` are 0 for train, 1 for val, 2 for test."""
    path.write_text("src,dst,split\n" + "".join(
        f"{u},{v},{('train', 'val', 'test')[s]}\n" for u, v, s in zip(*links, splits)))
    return str(path)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_no_message_says_what_is_asked(data: st.DataObject) -> None:
    """Neither an edge of the step nor one that is held out is in a batch, in any direction or copy,
    and nodes have as many neighbours as without them: a missing one would be a hint."""
    form = data.draw(st.sets(st.sampled_from(FORMS), max_size=4))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    nodes, size = data.draw(st.sampled_from([20, 40])), data.draw(st.sampled_from([12, 60]))
    links = tuple(rng.integers(0, nodes, (2, size)))
    fanouts = data.draw(st.lists(st.sampled_from([-1, 1, 3]), min_size=2, max_size=2))
    edges = stored(form, links)
    relation = next(iter(edges))
    one_type = relation.src == relation.dst
    reverse = data.draw(st.sampled_from([None, *(["r"] if one_type else []),
                                         *(["back-r"] if "reverse" in form else [])]))
    back = Relation(relation.dst, "other", relation.src)  # so that sources have messages, too
    everything = {**edges, back: tuple(rng.integers(0, nodes, (2, 10)))}
    with TemporaryDirectory() as directory:
        place = Path(directory)
        write_store(GraphSource("g", {t: nodes for t in {relation.src, relation.dst}}, {
            r: EdgeArrays(*ends) for r, ends in everything.items()}), place / "store")
        store, task = Store(place / "store"), {"reverse": reverse, "held_out": 0.2}
        if data.draw(st.booleans()):
            del task["held_out"]
            different = np.unique(np.stack(edges[relation]), axis=1)
            task["links"] = write_links(place / "l.csv", tuple(different), np.append(
                [1, 2], rng.integers(0, 3, different.shape[1] - 2)))
        made = task_of(store, **task)
        assert {*made.held_out.groups[0].relations} == {*edges}

        def pairs(sources: np.ndarray, destinations: np.ndarray) -> set[tuple[int, int]]:
            found = set(zip(sources.tolist(), destinations.tolist()))
            return found | {(v, u) for u, v in found} if one_type else found

        asked = {split: set[tuple[int, int]]() for split in ("train", "val", "test")}
        steps = {split: made.steps(split, 0, 16) for split in asked}
        for split, some in steps.items():
            for step in some:
                asked[split] |= pairs(*made.links(step, step.positions)[1:3])
        held = asked["val"] | asked["test"]
        assert not asked["train"] & held
        plan = make_plan(store.schema, made.targets, 2, data.draw(st.integers(1, 2)))
        for part, (split, some) in itertools.product(range(plan.num_parts), steps.items()):
            scope = SamplingScope.of(plan, part)
            sampler = NeighborSampler(store, scope, fanouts, held_out=made.held_out)
            for number, step in enumerate(some[:2]):
                hidden = held | (pairs(*made.links(step, step.positions)[1:3])
                                 if split == "train" else set())
                batch = sampler.sample(made.seeds(step, 0, 1), None, number, made.without(step))
                for fanout, block in zip(fanouts, batch.blocks):
                    for each in block.edges:
                        check(store, each, batch.input_nodes, fanout, relation,
                              hidden if each.relation in edges else set())


def check(store: Store, block: Any, nodes: dict[str, np.ndarray], fanout: int, relation: Relation,
          hidden: set[tuple[int, int]]) -> None:
    """A block has no edge of hidden links, and all others as far as its fanout goes."""
    csc = store.relation(block.relation)
    sources = nodes[block.relation.src][block.indices.numpy()]
    for row, node in enumerate(nodes[block.relation.dst][block.index].tolist()):
        low, high = block.indptr[row:row + 2].tolist()

        def left(some: np.ndarray, node: int = node) -> list[int]:
            swapped = block.relation.src != relation.src
            return [u for u in some.tolist()
                    if ((node, u) if swapped else (u, node)) not in hidden]

        drawn = sources[low:high]
        there = left(csc.indices[csc.indptr[node]:csc.indptr[node + 1]])
        assert left(drawn) == drawn.tolist()
        assert len(drawn) == (len(there) if fanout < 0 else min(fanout, len(there)))
        assert {*drawn.tolist()} <= {*there}


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 3, 8]), st.sampled_from([0.0, 0.4, 0.9]))
def test_pieces_of_a_node_are_drawn_as_the_whole(seed: int, fanout: int, share: float) -> None:
    """Where workers have some in-edges of a node each, and each is held out as likely as others."""
    rng = np.random.default_rng(seed)
    relation, nodes = Relation("a", "r", "a"), np.arange(6)
    indptr = np.cumsum([0, *rng.integers(0, 40, len(nodes))])
    indices = rng.integers(0, 30, indptr[-1]).astype(np.int32)
    left_out = HeldOut([SameLinks((relation,), 30, True)], share).left_out(relation, None)
    key, low = np.uint64(hash_key(seed)), rng.integers(0, np.diff(indptr) + 1)

    def rows(pointers: np.ndarray, out: np.ndarray) -> list[list[int]]:
        return [out[a:b].tolist() for a, b in itertools.pairwise(pointers)]

    pointers, out = np.empty(len(indptr), np.int64), np.empty(indptr[-1], np.int32)
    count_sampled(indptr, nodes, fanout, len(indices), pointers)
    sample_neighbors(indptr, indices, nodes, fanout, key, None, pointers, out, None, None, 0,
                     left_out, None)
    whole, pieces = rows(pointers, out), [[] for _ in nodes]
    for begin, end in ((np.zeros_like(low), low), (low, np.diff(indptr))):
        order = np.empty(indptr[-1], np.int64)
        sample_pieces(indptr, indices, nodes, begin, end, fanout, key, None, pointers, out, order,
                    None, None, 0, left_out, None)
        for found, *pair in zip(pieces, rows(pointers, order), rows(pointers, out)):
            found += zip(*pair)
    assert [[source for _, source in sorted(found)] for found in pieces] == whole


def test_of_the_edges_that_are_left_each_is_drawn_as_often() -> None:
    for degree in (12, 200):  # from a list of what is left, and at random first
        relation, size = Relation("a", "r", "b"), 4000
        indices = np.arange(degree, dtype=np.int32)
        held = HeldOut([SameLinks((relation,), 1)], 0.0, 0, [
            (relation, np.arange(0, degree, 3), np.zeros(len(range(0, degree, 3)), np.int64))])
        drawn = np.zeros(degree)
        for number in range(size):
            pointers, out = np.array([0, 3]), np.empty(3, np.int32)
            sample_neighbors(
                np.array([0, degree]), indices, np.array([0]), 3, np.uint64(hash_key(number)),
                None, pointers, out, None, None, 0, held.left_out(relation, None), None)
            assert len(set(out.tolist())) == 3
            drawn[out] += 1
        left = np.arange(degree) % 3 > 0
        assert not drawn[~left].any()
        mean = 3 * size / left.sum()
        assert abs(((drawn[left] - mean) ** 2 / mean).sum() - left.sum()) < 5 * np.sqrt(
            2 * left.sum())


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_shares_of_common_links_are_those_of_sets(seed: int, one_type: bool) -> None:
    rng = np.random.default_rng(seed)
    b = "a" if one_type else "b"
    names = [Relation("a", "x", b), Relation(b, "y", "a"), Relation("a", "z", b)]
    edges = {r: tuple(rng.integers(0, 8, (2, rng.integers(1, 30)))) for r in names}
    with TemporaryDirectory() as directory:
        write_store(GraphSource("g", {"a": 8, b: 8}, {r: EdgeArrays(*ends) for r, ends in
                                                      edges.items()}), Path(directory) / "s")
        found = {(each.relation, each.other): each.share
                 for each in overlaps(Store(Path(directory) / "s"), names[:2])}
    for one, other in itertools.product(names[:2], names):
        has = set(zip(*(ends.tolist() for ends in edges[other])))
        hits = [((u, v) in has and (other.src, other.dst) == (one.src, one.dst) and one != other)
                or ((v, u) in has and (other.dst, other.src) == (one.src, one.dst)
                    and not (one == other and u == v))
                for u, v in zip(*(ends.tolist() for ends in edges[one]))]
        assert found.get((one, other), 0.0) == pytest.approx(np.mean(hits))


NODES, SIZE, SHARE = 400, 1000, 0.15
CASES: dict[str, tuple[set[str], dict[str, Any]]] = {
    "symmetric": ({"both ways"}, {}),
    "symmetric, itself named": ({"both ways"}, {"reverse": "r"}),
    "reverse": ({"reverse"}, {}),
    "reverse named": ({"reverse", "one type"}, {"reverse": "back-r"}),
    "parallel": ({"parallel", "copy", "reverse"}, {}),
    "elsewhere": ({"both ways elsewhere", "loops"}, {}),
    "table": ({"both ways"}, {"links": True}),
    "table, named": ({"reverse"}, {"links": True, "reverse": "back-r"}),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each form in a part of one graph, by node types of its own, with one worker and with two."""
    place = tmp_path_factory.mktemp("forms")
    edges: dict[Relation, Ends] = {}
    jobs: dict[str, dict[str, Any]] = {}
    for number, (name, (form, task)) in enumerate(CASES.items()):
        rng = np.random.default_rng(number)
        links = tuple(rng.integers(0, NODES, (2, SIZE)))
        task, etype = dict(task), f"r{number}"
        edges |= (own := stored(form, links, f"a{number}", f"b{number}", etype))
        relation = next(iter(own))
        if relation.src != relation.dst:
            edges[Relation(relation.dst, f"o{number}", relation.src)] = tuple(
                rng.integers(0, NODES, (2, 100)))
        if "reverse" in task:
            task["reverse"] = task["reverse"].replace("r", etype) if task[
                "reverse"] == "r" else f"back-{etype}"
        if task.pop("links", False):  # as a user splits a list of edges, each by itself
            different = np.unique(np.stack(own[relation]), axis=1)
            task["links"] = write_links(place / f"{number}.csv", tuple(different), rng.choice(
                3, different.shape[1], p=[1 - 2 * SHARE, SHARE, SHARE]))
        else:
            task["held_out"] = SHARE
        jobs[name] = {
            "model": {"hidden": 16, "layers": 1}, "run": {"timeout_s": PATIENCE},
            "task": {"relation": etype, **task},
            "train": {"epochs": 20, "lr": 0.02, "sparse_lr": 0.05, "fanouts": [-1], "threads": 1,
                      "global_batch_size": 256}}
    write_store(GraphSource("forms", {t: NODES for r in edges for t in (r.src, r.dst)}, {
        r: EdgeArrays(*ends) for r, ends in edges.items()}), place / "store")
    for parts, names in ((1, list(CASES)), (2, ["symmetric", "table"])):
        job = place / f"job-{parts}"
        job.write_text(json.dumps({
            "store": str(place / "store"), "out": str(place), "parts": parts,
            "cases": {name: jobs[name] for name in names}, "meeting": str(place / f"m-{parts}")}))
        status, text = copies("tests.support.training_worker").run(job, within(PATIENCE))
        assert status == 0, text
    return place


def test_no_model_is_better_than_chance_on_a_random_graph(runs: Path) -> None:
    """If a link's other direction or a copy of it carried messages, most would rank by 4 to 20
    standard errors better."""
    ranks = np.arange(1, 52)  # among 50 negatives
    chance, spread = (1 / ranks).mean(), (1 / ranks).std()
    found = {run.name: json.loads((run / "summary.json").read_text())["test_acc"]
             for run in runs.iterdir() if (run / "summary.json").is_file()}
    assert len(found) == len(CASES) + 2
    wrong = {name: score for name, score in found.items()
             if score > chance + 3 * spread / np.sqrt(SHARE * SIZE)}
    assert not wrong, wrong
