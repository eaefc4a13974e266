"""Links that a user has split by a table (`task.links`), and DistMult in place of a dot product."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from dgl_heta.errors import InputError
from dgl_heta.graph.node_ids import NodeIds
from dgl_heta.planning.making import make_plan
from dgl_heta.report.reading import read_run
from dgl_heta.report.run_sections import sections_of
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.settings import Settings, load_settings
from dgl_heta.store import Store, write_store
from dgl_heta.store.structure import in_edges
from dgl_heta.training.tasks import LinkPrediction, make_task
from tests.support.copies import copies, within
from tests.support.graphs import academic, with_tasks
from tests.support.training_worker import same_models, trained
from tests.support.waiting import PATIENCE

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

TASKS = {"writes": {"relation": "writes", "reverse": "rev-writes"},
         "cites": {"relation": "cites", "reverse": "rev-cites"}}
Rows = list[tuple[Any, Any, str]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph whose authors have names, with tables of links beside it."""
    source = with_tasks(academic(dense=6))
    source.node_ids["author"] = NodeIds.of(
        f"author {i}" for i in range(source.node_counts["author"]))
    path = tmp_path_factory.mktemp("given") / "store"
    write_store(source, path)
    graph = Store(path)
    for name in TASKS:
        _write(path.with_name(f"{name}.csv"), _rows(graph, name))
    path.with_name("both.csv").write_text("relation,src,dst,split\n" + "".join(
        f"{name},{u},{v},{split}\n" for name in ("cites", "rev-cites")
        for u, v, split in _rows(graph, name)))
    _write(path.with_name("some.csv"), _rows(graph, "writes") + [
        (f"author {u}", v, "train") for u, v in _for_training(graph)])
    return path


def _for_training(store: Store) -> set[tuple[int, int]]:
    """Pairs for training, not all of them edges, of which the graph has more."""
    asked = {(u, v) for u, v, _ in _rows(store, "writes")}
    return {(3, v) for v in range(10, 50) if ("author 3", v) not in asked}


def _edges(store: Store, name: str) -> list[tuple[int, int]]:
    """The different edges of a relation."""
    relation = store.schema.find_relation(name)
    count = store.schema.node_counts[relation.dst]
    indptr, sources = in_edges(relation, store.relation(relation), np.arange(count),
                               store.schema.node_counts[relation.src])
    return sorted(set(zip(sources.tolist(), np.repeat(np.arange(count), np.diff(indptr)).tolist())))


def _rows(store: Store, name: str) -> Rows:
    """A fifth of the edges for validation, a fifth and a pair that is no edge for test."""
    edges = _edges(store, name)
    absent = next((u, v) for u in range(9) for v in range(9) if (u, v) not in edges)
    chosen = [*((e, "val") for e in edges[::5]), *((e, "test") for e in edges[1::5]),
              (absent, "test"), (edges[2], "")]
    return [(f"author {u}" if name == "writes" else u, v, split) for (u, v), split in chosen]


def _write(path: Path, rows: Rows) -> Path:
    path.write_text("src,dst,split\n" + "".join(f"{u},{v},{s}\n" for u, v, s in rows))
    return path


def base(store: Path, name: str, table: str | None = None, **train: Any) -> dict[str, Any]:
    return {"model": {"hidden": 8}, "run": {"timeout_s": PATIENCE},
            "task": {**TASKS[name], "links": str(store.with_name(f"{table or name}.csv")),
                     "eval_negatives": 7},
            "train": {"global_batch_size": 24, "fanouts": [-1, -1], "dtype": "float64",
                      "threads": 1, "epochs": 2, **train}}


def distmult(settings: dict[str, Any]) -> dict[str, Any]:
    return {**settings, "task": {**settings["task"], "decoder": "distmult"}}


@pytest.fixture(scope="module")
def runs(store: Path) -> Path:
    cases = {"writes": base(store, "writes"), "some": base(store, "writes", "some"),
             "writes distmult": distmult(base(store, "writes")),
             "cites distmult": distmult(base(store, "cites")),
             "both": {**base(store, "cites"), "task": {
                 "relation": "cites, rev-cites", "links": str(store.with_name("both.csv"))}},
             "several distmult": {**base(store, "cites", metrics=["hits@1"]), "task": {
                 "relation": ["writes", "cites", "topic"], "reverse": ["rev-writes", "rev-cites"],
                 "decoder": "distmult", "eval_negatives": 7}}}
    for parts in (1, 2, 3):
        job = store.with_name(f"job-{parts}")
        job.write_text(json.dumps({
            "store": str(store), "out": str(store.parent), "parts": parts, "cases": cases,
            "meeting": str(store.with_name(f"meeting-{parts}"))}))
        status, text = copies("tests.support.training_worker").run(job, within(PATIENCE))
        assert status == 0, text
    return store.parent


