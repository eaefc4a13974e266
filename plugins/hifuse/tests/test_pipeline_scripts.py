"""The pipeline in a plain DistDGL script, on two hosts."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support import warm
from tests.support.waiting import PATIENCE, PROMPT

SCRIPT = Path(__file__).with_name("pipelined_train.py")
pytestmark = pytest.mark.needs("dgl", "hosts")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.dist_reference import parts, whole_graph

    return parts(whole_graph(), 2, tmp_path_factory.mktemp("parts"))


def launch(config: Path, out: Path, hifuse_path: str, *more: object, samplers: int = 0,
           settings: tuple[str, ...] = ("train.learnable=exact",)
           ) -> subprocess.CompletedProcess[str]:
    out.mkdir()
    command = [warm.python(), "-m", "dgl_heta", "launch", "--hosts", 2, "--part-config", config,
               "--num-omp-threads", 1, "--num-samplers", samplers, "--stop-after", PATIENCE]
    for setting in settings:
        command += ["--set", setting]
    command += ["--", warm.with_dgl(), SCRIPT, "--ip-config", "{ip_config}", "--part-config",
                "{part_config}", "--out", out, *more]
    return subprocess.run([str(word) for word in command], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False,
                          timeout=PATIENCE + PROMPT,
                          env={**os.environ, "PYTHONPATH": hifuse_path})


def saved_by(out: Path) -> list[dict[str, np.ndarray]]:
    return [dict(np.load(out / f"{rank}.npz")) for rank in range(2)]


@pytest.fixture(scope="module")
def asked(config: Path, hifuse_path: str, tmp_path_factory: pytest.TempPathFactory
          ) -> list[dict[str, np.ndarray]]:
    """Results of the script without the pipeline, which a source that is named overrules."""
    out = tmp_path_factory.mktemp("asked") / "run"
    done = launch(config, out, hifuse_path, "--num-workers", 2,
                  settings=("train.learnable=exact", "train.batches=on-demand"))
    assert done.returncode == 0, done.stdout
    assert "ahead of time" not in done.stdout
    assert done.stdout.count("no sampling workers are started") == 1
    return saved_by(out)


@pytest.mark.parametrize("by", [
    "num_workers", pytest.param("--num-samplers", marks=pytest.mark.thorough)])
def test_a_script_computes_the_same_with_batches_made_ahead(
        config: Path, hifuse_path: str, asked, tmp_path: Path, by: str) -> None:
    """An epoch that is left early, evaluation between, two loaders at once; nothing of DGL's RPC is
    used by other threads, and none is left."""
    if by == "num_workers":
        done = launch(config, tmp_path / "run", hifuse_path, "--num-workers", 2)
    else:
        done = launch(config, tmp_path / "run", hifuse_path, samplers=1, settings=(
            "train.learnable=exact", "plugins.pipeline.depth=4"))
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("batches are made ahead of time, on threads (train.batches = "
                             "pipeline)") == 1
    assert "of sampling ahead of time" in done.stdout
    for ahead, want in zip(saved_by(tmp_path / "run"), asked, strict=True):
        for name in {*want} - {"seen", "left"}:
            np.testing.assert_array_equal(ahead[name], want[name], err_msg=name)
        assert want["rpc"].tolist() == ["MainThread"]
        assert "dgl-heta sample" in ahead["seen"].tolist()
        assert "dgl-heta sample" not in [*ahead["left"].tolist(), *want["seen"].tolist()]


def test_an_error_while_sampling_ends_all_trainers_with_its_message(
        config: Path, hifuse_path: str, tmp_path: Path) -> None:
    """Here of a batch that no trainer takes, because all leave the epoch before it."""
    begin = time.monotonic()
    done = launch(config, tmp_path / "run", hifuse_path, "--fail", "--num-workers", 2)
    assert done.returncode != 0
    assert "the disk of trainer 1 is gone" in done.stdout
    assert time.monotonic() - begin < PROMPT
