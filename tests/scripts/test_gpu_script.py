"""`scripts/gpu.sh`: what it says before it runs, and on the pretended device what it writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.plugins import ROOT
from tests.support.waiting import PATIENCE, PROMPT, until


def started(*options: str | Path, python: str = sys.executable) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [ROOT / "scripts/gpu.sh", *options], text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**os.environ, "PYTHON": python, "CUDA_VISIBLE_DEVICES": ""})


def ended(*options: str | Path, python: str = sys.executable) -> tuple[int, str, str]:
    """Exit status, output and errors."""
    child = started(*options, python=python)
    out, err = child.communicate(timeout=PATIENCE)
    return child.returncode, out, err


def test_the_plan_has_minutes_and_what_a_bare_machine_lacks(tmp_path: Path) -> None:
    bare = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    status, out, _ = ended("--dry-run", "--minutes", "6", "--only", "tests", "layers",
                           python=str(bare / "bin/python"))
    assert status == 0
    stages = [line.split(":")[0] for line in out.splitlines() if "at most" in line]
    assert stages == ["tests", "layers", "all"]
    assert "all: at most 6 minutes" in out
    assert "missing here: dgl-heta, dgl-heta-hifuse, torch>=2.2, numpy" in out
    assert "pip wheel --no-deps --wheel-dir wheels . ./plugins/hifuse" in out
    (download,) = (line for line in out.splitlines() if "pip download" in line)
    for word in ("'pydantic>=2.7,<3'", "'pytest>=8,<10'", "--only-binary=:all:",
                 f"--python-version 3.{sys.version_info.minor} "):
        assert word in download
    assert "torch" not in download
    assert "nothing is missing here" in ended("--dry-run")[1]


@pytest.mark.parametrize(("options", "message"), [
    (["--out", "new", "--minutes", "1"], "--minutes is 1; it must be 3 to 60"),
    (["--out", "full"], "--out: full is not an empty directory"),
    (["--out", "new", "--wheels", "full"], "--wheels: there are no wheels (*.whl) in full"),
    (["--out", "new", "--only", "benchmarks"], "invalid choice: 'benchmarks'"),
    ([], "--out is missing: a new directory for all results"),
    (["--out", "new"], "PyTorch sees no GPU here"),
])
def test_what_cannot_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                    options: list[str], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    status, _, err = ended(*options)
    assert status == 2
    assert message in err


TRIAL = ["--pretend", "--minutes", "10", "--select", "cached_on_a_gpu or loop", "--step-options",
         "--scale", "0.005", "--case-seconds", "0.1", "--graphs", "mag", "--models", "rgcn",
         "--variants", "default", "CPU"]


@pytest.mark.thorough
@pytest.mark.needs("pretended")
def test_a_trial_writes_what_it_found(tmp_path: Path) -> None:
    """Where a GPU is pretended; there, too, all is well only if a step's loss is the CPU's."""
    out = tmp_path / "out"
    status, said, err = ended("--out", out, *TRIAL)
    assert status == 0, said + err
    summary = json.loads((out / "summary.json").read_text())
    assert summary["passed"]
    assert summary["environment"]["pretended"]
    assert summary["environment"]["cores"]
    assert summary["tests"] == {"passed": 12, "not_passed": []}
    default, on_cpu = summary["steps"]
    assert (default["variant"], on_cpu["variant"]) == ("default", "CPU")
    assert default["loss_is_the_cpus"]
    assert default["kernels"] > 100
    assert default["ms"] > 0
    assert {file.name for file in out.iterdir()} == {
        "environment.json", "summary.json", "summary.md", "tests.jsonl", "tests.log",
        "steps.jsonl", "steps.log", "layers.log"}
    assert said.endswith((out / "summary.md").read_text() + "\n")
    assert "PRETENDED: no figure of a GPU" in said


@pytest.mark.thorough
@pytest.mark.needs("pretended")
def test_an_interrupted_trial_tells_what_it_has_and_leaves_no_process(tmp_path: Path) -> None:
    out = tmp_path / "out"
    child = started("--out", out, "--pretend", "--only", "tests", "--select", "gpu")
    assert until(lambda: (out / "tests.jsonl").exists(), PATIENCE)
    child.send_signal(signal.SIGINT)
    said, err = child.communicate(timeout=PROMPT)
    assert child.returncode == 1
    assert "interrupted" in err
    summary = json.loads((out / "summary.json").read_text())
    assert summary["stages"]["tests"]["status"] == "interrupted"
    assert summary["tests"]["passed"]
    assert "interrupted" in said
    begun = time.time()
    assert until(lambda: not using(out), PROMPT), f"left after {time.time() - begun:.0f} s"


def using(out: Path) -> list[str]:
    """Processes that write there."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            text = environ.read_bytes()
        except OSError:
            continue
        if f"HETA_TESTS_RESULTS={out}/".encode() in text:
            found.append(environ.parent.name)
    return found
