"""Rows and bytes that are counted of plans without replication, of cut relations, too, are those of
workers that sample and train."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dgl_heta.partition.cluster_counts import count_fields, count_rows
from dgl_heta.partition.counting import counting_of, part_of
from dgl_heta.partition.request import PartitionRequest
from dgl_heta.planning.cluster_estimate import Cluster, estimate, raf_loads
from dgl_heta.planning.cost import predict
from dgl_heta.planning.making import make_plan, plan_without_replication
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.workload import Workload
from dgl_heta.sampling.blocks import MiniBatch
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.store import Store, write_store
from tests.support.cuts import cut_by_array, deal_pieces
from tests.support.exactness import BATCH, job, run
from tests.support.graphs import academic, with_tasks
from tests.support.threads import ThreadComm, together

CUTS = (False, True, "permuted", "hubs")
"""Whole relations; about half of them cut in ranges, or by an array, or so with hubs cut."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    path = tmp_path_factory.mktemp("graph") / "store"
    write_store(with_tasks(academic()), path)
    return Store(path)


def drawn(store: Store, parts: int, cut: bool | str, seed: int, directory: Path) -> Plan:
    plan = plan_without_replication(store.schema, ("paper",), 2, parts, deal_pieces(cut, seed),
                                    "test")
    return cut_by_array(plan, store, cut, directory) if isinstance(cut, str) else plan


def what_is_there(batch: MiniBatch) -> dict[str, Any]:
    """Rows of each side, input nodes, and relation by relation the destinations and edges, in ids
    that do not depend on an order."""
    found: dict[str, Any] = {"nodes": {
        t: sorted(ids.tolist()) for t, ids in batch.input_nodes.items() if len(ids)}}
    for block in batch.blocks:
        found[f"{block.layer} dst"] = {t: n for t, n in block.num_dst.items() if n}
        if block.layer > 1:
            found[f"{block.layer} src"] = {t: n for t, n in block.num_src.items() if n}
        for each in block.edges:
            dst = np.arange(each.start, each.stop) if each.rows is None else each.rows.numpy()
            of = found.setdefault(f"{block.layer} {each.relation}", [Counter(), Counter()])
            ids = batch.input_nodes[each.relation.dst][dst]
            of[0].update(ids.tolist())
            of[1].update(zip(np.repeat(ids, np.diff(each.indptr.numpy())).tolist(),
                             batch.input_nodes[each.relation.src][each.indices.numpy()].tolist()))
    return {name: of for name, of in found.items() if not isinstance(of, list) or of[0]}


@pytest.mark.parametrize("cut", CUTS)
def test_a_partition_has_of_a_batch_what_its_worker_samples(
        store: Store, cut: bool | str, tmp_path: Path) -> None:
    seeds = {"paper": np.arange(0, 60, 3)}
    whole = SamplingScope.of(make_plan(store.schema, ("paper",), 2, 1), 0)
    for (parts, fanouts), seed in product(((2, (-1, -1)), (3, (3, 2)), (4, (2, 4))), range(3)):
        plan = drawn(store, parts, cut, seed, tmp_path / f"{parts}-{seed}")

        def sample(comm: ThreadComm, plan: Plan = plan, fanouts: tuple[int, ...] = fanouts,
                   seed: int = seed) -> MiniBatch:
            def agree(new: Mapping[str, np.ndarray]) -> dict[str, list[np.ndarray]]:
                everyone = comm.meet(new)
                return {t: [np.sort(of[t]) for of in everyone if t in of] for t in new}

            scope = SamplingScope.of(plan, comm.rank)
            return NeighborSampler(store, scope, fanouts, seed, agree=agree).sample(seeds, step=5)

        batch = NeighborSampler(store, whole, fanouts, seed).sample(seeds, step=5)
        for part, own in enumerate(together(parts, sample)):
            assert what_is_there(part_of(batch, plan, part)) == what_is_there(own), (parts, seed)


