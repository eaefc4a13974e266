"""GraphBolt scripts that train on meta-partitions under torchrun, against plain GraphBolt."""

from __future__ import annotations

import copy
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml  # type: ignore[import-untyped]

import dgl_heta
from dgl_heta.errors import HetaError, InputError
from dgl_heta.graph.readers import read_graphbolt
from dgl_heta.partition.directory import write_partition
from dgl_heta.planning.making import make_plan
from tests.support import warm
from tests.support.cuts import cut_partition
from tests.support.waiting import PATIENCE

dgl = pytest.importorskip("dgl")
gb = pytest.importorskip("dgl.graphbolt")
from dgl_heta.distdgl.versions import release  # noqa: E402
from dgl_heta.graphbolt.raf_graph import GraphBoltSession, open_graph  # noqa: E402
from dgl_heta.graphbolt.raf_minibatch import own_seeds  # noqa: E402

SCRIPT = Path(__file__).parents[1] / "support/gb_training.py"
COUNTS = {"author": 40, "field": 15}
RELATIONS = ("author:writes:paper", "paper:cites:paper", "paper:has:field", "field:of:paper",
             "paper:by:author")
known = pytest.mark.skipif(release() != "2.1.0", reason="pipelines of DGL 2.1.0")
FAILING = """
import sys
import torch
import torch.distributed as dist
from dgl import graphbolt as gb
from dgl.nn.pytorch import GraphConv, HeteroGraphConv

dist.init_process_group("gloo")
graph = gb.OnDiskDataset(sys.argv[1]).load().graph
etypes = [gb.etype_str_to_tuple(name)[1] for name in graph.num_edges]
net = HeteroGraphConv({e: GraphConv(1, 1, norm="right") for e in etypes})
for count, shift in ((2, 0), (8, torch.nn.Parameter(torch.zeros(1))), (8, 0)):
    items = gb.ItemSetDict({"paper": gb.ItemSet(torch.arange(count), names="seed_nodes")})
    pipe = gb.DistributedItemSampler(items, 2).sample_neighbor(graph, [-1])
    try:
        for batch in gb.DataLoader(pipe):
            ids = batch.blocks[0].srcdata["_ID"]
            states = {t: torch.ones(len(i), 1) + shift for t, i in ids.items()}
            net(batch.blocks[0], states)["paper"].sum().backward()
    except Exception as error:
        with open(f"{sys.argv[2]}/{dist.get_rank()}", "a") as file:
            print(error, file=file)
"""


def write_dataset(directory: Path, seed: int = 0, papers: int = 60) -> Path:
    """A data set with labels of papers; fields have no features."""
    rng = np.random.default_rng(seed)
    counts = {**COUNTS, "paper": papers}
    (directory / "data").mkdir(parents=True)

    def save(name: str, array: np.ndarray) -> dict[str, object]:
        np.save(directory / f"data/{name}.npy", array)
        return {"format": "numpy", "path": f"data/{name}.npy"}

    def edges(name: str) -> dict[str, object]:
        src, _, dst = name.split(":")
        pairs = np.stack([rng.integers(0, counts[src], 150), rng.integers(0, counts[dst], 150)])
        return {"type": name, **save(name.replace(":", "-"), pairs.astype(np.int64))}

    def part(name: str, seeds: np.ndarray) -> list[dict[str, object]]:
        return [{"type": "paper", "data": [
            {"name": "seed_nodes", **save(f"{name}-seeds", seeds)},
            {"name": "labels", **save(f"{name}-labels", seeds % 3)}]}]

    order = rng.permutation(papers)
    (directory / "metadata.yaml").write_text(yaml.safe_dump({
        "dataset_name": "small",
        "graph": {"nodes": [{"type": t, "num": n} for t, n in counts.items()],
                  "edges": [edges(name) for name in RELATIONS]},
        "feature_data": [
            {"domain": "node", "type": t, "name": "feat", "in_memory": True,
             **save(f"{t}-feat", rng.standard_normal((counts[t], w)))}
            for t, w in (("paper", 5), ("author", 4))],
        "tasks": [{"name": "t", "num_classes": 3, "train_set": part("train", order[:32]),
                   "validation_set": part("valid", order[32:51])}],
    }))
    return directory


def make(dataset: Path, out: Path, parts: int) -> Path:
    source = read_graphbolt(dataset)
    return write_partition(source, make_plan(source.schema(), "paper", 2, parts), out)


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False,
                          env=environment)


