"""The notebooks of docs/notebooks: they run, and are kept without outputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.support.waiting import PATIENCE

NOTEBOOKS = ROOT / "docs/notebooks"
ANSWERS = {"plan": "736389 boundary nodes\nreplication factor 2.00", "tables": "of 300 are right"}


def test_notebooks_have_no_outputs_and_are_all_run() -> None:
    files = {file.stem: json.loads(file.read_text(encoding="utf-8"))
             for file in NOTEBOOKS.glob("*.ipynb")}
    assert set(files) == set(ANSWERS)
    assert not [cell for file in files.values() for cell in file["cells"]
                if cell.get("outputs") or cell.get("execution_count")]


@pytest.mark.parametrize("name", ["plan", pytest.param("tables", marks=pytest.mark.thorough)])
def test_a_notebook_runs_from_top_to_bottom(name: str, tmp_path: Path) -> None:
    """Its cells are plain Python, so that running them needs no kernel."""
    cells = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True,
        timeout=PATIENCE, env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(
            [str(ROOT), os.environ.get("PYTHONPATH", "")])})
    assert done.returncode == 0, done.stderr + done.stdout
    assert ANSWERS[name] in done.stdout
