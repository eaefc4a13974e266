"""Memories of states: tables of all nodes that a script fills with states of its batches' rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dgl
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tests.distdgl.programs.scopes import Open, gradients
from tests.distdgl.programs.usual import HIDDEN
from tests.support.programs_worker import Trainer

Write = Callable[[Tensor, Tensor, Tensor, int], Any]
"""To a table of all nodes: ids, states, and how many are own seeds'."""


def copied(memory: Tensor, ids: Tensor, states: Tensor, n: int) -> None:
    """By way of a tensor of the batch's rows, as DGL's and PyG's histories do."""
    rows = torch.empty(len(ids), states.shape[1], dtype=states.dtype)
    rows.copy_(states)
    memory.data.index_copy_(0, ids, rows)


INCOMPLETE: dict[str, Write] = {
    "set": lambda memory, ids, states, n: memory.__setitem__(ids, states),
    "copied": copied,
    "averaged": lambda memory, ids, states, n: memory.__setitem__(
        ids, 0.9 * memory[ids] + 0.1 * states.relu()),
    "added": lambda memory, ids, states, n: memory.index_add_(0, ids, states),
    "scattered": lambda memory, ids, states, n: memory.scatter_(
        0, ids[:, None].expand_as(states), states),
    "another": lambda memory, ids, states, n: memory.index_put((ids,), states),
    "one by one": lambda memory, ids, states, n: [
        memory.__setitem__(node, row) for node, row in zip(ids.tolist(), states)]}
COMPLETE: dict[str, Write] = {
    "own": lambda memory, ids, states, n: memory.__setitem__(ids[:n], states[:n]),
    "numbers": lambda memory, ids, states, n: memory.__setitem__(ids, 1.0)}


def memory(t: Trainer, given: tuple[str, str, bool]) -> None:
    """States after layer 1 are kept for all nodes of a type, in training or in evaluation."""
    way, type_, grads = given
    net = t.parallel(Open(t.facts))
    kept = torch.zeros(t.facts.counts[type_], HIDDEN, dtype=torch.float64)
    for _, (ids, seeds, blocks) in zip(range(2), t.loader(batch_size=12)):
        with torch.set_grad_enabled(grads):
            out, levels = net(blocks, ids, t.features(ids))
        if grads:
            net.zero_grad()
            cross_entropy(out, t.labels(seeds)).backward()
        {**INCOMPLETE, **COMPLETE}[way](
            kept, blocks[1].srcnodes[type_].data[dgl.NID], levels[1][type_].detach(),
            len(seeds[type_]) if type_ in seeds else 0)
        t.record("own", kept[seeds["paper"]] if type_ == "paper" else torch.ones(1))
        if grads:
            gradients(t, net.module)

