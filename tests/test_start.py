"""Starting is quick: what is imported for nothing is what would make it slow.

Seconds depend on the machine and on what else it does; the list of modules does not.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def third_party(code: str) -> set[str]:
    """The packages, other than Python's own and this one, that a program imports."""
    before = "import sys; before = set(sys.modules)\n"
    after = ("\nimport sys; names = {name.partition('.')[0] for name in set(sys.modules) - before}"
             "\nprint('IMPORTED', *names - sys.stdlib_module_names)")
    done = subprocess.run([sys.executable, "-c", before + code + after], capture_output=True,
                          text=True, check=True)
    return set(done.stdout.rpartition("IMPORTED")[2].split())


def test_import_dgl_heta_imports_nothing_but_itself() -> None:
    """`python -c "import dgl_heta"` takes less than 50 ms where nothing else runs."""
    assert third_party("import dgl_heta") == {"dgl_heta"}


def of_command(*arguments: str) -> set[str]:
    return third_party(f"import sys; sys.argv = ['dgl-heta', *{arguments}]\n"
                       "from dgl_heta.cli import main\n"
                       "try: main()\n"
                       "except SystemExit: pass")


def test_help_imports_nothing_but_what_draws_it() -> None:
    """`dgl-heta --help` takes less than half a second where nothing else runs."""
    assert of_command("--help") <= {
        "dgl_heta", "pluggy", "typer", "rich", "click", "markdown_it", "mdurl", "pygments",
        "shellingham", "typing_extensions", "annotated_doc",
        "attr"}  # rich imports it where it is there


@pytest.mark.parametrize("command", [("plan", "debian"), ("partition", "debian", "--out")])
def test_plans_and_partitions_are_made_without_torch(command: tuple[str, ...],
                                                     tmp_path: Path) -> None:
    out = [str(tmp_path / "out")] if command[-1] == "--out" else []
    assert not of_command(*command, *out, "--json") & {"torch", "dgl", "safetensors"}


@pytest.mark.parametrize("command", ["plan", "partition", "train", "predict", "profile", "run",
                                     "inspect", "plugins", "datasets", "settings", "launch"])
def test_help_of_a_command_imports_nothing_that_computes(command: str) -> None:
    assert not of_command(command, "--help") & {
        "numpy", "torch", "dgl", "numba", "networkx", "matplotlib", "pandas", "safetensors"}