def test_bytes_of_drawn_plans_are_those_that_workers_send(store: Store, tmp_path: Path) -> None:
    """Two steps, of which one is uneven. Partial aggregations are equal byte for byte, but that in
    an all-reduce workers send whole numbers; ids and learnable rows but for what goes before them.
    """
    parts, steps, pairs = 3, (2, 3), 6  # steps of the last epoch; pairs of workers
    told = job(store.directory, tmp_path, parts, ["sampled", "sum-self_loop"])
    told["cases"] = {f"{name} {cut} {seed}": {**told["cases"][name], "cut": cut, "drawn": seed}
                     for name, cut, seed in [*product(["sampled"], CUTS, range(2)),
                                             ("sum-self_loop", "hubs", 2)]}
    for case, workers in run(told, tmp_path).items():
        of = told["cases"][case]
        plan = drawn(store, parts, of["cut"], of["drawn"], tmp_path / f"counted {case}")
        work = Workload(BATCH // parts, 6, itemsize=8,
                        fanouts=tuple(of["settings"]["train"]["fanouts"]))
        counting = counting_of(store, make_plan(store.schema, ("paper",), 2, 1), work,
                               PartitionRequest(parts, ("paper",), 2), 1)
        counted, edges, expected = Counter[str](), np.zeros(parts), 0
        for step in steps:
            seeds = np.concatenate([worker[f"{step}/paper/own"] for worker in workers])
            counting.count(plan, {"paper": np.sort(seeds)}, step, counted, edges)
            expected += sum(cost.partial_bytes for cost in predict(
                plan, replace(work, batch_size=len(seeds) // parts)))
        sent = {cause: sum(int(worker.get(f"sent/{cause}", 0)) for worker in workers)
                for cause in counted}
        over = counted["partials"] - sent["partials"]
        assert 0 <= over <= (80 if of["cut"] == "hubs" else 0), case
        assert expected == pytest.approx(counted["partials"] + counted["sampling"], rel=0.1), case
        assert 0 <= sent["learnable"] - counted["learnable"] <= len(steps) * pairs * 8, case
        told_of = len(steps) * pairs * len(store.schema.node_types)  # a count of 8 bytes each
        assert 0 <= sent["sampling"] - counted["sampling"] <= told_of * (8 + 2), case


@pytest.mark.parametrize("cut", CUTS[:3])
def test_a_cluster_is_predicted_from_what_is_counted(
        store: Store, cut: bool | str, tmp_path: Path) -> None:
    """All training nodes with all neighbours, in one step: the work and bytes of each machine."""
    plan = drawn(store, 3, cut, 1, tmp_path / "plan")
    work = Workload(12, 6, fanouts=(-1, -1), seeds=36)
    count, cluster = count_rows(store, plan, work), Cluster(machines=3, link_gbit=1)
    loads = raf_loads(plan, work, cluster, 12, "exact", count.fields[:-1])
    counting = counting_of(store, make_plan(store.schema, ("paper",), 2, 1), work,
                           PartitionRequest(3, ("paper",), 2), 1)
    sent, edges = Counter[str](), np.zeros(3)
    counting.count(plan.for_scripts(), {
        "paper": np.flatnonzero(store.array("paper", "train_mask"))}, 0, sent, edges)
    assert [load.work["edge"] for load in loads] == edges.tolist()
    assert sum(load.sent["partials"] for load in loads) == pytest.approx(sent["partials"])
    (own,) = [one for one in estimate(plan, work, cluster, counted=count.sent, fields=count.fields)
              if one.system == "dgl-heta"]
    assert own.causes["partials"] == pytest.approx(sent["partials"], abs=3)
    assert "relations that are cut" not in own.beyond  # they were measured


def test_seeds_of_several_targets_are_counted_in_proportion(tmp_path: Path) -> None:
    source = with_tasks(academic())
    source.node_arrays["paper"]["train_mask"] = np.arange(60) < 48
    source.node_arrays["author"]["train_mask"] = np.arange(40) < 12
    write_store(source, tmp_path / "store")
    store = Store(tmp_path / "store")
    plan = make_plan(store.schema, ("paper", "author"), 2, 2)
    fields = count_fields(store, plan, Workload(fanouts=(5, 5)), 10)
    assert [field.own for field in fields] == [{"paper": 8, "author": 2}] * 3
