"""Classes in the place of HeteroGraphConv: a program's own that is registered."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from torch import nn

import dgl_heta
from tests.support.programs import SHAPES, dealt, differences

HERE = "tests.distdgl.programs.registered"
OWN = [f'{HERE}:registered ["{inner}", "{merge}"]' for inner, merge in itertools.product(
    ("weights", "attention"), ("sum", "mean", "max"))]


@pytest.mark.parametrize(("machines", "trainers"), SHAPES[:2])
def test_a_registered_class_is_merged_over_the_machines(machines: int, trainers: int,
                                                        tmp_path: Path) -> None:
    assert differences(dealt(OWN, machines, trainers, 2), machines, trainers, tmp_path) == {}


def test_what_cannot_be_registered_is_named() -> None:
    class Without(nn.Module):
        def forward(self, g, inputs):
            return inputs

    class Inherited(Without):
        def _get_module(self, etype):
            return self

    for cls, lacks in ((Without, "_get_module"), (Inherited, "forward")):
        with pytest.raises(dgl_heta.InputError, match=f"{cls.__name__} .* has no {lacks} of its"):
            dgl_heta.register_hetero_conv(cls)
    with pytest.raises(dgl_heta.InputError, match='keys = \'etype\' is unknown; use "canonical"'):
        dgl_heta.register_hetero_conv(keys="etype")


def test_a_class_is_registered_once_and_stays_itself() -> None:
    class Conv(nn.Module):
        def _get_module(self, etype):
            return nn.Identity()

        def forward(self, g, inputs, mod_args=None, mod_kwargs=None):
            return "its own"

    assert dgl_heta.register_hetero_conv(Conv) is Conv
    forward = Conv.forward
    assert dgl_heta.register_hetero_conv(keys="name")(Conv) is Conv
    assert Conv.forward is forward
    assert Conv()("no block", {}) == "its own"
