"""The contract with plugins: all of it public, documented, and used by the built-ins."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import re
import subprocess
import sys
import textwrap

import dgl_heta
from dgl_heta.hooks import specs as hookspecs
from dgl_heta.hooks.manager import ENTRY_POINT_GROUP, KINDS, LISTENERS
from tests.support.plugins import ROOT
from tests.support.waiting import PATIENCE

HOOKS = {name: value for name, value in vars(hookspecs).items() if name.startswith("dgl_heta_")}


def test_the_guest_uses_public_names_only():
    for file in (ROOT / "plugins/random_assignment").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                assert not [a.name for a in node.names if a.name.startswith("dgl_heta.")]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dgl_heta"):
                assert node.module == "dgl_heta"
                assert {a.name for a in node.names} <= set(dgl_heta.__all__)


def test_every_public_name_can_be_imported():
    for name in dgl_heta.__all__:
        assert getattr(dgl_heta, name) is not None


def test_hooks_are_all_providers_or_listeners():
    assert set(HOOKS) == {*KINDS.values(), *LISTENERS}


def test_built_ins_have_no_door_of_their_own():
    entries = [entry for entry in importlib.metadata.distribution("dgl-heta").entry_points
               if entry.group == ENTRY_POINT_GROUP]
    assert [entry.value for entry in entries] == ["dgl_heta.builtin"]
    marked = {value.__name__ for value in vars(entries[0].load()).values()
              if hasattr(value, "dgl_heta_impl")}
    assert marked == set(KINDS.values()) - {"dgl_heta_settings", "dgl_heta_commands"}


def test_every_hook_is_documented_with_its_arguments():
    text = (ROOT / "docs/hooks.md").read_text(encoding="utf-8")
    for name, hook in HOOKS.items():
        written = re.findall(rf"{name}\(([^)]*)\)", text)
        assert written, f"{name} is not in docs/hooks.md with its signature"
        wanted = list(inspect.signature(hook).parameters)
        signatures = [[part.partition(":")[0].strip()
                       for part in re.sub(r"\[.*?\]", "", arguments).split(",") if part]
                      for arguments in written]
        assert wanted in signatures, f"docs/hooks.md writes {name}{signatures}, not {wanted}"


def test_core_imports_without_dgl_and_planning_without_torch():
    code = """
        import importlib, pkgutil, sys
        import dgl_heta, dgl_heta.cli, dgl_heta.planning.plan, dgl_heta.store
        import dgl_heta.partition.inputs, dgl_heta.report.plan_terminal, dgl_heta.planning.cost
        import dgl_heta.graph.readers, dgl_heta.graph.datasets.synthetic
        from dgl_heta.hooks.manager import plugins
        plugins().get("partition backend", "meta"), plugins().get("dataset", "debian")
        assert "torch" not in sys.modules, "planning imports torch"
        for module in pkgutil.walk_packages(dgl_heta.__path__, "dgl_heta."):
            adapter = module.name.startswith(("dgl_heta.distdgl.", "dgl_heta.graphbolt"))
            if not module.name.endswith("__main__") and not adapter:
                importlib.import_module(module.name)
        plugins().all()
        assert "dgl" not in sys.modules, "the core imports dgl"
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True,
                         text=True, timeout=PATIENCE, check=False, cwd=ROOT)
    assert run.returncode == 0, run.stderr
