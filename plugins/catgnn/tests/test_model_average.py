"""`train.wrapper = "model_average"` in a plain DistDGL script, on two hosts."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from dgl_heta_catgnn import EdgeStream, Spring

from dgl_heta import EdgeArrays, GraphSource, Relation
from dgl_heta.tools import make_request
from tests.support import warm
from tests.support.plugins import ROOT, distribution
from tests.support.waiting import PATIENCE, PROMPT

SCRIPT = Path(__file__).with_name("averaged_train.py")
NODES = 300
pytestmark = pytest.mark.needs("dgl", "hosts")


@pytest.fixture(autouse=True)
def site(tmp_path, monkeypatch):
    """The plugin is found by an entry point, whether it is installed or not."""
    paths = [str(ROOT), str(ROOT / "plugins/catgnn")]
    if not any(entry.value == "dgl_heta_catgnn"
               for entry in importlib.metadata.entry_points(group="dgl_heta")):
        paths.insert(0, str(distribution(tmp_path / "site", "catgnn-entry", """
            from dgl_heta_catgnn import dgl_heta_module_wrappers, dgl_heta_partition_backends
        """)))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


@pytest.fixture(scope="module")
def graph():
    """Four groups of nodes, which are the labels; SPRING's first part has few training nodes."""
    import dgl
    import torch

    generator = torch.Generator().manual_seed(0)
    group = torch.arange(NODES) * 4 // NODES
    src, dst = torch.randint(0, NODES, (2, 6000), generator=generator)
    kept = (group[src] == group[dst]) | (torch.rand(6000, generator=generator) < 0.1)
    graph = dgl.add_reverse_edges(dgl.graph((src[kept], dst[kept]), num_nodes=NODES))
    graph.ndata["features"] = torch.eye(4)[group] + torch.randn(NODES, 4, generator=generator)
    graph.ndata["labels"] = group
    stream = EdgeStream.of_chunks([tuple(ends.numpy() for ends in graph.edges())], NODES)
    few = torch.from_numpy(Spring().assign(stream, 2).owner == 0)
    graph.ndata["train_mask"] = torch.rand(NODES, generator=generator) < 0.75 - 0.5 * few.float()
    return graph


def spring(graph, out: Path, parts: int) -> tuple[Path, np.ndarray, np.ndarray]:
    """Parts of the graph: their part_config; the original ids of nodes and edges by new ids."""
    src, dst = (ends.numpy() for ends in graph.edges())
    source = GraphSource("groups", {"_N": NODES},
                         {Relation("_N", "_E", "_N"): EdgeArrays(src, dst)},
                         {"_N": {name: rows.numpy() for name, rows in graph.ndata.items()}})
    backend = Spring()
    result = backend.partition(source, make_request(backend, source.schema(), parts), out)
    assert result.nodes is not None
    assert result.edges is not None
    return result.part_config, np.array(*result.nodes.values()), np.array(*result.edges.values())


def launch(config: Path, out: Path, *more: object, settings: tuple[str, ...] = (), hosts: int = 2
           ) -> subprocess.CompletedProcess[str]:
    command = [warm.python(), "-m", "dgl_heta", "launch", "--hosts", hosts, "--part-config",
               config, "--num-omp-threads", "1", "--stop-after", PATIENCE]
    for setting in settings:
        command += ["--set", setting]
    command += ["--", warm.with_dgl(), SCRIPT, "--ip-config", "{ip_config}", "--part-config",
                "{part_config}", "--out", out, *more]
    return subprocess.run(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False, timeout=PATIENCE + PROMPT)


def edges_inside(graph, nodes: np.ndarray, edges: np.ndarray, seeds: np.ndarray, has: np.ndarray
                 ) -> tuple[np.ndarray, np.ndarray]:
    """The in-edges of seeds and, of nodes that have them here, those of their sources."""
    import torch

    new = np.empty(len(edges), int)
    new[edges] = np.arange(len(edges))
    src, _, ids = graph.in_edges(torch.from_numpy(nodes[seeds]), form="all")
    reached = np.union1d(src.numpy(), nodes[seeds])
    *_, outer = graph.in_edges(torch.from_numpy(reached[np.isin(reached, has)]), form="all")
    return np.sort(new[outer.numpy()]), np.sort(new[ids.numpy()])


