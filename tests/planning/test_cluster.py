"""The cost model: what it predicts, what its fit recovers, its files, `plan --cluster`."""

import json
import re
import sys
from dataclasses import replace

import pytest

from dgl_heta import cli
from dgl_heta.errors import InputError
from dgl_heta.graph.datasets.synthetic import SHAPES, shape_schema
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.partition.backends.meta import Meta, MetaShared
from dgl_heta.partition.request import PartitionRequest
from dgl_heta.planning.cluster_estimate import (
    WAIT,
    Cluster,
    Coefficients,
    distdgl_load,
    estimate,
    network_seconds,
    raf_loads,
    seconds,
)
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.receptive_field import receptive_fields
from dgl_heta.planning.workload import MODELS, Workload

MAG = shape_schema("mag")
TOML = "machines = 2\nlink_gbit = 1\n"


def cluster(machines=2, link_gbit=1.0, **more):
    return Cluster(machines=machines, link_gbit=link_gbit, **more)


def by_system(schema, target, work, machines):
    systems = estimate(make_plan(schema, target, 2, machines.machines), work, machines)
    return {one.system: one for one in systems}


# Bytes and work


def test_bytes_of_a_step_in_numbers():
    schema = Schema({"a": 10**9, "p": 10**9}, {
        Relation("a", "w", "p"): 10**9, Relation("p", "r", "a"): 10**9}, {"p": 400})
    work = Workload(hidden=8, fanouts=(-1, -1), classes=3)
    load = distdgl_load(make_plan(schema, "p", 2, 2), work, cluster(), 1000.0, 1.0)
    # 1000 seeds have 1000 authors, and these e^0.49 papers each, as they were reached by edges.
    papers = 1000 * 2.71828182845904**0.49
    assert load.sent["learnable"] == pytest.approx(500 * (8 + 2 * 32), rel=1e-4)
    assert load.sent["features"] == pytest.approx((1000 + papers) / 2 * 408, rel=1e-4)
    assert load.sent["sampling"] == pytest.approx((papers * 24 + 1000 * 8) / 2, rel=1e-4)
    parameters = (100 + 1) * 8 + 4 * 64 + 2 * (64 + 8) + (8 + 1) * 3
    assert load.sent["gradients"] == parameters * 4
    assert load.memory == (10**9 * (400 + 3 * 32) + 2 * 10**9 * 16) / 2


def test_exact_learnable_rows_move_and_replicas_take_memory():
    systems = by_system(MAG, "paper", Workload(), cluster())
    exact, replica = systems["dgl-heta"], systems["dgl-heta, replica"]
    assert exact.causes["learnable"] > 0
    assert "learnable" not in replica.causes
    assert exact.memory < replica.memory


def test_one_machine_sends_nothing():
    for one in estimate(make_plan(MAG, "paper", 2, 1), Workload(), cluster(1)):
        assert one.bytes_per_step == 0


@pytest.mark.parametrize("model", MODELS)
def test_more_link_is_not_slower_and_slower_cores_are_not_faster(model):
    work = Workload(model=model)
    before = by_system(MAG, "paper", work, cluster(link_gbit=1.0))
    for system, one in by_system(MAG, "paper", work, cluster(link_gbit=10.0)).items():
        assert one.seconds_per_step < before[system].seconds_per_step
    for system, one in by_system(MAG, "paper", work, cluster(speed=0.5)).items():
        assert one.seconds_per_step > before[system].seconds_per_step


@pytest.mark.parametrize("shape", list(SHAPES))
def test_more_machines_hold_no_more_and_take_fewer_steps(shape):
    schema, work = shape_schema(shape), Workload(seeds=100_000)
    last: dict = {}
    for machines in (1, 2, 4, 8):
        systems = by_system(schema, SHAPES[shape].target, work, cluster(machines))
        for system, one in systems.items():
            assert one.memory <= last[system].memory if last else one.memory > 0
            assert one.steps <= last[system].steps if last else one.steps > 0
        last = systems


