"""What DistributedDataParallel does beside gradients' averages: buffers, the memory of gradients,
passes inside of backward passes, tables, passes that fail."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from dgl.nn.pytorch import GraphConv
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from dgl_heta.distdgl.autograd.partial_gradients import whole
from tests.distdgl.programs.children import net
from tests.distdgl.programs.gradients import Partly
from tests.distdgl.programs.usual import HIDDEN, Inputs, Net, train
from tests.support.programs_worker import Trainer


def model(t: Trainer) -> Net:
    return net(t, lambda a, b: GraphConv(a, b, norm="right"), "sum")


def loss_of(t: Trainer, wrapped: nn.Module, batch: Any) -> Tensor:
    ids, seeds, blocks = batch
    return cross_entropy(wrapped(blocks, ids, t.features(ids)), t.labels(seeds))


class Headed(nn.Module):
    """A model and a function of its rows."""

    def __init__(self, inner: nn.Module, head: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.net, self.head = inner, head

    def forward(self, *args: Any) -> Tensor:
        return self.head(self.net(*args))


class Centre(nn.Module):
    """Takes a moving mean from rows, whose buffer is another tensor after each call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(4, dtype=torch.float64))

    def forward(self, rows: Tensor) -> Tensor:
        out = rows - 5 * self.centre
        self.centre = 0.5 * self.centre + 0.5 * rows.detach().mean(0)
        return out


def centred(t: Trainer) -> None:
    train(t, Headed(model(t), Centre()), 3)


def checkpointed(t: Trainer) -> None:
    """The head is computed again in the backward pass, by a pass of its own. Plain DGL computes it
    once, which is the same: DistributedDataParallel takes such checkpoints in static graphs alone.
    A layer beside it is thrown away, whose parameters have no gradient; the head's have one.
    """
    inner = Partly(t, "branch", lambda a, b: GraphConv(a, b, norm="right"))
    head = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
    headed = Headed(inner, lambda h: checkpoint(head, h, use_reentrant=True) if t.raf else head(h))
    headed.rest = head
    train(t, headed)


def flat(t: Trainer) -> None:
    """Gradients are views of one tensor, which is zeroed and clipped as a whole."""
    wrapped = t.parallel(model(t))
    parameters = [*wrapped.parameters()]
    sizes = [p.numel() for p in parameters]
    whole = torch.zeros(sum(sizes), dtype=torch.float64)
    for p, piece in zip(parameters, whole.split(sizes)):
        p.grad = piece.view_as(p)
    optimizer = torch.optim.SGD(parameters, 0.5)
    for _, batch in zip(range(3), t.loader()):
        whole.zero_()
        loss_of(t, wrapped, batch).backward()
        t.record("norm", whole.norm().reshape(1))
        whole.mul_((0.01 / whole.norm()).clamp(max=1))
        optimizer.step()
    t.parameters(wrapped)


class Normed(Inputs):
    """Inputs with a batch norm for each node type."""

    def __init__(self, t: Trainer) -> None:
        super().__init__(t.facts)
        self.norms = nn.ModuleDict({kind: nn.BatchNorm1d(HIDDEN) for kind in t.facts.counts})

    def forward(self, ids: dict[str, Tensor], features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {k: self.norms[k](x) for k, x in super().forward(ids, features).items()}


def normed(t: Trainer) -> None:
    """Running statistics of types, of which a machine may have no row."""
    inner = model(t)
    inner.inputs = inputs = Normed(t)
    wrapped = t.parallel(inner)
    for step, batch in zip(range(4), t.loader()):
        with torch.set_grad_enabled(step < 3):
            loss = loss_of(t, wrapped.train(step < 3), batch)
        if step < 3:
            loss.backward()
        t.record("rows", torch.tensor([len(batch[0][kind]) for kind in sorted(t.facts.counts)]))
    for kind, norm in sorted(inputs.norms.items()):
        t.record(f"statistics of {kind}", torch.stack([norm.running_mean, norm.running_var]))


class Classes(nn.Module):
    """Multiplies rows by those of a table, which is of no nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(3, 4, sparse=True)

    def forward(self, rows: Tensor) -> Tensor:
        return rows * self.table(torch.arange(len(rows)) % 3)


def replicas(t: Trainer) -> None:
    """Gradients of one pass and of three are the same, where trainers have copies of tables, which
    divide their own; the table of no nodes is none of these."""
    wrapped = t.parallel(Headed(model(t), Classes()))
    batches = [batch for _, batch in zip(range(3), t.loader(batch_size=6))]
    loss_of(t, wrapped, batches[0]).backward()
    torch.optim.SGD(wrapped.parameters(), 0.1).step()  # copies differ from now on
    found = []
    for together in (True, False):
        wrapped.zero_grad(set_to_none=together)
        if together:
            sum(loss_of(t, wrapped, batch) for batch in batches).backward()  # type: ignore[union-attr]
        else:
            for batch in batches:
                loss_of(t, wrapped, batch).backward()
        found.append([torch.zeros_like(p) if p.grad is None else p.grad.to_dense().clone()
                      for p in wrapped.parameters()])
    torch.testing.assert_close(*found)
    grad = wrapped.module.head.table.weight.grad.to_dense()
    total = grad.clone()
    dist.all_reduce(total)
    torch.testing.assert_close(total / t.world, grad)
    copies = [table.weight for table in wrapped.module.net.inputs.tables.values()
              if table.weight.grad is not None]
    assert copies
    divided = [copy.grad.clone() for copy in copies]
    wrapped.zero_grad()
    with wrapped.no_sync():
        losses = [loss_of(t, wrapped, batch) for batch in batches]
    sum(losses).backward()  # type: ignore[union-attr]
    for grad, copy in zip(divided, copies):
        torch.testing.assert_close(grad, whole(copy.grad) / t.world)


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise FloatingPointError("not a number")


def failed(t: Trainer) -> None:
    """A backward pass fails below all merges, and the script goes on, with another module first."""
    inner = model(t)
    inner.inputs.register_forward_hook(
        lambda _m, _x, out: {kind: Fails.apply(rows) for kind, rows in out.items()})
    wrapped, other = t.parallel(inner), t.parallel(nn.Linear(2, 1))
    for batch in t.loader():
        loss = loss_of(t, wrapped, batch)
        with contextlib.suppress(FloatingPointError):
            loss.backward()
        other(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
