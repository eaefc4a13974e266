"""A short round of every campaign: scripts/campaign, run whole before a release."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import warm

CAMPAIGNS = Path(__file__).parents[2] / "scripts/campaign"
ROUNDS = {"damage": 12, "disk": 1, "fuzz": 80, "kill": 2, "load": 1, "models": 1, "network": 1}
"""Campaign: trials of a short round."""
LAUNCHES = ("disk", "kill", "load", "network")
"""Campaigns whose rounds run where DGL is, which their launches need."""
THOROUGH = ("disk", "load", "models", "network")
"""Campaigns whose short round takes a minute of processors. What they do once is done by tests of
the store (a full disk), of launching (strangers at ports) and of models; `kill` and `damage` hold
that what campaigns share works."""


def marks(name: str) -> list[pytest.MarkDecorator]:
    return [*([pytest.mark.needs("dgl")] if name in LAUNCHES else []),
            *([pytest.mark.thorough] if name in THOROUGH else [])]


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in ROUNDS])
def test_a_short_round_has_no_bad_trial(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(CAMPAIGNS / f"{name}.py"), "--trials", str(ROUNDS[name]), "--seed",
         "1", "--json", str(tmp_path / "found.json"), "--work-dir", str(tmp_path)],
        capture_output=True, text=True, timeout=600)
    if done.returncode == 77:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert json.loads((tmp_path / "found.json").read_text())["trials"] == ROUNDS[name]


def test_every_campaign_can_be_started() -> None:
    """Its imports are there, and its options: what breaks first where the package changes."""
    for name in ROUNDS:
        done = subprocess.run([warm.python(), str(CAMPAIGNS / f"{name}.py"), "--help"],
                              capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        assert "--trials" in done.stdout


def test_every_campaign_has_a_short_round_and_a_line_in_the_readme() -> None:
    scripts = {path.stem for path in CAMPAIGNS.glob("*.py")} - {"common"}
    assert scripts == set(ROUNDS)
    readme = (CAMPAIGNS / "README.md").read_text()
    assert all(f"| `{name}.py` |" in readme for name in scripts)
