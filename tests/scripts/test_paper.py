"""scripts/bench/paper.py: figures by name, the paper's numbers beside ours, what is missing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.plugins import ROOT
from tests.support.waiting import PATIENCE

SCRIPT = ROOT / "scripts/bench/paper.py"
REFERENCE = """
import sys
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
import train
import dgl, torch
torch.manual_seed(0)
graph = dgl.heterograph({
    ("a", "r", "b"): (torch.randint(5, (12,)), torch.randint(4, (12,))),
    ("b", "s", "b"): (torch.randint(4, (9,)), torch.randint(4, (9,)))})
joint = train.Joint(SimpleNamespace(etypes=["r", "s"]), 2, 3)
rows = {t: (torch.randn(graph.num_nodes(t), 6), torch.randn(graph.num_nodes(t), 6)) for t in "ab"}
query = {t: torch.randn(graph.num_nodes(t), 6) for t in "ab"}
out = joint(graph, (rows, query))["b"]
for node in range(4):
    scores, values = [], []
    for src, etype, _ in graph.canonical_etypes:
        own, (u, v) = joint.sums.mods[etype].attention, graph.edges(etype=etype)
        for end in u[v == node]:
            key, value = (x[end].view(2, 3) for x in rows[src])
            scores.append((torch.einsum("hd,hde->he", key, own.key) * query["b"][node].view(2, 3)
                           ).sum(1) * own.prior / 3 ** 0.5)
            values.append(torch.einsum("hd,hde->he", value, own.value))
    weights = torch.softmax(torch.stack(scores), 0)[..., None]
    torch.testing.assert_close(out[node], (weights * torch.stack(values)).sum(0).flatten())
