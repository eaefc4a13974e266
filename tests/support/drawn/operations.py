"""A user's own operations: over a block, before a layer; and on the states, after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dgl
import dgl.function as fn
import torch
from dgl import ops
from torch import Tensor, nn

States = dict[str, Tensor]


def _relations(block: Any, h: States) -> list[Any]:
    return [e for e in block.canonical_etypes if e[0] in h and e[2] in h]


def _added(block: Any, h: States, sums: dict[str, list[Tensor]]) -> States:
    """The states of a block's sources, to which destinations' sums are added."""
    out = dict(h)
    for t, values in sums.items():
        n = block.num_dst_nodes(t)
        total = torch.tanh(sum(values))  # type: ignore[arg-type]
        out[t] = torch.cat([h[t][:n] + total, h[t][n:]])
    return out


def _each(block: Any, h: States, function: Callable[[Any], Tensor]) -> States:
    sums: dict[str, list[Tensor]] = {}
    for e in _relations(block, h):
        sums.setdefault(e[2], []).append(function(e))
    return _added(block, h, sums)


def degrees(block: Any, h: States) -> States:
    return _each(block, h, lambda e: block.in_degrees(etype=e).to(h[e[2]].dtype)[:, None]
                 * h[e[2]][:block.num_dst_nodes(e[2])])


def degrees_by_relation(block: Any, h: States) -> States:
    e = block.canonical_etypes[0]
    x = h[e[2]]
    n = block.num_dst_nodes(e[2])
    scale = 1 / (1 + block.in_degrees(etype=e).to(x.dtype))[:, None]
    return {**h, e[2]: torch.cat([x[:n] * scale, x[n:]])}


def source_degrees(block: Any, h: States) -> States:
    out = dict(h)
    for e in _relations(block, h):
        out[e[0]] = out[e[0]] / (1 + block.out_degrees(etype=e).to(out[e[0]].dtype))[:, None]
    return out


def edge_arrays(block: Any, h: States) -> States:
    def value(e: Any) -> Tensor:
        u, v = block.edges(etype=e)
        return h[e[2]].new_zeros(block.num_dst_nodes(e[2]), h[e[2]].shape[1]).index_add(
            0, v, h[e[0]][u])
    return _each(block, h, value)


def all_edges(block: Any, h: States) -> States:
    def value(e: Any) -> Tensor:
        u, v = block.all_edges(form="uv", order="eid", etype=e)
        return h[e[2]].new_zeros(block.num_dst_nodes(e[2]), h[e[2]].shape[1]).index_add(
            0, v, h[e[0]][u])
    return _each(block, h, value)


def adjacency(block: Any, h: States) -> States:
    return _each(block, h, lambda e: block.adj_external(transpose=True, etype=e).to(
        h[e[0]].dtype) @ h[e[0]])


def sparse_matrix(block: Any, h: States) -> States:
    def value(e: Any) -> Tensor:
        matrix = block.adj(etype=e)
        return dgl.sparse.val_like(matrix, torch.ones(matrix.nnz, dtype=h[e[0]].dtype)) @ h[e[0]]
    return _each(block, h, value)


def adjacency_arrays(block: Any, h: States) -> States:
    def value(e: Any) -> Tensor:
        u, v = block.adj_tensors("coo", etype=e)
        return h[e[2]].new_zeros(block.num_dst_nodes(e[2]), h[e[2]].shape[1]).index_add(
            0, v, h[e[0]][u])
    return _each(block, h, value)


def slices(block: Any, h: States) -> States:
    return _each(block, h, lambda e: ops.copy_u_sum(block[e], h[e[0]]))


def slice_update(block: Any, h: States) -> States:
    def value(e: Any) -> Tensor:
        graph = block[e]
        with graph.local_scope():
            graph.srcdata["x"] = h[e[0]]
            graph.update_all(fn.copy_u("x", "m"), fn.mean("m", "r"))
            return graph.dstdata["r"]
    return _each(block, h, value)


def update_all(block: Any, h: States) -> States:
    e = _relations(block, h)[0]
    with block.local_scope():
        block.srcnodes[e[0]].data["x"] = h[e[0]]
        block.update_all(fn.copy_u("x", "m"), fn.mean("m", "r"), etype=e)
        return _added(block, h, {e[2]: [block.dstnodes[e[2]].data["r"]]})


def to_graph(block: Any, h: States) -> States:
    graph = dgl.block_to_graph(block)
    def value(e: Any) -> Tensor:
        graph.nodes[e[0] + "_src"].data["x"] = h[e[0]]
        graph.update_all(fn.copy_u("x", "m"), fn.sum("m", "r"), etype=e[1])
        return graph.nodes[e[2] + "_dst"].data["r"]
    return _each(block, h, value)


def apply_edges(block: Any, h: States) -> States:
    sums: dict[str, list[Tensor]] = {}
    with block.local_scope():
        for t in h:
            block.srcnodes[t].data["x"] = h[t]
            block.dstnodes[t].data["y"] = h[t][:block.num_dst_nodes(t)]
        for e in _relations(block, h):
            block.apply_edges(fn.u_dot_v("x", "y", "s"), etype=e)
            scores = block.edges[e].data["s"]
            sums.setdefault(e[2], []).append(scores.sum() / (1 + len(scores)))
        return {t: x + torch.tanh(sum(sums[t])) if t in sums else x for t, x in h.items()}


def edge_softmax(block: Any, h: States) -> States:
    def value(e: Any) -> Tensor:
        graph = block[e]
        score = dgl.nn.functional.edge_softmax(
            graph, ops.u_dot_v(graph, h[e[0]], h[e[2]][:graph.num_dst_nodes()]))
        return ops.u_mul_e_sum(graph, h[e[0]], score)
    return _each(block, h, value)


def homogeneous(block: Any, h: States) -> States:
    graph = dgl.to_homogeneous(dgl.block_to_graph(block))
    return {t: x / (1 + graph.num_edges()) for t, x in h.items()}


def edge_ids(block: Any, h: States) -> States:
    return _each(block, h, lambda e: h[e[2]][:block.num_dst_nodes(e[2])]
                 * block.edges[e].data[dgl.EID].to(h[e[2]].dtype).sum())


def predecessors(block: Any, h: States) -> States:
    e = next(e for e in _relations(block, h) if e[2] == "paper")
    n = block.num_dst_nodes("paper")
    value = torch.stack([h[e[0]][block.predecessors(v, etype=e)].sum(0) for v in range(n)])
    return _added(block, h, {"paper": [value]})


def in_edges(block: Any, h: States) -> States:
    def value(e: Any) -> Tensor:
        n = block.num_dst_nodes(e[2])
        u, v = block.in_edges(torch.arange(n), etype=e)
        return h[e[2]].new_zeros(n, h[e[2]].shape[1]).index_add(0, v, h[e[0]][u])
    return _each(block, h, value)


def incidence(block: Any, h: States) -> States:
    return _each(block, h, lambda e: block.inc("in", etype=e).to(h[e[2]].dtype)
                 @ torch.ones(block.num_edges(e), 1, dtype=h[e[2]].dtype)
                 * h[e[2]][:block.num_dst_nodes(e[2])])


def has_edges(block: Any, h: States) -> States:
    return _each(block, h, lambda e: h[e[2]][:block.num_dst_nodes(e[2])] * block.has_edges_between(
        [0], [0], etype=e).to(h[e[2]].dtype) if block.num_dst_nodes(e[2]) else
        h[e[2]][:0])


def number_of_edges(block: Any, h: States) -> States:
    total = sum(block.num_edges(e) for e in block.canonical_etypes)
    return {t: x / (1 + total) for t, x in h.items()}


def number_of_sources(block: Any, h: States) -> States:
    return {t: x / (1 + block.num_src_nodes(t)) for t, x in h.items()}


def meta_graph(block: Any, h: States) -> States:
    degree = dict(block.metagraph().in_degree())
    return {t: x / (1 + degree[t]) for t, x in h.items()}


def own_relation_loop(block: Any, h: States) -> States:
    out = dict(h)
    for e in block.canonical_etypes:
        if block.num_edges(e) == 0:
            continue
        out[e[0]] = out[e[0]] * 1.1
    return out


def multi_twice(block: Any, h: States) -> States:
    """multi_update_all of its own, before the layer's."""
    with block.local_scope():
        for t, x in h.items():
            block.srcnodes[t].data["z"] = x
        block.multi_update_all({e: (fn.copy_u("z", "m"), fn.mean("m", "zz"))
                                for e in _relations(block, h)}, "sum")
        return _added(block, h, {t: [block.dstnodes[t].data["zz"]] for t in h
                                 if "zz" in block.dstnodes[t].data})


