"""`dgl-heta prove` on emulated hosts: right scripts are proved, wrong ones are caught."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import warm
from tests.support.cuts import cut_partition
from tests.support.dist_reference import parts, whole_graph
from tests.support.waiting import PATIENCE, PROMPT

pytestmark = pytest.mark.needs("hosts")
ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests/support/prove_script.py"
BENCH = ROOT / "scripts/bench/systems/distdgl/train.py"


@dataclass
class Proved:
    status: int
    text: str
    found: dict[str, Any]

    @property
    def error(self) -> str:
        return [line for line in self.text.splitlines() if line.startswith("error: ")][-1]

    def kinds(self, step: str = "training") -> set[str]:
        return {each["kind"] for each in self.found["arrays"] if each["step"] == step}


@pytest.fixture(scope="module")
def part_config(tmp_path_factory) -> Path:
    return parts(whole_graph(), 2, tmp_path_factory.mktemp("prove") / "parts")


def prove(config: Path, script: Path, *arguments: str, options: tuple[str, ...] = ()
          ) -> Proved:
    command = [warm.python(), "-m", "dgl_heta", "prove", "--hosts", "2", "--part-config", config,
               "--num-omp-threads", "1", "--stop-after", PATIENCE, "--json", *options, "--",
               warm.with_dgl(), script, "--ip-config", "{ip_config}", "--part-config",
               "{part_config}", *arguments]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          timeout=2 * PATIENCE + PROMPT, errors="replace", check=False)
    lines = done.stdout.splitlines()
    return Proved(done.returncode, done.stdout + done.stderr, json.loads(lines[-1]) if lines
                  else {})


def test_a_right_script_is_proved(part_config, tmp_path):
    """Dropout is on; the head and the embeddings begin with zeros."""
    kept = tmp_path / "kept"
    result = prove(part_config, SCRIPT, options=("--keep", str(kept)))
    assert result.status == 0, result.text
    assert result.found["status"] == "proved"
    assert result.kinds() >= {"input", "layer", "output", "loss", "gradient", "parameter", "row",
                              "state"}
    assert result.kinds("evaluation") >= {"input", "layer", "output"}
    assert {each["trainer"] for each in result.found["arrays"]} == {0, 1}
    assert max(each["difference"] for each in result.found["arrays"]) > 0  # of rounding
    assert "the script has reached its end" not in result.text
    assert {f.name for f in kept.iterdir()} == {"raf", "reference"}


@pytest.mark.thorough
def test_a_script_is_proved_in_double_with_two_trainers_per_host(part_config):
    result = prove(part_config, BENCH, "--graph-name", "academic", "--target", "paper",
                   "--classes", "4", "--fanouts", "3,3", "--batch-size", "8", "--evaluate",
                   "--hidden", "8", "--model", "hgt", "--heads", "2",
                   options=("--num-trainers", "2", "--double"))
    assert result.status == 0, result.text
    assert {each["tolerance"] for each in result.found["arrays"] if each["kind"] in (
        "output", "gradient", "loss") and each["step"] == "training"} == {1e-9}
    assert {each["trainer"] for each in result.found["arrays"]} == {0, 1, 2, 3}
    assert result.kinds("evaluation") >= {"output"}


def test_a_script_without_replication_is_proved_in_double(tmp_path):
    """With relations that are cut at random: the same draws, the same numbers."""
    whole = parts(whole_graph(), 2, tmp_path / "whole")
    result = prove(cut_partition(whole, "permuted", tmp_path / "parts"), BENCH, "--graph-name",
                   "academic", "--target", "paper", "--classes", "4", "--fanouts", "3,3",
                   "--batch-size", "8", "--evaluate", "--hidden", "8", options=("--double",))
    assert result.status == 0, result.text
    assert {each["tolerance"] for each in result.found["arrays"] if each["kind"] in (
        "output", "gradient", "loss") and each["step"] == "training"} == {1e-9}
    assert {each["trainer"] for each in result.found["arrays"]} == {0, 1}
    assert result.kinds("evaluation") >= {"output"}


def test_a_script_that_looks_at_all_rows_together_is_caught_where_it_does(part_config):
    result = prove(part_config, SCRIPT, "--case", "centred")
    assert result.status == 1, result.text
    assert result.found["status"] == "differs"
    assert result.error.startswith("error: output Net, node type 'paper' differs by ")
    assert "the first difference in the order of execution is at result of Net.layers.0, layer 1" \
        in result.error
    good = [each for each in result.found["arrays"] if each["name"] == "Net.layers.0.conv"
            and each["step"] == "training"]
    assert good
    assert not any(each["differs"] for each in good)


@pytest.mark.thorough
def test_rows_that_are_taken_for_another_batch_are_caught(part_config):
    """S2 switched off: the next batch is drawn before the rows of a DistEmbedding are read. Caught
    here alone, where rows after the step are compared; a proof inside a run has no step."""
    result = prove(part_config, SCRIPT, "--case", "ahead", "--off", "s2")
    assert result.status == 1, result.text
    first = [each for each in result.found["arrays"] if each["differs"]]
    assert {"row", "state"} & {each["kind"] for each in first}, result.error
    assert "table-" in result.error


@pytest.mark.thorough
def test_random_numbers_are_named_and_prove_nothing(part_config):
    result = prove(part_config, SCRIPT, "--case", "noise")
    assert result.status == 3, result.text
    assert "Net.layers.0.after" in result.error
    assert "random numbers" in result.error


@pytest.mark.thorough
def test_norms_and_a_missing_evaluation_are_said(part_config):
    """Labels are an input, too, but for those of all trainers' seeds."""
    result = prove(part_config, SCRIPT, "--case", "norm, labels, no evaluation")
    assert result.status == 0, result.text
    notes = " ".join(result.found["notes"])
    assert "Net.layers.0.after" in notes
    assert "no evaluation seen" in notes


def test_a_missing_script_is_named_at_once(part_config, tmp_path):
    done = subprocess.run(
        [warm.python(), "-m", "dgl_heta", "prove", "--hosts", "2", "--part-config",
         str(part_config), "--", "python", "trian.py"], capture_output=True, text=True,
        timeout=PROMPT, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: there is no script {tmp_path / 'trian.py'}")


def test_hosts_that_are_other_machines_are_refused(part_config, tmp_path):
    file = tmp_path / "ip_config.txt"
    file.write_text("192.0.2.1\n192.0.2.2\n")
    done = subprocess.run(
        [warm.python(), "-m", "dgl_heta", "prove", "--ip-config", str(file), "--part-config",
         str(part_config), "--", warm.with_dgl(), str(SCRIPT)], capture_output=True, text=True,
        timeout=PROMPT, check=False)
    assert done.returncode == 2
    assert "prove wants all hosts on this machine" in done.stderr
