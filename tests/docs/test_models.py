"""The models written in README.md and docs/models.md, as a user would run them."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
from pathlib import Path

import pytest
import torch

from dgl_heta import Edges, Relation
from dgl_heta.models import BlockModel
from dgl_heta.sampling.blocks import Block, RelationBlock
from dgl_heta.store import write_store
from dgl_heta.training.trained_model import load_model
from tests.support import warm
from tests.support.graphs import academic
from tests.support.waiting import PATIENCE

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("page", "model"), [
    ("../README.md", "mine:Mean"),
    pytest.param("models.md", "mymodel:Gated", marks=pytest.mark.thorough)])
def test_a_model_of_the_documentation_runs_on_workers_as_on_one(
        page: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    module, name = model.split(":")
    (code,) = re.findall(rf"```python\n(# {module}\.py.*?)```", text, re.DOTALL)
    (tmp_path / f"{module}.py").write_text(code)
    write_store(academic(), tmp_path / "store")
    losses = []
    for parts in (1, 2):
        sets = [f"model.name={model}", "model.hidden=8", "train.global_batch_size=13",
                "train.fanouts=3,3", "train.dtype=float64", "train.epochs=2", "train.threads=1",
                f"partition.parts={parts}"]
        done = subprocess.run(
            [warm.python(), "-m", "dgl_heta", "train", "store", "--run-dir", f"run-{parts}",
             "--json", *(part for pair in sets for part in ("--set", pair))],
            cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        lines = (tmp_path / f"run-{parts}" / "metrics.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["loss"] for line in lines[:2]])
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)
    with pytest.raises(Exception, match="which a file cannot make dgl-heta import"):
        load_model(tmp_path / "run-1")
    monkeypatch.syspath_prepend(str(tmp_path))
    layer = getattr(importlib.import_module(module), name)
    assert load_model(tmp_path / "run-1", BlockModel("mine", layer)).model is not None
    done = subprocess.run([warm.python(), "-m", "dgl_heta", "predict", "run-2", "--out", "a.npy",
                           "--model", model], cwd=tmp_path, capture_output=True,
                          text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", ["../README.md", "own-loop.md"])
def test_a_loop_of_the_documentation_runs_under_torchrun(page: str, tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(# loop\.py.*?)```",
                         (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    assert len(code.splitlines()) <= 20 or page != "../README.md"
    (tmp_path / "loop.py").write_text(code.replace('"package"', '"paper"') + (
        "import os, sys\nsys.stdout.flush()\nos._exit(0)\n"))  # as the page says
    write_store(academic(), tmp_path / "store")
    for command in (["dgl_heta", "partition", "store", "--out", "data/debian", "--target", "paper",
                     "--parts", "2"],
                    ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "loop.py"]):
        done = subprocess.run([warm.python(), "-m", *command], cwd=tmp_path, capture_output=True,
                              text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
    if page == "own-loop.md":
        assert [line.split()[0] for line in done.stdout.splitlines()] == [*map(str, range(1, 9))]
        assert (tmp_path / "runs/own/checkpoints/epoch-00008").is_dir()


def test_the_table_of_edges_has_every_public_name_with_its_signature_and_shape() -> None:
    text = (DOCS / "models.md").read_text(encoding="utf-8")
    table = re.search(r"^\| attribute or method .*?\n\n", text, re.DOTALL | re.MULTILINE)
    assert table is not None
    rows = dict(re.findall(r"^\| (`.*`) \| (.*) \|$", table[0], re.MULTILINE))
    names = {name: said for cell, said in rows.items() for name in re.findall(r"`(.*?)`", cell)}
    members = {name: value for name, value in vars(Edges).items()
               if not name.startswith("_") and name != "weighted"}
    assert {name.partition("(")[0] for name in names} == {
        *members, "relation", "source", "num_rows"}
    drawn = RelationBlock(Relation("a", "r", "b"), 0, torch.tensor([0, 2, 2, 5]),
                          torch.tensor([0, 3, 1, 1, 2], dtype=torch.int32))
    block = Block(1, {"a": 4, "b": 3}, {"b": 3}, [drawn], {}, True, {}, {})
    edges = Edges(block, drawn, {"a": torch.ones(4, 6), "b": torch.ones(3, 6)})
    sizes = {"S": 4, "N": 3, "E": 5, "H": 2, "width": 6}
    given = {"queries": "NHw", "source": "SH", "destination": "NH", "values": "NH",
             "weights": "EH", "scores": "EH"}
    for name, said in names.items():
        if "(" not in name:
            continue
        method = getattr(edges, name.partition("(")[0])
        shown = ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}".replace(
            "'", '"') for p in inspect.signature(method).parameters.values())
        assert name == f"{method.__name__}({shown})"
        out = method(**{p: torch.ones([sizes["width" if c == "w" else c] for c in given[p]])
                        for p in inspect.signature(method).parameters if p in given})
        shape = re.findall(r"\(([^()]*)\)", said)[-1].split(", ")
        assert list(out.shape) == [sizes[letter] for letter in shape], name


def test_every_model_setting_and_task_of_the_documentation_exists() -> None:
    from dgl_heta.hooks.manager import Plugins
    from dgl_heta.settings import TaskSettings, keys

    text = (DOCS / "models.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \| .* \d{4} \|$", text, re.MULTILINE)
    there = [name for name, provider in Plugins().providers("model").items()
             if provider.source in ("built in", "dgl-heta-precomputed")]
    assert sorted(listed) == sorted(there)
    named = set(re.findall(r"`((?:task|train|partition|model)\.(?!safetensors)\w+)", text))
    assert named <= set(keys()), named - set(keys())
    kinds = re.search(r"Literal\[(.*?)\]", str(TaskSettings.model_fields["kind"].annotation))
    assert kinds
    for kind in re.findall(r"'(\w+)'", kinds[1]):
        assert f"| `{kind}` |" in text