def node_data(block: Any, h: States) -> States:
    out = {}
    for t, x in h.items():
        out[t] = x * (1 + (block.srcnodes[t].data[dgl.NID] % 3).to(x.dtype))[:, None]
    return out


def from_local_variable(block: Any, h: States) -> States:
    graph = block.local_var()
    with graph.local_scope():
        for t, x in h.items():
            graph.srcnodes[t].data["z"] = x
        graph.multi_update_all({e: (fn.copy_u("z", "m"), fn.max("m", "zz"))
                                for e in _relations(block, h)}, "max")
        return _added(block, h, {t: [graph.dstnodes[t].data["zz"]] for t in h
                                 if "zz" in graph.dstnodes[t].data})


def centred(block: Any, h: States) -> States:
    return {t: x - x.mean(0) if len(x) else x for t, x in h.items()}


def moved(block: Any, h: States) -> States:
    block = block.to("cpu")
    return {t: x * (1 + (t in block.srctypes)) for t, x in h.items()}


def slice_destinations(block: Any, h: States) -> States:
    out = dict(h)
    for e in _relations(block, h):
        graph = block[e]
        out[e[2]] = out[e[2]] * (1 + (graph.num_dst_nodes() > 0))
    return out


OPERATIONS: dict[str, Callable[[Any, States], States]] = {f.__name__: f for f in (
    degrees, degrees_by_relation, source_degrees, edge_arrays, all_edges, adjacency, sparse_matrix,
    adjacency_arrays, slices, slice_update, update_all, to_graph, apply_edges, edge_softmax,
    homogeneous, edge_ids, predecessors, in_edges, incidence, has_edges,
    number_of_edges, number_of_sources, meta_graph, own_relation_loop, multi_twice, node_data,
    from_local_variable, centred, moved, slice_destinations)}