def test_trainers_of_a_machine_share_its_link_and_its_cores():
    work = Workload(seeds=10**6)
    one, eight = (by_system(MAG, "paper", work, cluster(trainers=n, cores=8))
                  for n in (1, 8))
    for system in one:
        assert eight[system].steps < one[system].steps
        assert eight[system].bytes_per_step > one[system].bytes_per_step
        assert eight[system].seconds_per_step > one[system].seconds_per_step


def test_shared_sub_metatrees_are_less_work_for_the_slowest():
    schema = shape_schema("mag240m", 0.01)
    plans = [make_plan(schema, "paper", 2, 2),
             MetaShared().plan(schema, PartitionRequest(2, ("paper",), 2))]
    each = Coefficients.load().of("dgl-heta", "rgcn")
    whole, shared = (max(seconds(load, cluster(), each) for load in raf_loads(
        plan, Workload(), cluster(), 1024, "replica")) for plan in plans)
    assert shared < whole


def test_a_plan_that_cannot_be_predicted_is_refused():
    with pytest.raises(InputError, match="for 3 partitions cannot be predicted on 2 machines"):
        estimate(make_plan(MAG, "paper", 2, 3), Workload(), cluster())


def test_network_time_is_bytes_rounds_and_waits():
    load = distdgl_load(make_plan(MAG, "paper", 2, 2), Workload(), cluster(), 1024, 0.5)
    fast = network_seconds(load, cluster(link_gbit=2.0, latency_us=0), 0)
    assert fast == pytest.approx(sum(load.sent.values()) * 4e-9)
    slow = network_seconds(load, cluster(link_gbit=2.0, latency_us=1000), 0)
    assert slow - fast == pytest.approx(load.rounds * 1e-3)
    waiting, each = replace(load, sent={}, rounds=0), Coefficients.load().of("DistDGL", "rgcn")
    assert network_seconds(waiting, cluster(), 2e-3) == load.work["exchange"] * 2e-3 > 0
    assert (seconds(waiting, cluster(), each | {WAIT: 2e-3}) - seconds(
        waiting, cluster(), each | {WAIT: 0.0})) == pytest.approx(load.work["exchange"] * 2e-3)


def test_types_with_learnable_rows_are_counted_where_a_step_reads_some():
    plan = make_plan(MAG, "paper", 2, 2)  # of which papers alone have features
    assert distdgl_load(plan, Workload(), cluster(), 1024, 0.5).work["table"] == 3
    assert [load.work["table"] for load in raf_loads(
        plan, Workload(), cluster(), 1024, "exact")] == [
            len({t for t in partition.node_types if t != "paper"})
            for partition in plan.for_scripts().partitions]


# Files and the command


@pytest.mark.parametrize(("text", "words"), [
    ("machines = 2\nlink_gbits = 1\n", "unknown key 'link_gbits'.*did you mean 'link_gbit'"),
    ("machines = -1\nlink_gbit = 1\n", "machines: .*got -1"),
    ("machines = 2\nlink_gbit = -1\n", "link_gbit: .*got -1"),
    ("machines = 2\nlink_gbit = nan\n", "link_gbit: .*got nan"),
    ("machines = true\nlink_gbit = 1\n", "machines: .*got True"),
    ("link_gbit = 1\n", "machines: Field required"),
    (TOML + "metis_cut = 1.5\n", "metis_cut: .*got 1.5"),
    ("[[", "is not TOML"),
])
def test_a_bad_cluster_is_named(text, words, tmp_path):
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        Cluster.load(tmp_path / "c.toml")
    assert "c.toml" in str(caught.value)


def test_a_missing_cluster_and_a_list_are_named(tmp_path):
    with pytest.raises(InputError, match=r"cannot read cluster .*absent\.toml"):
        Cluster.load(tmp_path / "absent.toml")
    (tmp_path / "c.json").write_text("[]")
    with pytest.raises(InputError, match="must be an object"):
        Cluster.load(tmp_path / "c.json")


