"""Which parameters have a gradient, and which have none."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from dgl import function as fn
from dgl.nn.pytorch import GATConv, GraphConv, HeteroGraphConv
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.distdgl.programs.usual import HIDDEN, Inputs
from tests.support.programs_worker import Trainer


class Partly(nn.Module):
    """Two layers of which not all is used.

    Parameters
    ----------
    way : "layer" (the second layer reads the inputs), "branch" (a layer beside it is thrown away),
        "type" (a node type is left out of the dictionary), "wide" (rows are exchanged before
        weights, and a type is left out), "detached" (the first layer's states lose their graph).
    """

    def __init__(self, t: Trainer, way: str, conv: Any) -> None:
        super().__init__()
        self.way, self.inputs = way, Inputs(t.facts)
        out = 16 if way == "wide" else 4
        sizes = [(HIDDEN, HIDDEN), (HIDDEN, out), (HIDDEN, out)]
        self.layers = nn.ModuleList(
            HeteroGraphConv({e: conv(a, b) for _, e, _ in t.facts.etypes}, "sum")
            for a, b in sizes)

    def forward(self, blocks: list[Any], ids: dict[str, Tensor], features: dict[str, Tensor]
                ) -> Tensor:
        inputs = self.inputs(ids, features)
        if self.way in ("type", "wide"):
            inputs = {t: x for t, x in inputs.items() if t != "author"}
        states = {t: x.flatten(1).tanh() for t, x in self.layers[0](blocks[0], inputs).items()}
        if self.way in ("type", "wide"):
            states.pop("author", None)
        if self.way == "detached":
            states = {t: x.detach() for t, x in states.items()}
        if self.way == "branch":
            self.layers[2](blocks[1], states)
        if self.way == "layer":
            states = {t: x[:blocks[1].num_src_nodes(t)] for t, x in inputs.items()}
        return self.layers[1](blocks[1], states)["paper"].flatten(1)


def partly(t: Trainer, way: str) -> None:
    """AdamW moves a parameter whose gradient is zero, and leaves one that has none."""
    attention = way in ("branch", "detached")
    net = t.parallel(Partly(t, way, (lambda a, b: GATConv((a, a), b // 2, 2)) if attention else (
        lambda a, b: GraphConv(a, b, norm="right", bias=way != "wide"))))
    optimizer = torch.optim.AdamW(net.parameters(), 0.01, weight_decay=0.1)
    for _, (ids, seeds, blocks) in zip(range(2), t.loader()):
        out = net(blocks, ids, t.features(ids))
        loss = cross_entropy(out, t.labels(seeds))
        optimizer.zero_grad()
        loss.backward()
        t.record("out", out, seeds["paper"])
        t.gradients(net)
        optimizer.step()
    t.parameters(net)


class Viewing(nn.Module):
    """Sums of a view, two numbers a head, which is kept."""

    def __init__(self, size: int, out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, out)
        self.view: Tensor | None = None

    def forward(self, graph: Any, rows: tuple[Tensor, Tensor]) -> Tensor:
        with graph.local_scope():
            self.view = self.linear(rows[0]).view(len(rows[0]), -1, 2)
            graph.srcdata["x"] = self.view
            graph.update_all(fn.copy_u("x", "m"), fn.sum("m", "y"))
            return graph.dstdata["y"].flatten(1)


def watched(t: Trainer, way: str) -> None:
    """What would see a part of a gradient."""
    model = Partly(t, "all", Viewing if way == "view" else (
        lambda a, b: GraphConv(a, b, norm="right")))
    parameter = next(model.layers[0].parameters())
    if way == "parameter":
        parameter.register_hook(lambda grad: grad)
    if way == "after":
        parameter.register_post_accumulate_grad_hook(lambda p: None)
    if way == "module":
        model.layers[0].register_full_backward_hook(lambda *_: None)
    kept: list[Tensor] = []
    if way == "states":
        model.layers[0].register_forward_hook(lambda m, _, out: kept.append(out["paper"]))
    if way == "inside":
        model.layers[0].register_forward_hook(lambda m, _, out: out["paper"].retain_grad())
    net = t.parallel(model)
    ids, seeds, blocks = next(iter(t.loader()))
    features = t.features(ids)
    if way == "inputs":
        features = {k: x.clone().requires_grad_() for k, x in features.items()}
    out = net(blocks, ids, features)
    loss = cross_entropy(out, t.labels(seeds))
    if way == "logits":  # above all exchanges
        (grad,) = torch.autograd.grad(loss, out, retain_graph=True)
        t.record("gradient", grad, seeds["paper"])
    if way == "second":
        torch.autograd.grad(loss, [parameter], create_graph=True)
    if way == "states":
        torch.autograd.grad(loss, kept, allow_unused=True)
    if way == "view":
        views = [m.view for m in net.modules() if isinstance(m, Viewing) and m.view is not None]
        torch.autograd.grad(loss, views[-1], allow_unused=True)
    loss.backward()
    t.gradients(net)


class Tasks(nn.Module):
    """A model with two heads, of which one reads the inputs alone."""

    def __init__(self, t: Trainer) -> None:
        super().__init__()
        self.inputs = Inputs(t.facts)
        self.layers = nn.ModuleList(HeteroGraphConv({
            e: GraphConv(HIDDEN, HIDDEN, norm="right") for _, e, _ in t.facts.etypes}, "sum")
            for _ in range(2))
        self.heads = nn.ModuleList(nn.Linear(HIDDEN, 4) for _ in range(3))

    def forward(self, blocks: list[Any], ids: dict[str, Tensor], features: dict[str, Tensor]
                ) -> list[Tensor]:
        states = inputs = self.inputs(ids, features)
        for layer, block in zip(self.layers, blocks):
            states = {t: x.tanh() for t, x in layer(block, states).items()}
        own = inputs["paper"][:len(states["paper"])]
        return [head(x) for head, x in zip(self.heads, [states["paper"], states["paper"], own])]


def tasks(t: Trainer, way: str) -> None:
    """Gradients by task, each of the own loss, made one that conflicts with none (PCGrad),
    which is averaged by the script: of a model by itself, or of one inside `no_sync`."""
    net: Any = Tasks(t).double()
    if way == "wrapped":
        net = t.parallel(net)
    parameters = list(net.parameters())
    for _, (ids, seeds, blocks) in zip(range(2), t.loader()):
        with net.no_sync() if way == "wrapped" else contextlib.nullcontext():
            outs = net(blocks, ids, t.features(ids))
        labels = t.labels(seeds)
        losses = [cross_entropy(out, (labels + number) % 4) for number, out in enumerate(outs)]
        grads = [torch.autograd.grad(loss, net.parameters(), retain_graph=loss is not losses[-1],
                                     allow_unused=True) for loss in losses]
        for number, each in enumerate(grads if way == "alone" else ()):  # torch's gives zeros
            t.record(f"unused by task {number}", torch.tensor([float(g is None) for g in each]))
        whole = [torch.cat([(torch.zeros_like(p) if g is None else g).flatten()
                            for p, g in zip(parameters, each)]) for each in grads]
        t.record("gradients", torch.stack(whole))
        conflict = torch.stack(whole) @ torch.stack(whole).T
        projected = [g - sum((h * min(conflict[i, j].item(), 0) / conflict[j, j]
                              for j, h in enumerate(whole) if j != i), torch.zeros_like(g))
                     for i, g in enumerate(whole)]
        step = torch.stack(projected).sum(0)
        torch.distributed.all_reduce(step)
        with torch.no_grad():
            for p, g in zip(parameters, step.split([p.numel() for p in parameters])):
                p -= 0.1 * g.view_as(p) / t.world
    t.parameters(net)


def perturbed(t: Trainer) -> None:
    """Inputs are moved against the trainer's own loss (FGSM), then it trains on them."""
    net = Tasks(t).double()
    for _, (ids, seeds, blocks) in zip(range(2), t.loader()):
        rows = {k: x.clone().requires_grad_() for k, x in t.features(ids).items()}
        loss = cross_entropy(net(blocks, ids, rows)[0], t.labels(seeds))
        grads = torch.autograd.grad(loss, list(rows.values()))
        moved = {k: x.detach() + 0.1 * g.sign() for (k, x), g in zip(rows.items(), grads)}
        out = net(blocks, ids, moved)[0]
        net.zero_grad()
        cross_entropy(out, t.labels(seeds)).backward()
        t.record("out", out, seeds["paper"])
        for p in net.parameters():
            whole = torch.zeros_like(p) if p.grad is None else p.grad
            torch.distributed.all_reduce(whole)
            p.data -= 0.1 * whole / t.world
    t.parameters(net)


def alone(t: Trainer) -> None:
    """Evaluation on trainer 0; the others wait at a barrier."""
    next(iter(t.loader()))
    found = None
    if t.rank == 0:
        try:
            t.loader()
        except Exception as error:
            found = error
    torch.distributed.barrier()
    t.record("nothing", torch.zeros(1))
    if found is not None:
        raise found


class Own(nn.Module):
    """The last block is merged, and what comes out is not used: logits are of own rows alone."""

    def __init__(self, t: Trainer) -> None:
        super().__init__()
        self.inputs, self.linear = Inputs(t.facts), nn.Linear(HIDDEN, t.facts.classes)
        self.conv = HeteroGraphConv(
            {e: GraphConv(HIDDEN, HIDDEN, norm="right") for _, e, _ in t.facts.etypes})

    def forward(self, blocks: list[Any], ids: dict[str, Tensor], features: dict[str, Tensor]
                ) -> Tensor:
        states = self.inputs(ids, features)
        self.conv(blocks[0], states)
        return self.linear(states["paper"][:blocks[0].num_dst_nodes("paper")])


def unused(t: Trainer) -> None:
    """A loss that depends on no exchange; then with a second model that takes no part in it."""
    nets = [t.parallel(Own(t)), t.parallel(Own(t))]
    for step, (ids, seeds, blocks) in enumerate(t.loader(layers=1)):
        outs = [net(blocks, ids, t.features(ids)) for net in nets[:1 + step % 2]]
        for net, out in zip(nets, outs):
            cross_entropy(out, t.labels(seeds)).backward()
            t.record("out", out, seeds["paper"])
            t.gradients(net)


class Residual(Own):
    """What is merged is added to own rows: on a machine without a relation from papers their input
    layer is above all merges."""

    def forward(self, blocks: list[Any], ids: dict[str, Tensor], features: dict[str, Tensor]
                ) -> Tensor:
        states = self.inputs(ids, features)
        merged = self.conv(blocks[0], states)["paper"]
        return self.linear(merged + states["paper"][:blocks[0].num_dst_nodes("paper")])


def shared(t: Trainer) -> None:
    """The gradient of a layer that tasks share, of each trainer's own loss (GradNorm)."""
    net = Residual(t).double()
    for _, (ids, seeds, blocks) in zip(range(2), t.loader(layers=1)):
        loss = cross_entropy(net(blocks, ids, t.features(ids)), t.labels(seeds))
        for _ in range(2):
            t.record("gradient", *torch.autograd.grad(
                loss, [net.inputs.linear["paper"].weight], retain_graph=True))


def zero(t: Trainer, way: str) -> None:
    """Trainer 1 has no labelled node in its batch, so its loss is 0 times all parameters."""
    net = t.parallel(Residual(t), find_unused_parameters=False)
    for _, (ids, seeds, blocks) in zip(range(2), t.loader(layers=1)):
        with net.no_sync() if way == "no_sync" else contextlib.nullcontext():
            out = net(blocks, ids, t.features(ids))
            nothing = 0.0 * torch.stack([p.sum() for p in net.parameters()]).sum()
            loss = nothing if t.rank == 1 else nothing + cross_entropy(out, t.labels(seeds))
            net.zero_grad()
            loss.backward()
        if way == "no_sync":
            for p in net.parameters():
                torch.distributed.all_reduce(p.grad)
        t.gradients(net)
