"""scripts/mutate.py: its mistakes can be put in, and are noticed or not as tests pass or fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.mutate import Mutation, WrongInput, check, find, read_table, try_mutation


def test_the_text_of_every_mutation_is_there_once() -> None:
    mutations = read_table()
    assert check(mutations) == []
    assert len(mutations) >= 50


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "dgl_heta").mkdir()
    (tmp_path / "dgl_heta/add.py").write_text("def add(a, b):\n    return a + b  # sum\n")
    (tmp_path / "test_add.py").write_text(
        "from dgl_heta.add import add\n\n\ndef test_sum():\n    assert add(1, 2) == 3\n"
        "\n\ndef test_zero():\n    assert add(0, 0) == 0\n")
    return tmp_path


def mutation(old: str, new: str, *tests: str) -> Mutation:
    return Mutation("minus", "add.py", old, new, "", tests)


def test_a_mistake_is_caught_by_a_test_that_fails_and_taken_out_again(tree: Path) -> None:
    before = (tree / "dgl_heta/add.py").read_text()
    minus = mutation("a + b", "a - b", "test_add.py")
    found = try_mutation(minus, tree, 60, unchanged=False)
    assert (found.outcome, found.by) == ("caught", "test_add.py::test_sum")
    assert found.file == "dgl_heta/add.py"
    zero = mutation("a + b", "a - b", "test_add.py::test_zero")
    assert try_mutation(zero, tree, 60, unchanged=False).outcome == "not caught"
    assert try_mutation(minus, tree, 60, unchanged=True).outcome == "not caught"
    assert (tree / "dgl_heta/add.py").read_text() == before


def test_a_test_that_does_not_run_has_caught_nothing(tree: Path) -> None:
    found = try_mutation(mutation("a + b", "a - b", "test_other.py"), tree, 60, unchanged=False)
    assert found.outcome == "broken"


@pytest.mark.parametrize(("old", "message"), [("a * b", "no file"), ("a", "3 times|4 times")])
def test_a_text_that_is_not_there_once_is_named(tree: Path, old: str, message: str) -> None:
    with pytest.raises(WrongInput, match=message):
        find(mutation(old, "x"), tree)
    assert "there is no tests/gone.py" in check([mutation("a + b", "x", "tests/gone.py")], tree)[0]
    assert "is the old one" in check([mutation("a + b", "a + b")], tree)[0]
