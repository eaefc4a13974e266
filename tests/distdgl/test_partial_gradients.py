"""What would see a part of a gradient is refused by name, without trainers."""

from __future__ import annotations

import os

os.environ.setdefault("DGLBACKEND", "pytorch")

import pytest
import torch
from torch import nn

from dgl_heta.distdgl.autograd.collective_order import CollectiveOrder
from dgl_heta.distdgl.autograd.partial_gradients import (
    Partial,
    check_hooks,
    check_inputs,
    mark,
    unmark,
)
from dgl_heta.distdgl.state import process_state
from dgl_heta.errors import HetaError
from dgl_heta.raf.chain import Chain


def test_parameters_below_are_to_be_wrapped() -> None:
    wrapped, other = (nn.Parameter(torch.ones(2, 3)) for _ in range(2))
    check_inputs({"a": wrapped * 2}, [wrapped])
    check_inputs({"a": other * 2})
    with pytest.raises(HetaError, match=r"a parameter of shape \(2, 3\) below the first layer is "
                                        "not in DistributedDataParallel"):
        check_inputs({"a": wrapped * other}, [wrapped])


def test_inputs_that_are_no_parameters_get_no_gradient() -> None:
    check_inputs([torch.ones(3)])
    with pytest.raises(HetaError, match=r"a tensor of shape \(3,\) .* set train.wrapper = ddp"):
        check_inputs([torch.ones(3, requires_grad=True)])


def test_forward_passes_that_were_let_go() -> None:
    chain = Chain()
    assert CollectiveOrder._token(chain, 0) is chain.tokens[0]
    with pytest.raises(HetaError, match="another trainer's loss depends on a forward pass .* same "
                                        "forward passes"):
        CollectiveOrder._token(chain, 1)


def test_hooks_on_gradients_are_named() -> None:
    module = nn.Linear(2, 2)
    check_hooks(module)
    handle = module.weight.register_hook(lambda grad: grad)
    with pytest.raises(HetaError, match="parameter weight has a hook on its gradient"):
        check_hooks(module)
    handle.remove()
    module.register_full_backward_hook(lambda *_: None)
    with pytest.raises(HetaError, match="module Linear has a backward hook"):
        check_hooks(module)


def test_a_part_may_be_summed_and_scaled_and_no_more() -> None:
    parameter = nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    mark(parameter)
    try:
        assert isinstance(parameter.grad, Partial)
        assert isinstance(parameter.grad / 2 + parameter.grad, Partial)
        with pytest.raises(HetaError, match=r"\(shape \(3,\)\) is used by norm before it is"):
            parameter.grad.norm()
        with pytest.raises(HetaError, match="is used by SGD.step before it is averaged"):
            torch.optim.SGD([parameter], 0.1).step()
        unmark([parameter])
        assert not isinstance(parameter.grad, Partial)
        assert parameter.grad.norm() > 1
    finally:
        process_state().close()
