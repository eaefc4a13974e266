"""Rows of a tensor, and products of all of them, whose gradients are added in one place.

Autograd would fill an array of the tensor's size with zeros for each slice of it, and add up such
arrays. These add to the one of :mod:`dgl_heta.nn.gradient_hub`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dgl_heta.nn.gradient_hub import Reading, differentiable_once, done, opened


def chosen_rows(states: Tensor, rows: Tensor | slice) -> Tensor:
    """`states[rows]`, of (n, …), by numbers (int64) or from one to another."""
    whole, reading, token = opened(states)
    out: Tensor = _Rows.apply(whole, rows, reading, token)
    return out


def product(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`states @ weight + bias`, of (n, A) with (A, B) and (B,)."""
    whole, reading, token = opened(states)
    out: Tensor = _Product.apply(whole, weight, bias, reading, token)
    return out


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, rows: Tensor | slice, reading: Reading | None,
                token: Tensor | None) -> Tensor:
        ctx.rows, ctx.reading, ctx.shape = rows, reading, states.shape
        return states[rows]

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.reading is not None:
            to_states = ctx.reading.array().view(ctx.shape)
            if isinstance(ctx.rows, slice):
                to_states[ctx.rows] += grad
            else:
                to_states.index_add_(0, ctx.rows, grad)
        return None, None, None, done(ctx.reading, grad)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None,
                reading: Reading | None, token: Tensor | None) -> Tensor:
        ctx.save_for_backward(states, weight)
        ctx.reading = reading
        return states @ weight if bias is None else torch.addmm(bias, states, weight)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        states, weight = ctx.saved_tensors
        if ctx.reading is not None:
            ctx.reading.array().view(states.shape).addmm_(grad, weight.t())
        to_weight = states.t() @ grad if ctx.needs_input_grad[1] else None
        to_bias = grad.sum(0) if ctx.needs_input_grad[2] else None
        return None, to_weight, to_bias, None, done(ctx.reading, grad)
