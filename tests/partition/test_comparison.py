"""`dgl-heta plan --compare`: its figures are those of training, and it says when RAF would lose."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import GraphSource
from dgl_heta.partition.backends import dgl_methods
from dgl_heta.partition.backends.meta import Meta
from dgl_heta.partition.cluster_counts import count_fields, count_rows
from dgl_heta.partition.counting import counting_of
from dgl_heta.partition.method_comparison import compare
from dgl_heta.partition.request import PartitionRequest
from dgl_heta.planning import traffic
from dgl_heta.planning.cluster_estimate import Cluster, estimate, raf_loads
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.workload import Workload
from dgl_heta.store import Store, write_store
from tests.support import warm
from tests.support.graphs import academic
from tests.support.needs import lacking
from tests.support.waiting import PATIENCE


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "store"
    write_store(academic(), path)
    return path


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([warm.python(), "-m", "dgl_heta", *arguments], capture_output=True,
                          text=True, timeout=PATIENCE)


@pytest.mark.parametrize(("replication", "exchange"), [
    ("full", "same"), ("full", "bfloat16"), ("none", "same"),
    pytest.param("none", "bfloat16", marks=pytest.mark.thorough)])
def test_bytes_are_those_that_training_sends(
        store: Path, tmp_path: Path, replication: str, exchange: str) -> None:
    """One step an epoch with all training nodes and neighbours: nothing is left to chance.

    So figures are equal, byte for byte, but for what :mod:`dgl_heta.planning.traffic` leaves out,
    the counts that workers send each other before rows, and for ids, which take a byte each, or
    less where one comes after the other. (With sampled neighbours, comparison and training draw
    other steps, and how far they are apart says how much steps differ.)
    """
    work = Workload(batch_size=12, hidden=8, fanouts=(-1, -1),
                    wire_itemsize=2 if exchange == "bfloat16" else None)
    comparison = compare(Store(store), PartitionRequest(3, ("paper",), 2), work)
    name = "meta" if replication == "full" else "meta, replication none"
    (method,) = [m for m in comparison.methods if m.name == name]
    assert comparison.steps_per_epoch == 1
    sets = ["model.hidden=8", "train.batch_size=12", "train.fanouts=-1,-1", "train.epochs=1",
            f"train.exchange_dtype={exchange}", f"partition.replication={replication}",
            "partition.parts=3", "train.threads=1"]
    done = run("train", str(store), "--run-dir", str(tmp_path / "run"), "--json",
               *(part for text in sets for part in ("--set", text)))
    assert done.returncode == 0, done.stderr
    sent = json.loads(done.stdout.splitlines()[-1])["bytes"]
    assert method.bytes_per_epoch["partials"] == sent["partials"]
    every_other = 3 * 2 * 8  # an 8-byte count from each of 3 workers to each other one
    expected = method.bytes_per_epoch["learnable"]
    rows = round(expected / (1 + 2 * work.sent_row_bytes))
    assert rows * 2 * work.sent_row_bytes < sent["learnable"] - every_other <= expected
    if replication == "full":  # features are taken to be in fp32, and are not here
        assert method.bytes_per_epoch["gradients"] == pytest.approx(sent["gradients"], rel=0.3)
    if replication == "none":  # a count per node type
        expected = method.bytes_per_epoch["sampling"]
        assert 0 < sent["sampling"] - 4 * every_other <= expected


def test_the_last_step_of_an_epoch_is_of_what_is_left(store: Path) -> None:
    """36 training nodes in two steps of at most 30: none is counted twice."""
    work, request = Workload(batch_size=10, hidden=8, fanouts=(3, 3)), PartitionRequest(
        3, ("paper",), 2)
    plan = make_plan(Store(store).schema, "paper", 2, 3)
    counting = counting_of(Store(store), plan, work, request, 3)
    assert counting.steps_per_epoch == 2
    sent = counting.raf("meta", plan).bytes_per_epoch
    assert sent["partials"] == sum(traffic.partials(
        len(group), 36 / 3, traffic.seed_bytes(2, work)) * len(group) for group in plan.groups)


def test_every_method_has_its_row_and_one_partition_sends_nothing(store: Path) -> None:
    work = Workload(batch_size=12, hidden=8)
    comparison = compare(Store(store), PartitionRequest(1, ("paper",), 2), work)
    assert [m.name for m in comparison.methods] == [
        "meta", "meta, replication none", "relation-random", "DistDGL random", "DistDGL METIS"]
    missing = {method.name: method.missing for method in comparison.methods if method.missing}
    assert missing == ({"DistDGL METIS": "DGL is not installed"} if lacking("dgl") else {})
    for method in comparison.methods:
        if method.name in missing:
            continue
        assert method.total == 0
        assert method.replication_factor == 1
        assert method.memory_balance == method.edge_balance == 1


def test_a_method_without_figures_has_none_in_json(store: Path, monkeypatch) -> None:
    monkeypatch.setattr(dgl_methods, "_METIS_EDGES", 10)
    work, request = Workload(batch_size=12, fanouts=(3, 3)), PartitionRequest(2, ("paper",), 2)
    rows = {row["name"]: row for row in
            compare(Store(store), request, work, 1).to_json()["methods"]}
    metis = rows["DistDGL METIS"]
    assert rows["meta"].keys() == metis.keys()
    assert {k for k, v in metis.items() if v is not None} == {"name", "missing"}


@pytest.mark.needs("dgl")
def test_parts_that_metis_leaves_empty_are_told(store: Path, monkeypatch) -> None:
    monkeypatch.setattr(dgl_methods, "metis_parts", lambda store, parts: {
        t: np.zeros(n, np.int64) for t, n in store.schema.node_counts.items()})
    work, request = Workload(batch_size=12, fanouts=(3, 3)), PartitionRequest(2, ("paper",), 2)
    assert {method.name: method.missing for method in compare(
        Store(store), request, work, 1).methods if method.missing} == {
            "DistDGL METIS": "METIS leaves a part without nodes"}


@pytest.mark.needs("metis")
@pytest.mark.parametrize("types", ["several", "one"])
def test_metis_is_given_what_partition_graph_gives_it(tmp_path, monkeypatch, types) -> None:
    """Parallel edges count, and types of nodes are balanced: without, its parts are others."""
    import dgl
    import dgl.distributed
    import torch

    source = academic(papers=240)
    if types == "one":
        cites = Relation("paper", "cites", "paper")
        source = GraphSource("papers", {"paper": 240}, {cites: source.edges[cites]})
    write_store(source, tmp_path / "store")
    given, metis = [], dgl.metis_partition_assignment

    def noted(graph, parts, balance_ntypes=None, **more):
        given.append((*graph.edges(), balance_ntypes))
        return metis(graph, parts, balance_ntypes, **more)

    for module in (dgl, sys.modules["dgl.distributed.partition"]):
        monkeypatch.setattr(module, "metis_partition_assignment", noted)
    opened = Store(tmp_path / "store")
    dgl_methods.metis_parts(opened, 2)
    dgl.distributed.partition_graph(dgl_methods.to_dgl_graph(opened), "g", 2, str(tmp_path / "out"))
    for ours, theirs in zip(*given, strict=True):
        assert torch.equal(ours, theirs) if theirs is not None else ours is None


def test_boundary_nodes_and_cut_edges_are_those_of_the_parts(store: Path) -> None:
    """Counted edge by edge; no more boundary nodes than cut edges (Heta, Proposition 3)."""
    opened, rng = Store(store), np.random.default_rng(0)
    schema = opened.schema
    owner = {t: rng.integers(0, 2, n) for t, n in schema.node_counts.items()}
    request, work = PartitionRequest(2, ("paper",), 2), Workload(batch_size=12, fanouts=(3, 3))
    row = counting_of(opened, make_plan(schema, "paper", 2, 2), work, request, 1).distdgl(
        "halves", owner)
    cut, boundary = 0, set()
    for relation in schema.relations:
        csc = opened.relation(relation)
        for dst in range(schema.node_counts[relation.dst]):
            for src in csc.indices[csc.indptr[dst]:csc.indptr[dst + 1]]:
                if owner[relation.src][src] != owner[relation.dst][dst]:
                    cut += 1
                    boundary |= {(relation.src, int(src)), (relation.dst, dst)}
    of_parts = [sum(owner[t][node] == part for t, node in boundary) for part in (0, 1)]
    assert (row.boundary_nodes, row.cut_edges) == (max(of_parts), cut)
    assert row.boundary_nodes <= cut
    meta = compare(opened, request, work, 1).methods[0]
    assert (meta.boundary_nodes, meta.cut_edges) == (schema.node_counts["paper"], None)


def test_the_plan_and_the_settings_of_a_partition_are_what_is_compared(
        store: Path, tmp_path: Path) -> None:
    """Its depth, parts by the settings, and features as wide as they are stored."""
    assert run("partition", str(store), "--out", str(tmp_path / "p"), "--hops", "3").returncode == 0
    done = run("plan", str(tmp_path / "p"), "--compare", "--json", "--set", "partition.parts=3")
    compared = json.loads(done.stdout.splitlines()[-1])
    assert compared["parts"] == 3
    assert len(compared["workload"]["fanouts"]) == 3
    assert compared["workload"]["feature_itemsize"] == 8


def test_rows_are_counted_in_steps_of_all_trainers(store: Path) -> None:
    """36 training nodes in one step of nine trainers: as many as each of three gets of three steps.
    """
    opened, work = Store(store), Workload(batch_size=36, hidden=8)
    plan = make_plan(opened.schema, "paper", 2, 3)
    many = count_rows(opened, plan, work, steps=1, trainers=3)
    alone = count_rows(opened, plan, replace(work, batch_size=4), steps=1)
    for system in ("dgl-heta", "DistDGL random"):  # METIS draws other parts each time
        assert many.sent[system] == alone.sent[system]


def test_a_cluster_is_predicted_from_the_rows_that_are_compared(store: Path) -> None:
    work, opened = Workload(batch_size=4, hidden=8, classes=4), Store(store)
    counted = count_rows(opened, make_plan(opened.schema, "paper", 2, 3), work)
    methods = {m.name: m for m in compare(opened, PartitionRequest(3, ("paper",), 2), work).methods}
    sent = {s.system: s for s in estimate(
        make_plan(opened.schema, "paper", 2, 3), replace(work, seeds=36),
        Cluster(machines=3, link_gbit=1), counted=counted.sent)}
    random, steps = methods["DistDGL random"].bytes_per_epoch, sent["DistDGL random"].steps
    for cause, size in sent["DistDGL random"].causes.items():
        assert size * steps == pytest.approx(random[cause], rel=1e-3), cause
    assert sent["dgl-heta"].causes["learnable"] > 0
    assert lacking("dgl") is not None or 0 < (counted.metis_cut or 0) < 1.1


@pytest.mark.parametrize("replication", ["full", "none"])
def test_work_is_counted_of_what_partitions_sample(store: Path, replication: str) -> None:
    """All neighbours of all seeds: without replication each edge is on one partition alone."""
    opened, seeds = Store(store), 1000
    plan = Meta().plan(opened.schema, PartitionRequest(2, ("paper",), 2, replication=replication))
    *parts, alone = count_fields(opened, plan, Workload(fanouts=(-1, -1)), seeds)
    top = alone.layers[0]
    train = opened.array("paper", "train_mask").nonzero()[0]
    for relation, edges in top.sampled.items():
        degrees = np.diff(opened.relation(relation).indptr)
        assert (edges, top.rows[relation]) == (degrees[train].sum(), len(train))
    assert not any(top.inner.values())
    for number, layer in enumerate(alone.layers):
        of_parts = [part.layers[number].edges for part in parts]
        assert max(of_parts) <= layer.edges
        assert replication == "full" or sum(of_parts) == layer.edges
    for part in parts:
        assert all(n <= alone.inputs[t] for t, n in part.inputs.items())
    work, cluster = Workload(seeds=len(train), fanouts=(-1, -1)), Cluster(machines=2, link_gbit=1)
    counted, expected = (raf_loads(plan, work, cluster, seeds, "exact", of)
                         for of in (parts, None))
    assert [x.work["edge"] for x in counted] == [sum(y.edges for y in p.layers) for p in parts]
    assert counted[0].work["edge"] != expected[0].work["edge"]


def test_it_warns_where_features_are_cheaper_to_move_than_partials(
        store: Path, tmp_path: Path) -> None:
    write_store(academic(papers=800), tmp_path / "large")
    shown = run("plan", str(tmp_path / "large"), "--compare", "--parts", "4", "--hidden", "16",
                "--fanouts", "1,1", "--batch-size", "100")
    assert shown.returncode == 0, shown.stderr
    assert "warning: DistDGL" in shown.stdout
    assert "would send less than meta" in " ".join(shown.stdout.split())
    assert "hidden size 16" in " ".join(shown.stdout.split())
    told = run("plan", str(store), "--compare", "--json")
    data = json.loads(told.stdout)  # and nothing beside it
    assert {m["name"] for m in data["methods"]} >= {"meta", "relation-random", "DistDGL METIS"}


def test_a_schema_alone_is_not_enough(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(academic().schema().to_json()))
    done = run("plan", str(tmp_path / "schema.json"), "--target", "paper", "--compare")
    assert done.returncode == 2
    assert "has no edges; give a store" in " ".join(done.stderr.split())


@pytest.mark.parametrize(("options", "message"), [
    (["--compare", "--method", "meta"], "--method has no effect on --compare"),
    (["--compare", "--set", "partition.method=meta"], "partition.method has no effect on"),
    (["--compare", "--set", "train.trainers=2"], "train.trainers = 2 has no effect on --compare"),
    (["--fanouts", "0,3"], "a fanout is 1 or more"),
    (["--memory-mb", "inf"], "must be a number above 0"),
])
def test_options_of_plan_that_cannot_be_meant(options: list[str], message: str) -> None:
    from typer.testing import CliRunner

    from dgl_heta.cli import app

    done = CliRunner().invoke(app, ["plan", "debian", *options])
    assert isinstance(done.exception, InputError)
    assert message in str(done.exception)
