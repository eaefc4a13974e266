"""Settings of providers: checked, listed, recorded, and there wherever the provider is called."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from dgl_heta.errors import InputError
from dgl_heta.hooks.manager import Plugins
from dgl_heta.launch.jobs.training import TrainingJob
from dgl_heta.settings import load_settings
from dgl_heta.store import write_store
from tests.support.graphs import academic
from tests.support.plugins import ROOT, distribution, guest, heta
from tests.support.waiting import PATIENCE

GUEST = guest("own_settings")


@pytest.fixture
def registry(install):
    install("lean-plugin", GUEST)
    return Plugins()


def backend(registry: Plugins, *overrides: str, file=None, **environ: str):
    settings = load_settings(file, overrides, environ)
    return registry.configured(settings).get("partition backend", "lean-on").settings


def test_a_provider_has_its_defaults_without_any_settings(registry):
    assert backend(registry).beta == 1.1
    assert registry.get("partition backend", "lean-on").settings.beta == 1.1


def test_the_file_is_weaker_than_the_environment_and_that_than_set(registry, tmp_path):
    file = tmp_path / "heta.toml"
    file.write_text('[plugins.lean-on]\nbeta = 2\nfirst = 1\ntitle = "file"\n[train]\nlr = 0.1\n')
    read = backend(registry, "plugins.lean-on.beta=4", file=file,
                   DGL_HETA_PLUGINS__LEAN_ON__FIRST="0", DGL_HETA_PLUGINS__LEAN_ON__BETA="3")
    assert (read.beta, read.first, read.title) == (4.0, 0, "file")


@pytest.mark.parametrize(("text", "key", "value"), [
    ("title=2024", "title", "2024"), ("title=a,b", "title", "a,b"), ("fast=true", "fast", True),
    ("order=down", "order", "down"), ("first=7", "first", 7), ('title="x"', "title", "x"),
])
def test_a_value_is_read_by_the_type_of_its_field(registry, text, key, value):
    assert getattr(backend(registry, f"plugins.lean-on.{text}"), key) == value


@pytest.mark.parametrize(("override", "message"), [
    ("plugins.lean-on.bta=1.2", r"unknown setting 'plugins\.lean_on\.bta'; settings: .*"
                                r"plugins\.lean_on\.beta.*did you mean 'beta'\?"),
    ("plugins.lean-no.beta=1.2", r"no plugin has settings 'plugins\.lean_no'; sections: "
                                 r".*plugins\.lean_on.*; did you mean 'lean_on'\?"),
    ("plugins.lean-on.beta=1", r"setting plugins\.lean_on\.beta: Input should be greater than 1; "
                               r"got 1"),
    ("plugins.lean-on.beta=much", r"setting plugins\.lean_on\.beta: .*valid number.*got 'much'"),
    ("plugins.lean-on.order=left", r"setting plugins\.lean_on\.order: .*'up' or 'down'; got"),
    ("plugins.lean-on.first=true", r"setting plugins\.lean_on\.first: this setting is no switch.*"),
    ("plugins.lean-on=3", r"'plugins' has a section for each provider; write plug.*on\.key"),
    ("plugins.beta=3", r"'plugins' has a section for each provider; write plugins\.beta\.key"),
])
def test_what_is_wrong_is_one_line(registry, override, message):
    with pytest.raises(InputError, match=message) as error:
        backend(registry, override)
    assert "\n" not in str(error.value)
    assert "pydantic" not in str(error.value)


def test_two_registries_do_not_share_settings(registry):
    one = registry.configured(load_settings(None, ["plugins.lean-on.beta=2"], {}))
    other = registry.configured(load_settings(None, ["plugins.lean-on.beta=3"], {}))
    assert [r.get("partition backend", "lean-on").settings.beta
            for r in (one, other, registry)] == [2, 3, 1.1]


def test_settings_that_are_no_model_name_the_plugin(install):
    install("loose-plugin", GUEST.replace("= LeanSettings()", "= {'beta': 1}"))
    with pytest.raises(InputError, match=r"plugin loose-plugin 1\.5: partition backend 'lean-on' "
                                         r"has settings \{'beta': 1\}; they must be an instance"):
        Plugins().get("partition backend", "lean-on")


def test_a_run_records_the_settings_and_hands_them_to_its_workers(tmp_path):
    path = distribution(tmp_path / "site", "lean-plugin", GUEST)
    used = tmp_path / "used"
    used.mkdir()
    run = heta("train", "debian", "--parts", 2, "--json", "--run-dir", tmp_path / "run",
               "--set", "partition.method=lean-on", "--set", "train.kernel=slow",
               "--set", "train.epochs=1", "--set", "train.batch_size=4096",
               "--set", "plugins.lean-on.first=1", "--set", "plugins.lean-on.beta=1.5",
               path=path, USED=str(used), DGL_HETA_PLUGINS__SLOW__ROUNDS="5",
               DGL_HETA_PLUGINS__WATCH__ROUNDS="7")
    assert run.returncode == 0, run.stderr
    assert set((used / "backend").read_text().split()) == {"1.5"}
    assert set((used / "kernel").read_text().split()) == {"5"}
    assert (used / "listener").read_text().split() == ["7", "7"]
    job = json.loads((tmp_path / "run/job.json").read_text())
    assert job["settings"]["plugins"] == {
        "lean_on": {"beta": 1.5, "first": 1, "title": "", "fast": False, "order": "up"},
        "slow": {"rounds": 5}, "watch": {"rounds": 7}}
    metrics = json.loads((tmp_path / "run/summary.json").read_text())
    assert metrics["settings"]["plugins"] == job["settings"]["plugins"]
    other = heta("train", "debian", "--run-dir", tmp_path / "run", "--resume", "--json",
                 "--set", "partition.method=lean-on", "--set", "train.kernel=slow",
                 "--set", "train.epochs=2", "--set", "train.batch_size=4096",
                 "--set", "plugins.lean-on.first=1", "--set", "plugins.slow.rounds=6",
                 path=path, USED=str(used))
    assert other.returncode == 2
    assert re.search("was made with other settings", other.stderr)


def test_settings_of_plugins_are_listed_with_values_and_meaning(tmp_path):
    path = distribution(tmp_path / "site", "lean-plugin", GUEST)
    run = heta("settings", "--set", "plugins.lean-on.beta=1.5", path=path, COLUMNS="200")
    assert run.returncode == 0, run.stderr
    (line,) = [line for line in run.stdout.splitlines() if "plugins.lean_on.beta" in line]
    assert line.split()[:2] == ["plugins.lean_on.beta", "1.5"]
    assert "how uneven partitions may be" in line
    shown = json.loads(heta("settings", "--json", path=path).stdout)
    assert shown["plugins"]["watch"] == {"rounds": 1}


def test_commands_that_partition_take_settings_too(tmp_path):
    path = distribution(tmp_path / "site", "lean-plugin", GUEST)
    (tmp_path / "heta.toml").write_text(
        '[partition]\nmethod = "lean-on"\nparts = 3\n[plugins.lean-on]\nfirst = 2\n')
    plan = json.loads(heta("plan", "debian", "-c", tmp_path / "heta.toml", "--json",
                           path=path).stdout)
    heavy = max(plan["partitions"], key=lambda p: len(p["sub_metatrees"]))
    assert (plan["method"], plan["partitions"].index(heavy)) == ("lean-on", 2)
    run = heta("partition", "debian", "-c", tmp_path / "heta.toml", "--parts", 2, "--set",
               "plugins.lean-on.first=0", "--out", tmp_path / "out", "--json", path=path)
    assert json.loads(run.stdout)["parts"] == 2
    run = heta("plan", "debian", "--set", "plugins.lean-on.first=x", path=path)
    assert (run.returncode, run.stdout) == (2, "")
    assert "setting plugins.lean_on.first" in run.stderr


@pytest.mark.thorough
def test_a_trained_model_keeps_its_settings_and_needs_no_other_plugin(tmp_path):
    """Features are given, so that none is learnable, whose width the setting would not change."""
    both, model = tmp_path / "both", tmp_path / "model"
    distribution(both, "lean-plugin", GUEST)
    for site in (both, model):
        distribution(site, "wide-model", guest("wide_model").replace('"wide"', '"Very-wide"'))
    source = academic()
    for ntype, count in source.node_counts.items():
        source.node_arrays.setdefault(ntype, {})["feat"] = np.ones((count, 6), np.float32)
    write_store(source, tmp_path / "store")
    run = heta("train", tmp_path / "store", "--run-dir", tmp_path / "run", "--json",
               "--set", "partition.method=lean-on", "--set", "plugins.lean-on.first=1",
               "--set", "model.name=Very-wide", "--set", "plugins.very-wide.factor=3",
               "--set", "train.epochs=1", "--set", "model.hidden=4", path=both, USED=str(tmp_path))
    assert run.returncode == 0, run.stderr
    run = heta("predict", tmp_path / "run", "--out", tmp_path / "out.npy", path=model)
    assert run.returncode == 0, run.stderr
    assert len(np.load(tmp_path / "out.npy")) == source.node_counts["paper"]
    code = "import sys, dgl_heta; print(dgl_heta.load_model(sys.argv[1]))"
    shown = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, text=True,
        check=True, timeout=PATIENCE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(model), str(ROOT)])}).stdout
    assert "out_features=12" in shown


SCRIPT = """
    import dgl, json, torch
    graph = dgl.heterograph({("a", "r", "b"): (torch.arange(40) % 10, torch.arange(40) % 20)})
    nodes, edges = dgl.distributed.partition_graph(
        graph, "g", 3, "out", 2, return_mapping=True, graph_formats="csc")
    print(json.dumps([nodes["a"].tolist(), len(edges["a", "r", "b"])]))
