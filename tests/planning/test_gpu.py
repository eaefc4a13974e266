"""A step on GPUs, on paper, in `plan --cluster`: what adds up, what is said, what is refused."""

import json
import re
import sys

import pytest

from dgl_heta import cli
from dgl_heta.errors import InputError
from dgl_heta.graph.datasets.synthetic import shape_schema
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.planning.cluster_estimate import Cluster, estimate
from dgl_heta.planning.gpu import COUNTED, GPUS, HOST, REACHED, Gpu
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.workload import Workload
from dgl_heta.settings import load_settings
from tests.training.test_pretended_gpu import COUNTED as OF_TESTS

MAG = shape_schema("mag")
TOML = "machines = 2\nlink_gbit = 25\ncores = 16\n"
TABLE = {"memory_gb": 10.0, "memory_bandwidth": 1000.0, "host_bandwidth": 10.0, "tflops": 10.0}
# Each node of p has one of ten million of a: 1,000 seeds have 1,000 edges and read 1,000 rows of a.
SMALL = Schema({"a": 10**7, "p": 10**7}, {Relation("a", "w", "p"): 10**7}, {"p": 400})
WORK = Workload(hidden=8, fanouts=(-1,), seeds=1000, classes=3)


def forecast(*given, schema=SMALL, target="p", work=WORK, machines=1, system="dgl-heta", **more):
    """A system's step on GPUs of :data:`TABLE`, with settings `a.b=c` and other figures."""
    figures = {name: more.pop(name) for name in [*more] if name in Gpu.model_fields}
    cluster = Cluster(machines=machines, link_gbit=1, gpu=Gpu(**{**TABLE, **figures}), **more)
    settings = load_settings(None, [*given], {})
    plan = make_plan(schema, target, len(work.fanouts) or 2, machines)
    systems = estimate(plan, work, cluster, settings=settings)
    return {one.system: one.gpu for one in systems}[system]


# What adds up


def test_stages_in_numbers():
    found = forecast("cache.policy=none", launch_us=1000)
    fixed, each, *moved = COUNTED["fused"]["rgcn"]
    assert found["kernels"] == fixed + each
    stages, edges = found["stages"], 1000
    assert stages["launch"] == pytest.approx(HOST["step"] + (fixed + each) * 1e-3)
    inputs = 1000 * 400 + 1000 * 32  # of p and, learnable, of a
    assert stages["up"] == pytest.approx((inputs + 4 * edges) / (10e9 * REACHED["host"]), rel=1e-3)
    ends = (1000 + 1000) * 32
    assert stages["memory"] == pytest.approx(
        (moved[0] * edges * 32 + moved[1] * ends + moved[2] * inputs)
        / (1e12 * REACHED["memory"]), rel=1e-3)
    assert stages["exchange"] == 0
    assert found["seconds_per_step"] == sum(stages.values())
    assert found["pipelined"] == max(
        stages["sample"], found["seconds_per_step"] - stages["sample"])


@pytest.mark.parametrize(("figure", "stage"), [
    ("memory_bandwidth", "memory"), ("tflops", "products"), ("host_bandwidth", "up")])
def test_twice_as_much_is_twice_as_fast(figure, stage):
    before = {**TABLE, "cores": 1}[figure]
    slow, fast = (forecast("cache.policy=none", **{figure: n * before})["stages"] for n in (1, 2))
    assert fast[stage] == pytest.approx(slow[stage] / 2)
    assert fast["launch"] == slow["launch"]


def test_edges_are_sampled_on_four_cores_at_most_and_rows_read_on_one():
    everything = [forecast("cache.capacity_mb=9000", cores=n)["stages"] for n in (1, 2, 4, 16)]
    sample = [stages["sample"] for stages in everything]
    assert [sample[0] / each for each in sample] == pytest.approx([1, 2, 4, 4])
    nothing = [forecast("cache.policy=none", cores=n)["stages"] for n in (1, 4)]
    rows = [stages["sample"] - all_there for stages, all_there in zip(nothing, sample[::2])]
    assert rows[0] > 0
    assert rows[0] == pytest.approx(rows[1])
    assert nothing[0]["down"] == nothing[1]["down"]


