"""Providers, built in or not: listed with their source, selected by name, used by a run."""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import re
from pathlib import Path

import pytest

from dgl_heta._version import __version__
from dgl_heta.errors import InputError
from dgl_heta.hooks.manager import KINDS, Plugins
from dgl_heta.hooks.packaged import DISTRIBUTIONS
from dgl_heta.partition.graph_input import open_input
from tests.support.plugins import BACKEND, EVERY_KIND, ROOT, distribution, heta

GUEST = "dgl-heta-random-assignment"


def test_built_ins_are_listed_with_kind_source_and_version():
    found = {(p.kind, p.name): (p.source, p.version)
             for p in Plugins(guests=False).all()}
    for provider in (("partition backend", "meta"), ("partition backend", "metis"),
                     ("module wrapper", "raf"), ("aggregation kernel", "torch"),
                     ("cache policy", "none"), ("model", "rgcn"), ("dataset", "synthetic-mag")):
        assert found[provider] == ("built in", __version__)
    assert {kind for kind, _ in found} == set(KINDS) - {
        "settings", "command", "program", "model inputs"}


def test_the_guest_is_listed_with_its_distribution_and_version():
    try:
        version = importlib.metadata.version(GUEST)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{GUEST} is not installed (pip install -e plugins/random_assignment)")
    provider = Plugins().providers("partition backend")["meta-random"]
    assert (provider.source, provider.version) == (GUEST, version)
    assert (ROOT / "plugins/random_assignment").samefile(
        Path(inspect.getfile(type(provider.value))).parent)


def test_a_run_uses_the_providers_of_a_third_party_distribution(tmp_path):
    path = distribution(tmp_path / "site", "third-party", EVERY_KIND)
    used = tmp_path / "used"
    used.mkdir()
    run = heta("train", "mine:papers=50", "--model", "mine", "--parts", 2, "--json",
               "--run-dir", tmp_path / "run", "--set", "partition.method=mine",
               "--set", "train.kernel=mine", "--set", "train.wrapper=mine",
               "--set", "train.epochs=2", path=path, USED=str(used))
    assert run.returncode == 0, run.stderr
    assert {file.name for file in used.iterdir()} == {
        "dataset", "kernel", "model", "wrapper", "run_started", "epoch 1 ended", "epoch 2 ended",
        "run_ended"}
    assert (used / "run_ended").read_text() == "xx"  # once on each of the two workers
    job = json.loads((tmp_path / "run/job.json").read_text())
    assert job["plan"]["method"] == "mine"
    assert [p["sub_metatrees"] for p in job["plan"]["partitions"]] == [[1], [0]]


def test_providers_of_every_kind_are_found_by_name(install):
    install("third-party-kinds", EVERY_KIND, version="2.0")
    found = Plugins()
    for kind in KINDS:
        assert found.get(kind, "mine").name == "mine"
        provider = found.providers(kind)["mine"]
        assert (provider.source, provider.version) == ("third-party-kinds", "2.0")
    listeners = [p for p in found.all() if p.kind == "listener"]
    assert [(p.name, p.source) for p in listeners] == [("plugin", "third-party-kinds")]


def test_two_plugins_may_name_their_entry_points_alike(install):
    install("one-plugin", BACKEND.format(name="one"))
    install("other-plugin", BACKEND.format(name="other"))
    assert {"one", "other"} <= set(Plugins().providers("partition backend"))


def test_a_distribution_that_is_on_the_path_twice_counts_once(install, tmp_path, monkeypatch):
    install("twice-there", BACKEND.format(name="twice"))
    distribution(tmp_path / "again", "twice-there", BACKEND.format(name="twice"))
    monkeypatch.syspath_prepend(tmp_path / "again")
    assert "twice" in Plugins().providers("partition backend")


def test_unknown_provider_names_the_nearest():
    with pytest.raises(InputError, match=r"unknown partition backend 'metsi'; known are: .*meta.*"
                                         r"did you mean 'metis'"):
        Plugins().get("partition backend", "metsi")


@pytest.mark.parametrize(("kind", "name"), [*DISTRIBUTIONS])
def test_a_plugin_that_is_not_installed_is_named(kind, name):
    distribution = DISTRIBUTIONS[kind, name]
    with pytest.raises(InputError, match=rf"'{name}'.*: pip install {distribution}$"):
        Plugins(guests=False).get(kind, name)
    (file,) = [file for file in (ROOT / "plugins").glob("*/pyproject.toml")
               if f'name = "{distribution}"\n' in file.read_text()]
    if any(d.name == distribution for d in importlib.metadata.distributions()):
        assert Plugins().providers(kind)[name].source == distribution


def test_a_data_set_whose_plugin_is_not_installed_is_no_mistyped_name():
    with pytest.raises(InputError, match="data set; .*: pip install dgl-heta-datasets$"):
        open_input("debian", Plugins(guests=False))


def test_trace_shows_hook_calls_with_results_on_stderr(tmp_path):
    distribution(tmp_path, "traced-plugin", BACKEND.format(name="traced"))
    args = ("plan", "debian", "--method", "traced", "--json")
    run = heta(*args, path=tmp_path, DGL_HETA_TRACE="1")
    assert run.returncode == 0
    assert json.loads(run.stdout)["method"] == "traced"
    assert "dgl_heta_partition_backends [hook]" in run.stderr
    assert re.search(r"finish dgl_heta_partition_backends --> .*traced_plugin\.Backend", run.stderr)
    assert "dgl_heta_datasets [hook]" in run.stderr
    assert heta(*args, path=tmp_path, DGL_HETA_TRACE="0").stderr == ""
