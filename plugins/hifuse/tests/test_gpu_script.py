"""The script that counts kernels of a step on a GPU runs on a CPU, too, without DGL."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.plugins import ROOT
from tests.support.waiting import PATIENCE

PROGRAM = """
import runpy, sys
from dgl_heta.system import jit
jit.COMPILES = False  # else the compiled passes of `fused` run, not what runs on a GPU
sys.modules["dgl"] = None
sys.path.insert(0, "scripts/bench")
runpy.run_path("scripts/bench/gpu_merged.py", run_name="__main__")
"""


def script(*options: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "plugins/hifuse"),
                            os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *options], cwd=ROOT, capture_output=True, text=True,
        timeout=PATIENCE, env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""})


def test_it_counts_operators_and_says_that_no_gpu_was_there():
    done = script("--device", "cpu", "--graphs", "mag", "--scale", "0.01", "--rounds", "1",
                  "--seeds", "8", "--fanouts", "1", "1")
    assert done.returncode == 0, done.stderr
    cells = [[cell.strip() for cell in line.split("|")[1:-1]]
             for line in done.stdout.splitlines() if line.startswith("| mag")]
    for model in ("rgcn", "rgat", "hgt"):
        rows = {row[4]: row for row in cells if row[3] == model}
        assert {"torch", "merged"} <= set(rows)
        for row in rows.values():
            assert int(row[5].replace(",", "")) > 0
            assert float(row[6]) > 0
        assert rows["merged"][7:] == ["1.00", "1.00"]
        assert float(rows["torch"][7]) > 1.5  # whole layers are taken at once
    assert "CPU: no figure of a GPU came of this run" in done.stdout
    refused = script()
    assert refused.returncode == 1
    assert "PyTorch sees no GPU here" in refused.stderr
