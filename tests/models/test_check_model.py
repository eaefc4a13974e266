"""`dgl-heta check-model`: a right model agrees, a wrong one is named, and files of code are."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from dgl_heta.errors import InputError
from dgl_heta.settings import load_settings
from tests.support import warm
from tests.support.waiting import PATIENCE

MODELS = """
from torch import nn
from dgl_heta import HGNNLayer

class Mean(HGNNLayer):
    def __init__(self, spec):
        super().__init__(width=spec.hidden)
        self.weight = nn.Linear(spec.hidden, spec.hidden)
        self.dropout = nn.Dropout(0.5)

    def aggregate(self, edges):
        return self.dropout(self.weight(edges.reduce("mean")))

class Normed(Mean):
    def __init__(self, spec):
        super().__init__(spec)
        self.norm = nn.BatchNorm1d(spec.hidden)

    def update(self, ntype, aggregated, state):
        return self.norm(aggregated)

class Narrow(Mean):
    def aggregate(self, edges):
        return super().aggregate(edges)[:, 1:]
"""


def checked(directory: Path, model: str, *options: str) -> subprocess.CompletedProcess[str]:
    (directory / "mine.py").write_text(MODELS)
    return subprocess.run([warm.python(), "-m", "dgl_heta", "check-model", model, "--workers", "2",
                           "--set", "model.layers=1", *options], cwd=directory,
                          capture_output=True, text=True, timeout=PATIENCE)


def test_a_right_model_of_a_file_agrees(tmp_path: Path) -> None:
    done = checked(tmp_path, "./mine.py:Mean")
    assert done.returncode == 0, done.stderr
    assert "on 2 workers what it does on one" in done.stdout


def test_a_model_whose_rows_depend_on_each_other_differs(tmp_path: Path) -> None:
    done = checked(tmp_path, "mine:Normed", "--json")
    assert done.returncode == 1, done.stderr
    assert "has BatchNorm1d 'layers.0.norm'" in done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert not found["exact"]
    assert {d["what"] for d in found["differences"]} >= {"loss", "gradient"}
    assert "computes something else on 2 workers" in done.stderr


def test_an_aggregation_of_another_width_names_relation_and_shapes(tmp_path: Path) -> None:
    done = checked(tmp_path, "mine:Narrow")
    assert done.returncode == 2, done.stderr
    assert "AGG_r of 'author writes paper' returned (" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("model", "message"), [
    ("./mine.py:Maen", "did you mean 'Mean'"), ("./other.py:Mean", "there is no file"),
    (".mine:Mean", "cannot be imported")])
def test_a_model_that_is_not_there_is_one_line(tmp_path, monkeypatch, model, message) -> None:
    from dgl_heta.hooks.manager import Plugins
    from dgl_heta.models import find_model

    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MODELS)
    with pytest.raises(InputError, match=message):
        find_model(Plugins(guests=False), model)


@pytest.mark.parametrize(("text", "message"), [
    ("x = 1\nclass Net(:\n", r"invalid syntax \(.*mine\.py, line 2\)"),
    ("x = 1\ny = 1 / 0\n", r"ZeroDivisionError: division by zero \(.*mine\.py, line 2\)"),
    ("import torch\ntorch.zros(3)\n", r"no attribute 'zros' \(.*mine\.py, line 2\)"),
    ("import no_such_module\n", "No module named 'no_such_module'"),
])
@pytest.mark.parametrize("name", ["./mine.py:Net", "mine_{}:Net"])
def test_what_fails_at_import_is_one_line_with_its_place(tmp_path, monkeypatch, text, message, name
                                                         ) -> None:
    from dgl_heta.hooks.manager import Plugins
    from dgl_heta.models import find_model

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    module = f"mine_{tmp_path.name}"
    for file in ("mine", module):
        (tmp_path / f"{file}.py").write_text(text)
    with pytest.raises(InputError, match=message.replace("mine", "mine.*")) as refused:
        find_model(Plugins(guests=False), name.format(tmp_path.name))
    assert "\n" not in str(refused.value)


def test_a_file_of_settings_names_no_file_of_code(tmp_path: Path) -> None:
    file = tmp_path / "heta.toml"
    file.write_text('[model]\nname = "./mine.py:Net"\n')
    with pytest.raises(InputError, match="the command line alone"):
        load_settings(file, environ={})
    with pytest.raises(InputError, match="the command line alone"):
        load_settings(environ={"DGL_HETA_MODEL__NAME": "./mine.py:Net"})
    assert load_settings(overrides=["model.name=./mine.py:Net"], environ={}).model.name
