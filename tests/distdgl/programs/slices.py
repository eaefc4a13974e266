"""Convolutions on slices of blocks, without HeteroGraphConv: as HAN, R-HGNN, HGT and others do."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import dgl
import dgl.function as fn
import torch
from dgl.nn.functional import edge_softmax
from dgl.nn.pytorch import GATConv, GATv2Conv, GraphConv, SAGEConv
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from tests.distdgl.programs.edge_data import Table, tables
from tests.distdgl.programs.usual import HIDDEN, Inputs, Net, train
from tests.support.programs_worker import Trainer

Etype = tuple[str, str, str]
States = dict[str, Tensor]


class Functions(nn.Module):
    """Message, reduce and apply functions of its own, with a linear layer over both ends."""

    def __init__(self, size: int, out: int, e: Etype) -> None:
        super().__init__()
        self.score, self.value = nn.Linear(2 * size, 1), nn.Linear(size, out)
        self.alone = e[0] == e[2]  # where DGL itself applies no function to a slice's nodes

    def forward(self, graph: Any, rows: tuple[Tensor, Tensor]) -> Tensor:
        with graph.local_scope():
            graph.srcdata["x"], graph.dstdata["x"] = rows
            graph.srcdata["value"] = self.value(rows[0])
            graph.apply_edges(lambda edges: {"score": leaky_relu(self.score(
                torch.cat([edges.src["x"], edges.dst["x"]], 1)))})
            graph.update_all(
                lambda edges: {"m": edges.src["value"], "s": edges.data["score"]},
                lambda nodes: {"y": (nodes.mailbox["s"].softmax(1) * nodes.mailbox["m"]).sum(1)},
                None if self.alone else lambda nodes: {"y": nodes.data["y"] * 2})
            out: Tensor = graph.dstdata["y"]
            return out


class Operators(nn.Module):
    """DGL's operators over graphs: attention, and a mean."""

    def __init__(self, size: int, out: int) -> None:
        super().__init__()
        self.key, self.value = nn.Linear(size, out), nn.Linear(size, out)

    def forward(self, graph: Any, rows: tuple[Tensor, Tensor]) -> Tensor:
        keys, queries = self.key(rows[0]), self.key(rows[1])
        score = edge_softmax(graph, dgl.ops.u_dot_v(graph, keys, queries))
        values = self.value(rows[0])
        found: Tensor = (dgl.ops.u_mul_e_sum(graph, values, score)
                         + dgl.ops.copy_u_mean(graph, values) + dgl.ops.copy_e_sum(graph, score))
        return found


class Weighted(nn.Module):
    """GraphConv with weights of edges, beside what divides by degrees."""

    def __init__(self, size: int, out: int, table: Table) -> None:
        super().__init__()
        self.conv = GraphConv(size, out, norm="none", allow_zero_in_degree=True)
        self.table = table

    def forward(self, graph: Any, rows: tuple[Tensor, Tensor]) -> Tensor:
        weights = self.table[graph.edata[dgl.EID]]
        out: Tensor = self.conv(graph, rows, edge_weight=weights)
        return out / (1 + graph.in_degrees()[:, None])


