"""Relations' own modules inside HeteroGraphConv compute what plain DGL does, or are refused."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.programs import SHAPES, dealt, differences, run

HERE = "tests.distdgl.programs"
EXACT = [f"{HERE}.children:{name}" for name in (
    'sage "mean"', 'sage "pool"', 'sage "gcn"', "most", "least_merged", "by_hand", "own_functions",
    "gat", "batch_norm", "reads_ids", "reads_destinations_below", "node_ids", "node_ids_alone",
    "pairs", "arguments", "edge_weights_of_seeds", "callable_in_order", "stack_in_order",
    "some_relations", "checkpointed_child", "checkpointed_between")]
HOOKED = [f"{HERE}.wrappers:{name}" for name in (
    *(f'hooked "{kind}"' for kind in (
        "forward_hook", "pre_hook", "overridden", "parametrized", "weight_norm", "spectral_norm",
        "old_weight", "old_spectral")),
    'hooked_gat "overridden"', 'hooked_gat "old_weight"', "hooked_once", "hooked_everywhere",
    "kept_in_common",
    "patched_class", "hooked_between_epochs")]
REFUSED = {f"{HERE}.{name}": text for name, text in {
    'wrappers:hooked "backward_hook"': "has a backward hook",
    'wrappers:hooked "backward_pre_hook"': "has a backward hook",
    "wrappers:normed_in_common": "several relations have in common, changes with every call",
    "wrappers:batch_normed_in_common": "of BatchNorm1d, in a module that several relations have",
    **{f"children:{name}": text for name, text in {
        "reads_destinations_of_seeds": "'own' of destinations of",
        "reads_edge_ids": "reads edge ids",
        'by_sources "out_degrees"': "out_degrees of the graph of",
        'by_sources "adj"': "adj_external of the graph of",
        'by_sources "successors"': "successors of the graph of",
        'by_sources "out_edges"': "out_edges of the graph of",
        'by_sources "softmax"': "norm_by='src'",
        'by_sources "clone"': "out_degrees of the graph of",
        "norm_both": "norm='both' divides by out-degrees",
        "norm_both_subclass": "out_degrees of the graph of",
        "norm_left_wrapped": "out_degrees of the graph of",
        'returns "tuple"': "returned tuple",
        'returns "dict"': "returned dict",
        'returns "rows"': "returned a tensor of shape"}.items()}}.items()}


@pytest.mark.parametrize(("machines", "trainers"), SHAPES)
def test_modules_of_relations_and_what_is_hung_on_them(machines: int, trainers: int, tmp_path
                                                       ) -> None:
    programs = dealt([*EXACT, *HOOKED], machines, trainers)
    assert differences(programs, machines, trainers, tmp_path) == {}


def test_running_statistics_of_dgls_convolutions_are_those_of_who_ran_them(tmp_path) -> None:
    names = [f'{HERE}.children:kept_statistics "{kind}"' for kind in ("graph", "sage", "gat")]
    for one, other in run(names, 2, 1, tmp_path, raf=True).values():
        assert (one.error, other.error) == (None, None)
        assert any(name.endswith("running_mean") for name in one.arrays)
        for name, values in one.arrays.items():
            np.testing.assert_array_equal(values, other.arrays[name], name)


def test_rows_of_several_dtypes(tmp_path) -> None:
    name = f"{HERE}.children:mixed_dtypes"
    assert differences([name], 2, 1, tmp_path, limit=1e-6) == {}


def test_rows_of_less_precision(tmp_path) -> None:
    names = [f"{HERE}.children:{name}" for name in (
        'half "sum"', 'half "max"', 'half "mean"', 'autocast "graph"', 'autocast "own"')]
    assert differences(names, 2, 1, tmp_path, limit=2e-2) == {}


@pytest.mark.parametrize("reentrant", ["true", "false"])
def test_a_checkpointed_layer_is_refused(reentrant, tmp_path) -> None:
    name = f"{HERE}.children:checkpointed_layers {reentrant}"
    for found in run([name], 2, 1, tmp_path, raf=True)[name]:
        assert found.error is not None
        assert "cannot be aggregated again inside a backward pass" in found.error


def test_what_is_refused_is_named(tmp_path) -> None:
    plain = run(list(REFUSED), 2, 1, tmp_path, raf=False)
    ours = run(list(REFUSED), 2, 1, tmp_path, raf=True)
    assert {name: [f.error for f in found] for name, found in plain.items()
            if any(f.error for f in found)} == {}
    wrong = {name: [f.error for f in ours[name]] for name, text in REFUSED.items()
             if not all(f.error and text in f.error for f in ours[name])}
    assert wrong == {}


def test_what_needs_whole_graphs_runs_where_each_trainer_has_them(tmp_path) -> None:
    names = [f"{HERE}.children:{name}" for name in (
        "norm_both", "norm_both_subclass", 'by_sources "out_degrees"', 'by_sources "softmax"',
        'by_sources "adj"')]
    assert differences(names, 2, 1, tmp_path, settings=["train.wrapper=ddp"]) == {}
