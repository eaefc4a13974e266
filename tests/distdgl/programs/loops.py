"""Training loops that are no loop of one forward and one backward pass per batch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from dgl.nn.pytorch import GATConv, GraphConv, HeteroGraphConv, SAGEConv
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import dgl_heta
from tests.distdgl.programs.usual import Inputs, Net
from tests.support.programs_worker import Trainer


def graph_net(t: Trainer, aggregate: str = "mean") -> nn.Module:
    return t.parallel(Net(t.facts, lambda a, b: HeteroGraphConv(
        {e: GraphConv(a, b, norm="right") for _, e, _ in t.facts.etypes}, aggregate)))


def attention_net(t: Trainer) -> nn.Module:
    return t.parallel(Net(t.facts, lambda a, b: HeteroGraphConv(
        {e: GATConv((a, a), b // 2, 2) for _, e, _ in t.facts.etypes}, "sum")))


def loss_of(t: Trainer, net: nn.Module, batch: Any) -> Tensor:
    ids, seeds, blocks = batch
    out = net(blocks, ids, t.features(ids))
    t.record("out", out, seeds["paper"])
    return cross_entropy(out, t.labels(seeds))


def two_models(t: Trainer, way: str) -> None:
    """Two forward passes of two models; then their backward passes, or one of both."""
    one, two = graph_net(t), attention_net(t)
    for _, batch in zip(range(2), t.loader()):
        first, second = loss_of(t, one, batch), loss_of(t, two, batch)
        for net in (one, two):
            net.zero_grad()
        if way == "in order":
            first.backward()
            second.backward()
        elif way == "in reverse":
            second.backward()
            first.backward()
        elif way == "together":
            (first * 2 + second).backward()
        elif way == "as a list":
            torch.autograd.backward([second, first], [torch.tensor(1.).double()] * 2)
        t.gradients(one)
        t.gradients(two)


def adversaries(t: Trainer) -> None:
    """One model's output is another's input; each has its backward pass."""
    maker, judge = graph_net(t), attention_net(t)
    for _, batch in zip(range(2), t.loader()):
        made = loss_of(t, maker, batch)
        judged = loss_of(t, judge, batch) * made.detach()
        judge.zero_grad()
        judged.backward()
        t.gradients(judge)
        maker.zero_grad()
        (made * loss_of(t, judge, batch).detach()).backward()
        t.gradients(maker)


def accumulated(t: Trainer, way: str) -> None:
    """Gradients of several batches."""
    net = graph_net(t)
    batches = [batch for _, batch in zip(range(3), t.loader(batch_size=6))]
    if way == "sum":
        sum(loss_of(t, net, batch) for batch in batches).backward()  # type: ignore[union-attr]
    elif way == "no_sync":
        with net.no_sync():
            for batch in batches[:-1]:
                loss_of(t, net, batch).backward()
        loss_of(t, net, batches[-1]).backward()
    else:
        for batch in batches:
            loss_of(t, net, batch).backward()
    t.gradients(net)


def two_losses(t: Trainer) -> None:
    """Two losses of one forward pass, each with its backward pass; averaged once."""
    net = graph_net(t)
    for _, (ids, seeds, blocks) in zip(range(2), t.loader()):
        with net.no_sync():
            out = net(blocks, ids, t.features(ids))
            t.record("out", out, seeds["paper"])
            cross_entropy(out, t.labels(seeds)).backward(retain_graph=True)
            out.square().mean().backward()
        for p in net.parameters():
            whole = torch.zeros_like(p) if p.grad is None else p.grad.clone()
            torch.distributed.all_reduce(whole)
            t.record("gradient", whole)


def retained(t: Trainer) -> None:
    """The same, averaged by DistributedDataParallel the first time alone."""
    net = graph_net(t)
    loss = loss_of(t, net, next(iter(t.loader())))
    loss.backward(retain_graph=True)
    loss.backward()


class Layers(nn.Module):
    """Inputs and layers, one at a time by what is passed."""

    def __init__(self, t: Trainer, conv: Any) -> None:
        super().__init__()
        self.inputs = Inputs(t.facts)
        self.layers = nn.ModuleList(HeteroGraphConv({
            e: conv(6, out) for _, e, _ in t.facts.etypes}, "sum") for out in (6, 4))


def by_hand(t: Trainer, way: str) -> None:
    """Layers are called by the loop, of one model or of two, layer by layer."""
    nets = [Layers(t, functools.partial(GraphConv, norm="right")).double(),
            Layers(t, lambda a, b: GATConv(a, b // 2, 2)).double()]
    nets = nets[:1] if way == "one" else nets
    for _, (ids, seeds, blocks) in zip(range(2), t.loader()):
        features = t.features(ids)
        states = [net.inputs(ids, features) for net in nets]
        for number, block in enumerate(blocks):
            states = [{k: x.flatten(1).tanh() for k, x in net.layers[number](block, h).items()}
                      for net, h in zip(nets, states)]
        losses = [cross_entropy(h["paper"], t.labels(seeds)) for h in states]
        for net in nets:
            net.zero_grad()
        if way == "two apart":
            for loss in losses:
                loss.backward()
        else:
            sum(losses).backward()  # type: ignore[union-attr]
        for net, h in zip(nets, states):
            t.record("out", h["paper"], seeds["paper"])
            for name, p in net.named_parameters():
                whole = torch.zeros_like(p) if p.grad is None else p.grad.clone()
                torch.distributed.all_reduce(whole)
                t.record(name, whole)


def teacher(t: Trainer) -> None:
    """A model without gradients runs between the layers of another."""
    net, other = graph_net(t), graph_net(t)
    for _, batch in zip(range(2), t.loader()):
        ids, seeds, blocks = batch
        with torch.no_grad():
            target = other(blocks, ids, t.features(ids))
        out = net(blocks, ids, t.features(ids))
        net.zero_grad()
        (out - target).square().mean().backward()
        t.record("out", out, seeds["paper"])
        t.gradients(net)


def forgotten(t: Trainer) -> None:
    """Forward passes with gradients and no backward pass; then training."""
    net = graph_net(t).module
    for batch in t.loader():
        loss_of(t, net, batch)
    wrapped = t.parallel(net)
    for _, batch in zip(range(2), t.loader()):
        loss = loss_of(t, wrapped, batch)
        wrapped.zero_grad()
        loss.backward()
        t.gradients(wrapped)


def left_alone(t: Trainer) -> None:
    """Trainer 0 leaves a pass after a batch, for the next epoch; another takes one batch more."""
    loader = t.loader(batch_size=3)
    batches, store = iter(loader), torch.distributed.distributed_c10d._get_default_store()
    t.record("batch", torch.ones(len(next(batches))))
    if t.rank:
        next(batches)
        store.wait(["said"])
        return
    try:
        iter(loader)
    finally:
        store.set("said", "")


def labels_as_inputs(t: Trainer, where: str) -> None:
    """Labels of neighbours are an input, those of all trainers' seeds are hidden; with whole blocks
    from the start, or inside of the model."""
    class Labelled(Net):
        def forward(self, blocks: list[Any], ids: dict[str, Tensor], features: dict[str, Tensor],
                    hidden: Tensor | None = None) -> Tensor:
            states = self.inputs(ids, features)
            hidden = torch.isin(ids["paper"], seeds_of(blocks)) if hidden is None else hidden
            labels = t.labels({"paper": ids["paper"]}).double() + 1
            states["paper"] = states["paper"] + labels.masked_fill(hidden, 0)[:, None]
            for layer, block in zip(self.layers, blocks):
                states = layer(block, states)
            return states["paper"]

    def seeds_of(blocks: list[Any]) -> Tensor:
        found = dgl_heta.all_seeds(blocks)["paper"]
        if t.raf:
            return found
        every: list[Any] = [None] * t.world
        torch.distributed.all_gather_object(every, found)
        return torch.cat([every[rank] for rank in t.partners])

    net = t.parallel(Labelled(t.facts, lambda a, b: HeteroGraphConv(
        {e: SAGEConv(a, b, "mean") for _, e, _ in t.facts.etypes}, "sum")))
    for _, (ids, seeds, blocks) in zip(range(2), t.loader()):
        own = dgl_heta.all_seeds(blocks)["paper"][:len(seeds["paper"])]
        assert torch.equal(own, seeds["paper"])
        hidden = torch.isin(ids["paper"], seeds_of(blocks)) if where == "outside" else None
        out = net(blocks, ids, t.features(ids), hidden)
        cross_entropy(out, t.labels(seeds)).backward()
        t.record("out", out, seeds["paper"])
        t.gradients(net)
    if t.session is not None and t.session.settings.run.prove != "off":
        assert t.session.watch.told is None, t.session.watch.told
        assert t.session.watch.proved > 0


class Dropped(Layers):
    """Residual layers, some of which are left out; which, is drawn in each forward pass."""

    def __init__(self, t: Trainer, left_out: Callable[[int], bool]) -> None:
        super().__init__(t, lambda a, b: GraphConv(a, a, norm="right"))
        self.head, self.left_out = nn.Linear(6, t.facts.classes), left_out

    def forward(self, blocks: list[Any], ids: dict[str, Tensor], features: dict[str, Tensor]
                ) -> Tensor:
        states = self.inputs(ids, features)
        for number, (layer, block) in enumerate(zip(self.layers, blocks)):
            own = {k: x[:block.num_dst_nodes(k)] for k, x in states.items()}
            merged = {} if self.left_out(number) else layer(block, states)
            states = {k: x + torch.tanh(merged[k]) if k in merged else x for k, x in own.items()}
        return self.head(states["paper"])


def layers_dropped(t: Trainer, how: str) -> None:
    """AdamW tells zeros from no gradient."""
    numbers = torch.Generator().manual_seed(2)
    ways = {"alike": lambda number: bool(torch.rand(1, generator=numbers) < 0.5),
            "both": lambda number: True,
            "first on one": lambda number: number == t.rank == 0,
            "last on one": lambda number: number == 1 and t.rank == 0}
    net = t.parallel(Dropped(t, ways[how]))
    optimizer = torch.optim.AdamW(net.parameters(), 0.01, weight_decay=0.1)
    for _, (ids, seeds, blocks) in zip(range(4), t.loader()):
        out = net(blocks, ids, t.features(ids))
        optimizer.zero_grad()
        cross_entropy(out, t.labels(seeds)).backward()
        t.record("out", out, seeds["paper"])
        t.gradients(net)
        optimizer.step()
    if t.session is not None and t.session.settings.run.prove != "off":
        assert t.session.watch.told is None, t.session.watch.told


def seeds_twice(t: Trainer, where: str) -> None:
    """A node twice in a batch of one trainer, or in batches of several, or in several batches."""
    nodes = t.nodes[:24]
    if t.rank and where == "in a batch":
        nodes = torch.cat([nodes[5:6], nodes])
    if where == "in several":
        first = t.whole.nodes["paper"].data["train_mask"].bool().nonzero()[0]
        nodes = torch.cat([first, nodes[1:], nodes[1:2]])
    net = graph_net(t)
    for ids, seeds, blocks in t.loader(nodes=nodes):
        out = net(blocks, ids, t.features(ids))
        net.zero_grad()
        cross_entropy(out, t.labels(seeds)).backward()
        t.record("out", out, seeds["paper"])
        t.gradients(net)