def test_products_in_bfloat16_are_of_another_peak():
    in_float32, mixed = (forecast(*given, bf16_tflops=100.0)["stages"]["products"]
                         for given in ((), ("train.autocast=bfloat16",)))
    assert mixed == pytest.approx(in_float32 / 10)


def test_rows_that_a_cache_holds_do_not_travel():
    tables = 10**7 * (400 + 3 * 32)
    nothing, half, everything = (forecast("cache.policy=hotness", f"cache.capacity_mb={size}")
                                 for size in (0, tables / 2e6, 9000))
    assert {one["cacheable"] for one in (nothing, half, everything)} == {tables}
    assert [one["cached"] for one in (nothing, half, everything)] == [0, tables / 2, tables]
    up, down = ([one["stages"][stage] for one in (nothing, half, everything)]
                for stage in ("up", "down"))
    assert up[0] - up[1] == pytest.approx(up[1] - up[2])
    assert up[2] == pytest.approx(4 * 1000 / (10e9 * REACHED["host"]), rel=1e-3)
    assert down[0] == pytest.approx(2 * down[1])
    assert down[2] == 0
    # As in training: by default 4 GB, half of the GPU at most.
    assert forecast("cache.policy=none")["cached"] == 0
    assert forecast()["cached"] == forecast("cache.policy=hotness")["cached"] == 4e9
    assert forecast(memory_gb=2.0)["cached"] == 1e9


@pytest.mark.parametrize("more", [{"machines": 2}, {"trainers": 2, "cores": 2}])
def test_learnable_rows_that_others_train_stay_in_memory(more):
    exact, replica = (forecast("cache.policy=hotness", "cache.capacity_mb=9000", schema=MAG,
                               target="paper", work=Workload(hidden=8), system=system, **more)
                      for system in ("dgl-heta", "dgl-heta, replica"))
    assert exact["cacheable"] < replica["cacheable"]
    assert exact["stages"]["down"] > 0 == replica["stages"]["down"]


def test_a_step_that_does_not_fit_is_said():
    assert forecast()["fits"]
    assert not forecast(memory_gb=1e-4)["fits"]


def test_newer_gpus_are_no_slower():
    steps = [forecast(**GPUS[name])["seconds_per_step"] for name in ("l4", "a100", "h100", "h200")]
    assert steps == sorted(steps, reverse=True)


@pytest.mark.parametrize("model", ["rgat", "hgt"])
def test_kernels_are_about_those_counted_in_training(model):
    fixed, each, *_ = COUNTED["fused"][model]
    relations_run = 11  # of the tests' graph, in two layers
    assert fixed + each * relations_run == pytest.approx(OF_TESTS[1, model][0], rel=0.1)


# Files and the command


@pytest.mark.parametrize(("gpu", "words"), [
    ("'h1000'", "gpu is 'h1000'; it must be one of a100, h100, h200, l4, or a table of .*"
     "did you mean 'h100'"),
    ("3", "gpu is 3; it must be one of"),
    ("['h100']", "gpu is .*; it must be one of"),
    ("{memory_gb = 80}", "gpu: memory_bandwidth: Field required"),
    ("{memory_gb = 0}", "gpu: memory_gb: .*got 0"),
    ("{memory_gb = -1}", "gpu: memory_gb: .*got -1"),
    ("{memory_gb = nan}", "gpu: memory_gb: .*got nan"),
    ("{memory_gb = 'much'}", "gpu: memory_gb: .*got 'much'"),
    ("{memory_gb = true}", "gpu: memory_gb: .*got True"),
    ("{memory_gb = 80, memory_bandwidth = 3.35e12}", "gpu: memory_bandwidth: .*got 3350000000000"),
    ("{bandwidth = 1}", "gpu: unknown key 'bandwidth'; keys: .*did you mean 'host_bandwidth'"),
])
def test_a_bad_gpu_is_named(gpu, words, tmp_path):
    (tmp_path / "c.toml").write_text(f"{TOML}gpu = {gpu}\n")
    with pytest.raises(InputError, match=words) as caught:
        Cluster.load(tmp_path / "c.toml")
    assert "c.toml" in str(caught.value)


