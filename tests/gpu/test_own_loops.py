"""Loops of one's own and PyG's models on a GPU, beside the CPU: on a real one by `scripts/gpu.sh`,
elsewhere on the pretended one."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dgl_heta.partition.directory import write_partition
from dgl_heta.planning.making import make_plan
from dgl_heta.store import Store, write_store
from tests.support.graphs import academic
from tests.support.plugins import ROOT
from tests.support.waiting import PATIENCE

LOOPS = pytest.mark.parametrize(("loop", "kernel"), [
    ("auto", "merged"), ("fused", "fused"), pytest.param("pyg", None, marks=pytest.mark.skipif(
        importlib.util.find_spec("torch_geometric") is None,
        reason="PyTorch Geometric is not installed"))])


@pytest.mark.gpu
@LOOPS
def test_a_loop_has_the_losses_that_it_has_on_a_cpu(tmp_path: Path, loop: str, kernel: str | None
                                                    ) -> None:
    check(tmp_path, loop, kernel)


@pytest.mark.needs("pretended")
@LOOPS
def test_it_has_them_where_a_gpu_is_pretended(tmp_path: Path, loop: str, kernel: str | None
                                              ) -> None:
    check(tmp_path, loop, kernel)


def check(tmp_path: Path, loop: str, kernel: str | None) -> None:
    write_store(academic(papers=120), tmp_path / "store")
    store = Store(tmp_path / "store")
    write_partition(store, make_plan(store.schema, ["paper"], 2, 1), tmp_path / "part")

    def run(device: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "tests.gpu.own_loop", str(tmp_path / "part"), device, loop],
            cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    want, got = run("cpu"), run("cuda")
    assert (want["devices"], got["devices"]) == (["cpu"], ["cuda"])
    assert got["losses"] == pytest.approx(want["losses"], rel=1e-10)
    assert kernel in (None, got["kernel"])
