"""The contract with plugins: all of it public, documented, and used by the built-ins."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
import re
import subprocess
import sys
import textwrap

import pytest

from dgl_heta.hooks import specs as hookspecs
from dgl_heta.hooks.manager import ENTRY_POINT_GROUP, KINDS, LISTENERS
from dgl_heta.tools import PUBLIC
from tests.support.needs import lacking
from tests.support.plugins import ROOT
from tests.support.waiting import PATIENCE

HOOKS_PAGE = (ROOT / "docs/hooks.md").read_text(encoding="utf-8")
HOOKS = {name: value for name, value in vars(hookspecs).items() if name.startswith("dgl_heta_")}


GUESTS = sorted(file for file in (ROOT / "plugins").glob("*/**/*.py")
                if not {"tests", "build"} & set(file.relative_to(ROOT).parts))


@pytest.mark.parametrize("file", GUESTS, ids=lambda file: str(file.relative_to(ROOT / "plugins")))
def test_guests_use_public_names_only(file):
    """`PUBLIC` in dgl_heta/tools.py is the list of modules; add a tool that is missing there."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            assert not [a.name for a in node.names if a.name.startswith("dgl_heta.")]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dgl_heta":
            assert node.module in PUBLIC
            public = set(importlib.import_module(node.module).__all__)
            assert {a.name for a in node.names} <= public | set(PUBLIC)


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_can_be_imported(module):
    if module == "dgl_heta.graphbolt" and lacking("dgl"):
        pytest.skip("DGL is not installed")
    names = importlib.import_module(module).__all__
    for name in names:
        assert getattr(importlib.import_module(module), name) is not None
    assert f"`{module}`" in HOOKS_PAGE
    if module == "dgl_heta.tools":
        assert [n for n in names if n != "PUBLIC" and f"`{n}`" not in HOOKS_PAGE] == []


def test_hooks_are_all_providers_or_listeners():
    assert set(HOOKS) == {*(hook for hook, _ in KINDS.values()), *LISTENERS}


def test_built_ins_have_no_door_of_their_own():
    entries = [entry for entry in importlib.metadata.distribution("dgl-heta").entry_points
               if entry.group == ENTRY_POINT_GROUP]
    assert [entry.value for entry in entries] == ["dgl_heta.builtin"]
    marked = {value.__name__ for value in vars(entries[0].load()).values()
              if hasattr(value, "dgl_heta_impl")}
    assert marked == {hook for hook, _ in KINDS.values()} - {
        "dgl_heta_settings", "dgl_heta_commands", "dgl_heta_programs", "dgl_heta_model_inputs"}


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
        import dgl_heta.partition.graph_input, dgl_heta.report.plan_terminal, dgl_heta.planning.cost
        import dgl_heta.graph.readers, dgl_heta.graph.datasets.synthetic
        from dgl_heta.hooks.manager import plugins
        plugins().get("partition backend", "meta"), plugins().get("dataset", "synthetic-mag")
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
