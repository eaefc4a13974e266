"""DistributedDataParallel's options and methods: honoured as in plain DGL, or refused by name."""

from __future__ import annotations

import os

os.environ.setdefault("DGLBACKEND", "pytorch")

import pytest
from torch import nn

from dgl_heta.distdgl.state import state_of
from dgl_heta.distdgl.training import parallel
from dgl_heta.errors import InputError
from tests.support.programs import SHAPES, dealt, differences, run

HERE, WRAPPED = "tests.distdgl.programs.wrappers", "tests.distdgl.programs.wrapped"
EXACT = [f"{HERE}:{name}" for name in (
    "options {}", 'options {"broadcast_buffers": false, "gradient_as_bucket_view": true}',
    'options {"process_group": true, "bucket_cap_mb": 1}', "in_join {}",
    'in_join {"throw_on_early_termination": true}', 'accumulated "no_sync"',
    'accumulated "forward in no_sync"', 'accumulated "attribute"', 'communication "all-reduce"')]
EXACT += [f"{WRAPPED}:{name}" for name in ("centred", "flat", "checkpointed")]
REFUSED = {f"{HERE}:{name}": text for name, text in {
    'whole_options {"part": true}': "with a process_group of some trainers",
    'whole_options {"ignored": true}': "with parameters to ignore",
    'whole_options {"delayed": true}': "with delay_all_reduce_named_params",
    'communication "half"': "with register_comm_hook",
    'communication "low rank"': "with register_comm_hook",
    'communication "fused"': "with _register_fused_optim",
    'communication "pickled"': "with __getstate__",
    'communication "joined"': "with join_hook"}.items()}


@pytest.mark.parametrize(("machines", "trainers"), SHAPES)
def test_options_and_methods(machines: int, trainers: int, tmp_path) -> None:
    assert differences(dealt(EXACT, machines, trainers), machines, trainers, tmp_path) == {}


def test_what_would_average_another_way_is_named(tmp_path) -> None:
    ours = run(list(REFUSED), 2, 1, tmp_path, raf=True)
    wrong = {name: [f.error for f in ours[name]] for name, text in REFUSED.items()
             if not all(f.error and text in f.error for f in ours[name])}
    assert wrong == {}


def test_a_module_that_was_wrapped_too_early_is_named() -> None:
    parallel.check_no_plain_module()
    module = nn.Linear(1, 1)
    state_of(parallel._Unwrapped).modules.add(module)
    with pytest.raises(InputError, match=r"called before the DistGraph .*; make the DistGraph fir"):
        parallel.check_no_plain_module()
    del module
    parallel.check_no_plain_module()


def test_passes_of_checkpoints_are_parts_of_a_backward_pass_with_ddp_too(tmp_path) -> None:
    assert differences([f"{WRAPPED}:checkpointed"], 2, 1, tmp_path,
                       settings=["train.wrapper=ddp"]) == {}


def test_running_statistics_of_a_type_are_of_a_trainer_that_has_rows_of_it(tmp_path) -> None:
    (each,) = run([f"{WRAPPED}:normed"], 3, 1, tmp_path, raf=True).values()
    assert [one.error for one in each] == [None] * 3
    first = each[0].arrays
    without = [kind for number, kind in enumerate(("author", "field", "institution", "paper"))
               if first["rows"][number] == 0]
    assert without
    for one in each:
        for kind in without:
            mean, variance = one.arrays[f"statistics of {kind}"]
            assert mean.any()
            assert (variance != 1).all()
            assert (one.arrays[f"statistics of {kind}"] == first[f"statistics of {kind}"]).all()


def test_copies_of_tables_accumulate_gradients_and_other_tables_are_averaged(tmp_path) -> None:
    (each,) = run([f"{WRAPPED}:replicas"], 3, 1, tmp_path, raf=True,
                  settings=["train.learnable=replica"]).values()
    assert [one.error for one in each] == [None] * 3


def test_a_backward_pass_that_failed_is_not_forgotten(tmp_path) -> None:
    for one in run([f"{WRAPPED}:failed"], 2, 1, tmp_path, raf=True)[f"{WRAPPED}:failed"]:
        assert "the backward pass before this forward pass failed" in str(one.error)