class Pairs(nn.Module):
    """PairNorm: rows minus their mean, over their common size."""

    def forward(self, x: Tensor) -> Tensor:
        if not len(x):
            return x
        x = x - x.mean(0)
        return x / (1e-6 + x.pow(2).sum(1).mean().sqrt())


class Still(nn.BatchNorm1d):
    """A batch normalisation that always uses its running statistics."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.running_mean.fill_(0.1)
        self.training = False

    def train(self, mode: bool = True) -> Any:
        return super().train(False)


class Normalised(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.normalize(x)


class Inplace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.clone().mul_(2).tanh_()


class Half(nn.Module):
    """Part of the rows' columns without gradients."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x[:, :1].detach(), x[:, 1:]], 1)


STEPS: dict[str, Callable[[int], nn.Module]] = {
    "tanh": lambda width: nn.Tanh(), "relu": lambda width: nn.ReLU(),
    "layer_norm": nn.LayerNorm, "batch_norm": Still, "pair_norm": lambda width: Pairs(),
    "normalize": lambda width: Normalised(), "in_place": lambda width: Inplace(),
    "half": lambda width: Half(), "linear": lambda width: nn.Linear(width, width),
    "dropout": lambda width: nn.Dropout(0.0), "prelu": lambda width: nn.PReLU()}
"""Made for each node type from the width of its states."""
