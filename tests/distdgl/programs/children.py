"""Relations' own modules inside HeteroGraphConv, of users' kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dgl
import torch
from dgl import function as fn
from dgl.nn.pytorch import GATConv, GraphConv, HeteroGraphConv, SAGEConv
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from tests.distdgl.programs.usual import HIDDEN, Net, train
from tests.support.programs_worker import Facts, Trainer


def net(t: Trainer, child: Callable[[int, int], nn.Module], aggregate: Any = "mean",
        only: Callable[[tuple[str, str, str]], bool] = lambda _: True) -> Net:
    """Two layers with such a module for each relation."""
    return Net(t.facts, lambda a, b: HeteroGraphConv(
        {e[1]: child(a, b) for e in t.facts.etypes if only(e)}, aggregate))


class Child(nn.Module):
    """Linear layers of both ends, with something of the graph's own."""

    def __init__(self, size: int, out: int) -> None:
        super().__init__()
        self.source, self.destination = nn.Linear(size, out), nn.Linear(size, out)

    def message(self, graph: Any, x: Tensor) -> Tensor:
        with graph.local_scope():
            graph.srcdata["x"] = x
            graph.update_all(fn.copy_u("x", "m"), fn.mean("m", "y"))
            return graph.dstdata["y"]

    def forward(self, graph: Any, rows: tuple[Tensor, Tensor]) -> Tensor:
        return self.message(graph, self.source(rows[0])) + self.destination(rows[1])


# --- aggregations ----------------------------------------------------------------------------


def sage(t: Trainer, kind: str) -> None:
    train(t, net(t, lambda a, b: SAGEConv(a, b, kind), "sum"))


class Most(Child):
    def message(self, graph: Any, x: Tensor) -> Tensor:
        graph = graph.local_var()
        graph.srcdata["x"] = x
        graph.update_all(fn.copy_u("x", "m"), fn.max("m", "y"))
        return graph.dstdata["y"]


def most(t: Trainer) -> None:
    train(t, net(t, Most))


def least_merged(t: Trainer) -> None:
    train(t, net(t, Most, "min"))


class ByHand(Child):
    """Sums and degrees by edges and index_add."""

    def message(self, graph: Any, x: Tensor) -> Tensor:
        source, destination = graph.edges()
        out = x.new_zeros(graph.num_dst_nodes(), x.shape[1])
        out = out.index_add(0, destination, x[source])
        return out / graph.in_degrees().clamp(min=1)[:, None]


def by_hand(t: Trainer) -> None:
    train(t, net(t, ByHand, "sum"))


class Attention(Child):
    """A user's functions of messages and of mailboxes."""

    def message(self, graph: Any, x: Tensor) -> Tensor:
        with graph.local_scope():
            graph.srcdata["x"] = x
            graph.dstdata["y"] = x.new_zeros(graph.num_dst_nodes(), x.shape[1])
            graph.update_all(lambda edges: {"m": edges.src["x"] * edges.src["x"].tanh()},
                             lambda nodes: {"y": nodes.mailbox["m"].exp().sum(1).log()})
            return graph.dstdata["y"]


def own_functions(t: Trainer) -> None:
    train(t, net(t, Attention, "max"))


def gat(t: Trainer) -> None:
    train(t, net(t, lambda a, b: GATConv(a, b, 2, allow_zero_in_degree=True), lambda values, _: sum(
        v.mean(1) for v in values)))


class Normed(Child):
    """With batch normalisation, whose statistics are not of the batch."""

    def __init__(self, size: int, out: int) -> None:
        super().__init__(size, out)
        self.norm = nn.BatchNorm1d(size).eval()
        self.norm.requires_grad_()

    def train(self, mode: bool = True) -> Normed:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, graph: Any, rows: tuple[Tensor, Tensor]) -> Tensor:
        return super().forward(graph, (self.norm(rows[0]), rows[1]))


def batch_norm(t: Trainer) -> None:
    train(t, net(t, Normed))


