"""Gradients that a script averages by itself, and what it does with them before."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from dgl.nn.pytorch import GraphConv, HeteroGraphConv
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_, parameters_to_vector

from tests.distdgl.programs.usual import HIDDEN, Net
from tests.support.programs_worker import Trainer

Action = Callable[[Trainer, nn.Module, list[Tensor]], Any]


def summed(t: Trainer, grads: list[Tensor]) -> None:
    for grad in grads:
        dist.all_reduce(grad.data, op=dist.ReduceOp.SUM)
        grad.data /= t.world


def whole(parameters: list[Tensor]) -> list[Tensor]:
    """All gradients, zeros where there is none, as collectives need them."""
    for p in parameters:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    return [p.grad for p in parameters if p.grad is not None]


def one_by_one(t: Trainer, net: nn.Module, parameters: list[Tensor]) -> None:
    summed(t, whole(parameters))


def in_a_bucket(t: Trainer, net: nn.Module, parameters: list[Tensor]) -> None:
    grads = whole(parameters)
    flat = torch._utils._flatten_dense_tensors(grads)  # type: ignore[attr-defined]
    dist.all_reduce(flat)
    flat /= t.world
    for grad, piece in zip(grads, torch._utils._unflatten_dense_tensors(  # type: ignore[attr-defined]
            flat, grads)):
        grad.copy_(piece)


def as_a_vector(t: Trainer, net: nn.Module, parameters: list[Tensor]) -> None:
    vector = parameters_to_vector(whole(parameters)) / t.world
    dist.all_reduce(vector)
    vector = vector * min(1.0, 0.1 / vector.norm().item())
    for p, piece in zip(parameters, vector.split([p.numel() for p in parameters])):
        p.grad = piece.view_as(p).clone()


def with_decay(t: Trainer, net: nn.Module, parameters: list[Tensor]) -> None:
    """What is added is the same on all trainers."""
    for p, grad in zip(parameters, whole(parameters)):
        grad.add_(p.detach(), alpha=0.1)
    summed(t, whole(parameters))
    clip_grad_norm_(parameters, 0.5)


def zeroed(t: Trainer, net: nn.Module, parameters: list[Tensor]) -> None:
    summed(t, whole(parameters))
    for p in parameters:
        t.record("before", p.grad)  # type: ignore[arg-type]
    net.zero_grad(set_to_none=False)
    for p in parameters:
        assert not p.grad.any()  # type: ignore[union-attr]


RIGHT: dict[str, Action] = {"one by one": one_by_one, "in a bucket": in_a_bucket,
                            "as a vector": as_a_vector, "with decay": with_decay,
                            "zeroed": zeroed}
WRONG: dict[str, Action] = {
    "norms": lambda t, net, ps: [g.norm().item() for g in whole(ps)],
    "clipped": lambda t, net, ps: clip_grad_norm_(ps, 0.1),
    "clamped": lambda t, net, ps: [g.clamp_(-1, 1) for g in whole(ps)],
    "signs": lambda t, net, ps: [dist.all_reduce(g.sign()) for g in whole(ps)],
    "maxima": lambda t, net, ps: dist.all_reduce(whole(ps)[0], dist.ReduceOp.MAX),
    "Adam": lambda t, net, ps: torch.optim.Adam(ps).step(),
    "SGD": lambda t, net, ps: torch.optim.SGD(ps, 0.1).step(),
    "SGD by hand": lambda t, net, ps: [p.data.sub_(0.1 * p.grad) for p in ps if p.grad is not None],
    "set": lambda t, net, ps: [setattr(p, "data", p.data - p.grad) for p in ps
                               if p.grad is not None],
    "numpy": lambda t, net, ps: [g.numpy() for g in whole(ps)],
    "an inverse": lambda t, net, ps: [1 / g for g in whole(ps)],
    "squares": lambda t, net, ps: [g * g for g in whole(ps)],
}


def model(t: Trainer) -> nn.Module:
    return Net(t.facts, lambda a, b: HeteroGraphConv(
        {e: GraphConv(a, b, norm="right") for _, e, _ in t.facts.etypes}, "mean"))


def loss_of(t: Trainer, net: nn.Module, batch: Any) -> Tensor:
    ids, seeds, blocks = batch
    return cross_entropy(net(blocks, ids, t.features(ids)), t.labels(seeds))


def without_wrapper(t: Trainer, way: str) -> None:
    """Gradients of no wrapped module, twice in a row."""
    net = model(t).double()
    parameters = [*net.parameters()]
    for _, batch in zip(range(2), t.loader()):
        loss_of(t, net, batch).backward()
        {**RIGHT, **WRONG}[way](t, net, parameters)
        for p in parameters:
            t.record("gradient", torch.zeros_like(p) if p.grad is None else p.grad)
        if t.rank == 0 and way == "zeroed":
            continue
        net.zero_grad()


def unsynchronised(t: Trainer, way: str) -> None:
    """Gradients of a wrapped module under no_sync, then with those of another batch."""
    net = t.parallel(model(t))
    parameters = [*net.parameters()]
    batches = [batch for _, batch in zip(range(2), t.loader())]
    with net.no_sync():
        loss_of(t, net, batches[0]).backward()
    if way in WRONG:
        WRONG[way](t, net, parameters)
    loss_of(t, net, batches[1]).backward()
    t.record("norm", clip_grad_norm_(parameters, 0.1))
    for p in parameters:
        t.record("gradient", torch.zeros_like(p) if p.grad is None else p.grad)


def beside(t: Trainer, way: str) -> None:
    """A table beside a wrapped module, which gives it rows; trained by an optimizer of its own."""
    class Rest(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model(t)
            self.net.inputs.tables.pop("author")

        def forward(self, blocks: Any, states: dict[str, Tensor]) -> Tensor:
            for layer, block in zip(self.net.layers, blocks):
                states = {k: x.tanh() for k, x in layer(block, states).items()}
            return states["paper"]

    table = nn.Embedding(t.facts.counts["author"], HIDDEN, sparse="sparse" in way).double()
    inner = Rest()
    inputs = t.parallel(inner.net.inputs)
    net = t.parallel(inner)
    optimizer = (torch.optim.SparseAdam if "sparse" in way else torch.optim.Adam)(
        table.parameters())
    for _, (ids, seeds, blocks) in zip(range(2), t.loader()):
        states = {**inputs(ids, t.features(ids)), "author": table(ids["author"])}
        cross_entropy(net(blocks, states), t.labels(seeds)).backward()
        if "averaged" in way:
            grad = table.weight.grad
            assert grad is not None
            dist.all_reduce(grad)
            grad /= t.world
        optimizer.step()
        t.record("table", table.weight)
        optimizer.zero_grad()


def head(t: Trainer) -> None:
    """A head above all merges has the gradient of the trainer's own seeds, wrapped or not."""
    net, top = t.parallel(model(t)), nn.Linear(t.facts.classes, t.facts.classes).double()
    for _, (ids, seeds, blocks) in zip(range(2), t.loader()):
        cross_entropy(top(net(blocks, ids, t.features(ids))), t.labels(seeds)).backward()
        t.record("norm", clip_grad_norm_(top.parameters(), 0.1))
        t.gradients(top)
        top.zero_grad()


