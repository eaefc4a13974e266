"""The README's examples run."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
from dgl_heta_catgnn import EdgeStream

from tests.support.needs import lacking
from tests.support.plugins import ROOT, distribution, heta

TEXT = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.S)


def run(word: str, directory: Path) -> dict:
    """Run the example that has a word, and return its names; from a file, as the compiler wants
    one."""
    (code,) = [code for code in EXAMPLES if word in code]
    file = directory / "example.py"
    file.write_text(code, encoding="utf-8")
    names: dict = {"__name__": "example", "__file__": str(file)}
    exec(compile(code, str(file), "exec"), names)  # noqa: S102
    return names


def test_the_short_example(tmp_path):
    names = run("ring = ", tmp_path)
    assert names["made"].owned().tolist() == [3, 3]
    assert names["complete"].factor() > 1


def test_a_partitioner_of_ones_own(tmp_path):
    greedy = run("class Greedy", tmp_path)["Greedy"]()
    inside = [(c * 6 + i, c * 6 + j) for c in range(4) for i in range(6) for j in range(i)]
    src, dst = np.array(inside).T
    assigned = greedy.assign(EdgeStream.of_chunks([(src, dst)], 26), 4)
    cliques = assigned.owner[:24].reshape(4, 6)
    assert [set(part.tolist()) for part in cliques] == [{0}, {1}, {2}, {3}]
    assert assigned.owned().max() <= 7


def test_as_a_plugin_it_is_a_method(tmp_path):
    (code,) = [code for code in EXAMPLES if "class Greedy" in code]
    site = distribution(tmp_path / "site", "greedy", code)
    run = heta("partition", "debian", "--method", "greedy", "--parts", 3, "--out", tmp_path / "out",
               "--json", path=site, PYTHONPATH=os.pathsep.join(
                   [str(site), str(ROOT), str(ROOT / "plugins/catgnn")]))
    if lacking("dgl"):
        assert "writing parts for DistDGL needs dgl" in run.stderr
        assert not (tmp_path / "out").exists()
        return
    assert run.returncode == 0, run.stderr
    figures = json.loads(run.stdout)["statistics"]
    assert sum(figures["nodes"]) == 108_428
    assert figures["replication_factor"] > 1


def test_lines_are_short():
    long = [line for line in TEXT.splitlines() if len(line) > 110 and not line.startswith("|")]
    assert not long
