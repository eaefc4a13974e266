"""Layers by multi_update_all: message and reduce functions, cross reducers, dictionaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dgl.function as fn
import torch
from torch import Tensor

MESSAGES: dict[str, Any] = {
    "copy_u": lambda name: fn.copy_u(name, "m"),
    "u_mul_v": lambda name: fn.u_mul_v(name, "y", "m"),
    "v_sub_u": lambda name: fn.v_sub_u("y", name, "m"),
    "u_mul_e": lambda name: fn.u_mul_e(name, "e", "m"),
    "udf_copy": lambda name: lambda edges: {"m": edges.src[name]},
    "udf_both": lambda name: lambda edges: {"m": edges.src[name] * torch.tanh(edges.dst["y"])},
    "udf_type": lambda name: lambda edges: {
        "m": edges.src[name] * len(edges.canonical_etype[1])},
}
REDUCES: dict[str, Any] = {
    "sum": lambda out: fn.sum("m", out),
    "mean": lambda out: fn.mean("m", out),
    "max": lambda out: fn.max("m", out),
    "min": lambda out: fn.min("m", out),
    "udf_sum": lambda out: lambda nodes: {out: nodes.mailbox["m"].sum(1)},
    "udf_max": lambda out: lambda nodes: {out: nodes.mailbox["m"].max(1)[0]},
    "udf_count": lambda out: lambda nodes: {
        out: nodes.mailbox["m"].sum(1) / (1 + nodes.mailbox["m"].shape[1])},
    "udf_own": lambda out: lambda nodes: {out: nodes.mailbox["m"].mean(1) + nodes.data["y"]},
    "udf_two": lambda out: lambda nodes: {
        out: nodes.mailbox["m"].sum(1), out + "_max": nodes.mailbox["m"].max(1)[0]},
}
APPLIES: dict[str, Any] = {
    "": None,
    "twice": lambda out: lambda nodes: {out: 2 * nodes.data.get(out, nodes.data["y"])},
    "residual": lambda out: lambda nodes: {
        out: nodes.data.get(out, nodes.data["y"]) + nodes.data["y"]},
}


def _ordered(values: list[Tensor], *_: Any) -> Tensor:
    return sum((i + 1) * x for i, x in enumerate(values)) / len(values)  # type: ignore[return-value]


def _product(values: list[Tensor], *_: Any) -> Tensor:
    return torch.stack(values).tanh().prod(0)


def _softmax(values: list[Tensor], *_: Any) -> Tensor:
    stacked = torch.stack(values)
    return (torch.softmax(stacked.sum(-1, keepdim=True), 0) * stacked).sum(0)


def _last(values: list[Tensor], *_: Any) -> Tensor:
    return values[-1]


def _rows(values: list[Tensor], *_: Any) -> Tensor:
    """Attention over relations as in HAN: one weight for all rows."""
    stacked = torch.stack(values, 1)
    weights = torch.softmax(torch.tanh(stacked).mean(0).flatten(1).sum(1), 0)
    return (stacked * weights.view(1, -1, *[1] * (stacked.dim() - 2))).sum(1)


AGGREGATES: dict[str, Callable[..., Tensor]] = {
    "ordered": _ordered, "product": _product, "softmax": _softmax, "last": _last, "rows": _rows}
"""Callables, beside DGL's "sum", "mean", "max", "min" and "stack"."""


def reducer(name: str) -> Any:
    """A cross reducer or an aggregate function by its name."""
    return AGGREGATES.get(name, name)


CHOICES: dict[str, Callable[[Any, list[Any]], list[Any]]] = {
    "all": lambda block, etypes: etypes,
    "reversed": lambda block, etypes: etypes[::-1],
    "canonical": lambda block, etypes: [e for e in block.canonical_etypes if e in etypes],
    "with edges": lambda block, etypes: [e for e in etypes if block.num_edges(e) > 0],
    "into paper": lambda block, etypes: [e for e in etypes if e[2] == "paper"],
    "first": lambda block, etypes: etypes[:1],
    "authors": lambda block, etypes: [e for e in etypes if e[0] == "author"],
    "with rows": lambda block, etypes: [e for e in etypes if block.num_dst_nodes(e[2]) > 0],
    "with sources": lambda block, etypes: [e for e in etypes if block.num_src_nodes(e[0]) > 0],
}
"""From a block and the relations whose sources have states, those to take."""
