"""The examples of docs/hooks.md: each is a plugin that is installed and does what it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dgl_heta import EdgeArrays, GraphSource, Relation, Schema
from dgl_heta.hooks.manager import KINDS, LISTENERS, Plugins
from dgl_heta.partition.directory import open_partition
from dgl_heta.partition.request import make_request
from tests.support.command_line import MAG
from tests.support.plugins import ROOT, distribution, heta
from tests.support.waiting import PATIENCE

TEXT = (ROOT / "docs/hooks.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.S)


def example(word: str) -> str:
    """The example that has a word."""
    (code,) = [code for code in EXAMPLES if word in code]
    return code


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """All examples, each an installed distribution."""
    directory = tmp_path_factory.mktemp("site")
    for number, code in enumerate(EXAMPLES):
        distribution(directory, f"documented-{number}", code)
    return directory


def test_there_is_an_example_of_each_hook():
    shown = set(re.findall(r"^def (dgl_heta_\w+)\(", "\n".join(EXAMPLES), re.M))
    assert shown == {*(hook for hook, _ in KINDS.values()), *LISTENERS}


def test_a_training_uses_all_that_it_can_use_at_once(site, tmp_path):
    run = heta("train", "ring:nodes=200", "--model", "scaled", "--parts", 2, "--json",
               "--run-dir", tmp_path / "run", "--set", "partition.method=alternate",
               "--set", "train.kernel=together", "--set", "train.wrapper=epoch-average",
               "--set", "train.batches=ahead", "--set", "cache.policy=smallest_first",
               "--set", "train.epochs=2", "--set", "train.batch_size=16",
               "--set", "run.loggers=lines",
               "--set", "plugins.slowness.seconds=3", path=site)
    assert run.returncode == 0, run.stderr
    assert len((tmp_path / "run/losses.txt").read_text().split()) == 2
    assert [line.split()[0] for line in (tmp_path / "run/lines.txt").read_text().splitlines()
            ] == ["1", "2"]
    assert (tmp_path / "run/ended-0").exists()
    assert (tmp_path / "run/ended-1").exists()
    log = "".join(file.read_text() for file in (tmp_path / "run").rglob("*.log"))
    assert "slow is more than 3.0 seconds" in log + run.stdout + run.stderr
    job = json.loads((tmp_path / "run/job.json").read_text())
    assert job["plan"]["method"] == "alternate"


def test_a_model_reads_what_was_computed_before(site, tmp_path):
    run = heta("train", "ring:nodes=200", "--model", "by-degree", "--parts", 2, "--json",
               "--run-dir", tmp_path / "run", "--set", "train.epochs=2", path=site)
    assert run.returncode == 0, run.stderr
    assert json.loads((tmp_path / "run/model.json").read_text())["provider"] == "by-degree"


def test_a_reader_and_a_stream_partitioner_meet(site, tmp_path):
    (tmp_path / "few.triples").write_text("0 knows 1\n1 knows 2\n2 likes 0\n3 knows 0\n")
    run = heta("partition", f"{tmp_path}/few.triples:type=person", "--method", "by-source",
               "--out", tmp_path / "out", "--json", path=site)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["statistics"] == {"edges": [2, 2]}
    assert (tmp_path / "out/part0-0.csv").read_text() == "0,1\n"
    assert (tmp_path / "out/part1-0.csv").read_text() == "1,2\n3,0\n"


def test_a_command_of_a_plugin_is_there_and_says_what_is_wrong(site, tmp_path):
    run = heta("isolated", "ring:nodes=9", path=site)
    assert (run.returncode, run.stdout) == (0, "{'person': 0}\n")
    (tmp_path / "mag.json").write_text(json.dumps(MAG))
    run = heta("isolated", tmp_path / "mag.json", path=site)
    assert run.returncode == 2
    assert run.stderr.endswith("is no data set or directory of edge files\n")


@pytest.mark.needs("dgl")
def test_a_program_that_is_adapted_when_it_is_imported(site, tmp_path):
    (tmp_path / "relational").mkdir()
    (tmp_path / "relational/__init__.py").write_text("")
    (tmp_path / "relational/layers.py").write_text("""
class Convolutions:
    def _get_module(self, etype): ...
    def forward(self, g, inputs, mod_args=None, mod_kwargs=None): return "its own"
""")
    script = """
import dgl_heta; dgl_heta.enable()
from relational.layers import Convolutions
from dgl_heta.distdgl.modules.registered_convs import is_hetero_conv
print(is_hetero_conv(Convolutions()), Convolutions().forward(None, {}))
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (site, tmp_path, ROOT)))})
    assert run.stdout == "True its own\n", run.stderr


def test_the_patches_of_a_plugin_are_in_place_while_dgl_heta_is_enabled(install):
    pytest.importorskip("dgl")
    install("pickled", example("class Pickled"))
    from dgl_heta.distdgl.activate import every_patch

    (patch,) = [patch for patch in every_patch(Plugins())
                if patch.target == "torch.distributed:all_gather_object"]
    assert patch.make(lambda objects, value, group: value)([], 3, None) == 3


def test_the_backend_that_knows_relations_keeps_those_of_a_source_type_together(install):
    install("by-source-type", example("BySourceType"))
    backend = Plugins().get("partition backend", "by-source-type")
    counts = {("a", "x", "t"): 50, ("a", "y", "b"): 20, ("b", "z", "t"): 40, ("c", "w", "t"): 25}
    schema = Schema(dict.fromkeys("abct", 30), {Relation(*r): n for r, n in counts.items()})
    plan = backend.plan(schema, make_request(backend, schema, 2, ["t"], hops=2))
    assert plan.replication == "none"
    assert [{r.src for r in p.relations} for p in plan.partitions] == [{"a"}, {"b", "c"}]
    assert sorted(r for p in plan.partitions for r in p.relations) == sorted(schema.relations)
    copied = backend.plan(schema, make_request(backend, schema, 2, ["t"], replication="full"))
    assert copied.replication == "full"


def test_the_cutter_makes_pieces_of_equally_many_edges(install, tmp_path):
    """Later destinations have more edges, so that ranges of destinations would be uneven."""
    install("heaviest-first", example("HeaviestFirst"))
    found, relation = Plugins(), Relation("a", "r", "b")
    backend = found.get("partition backend", "meta")
    dst = np.sqrt(np.arange(20_000) / 2).astype(int)
    source = GraphSource("skewed", {"a": 100, "b": 100}, {
        relation: EdgeArrays(np.arange(20_000) % 100, dst)})
    request = make_request(backend, source.schema(), 2, ["b"], hops=1, replication="none",
                           memory_mb=0.22, cutter=found.get("cutter", "heaviest-first"))
    planned = backend.plan(source.schema(), request)
    assert all(relation in p.ranges for p in planned.partitions)
    result = backend.partition(source, request, tmp_path / "out")
    _, plan = open_partition(tmp_path / "out")
    assert not any(p.ranges for p in plan.partitions)
    assert max(result.statistics["edges"]) < 10_300
    assert sum(plan.ownership[relation].rows) == 100
