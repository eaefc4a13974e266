"""Heterogeneous models in the manner of PyG's users, some of them random."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import (
    BatchNorm,
    FastRGCNConv,
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GraphConv,
    HANConv,
    HeteroBatchNorm,
    HeteroConv,
    HeteroDictLinear,
    HGTConv,
    JumpingKnowledge,
    RGATConv,
    RGCNConv,
    SAGEConv,
    TransformerConv,
    to_hetero,
)
from torch_geometric.nn import LayerNorm as NodeNorm
from torch_geometric.utils import trim_to_layer

WIDTH, CLASSES, TARGET = 6, 4, "paper"
Rows = dict[str, Tensor]
Metadata = tuple[list[str], list[tuple[str, str, str]]]


def convolution(kind: str, loop: bool = False) -> nn.Module:
    """A convolution from and to rows of WIDTH; `loop` says that its relation stays in a type."""
    both = (WIDTH, WIDTH)
    return {
        "sage": lambda: SAGEConv(both, WIDTH),
        "sage-max": lambda: SAGEConv(both, WIDTH, aggr="max", normalize=True),
        "graph": lambda: GraphConv(both, WIDTH, aggr="mean"),
        "gat": lambda: GATConv(both, WIDTH // 2, heads=2, add_self_loops=False),
        "gatv2": lambda: GATv2Conv(both, WIDTH, heads=2, concat=False, add_self_loops=False),
        "gin": lambda: GINConv(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()), train_eps=True),
        "transformer": lambda: TransformerConv(both, WIDTH // 2, heads=2, beta=True),
        "gcn": lambda: GCNConv(WIDTH, WIDTH) if loop else SAGEConv(both, WIDTH),
    }[kind]()


KINDS = ("sage", "sage-max", "graph", "gat", "gatv2", "gin", "transformer", "gcn")


class Inputs(nn.Module):
    """Rows of every type, made WIDTH wide; sizes are found from the first batch."""

    def __init__(self, metadata: Metadata) -> None:
        super().__init__()
        self.linear = HeteroDictLinear(-1, WIDTH, types=metadata[0])

    def forward(self, x_dict: Rows) -> Rows:
        return {t: x.tanh() for t, x in self.linear(x_dict).items()}


class Layers(nn.Module):
    """HeteroConv, layer after layer, with what people put around it."""

    def __init__(self, metadata: Metadata, choose: random.Random, aggr: str | None = None,
                 trims: bool = False) -> None:
        super().__init__()
        self.aggr = aggr or choose.choice(["sum", "mean", "max", "min", "cat", "prod", None])
        self.inputs, self.depth = Inputs(metadata), choose.choice([1, 2, 2, 3])
        made = choose.choice([1, self.depth])  # one for all layers: weights that are shared
        one = choose.choice([*KINDS, None])
        self.layers = nn.ModuleList(HeteroConv(
            {r: convolution(one or choose.choice(KINDS), r[0] == r[2]) for r in metadata[1]},
            aggr=self.aggr) for _ in range(made))
        into = {t: sum(r[2] == t for r in metadata[1]) for t in metadata[0]}
        wider = self.aggr in ("cat", None)
        self.narrow = nn.ModuleDict({t: nn.Linear(WIDTH * (n if wider else 1), WIDTH)
                                     for t, n in into.items()})
        self.residual, self.gated = choose.random() < 0.5, choose.random() < 0.4
        self.gates = nn.ModuleDict({t: nn.Linear(2 * WIDTH, 1) for t in metadata[0]})
        self.norm = choose.choice([None, nn.LayerNorm(WIDTH), NodeNorm(WIDTH, mode="node")])
        self.act: Any = choose.choice([torch.relu, torch.nn.functional.elu, torch.tanh])
        self.knowledge = choose.choice([None, "cat", "max"])
        self.jump = JumpingKnowledge(self.knowledge) if self.knowledge else None
        self.out = nn.Linear(WIDTH * (self.depth if self.knowledge == "cat" else 1), CLASSES)
        self.trims = trims

    def forward(self, x_dict: Rows, edge_index_dict: Any, num_nodes: Any = None,
                num_edges: Any = None) -> Tensor:
        x_dict, of_layers = self.inputs(x_dict), []
        for number in range(self.depth):
            if self.trims:
                x_dict, edge_index_dict, _ = trim_to_layer(
                    number, num_nodes, num_edges, x_dict, edge_index_dict)
            new = self.layers[number % len(self.layers)](x_dict, edge_index_dict)
            new = {t: self.act(self.narrow[t](x.flatten(1))) for t, x in new.items()}
            if self.gated:
                for t, x in new.items():
                    gate = torch.sigmoid(self.gates[t](torch.cat([x, x_dict[t]], 1)))
                    new[t] = gate * x + (1 - gate) * x_dict[t]
            elif self.residual:
                new = {t: x + x_dict[t] for t, x in new.items()}
            x_dict = new if self.norm is None else {t: self.norm(x) for t, x in new.items()}
            of_layers.append(x_dict[TARGET])
        return self.out(self.jump(of_layers) if self.jump else x_dict[TARGET])


class OneGraph(nn.Module):
    """A model of one node type, for `to_hetero`."""

    def __init__(self, choose: random.Random) -> None:
        super().__init__()
        kinds = [k for k in KINDS if k not in ("gin", "gcn")]
        self.first, self.second = convolution(choose.choice(kinds)), convolution("sage")
        self.norm = nn.LayerNorm(WIDTH) if choose.random() < 0.5 else nn.Identity()
        self.skip, self.linear = choose.random() < 0.5, nn.Linear(WIDTH, CLASSES)

    def forward(self, x, edge_index):  # torch.fx, by which it is traced, knows no postponed types
        x = x.tanh()
        y = self.norm(self.first(x, edge_index)).relu_()
        y = self.second(y, edge_index)
        if self.skip:
            y = y + x
        return self.linear(y)


class Transformed(nn.Module):
    def __init__(self, metadata: Metadata, choose: random.Random, aggr: str) -> None:
        super().__init__()
        self.inputs, self.model = Inputs(metadata), to_hetero(OneGraph(choose), metadata, aggr)

    def forward(self, x_dict: Rows, edge_index_dict: Any) -> Tensor:
        return self.model(self.inputs(x_dict), edge_index_dict)[TARGET]


class Attention(nn.Module):
    """HGT, and what its example has around it."""

    def __init__(self, metadata: Metadata, choose: random.Random) -> None:
        super().__init__()
        self.inputs = Inputs(metadata)
        self.layers = nn.ModuleList(HGTConv(WIDTH, WIDTH, metadata, choose.choice([1, 2]))
                                    for _ in range(choose.choice([1, 2])))
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, x_dict: Rows, edge_index_dict: Any) -> Tensor:
        x_dict = self.inputs(x_dict)
        for layer in self.layers:
            x_dict = layer(x_dict, edge_index_dict)
        return self.out(x_dict[TARGET])


class Semantic(nn.Module):
    """HANConv, then what people put after it."""

    def __init__(self, metadata: Metadata, choose: random.Random) -> None:
        super().__init__()
        self.inputs = Inputs(metadata)
        self.layers = nn.ModuleList(HANConv(WIDTH, WIDTH, metadata, heads=choose.choice([1, 2]))
                                    for _ in range(choose.choice([1, 2])))
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, x_dict: Rows, edge_index_dict: Any) -> Tensor:
        x_dict = self.inputs(x_dict)
        for layer in self.layers:
            x_dict = {t: x.tanh() for t, x in layer(x_dict, edge_index_dict).items()}
        return self.out(x_dict[TARGET])


class Normalised(nn.Module):
    """HeteroConv with a batch normalisation for each type."""

    def __init__(self, metadata: Metadata, choose: random.Random) -> None:
        super().__init__()
        self.inputs, kind = Inputs(metadata), choose.choice([nn.BatchNorm1d, BatchNorm])
        self.layers = nn.ModuleList(HeteroConv({r: convolution("sage") for r in metadata[1]})
                                    for _ in range(2))
        self.norms = nn.ModuleList(nn.ModuleDict({
            t: kind(WIDTH, momentum=choose.choice([0.1, None])) for t in metadata[0]})
            for _ in range(2))
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, x_dict: Rows, edge_index_dict: Any) -> Tensor:
        x_dict = self.inputs(x_dict)
        for layer, norms in zip(self.layers, self.norms):
            x_dict = {t: norms[t](x).relu() for t, x in layer(x_dict, edge_index_dict).items()}
        return self.out(x_dict[TARGET])


class AsOne(nn.Module):
    """Convolutions of one graph with types of edges, as `to_homogeneous` gives it."""

    homogeneous = True

    def __init__(self, metadata: Metadata, make: Callable[[int], nn.Module], norm: bool = False
                 ) -> None:
        super().__init__()
        self.inputs, number = Inputs(metadata), len(metadata[1])
        self.first, self.second = make(number), make(number)
        self.norm = HeteroBatchNorm(WIDTH, len(metadata[0])) if norm else None
        self.out, self.place = nn.Linear(WIDTH, CLASSES), metadata[0].index(TARGET)

    def forward(self, x_dict: Rows, edge_index: Tensor, edge_type: Tensor, node_type: Tensor
                ) -> Tensor:
        x = torch.cat([*self.inputs(x_dict).values()])
        x = self.first(x, edge_index, edge_type)
        if self.norm is not None:
            x = self.norm(x, node_type[:len(x)])
        return self.out(self.second(x.tanh(), edge_index, edge_type)[node_type == self.place])


def of_one_graph() -> dict[str, Callable[[int], nn.Module]]:
    """Convolutions that are given types of edges."""
    both: Any = (WIDTH, WIDTH)
    made: dict[str, Callable[[int], nn.Module]] = {
        "RGCN": lambda n: RGCNConv(*both, n),
        "RGCN max": lambda n: RGCNConv(*both, n, num_bases=3, aggr="max"),
        "RGCN blocks": lambda n: RGCNConv(*both, n, num_blocks=2, aggr="add"),
        "FastRGCN": lambda n: FastRGCNConv(*both, n, num_bases=2),
        "RGAT": lambda n: RGATConv(WIDTH, WIDTH // 2, n, heads=2),
        "RGAT within": lambda n: RGATConv(WIDTH, WIDTH, n, num_bases=2, concat=False,
                                          attention_mechanism="within-relation"),
        "RGAT product": lambda n: RGATConv(WIDTH, WIDTH // 2, n, dim=2, concat=True, num_blocks=3,
                                           attention_mode="multiplicative-self-attention")}
    for mod in ("additive", "scaled", "f-additive", "f-scaled"):
        made[f"RGAT {mod}"] = partial(rgat, mod)
    return made


def rgat(mod: str, relations: int) -> nn.Module:
    conv = RGATConv(WIDTH, WIDTH // 2, relations, heads=2, mod=mod)
    nn.init.constant_(conv.l2, 0.1)  # which RGATConv leaves as the memory was
    return conv


class OfTypes(nn.Module):
    """Rows of every type, by an attention and a HeteroConv."""

    def __init__(self, metadata: Metadata, norms: bool = False) -> None:
        super().__init__()
        self.norms = nn.ModuleDict({t: BatchNorm(WIDTH) if norms else nn.Identity()
                                    for t in metadata[0]})
        self.inputs, self.first = Inputs(metadata), HGTConv(WIDTH, WIDTH, metadata, 2)
        self.second = HeteroConv({r: convolution("sage") for r in metadata[1]}, aggr="mean")
        self.out = HeteroDictLinear(WIDTH, CLASSES, types=metadata[0])

    def forward(self, x_dict: Rows, edge_index_dict: Any) -> Rows:
        x_dict = self.first(self.inputs(x_dict), edge_index_dict)
        x_dict = self.second(x_dict, edge_index_dict)
        return self.out({t: self.norms[t](x) for t, x in x_dict.items()})


class ByHand(nn.Module):
    """Relations that are called and added one by one, each with a weight of its own."""

    def __init__(self, metadata: Metadata, choose: random.Random) -> None:
        super().__init__()
        self.inputs, self.relations = Inputs(metadata), metadata[1]
        shared = convolution("sage") if choose.random() < 0.5 else None
        self.convs = nn.ModuleList(shared or convolution(choose.choice(KINDS), r[0] == r[2])
                                   for r in self.relations)
        self.weights = nn.Parameter(torch.rand(len(self.relations)))
        self.way, self.out = choose.choice(["sum", "add", "weighted"]), nn.Linear(WIDTH, CLASSES)

    def forward(self, x_dict: Rows, edge_index_dict: Any) -> Tensor:
        x_dict = self.inputs(x_dict)
        for _ in range(2):
            of_types: dict[str, list[Any]] = {t: [] for t in x_dict}
            for conv, weight, (s, e, t) in zip(self.convs, self.weights, self.relations):
                ends = x_dict[s] if s == t else (x_dict[s], x_dict[t])
                rows = conv(ends, edge_index_dict[s, e, t])
                of_types[t].append(rows * weight if self.way == "weighted" else rows)
            x_dict = {}
            for t, rows in of_types.items():
                total = sum(rows)
                if self.way == "add":
                    total = rows[0]
                    for other in rows[1:]:
                        total = torch.add(total, other)
                    total = total / len(rows)
                x_dict[t] = total.tanh()
        return self.out(x_dict[TARGET])


def random_model(metadata: Metadata, number: int) -> nn.Module:
    """One of a family of models, always the same for a number."""
    choose = random.Random(number)
    families: list[Callable[[], nn.Module]] = [
        lambda: Layers(metadata, choose),
        lambda: Transformed(metadata, choose, choose.choice(["sum", "mean", "max", "min", "mul"])),
        lambda: Attention(metadata, choose), lambda: ByHand(metadata, choose),
        lambda: Layers(metadata, choose)]
    return families[number % len(families)]()


def models(metadata: Metadata) -> dict[str, Callable[[], nn.Module]]:
    """All models whose exactness is shown, by name."""
    named: dict[str, Callable[[], nn.Module]] = {}
    for aggr in ("sum", "mean", "max", "min", "cat"):
        named[f"HeteroConv {aggr}"] = partial(Layers, metadata, random.Random(1), aggr)
    for aggr in ("sum", "mean", "max", "min", "mul"):
        named[f"to_hetero {aggr}"] = partial(Transformed, metadata, random.Random(1), aggr)
    named["HGTConv"] = partial(Attention, metadata, random.Random(3))
    named["HANConv"] = partial(Semantic, metadata, random.Random(2))
    named["BatchNorm"] = partial(Normalised, metadata, random.Random(1))
    named["BatchNorm of torch"] = partial(Normalised, metadata, random.Random(3))
    for name, make in of_one_graph().items():
        named[name] = partial(AsOne, metadata, make, norm=name == "RGCN")
    named["trimmed"] = partial(Layers, metadata, random.Random(6), "sum", trims=True)
    for number in range(25):
        named[f"random {number}"] = partial(random_model, metadata, number)
    return named
