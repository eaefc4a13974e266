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

HERE = "tests.distdgl.programs.wrappers"
EXACT = [f"{HERE}:{name}" for name in (
    "options {}", 'options {"broadcast_buffers": false, "gradient_as_bucket_view": true}',
    'options {"process_group": true, "bucket_cap_mb": 1}', "in_join {}",
    'in_join {"throw_on_early_termination": true}', 'accumulated "no_sync"',
    'accumulated "forward in no_sync"', 'accumulated "attribute"', 'communication "all-reduce"')]
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
