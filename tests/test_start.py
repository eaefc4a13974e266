"""Starting is quick: what is imported for nothing is what would make it slow.

Seconds depend on the machine and on what else it does; the list of modules does not.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dgl_heta.store import write_store
from tests.support.graphs import academic


def imported(code: str, **environment: str) -> set[str]:
    """The modules, other than Python's own, that a program imports."""
    before = "import sys; before = set(sys.modules)\n"
    after = "\nimport sys; print('IMPORTED', *set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", before + code + after], capture_output=True,
                          text=True, check=True, env={**os.environ, **environment})
    return {name for name in done.stdout.rpartition("IMPORTED")[2].split()
            if name.partition(".")[0] not in sys.stdlib_module_names}


def third_party(code: str) -> set[str]:
    """The packages, other than Python's own, that a program imports."""
    return {name.partition(".")[0] for name in imported(code)}


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


def test_what_plans_and_opens_stores_imports_no_numba() -> None:
    """Plugins may; without them `dgl-heta plan` takes half the time and memory."""
    assert "numba" not in third_party(
        "import dgl_heta.cli.plan_command, dgl_heta.cli.requests, dgl_heta.store, "
        "dgl_heta.planning.making")


def test_training_imports_neither_the_compiler_of_torch_nor_what_draws(tmp_path: Path) -> None:
    """torch's optimizers would import torch._dynamo, and a gradient of given gradients sympy: a
    second and 100 MB in each worker. The launcher draws the report; it needs no compiler either."""
    write_store(academic(), tmp_path / "store")
    launcher = imported(f"""
import sys
sys.argv = ["dgl-heta", "train", {str(tmp_path / "store")!r}, "--parts", "2", "--json",
            "--run-dir", {str(tmp_path / "run")!r}, "--set", "train.epochs=1"]
from dgl_heta.cli import main
try: main()
except SystemExit as ended: assert not ended.code""")
    again = tmp_path / "again"
    again.mkdir()
    worker = f"""
from pathlib import Path
from dgl_heta.launch.worker import run
from dgl_heta.system.checksums import read_signed
job = read_signed(Path({str(tmp_path / "run" / "job.json")!r}), "")
assert run(job | {{"run_dir": {str(again)!r}}}, lambda event: None)["proof"]["steps"]"""
    with ThreadPoolExecutor() as pool:
        workers = pool.map(lambda rank: imported(
            worker, RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2",
            DGL_HETA_RENDEZVOUS=str(again / "meeting"), GLOO_SOCKET_IFNAME="lo"), range(2))
    compiler = {"torch._dynamo", "torch._inductor", "sympy", "transformers"}
    assert not launcher & (compiler | {"dgl", "pandas", "networkx", "torch.distributed.run"})
    for modules in workers:
        assert "torch.distributed" in modules
        assert not modules & (compiler | {
            "dgl", "pandas", "networkx", "matplotlib", "jinja2", "rich", "typer", "pyarrow", "PIL",
            "torch.utils.tensorboard"})
