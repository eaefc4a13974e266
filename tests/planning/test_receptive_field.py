"""Expected rows and edges of a step: near those sampled, and never more than there are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgl_heta.errors import InputError
from dgl_heta.graph.datasets.synthetic import SHAPES, generate
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.receptive_field import (
    covered,
    destinations,
    field_of_one_process,
    receptive_field,
    taken,
)
from dgl_heta.planning.workload import Workload
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.store import Store, write_store
from tests.support.graphs import schemas


@pytest.mark.parametrize(("shape", "scale"), [
    ("mag", 0.02), ("freebase", 0.02), ("donor", 0.01), ("igb-het", 0.001), ("mag240m", 0.0005)])
def test_expected_rows_and_edges_are_near_those_sampled(
        shape: str, scale: float, tmp_path: Path) -> None:
    write_store(generate(shape, scale), tmp_path / "store")
    store, target = Store(tmp_path / "store"), SHAPES[shape].target
    plan = make_plan(store.schema, target, 2, 1)
    batch = NeighborSampler(store, SamplingScope.of(plan, 0), (10, 5), 0).sample(
        {target: store.array(target, "train_mask").nonzero()[0][:256]}, None, 0)
    step = receptive_field(plan, 0, (10, 5), 256, 256)
    for layer, block, rows in zip(step.layers, batch.blocks[::-1], destinations(step, plan)):
        edges = sum(len(part.indices) for part in block.edges)
        assert layer.edges == pytest.approx(edges, rel=0.3)
        assert sum(rows.values()) == pytest.approx(sum(block.num_dst.values()), rel=0.3)
    assert sum(step.inputs.values()) == pytest.approx(
        sum(map(len, batch.input_nodes.values())), rel=0.3)


@settings(max_examples=80, deadline=None)
@given(schemas(), st.integers(1, 3), st.sampled_from([1, 5, 25, -1]), st.integers(1, 10**4))
def test_no_type_has_more_rows_than_nodes_and_more_seeds_reach_no_fewer(
        schema: Schema, hops: int, fanout: int, seeds: int) -> None:
    target = next(t for t, into in schema.into.items() if into)
    plan = make_plan(schema, target, hops, 1)
    few, many = (field_of_one_process(plan, (fanout,) * hops, n) for n in (seeds, 2 * seeds))
    for ntype, rows in few.inputs.items():
        assert 0 <= rows <= schema.node_counts[ntype] * (1 + 1e-9)
        assert rows <= many.inputs[ntype] * 1.01  # an estimate, not a count
    for layer in few.layers:
        assert layer.edges == pytest.approx(sum(layer.sampled.values()))
        assert layer.inner_edges <= layer.edges * (1 + 1e-9)


def test_rows_and_edges_in_numbers() -> None:
    """A type so large that nothing is drawn twice, and a fanout that nothing reaches."""
    schema = Schema({"a": 10**9, "p": 10**9}, {Relation("a", "w", "p"): 3 * 10**9})
    step = receptive_field(make_plan(schema, "p", 1, 1), 0, (-1,), 1000, 1000)
    assert step.layers[0].edges == 3000
    assert step.inputs == pytest.approx({"a": 3000, "p": 1000}, rel=1e-5)
    for mean, fanout in ((3.0, 1e9), (1e9, 3.0)):
        assert taken(np.array([mean]), fanout) == pytest.approx(3.0)
    assert covered(np.array([0.0, 1e6])) == pytest.approx([0.0, 1.0])


def test_edges_of_a_row_that_is_at_two_layers_reach_no_node_twice() -> None:
    """Seeds draw their three edges at both layers, the same ones."""
    schema = Schema(dict.fromkeys("abp", 10**9), {
        Relation("a", "w", "p"): 3 * 10**9, Relation("b", "s", "a"): 2 * 10**9})
    step = receptive_field(make_plan(schema, "p", 2, 1), 0, (-1, -1), 1000, 1000)
    assert step.layers[1].sampled[Relation("a", "w", "p")] == 3000
    assert step.inputs["a"] == pytest.approx(3000, rel=1e-5)


def test_seeds_are_of_targets_in_proportion_to_their_nodes() -> None:
    """As training divides them over its steps."""
    schema = Schema({"a": 10**9, "p": 3 * 10**9, "q": 10**9}, {
        Relation("a", "w", "p"): 3 * 10**9, Relation("a", "w", "q"): 5 * 10**9})
    plan = make_plan(schema, ("p", "q"), 1, 2)
    steps = [receptive_field(plan, part, (-1,), 1000, 500) for part in (0, 1)]
    assert steps[0].own == {"p": 375, "q": 125}
    assert sum(step.layers[0].edges for step in steps) == 750 + 5 * 250


def test_as_many_fanouts_as_hops() -> None:
    assert Workload().fanouts_of(3) == (25, 20, 20)
    with pytest.raises(InputError, match="fanouts has 1 number, but the plan has 2 hops"):
        Workload(fanouts=(5,)).fanouts_of(2)
