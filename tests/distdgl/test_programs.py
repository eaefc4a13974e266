"""Programs of users' kinds compute under RAF what plain DGL does, in fp64."""

from __future__ import annotations

import pytest

from tests.support.programs import SHAPES, dealt, differences, run
from tests.support.waiting import PROMPT

HERE = "tests.distdgl.programs"
USUAL = [f"{HERE}.usual:graph_conv", f"{HERE}.usual:keys_and_values"]


LOOPS = [*(f'{HERE}.loops:two_models "{way}"' for way in (
             "in order", "in reverse", "together", "as a list")),
         f"{HERE}.loops:adversaries",
         *(f'{HERE}.loops:accumulated "{way}"' for way in ("sum", "no_sync", "one by one")),
         f"{HERE}.loops:two_losses",
         *(f'{HERE}.loops:by_hand "{way}"' for way in ("one", "two", "two apart")),
         f"{HERE}.loops:teacher", f"{HERE}.loops:forgotten"]


GRADIENTS = [f'{HERE}.gradients:partly "{way}"' for way in (
    "layer", "branch", "type", "wide", "detached")]


@pytest.mark.parametrize(("machines", "trainers"), SHAPES)
def test_loops_and_which_parameters_have_gradients(machines: int, trainers: int, tmp_path) -> None:
    programs = dealt([*USUAL, *LOOPS, *GRADIENTS], machines, trainers)
    assert differences(programs, machines, trainers, tmp_path) == {}


def test_where_one_trainer_aggregates_for_others(tmp_path) -> None:
    """Gradients, where states are thrown away or types left out; data of edges."""
    edges = f'{HERE}.edge_data:weighted {{"conv": "right"}}'
    programs = [*GRADIENTS[1:3], GRADIENTS[-1], edges]
    assert differences(programs, 3, 1, tmp_path, settings=["partition.shared=delegate"]) == {}


@pytest.mark.parametrize(("machines", "trainers", "cut"), [(3, 1, "permuted"), (2, 2, "ranges")])
def test_without_replication(machines: int, trainers: int, cut: str, tmp_path) -> None:
    """Rows of every type are partial; modules, message functions and data of edges see whole
    in-edges, of destinations that do not follow each other. Each step proves itself."""
    updates = [f'{HERE}.multi_update:kind "{kind}"' for kind in (
        "own, in order", "applied", "min of max and sum")]
    programs = [USUAL[0], *GRADIENTS, *LOOPS[-3:], *updates,
                f'{HERE}.edge_data:weighted {{"conv": "right"}}']
    assert differences(programs, machines, trainers, tmp_path, cut=cut,
                       settings=["run.prove=auto"]) == {}


def test_a_second_backward_pass_that_nobody_averages_is_refused(tmp_path) -> None:
    found = run([f"{HERE}.loops:retained"], 2, 1, tmp_path, raf=True)
    for each in found[f"{HERE}.loops:retained"]:
        assert str(each.error).startswith("HetaError: a second backward pass through one forward")


def test_a_pass_that_one_trainer_leaves_alone_is_named_within_seconds(tmp_path) -> None:
    name = f"{HERE}.loops:left_alone"
    first, second = run([name], 2, 1, tmp_path, raf=True, settings=["run.timeout_s=120"])[name]
    assert "trainer 0 has left a pass over a data loader after 1 batches" in str(first.error)
    assert "trainer 1 goes on with batch 2" in str(first.error)
    assert first.seconds < PROMPT
    assert second.error is None


@pytest.mark.parametrize(("machines", "trainers"), SHAPES)
def test_layers_that_all_trainers_leave_out_at_once(machines: int, trainers: int, tmp_path) -> None:
    dropped = [f'{HERE}.loops:layers_dropped "{how}"' for how in ("alike", "both")]
    twice = f'{HERE}.loops:seeds_twice "in several"'
    programs = dealt([*dropped, twice], machines, trainers, 2)
    assert differences(programs, machines, trainers, tmp_path, settings=["run.prove=2"]) == {}


def test_a_layer_that_one_trainer_leaves_out_is_named(tmp_path) -> None:
    names = [f'{HERE}.loops:layers_dropped "{how}"' for how in ("first on one", "last on one")]
    every = run(names, 2, 1, tmp_path, raf=True, settings=["run.timeout_s=4"])
    for found in every.values():
        assert any("has skipped the merge of relations into 'paper' at layer" in str(one.error)
                   for one in found)
        assert all(one.error is not None and one.seconds < PROMPT for one in found)


