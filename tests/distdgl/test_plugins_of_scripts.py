"""What plugins bring to scripts: programs that they adapt once; what is said without the plugin."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import dgl_heta
from dgl_heta.distdgl.graph import dist_graph
from dgl_heta.distdgl.programs import check_programs, forget_programs, watch_programs
from dgl_heta.hooks.manager import Plugins


@pytest.fixture
def package(tmp_path: Path, monkeypatch):
    """Write a package that can be imported until the end of the test."""
    monkeypatch.syspath_prepend(tmp_path)
    written = []

    def write(name: str) -> None:
        (tmp_path / name).mkdir()
        for file in ("__init__", "layers", "others"):
            (tmp_path / name / f"{file}.py").write_text("VALUE = 1\n")
        written.append(name)
        importlib.invalidate_caches()

    yield write
    forget_programs()
    for name in [n for n in sys.modules if n.partition(".")[0] in written]:
        del sys.modules[name]


def registry(**programs: dict) -> Plugins:
    """Of a plugin with programs, by name, with what is done to their modules."""
    found = Plugins(guests=False)
    providers = [type("Of", (dgl_heta.Program,), {"name": name, "modules": modules})()
                 for name, modules in programs.items()]
    plugin = ModuleType("of_the_test")
    plugin.dgl_heta_programs = dgl_heta.hookimpl(  # type: ignore[attr-defined]
        lambda: providers, specname="dgl_heta_programs")
    found._register(plugin, "of the test", "of-the-test", "1.0")
    return found


def test_a_module_is_adapted_once_when_it_is_imported(package) -> None:
    package("relational_a")
    adapted: list[ModuleType] = []
    found = registry(relational_a={"relational_a.layers": adapted.append})
    watch_programs(found)
    importlib.import_module("relational_a.others")
    assert adapted == []
    module = importlib.import_module("relational_a.layers")
    assert (adapted, module.VALUE) == ([module], 1)
    forget_programs()
    watch_programs(found)
    watch_programs(found)
    importlib.import_module("relational_a.layers")
    assert adapted == [module]


def test_a_module_that_was_imported_before_is_adapted(package) -> None:
    package("relational_b")
    module = importlib.import_module("relational_b.layers")
    adapted: list[ModuleType] = []
    watch_programs(registry(relational_b={"relational_b.layers": adapted.append}))
    assert adapted == [module]


def test_no_module_is_adapted_any_more(package) -> None:
    package("relational_c")
    adapted: list[ModuleType] = []
    watch_programs(registry(relational_c={"relational_c.layers": adapted.append}))
    forget_programs()
    importlib.import_module("relational_c.layers")
    assert adapted == []


@pytest.mark.parametrize("before", [False, True], ids=["then imported", "imported before"])
def test_a_program_whose_plugin_is_not_installed_names_it(package, monkeypatch, before) -> None:
    package("graphstorm")
    for name in [n for n in sys.modules if n.partition(".")[0] == "graphstorm"]:
        monkeypatch.delitem(sys.modules, name)
    without = Plugins(guests=False)
    check_programs(without)
    if before:
        importlib.import_module("graphstorm")
    watch_programs(without)
    importlib.import_module("graphstorm")  # on other graphs it runs as without dgl-heta
    with pytest.raises(dgl_heta.InputError, match="pip install dgl-heta-graphstorm"):
        check_programs(without)
    check_programs(registry(graphstorm={}))


def test_a_wrapper_that_stays_within_parts_needs_its_plugin(monkeypatch) -> None:
    monkeypatch.setattr(dist_graph, "wrapper_for_any_graph",
                        lambda: SimpleNamespace(own_part=lambda: True))
    monkeypatch.setattr(dist_graph, "plugins", lambda: Plugins(guests=False))
    with pytest.raises(dgl_heta.InputError, match="pip install dgl-heta-catgnn"):
        dist_graph.open_graph(SimpleNamespace(), "no such file")
