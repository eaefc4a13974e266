"""Data of edges in messages: in fp64 as in plain DGL, or refused by name."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.support import warm, weights_script
from tests.support.dist_reference import blocks_of, difference, parts, whole_graph
from tests.support.programs import differences, run
from tests.support.waiting import PATIENCE, PROMPT

SCRIPT = weights_script.__file__
HERE = "tests.distdgl.programs.edge_data"
CONVS = [{"conv": "right"}, {"conv": "none", "narrow": True},
         {"conv": "sage", "cross": "max"}, {"conv": "right", "learned": True, "cross": "mean"},
         {"conv": "right", "learned": True, "narrow": True}]
MESSAGES = [{"own": False, "reduce": "sum", "cross": "sum"},
            {"own": False, "reduce": "mean", "cross": "mean"},
            {"own": True, "reduce": "sum", "cross": "mean"},
            {"own": False, "reduce": "max", "cross": "sum"}]
EXACT = [*(f"{HERE}:weighted {json.dumps(o)}" for o in CONVS),
         *(f"{HERE}:messages {json.dumps(o)}" for o in MESSAGES), f"{HERE}:on_block"]


def test_results_and_gradients_are_those_of_plain_dgl(tmp_path: Path) -> None:
    assert differences(EXACT, 2, 2, tmp_path) == {}


def test_what_is_not_computed_edge_by_edge_is_refused(tmp_path: Path) -> None:
    (found,) = run([f"{HERE}:refused"], 2, 1, tmp_path, raf=True).values()
    assert [f.error for f in found] == [None] * 2


# --- a script with DistDGL's own tensors -------------------------------------------------------


def weighted_graph():
    """The academic graph with a positive number per edge, float32."""
    graph = whole_graph()
    for number, e in enumerate(graph.canonical_etypes):
        graph.edges[e].data["w"] = 1.5 + torch.sin(torch.arange(graph.num_edges(e)) * 1.7 + number)
    return graph


def script(*command: object, seconds: float = PATIENCE) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("DGL_DIST_MODE", None)
    done = subprocess.run([warm.python(), "-m", "dgl_heta", *map(str, command)], env=environment,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds,
                          text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def plain_results(graph, seeds: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of seeds and the gradient of the last layer's weight, by plain DGL."""
    kept, _ = torch.get_default_dtype(), torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(3)
        net = weights_script.Net(graph)
    finally:
        torch.set_default_dtype(kept)
    ids, blocks = blocks_of(graph, seeds, 2)
    logits = net(blocks, ids)
    cross_entropy(logits, graph.nodes["paper"].data["labels"][seeds]).backward()
    assert net.out.weight.grad is not None
    return logits.detach(), net.out.weight.grad


@pytest.mark.needs("hosts")
def test_a_script_reads_weights_by_edge_ids_on_hosts_as_plain_dgl_does(tmp_path: Path) -> None:
    graph = weighted_graph()
    config = parts(graph, 2, tmp_path / "parts")
    script("launch", "--hosts", 2, "--part-config", config, "--num-omp-threads", 1,
           "--stop-after", PATIENCE, "--set", "run.prove=auto", "--", warm.with_dgl(), SCRIPT,
           "--ip-config", "{ip_config}", "--part-config", "{part_config}", "--out", tmp_path,
           seconds=PATIENCE + PROMPT)
    gradients = []
    for rank in range(2):
        with np.load(tmp_path / f"{rank}.npz") as found:
            logits, gradient = plain_results(graph, found["own"])
            assert difference(found["logits"], logits.numpy()) < 1e-9
            gradients.append(gradient.numpy())
            of_all = found["gradient"]
    assert difference(of_all, sum(gradients) / 2) < 1e-9


def test_a_script_by_itself_reads_the_weights_that_plain_dgl_does(tmp_path: Path) -> None:
    graph = weighted_graph()
    config = parts(graph, 1, tmp_path / "parts")
    script("run", SCRIPT, "--part-config", config, "--out", tmp_path)
    with np.load(tmp_path / "0.npz") as found:
        logits, gradient = plain_results(graph, found["own"])
        assert difference(found["logits"], logits.numpy()) < 1e-9
        assert difference(found["gradient"], gradient.numpy()) < 1e-9