"""


def test_settings_and_arguments_of_a_script_reach_the_backend(tmp_path):
    pytest.importorskip("dgl")
    site = distribution(tmp_path, "edge-stream", guest("edge_stream"))
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    (tmp_path / "heta.toml").write_text("[plugins.edge-stream]\nchunk = 5\nmost_edges = 9\n")
    run = heta("run", "-c", "heta.toml", "--set", "partition.method=edge-stream",
               "--set", "plugins.edge-stream.chunk=3", "script.py", path=site)
    assert run.returncode == 0, run.stderr
    nodes, edges = json.loads(run.stdout.splitlines()[-1])
    assert (sorted(nodes), edges) == (list(range(10)), 40)
    config = json.loads((tmp_path / "out/g.json").read_text())
    assert (config["halo_hops"], config["formats"], config["chunk"]) == (2, "csc", 3)


def test_a_data_set_has_its_settings_in_a_training(install):
    install("boxes-plugin", """
import dgl_heta
from pydantic import BaseModel
from dgl_heta.graph.datasets import synthetic


class Size(BaseModel):
    scale: float = 0.01


class Boxes(dgl_heta.Dataset):
    name, description, settings = "boxes", "boxes", Size()

    def load(self):
        return synthetic.generate("mag", self.settings.scale, 0)


@dgl_heta.hookimpl
def dgl_heta_datasets():
    return [Boxes()]
""")
    papers = [TrainingJob.prepare("boxes", None, [f"plugins.boxes.scale={scale}"], Plugins())
              .opened.schema.node_counts["paper"] for scale in (0.01, 0.005)]
    assert papers[0] > 1.5 * papers[1]
