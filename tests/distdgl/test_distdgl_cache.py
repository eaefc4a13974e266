"""DistDGL's feature reads through the cache: remote rows of plain parts, rows of our stores."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support import dist_cached, warm
from tests.support.waiting import PATIENCE, PROMPT

pytestmark = pytest.mark.needs("hosts")


def partition(directory: Path, method: str) -> Path:
    """A graph in two parts, by DGL (`random`) or by us (`meta`)."""
    os.environ.setdefault("DGLBACKEND", "pytorch")
    import dgl
    import torch

    from dgl_heta import partition_graph

    torch.manual_seed(0)
    counts = {"paper": 400, "author": 300}
    edges = {(s, e, d): (torch.randint(counts[s], (1200,)), torch.randint(counts[d], (1200,)))
             for s, e, d in (("author", "writes", "paper"), ("paper", "cites", "paper"),
                             ("paper", "rev-writes", "author"))}
    g = dgl.heterograph(edges, num_nodes_dict=counts)
    for ntype, count in counts.items():
        g.nodes[ntype].data["feat"] = dist_cached.rows(ntype, torch.arange(count))
        g.nodes[ntype].data["orig"] = torch.arange(count)
    g.nodes["paper"].data["label"] = torch.arange(400) % 3
    g.nodes["paper"].data["train_mask"] = torch.arange(400) % 2 == 0
    options = {"target_ntype": "paper"} if method == "meta" else {}
    partition_graph(g, "small", 2, str(directory), part_method=method, **options)
    return directory / "small.json"


@pytest.mark.parametrize(("method", "said"), [
    pytest.param("random", "may have cached rows", marks=pytest.mark.thorough),
    ("meta", "belongs to the meta-partitioned graph")])
def test_feature_reads_go_through_the_cache(tmp_path: Path, method: str, said: str) -> None:
    config = partition(tmp_path / "parts", method)
    command = [warm.python(), "-m", "dgl_heta", "launch", "--hosts", "2", "--part-config", config,
               "--num-omp-threads", "1", "--stop-after", PATIENCE, "--set", "cache.policy=density",
               "--set", "cache.batches=4", "--set", "cache.capacity_mb=0.003", "--set",
               "cache.gate=false", "--", warm.with_dgl(), dist_cached.__file__, "--ip-config",
               "{ip_config}", "--part-config", "{part_config}", "--out", tmp_path]
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE,
                          timeout=PATIENCE + PROMPT, stderr=subprocess.STDOUT, text=True,
                          errors="replace", check=False)
    assert done.returncode == 0, done.stdout
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found["wrong"] == 0
        assert said in found["message"]
    told = [line for line in done.stdout.splitlines() if "dgl-heta: cache policy density" in line]
    assert len(told) == 2, done.stdout
    assert all("% hits" in line for line in told)
