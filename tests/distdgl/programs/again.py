"""Merges that read one another, and what looks at gradients where no module or wrapper is."""

from __future__ import annotations

from typing import Any

import dgl
import dgl.function as fn
import torch
from dgl.nn.pytorch import GraphConv, HeteroGraphConv
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.distdgl.programs.edge_data import tables
from tests.distdgl.programs.usual import Inputs, Net, train
from tests.support.programs_worker import Trainer


def graph_convs(t: Trainer) -> Net:
    return Net(t.facts, lambda a, b: HeteroGraphConv(
        {e: GraphConv(a, b, norm="right") for _, e, _ in t.facts.etypes}, "sum"))


def softmax_by_hand(t: Trainer, way: str) -> None:
    """Sums that the next messages are divided by, with data of edges; trained or evaluated."""
    every = tables(t)

    class Layer(nn.Module):
        def __init__(self, a: int, b: int) -> None:
            super().__init__()
            self.own = nn.Linear(a, b)
            self.of = nn.ModuleDict({e: nn.Linear(a, b) for _, e, _ in t.facts.etypes})

        def forward(self, block: Any, states: dict[str, Tensor]) -> dict[str, Tensor]:
            out = {k: self.own(x[:block.num_dst_nodes(k)]) for k, x in states.items()}
            for src, etype, dst in block.canonical_etypes:
                one = block[etype]
                with one.local_scope():
                    one.edata["w"] = every[src, etype, dst][one.edata[dgl.EID]].unsqueeze(-1)
                    one.srcdata["z"] = self.of[etype](states[src])
                    one.apply_edges(fn.u_mul_e("z", "w", "l"))
                    one.apply_edges(lambda edges: {
                        "x": torch.exp(edges.data["l"].tanh().sum(-1, keepdim=True))})
                    one.update_all(fn.copy_e("x", "m"), fn.sum("m", "total"))
                    one.apply_edges(fn.e_div_v("x", "total", "a"))
                    one.update_all(fn.u_mul_e("z", "a", "m"), fn.sum("m", "y"))
                    out[dst] = out[dst] + one.dstdata["y"]
            return out

    net: Any = Net(t.facts, Layer)
    if way == "train":
        train(t, net)
        return
    net = t.parallel(net).eval()
    with torch.no_grad():
        for _, (ids, seeds, blocks) in zip(range(2), t.loader()):
            t.record("out", net(blocks, ids, t.features(ids)), seeds["paper"])


def between_wrapped(t: Trainer, way: str) -> None:
    """A hook, or `retain_grad`, on what one wrapped module gives another."""
    class Rest(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = graph_convs(t).layers

        def forward(self, blocks: Any, states: dict[str, Tensor]) -> Tensor:
            hidden = {k: x.tanh() for k, x in self.layers[0](blocks[0], states).items()}
            return self.layers[1](blocks[1], hidden)["paper"]

    first, rest = t.parallel(Inputs(t.facts)), t.parallel(Rest())
    ids, seeds, blocks = next(iter(t.loader()))
    states = {k: x.clone() for k, x in first(ids, t.features(ids)).items()}
    for x in states.values():
        if way == "hook":
            x.register_hook(lambda grad: grad.clamp(-1e-4, 1e-4))
        else:
            x.retain_grad()
    cross_entropy(rest(blocks, states), t.labels(seeds)).backward()


def hooked_parameters(t: Trainer) -> None:
    """Of a model that nothing wraps: gradients are clipped by each trainer."""
    net = graph_convs(t).double()
    for parameter in net.parameters():
        parameter.register_hook(lambda grad: grad.clamp(-1e-3, 1e-3))
    ids, seeds, blocks = next(iter(t.loader()))
    cross_entropy(net(blocks, ids, t.features(ids)), t.labels(seeds)).backward()


def late_model(t: Trainer) -> None:
    """A model that no wrapper averages, after many passes of one that is wrapped."""
    net, loader = t.parallel(graph_convs(t)), t.loader(batch_size=6)
    for ids, seeds, blocks in loader:
        net.zero_grad()
        cross_entropy(net(blocks, ids, t.features(ids)), t.labels(seeds)).backward()
    other = graph_convs(t).double()
    optimizer = torch.optim.SGD(other.parameters(), 0.1)
    for ids, seeds, blocks in loader:
        optimizer.zero_grad()
        cross_entropy(other(blocks, ids, t.features(ids)), t.labels(seeds)).backward()
        optimizer.step()


def other_dtype(t: Trainer) -> None:
    """One module without parameters for labels and for features."""
    spread = HeteroGraphConv({e: GraphConv(1, 1, norm="right", weight=False, bias=False)
                              for _, e, _ in t.facts.etypes}, "sum")
    ids, _, blocks = next(iter(t.loader(layers=1)))
    states = {k: torch.sin(i.double()[:, None] * torch.arange(1., 7).double())
              for k, i in ids.items()}
    spread(blocks[0], {k: (x > 0).float() for k, x in states.items()})
    spread(blocks[0], states)
