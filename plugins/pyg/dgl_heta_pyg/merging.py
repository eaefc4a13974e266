"""A PyG model over the workers of a group: which of its modules merge, and which cannot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import HANConv, HGTConv, MessagePassing, norm
from torch_geometric.nn.aggr import Aggregation

from dgl_heta import HetaError, InputError
from dgl_heta.tools import Comm, GroupExchange
from dgl_heta_pyg.hgt import attending
from dgl_heta_pyg.hops import Hops
from dgl_heta_pyg.partial import Partial, complete, merge
from dgl_heta_pyg.relation_edges import RelationEdges

_ACROSS_ROWS = (
    nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm, norm.BatchNorm,
    norm.HeteroBatchNorm, norm.InstanceNorm, norm.GraphNorm, norm.GraphSizeNorm, norm.PairNorm,
    norm.MeanSubtractionNorm, norm.DiffGroupNorm, Aggregation)
_AGREED = 2
"""Forward passes, of those that train and of others, in which workers compare what they merge."""


class Merging(nn.Module):
    """A model whose convolutions are merged over a group of several workers."""

    def __init__(self, module: nn.Module, group: Comm) -> None:
        super().__init__()
        self.module, self._group = module, group
        self.exchange = GroupExchange(group)
        self.hops: Hops | None = None
        self._call: RelationEdges | None = None
        self._merged, self._passes, self._agree = 0, [0, 0], False
        convs = [*_outermost(module)]
        inside = {id(part) for conv in convs for part in conv.modules()}
        for conv in convs:
            if isinstance(conv, HGTConv):
                attending(conv, self)
            else:
                conv.register_forward_pre_hook(self._before, with_kwargs=True)
                conv.register_forward_hook(self._after, always_call=True)
        for part in module.modules():
            if id(part) not in inside:  # such a layer may look at what it is given
                part.register_forward_pre_hook(_completed, with_kwargs=True)

    def forward(self, hops: Hops, args: Any, kwargs: Any) -> Any:
        """What the model returns for arguments of a batch."""
        train = self.module.training and torch.is_grad_enabled()
        self._passes[train] += 1
        self._agree = self._passes[train] <= _AGREED
        return anchored(self._run(hops, args, kwargs), self.exchange)

    def _run(self, hops: Hops, args: Any, kwargs: Any) -> Any:
        self.hops, self._call, self._merged = hops, None, 0
        self.exchange.begin()
        try:
            outputs = complete(self.module(*args, **kwargs))
            self.agree("the end of the forward pass")
        finally:
            self.hops = None
        return outputs

    def agree(self, what: str) -> int:
        """Check that all workers do the same; returns how many exchanges were before.

        Raises
        ------
        HetaError
            They do not: the same on all.
        """
        if self._agree:
            every = self._group.all_gather_json(what, "control")
            for rank, other in zip(self._group.ranks, every):
                if other != every[0]:
                    raise HetaError(
                        f"workers do not merge alike: {every[0]} on worker {self._group.ranks[0]}, "
                        f"{other} on worker {rank}; what a model does may not depend on what is in "
                        "a worker's batch")
        self._merged += 1
        return self._merged

    def _before(self, conv: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        name = type(conv).__name__
        if self.hops is None:
            if _edges_in((args, kwargs)):
                raise InputError(f"{name} was called outside of the distributed model; call the "
                                 "model that dgl_heta_pyg.distribute(model, part) returned")
            return args, kwargs
        edges = {id(one): one for one in _edges_in((args, kwargs))}
        if len({one.relation for one in edges.values()}) != 1:
            remedy = ("its attention is over averages of a batch's nodes, which no worker has; use "
                      "HGTConv or HeteroConv" if isinstance(conv, HANConv) else
                      "give it one of batch.edge_index_dict, or use HeteroConv, to_hetero or "
                      "HGTConv")
            raise InputError(f"{name} was given the edges of {len(edges)} relations and cannot be "
                             f"merged over workers: {remedy}, or one worker (--parts 1)")
        self._call = next(iter(edges.values()))
        return _opened(complete(args)), _opened(complete(kwargs))

    def _after(self, conv: nn.Module, args: Any, out: Any) -> Any:
        call, self._call = self._call, None
        if call is None or out is None:
            return out
        ntype = call.relation.dst
        if not isinstance(out, Tensor):
            raise InputError(f"{type(conv).__name__} of '{call.relation}' returned a "
                             f"{type(out).__name__}; only rows can be merged over workers: leave "
                             "out return_attention_weights and the like")
        assert self.hops is not None
        if ntype not in self.hops.seeds or not self.hops.seeds[ntype].total:
            return out
        return Partial(self._complete, ntype, [(call.relation, out)])

    def _complete(self, partial: Partial) -> Tensor:
        if self.hops is None:
            raise HetaError("rows of a convolution are used after the forward pass of the "
                            "distributed model; return them from its forward")
        rows, seeds = partial.pieces[0][1], self.hops.seeds[partial.ntype].total
        layer = self.agree(f"{partial.op or 'one relation'} of {partial.ntype} "
                           f"{tuple(rows.shape[1:])} from "
                           f"{[str(relation) for relation, _ in partial.pieces]}"
                           f"{', fewer rows than seeds' * (len(rows) < seeds)}")
        return merge(partial, self.hops, self.exchange, layer)


def anchored(outputs: Any, exchange: GroupExchange) -> Any:
    """The outputs, depending on every exchange, so that backward passes come to all of them."""
    if isinstance(outputs, Tensor):
        return exchange.anchor(outputs) if outputs.is_floating_point() else outputs
    if isinstance(outputs, tuple) and hasattr(outputs, "_fields"):
        return type(outputs)(*(anchored(x, exchange) for x in outputs))
    if isinstance(outputs, list | tuple):
        return type(outputs)(anchored(x, exchange) for x in outputs)
    if isinstance(outputs, dict):
        return {key: anchored(x, exchange) for key, x in outputs.items()}
    return outputs


def hops_of(values: Any) -> Hops | None:
    """The graph that a model's arguments are of."""
    return next((edges.hops for edges in _edges_in(values)), None)


