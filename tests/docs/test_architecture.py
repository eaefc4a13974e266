"""docs/architecture.md is true: its packages, their order, and every path and name in it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

from tests.docs.pages import ROOT, prose
from tests.test_layout import LEVELS, NEEDS_DGL

PAGE = ROOT / "docs/architecture.md"
TEXT = prose(PAGE)
SIDE_DOORS = {"__init__", "__main__", "_version"}  # of no interest to a reader of the tree
PATH = re.compile(r"`([\w./-]+/|[\w./-]+\.(?:py|md|sh|toml|json))(?::([\w.]+))?`")


def test_the_list_of_packages_is_the_tree_in_the_order_of_imports() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .* \| (yes|no|in part) \|$", TEXT, re.MULTILINE)
    names = [name for name, _ in rows]
    assert set(names) == set(LEVELS) - SIDE_DOORS
    levels = [LEVELS[name] for name in names]
    assert levels == sorted(levels, reverse=True), "top first, as ORDER in tests/test_layout.py"
    for name, needs in rows:
        inside = [module for module in NEEDS_DGL if module.split(".")[1] == name]
        assert needs == ("no" if not inside else "yes" if f"dgl_heta.{name}" in inside
                         else "in part")


@pytest.mark.parametrize(("path", "name"), sorted(set(PATH.findall(TEXT))))
def test_every_path_and_name_exists(path: str, name: str) -> None:
    """Paths are of the repository or of dgl_heta/; names are functions, classes and methods."""
    file = next((base / path for base in (ROOT, ROOT / "dgl_heta") if (base / path).exists()), None)
    assert file is not None, f"{path} is neither in the repository nor in dgl_heta/"
    body: list[ast.stmt] = ast.parse(file.read_text(encoding="utf-8")).body if name else []
    for part in name.split(".") if name else ():
        there = {node.name: node for node in body
                 if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        assert part in there, f"{path} has no {name}"
        body = there[part].body


def test_the_drawing_shows_the_imports_of_today() -> None:
    script = ROOT / "scripts/draw_architecture.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