def kept_statistics(t: Trainer, kind: str) -> None:
    """Running statistics of batch norms in DGL's own convolutions, as each trainer has them."""
    model = net(t, {
        "graph": lambda a, b: GraphConv(a, b, norm="right", activation=nn.BatchNorm1d(b)),
        "sage": lambda a, b: SAGEConv(a, b, "mean", norm=nn.BatchNorm1d(b)),
        "gat": lambda a, b: GATConv(a, b // 2, 2, allow_zero_in_degree=True,
                                    activation=nn.BatchNorm1d(2))}[kind], "sum")
    ids, _, blocks = next(iter(t.loader()))
    t.parallel(model)(blocks, ids, t.features(ids)).sum().backward()
    for name, buffer in model.named_buffers():
        t.record(name, buffer.reshape(1, -1), torch.tensor([0]))


# --- what a child reads of its graph ---------------------------------------------------------


class ReadsIds(Child):
    """Weights of rows by their ids, and by what the script has put on the sources."""

    def forward(self, graph: Any, rows: tuple[Tensor, Tensor]) -> Tensor:
        ids, own = graph.srcdata[dgl.NID], graph.dstdata[dgl.NID]
        assert len(own) == graph.num_dst_nodes() == len(rows[1])
        assert len(ids) == graph.num_src_nodes()
        scale = (ids % 5 + 1)[:, None].to(rows[0].dtype) * graph.srcdata["put"]
        out = super().forward(graph, (rows[0] * scale, rows[1]))
        return out * (own % 3 + 1)[:, None].to(out.dtype)


class PutsData(Net):
    def forward(self, blocks: list[Any], *rest: Any) -> Tensor:
        for block in blocks:
            for ntype in block.srctypes:
                ids = block.srcnodes[ntype].data[dgl.NID]
                block.srcnodes[ntype].data["put"] = (ids % 7 + 1).double()[:, None]
        return super().forward(blocks, *rest)


def reads_ids(t: Trainer) -> None:
    train(t, PutsData(t.facts, lambda a, b: HeteroGraphConv(
        {e: ReadsIds(a, b) for _, e, _ in t.facts.etypes}, "mean")))


class ReadsPut(Child):
    def forward(self, graph: Any, rows: tuple[Tensor, Tensor]) -> Tensor:
        return super().forward(graph, rows) * graph.dstdata["own"]


class PutsBelow(Net):
    def forward(self, blocks: list[Any], *rest: Any) -> Tensor:
        for block in blocks:
            for ntype in block.dsttypes:
                ids = block.dstnodes[ntype].data[dgl.NID]
                block.dstnodes[ntype].data["own"] = (ids % 7 + 1).double()[:, None]
        return super().forward(blocks, *rest)


def reads_destinations_below(t: Trainer) -> None:
    kinds = iter([ReadsPut, Child])

    def layer(a: int, b: int) -> HeteroGraphConv:
        kind = next(kinds)
        return HeteroGraphConv({e: kind(a, b) for _, e, _ in t.facts.etypes}, "sum")
    train(t, PutsBelow(t.facts, layer))


def reads_destinations_of_seeds(t: Trainer) -> None:
    train(t, PutsBelow(t.facts, lambda a, b: HeteroGraphConv(
        {e: ReadsPut(a, b) for _, e, _ in t.facts.etypes}, "sum")))


class ReadsEdgeIds(Child):
    def forward(self, graph: Any, rows: tuple[Tensor, Tensor]) -> Tensor:
        return super().forward(graph, rows) * graph.edata[dgl.EID].double().mean()


def reads_edge_ids(t: Trainer) -> None:
    train(t, net(t, ReadsEdgeIds))


# --- other inputs ----------------------------------------------------------------------------


class Embeds(nn.Module):
    """Takes node ids."""

    def __init__(self, src: int, dst: int, out: int) -> None:
        super().__init__()
        self.source, self.destination = nn.Embedding(src, out), nn.Embedding(dst, out)

    def forward(self, graph: Any, ids: tuple[Tensor, Tensor]) -> Tensor:
        with graph.local_scope():
            graph.srcdata["x"] = self.source(ids[0])
            graph.update_all(fn.copy_u("x", "m"), fn.mean("m", "y"))
            return graph.dstdata["y"] + self.destination(ids[1])


class OnIds(nn.Module):
    def __init__(self, facts: Facts) -> None:
        super().__init__()
        n = facts.counts
        self.first = HeteroGraphConv(
            {e: Embeds(n[s], n[d], HIDDEN) for s, e, d in facts.etypes}, "mean")
        self.last = HeteroGraphConv(
            {e: SAGEConv(HIDDEN, facts.classes, "mean") for _, e, _ in facts.etypes}, "sum")

    def forward(self, blocks: list[Any], ids: dict[str, Tensor], _: Any) -> Tensor:
        return self.last(blocks[1], self.first(blocks[0], ids))["paper"]


