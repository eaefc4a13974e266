"""scripts/mutate.py: its mistakes can be put in, and are noticed or not as tests pass or fail."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import PATIENCE

SCRIPT = Path(__file__).parents[2] / "scripts/mutate.py"


def mutate(*words: object) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    return subprocess.run([sys.executable, SCRIPT, *map(str, words)], capture_output=True,
                          text=True, timeout=PATIENCE, env=environment)


def test_the_text_of_every_mutation_is_there_once() -> None:
    done = mutate("--dry-run")
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(r"(\d+) mutations; each text is there once\n", done.stdout)
    assert found
    assert int(found[1]) >= 100
    done = mutate("nowhere", "--dry-run")
    assert (done.returncode, done.stderr) == (
        2, "error: there are no mutations 'nowhere', but device, mended, numbers, unsaid\n")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    path = tmp_path / "tree"
    (path / "dgl_heta").mkdir(parents=True)
    (path / "dgl_heta/add.py").write_text("def add(a, b):\n    return a + b  # sum\n")
    (path / "test_add.py").write_text(
        "from dgl_heta.add import add\n\n\ndef test_sum():\n    assert add(1, 2) == 3\n"
        "\n\ndef test_zero():\n    assert add(0, 0) == 0\n")
    subprocess.run(["git", "init", "-q", str(path)], check=True)
    return path


def table(tree: Path, **tests: str) -> list[object]:
    """The options for a table of one mistake, with several tests of it each by a name."""
    file = tree.with_name("table.toml")
    file.write_text("".join(
        f"[[mutation]]\nid = '{id}'\nfile = 'add.py'\nold = 'a + b'\nnew = 'a - b'\n"
        f"breaks = 'sums'\ntests = ['{test}']\n" for id, test in tests.items()))
    return ["--tree", tree, "--table", file, "--json", tree.with_name("found.json")]


def test_a_mistake_is_caught_by_a_test_that_fails_and_taken_out_again(tree: Path) -> None:
    """And a test that does not run, or passes, has caught nothing."""
    before = (tree / "dgl_heta/add.py").read_text()
    options = table(tree, zero="test_add.py::test_zero", minus="test_add.py",
                    none="test_add.py::no")
    done = mutate(*options)
    assert done.returncode == 1, done.stderr
    found: list[dict[str, Any]] = json.loads(tree.with_name("found.json").read_text())
    assert [(each["id"], each["outcome"]) for each in found] == [
        ("zero", "not caught"), ("minus", "caught"), ("none", "broken")]
    assert found[1]["by"] == "test_add.py::test_sum"
    assert (tree / "dgl_heta/add.py").read_text() == before
    assert mutate(*options, "--only", "minus").returncode == 0
    assert mutate(*options, "--only", "minus", "--unchanged").returncode == 0


def test_a_mistake_that_is_said_to_change_nothing_must_not_be_noticed(tree: Path) -> None:
    options = table(tree, zero="test_add.py::test_zero", minus="test_add.py")
    file = tree.with_name("table.toml")
    file.write_text(file.read_text().replace("tests =", "unseen = 'so'\ntests ="))
    assert mutate(*options, "--only", "zero").returncode == 0
    assert mutate(*options, "--only", "minus").returncode == 1


def test_what_cannot_be_put_in_is_named(tree: Path) -> None:
    options = table(tree, minus="tests/gone.py")
    (tree / "dgl_heta/more.py").write_text("def more(a, b):\n    return a + b\n")
    done = mutate(*options)
    assert done.returncode == 2
    assert "dgl_heta/add.py, dgl_heta/more.py (2 times), but must be once" in done.stderr
    assert "minus: there is no tests/gone.py" in done.stderr
    assert "unknown mutation plus; --list shows all" in mutate(*options, "--only", "plus").stderr