def constant(value):
    """The same seconds for each unit of work."""
    return {system: dict.fromkeys(of, value)
            for system, of in Coefficients.load().seconds.items()}


@pytest.mark.parametrize("change", [{"seconds": {}}, {"metis_cut": 2}, {"more": 1},
                                    {"seconds": constant(-1.0)},
                                    {"most": {"cluster": {"gpus": 1}}}])
def test_bad_coefficients_are_named(change, tmp_path):
    data = {**Coefficients.load().model_dump(), **change}
    (tmp_path / "own.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"own\.json"):
        Coefficients.load(tmp_path / "own.json")


@pytest.fixture
def plan(tmp_path, monkeypatch, capsys):
    """`dgl-heta plan mag --cluster FILE` with more arguments: status, output, errors."""
    (tmp_path / "mag.json").write_text(json.dumps(MAG.to_json()))

    def run(*args, text=TOML):
        (tmp_path / "c.toml").write_text(text)
        monkeypatch.setattr(sys, "argv", ["dgl-heta", "plan", str(tmp_path / "mag.json"),
                                          "--target", "paper", *map(str, args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code, *capsys.readouterr()

    return run



def test_the_command_shows_systems_memory_and_the_error(plan, tmp_path):
    status, out, _ = plan("--cluster", tmp_path / "c.toml", text=TOML + "memory_gb = 0.1\n")
    assert status in (0, None)
    for words in ("dgl-heta, replica", "DistDGL METIS", "DistDGL random", "(too much)",
                  "error on graphs that the fit had not seen, rows expected: processor seconds"):
        assert words in " ".join(out.split())


def test_the_command_as_json_with_own_coefficients(plan, tmp_path):
    own = Coefficients(seconds=constant(0.0), metis_cut=1)
    (tmp_path / "own.json").write_text(json.dumps(own.model_dump()))
    status, out, _ = plan("--cluster", tmp_path / "c.toml", "--json", "--model", "hgt",
                          "--train-nodes", 5000, "--method", "meta-shared",
                          text=TOML + "latency_us = 0.0\ncoefficients = 'own.json'\n")
    assert status in (0, None)
    data = json.loads(out)
    systems = {one["system"]: one for one in data["systems"]}
    assert systems["DistDGL METIS"]["bytes_per_step"] == systems["DistDGL random"]["bytes_per_step"]
    one = systems["dgl-heta, replica"]
    assert one["steps"] == 3
    assert one["seconds_per_step"] == pytest.approx(one["bytes_per_step"] / 2 * 8e-9)
    assert one["bytes_per_epoch"] == 3 * one["bytes_per_step"] == 3 * sum(one["causes"].values())
    assert one["fits"] is None


def test_each_figure_is_said_to_be_inside_or_outside_what_was_measured(plan, tmp_path):
    known = Coefficients.load().most["cluster"]
    wide = "machines = 4\nlink_gbit = 25\ncores = 8\n"
    status, out, _ = plan("--cluster", tmp_path / "c.toml", "--replication", "none", "--json",
                          text=wide)
    assert status in (0, None)
    systems = {one["system"]: one for one in json.loads(out)["systems"]}
    assert systems["dgl-heta"]["causes"]["sampling"] > 0
    for one in systems.values():
        assert one["beyond"][:3] == [
            f"{name} = {value} (measured: at most {known[name]:g})"
            for name, value in (("machines", 4), ("link_gbit", 25), ("cores", 8))]
    _, out, _ = plan("--cluster", tmp_path / "c.toml", "--batch-size", 128, "--fanouts", "5,5")
    assert re.findall(r"(inside|outside) *$", out, re.MULTILINE) == ["inside"] * 4
    assert "outside for" not in out
    _, out, _ = plan("--cluster", tmp_path / "c.toml", "--hidden", 1024, "--batch-size", 128)
    assert "outside" in re.findall(r"(inside|outside) *$", out, re.MULTILINE)
    assert "operations of dense layers, both ways =" in " ".join(out.split())


def test_without_replication_partitions_run_each_edge_once_and_fit_a_limit(plan, tmp_path):
    work, whole = Workload(), make_plan(MAG, "paper", 2, 1)
    alone = Meta().plan(MAG, PartitionRequest(4, ("paper",), 2, replication="none",
                                              memory_limit=1_300_000_000, workload=work))
    assert any(p.ranges for p in alone.partitions)
    one, *_ = receptive_fields(whole, (25, 20), 4096, 4096)
    fields = receptive_fields(alone, (25, 20), 4096, 4096)
    for number, layer in enumerate(one.layers):
        assert sum(f.layers[number].edges for f in fields) == pytest.approx(layer.edges)
    for cut in (True, False):  # measured
        known = Coefficients.load().model_copy(update={"cut": cut})
        assert ["relations that are cut" in one.beyond for one in estimate(
            alone, work, cluster(4), known)] == [not cut, not cut, False, False]
    loads = raf_loads(alone, work, cluster(4), 1024, "replica")
    for ntype, rows in one.inputs.items():
        assert max(f.inputs.get(ntype, 0) for f in fields) <= rows * (1 + 1e-9)
    assert max(load.memory for load in loads) <= 1_300_000_000


def test_what_is_predicted_is_the_methods_plan_by_the_settings(plan, tmp_path):
    def sent(*args):
        _, out, _ = plan("--cluster", tmp_path / "c.toml", "--json", *args)
        return {one["system"]: one["bytes_per_step"] for one in json.loads(out)["systems"]
                }["dgl-heta"]

    none = sent("--replication", "none")
    assert sent() != none == sent("--set", "partition.replication=none")
    drawn = ("--method", "relation-random")
    assert sent(*drawn) == sent(*drawn, "--replication", "none")
    assert sent() != sent("--hidden", 256) == sent("--set", "model.hidden=256")


def test_as_many_parts_as_machines_may_be_said(plan, tmp_path):
    assert plan("--cluster", tmp_path / "c.toml", "--parts", 2)[:2] == plan(
        "--cluster", tmp_path / "c.toml")[:2]


@pytest.mark.parametrize(("args", "words"), [
    (["--parts", 3], "c.toml has 2 machines, with a partition each; leave --parts out"),
    (["--compare"], "--compare has no effect"),
    (["--svg", "x.svg"], "--svg has no effect"),
    (["--model", "gin"], "it must be one of rgcn, rgat, hgt"),
    (["--feature-itemsize", 3], "--feature-itemsize is 3; it must be 1, 2, 4 or 8"),
    (["--train-nodes", 0], "--train-nodes is 0"),
    (["--train-nodes", 10**9], "more than there are target nodes"),
])
def test_options_without_effect_are_refused(plan, tmp_path, args, words):
    status, _, error = plan("--cluster", tmp_path / "c.toml", *args)
    assert status == 2
    assert words in error


@pytest.mark.parametrize("args", [["--model", "hgt"], ["--train-nodes", 5]])
def test_options_of_a_cluster_alone_are_refused(plan, args):
    status, _, error = plan(*args)
    assert status == 2
    assert f"{args[0]} has an effect on --cluster only" in error


def test_a_global_batch_is_that_of_all_trainers_of_the_cluster(plan, tmp_path):
    command = ("--cluster", tmp_path / "c.toml", "--json", "--set")
    _, out, _ = plan(*command, "train.global_batch_size=4096", text=TOML + "trainers = 4\n")
    assert json.loads(out)["training"]["batch_size"] == 4096 / (2 * 4)
    status, _, error = plan(*command, "train.trainers=2", text=TOML + "trainers = 4\n")
    assert status == 2
    assert "train.trainers is 2, but" in error