def _completed(module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    return complete(args), complete(kwargs)


def _edges_in(value: Any) -> Iterator[Any]:
    if isinstance(value, RelationEdges):
        yield value
    elif isinstance(value, list | tuple):
        for x in value:
            yield from _edges_in(x)
    elif isinstance(value, dict):
        for x in value.values():
            yield from _edges_in(x)


def _opened(value: Any) -> Any:
    """The value with plain tensors of edges."""
    if isinstance(value, RelationEdges):
        return value.open()
    if type(value) in (list, tuple):
        return type(value)(map(_opened, value))
    if type(value) is dict:
        return {key: _opened(x) for key, x in value.items()}
    return value


def _outermost(module: nn.Module) -> Iterator[nn.Module]:
    """Convolutions that are in no other one."""
    if isinstance(module, MessagePassing):
        yield module
        return
    for child in module.children():
        yield from _outermost(child)


def check_rows(module: nn.Module) -> None:
    """
    Raises
    ------
    InputError
        A module takes rows of a batch together, of which no worker has all.
    """
    inside = {id(part) for conv in _outermost(module) for part in conv.modules()}
    for name, part in module.named_modules():
        graphwide = isinstance(part, norm.LayerNorm) and part.mode == "graph"
        if id(part) not in inside and (graphwide or isinstance(part, _ACROSS_ROWS)):
            remedy = ("aggregate what the model returns" if isinstance(part, Aggregation) else
                      "use torch.nn.LayerNorm, or PyG's with mode='node'")
            raise InputError(
                f"{type(part).__name__} '{name}'{' of mode graph' * graphwide} takes all nodes of "
                "a batch together, of which no worker has all, so it cannot be merged over "
                f"workers; {remedy}, or use one worker (--parts 1)")