def torchrun(ranks: int, *words: object) -> subprocess.CompletedProcess[str]:
    return run([warm.python(), "-m", "torch.distributed.run", "--standalone",
                f"--nproc_per_node={ranks}", "-m", "dgl_heta", "run", *map(str, words)])


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A data set, and meta-partitions of it, of one part and of two."""
    place = tmp_path_factory.mktemp("graphbolt")
    write_dataset(place / "data")
    gb.OnDiskDataset(str(place / "data"))  # preprocesses, which several ranks must not do at once
    for name, parts in (("one", 1), ("two", 2)):
        config = make(place / "data", place / name, parts)
    cut_partition(config, "permuted", place / "cut")
    return place


@known
@pytest.mark.parametrize(("partition", "device"), [
    ("two", "cpu"), ("cut", "cpu"),
    pytest.param("two", "cuda", marks=pytest.mark.needs("pretended"))])
def test_training_is_that_of_plain_graphbolt_in_one_process(data, tmp_path, partition, device,
                                                            monkeypatch):
    """With full replication, and without, where relations are cut at random; and on GPUs that are
    pretended, where `copy_to` takes batches."""
    plain = run([warm.with_dgl(), str(SCRIPT), str(data / "data"), str(tmp_path), "2"])
    assert plain.returncode == 0, plain.stderr
    pretended = []
    if device == "cuda":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        pretended = [SCRIPT.with_name("pretended") / "script.py"]
    done = torchrun(2, "--set", f"partition.graphbolt={data / partition}", *pretended, SCRIPT,
                    data / "data", tmp_path, 2, -1, 0, device)
    assert done.returncode == 0, done.stdout + done.stderr
    one, *ranks = (np.load(tmp_path / f"{name}.npz") for name in ("one", 0, 1))
    for name in one.files:
        if name.endswith(("seeds", "logits")):
            np.testing.assert_allclose(np.concatenate([r[name] for r in ranks]), one[name],
                                       rtol=0, atol=1e-9)
        elif "/" not in name and name != "sources":
            for rank in ranks:
                np.testing.assert_allclose(rank[name], one[name], rtol=0, atol=1e-9)
    for epoch in range(2):
        seeds = np.concatenate([r[f"{epoch}/valid"] for r in ranks])
        order, want = np.argsort(seeds), np.argsort(one[f"{epoch}/valid"])
        np.testing.assert_array_equal(seeds[order], one[f"{epoch}/valid"][want])
        np.testing.assert_allclose(
            np.concatenate([r[f"{epoch}/predicted"] for r in ranks])[order],
            one[f"{epoch}/predicted"][want], rtol=0, atol=1e-9)


@pytest.fixture
def on(data) -> Iterator[Callable[..., None]]:
    """Switches dgl-heta on, with a partition for the data set's graph."""
    def enable(partition: Path = data / "one", *settings: str) -> None:
        dgl_heta.disable()
        dgl_heta.enable(settings=[f"partition.graphbolt={partition}", *settings])
    yield enable
    dgl_heta.disable()


def loaded(data: Path) -> Any:
    return gb.OnDiskDataset(str(data / "data")).load()


def pipe(graph: Any, fanouts: Any = (-1, -1), papers: Any = None,
         ntype: str = "paper", **options: Any) -> Any:
    ids = torch.arange(10, dtype=torch.int32) if papers is None else papers
    items = gb.ItemSet(ids, names="seed_nodes")
    return gb.ItemSampler(gb.ItemSetDict({ntype: items}), 4).sample_neighbor(
        graph, fanouts, **options)


