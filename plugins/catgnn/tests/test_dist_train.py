"""Plain DistDGL trains on parts of SPRING, on two hosts."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dgl_heta import partition_graph
from tests.support import warm
from tests.support.waiting import PATIENCE, PROMPT

SCRIPT = Path(__file__).with_name("dist_train.py")
pytestmark = pytest.mark.needs("dgl", "hosts")


def communities(nodes: int = 240):
    """Four groups of nodes, most edges within one; the group is the label, features are noisy."""
    import dgl
    import torch

    generator = torch.Generator().manual_seed(0)
    group = torch.randint(0, 4, (nodes,), generator=generator)
    src, dst = torch.randint(0, nodes, (2, 6000), generator=generator)
    kept = (group[src] == group[dst]) | (torch.rand(6000, generator=generator) < 0.1)
    graph = dgl.add_reverse_edges(dgl.graph((src[kept], dst[kept]), num_nodes=nodes))
    graph.ndata["features"] = torch.eye(4)[group] + torch.randn(nodes, 4, generator=generator)
    graph.ndata["labels"] = group
    graph.ndata["train_mask"] = torch.rand(nodes, generator=generator) < 0.6
    return graph


def test_graphsage_learns_on_spring_parts_with_whole_neighbour_lists(tmp_path):
    graph = communities()
    nodes, _ = partition_graph(graph, "groups", 2, str(tmp_path / "parts"), part_method="spring",
                               return_mapping=True)
    command = [warm.python(), "-m", "dgl_heta", "launch", "--hosts", "2", "--part-config",
               tmp_path / "parts/groups.json", "--num-omp-threads", "1", "--stop-after", PATIENCE,
               "--", warm.with_dgl(), SCRIPT, "--ip-config", "{ip_config}", "--part-config",
               "{part_config}", "--out", tmp_path]
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False, env={**os.environ},
                          timeout=PATIENCE + PROMPT)
    assert done.returncode == 0, done.stdout
    results = [np.load(tmp_path / f"{rank}.npz") for rank in range(2)]
    seeds = np.sort(np.concatenate([nodes.numpy()[r["seeds"]] for r in results]))
    np.testing.assert_array_equal(seeds, np.flatnonzero(graph.ndata["train_mask"].numpy()))
    for result in results:
        original_ids = nodes.numpy()[result["seeds"]]
        src, dst = (ends.numpy() for ends in graph.in_edges(original_ids))
        sampled = nodes.numpy()[result["edges"]]
        assert Counter(zip(*sampled.tolist())) == Counter(zip(src.tolist(), dst.tolist()))
        assert result["losses"][-1] < 0.75 * result["losses"][0]
