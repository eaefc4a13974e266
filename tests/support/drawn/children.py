"""Modules of one relation: DGL's own, users' own, and what users put around them.

A module of :data:`CHILDREN` is made from the widths of its sources and of its output and from
drawn options; its output has that many numbers a row, in one dimension or more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dgl
import dgl.function as fn
import torch
from dgl import ops
from dgl.nn.pytorch import conv
from torch import Tensor, nn

Pair = tuple[Tensor, Tensor]


def activation(name: str | None) -> Any:
    return {None: None, "tanh": torch.tanh, "relu": torch.relu, "elu": nn.functional.elu}[name]


def graph_conv(a: int, b: int, activation_: str | None = None, **options: Any) -> nn.Module:
    return conv.GraphConv(a, b, activation=activation(activation_), **options)


def sage_conv(a: int, b: int, kind: str = "mean", activation_: str | None = None,
              **options: Any) -> nn.Module:
    return conv.SAGEConv(a, b, kind, activation=activation(activation_), **options)


def gat_conv(a: int, b: int, pair: bool = False, activation_: str | None = None,
             **options: Any) -> nn.Module:
    return conv.GATConv((a, a) if pair else a, b // 2, 2, allow_zero_in_degree=True,
                        activation=activation(activation_), **options)


def gatv2_conv(a: int, b: int, **options: Any) -> nn.Module:
    return conv.GATv2Conv(a, b // 2, 2, allow_zero_in_degree=True, **options)


def gin_conv(a: int, b: int, kind: str = "sum", **options: Any) -> nn.Module:
    return conv.GINConv(nn.Linear(a, b), kind, **options)


def edge_conv(a: int, b: int) -> nn.Module:
    return conv.EdgeConv(a, b, allow_zero_in_degree=True)


def dot_gat_conv(a: int, b: int) -> nn.Module:
    return conv.DotGatConv((a, a), b // 2, 2, allow_zero_in_degree=True)


class Own(nn.Module):
    """A user's module: projects sources (and destinations), then does as a drawn function says."""

    def __init__(self, a: int, b: int, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.source, self.destination = nn.Linear(a, b), nn.Linear(a, b)
        self.function = function

    def forward(self, graph: Any, rows: Pair, *args: Any, **kwargs: Any) -> Tensor:
        with graph.local_scope():
            return self.function(graph, self.source(rows[0]), self.destination(rows[1]),
                                 *args, **kwargs)


def _result(graph: Any, like: Tensor) -> Tensor:
    """DGL writes nothing where a user's function has no edge to work on."""
    return graph.dstdata["r"] if "r" in graph.dstdata else torch.zeros_like(like)


def udf_mean(graph: Any, x: Tensor, y: Tensor) -> Tensor:
    graph.srcdata["x"] = x
    graph.update_all(lambda edges: {"m": edges.src["x"]},
                     lambda nodes: {"r": nodes.mailbox["m"].mean(1)})
    return _result(graph, y) + y


def udf_max(graph: Any, x: Tensor, y: Tensor) -> Tensor:
    graph.srcdata["x"], graph.dstdata["y"] = x, y
    graph.update_all(lambda edges: {"m": edges.src["x"] * edges.dst["y"]},
                     lambda nodes: {"r": nodes.mailbox["m"].max(1)[0]})
    return _result(graph, y)


def mailbox_attention(graph: Any, x: Tensor, y: Tensor) -> Tensor:
    graph.srcdata["x"], graph.dstdata["y"] = x, y

    def reduce(nodes: Any) -> dict[str, Tensor]:
        scores = (nodes.mailbox["m"] * nodes.data["y"][:, None]).sum(-1, keepdim=True)
        return {"r": (torch.softmax(scores, 1) * nodes.mailbox["m"]).sum(1)}
    graph.update_all(fn.copy_u("x", "m"), reduce)
    return _result(graph, y)


def attention(graph: Any, x: Tensor, y: Tensor) -> Tensor:
    graph.srcdata["x"], graph.dstdata["y"] = x, y
    graph.apply_edges(fn.u_dot_v("x", "y", "s"))
    graph.edata["a"] = dgl.nn.functional.edge_softmax(graph, graph.edata["s"])
    graph.update_all(fn.u_mul_e("x", "a", "m"), fn.sum("m", "r"))
    return _result(graph, y)


def source_softmax(graph: Any, x: Tensor, y: Tensor) -> Tensor:
    graph.srcdata["x"], graph.dstdata["y"] = x, y
    graph.apply_edges(fn.u_dot_v("x", "y", "s"))
    graph.edata["a"] = dgl.nn.functional.edge_softmax(graph, graph.edata["s"], norm_by="src")
    graph.update_all(fn.u_mul_e("x", "a", "m"), fn.sum("m", "r"))
    return _result(graph, y)


def in_degrees(graph: Any, x: Tensor, y: Tensor) -> Tensor:
    graph.srcdata["x"] = x
    graph.update_all(fn.copy_u("x", "m"), fn.sum("m", "r"))
    return _result(graph, y) / (1 + graph.in_degrees())[:, None] + y


def out_degrees(graph: Any, x: Tensor, y: Tensor) -> Tensor:
    graph.srcdata["x"] = x / graph.out_degrees().clamp(min=1)[:, None]
    graph.update_all(fn.copy_u("x", "m"), fn.sum("m", "r"))
    return _result(graph, y)


def edge_arrays(graph: Any, x: Tensor, y: Tensor) -> Tensor:
    u, v = graph.edges()
    return y.index_add(0, v, x[u])


def bincount(graph: Any, x: Tensor, y: Tensor) -> Tensor:
    u, v = graph.edges()
    share = torch.bincount(u, minlength=len(x)).clamp(min=1)
    return y.index_add(0, v, (x / share[:, None])[u])


def adjacency(graph: Any, x: Tensor, y: Tensor) -> Tensor:
    return graph.adj_external(transpose=True).to(x.dtype) @ x + y


def sparse_matrix(graph: Any, x: Tensor, y: Tensor) -> Tensor:
    matrix = graph.adj()
    return dgl.sparse.val_like(matrix, torch.ones(matrix.nnz, dtype=x.dtype)) @ x + y


def dgl_ops(graph: Any, x: Tensor, y: Tensor) -> Tensor:
    return ops.copy_e_mean(graph, ops.u_mul_v(graph, x, y))


def number_of_edges(graph: Any, x: Tensor, y: Tensor) -> Tensor:
    return ops.copy_u_sum(graph, x) / (1 + graph.num_edges())


def number_of_sources(graph: Any, x: Tensor, y: Tensor) -> Tensor:
    return ops.copy_u_sum(graph, x) / (1 + graph.num_src_nodes())


def centred(graph: Any, x: Tensor, y: Tensor) -> Tensor:
    return ops.copy_u_mean(graph, x - x.mean(0)) + y


def destination_mean(graph: Any, x: Tensor, y: Tensor) -> Tensor:
    return ops.copy_u_mean(graph, x) + y.mean(0)


def node_ids(graph: Any, x: Tensor, y: Tensor) -> Tensor:
    scale = 1 + (graph.srcdata[dgl.NID] % 5).to(x.dtype)
    return ops.copy_u_sum(graph, x * scale[:, None])


def block_data(graph: Any, x: Tensor, y: Tensor) -> Tensor:
    return ops.copy_u_sum(graph, x) * graph.dstdata["scale"] + ops.copy_u_sum(
        graph, graph.srcdata["scale"])


def predecessors(graph: Any, x: Tensor, y: Tensor) -> Tensor:
    if not len(y):
        return y
    return y + torch.stack([x[graph.predecessors(i)].sum(0) for i in range(len(y))])


def edge_data(graph: Any, x: Tensor, y: Tensor) -> Tensor:
    graph.edata["w"] = torch.arange(graph.num_edges()).to(x.dtype)[:, None] * 0 + 0.5
    graph.srcdata["x"] = x
    graph.update_all(fn.u_mul_e("x", "w", "m"), fn.mean("m", "r"))
    return _result(graph, y)


def local_variable(graph: Any, x: Tensor, y: Tensor) -> Tensor:
    other = graph.local_var()
    other.srcdata["x"] = x
    other.update_all(fn.copy_u("x", "m"), fn.min("m", "r"))
    return _result(other, y) + y


def send_and_receive(graph: Any, x: Tensor, y: Tensor) -> Tensor:
    graph.srcdata["x"], graph.dstdata["r"] = x, torch.zeros_like(y)
    graph.send_and_recv(graph.edges(), fn.copy_u("x", "m"), fn.sum("m", "r"))
    return _result(graph, y)


def pull(graph: Any, x: Tensor, y: Tensor) -> Tensor:
    graph.srcdata["x"], graph.dstdata["r"] = x, torch.zeros_like(y)
    graph.pull(torch.arange(len(y)), fn.copy_u("x", "m"), fn.sum("m", "r"))
    return _result(graph, y)


def keyword(graph: Any, x: Tensor, y: Tensor, scale: Any = 1.0) -> Tensor:
    return ops.copy_u_sum(graph, x) * scale


def edge_network(graph: Any, x: Tensor, y: Tensor) -> Tensor:
    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": torch.tanh(edges.src["x"] - edges.dst["y"])}
    graph.srcdata["x"], graph.dstdata["y"] = x, y
    graph.update_all(message, fn.mean("m", "r"), lambda nodes: {"r": nodes.data["r"] * 2})
    return _result(graph, y)


FUNCTIONS: dict[str, Callable[..., Tensor]] = {f.__name__: f for f in (
    udf_mean, udf_max, mailbox_attention, attention, source_softmax, in_degrees, out_degrees,
    edge_arrays, bincount, adjacency, sparse_matrix, dgl_ops, number_of_edges,
    number_of_sources, centred, destination_mean, node_ids, block_data, predecessors, edge_data,
    local_variable, send_and_receive, pull, keyword, edge_network)}
CHILDREN: dict[str, Callable[..., nn.Module]] = {
    "GraphConv": graph_conv, "SAGEConv": sage_conv, "GATConv": gat_conv, "GATv2Conv": gatv2_conv,
    "GINConv": gin_conv, "EdgeConv": edge_conv, "DotGatConv": dot_gat_conv,
    **{name: (lambda a, b, f=f: Own(a, b, f)) for name, f in FUNCTIONS.items()}}


HEADS = ("GATConv", "GATv2Conv", "DotGatConv")
"""Those with several heads, which make rows of (heads, width / heads)."""


class Wrapper(nn.Module):
    """A user's module around another."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        if hasattr(inner, "set_allow_zero_in_degree"):
            inner.set_allow_zero_in_degree(True)

    def forward(self, graph: Any, rows: Any, *args: Any, **kwargs: Any) -> Tensor:
        return torch.tanh(self.inner(graph, rows, *args, **kwargs))


class Flat(nn.Module):
    """A user's module around one that gives rows of a matrix each."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, graph: Any, rows: Any, *args: Any, **kwargs: Any) -> Tensor:
        return self.inner(graph, rows, *args, **kwargs).flatten(1)


def _wrapped(module: nn.Module) -> nn.Module:
    return Wrapper(module)


def _subclass(module: nn.Module) -> nn.Module:
    """The same module of a class of the user's own."""
    def forward(self: Any, graph: Any, rows: Any, *args: Any, **kwargs: Any) -> Tensor:
        return 0.5 * super(made, self).forward(graph, rows, *args, **kwargs)
    made = type(f"My{type(module).__name__}", (type(module),), {"forward": forward})
    module.__class__ = made
    return module


def _with_weight(module: nn.Module) -> nn.Module:
    """The module in it that has a weight."""
    return next((m for m in module.modules() if isinstance(
        getattr(m, "weight", None), nn.Parameter)), module)


def _weight_norm(module: nn.Module) -> nn.Module:
    torch.nn.utils.parametrizations.weight_norm(_with_weight(module))
    return module


def _old_weight_norm(module: nn.Module) -> nn.Module:
    torch.nn.utils.weight_norm(_with_weight(module))
    return module


def _spectral_norm(module: nn.Module) -> nn.Module:
    torch.nn.utils.parametrizations.spectral_norm(_with_weight(module))
    return module


def _forward_hook(module: nn.Module) -> nn.Module:
    module.register_forward_hook(lambda module, inputs, out: out * 1.5)
    return module


def _inner_forward_hook(module: nn.Module) -> nn.Module:
    for inner in module.modules():
        if isinstance(inner, nn.Linear):
            inner.register_forward_hook(lambda module, inputs, out: torch.tanh(out))
    return module


def _forward_pre_hook(module: nn.Module) -> nn.Module:
    def twice(module: Any, inputs: Any) -> Any:
        graph, rows = inputs[0], inputs[1]
        return (graph, (rows[0] * 2, rows[1]), *inputs[2:])
    module.register_forward_pre_hook(twice)
    return module


def _backward_hook(module: nn.Module) -> nn.Module:
    module.register_full_backward_hook(
        lambda module, inputs, outputs: tuple(g if g is None else 2 * g for g in inputs))
    return module


def _weight_hook(module: nn.Module) -> nn.Module:
    for parameter in [p for p in module.parameters() if p.requires_grad][:1]:
        parameter.register_hook(lambda gradient: 3 * gradient)
    return module


def _frozen(module: nn.Module) -> nn.Module:
    for parameter in list(module.parameters())[:1]:
        parameter.requires_grad_(False)
    return module


AROUND: dict[str, Callable[[nn.Module], nn.Module]] = {
    "wrapped": _wrapped, "subclass": _subclass, "weight_norm": _weight_norm,
    "old_weight_norm": _old_weight_norm, "spectral_norm": _spectral_norm,
    "forward_hook": _forward_hook, "inner_forward_hook": _inner_forward_hook,
    "forward_pre_hook": _forward_pre_hook, "backward_hook": _backward_hook,
    "weight_hook": _weight_hook, "frozen": _frozen}