@known
def test_each_relation_has_its_own_fanout(data, on):
    whole = next(iter(pipe(loaded(data).graph)))
    on()
    graph = loaded(data).graph
    numbers = torch.arange(len(graph.num_edges)) + 1
    assert graph.num_nodes == {**COUNTS, "paper": 60}
    found = list(gb.DataLoader(pipe(graph, [numbers, numbers])))
    assert [b.seed_nodes["paper"].tolist() for b in found] == [
        [0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    block, plain = found[0].blocks[-1], whole.blocks[-1]
    for name, number in graph.edge_type_to_id.items():
        relation = gb.etype_str_to_tuple(name)
        assert torch.equal(block.in_degrees(etype=relation),
                           plain.in_degrees(etype=relation).clamp(max=number + 1))
    np.testing.assert_array_equal(block.dstnodes["paper"].data[dgl.NID], [0, 1, 2, 3])


@known
def test_what_a_pipeline_cannot_do_is_refused_by_name(data, on):
    elsewhere = gb.fused_csc_sampling_graph(torch.arange(4), torch.arange(3))
    on()
    graph = loaded(data).graph
    items = gb.ItemSampler(gb.ItemSetDict({"paper": gb.ItemSet(
        torch.arange(4), names="seed_nodes")}), 4)
    pairs = gb.ItemSampler(gb.ItemSetDict({"paper:cites:paper": gb.ItemSet(
        torch.arange(8).view(4, 2), names="node_pairs")}), 4)
    untyped = gb.ItemSampler(gb.ItemSet(torch.arange(4), names="seed_nodes"), 4)
    timed = gb.MiniBatch()
    timed.timestamp = torch.arange(4)
    for call, message in (
            (lambda: items.sample_layer_neighbor(graph, [-1]), "sample_layer_neighbors of the"),
            (lambda: items.sample_in_subgraph(graph), "InSubgraphSampler cannot|in_subgraph of"),
            (lambda: items.sample_neighbor(elsewhere, [-1]), "give the graph of the data set"),
            (lambda: pairs.sample_neighbor(graph, [-1]), "link prediction and edges"),
            (lambda: pairs.sample_uniform_negative(graph, 1).sample_neighbor(graph, [-1]),
             "link prediction and edges"),
            (lambda: next(iter(untyped.sample_neighbor(graph, [-1]))), "have no node types"),
            (lambda: pipe(graph, [2, 2]), r"a fanout of \[2\] is for all relations together"),
            (lambda: pipe(graph, [-1] * 3), "samples 3 layers"),
            (lambda: pipe(graph, replace=True), "replace=True"),
            (lambda: pipe(graph, prob_name="w"), "prob_name='w'"),
            (lambda: pipe(graph, deduplicate=False), "deduplicate=False"),
            (lambda: next(iter(pipe(graph, ntype="author"))), "seeds of type author"),
            (lambda: next(iter(pipe(graph, papers=torch.tensor([1, 1])))), "'paper' twice"),
            (lambda: next(iter(pipe(graph, papers=torch.tensor([1, 60])))), "reach from 1 to 60"),
            (lambda: next(iter(pipe(graph))).sampled_subgraphs, "sampled_subgraphs of a mini"),
            (lambda: next(iter(pipe(graph).transform(gb.exclude_seed_edges))), "sampled_subgraphs"),
            (lambda: next(iter(pipe(graph).fetch_feature(
                gb.BasicFeatureStore({}), edge_feature_keys={"paper:cites:paper": ["w"]}))),
             "edge_feature_keys"),
            (lambda: own_seeds(graph.session, timed), "sampling by time"),
            (lambda: own_seeds(graph.session, type("Another", (gb.MiniBatch,), {})()),
             "a mini-batch of class Another cannot"),
            (lambda: graph.csc_indptr, "csc_indptr of the data set's graph"),
            (lambda: copy.copy(graph), "cannot be copied")):
        with pytest.raises(HetaError, match=message):
            call()


@known
def test_a_homogeneous_data_set_is_refused(data, on):
    on()
    graph = SimpleNamespace(node_type_to_id=None, edge_type_to_id=None)
    with pytest.raises(InputError, match="the data set's graph is homogeneous"):
        open_graph(str(data / "one"), graph)


@known
def test_a_pipeline_on_another_thread_is_refused(data, on):
    on()
    batches = pipe(loaded(data).graph)
    with ThreadPoolExecutor(1) as pool, pytest.raises(HetaError, match="iterated by the process"):
        pool.submit(lambda: list(batches)).result()


@known
def test_a_partition_of_another_graph_is_refused(data, on, tmp_path):
    for place, seed, count in (("edges", 1, 60), ("nodes", 0, 61)):
        other = write_dataset(tmp_path / place, seed, count)
        make(other, tmp_path / f"{place}-parts", 1)
        on(tmp_path / f"{place}-parts")
        with pytest.raises(InputError, match="is of another graph than the data set"):
            loaded(data)
    on(data / "two")
    with pytest.raises(InputError, match="has 2 parts, but there are 1 processes"):
        loaded(data)
    on(data / "data")
    with pytest.raises(InputError, match=r"is no partition; make one .*dgl-heta partition"):
        loaded(data)
    on(data / "one", "run.reference=true")
    with pytest.raises(InputError, match="is for DistDGL scripts"):
        loaded(data)


@pytest.mark.skipif(release() == "2.1.0", reason="the pipelines of DGL 2.1.0 can be sampled")
def test_another_dgl_is_refused(data, on):
    on()
    with pytest.raises(InputError, match=r"partition.graphbolt works with dgl 2\.1\.0"):
        loaded(data)


@known
def test_ranks_that_cannot_step_together_are_refused(data, tmp_path):
    (tmp_path / "script.py").write_text(FAILING)
    done = torchrun(2, "--set", f"partition.graphbolt={data / 'two'}", "--set", "run.prove=off",
                    tmp_path / "script.py", data / "data", tmp_path)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        text = (tmp_path / str(rank)).read_text()
        assert "rank 1 has no seed left for step 1" in text
        assert "a parameter of shape (1,) below the first layer is not in Distributed" in text
        assert "the model is not in DistributedDataParallel" in text


@pytest.mark.parametrize(("rank", "local", "verifies"), [
    (0, 0, True), (1, 1, False), (2, 2, True), (3, 3, False), (3, 0, True)])
def test_one_rank_of_each_part_on_a_host_compares_checksums(
        monkeypatch: pytest.MonkeyPatch, rank: int, local: int, verifies: bool) -> None:
    """Four ranks, two parts: parts 0 and 1 may be on one host."""
    session = object.__new__(GraphBoltSession)
    session.ranked, session._each = (rank, 4), 2
    monkeypatch.setenv("LOCAL_RANK", str(local))
    assert session._verifies() == verifies