def kinds(size: int, out: int, every: dict[Etype, Table]) -> list[Callable[[Etype], nn.Module]]:
    return [
        lambda e: GraphConv(size, out, norm="right", allow_zero_in_degree=True),
        lambda e: SAGEConv(size, out, "mean"),
        lambda e: Functions(size, out, e),
        lambda e: GATConv((size, size), out // 2, 2, allow_zero_in_degree=True),
        lambda e: Operators(size, out),
        lambda e: SAGEConv(size, out, "pool"),
        lambda e: GATv2Conv(size, out // 2, 2, allow_zero_in_degree=True),
        lambda e: Weighted(size, out, every[e])]


class Layer(nn.Module):
    """A convolution of another kind for each relation, on its slice; merged by attention over
    relations, a row at a time.

    Parameters
    ----------
    first : the kind of the first relation.
    """

    def __init__(self, t: Trainer, size: int, out: int, first: int) -> None:
        super().__init__()
        made = kinds(size, out, tables(t))
        made = made[first:] + made[:first]
        self.convs = nn.ModuleDict({e[1]: make(e) for make, e in zip(made, t.facts.etypes)})
        self.own, self.attention = nn.Linear(size, out), nn.Linear(out, 1)

    def forward(self, block: Any, states: States) -> States:
        found: dict[str, list[Tensor]] = {}
        for src, etype, dst in block.canonical_etypes:
            graph = block[src, etype, dst]
            if graph.num_edges() == 0:
                continue
            rows = states[src], states[dst][:block.num_dst_nodes(dst)]
            found.setdefault(dst, []).append(self.convs[etype](graph, rows).flatten(1))
        out = {}
        for t, values in found.items():
            stacked = torch.stack([*values, self.own(states[t][:block.num_dst_nodes(t)])], 1)
            out[t] = (torch.softmax(self.attention(stacked), 1) * stacked).sum(1)
        return out


def convolutions(t: Trainer, first: int) -> None:
    train(t, Net(t.facts, lambda a, b: Layer(t, a, b, first)))


class Transformer(nn.Module):
    """DGL's example of HGT: scores on slices, messages by multi_update_all over the block; and a
    relation by its name."""

    def __init__(self, t: Trainer, size: int, out: int) -> None:
        super().__init__()
        self.size = out // 2
        self.keys, self.queries, self.values = (
            nn.ModuleDict({n: nn.Linear(size, out) for n in t.facts.counts}) for _ in range(3))
        self.weights = nn.ParameterDict({e: nn.Parameter(torch.randn(2, out // 2, out // 2))
                                         for _, e, _ in t.facts.etypes})
        self.prior = nn.ParameterDict({e: nn.Parameter(torch.ones(2)) for _, e, _ in
                                       t.facts.etypes})

    def forward(self, block: Any, states: States) -> States:
        functions = {}
        with block.local_scope():
            for src, etype, dst in block.canonical_etypes:
                graph = block[src, etype, dst]
                keys = self.keys[src](states[src]).view(len(states[src]), 2, self.size)
                own = states[dst][:block.num_dst_nodes(dst)]
                graph.srcdata["k"] = torch.einsum("nhi,hij->nhj", keys, self.weights[etype])
                graph.srcdata[f"v {etype}"] = self.values[src](states[src]).view(keys.shape)
                graph.dstdata["q"] = self.queries[dst](own).view(len(own), *keys.shape[1:])
                block.apply_edges(fn.v_dot_u("q", "k", "t"), etype=(src, etype, dst))
                score = graph.edata.pop("t").sum(-1) * self.prior[etype] / 2
                graph.edata["t"] = edge_softmax(graph, score, norm_by="dst").unsqueeze(-1)
                functions[src, etype, dst] = fn.u_mul_e(f"v {etype}", "t", "m"), fn.sum("m", "out")
            block.multi_update_all(functions, cross_reducer="mean")
            with block.local_scope():
                block.srcnodes["paper"].data["x"] = states["paper"]
                block.update_all(fn.copy_u("x", "m"), fn.max("m", "x"), etype="cites")
                most = block.dstnodes["paper"].data["x"]
            found = {n: block.dstnodes[n].data["out"].flatten(1) for n in block.dsttypes}
        return {n: x + most.sum(1, keepdim=True) if n == "paper" else x for n, x in found.items()}


def transformer(t: Trainer) -> None:
    train(t, Net(t.facts, lambda a, b: Transformer(t, a, b)))


class Copied(nn.Module):
    """HeteroGraphConv as repositories have copied it from DGL 0.7, under a name of their own."""

    def __init__(self, mods: dict[str, nn.Module], aggregate: Callable[[list[Tensor]], Tensor]
                 ) -> None:
        super().__init__()
        self.mods, self.agg_fn = nn.ModuleDict(mods), aggregate

    def forward(self, g: Any, inputs: Any, mod_args: Any = None, mod_kwargs: Any = None) -> States:
        mod_args, mod_kwargs = mod_args or {}, mod_kwargs or {}
        outputs: dict[str, list[Tensor]] = {nty: [] for nty in g.dsttypes}
        src_inputs = inputs
        dst_inputs = {k: v[:g.number_of_dst_nodes(k)] for k, v in inputs.items()}
        for stype, etype, dtype in g.canonical_etypes:
            rel_graph = g[stype, etype, dtype]
            if rel_graph.number_of_edges() == 0 or stype not in src_inputs:
                continue
            outputs[dtype].append(self.mods[etype](
                rel_graph, (src_inputs[stype], dst_inputs[dtype]), *mod_args.get(etype, ()),
                **mod_kwargs.get(etype, {})))
        return {nty: self.agg_fn(alist) for nty, alist in outputs.items() if alist}


def copied(t: Trainer) -> None:
    def layer(size: int, out: int) -> nn.Module:
        convs = {e: GATConv((size, size), out // 2, 2, allow_zero_in_degree=True) if number % 2
                 else SAGEConv(size, out, "gcn") for number, (_, e, _) in
                 enumerate(t.facts.etypes)}
        return Copied(convs, lambda values: torch.stack([x.flatten(1) for x in values]).mean(0))
    train(t, Net(t.facts, layer))


class Inner(nn.Module):
    """R-HGNN: each relation keeps states of its own from layer to layer."""

    def __init__(self, t: Trainer) -> None:
        super().__init__()
        self.etypes, sizes = t.facts.etypes, itertools.pairwise([HIDDEN, HIDDEN, HIDDEN])
        self.convs = nn.ModuleList(nn.ModuleDict({
            e: GATConv((a, a), b // 2, 2, allow_zero_in_degree=True) for _, e, _ in self.etypes})
            for a, b in sizes)
        self.cross = nn.Linear(HIDDEN, 1)
        self.head = nn.Linear(HIDDEN, t.facts.classes)

    def forward(self, blocks: list[Any], rows: States) -> Tensor:
        states = {e: rows[e[2]] for e in self.etypes}
        sources = {e: rows[e[0]] for e in self.etypes}
        for convs, block in zip(self.convs, blocks):
            found = {e: torch.tanh(convs[e[1]](block[e], (
                sources[e], states[e][:block.num_dst_nodes(e[2])])).flatten(1))
                for e in block.canonical_etypes}
            by_type = {t: torch.stack([x for e, x in found.items() if e[2] == t], 1)
                       for t in block.dsttypes}
            states = found
            merged = {t: (torch.softmax(self.cross(x), 1) * x).sum(1) for t, x in by_type.items()}
            sources = {e: merged[e[0]] for e in self.etypes}
        return self.head(merged["paper"])


class Relations(Net):
    """Inputs of the usual kind before it."""

    def __init__(self, t: Trainer) -> None:
        super().__init__(t.facts, lambda a, b: nn.Identity())
        self.inner = Inner(t)

    def forward(self, blocks: list[Any], ids: States, features: States) -> Tensor:
        found: Tensor = self.inner(blocks, self.inputs(ids, features))
        return found


def relations(t: Trainer) -> None:
    train(t, Relations(t))


def differently(t: Trainer, way: str) -> None:
    """What trainers must not do: call slices in another order, or leave one out; divide by the
    edges of sources; other fields."""
    for ids, _, (block,) in t.loader(layers=1):
        rows = {n: torch.ones(block.num_src_nodes(n), 2) for n in block.srctypes}
        into = [e for e in block.canonical_etypes if e[2] == "paper"]
        if way == "order" and t.rank % 2:
            into.reverse()
        if way == "left out":  # machines have no rows of some types
            into = [e for e in into if len(ids[e[0]])]
        if way == "degrees":
            GraphConv(2, 2, allow_zero_in_degree=True)(block["cites"], rows["paper"])
        for e in into:
            graph = block[e]
            graph.srcdata["x"] = rows[e[0]][:, :1] if way == "data" and t.rank else rows[e[0]]
            graph.update_all(fn.copy_u("x", "m"), fn.sum("m", "y"))


class Applied(nn.Module):
    """A function applied to maxima, and another one to minima."""

    def __init__(self, t: Trainer) -> None:
        super().__init__()
        self.inputs, self.out = Inputs(t.facts), nn.Linear(HIDDEN, t.facts.classes)

    def forward(self, blocks: list[Any], ids: States, features: States) -> Tensor:
        (block,), states, found = blocks, self.inputs(ids, features), []
        for src, etype, dst in block.canonical_etypes:
            if dst != "paper" or src == dst:  # where DGL itself applies no function
                continue
            graph = block[src, etype, dst]
            with graph.local_scope():
                graph.srcdata["x"] = states[src]
                graph.dstdata["own"] = states[dst][:graph.num_dst_nodes()]
                for reduce, apply in (
                        (fn.max, lambda nodes: {"y": torch.sigmoid(nodes.data["y"])}),
                        (fn.min, lambda nodes: {"y": nodes.data["y"] + nodes.data["own"]})):
                    graph.update_all(fn.copy_u("x", "m"), reduce("m", "y"), apply)
                    found.append(graph.dstdata["y"])
        return self.out(torch.stack(found).sum(0))


def applied(t: Trainer) -> None:
    """Rows without in-edges, and batches of two seeds, of which some have no edge at all."""
    net = t.parallel(Applied(t)).module
    with torch.no_grad():  # for DGL's backward pass fails for want of source rows
        for size in (2, 12):
            for ids, seeds, blocks in t.loader(batch_size=size, layers=1):
                t.record(f"out {size}", net(blocks, ids, t.features(ids)), seeds["paper"])