def figures(run: Path) -> list[tuple[float, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(line["loss"], line["val_acc"]) for line in lines if line["event"] == "epoch"]


@pytest.mark.parametrize("name", ["writes", "some", "writes distmult", "cites distmult", "both",
                                  "several distmult"])
def test_any_number_of_workers_trains_the_same_model(runs: Path, name: str) -> None:
    for parts in (2, 3):
        np.testing.assert_allclose(figures(runs / f"{name}-{parts}"), figures(runs / f"{name}-1"),
                                   rtol=1e-9)
        same_models(runs / f"{name}-1", runs / f"{name}-{parts}")


def test_the_relation_of_distmult_is_learned_and_kept(runs: Path) -> None:
    for name in ("writes", "cites"):
        vector = load_file(runs / f"{name} distmult-2" / "model.safetensors")["model.relation"]
        assert (vector != 1).any()
        note = json.loads((runs / f"{name} distmult-2" / "model.json").read_text())
        assert note["link"]["decoder"] == "distmult"
    assert figures(runs / "writes-1") != figures(runs / "writes distmult-1")
    assert "link" not in json.loads((runs / "writes-2" / "model.json").read_text())


def test_each_of_several_relations_has_its_vector_and_its_results(runs: Path) -> None:
    one, *others = (json.loads((runs / f"several distmult-{parts}" / "summary.json").read_text())
                    for parts in (1, 2, 3))
    found = one["relations"]["relations"]
    assert list(found) == ["author writes paper", "paper cites paper", "paper topic field"]
    links = sum(each["links"] for each in found.values())
    for figure, together in (("mrr", one["test_acc"]),
                             ("hits@1", one["metrics"]["test"]["hits@1"])):
        assert sum(each["links"] * each[figure] for each in found.values()) / links == (
            pytest.approx(together))
    assert all(other["relations"] == one["relations"] for other in others)
    vectors = load_file(runs / "several distmult-2" / "model.safetensors")["model.relation"]
    assert vectors.shape == (3, 8)
    assert len(np.unique(vectors.numpy(), axis=0)) == 3
    (section,) = [section for section in sections_of(read_run(runs / "several distmult-2"), None)
                  if section.title == "Relations, test"]
    assert {row[0] for row in section.tables[0].rows} == {*found}
    assert "relations" not in json.loads((runs / "writes-2" / "summary.json").read_text())


@pytest.mark.parametrize("fanouts", [[-1, -1], [3, 4]])
@pytest.mark.parametrize("name", TASKS)
def test_no_link_of_the_table_that_is_asked_for_carries_a_message(
        store: Path, name: str, fanouts: list[int]) -> None:
    graph = Store(store)
    settings = load_settings(base=base(store, name), environ={})
    links = make_task(graph, settings)
    assert isinstance(links, LinkPrediction)
    asked = {(int(str(u).removeprefix("author ")), v): split for u, v, split in _rows(graph, name)}
    if name == "cites":  # between papers, where a link has no direction
        asked = {pair: split for pair, split in asked.items() if split}
        asked = {(v, u): split for (u, v), split in asked.items()} | asked
    plan = make_plan(graph.schema, links.targets, 2, 1)
    sampler = NeighborSampler(graph, SamplingScope.of(plan, 0), fanouts, held_out=links.held_out)
    trained_on, seen = set(), set()
    for split in ("train", "val", "test"):
        for number, step in enumerate(links.steps(split, 0, 16)):
            now = set(zip(*(ends.tolist() for ends in links.links(step, step.positions)[1:3])))
            if split == "train":
                trained_on |= now
            else:
                assert {asked[pair] for pair in now} == {split}
            if name == "cites":
                now |= {(v, u) for u, v in now}
            hidden = now | {pair for pair, of in asked.items() if of}
            batch = sampler.sample(links.seeds(step, 0, 1), None, number, links.without(step))
            for block in batch.blocks:
                for edges in block.edges:
                    if edges.relation.etype.removeprefix("rev-") != name:
                        continue
                    nodes, rows = batch.input_nodes, np.repeat(
                        np.arange(edges.start, edges.stop), edges.indptr.diff().numpy())
                    pairs = set(zip(nodes[edges.relation.src][edges.indices.numpy()].tolist(),
                                    nodes[edges.relation.dst][rows].tolist()))
                    if edges.relation.etype.startswith("rev-"):
                        pairs = {(v, u) for u, v in pairs}
                    assert not pairs & (hidden if split == "train" else hidden - now)
                    seen |= pairs
    assert seen
    everything = set(_edges(graph, name))
    assert trained_on == everything - {pair for pair, split in asked.items() if split}


def test_links_for_training_are_those_of_the_table_alone(store: Path) -> None:
    graph = Store(store)
    links = make_task(graph, load_settings(base=base(store, "writes", "some"), environ={}))
    assert isinstance(links, LinkPrediction)
    found = set()
    for step in links.steps("train", 0, 16):
        found |= set(zip(*(ends.tolist() for ends in links.links(step, step.positions)[1:3])))
    assert found == _for_training(graph) != set(_edges(graph, "writes"))


def test_a_run_goes_on_wherever_the_table_lies_and_not_with_another(
        store: Path, runs: Path, tmp_path: Path) -> None:
    trained(store, tmp_path / "run", 1, base(store, "writes", epochs=1))
    moved = tmp_path / "elsewhere.csv"
    moved.write_bytes(store.with_name("writes.csv").read_bytes())
    again = base(store, "writes")
    again["task"]["links"] = str(moved)
    trained(store, tmp_path / "run", 1, again, resume=True)
    assert figures(tmp_path / "run") == figures(runs / "writes-1")
    with pytest.raises(InputError, match=r"other settings: task\.links = "):
        trained(store, tmp_path / "run", 1, base(store, "writes", "some"), resume=True)


@pytest.mark.parametrize(("rows", "message"), [
    ([("author 1", 2, "vla")], "column 'split' is 'vla'; a split is train, val, test or empty"),
    ([("author 1", 2, "train")], "has no link for val or test"),
    ([("bob", 2, "val")], "row 1: column 'src' is 'bob', which is the id of no node of type"),
    ([("author 1", 2, "val"), ("author 1", "p2", "val")], "row 2: column 'dst' is 'p2'"),
    ([("author 1", 99, "val")], "from 0 to 59"),
    ([("author 1", 2, "train"), ("author 2", 2, "val"), ("author 1", 2, "test")],
     "row 3: this link is in 'test', and in 'train' in"),
])
def test_a_table_that_cannot_be_is_named(store: Path, tmp_path: Path, rows: Rows, message: str
                                         ) -> None:
    settings = base(store, "writes")
    settings["task"]["links"] = str(_write(tmp_path / "l.csv", rows))
    with pytest.raises(InputError, match=re.escape(message)):
        make_task(Store(store), load_settings(base=settings, environ={}))


def _of(store: Path, **task: Any) -> Settings:
    return load_settings(base={"task": task}, environ={})


def test_settings_that_do_not_go_together_are_refused(store: Path, tmp_path: Path) -> None:
    file = store.with_name("writes.csv")
    (tmp_path / "short.csv").write_text("source,dst,split\n1,2,val\n")
    for task, message in (
        ({**TASKS["writes"], "links": str(file), "held_out": 0.2}, "task.held_out means nothing"),
        ({"links": str(file)}, "task.links is for link prediction"),
        ({"decoder": "distmult"}, "task.decoder is for link prediction"),
        ({**TASKS["writes"], "links": "none.csv"}, "task.links: there is no file none.csv"),
        ({**TASKS["writes"], "links": str(tmp_path / "short.csv")}, "has no column 'src'"),
        ({"relation": "writes, cites", "links": str(file)}, "does not join those of"),
        ({"relation": "cites,rev-cites", "links": str(store.with_name("cites.csv"))},
         "has no column 'relation'"),
        ({"relation": ["cites"], "links": str(store.with_name("none.csv"))}, "there is no file"),
        ({"relation": ["topic", "rev-cites"], "reverse": "rev-at"}, "does it join the ends"),
        ({"relation": "writes", "reverse": "writes"}, "does not go from 'paper' back"),
        ({"relation": ["cites", "paper cites paper"]}, "names 'paper cites paper' twice"),
    ):
        with pytest.raises(InputError, match=message):
            make_task(Store(store), _of(store, **task))
