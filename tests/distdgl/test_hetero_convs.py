"""Classes in the place of HeteroGraphConv: a program's own that is registered; their rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

import dgl_heta
from dgl_heta.distdgl.modules.group_merge import split_part
from dgl_heta.graph.schema import Relation
from dgl_heta.nn.row_parts import sum_parts
from dgl_heta.sampling.blocks import RelationBlock
from tests.support.programs import SHAPES, dealt, differences

HERE = "tests.distdgl.programs.registered"
OWN = [f'{HERE}:registered ["{inner}", "{merge}"]' for inner, merge in itertools.product(
    ("weights", "attention"), ("sum", "mean", "max"))]


@pytest.mark.parametrize(("machines", "trainers"), SHAPES[:2])
def test_a_registered_class_is_merged_over_the_machines(machines: int, trainers: int,
                                                        tmp_path: Path) -> None:
    assert differences(dealt(OWN, machines, trainers, 2), machines, trainers, tmp_path) == {}


@pytest.mark.parametrize("row", range(7))
@pytest.mark.parametrize("rows", [[], [0], [1, 2, 4], [5], range(6), range(2, 5), range(3, 3)],
                         ids=str)
def test_a_part_is_split_into_own_rows_and_those_of_others(rows: Sequence[int], row: int) -> None:
    chosen = None if isinstance(rows, range) else torch.tensor(rows, dtype=torch.int64)
    start, indptr = getattr(rows, "start", 0), torch.zeros(len(rows) + 1, dtype=torch.int64)
    edges = RelationBlock(Relation("a", "r", "b"), start, indptr, torch.empty(0), rows=chosen)
    part, like = (edges, torch.rand(len(rows), 2)), torch.empty(0)
    before, after = split_part(part, row)
    joined = [sum_parts([own] if own else [], count, 2, like)
              for own, count in ((before, row), (after, 6 - row))]
    assert torch.equal(torch.cat(joined), sum_parts([part], 6, 2, like))


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