def test_a_node_twice_in_a_batch_is_named(tmp_path) -> None:
    name = f'{HERE}.loops:seeds_twice "in a batch"'
    for one in run([name], 2, 1, tmp_path, raf=True)[name]:
        assert "batch 1 of trainer 1 has node" in str(one.error)
        assert "of type 'paper' twice" in str(one.error)


LABELS = [f'{HERE}.loops:labels_as_inputs "{where}"' for where in ("outside", "inside")]


@pytest.mark.parametrize("machines", [2, 3])
def test_labels_of_neighbours_without_those_of_any_seed(machines: int, tmp_path) -> None:
    assert differences(LABELS, machines, 4 - machines, tmp_path,
                       settings=["run.prove=auto"]) == {}


def test_zeros_in_place_of_no_gradient_are_seen(tmp_path) -> None:
    assert differences(GRADIENTS[:2], 2, 1, tmp_path, sabotage=["s9"]).keys() == {*GRADIENTS[:2]}


WATCHED = {"parameter": "has a hook on its gradient", "after": "has a hook on its gradient",
           "module": "has a backward hook", "inside": "retain_grad on a tensor inside a model",
           "inputs": "requires a gradient and is no nn.Parameter",
           "states": "torch.autograd.grad with respect to",
           "second": "cannot be taken with create_graph",
           "view": "the gradient of a view of shape"}


def test_perturbed_inputs_are_exact_where_each_trainer_computes_for_itself(tmp_path) -> None:
    """Which the refusal names (train.wrapper)."""
    program = f"{HERE}.gradients:perturbed"
    assert differences([program], 2, 2, tmp_path, settings=["train.wrapper=ddp"]) == {}
    for each in run([program], 2, 1, tmp_path / "raf", raf=True)[program]:
        assert "set train.wrapper = ddp, by which every trainer" in str(each.error)


def test_what_would_see_a_part_of_a_gradient_is_refused(tmp_path) -> None:
    names = {way: f'{HERE}.gradients:watched "{way}"' for way in WATCHED}
    found = run([*names.values(), f"{HERE}.gradients:alone"], 2, 1, tmp_path, raf=True)
    for way, text in WATCHED.items():
        assert [e.error for e in found[names[way]] if text not in str(e.error)] == []
    first = found[f"{HERE}.gradients:alone"][0]
    assert "trainer 1 waits at torch.distributed.barrier()" in str(first.error)


AGAIN = {
    'softmax_by_hand "train"': "reads what another merge on the same block gave",
    'between_wrapped "hook"': "register_hook on a tensor",
    'between_wrapped "retain"': "retain_grad",
    "hooked_parameters": "hook", "late_model": "SGD.step", "other_dtype": "rows of torch.float64"}


def test_merges_that_read_others_and_looks_at_gradients_outside_of_modules_are_refused(
        tmp_path) -> None:
    names = {program: f"{HERE}.again:{program}" for program in AGAIN}
    found = run([*names.values()], 2, 1, tmp_path, raf=True)
    assert {program: found[name][0].error for program, name in names.items()
            if AGAIN[program] not in str(found[name][0].error)} == {}


def test_in_inference_merges_may_read_others(tmp_path) -> None:
    """And with complete states in training."""
    by_hand = f"{HERE}.again:softmax_by_hand"
    assert differences([f'{by_hand} "evaluate"'], 2, 1, tmp_path) == {}
    assert differences([f'{by_hand} "train"'], 2, 1, tmp_path / "complete",
                       settings=["train.complete_states=true"]) == {}


@pytest.mark.parametrize(("machines", "trainers"), SHAPES[1:])
def test_gradients_that_are_asked_for_are_as_in_plain_dgl(machines: int, trainers: int, tmp_path
                                                          ) -> None:
    """Above all exchanges, of parameters by task, and of one that is above them on a machine."""
    programs = [f'{HERE}.gradients:watched "logits"', f'{HERE}.gradients:tasks "alone"',
                f'{HERE}.gradients:tasks "wrapped"', f"{HERE}.gradients:shared"]
    assert differences(programs, machines, trainers, tmp_path) == {}


@pytest.mark.parametrize(("machines", "trainers"), [(2, 1), (2, 2)])
def test_gradients_are_averaged_where_the_loss_depends_on_no_merge(machines: int, trainers: int,
                                                                   tmp_path) -> None:
    assert differences([f"{HERE}.gradients:unused"], machines, trainers, tmp_path) == {}


@pytest.mark.parametrize(("machines", "trainers"), [(2, 1), (2, 2)])
def test_a_trainer_may_have_a_loss_of_parameters_alone(machines: int, trainers: int, tmp_path
                                                       ) -> None:
    programs = [f'{HERE}.gradients:zero "{way}"' for way in ("wrapped", "no_sync")]
    assert differences(programs, machines, trainers, tmp_path) == {}