"""


def paper(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *map(str, words)], capture_output=True,
                          text=True, timeout=PATIENCE)


def test_a_figure_stands_beside_the_papers_numbers_and_what_is_missing_is_listed(
        tmp_path: Path) -> None:
    done = paper("heta-fig6", "heta-prop2", "hifuse-fig10", "--quick", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "heta-fig6.json").read_text())
    for row in found["rows"]:
        (ours,), said = row["ours"]["all vertices and links, as here"], row["paper"]
        assert ours == pytest.approx(said["all vertices and links, as here"], rel=0.03)
    assert len(found["rows"]) == 3
    assert found["quick"]
    one, _ = json.loads((tmp_path / "heta-prop2.json").read_text())["measured"]
    assert one["machine"]["versions"]["commit"]
    assert "all" in one["cores_busy_elsewhere"]
    page = (tmp_path / "heta-fig6.md").read_text()
    assert "quick: not a result" in page
    assert "(heta-fig6.svg)" in page
    assert "commit" not in page  # which is computed
    assert (tmp_path / "heta-fig6.svg").exists()
    assert "--gpu DIR" in (tmp_path / "hifuse-table1.md").read_text()
    index = (tmp_path / "README.md").read_text()
    assert "heta-fig6" in index
    assert "hifuse-table1" in index  # which fig10 is a part of


def test_a_run_that_ended_early_goes_on_where_it_was(tmp_path: Path) -> None:
    """What is measured is kept; pages show it, and list what is not."""
    said = []
    for options in (("--quick", "heta-example"), ("--quick", "heta-example"),
                    ("--quick", "--again", "heta-example"),
                    ("--quick", "--kept", "heta-example", "heta-fig4")):
        done = paper(*options, "--out", tmp_path)
        assert done.returncode == 0, done.stderr
        said.append("measured before, at commit" in done.stderr)
    assert said == [False, True, False, True]
    first, second = (" ".join((tmp_path / f"heta-{name}.md").read_text().split())
                     for name in ("example", "fig4"))
    assert "DistDGL METIS" in first
    assert "not measured" not in first
    assert "--cohesion 0 0.5 0.95 --shapes mag --models rgcn" in second
    assert "it was not measured yet" in second
    (kept,) = (tmp_path / "measured").iterdir()
    kept.write_text(json.dumps({"failed": "RuntimeError: of mine"}))
    shown = paper("--quick", "--kept", "heta-example", "--out", tmp_path).stdout
    assert "RuntimeError: of mine" in shown
    assert "it was not measured yet" not in shown
    assert "DistDGL METIS" in paper("--quick", "heta-example", "--out", tmp_path).stdout
    refused = paper("heta-example", "--kept", "--again", "--out", tmp_path)
    assert "--again: not allowed with" in refused.stderr


def test_the_pages_in_docs_are_those_of_what_was_measured(tmp_path: Path) -> None:
    docs = ROOT / "docs/measurements/paper"
    shutil.copytree(docs / "measured", tmp_path / "measured")
    done = paper("--all", "--kept", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    made = {file.name: file.read_text() for file in tmp_path.glob("*.md")}
    assert made == {file.name: file.read_text() for file in docs.glob("*.md")}
    shown = {m["command"] for file in tmp_path.glob("*.json")
             for m in json.loads(file.read_text())["measured"] if not m["made"]}
    for file in (docs / "measured").iterdir():
        command = json.loads(file.read_text())["command"]
        assert command in shown, f"{file.name}: no figure shows it any more: {command}"


def test_what_a_gpu_took_is_read_from_the_results_that_are_brought(tmp_path: Path) -> None:
    results, out = tmp_path / "results", tmp_path / "out"
    results.mkdir()
    at = {"pretended": False, "gpus": [{"name": "A GPU"}], "cpu": "A CPU", "cores": 16,
          "load": [0.5, 0.4, 0.3], "commit": "abc"}
    case = {"graph": "mag", "model": "rgcn"}
    summary = {"passed": True, "environment": at, "stages": {"steps": {"seconds": 60.0}}, "steps": [
        {**case, "variant": "fused", "ms": 30.0, "kernels": 300, "busy_ms": 3.0},
        {**case, "variant": "default", "ms": 10.0, "kernels": 100, "busy_ms": 2.0},
        {**case, "variant": "cached", "ms": 15.0}, {**case, "variant": "CPU", "error": "of mine"}]}
    head = "| graph | model | system | kernels | ms | ms ÷ ours |"
    (results / "layers.log").write_text(
        f"{head}\n| --- | --- | --- | ---: | ---: | ---: |\n"
        "| mag | rgcn | merged | 1,000 | 2.00 | 1.00 |\na warning\n"
        "| mag | rgcn | PyG RGCNConv | 2,000 | 6.00 | 3.00 |\n")

    def said(**changes: Any) -> subprocess.CompletedProcess[str]:
        (results / "summary.json").write_text(json.dumps({**summary, **changes}))
        return paper("hifuse-table1", "hifuse-fig7-gpu", "--gpu", results, "--out", out)

    for changes, why in (({"passed": False}, "of a run that did not pass"),
                         ({"environment": {**at, "pretended": True}}, "of a pretended GPU")):
        done = said(**changes)
        assert done.returncode == 0
        assert why in " ".join(done.stdout.split())
        assert "| mag |" not in done.stdout
    done = said()
    assert done.returncode == 0, done.stderr
    assert "| mag | rgcn | default | 3.00 | 10.0 | 100 | 2.00 | 5.0 |" in done.stdout
    assert "cached" not in done.stdout
    assert "| mag | rgcn | PyG RGCNConv | 3.00 | 6.00 | 2,000 |" in done.stdout
    assert "A GPU beside A CPU, 16 cores, commit abc, load 0.5 to 0.5; 1 minutes" in (
        " ".join(done.stdout.split()))


def test_every_figure_says_what_it_runs_or_why_it_cannot() -> None:
    shown = paper("--list").stdout
    names = re.findall(r"^\| ([a-z]+-[a-z0-9-]+) \|", shown, re.MULTILINE)
    dry = paper("--all", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    for name in names:
        body = dry.stdout.split(f"{name}: ", 1)[1].split("\n")[1:2]
        (line,) = [x for x in shown.splitlines() if x.startswith(f"| {name} |")]
        computed = name in ("heta-fig6", "heta-table1", "hifuse-table2")
        assert computed or body[0].startswith("  ") or not line.endswith("| - |"), name
    assert re.search("--systems metis graphlearn .* --graphlearn PYTHON\n", dry.stdout)


def test_a_figure_of_another_name_is_refused() -> None:
    done = paper("heta-fig99")
    assert done.returncode == 2
    assert "no figure 'heta-fig99'" in done.stderr


@pytest.mark.needs("dgl")
def test_hgt_of_the_benchmark_takes_its_softmax_over_all_relations() -> None:
    done = subprocess.run(
        [sys.executable, "-c", REFERENCE, str(SCRIPT.parent / "systems/distdgl")],
        capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
