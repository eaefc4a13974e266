"""Scripts that learn from edges compute with dgl-heta what plain DGL does, in fp64."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import dgl
import dgl.distributed
import numpy as np
import pytest
import torch

import dgl_heta
from dgl_heta.distdgl.store.edge_ends import EdgeEnds
from dgl_heta.graph.schema import Relation
from dgl_heta.partition.directory import open_partition
from tests.support import warm
from tests.support.dist_reference import read
from tests.support.link_reference import (
    EXCLUDES,
    compare,
    compare_embedded,
    compare_validated,
    edge_graph,
    parts,
    weighted,
)
from tests.support.link_script import EXCLUDE
from tests.support.waiting import PATIENCE, PROMPT

SCRIPT = Path(__file__).parents[1] / "support/link_script.py"
CASES = ["uniform", "one type", "replayed", "classes", "encoder", "graphs", "masked", "weighted",
         "own chances", *EXCLUDE]
SPARSE = ["SparseAdagrad", "SparseAdam"]


def run(*command: object, seconds: float = PATIENCE) -> tuple[int, str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("DGL_DIST_MODE", None)
    done = subprocess.run([warm.with_dgl(), *map(str, command)], env=environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds,
                          errors="replace", check=False)
    return done.returncode, done.stdout


def differences(graph, names, out: Path, world: int) -> list[str]:
    """What differs from plain DGL on the whole graph."""
    torch.set_num_threads(1)
    wrong: list[str] = []
    for name in names:
        found = [read(out, name, rank) for rank in range(world)]
        if name == "validated":
            wrong += compare_validated(graph, found)
        else:
            wrong += (compare_embedded if name in SPARSE else compare)(graph, name, found)
    return wrong


def test_a_script_computes_what_it_does_on_distdgl(tmp_path):
    """With the same edges and negatives in the same order, on one part."""
    graph, names = weighted(edge_graph()), [*CASES, "validated"]
    for place, method, command in (("plain", "random", []),
                                   ("ours", "meta", ["-m", "dgl_heta", "run"])):
        config = parts(graph, 1, tmp_path / place / "parts", method)
        status, text = run(*command, SCRIPT, "--part-config", config, "--out", tmp_path / place,
                           "--cases", ",".join(names))
        assert status == 0, text
    for name in names:
        plain, ours = (read(tmp_path / place, name, 0) for place in ("plain", "ours"))
        assert plain.keys() == ours.keys()
        for key, array in plain.items():
            np.testing.assert_allclose(ours[key], array, rtol=1e-9, atol=1e-9, err_msg=key)
    assert ("exclude='self' of DistEdgeDataLoader has no effect" in text) != EXCLUDES
    assert differences(graph, names, tmp_path / "ours", 1) == []


REFUSED = {
    "global": "InputError: negative sampler GlobalUniform asks a graph that is whole",
    "target": "partition it with target_ntype=['author', 'field', 'paper']",
    "sampling": "InputError: DistEdgeDataLoader with g_sampling cannot be used",
    "argument": "InputError: DistEdgeDataLoader has no argument 'nonsense'",
    "plain ids": "InputError: DistEdgeDataLoader needs a dictionary",
    "device": "InputError: DistEdgeDataLoader with device='cuda' cannot be used",
    "range": "IndexError: row ids reach from 1000000 to 1000000, but there are 720 rows"}


@pytest.mark.needs("hosts")
@pytest.mark.parametrize("cases", [
    ["one type", "classes", "encoder", "weighted", "own chances", "reverse types"],
    pytest.param(CASES, marks=pytest.mark.thorough)], ids=["some", "all"])
def test_two_trainers_on_each_of_two_hosts_compute_what_one_process_does(tmp_path, cases):
    """All cases in one process: above, against DistDGL."""
    graph, names = weighted(edge_graph()), [*cases, *SPARSE, "validated"]
    config = parts(graph, 2, tmp_path / "parts")
    status, text = run(
        "-m", "dgl_heta", "launch", "--hosts", 2, "--part-config", config, "--num-omp-threads", 1,
        "--num-trainers", 2, "--stop-after", PATIENCE, "--set", "train.learnable=exact", "--",
        warm.with_dgl(), SCRIPT, "--ip-config", "{ip_config}", "--part-config", "{part_config}",
        "--out", tmp_path, "--cases", ",".join([*names, "refused"]), seconds=PATIENCE + PROMPT)
    assert status == 0, text
    assert differences(graph, names, tmp_path, 4) == []
    for rank in range(4):
        said = read(tmp_path, "refused", rank)
        assert said.keys() == REFUSED.keys()
        assert [name for name, text in REFUSED.items() if text not in str(said[name])] == []


@pytest.mark.thorough
@pytest.mark.needs("hosts")
def test_a_script_is_proved(tmp_path):
    config = parts(edge_graph(), 2, tmp_path / "parts")
    status, text = run(
        "-m", "dgl_heta", "prove", "--double", "--hosts", 2, "--part-config", config,
        "--stop-after", PATIENCE, "--", warm.with_dgl(), SCRIPT, "--ip-config", "{ip_config}",
        "--part-config", "{part_config}", "--out", tmp_path, "--cases", "encoder",
        seconds=2 * PATIENCE + PROMPT)
    assert status == 0, text


@pytest.fixture
def enabled():
    dgl_heta.enable()
    yield
    dgl_heta.disable()


def test_edge_data_come_back_part_by_part(enabled, tmp_path):
    graph = edge_graph()
    graph.edges["cites"].data["weight"] = torch.rand(graph.num_edges("cites"), 2).double()
    for etype in graph.canonical_etypes:
        del graph.edges[etype].data["val_mask"]
    config = parts(graph, 3, tmp_path / "parts")
    found = [dgl.distributed.load_partition_feats(str(config), part, load_nodes=False)[1]
             for part in range(3)]
    for src, etype, dst in graph.canonical_etypes:
        for name, rows in graph.edges[etype].data.items():
            stored = torch.cat([each[f"{src}:{etype}:{dst}/{name}"] for each in found])
            assert torch.equal(stored, rows.to(stored.dtype)), (etype, name)
    assert len(found[0]) == 2 * len(graph.etypes) + 1


def test_the_ends_of_trained_edges_are_the_targets(tmp_path):
    graph = edge_graph()
    for etype in graph.canonical_etypes:
        if etype[1] != "at":
            del graph.edges[etype].data["train_mask"]
    del graph.nodes["paper"].data["train_mask"]
    parts(graph, 2, tmp_path / "parts", target_ntype=None)
    assert open_partition(tmp_path / "parts")[1].targets == ("author", "institution")


def test_settings_name_several_targets(tmp_path):
    dgl_heta.enable(settings=["partition.method=meta", "partition.target=author,paper"])
    try:
        dgl.distributed.partition_graph(edge_graph(), "academic", 2, str(tmp_path / "parts"))
    finally:
        dgl_heta.disable()
    assert open_partition(tmp_path / "parts")[1].targets == ("author", "paper")


def test_edges_are_found_by_their_ids(tmp_path):
    graph = edge_graph()
    store, _ = open_partition(parts(graph, 2, tmp_path / "parts").parent)
    ends = EdgeEnds(store)
    for etype in graph.canonical_etypes:
        ids = torch.randperm(graph.num_edges(etype))
        for got, want in zip(ends.of(Relation(*etype), ids), graph.find_edges(ids, etype=etype)):
            assert torch.equal(got, want)
    with pytest.raises(IndexError, match="row ids reach from -1 to 0"):
        ends.of(Relation("paper", "cites", "paper"), torch.tensor([0, -1]))
