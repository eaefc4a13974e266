"""How relations that are too large for a partition are cut, and nodes that no cut can balance."""

from __future__ import annotations

import json
import logging
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeArrays, GraphSource, Task
from dgl_heta.models.relations import Edges
from dgl_heta.nn.cross import Alone, CrossRelation
from dgl_heta.nn.shared import reduce_shared
from dgl_heta.partition.arguments import forget_warnings
from dgl_heta.partition.backends.meta import Meta
from dgl_heta.partition.cutters import EvenBytes, EvenEdges, Ranges
from dgl_heta.partition.directory import open_partition
from dgl_heta.partition.request import make_request
from dgl_heta.planning.hubs import share_hubs
from dgl_heta.planning.limit import largest
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.workload import Workload
from dgl_heta.sampling.blocks import RelationBlock, SharedRows
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.sampling.seeds import SeedShares
from dgl_heta.store import Store, write_store
from tests.support.plugins import heta
from tests.support.signing import edit_json

READS = Relation("user", "reads", "item")
ITEMS, EDGES = 200, 12_000
WORK = Workload(hidden=4)


def skewed(hub: float = 0.0) -> GraphSource:
    """Later items have more readers; item 150 has a share of all edges, if there is a hub."""
    rng = np.random.default_rng(0)
    dst = (np.sqrt(rng.random(EDGES)) * ITEMS).astype(int)
    dst[:int(EDGES * hub)] = 150
    rng.shuffle(dst)
    src = rng.integers(0, 50, EDGES)
    masks = {name: np.arange(ITEMS) % 3 == k
             for k, name in enumerate(("train_mask", "val_mask", "test_mask"))}
    return GraphSource("skewed", {"user": 50, "item": ITEMS}, {READS: EdgeArrays(src, dst)}, {
        "item": {"feat": rng.standard_normal((ITEMS, 2)), "label": np.arange(ITEMS) % 2, **masks},
        "user": {"feat": rng.standard_normal((50, 2))}}, Task("item", 2))


def written(source: GraphSource, out: Path, cutter, limit_kb: float = 42, hubs: float = 1.0,
            parts: int = 2) -> Plan:
    request = replace(make_request(
        Meta(), source.schema(), parts, ["item"], hops=1, replication="none",
        memory_mb=limit_kb / 1000, cutter=cutter, hubs=hubs), workload=WORK)
    Meta().partition(source, request, out)
    return open_partition(out)[1]


@pytest.mark.parametrize("cutter", [EvenEdges(), EvenBytes()])
def test_pieces_are_even_and_fit(tmp_path: Path, cutter) -> None:
    plan = written(skewed(), tmp_path / "out", cutter)
    edges = plan.ownership[READS].edges
    assert max(edges) < 1.05 * EDGES / 2
    assert largest(plan, WORK) <= 42_000
    assert not plan.ownership[READS].hubs


def test_ranges_that_are_far_from_even_are_said(tmp_path: Path, caplog) -> None:
    forget_warnings()
    with caplog.at_level(logging.WARNING):
        plan = written(skewed(), tmp_path / "out", Ranges(), 35)
    assert plan.partitions[0].ranges
    assert not plan.ownership
    assert "'user reads item', cut by ranges of destinations: partition 1 has 8," in caplog.text
    assert "MB more than the limit; another cut evens them out" in caplog.text


def test_the_in_edges_of_a_hub_are_cut_and_the_plan_read_back(tmp_path: Path) -> None:
    for parts, limit in ((2, 42), (3, 25)):
        out = tmp_path / str(parts)
        plan = written(skewed(0.7), out, EvenEdges(), limit, parts=parts)
        own = plan.ownership[READS]
        assert [hub.node for hub in own.hubs] == [150]
        assert max(own.edges) <= 1.01 * EDGES / parts
        assert sum(own.edges) == EDGES
        data = json.loads((out / "plan.json").read_text())
        assert Plan.load(out / "plan.json") == plan
        (_, pieces) = data["plan"]["ownership"][0]["hubs"][0]
        pieces[0][2] += 1
        (out / "plan.json").write_text(json.dumps(data))
        edit_json(out / "plan.json")
        with pytest.raises(InputError, match="was edited: its fields"):
            Plan.load(out / "plan.json")
        pieces[0][2] -= 1
        (out / "plan.json").write_text(json.dumps(data))
        data["plan"]["ownership"][0]["hubs"][0][0] = 151
        (out / "plan.json").write_text(json.dumps(data))
        with pytest.raises(InputError, match="checksum does not agree"):
            Plan.load(out / "plan.json").verify()


