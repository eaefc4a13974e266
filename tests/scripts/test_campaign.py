"""A short round of every campaign: scripts/campaign, run whole before a release."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CAMPAIGNS = Path(__file__).parents[2] / "scripts/campaign"
ROUNDS = {"damage": 12, "disk": 1, "fuzz": 80, "kill": 2, "load": 1, "models": 1, "network": 1}
"""Campaign: trials of a short round."""
ONCE = ("disk", "kill", "load", "network")
"""Campaigns whose short round takes longer; it runs where DGL is, which their launches need."""


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.needs("dgl") if name in ONCE else ()) for name in ROUNDS])
def test_a_short_round_has_no_bad_trial(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(CAMPAIGNS / f"{name}.py"), "--trials", str(ROUNDS[name]), "--seed",
         "1", "--json", str(tmp_path / "found.json"), "--work-dir", str(tmp_path)],
        capture_output=True, text=True, timeout=600)
    if done.returncode == 77:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert json.loads((tmp_path / "found.json").read_text())["trials"] == ROUNDS[name]


def test_every_campaign_has_a_short_round_and_a_line_in_the_readme() -> None:
    scripts = {path.stem for path in CAMPAIGNS.glob("*.py")} - {"common"}
    assert scripts == set(ROUNDS)
    readme = (CAMPAIGNS / "README.md").read_text()
    assert all(f"| `{name}.py` |" in readme for name in scripts)
