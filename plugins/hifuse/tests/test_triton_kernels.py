"""Triton's kernels, without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.plugins import ROOT
from tests.support.waiting import PATIENCE

triton = pytest.importorskip("triton")
HERE = Path(__file__).parent


def said(program: str, tmp_path: Path, **env: str) -> list[str]:
    """Lines that a program printed."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "plugins/hifuse"),
                            os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, str(HERE / program)], capture_output=True, text=True,
                          timeout=PATIENCE, env={**os.environ, "PYTHONPATH": path,
                                                 "TRITON_CACHE_DIR": str(tmp_path), **env})
    assert not done.returncode, done.stderr
    return done.stdout.splitlines()


def test_numbers_are_those_of_pytorchs_operators_by_the_interpreter(tmp_path: Path) -> None:
    assert said("triton_interpreted.py", tmp_path, TRITON_INTERPRET="1") == [
        "sums 2", "means 2", "attention 4"]


@pytest.mark.skipif(not triton.__version__.startswith("2.2."),
                    reason=f"compiling without a GPU is written for Triton 2.2, this is "
                           f"{triton.__version__}")
def test_they_compile_for_gpus_that_are_not_here(tmp_path: Path) -> None:
    assert len(said("triton_compiled.py", tmp_path)) == 12


def test_tensors_in_memory_are_none_of_theirs() -> None:
    from dgl_heta_hifuse.triton_kernels import takes

    assert not takes(torch.zeros(3, 3))