def test_ids_are_checked_before_a_cutter_sees_them(tmp_path: Path) -> None:
    for wrong in (-1, ITEMS):
        source = skewed()
        edges = next(source.edges[READS].chunks(EDGES))
        edges[1][7] = wrong
        source.edges[READS] = EdgeArrays(*edges)
        for cutter in (None, EvenEdges()):
            with pytest.raises(InputError, match=f"edge 7 has destination id {wrong}, but node "):
                written(source, tmp_path / "out", cutter)
            assert not (tmp_path / "out").exists()


def test_a_cutter_with_nothing_to_cut_is_named(tmp_path: Path, caplog) -> None:
    forget_warnings()
    source = skewed()
    source.edges[Relation("user", "likes", "item")] = EdgeArrays(np.arange(9), np.arange(9))
    with caplog.at_level(logging.WARNING):
        written(source, tmp_path / "out", EvenEdges(), 1000)
    assert "cutter 'even-edges' had nothing to cut" in caplog.text


@pytest.mark.parametrize("op", ["max", "min"])
def test_infinite_states_of_a_hub_are_no_nan(op: str) -> None:
    worst = float("-inf") if op == "max" else float("inf")
    states = torch.tensor([[worst, 1.0], [2.0, worst], [worst, 3.0]], requires_grad=True)
    edges = RelationBlock(READS, 0, torch.tensor([0, 3]), torch.arange(3, dtype=torch.int32),
                          shared=SharedRows(torch.tensor([True]), torch.arange(3)))
    found = reduce_shared(edges, states, op, lambda rows, op: rows)
    want = {"max": [[2.0, 3.0]], "min": [[2.0, 1.0]]}[op]
    assert found.tolist() == want
    found.sum().backward()
    assert states.grad is not None
    assert (states.grad.sum(0) == 1).all()


def test_without_cutting_it_a_hub_is_named(tmp_path: Path, caplog) -> None:
    forget_warnings()
    with pytest.raises(InputError, match=(
            r"relation 'user reads item' cannot be cut evenly: node 150 of 'item' alone has 8,\d+ "
            r"in-edges, .* the best balance is 1\.[34]\d even pieces of 6,000 edges; partition \d "
            r"holds .* MB more than the limit of 0\.0 MB; cut its in-edges, too")):
        written(skewed(0.7), tmp_path / "out", EvenEdges(), hubs=0)
    assert not (tmp_path / "out").exists()
    plan = written(skewed(0.55), tmp_path / "out", EvenEdges(), 52, hubs=0)
    assert not plan.ownership or not plan.ownership[READS].hubs


@given(st.lists(st.integers(0, 300), min_size=1, max_size=30), st.integers(1, 4),
       st.floats(0.05, 2), st.data())
def test_every_in_edge_of_a_hub_is_in_one_piece(degrees, parts, hubs, data) -> None:
    degree = np.array(degrees)
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=parts, max_size=parts))
    chosen = np.array(data.draw(st.lists(st.integers(0, parts - 1), min_size=len(degrees),
                                         max_size=len(degrees))))
    before = np.bincount(chosen, degree, parts)
    after = before.copy()
    for node, pieces in share_hubs(chosen, degree, sizes, hubs).items():
        assert degree[node] > hubs * degree.sum() / parts
        assert [low for _, low, _ in pieces] == [0, *(high for _, _, high in pieces[:-1])]
        assert pieces[-1][2] == degree[node]
        after[chosen[node]] -= degree[node]
        for piece, low, high in pieces:
            assert low < high
            after[piece] += high - low
    wanted = np.array(sizes) / sum(sizes) * degree.sum()
    assert after.sum() == degree.sum()
    assert (after - wanted).max() <= max((before - wanted).max(), 0) + len(degrees)


