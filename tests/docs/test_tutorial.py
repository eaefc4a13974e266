"""docs/tutorial.md as its reader follows it: tables of a repository, then its three commands."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks, commands
from tests.support import warm
from tests.support.waiting import PATIENCE

PAGE = ROOT / "docs/tutorial.md"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_three_commands_lead_from_tables_to_predictions_with_ids(tmp_path: Path) -> None:
    """As written, but for one worker, which is quicker, and one epoch."""
    def run(*words: str | Path, cwd: Path = tmp_path) -> None:
        done = subprocess.run(
            words, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE,
            env={**{k: v for k, v in os.environ.items() if not k.startswith("GIT_")},
                 "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull,
                 "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])})
        assert done.returncode == 0, done.stderr

    repository = tmp_path / "repository"
    repository.mkdir()
    run("git", "init", "-q", cwd=repository)
    names = [f"{folder}/n{number}.{ending}" for number in range(10)
             for folder, ending in (("code", "py"), ("text", "md"))]
    for at in range(0, len(names), 4):
        for name in names[at:at + 4]:
            (repository / name).parent.mkdir(exist_ok=True)
            (repository / name).write_text(f"{at}\n")
        run("git", "add", "-A", cwd=repository)
        run("git", "-c", "user.name=a", "-c", f"user.email=author{at % 3}@example.org", "commit",
            "-q", "-m", f"words of {at}", cwd=repository)

    (code,) = [code.text for code in blocks("python") if code.page == PAGE]
    (console,) = [code.text for code in blocks("console") if code.page == PAGE]
    (tmp_path / "tables.py").write_text(code)
    run(warm.python(), "tables.py", repository)
    steps = [[{"2": "1", "train.epochs=20": "train.epochs=1"}.get(word, word) for word in words[1:]]
             for words in commands(console)]
    assert len(steps) == 3
    for words in steps:
        run(warm.python(), "-m", "dgl_heta", *words)
    with open(tmp_path / "classes.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == sorted(names)
    assert {row["class"] for row in rows} <= {".py", ".md"}
    assert all(0.5 <= float(row["probability"]) <= 1 for row in rows)  # the likelier of two
