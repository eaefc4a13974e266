"""Models of PyG compute on several workers what they compute on one, where they run as they are."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from dgl_heta.partition.directory import write_partition
from dgl_heta.planning.making import make_plan
from dgl_heta.store import Store, write_store
from tests.support import warm
from tests.support.graphs import RELATIONS, academic, with_tasks

pytestmark = pytest.mark.slow
SETTINGS = ["model.hidden=8", "train.dtype=float64", "train.threads=1"]
WORKER = Path(__file__).with_name("exact_worker.py")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], dict[str, Any]]:
    """What every model gives, by graph and number of workers."""
    place, results = tmp_path_factory.mktemp("parts"), {}
    whole, few = academic(papers=120), academic(papers=120)
    for relation in RELATIONS[2:3] + RELATIONS[5:6]:
        del few.edges[relation]
    for name, source in (("whole", whole), ("few", few), ("two", with_tasks(academic(papers=120)))):
        write_store(source, place / name)
    for workers, graphs in ((1, ("whole", "few", "two")), (2, ("whole", "two")),
                            (3, ("few",))):
        given: list[dict[str, Any]] = []
        for name in graphs:
            store, part = Store(place / name), place / f"{name} {workers}"
            targets = ["paper", "author"] if name == "two" else ["paper"]
            plan = make_plan(store.schema, targets, 2, workers)
            # Three workers have seeds' in-edges by two relations: parts of the seeds each.
            assert workers < 3 or any(share.count > 1 for worker in range(workers)
                                      for share in plan.roots(worker).values())
            write_partition(store, plan, part)
            given.append({"part": str(part), "out": f"{part}.pt",
                          "settings": [*SETTINGS, f"task.targets={json.dumps(targets)}"]})
        done = subprocess.run(
            [warm.python("torch_geometric.nn"), "-m", "torch.distributed.run", "--standalone",
             "--nproc-per-node", str(workers), str(WORKER), json.dumps(given)],
            capture_output=True, text=True, timeout=300,
            env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert not done.returncode, done.stderr[:6000]
        for name, one in zip(graphs, given):
            results[name, workers] = torch.load(one["out"])
    return results


@pytest.mark.parametrize(("graph", "workers"), [("whole", 2), ("few", 3), ("two", 2)])
def test_outputs_gradients_and_losses_are_those_of_one_process(
        trained: dict[tuple[str, int], dict[str, Any]], graph: str, workers: int) -> None:
    assert len(trained[graph, 1]) == (4 if graph == "two" else 51 + 20)
    for name, (expected, _) in trained[graph, 1].items():
        got = trained[graph, workers][name][0]
        for what, value in expected.items():
            # A worker has zeros where one process has no gradient at all, and the other way round.
            difference = (got.get(what, torch.zeros_like(value)) - value).abs().max()
            assert difference < 1e-10, (name, what, difference)
        assert all((got[what] == 0).all() for what in set(got) - set(expected)), name


def test_relations_are_merged_before_they_are_sent(
        trained: dict[tuple[str, int], dict[str, Any]]) -> None:
    """One exchange a layer, of the target's rows, whatever the number of relations."""
    assert {name: trained["whole", 2][name][1] for name in (
        "HeteroConv mean", "HeteroConv max", "to_hetero mean", "to_hetero max")} == {
        "HeteroConv mean": 2 + 1, "HeteroConv max": 2 + 1, "to_hetero mean": 2 + 1,
        "to_hetero max": 2 + 1}  # and one agreement at the end
