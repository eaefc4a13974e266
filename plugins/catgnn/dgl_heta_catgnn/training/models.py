"""GraphSAGE, GCN, GAT, SGC and NGNN over graphs and blocks, and one's own (CATGNN, §3.3).

A model is a module with `layers`, each called as `layer(graph, states)`: `graph` is a DGLGraph or
a block, `states` has a row for each source node, the result one for each destination. So it runs
on a part, on sampled blocks, and layer by layer on the whole graph.

Norms of GCN and SGC are those of the whole graph (`in_norm`, `out_norm`): a part's halo nodes have
other degrees there. Where neighbours are sampled, a node's sum is scaled to all of them.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from dgl.nn.pytorch import GATConv, GraphConv, SAGEConv
from torch import Tensor, nn

from dgl_heta import InputError
from dgl_heta.tools import listing, nearest


@dataclass(frozen=True)
class ModelShape:
    """The shape of a model: widths of features, hidden states and outputs, and its settings."""

    width: int
    hidden: int
    classes: int
    layers: int = 2
    dropout: float = 0.5
    heads: int = 4

    def widths(self) -> list[tuple[int, int]]:
        """Return each layer's input and output widths."""
        inner = [self.hidden] * (self.layers - 1)
        return list(zip([self.width, *inner], [*inner, self.classes]))


class Layer(nn.Module):
    """A convolution of DGL's, then ReLU and dropout but behind the last one.

    Parameters
    ----------
    conv : of DGL's; with `weighted` it takes the weights of edges.
    inside : NGNN's (Song et al., 2021): a linear layer behind the ReLU, with a ReLU of its own.
    """

    def __init__(self, conv: nn.Module, shape: ModelShape, last: bool, *, weighted: bool = False,
                 inside: nn.Module | None = None) -> None:
        super().__init__()
        self.conv, self.inside, self.weighted, self.last = conv, inside, weighted, last
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, graph: Any, states: Tensor) -> Tensor:
        given = {"edge_weight": edge_weights(graph)} if self.weighted else {}
        out: Tensor = self.conv(graph, states, **given)
        if out.dim() == 3:  # attention heads: side by side, at last their mean
            out = out.mean(1) if self.last else out.flatten(1)
        if self.last:
            return out
        out = torch.relu(out)
        if self.inside is not None:
            out = torch.relu(self.inside(out))
        return self.dropout(out)


class Stack(nn.Module):
    """Layers one after the other; `loops` says whether nodes have self-loops."""

    loops = False

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, graph: Any, states: Tensor) -> Tensor:
        """Over a graph, or over a list of blocks, one for each layer."""
        graphs = graph if isinstance(graph, list) else [graph] * len(self.layers)
        for one, layer in zip(graphs, self.layers):
            states = layer(one, states)
        return states


class Sage(Stack):
    """GraphSAGE with means (Hamilton et al., 2017)."""

    extra = False

    def __init__(self, shape: ModelShape) -> None:
        widths = shape.widths()
        super().__init__([
            Layer(SAGEConv(wide, out, "mean"), shape, last, inside=nn.Linear(out, out)
                  if self.extra and not last else None)
            for (wide, out), last in zip(widths, _last(len(widths)))])


class Ngnn(Sage):
    """NGNN (Song et al., 2021): GraphSAGE with a linear layer more inside each hidden layer."""

    extra = True


class Gcn(Stack):
    """GCN (Kipf and Welling, 2017)."""

    loops = True

    def __init__(self, shape: ModelShape) -> None:
        widths = shape.widths()
        super().__init__([
            Layer(GraphConv(wide, out, norm="none", allow_zero_in_degree=True), shape, last,
                  weighted=True) for (wide, out), last in zip(widths, _last(len(widths)))])


class Gat(Stack):
    """GAT (Veličković et al., 2018): heads side by side, at last their mean."""

    loops = True

    def __init__(self, shape: ModelShape) -> None:
        if shape.hidden % shape.heads:
            raise InputError(f"hidden is {shape.hidden}, which {shape.heads} heads cannot share; "
                             "choose a multiple of heads")
        widths = shape.widths()
        super().__init__([
            Layer(GATConv(wide, out if last else out // shape.heads, shape.heads,
                          allow_zero_in_degree=True), shape, last)
            for (wide, out), last in zip(widths, _last(len(widths)))])


class Sgc(Stack):
    """SGC (Wu et al., 2019): states are only propagated, then one linear layer.

    The same as DGL's SGConv on a graph whose edges go both ways, but over blocks, too.
    """

    loops = True

    def __init__(self, shape: ModelShape) -> None:
        super().__init__([Propagation(nn.Linear(shape.width, shape.classes) if last else None)
                          for last in _last(shape.layers)])


class Propagation(nn.Module):
    """A hop of SGC, with the linear layer behind the last one."""

    def __init__(self, linear: nn.Module | None) -> None:
        super().__init__()
        self.hop = GraphConv(1, 1, norm="none", weight=False, bias=False,
                             allow_zero_in_degree=True)
        self.linear = linear

    def forward(self, graph: Any, states: Tensor) -> Tensor:
        out: Tensor = self.hop(graph, states, edge_weight=edge_weights(graph))
        return out if self.linear is None else self.linear(out)


MODELS: dict[str, Callable[[ModelShape], nn.Module]] = {
    "sage": Sage, "gcn": Gcn, "gat": Gat, "sgc": Sgc, "ngnn": Ngnn}


def build(name: str, shape: ModelShape) -> nn.Module:
    """A model by its name, or by `module:attribute`: what maps a :class:`ModelShape` to one.

    Raises
    ------
    InputError
        There is none of that name, or it has no `layers`.
    """
    if ":" not in name and name not in MODELS:
        raise InputError(f"unknown model '{name}'; known are: {listing(MODELS)}, or "
                         "module:attribute" + nearest(name, MODELS))
    make = MODELS.get(name) or imported(name)
    try:
        model = make(shape)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"model '{name}' cannot be made: {type(error).__name__}: {error}; it is "
                         "called with one argument, a ModelShape") from error
    if not isinstance(getattr(model, "layers", None), nn.ModuleList):
        raise InputError(f"model '{name}' has no `layers`; it needs a ModuleList whose modules are "
                         "called with a graph or block and states")
    return model


def imported(name: str) -> Any:
    """Import and return what `module:attribute` names.

    Raises
    ------
    InputError
        There is no such module or attribute.
    """
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a module beside the data, as for `python -m`
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"'{name}' cannot be imported: {error}; write module:attribute, of a "
                         "module on Python's path") from None


def edge_weights(graph: Any) -> Tensor:
    """GCN's weights, d_out(u)^-1/2 d_in(v)^-1/2 with the degrees of the whole graph.

    A node with fewer in-edges here than its part has (`in_degree`), because they were sampled,
    has heavier ones.
    """
    with graph.local_scope():
        here = graph.in_degrees().clamp(min=1)
        norm = graph.dstdata["in_norm"]
        graph.dstdata["scaled"] = norm * (graph.dstdata["in_degree"] / here).to(norm.dtype)
        graph.apply_edges(lambda edges: {
            "weight": edges.src["out_norm"] * edges.dst["scaled"]})
        weight: Tensor = graph.edata["weight"]
        return weight


def _last(layers: int) -> list[bool]:
    return [False] * (layers - 1) + [True]