@pytest.mark.parametrize("fanout", [-1, 5, 100])
def test_neighbours_of_a_hub_are_the_same_whatever_the_cut(tmp_path: Path, fanout: int) -> None:
    """Drawn on two partitions they are together what one draws, in the order that is told."""
    plan = written(skewed(0.7), tmp_path / "out", EvenEdges())
    store = Store(tmp_path / "out/store")
    seeds = {"item": np.array([150, 3, 199])}

    def drawn(scope: SamplingScope) -> tuple[Counter, dict[int, int]]:
        sampler = NeighborSampler(store, scope, [fanout], seed=7, agree=lambda own: {
            t: [ids] for t, ids in own.items()})
        batch = sampler.sample(seeds, {"item": SeedShares((3,))}, step=2)
        edges: Counter = Counter()
        order = {}
        for block in batch.blocks[0].edges:
            rows = (torch.arange(block.num_rows) if block.rows is None else block.rows)
            to = rows[block.in_edges.rows()].tolist()
            sources = batch.input_nodes["user"][block.indices.numpy()].tolist()
            edges.update(zip(to, sources))
            if block.shared is not None:
                order |= dict(zip(block.shared.order.tolist(), sources))
        return edges, order

    alone, _ = drawn(SamplingScope.of(make_plan(plan.schema, "item", 1, 1), 0))
    one, first = drawn(SamplingScope.of(plan, 0))
    two, second = drawn(SamplingScope.of(plan, 1))
    assert one + two == alone
    assert sorted([*first, *second]) == list(range(len(first) + len(second)))
    assert len(first) + len(second) == (8_400 + 12 if fanout < 0 else fanout) or fanout < 0
    assert fanout == 5 or (first and second)


def test_what_would_see_a_part_of_the_edges_is_refused(tmp_path: Path) -> None:
    plan = written(skewed(0.7), tmp_path / "out", EvenEdges())
    sampler = NeighborSampler(Store(tmp_path / "out/store"), SamplingScope.of(plan, 0), [4],
                              agree=lambda own: {t: [ids] for t, ids in own.items()})
    batch = sampler.sample({"item": np.array([150])}, {"item": SeedShares((1,))})
    (block,) = batch.blocks
    states = {t: torch.zeros(len(ids), 2) for t, ids in batch.input_nodes.items()}
    edges = block.into("item")[-1]
    with pytest.raises(InputError, match="derive the model's layers from it"):
        CrossRelation()(block, "item", [(edges, torch.zeros(1, 2))], 2, states["item"])
    with pytest.raises(InputError, match="in_edges would be some of them"):
        _ = Edges(block, edges, states, Alone()).in_edges


def test_a_plan_for_another_store_is_refused(tmp_path: Path) -> None:
    plan = written(skewed(0.7), tmp_path / "out", EvenEdges())
    written(skewed(0.6), tmp_path / "other", EvenEdges())
    with pytest.raises(InputError, match="another number of them in the store"):
        NeighborSampler(Store(tmp_path / "other/store"), SamplingScope.of(plan, 0), [4])


@pytest.mark.thorough
def test_the_command_cuts_and_trains(tmp_path: Path) -> None:
    write_store(skewed(0.7), tmp_path / "store")
    common = ("partition", tmp_path / "store", "--parts", 2, "--hops", 1, "--replication", "none")
    run = heta(*common, "--memory-mb", 0.042, "--cut", "even-edges", "--out", tmp_path / "out",
               "--json", path=tmp_path)
    assert run.returncode == 0, run.stderr
    assert max(json.loads(run.stdout)["statistics"]["edges"]) <= 1.01 * EDGES / 2
    run = heta("inspect", tmp_path / "out", path=tmp_path)
    assert "in-edges of 1 node are cut" in run.stdout, run.stdout
    run = heta("train", tmp_path / "out", "--run-dir", tmp_path / "run", "--json", "--set",
               "train.epochs=1", "--set", "train.fanouts=9", "--set", "train.batch_size=32",
               path=tmp_path)
    assert run.returncode == 0, run.stderr
    run = heta(*common, "--memory-mb", 0.042, "--cut", "evn-edges", "--out", tmp_path / "no",
               path=tmp_path)
    assert run.returncode == 2
    assert "unknown cutter 'evn-edges'" in run.stderr
    run = heta("partition", tmp_path / "store", "--cut", "even-edges", "--out", tmp_path / "no",
               path=tmp_path)
    assert run.returncode == 2
    assert "has nothing to cut" in run.stderr
    run = heta("train", tmp_path / "store", "--set", "partition.cut=even-edges", path=tmp_path)
    assert run.returncode == 2
    assert "write a partition first" in run.stderr
