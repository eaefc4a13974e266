"""DistributedDataParallel on a meta-partitioned graph.

Gradients are averaged over all trainers at the end of a backward pass, also those of parameters
that a trainer's relations do not use. Rows of an embedding move alone, not the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from dgl.nn.pytorch import HeteroGraphConv
from torch import Tensor, nn

from dgl_heta.comm.collectives import Comm
from dgl_heta.comm.gradients import GradientAverage
from dgl_heta.distdgl.blocks import RafBlock
from dgl_heta.distdgl.session import Session


class Parallel:
    """What replaces the reducer of one DistributedDataParallel module."""

    def __init__(self, session: Session, module: nn.Module) -> None:
        session.connect()
        self.session, self.module = session, module
        self.synchronize = True
        self._ran = False
        self._average = getattr(session.wrapper, "average_gradients", None) or GradientAverage()
        tables = [m for m in module.modules() if isinstance(m, nn.Embedding)]
        self._tables = list({id(m.weight): m.weight for m in tables
                             if m.weight.requires_grad}.values())
        known = {id(p) for p in self._tables}
        self._dense = [p for p in module.parameters() if p.requires_grad and id(p) not in known]
        self._buffers = list(module.buffers())
        session.all_complete = session.all_complete or any(
            isinstance(m, nn.modules.batchnorm._NormBase) for m in module.modules())
        self._merges = any(isinstance(m, HeteroGraphConv) for m in module.modules())
        for state in [*module.parameters(), *module.buffers()]:
            _copy_from_first(session.world, state.data)
        for parameter in [*self._tables, *self._dense]:
            parameter.register_post_accumulate_grad_hook(lambda _: session.on_backward())
        session.after_backward.append(self.end_backward)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the module, and check that it reduced what its blocks need."""
        self._ran = self._ran or torch.is_grad_enabled()
        if self._buffers and self.module.training and torch.is_grad_enabled():
            for buffer in self._buffers:
                _copy_from_first(self.session.world, buffer.data)
        done = len(self.session.exchange.done)
        output = self.module(*inputs, **kwargs)
        blocks = [b for b in _blocks((inputs, kwargs)) if b.layer is not None]
        # A module that only looks at blocks (an input layer) is no model over them; one that
        # should have reduced and did not is found when the next batch is asked for.
        if blocks and (self._merges or len(self.session.exchange.done) > done):
            self.session.check({(b.layer.block.layer, t) for b in blocks if b.layer
                                for t, shares in b.layer.block.seeds.items() if shares.total})
        return output

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients accumulate without being averaged."""
        before, self.synchronize = self.synchronize, False
        try:
            yield
        finally:
            self.synchronize = before

    def end_backward(self) -> None:
        """Average the gradients of a module that took part in the backward pass."""
        if not self._ran or not self.synchronize:
            return
        self._ran = False
        world = self.session.world
        self._average(self._dense, world)
        replica = self.session.settings.train.learnable == "replica"
        for table in self._tables:
            if replica:
                if table.grad is not None:
                    table.grad = table.grad / world.size
            else:
                average_rows(table, world)


def average_rows(table: Tensor, world: Comm) -> None:
    """Average the gradient of an embedding over all workers; only rows that have one move."""
    if world.size == 1:
        return
    grad = table.grad
    ids, values = _rows(table, grad)
    ones = [1] * world.size
    mine = torch.tensor([[len(ids), int(grad is not None), int(grad is not None and
                                                               grad.is_sparse)]])
    found = world.all_gather_rows(mine, ones, "gradients")
    sizes, used, sparse = found[:, 0].tolist(), bool(found[:, 1].any()), bool(found[:, 2].any())
    if not used:
        return
    ids = world.all_gather_rows(ids, sizes, "gradients")
    values = world.all_gather_rows(values, sizes, "gradients") / world.size
    if sparse:
        table.grad = torch.sparse_coo_tensor(ids[None], values, table.shape).coalesce()
    else:
        table.grad = torch.zeros_like(table).index_add_(0, ids, values)


def _rows(table: Tensor, grad: Tensor | None) -> tuple[Tensor, Tensor]:
    if grad is None:
        return torch.empty(0, dtype=torch.int64), table.new_empty((0, *table.shape[1:]))
    if grad.is_sparse:
        whole = grad.coalesce()
        return whole.indices()[0].contiguous(), whole.values()
    ids = grad.abs().sum(dim=tuple(range(1, grad.dim()))).nonzero()[:, 0]
    return ids, grad[ids]


def _copy_from_first(world: Comm, state: Tensor) -> None:
    """Equal initial values everywhere, those of trainer 0, as DistributedDataParallel does."""
    if world.size > 1 and state.numel():
        world.broadcast(state, "control")


def _blocks(value: Any, depth: int = 4) -> Iterator[RafBlock]:
    """RAF blocks among the arguments of a forward pass."""
    if isinstance(value, RafBlock):
        yield value
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from _blocks(item, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for item in value:
            yield from _blocks(item, depth - 1)