def node_ids(t: Trainer) -> None:
    train(t, OnIds(t.facts))


def node_ids_alone(t: Trainer) -> None:
    """One layer, in which the seeds' own ids are all that its destinations are."""
    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            n = t.facts.counts
            self.conv = HeteroGraphConv({e: Embeds(n[s], n[d], t.facts.classes)
                                         for s, e, d in t.facts.etypes}, "stack")

        def forward(self, block: Any, ids: dict[str, Tensor]) -> Tensor:
            return self.conv(block, ids)["paper"]
    module = t.parallel(One())
    for _, (ids, seeds, blocks) in zip(range(2), t.loader(layers=1)):
        out = module(blocks[0], ids)
        cross_entropy(out.sum(1), t.labels(seeds)).backward()
        t.record("out", out, seeds["paper"])
        t.gradients(module)


class Several(Child):
    """Takes a pair of tensors for each end."""

    def forward(self, graph: Any, rows: Any) -> Tensor:
        (x, ids), own = rows
        scale = (ids % 4 + 1)[:, None].to(x.dtype)
        return super().forward(graph, (x * scale, own["x"] * 2))


class PairNet(Net):
    def forward(self, blocks: list[Any], ids: dict[str, Tensor], features: dict[str, Tensor]
                ) -> Tensor:
        states = self.inputs(ids, features)
        for layer, block in zip(self.layers, blocks):
            nodes = {t: block.srcnodes[t].data[dgl.NID] for t in states}
            own = {t: {"x": x[:block.num_dst_nodes(t)]} for t, x in states.items()}
            states = layer(block, ({t: (x, nodes[t]) for t, x in states.items()}, own))
        return states["paper"]


def pairs(t: Trainer) -> None:
    train(t, PairNet(t.facts, lambda a, b: HeteroGraphConv(
        {e: Several(a, b) for _, e, _ in t.facts.etypes}, "sum")))


class Arguments(Net):
    """Arguments of modules by mod_args and mod_kwargs; edge weights below the last layer."""

    def forward(self, blocks: list[Any], ids: dict[str, Tensor], features: dict[str, Tensor]
                ) -> Tensor:
        states = self.inputs(ids, features)
        weights = {e: {"edge_weight": torch.full((blocks[0].num_edges((s, e, d)),), 1.5).double()}
                   for s, e, d in blocks[0].canonical_etypes}
        states = self.layers[0](blocks[0], states, mod_kwargs=weights)
        scales = {e: (torch.tensor(2.0).double(),) for _, e, _ in blocks[1].canonical_etypes}
        return self.layers[1](blocks[1], states, mod_args=scales)["paper"]


class Scaled(Child):
    def forward(self, graph: Any, rows: tuple[Tensor, Tensor], scale: Tensor) -> Tensor:
        return super().forward(graph, rows) * scale


def arguments(t: Trainer) -> None:
    kinds = iter([lambda a, b: GraphConv(a, b, norm="right"), Scaled])

    def layer(a: int, b: int) -> HeteroGraphConv:
        kind = next(kinds)
        return HeteroGraphConv({e: kind(a, b) for _, e, _ in t.facts.etypes}, "sum")
    train(t, Arguments(t.facts, layer))


class WeightsOfSeeds(Arguments):
    def forward(self, blocks: list[Any], ids: dict[str, Tensor], features: dict[str, Tensor]
                ) -> Tensor:
        states = self.layers[0](blocks[0], self.inputs(ids, features))
        weights = {e: {"edge_weight": torch.ones(blocks[1].num_edges((s, e, d))).double()}
                   for s, e, d in blocks[1].canonical_etypes}
        return self.layers[1](blocks[1], states, mod_kwargs=weights)["paper"]


def edge_weights_of_seeds(t: Trainer) -> None:
    train(t, WeightsOfSeeds(t.facts, lambda a, b: HeteroGraphConv(
        {e: GraphConv(a, b, norm="right") for _, e, _ in t.facts.etypes}, "sum")))


# --- merging ---------------------------------------------------------------------------------


