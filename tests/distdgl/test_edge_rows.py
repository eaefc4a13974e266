"""Rows of edges: what is computed of each by itself is let through, all else is refused."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dgl_heta.distdgl.blocks.edge_rows import EdgeRows, edge_rows, unguarded
from dgl_heta.errors import HetaError

Use = Callable[[Tensor], Any]
IDS: Any = SimpleNamespace(relation=("a", "r", "b"), like=lambda other: other is IDS,
                           counted=lambda number: number)
FLAT: dict[str, Use] = {
    "column": lambda w: w[:, None], "last": lambda w: w[..., None], "view": lambda w: w.view(-1, 1),
    "view of its size": lambda w: w.view(w.shape[0], 1), "unsqueeze": lambda w: w.unsqueeze(-1),
    "expand": lambda w: w[:, None].expand(-1, 3), "expand as": lambda w: w[:, None].expand_as(
        torch.stack([w, w, w], dim=1)), "repeat": lambda w: w.unsqueeze(1).repeat(1, 2),
    "stack": lambda w: torch.stack([w, w * 2], -1), "embedding": lambda w: functional.embedding(
        (w > 0).long(), torch.arange(6.0).view(2, 3)), "where": lambda w: torch.where(
        w > 0, w, torch.zeros(1)), "like": lambda w: torch.ones_like(w) * w,
    "linear": lambda w: functional.linear(w[:, None], torch.ones(4, 1))}
WIDE: dict[str, Use] = {
    "sum": lambda w: w.sum(-1), "mean": lambda w: w.mean(dim=1), "norm": lambda w: w.norm(dim=1),
    "softmax": lambda w: torch.softmax(w, dim=1), "log_softmax": lambda w: functional.log_softmax(
        w, dim=-1), "normalize": lambda w: functional.normalize(w, dim=1),
    "some columns": lambda w: w[:, 1:], "a column": lambda w: w[..., 0], "max": lambda w: w.max(
        dim=-1)[0], "split": lambda w: torch.split(w, 2, 1)[0] * 2, "chunk": lambda w: w.chunk(
        2, dim=1)[1], "heads": lambda w: w.view(-1, 2, 2).transpose(1, 2), "permuted": lambda w:
    w.view(-1, 2, 2).permute(0, 2, 1), "keepdim": lambda w: w.sum(dim=(1,), keepdim=True),
    "layer norm": lambda w: functional.layer_norm(w, (4,)), "squeeze": lambda w: w[:, :1].squeeze(
        1), "join": lambda w: torch.cat([w, w], 1), "logits": lambda w: (
        w.view(-1, 2, 2) * torch.ones(1, 2, 2)).sum(dim=-1).unsqueeze(dim=2)}
MIXED: dict[str, Use] = {
    "sum": lambda w: w.sum(), "sum of rows": lambda w: w.sum(0), "all dimensions": lambda w: w.sum(
        dim=(0, 1)), "max": lambda w: w.max(), "softmax of rows": lambda w: torch.softmax(w, 0),
    "mean": lambda w: w.mean(-2), "some rows": lambda w: w[:3], "a mask": lambda w: w[w > 0],
    "turned": lambda w: w.t(), "swapped": lambda w: w.transpose(0, 1), "flipped": lambda w: w.flip(
        0), "sorted": lambda w: w.sort(0)[0], "view": lambda w: w.view(4, -1), "flat": lambda w:
    w.view(-1), "first": lambda w: w[None], "new rows": lambda w: w.expand(6, *w.shape),
    "rows of rows": lambda w: w[..., torch.tensor([0])].view(-1)[w[:, 0].long()], "batch norm":
    lambda w: functional.batch_norm(w, None, None, training=True), "product": lambda w: w @ w.t(),
    "from the left": lambda w: torch.ones(6, 6) @ w, "numpy": lambda w: w.numpy(), "cumulative":
    lambda w: w.cumsum(0), "stacked": lambda w: torch.stack([w, w]), "joined": lambda w: torch.cat(
        [w, w]), "layer norm": lambda w: functional.layer_norm(w, (6, 4)), "row": lambda w: w[0],
    "normalized": lambda w: functional.normalize(w, dim=0), "by name": lambda w: w.sum(dim=0),
    "repeated": lambda w: w.repeat(2, 1), "standard deviation": lambda w: w.std(),
    "as many numbers": lambda w: w * torch.arange(24.0).view(6, 4), "one column": lambda w:
    w * torch.arange(6.0)[:, None]}


def numbers(width: int) -> Tensor:
    rows = torch.sin(torch.arange(6.0 * max(width, 1)) * 1.7)
    return rows.view(6, width) if width else rows


@pytest.mark.parametrize("name", [*(f"flat {n}" for n in FLAT), *(f"wide {n}" for n in WIDE)])
def test_what_is_made_of_each_row_is_as_of_ordinary_rows(name: str) -> None:
    kind, _, use = name.partition(" ")
    rows = numbers(0 if kind == "flat" else 4)
    function = (FLAT if kind == "flat" else WIDE)[use]
    found = function(edge_rows(rows, IDS))
    assert isinstance(found, EdgeRows)
    assert torch.equal(unguarded(found), function(rows))
    other = torch.tensor([4, 0, 2])  # each row by itself
    assert torch.equal(function(rows[other]), function(rows)[other])


@pytest.mark.parametrize("name", MIXED)
def test_what_looks_at_several_rows_is_refused(name: str) -> None:
    with pytest.raises(HetaError, match="rows of edges of"):
        MIXED[name](edge_rows(numbers(4), IDS))