class One(nn.Module):
    """A layer over frozen inputs; the weights of its relations have one shape."""

    def __init__(self, t: Trainer) -> None:
        super().__init__()
        self.inputs = Net(t.facts, lambda a, b: nn.Identity()).inputs.requires_grad_(False)
        self.conv = HeteroGraphConv({e: GraphConv(HIDDEN, t.facts.classes, norm="right")
                                     for _, e, d in t.facts.etypes if d == "paper"}, "sum")

    def forward(self, blocks: Any, ids: Any, features: Any) -> Tensor:
        states = self.inputs(ids, features)
        own = {"paper": states["paper"][:blocks[0].num_dst_nodes("paper")]}
        return self.conv(blocks[0], (states, own))["paper"]


def where_there(t: Trainer, way: str) -> None:
    """Gradients are averaged where there is one, and accumulated over two batches; by "copy" of a
    module that was never made, by "counted" after one trainer has made the same and let it go."""
    if way == "counted" and t.rank == 0:
        with torch.random.fork_rng():
            sum(p.numel() for p in One(t).parameters())
    net: Any = copy.deepcopy(One(t)) if way == "copy" else One(t)
    net = t.parallel(net) if way == "no_sync" else net.double()
    parameters = [p for p in net.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, 0.5)
    for number, batch in zip(range(4), t.loader(layers=1)):
        with net.no_sync() if way == "no_sync" else contextlib.nullcontext():
            loss_of(t, net, batch).backward()
        if number % 2:
            summed(t, [p.grad for p in parameters if p.grad is not None])
            for p in parameters:
                t.record("gradient", torch.zeros_like(p) if p.grad is None else p.grad)
            optimizer.step()
            optimizer.zero_grad()
    t.parameters(net)