def in_order(values: list[Tensor], _: str) -> Tensor:
    """Depends on the order of the relations, and on how many there are."""
    return sum(v * (i + 1) for i, v in enumerate(values)) / len(values)


def callable_in_order(t: Trainer) -> None:
    train(t, net(t, Child, in_order))


class Stacked(Net):
    def forward(self, blocks: list[Any], ids: dict[str, Tensor], features: dict[str, Tensor]
                ) -> Tensor:
        states = self.inputs(ids, features)
        for layer, block in zip(self.layers, blocks):
            states = {t: (x * torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]).sum(1)
                      for t, x in layer(block, states).items()}
        return states["paper"]


def stack_in_order(t: Trainer) -> None:
    train(t, Stacked(t.facts, lambda a, b: HeteroGraphConv(
        {e: Child(a, b) for _, e, _ in t.facts.etypes}, "stack")))


def some_relations(t: Trainer) -> None:
    """Trainers that have no relation of the last layer's, with inputs of these alone."""
    model = Net(t.facts, lambda a, b: HeteroGraphConv(
        {e: Child(a, b) for _, e, _ in t.facts.etypes}, "mean"))

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = HeteroGraphConv({"rev-topic": Child(HIDDEN, t.facts.classes)}, "max")

        def forward(self, block: Any, states: dict[str, Tensor]) -> dict[str, Tensor]:
            paper = states["paper"][:block.num_dst_nodes("paper")]
            return self.conv(block, ({"field": states["field"]}, {"paper": paper}))
    model.layers[1] = Last()
    train(t, model)


class Single(nn.Module):
    """In less precision than the rest."""

    def __init__(self, size: int, out: int) -> None:
        super().__init__()
        self.inner = Child(size, out)

    def forward(self, graph: Any, rows: tuple[Tensor, Tensor]) -> Tensor:
        return self.inner(graph, rows).to(torch.float32)


def mixed_dtypes(t: Trainer) -> None:
    kinds = {e: Single if s == "author" else Child for s, e, _ in t.facts.etypes}
    model = Net(t.facts, lambda a, b: HeteroGraphConv(
        {e: kind(a, b) for e, kind in kinds.items()}, "stack"))

    class Top(nn.Module):
        def __init__(self, conv: nn.Module) -> None:
            super().__init__()
            self.conv = conv

        def forward(self, block: Any, states: dict[str, Tensor]) -> dict[str, Tensor]:
            return {t: x.double().sum(1) for t, x in self.conv(block, states).items()}
    for place, layer in enumerate(model.layers):
        model.layers[place] = Top(layer)
    train(t, model)


class Half(Child):
    """What it returns is of less precision."""

    dtype = torch.float16

    def forward(self, graph: Any, rows: tuple[Tensor, Tensor]) -> Tensor:
        return super().forward(graph, tuple(x.double() for x in rows)).to(self.dtype)


class HalfNet(Net):
    def forward(self, *inputs: Any) -> Tensor:
        out = super().forward(*inputs)
        assert out.dtype == Half.dtype
        return out.double()


def half(t: Trainer, aggregate: str) -> None:
    train(t, HalfNet(t.facts, lambda a, b: HeteroGraphConv(
        {e: Half(a, b) for _, e, _ in t.facts.etypes}, aggregate)))


def autocast(t: Trainer, kind: str) -> None:
    children = {"graph": lambda a, b: GraphConv(a, b, norm="right", bias=False), "own": Child}[kind]
    wrapped = nn.parallel.DistributedDataParallel(
        net(t, children, "sum").float(), find_unused_parameters=True)
    for _, (ids, seeds, blocks) in zip(range(2), t.loader()):
        with torch.autocast("cpu", torch.bfloat16):
            out = wrapped(blocks, ids, {k: x.float() for k, x in t.features(ids).items()})
        assert out.dtype == torch.bfloat16
        cross_entropy(out.float(), t.labels(seeds)).backward()
        t.record("out", out.double(), seeds["paper"])
    t.gradients(wrapped)


class Saves(Child):
    """With activation checkpointing of its own."""

    def forward(self, graph: Any, rows: tuple[Tensor, Tensor]) -> Tensor:
        return checkpoint(super().forward, graph, rows, use_reentrant=False)


def checkpointed_child(t: Trainer) -> None:
    train(t, net(t, Saves))