def test_a_gpu_by_name_is_that_table(tmp_path):
    (tmp_path / "name.toml").write_text(f"{TOML}gpu = 'h100'\n")
    (tmp_path / "table.json").write_text(json.dumps(
        {"machines": 2, "link_gbit": 25, "cores": 16, "gpu": GPUS["h100"]}))
    assert Cluster.load(tmp_path / "name.toml") == Cluster.load(tmp_path / "table.json")


@pytest.fixture
def plan(tmp_path, monkeypatch, capsys):
    """`dgl-heta plan mag --cluster FILE`, with `gpu` in the file: status, output, errors."""
    (tmp_path / "mag.json").write_text(json.dumps(MAG.to_json()))

    def run(*args, gpu="'h100'"):
        (tmp_path / "c.toml").write_text(TOML + (f"gpu = {gpu}\n" if gpu else ""))
        monkeypatch.setattr(sys, "argv", [
            "dgl-heta", "plan", str(tmp_path / "mag.json"), "--target", "paper", "--cluster",
            str(tmp_path / "c.toml"), *args])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code, *capsys.readouterr()

    return run


def test_the_command_says_that_no_gpu_was_measured(plan):
    status, out, _ = plan("--model", "hgt", "--set", "train.kernel=merged")
    assert status in (0, None)
    for words in ("Forecast, not measured", "no other GPU was measured", "launch", "cacheable",
                  "train.kernel = merged, cache.policy = miss_penalty",
                  "DistDGL's kernels were not counted"):
        assert words in " ".join(out.split())
    assert "(too much)" not in out
    table = ", ".join(f"{name} = {figure}" for name, figure in {**TABLE, "memory_gb": 0.1}.items())
    assert "(too much)" in plan(gpu=f"{{{table}}}")[1]


def test_the_object_says_so_too_and_nothing_else_changes(plan):
    without, found = (json.loads(plan("--json", gpu=gpu)[1]) for gpu in (None, "'h100'"))
    paper = found.pop("gpu")
    assert paper["measured"] is False
    assert paper.items() >= GPUS["h100"].items()
    steps = {one["system"]: one.pop("gpu", None) for one in found["systems"]}
    assert found == without
    assert [name for name, step in steps.items() if step] == ["dgl-heta", "dgl-heta, replica"]
    text = [plan(gpu=gpu)[1] for gpu in (None, "'h100'")]
    assert text[1].startswith(text[0])
    assert "GPU" not in text[0]


@pytest.mark.parametrize(("given", "words"), [
    ("train.device=cpu", "train.device is cpu, with which no step on the cluster's gpu"),
    ("train.dtype=float64", "it must be float32"),
    ("train.kernel=torch", "train.kernel is torch, .*it must be fused, merged"),
    ("cache.capacity_mb=90000", "cache.capacity_mb is 90000.0, .*it must be at most 80000"),
    ("cache.policy=hottest", "unknown cache policy 'hottest'.*did you mean 'hotness'"),
])
def test_settings_of_which_there_is_no_forecast_are_refused(plan, given, words):
    status, _, error = plan("--set", given)
    assert status == 2
    assert re.search(words, " ".join(error.split()))
    assert plan("--set", given, gpu=None)[0] in (0, None)


def test_a_plan_by_dgl_has_no_relations_to_run(plan):
    status, _, error = plan("--method", "metis")
    assert status == 2
    assert "does not partition by relations" in error
