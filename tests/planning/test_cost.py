"""What a partition holds and sends, in numbers worked out by hand and against the store."""

from __future__ import annotations

import json

from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.planning.cost import predict
from dgl_heta.planning.cost import to_json as cost_json
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.workload import Workload
from dgl_heta.store import Store, write_store
from tests.support.graphs import academic
from tests.support.plans import (
    MAG,
)


def test_predicted_topology_is_what_the_store_holds(tmp_path):
    source = academic()
    write_store(source, tmp_path / "store")
    store = Store(tmp_path / "store")
    plan = make_plan(source.schema(), "paper", 2, 3)
    for partition, cost in zip(plan.partitions, predict(plan, Workload(hidden=16))):
        csc = [store.relation(r) for r in partition.relations]
        assert cost.topology_bytes == sum(c.indptr.nbytes + c.indices.nbytes for c in csc)
        features = {t: source.node_arrays[t]["feat"] for t in partition.node_types
                    if "feat" in source.node_arrays.get(t, {})}
        assert cost.feature_bytes == sum(array.nbytes for array in features.values())
        learnable = sum(source.schema().node_counts[t] for t in partition.node_types
                        if t not in features)
        assert cost.learnable_bytes == learnable * 16 * 4 * 3
        assert (cost.relations, cost.nodes, cost.edges) == (
            len(csc), partition.num_nodes, partition.num_edges)


def test_ids_of_huge_types_take_8_bytes():
    schema = Schema({"a": 2**31, "p": 9}, {Relation("a", "r", "p"): 100})
    assert predict(make_plan(schema, "p", 1, 1), Workload())[0].topology_bytes == 10 * 8 + 100 * 8


def test_bytes_per_step_of_two_partitions_and_two_layers():
    plan = make_plan(MAG, "paper", 2, 2)
    work = Workload(batch_size=1000, hidden=64, itemsize=4, parameters=5000)
    # 2 workers × 1000 seeds × 64 × 4 bytes = 512,000 bytes of seed states. Layer 2: half of
    # it is sent forward (reduce-scatter) and half backward (all-gather). Layer 1: an
    # all-reduce in both directions, each of which sends 2 × half. Gradients: 5000 × 4 bytes.
    for cost in predict(plan, work):
        assert cost.partial_bytes == 512_000 + 1_024_000
        assert cost.gradient_bytes == 20_000
    without = Workload(batch_size=1000, hidden=64, seed_states=False)
    assert {c.partial_bytes for c in predict(plan, without)} == {512_000}


def test_bytes_per_step_do_not_depend_on_the_neighbours():
    denser = Schema(MAG.node_counts, {r: 50 * n for r, n in MAG.edge_counts.items()})
    sent = [{c.partial_bytes for c in predict(make_plan(schema, "paper", 2, 2), Workload())}
            for schema in (MAG, denser)]
    assert sent[0] == sent[1]
    plan = make_plan(MAG, "paper", 2, 2)
    assert predict(plan, Workload(fanouts=(1, 1))) == predict(plan, Workload(fanouts=(-1, 90)))


def test_one_partition_sends_nothing():
    cost, = predict(make_plan(MAG, "paper", 3, 1), Workload(parameters=10_000))
    assert (cost.partial_bytes, cost.gradient_bytes, cost.boundary_nodes) == (0, 0, 0)


def test_the_prediction_as_json():
    work = Workload(batch_size=512)
    data = cost_json(work, predict(make_plan(MAG, "paper", 2, 2), work))
    assert data["workload"]["batch_size"] == 512
    assert [p["edges"] for p in data["partitions"]] == [25_483_280, 30_345_474]
    json.dumps(data)


def test_partial_aggregations_that_are_not_counted_are_null():
    """Of models that merge in ways of their own, and of links, whose batches have more seeds."""
    for work in (Workload(model="han"), Workload(links=True)):
        for parts, sent in ((2, None), (1, 0)):
            data = cost_json(work, predict(make_plan(MAG, "paper", 2, parts), work))
            assert {p["partial_bytes"] for p in data["partitions"]} == {sent}