class CheckpointedInputs(Net):
    """Activation checkpointing of what is between layers, and of the input layer."""

    def forward(self, blocks: list[Any], ids: dict[str, Tensor], features: dict[str, Tensor]
                ) -> Tensor:
        states = checkpoint(self.inputs, ids, features, use_reentrant=False)
        for layer, block in zip(self.layers, blocks):
            states = {t: checkpoint(torch.tanh, x, use_reentrant=True)
                      for t, x in layer(block, states).items()}
        return states["paper"]


def checkpointed_between(t: Trainer) -> None:
    train(t, CheckpointedInputs(t.facts, lambda a, b: HeteroGraphConv(
        {e: Child(a, b) for _, e, _ in t.facts.etypes}, "sum")))


class CheckpointedLayers(Net):
    reentrant = False

    def forward(self, blocks: list[Any], ids: dict[str, Tensor], features: dict[str, Tensor]
                ) -> Tensor:
        states = self.inputs(ids, features)
        for layer, block in zip(self.layers, blocks):
            names: list[str] = []

            def run(*rows: Tensor, layer: Any = layer, block: Any = block, names: Any = names,
                    given: Any = tuple(states)) -> tuple[Tensor, ...]:
                out = layer(block, dict(zip(given, rows)))
                names[:] = out
                return tuple(out.values())
            found = checkpoint(run, *states.values(), use_reentrant=self.reentrant)
            states = dict(zip(names, found))
        return states["paper"]


def checkpointed_layers(t: Trainer, reentrant: bool) -> None:
    model = CheckpointedLayers(t.facts, lambda a, b: HeteroGraphConv(
        {e: Child(a, b) for _, e, _ in t.facts.etypes}, "sum"))
    model.reentrant = reentrant
    train(t, model)


# --- refused ---------------------------------------------------------------------------------


class BySources(Child):
    """Something by source: `kind` says what."""

    kind = ""

    def message(self, graph: Any, x: Tensor) -> Tensor:
        if not graph.num_edges():
            return super().message(graph, x)
        if self.kind == "out_degrees":
            x = x / graph.out_degrees().clamp(min=1)[:, None]
        elif self.kind == "adj":
            x = x / graph.adj_external(scipy_fmt="coo").sum(1).max()
        elif self.kind == "successors":
            x = x * len(graph.successors(0))
        elif self.kind == "out_edges":
            x = x * len(graph.out_edges(0)[0])
        elif self.kind == "softmax":
            weights = dgl.nn.functional.edge_softmax(
                graph, x.new_zeros(graph.num_edges(), 1), norm_by="src")
            return dgl.ops.u_mul_e_sum(graph, x, weights)
        elif self.kind == "clone":
            x = x / graph.local_var().out_degrees().clamp(min=1)[:, None]
        return super().message(graph, x)


def by_sources(t: Trainer, kind: str) -> None:
    children = type(f"By_{kind}", (BySources,), {"kind": kind})
    train(t, net(t, children))


class Named(GraphConv):
    """A subclass, which is called itself."""


def norm_both(t: Trainer) -> None:
    train(t, net(t, lambda a, b: GraphConv(a, b, norm="both")))


def norm_both_subclass(t: Trainer) -> None:
    train(t, net(t, lambda a, b: Named(a, b, norm="both")))


class Wrapped(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        inner.set_allow_zero_in_degree(True)

    def forward(self, graph: Any, rows: tuple[Tensor, Tensor]) -> Tensor:
        return self.inner(graph, rows)


def norm_left_wrapped(t: Trainer) -> None:
    train(t, net(t, lambda a, b: Wrapped(GraphConv(a, b, norm="left"))))


class Returns(Child):
    def forward(self, graph: Any, rows: tuple[Tensor, Tensor]) -> Any:
        out = super().forward(graph, rows)
        return {"tuple": (out, out), "dict": {"out": out}, "rows": out.repeat(2, 1)}[self.kind]


def returns(t: Trainer, kind: str) -> None:
    """Plain DGL could merge these by a callable."""
    first = {"tuple": lambda v: v[0], "dict": lambda v: v["out"],
             "rows": lambda v: v[:len(v) // 2]}[kind]
    children = type(f"Returns_{kind}", (Returns,), {"kind": kind})
    train(t, net(t, children, lambda values, _: sum(map(first, values))))