def check_training(out: Path, batch: int = 8) -> list[dict[str, np.ndarray]]:
    """Check, and return, what two trainers of unequal numbers of steps did in five epochs, averaged
    after each two."""
    results = [dict(np.load(out / f"{rank}.npz")) for rank in range(2)]
    seeds = [len(r["seeds"]) for r in results]
    assert max(seeds) >= 2 * min(seeds)
    assert [r["steps"].tolist() for r in results] == [[-(-n // batch)] * 5 for n in seeds]
    for epoch in range(5):
        first, second = (r["parameters"][epoch] for r in results)
        assert np.array_equal(first, second) == (epoch % 2 == 1), f"epoch {epoch + 1}"
    want = np.average([r["parameters"][4] for r in results], axis=0, weights=seeds)
    ended = [r["last"] for r in results]
    np.testing.assert_array_equal(*ended)
    np.testing.assert_allclose(ended[0][:-1], want[:-1], rtol=1e-13, atol=1e-14)
    assert ended[0][-1] == 5 * max(r["steps"][0] for r in results)  # batches that BatchNorm saw
    for result in results:
        assert np.isin(result["seeds"], result["own"]).all()
        assert not np.isin(result["read"], result["own"]).all()
        assert result["sent"][0, 0] > 0  # halo rows, once
        assert result["sent"][1:, :2].tolist() == [[0, 0]] * 4
    per_epoch = results[int(np.argmax(seeds))]["losses"].reshape(5, -1).mean(1)
    assert per_epoch[4] < 0.8 * per_epoch[0]
    return results


def test_trainers_step_apart_inside_springs_parts_and_end_with_the_weighted_mean(graph, tmp_path):
    config, nodes, edges = spring(graph, tmp_path / "parts", 2)
    done = launch(config, tmp_path, settings=(
        "train.wrapper=model_average", "plugins.model_average.sync_every=2"))
    assert done.returncode == 0, done.stdout
    for result in check_training(tmp_path):
        assert result["sent"][1:].tolist() == [[0, 0, 0]] * 4
        own = nodes[result["own"]]
        outer, inner = edges_inside(graph, nodes, edges, result["seeds"], own)
        np.testing.assert_array_equal(np.sort(result["inner"]), inner)
        np.testing.assert_array_equal(np.sort(result["outer"]), outer)
        around = np.union1d(own, graph.in_edges(own)[0].numpy())
        assert np.isin(nodes[result["read"]], around).all()
    assert "averaged 3 times in 5 epochs" in done.stdout
    assert "copied once" in done.stdout


@pytest.mark.thorough
def test_with_two_hops_of_metis_all_neighbours_are_inside_and_an_embedding_is_shared(
        graph, tmp_path):
    import dgl
    import dgl.distributed

    nodes, edges = dgl.distributed.partition_graph(
        graph, "groups", 2, str(tmp_path / "parts"), num_hops=2, part_method="metis",
        return_mapping=True)
    done = launch(tmp_path / "parts/groups.json", tmp_path, "--embedding", "--fewer", "--destroy",
                  settings=("train.wrapper=model_average", "plugins.model_average.sync_every=2"))
    assert done.returncode == 0, done.stdout
    results = check_training(tmp_path)
    for result in results:
        outer, inner = edges_inside(graph, nodes.numpy(), edges.numpy(), result["seeds"],
                                    np.arange(NODES))
        np.testing.assert_array_equal(np.sort(result["inner"]), inner)
        np.testing.assert_array_equal(np.sort(result["outer"]), outer)
    assert (results[0]["table"] != 0).any(1).sum() > NODES / 2


@pytest.mark.thorough
def test_one_trainer_computes_what_the_plain_script_does(graph, tmp_path):
    config, *_ = spring(graph, tmp_path / "parts", 1)
    last = []
    for name, settings in (("plain", ()), ("averaged", ("train.wrapper=model_average",))):
        (tmp_path / name).mkdir()
        done = launch(config, tmp_path / name, "--epochs", 2, settings=settings, hosts=1)
        assert done.returncode == 0, done.stdout
        last.append(np.load(tmp_path / name / "0.npz")["last"])
    np.testing.assert_array_equal(*last)


def test_a_trainer_that_fails_ends_the_others_by_name(graph, tmp_path):
    config, *_ = spring(graph, tmp_path / "parts", 2)
    start = time.monotonic()
    done = launch(config, tmp_path, "--fail", 1, settings=("train.wrapper=model_average",))
    assert done.returncode != 0
    assert "this trainer fails" in done.stdout
    assert "trainer 1" in done.stdout.splitlines()[-1]
    assert time.monotonic() - start < PROMPT
