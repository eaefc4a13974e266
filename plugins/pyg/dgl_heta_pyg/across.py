"""Modules that take edges of several relations, or nodes of a batch, together.

No worker has all of these. Each runs as it is on every worker, but for its sums over in-edges or
nodes, which are completed over the group. It gets a class that is derived from its own, so that its
state, its name and copies of it stay as they are.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch_geometric.nn import (
    FastRGCNConv,
    HANConv,
    HeteroConv,
    HGTConv,
    MessagePassing,
    RGATConv,
    RGCNConv,
)
from torch_geometric.nn.conv.hetero_conv import group
from torch_geometric.nn.norm import HeteroBatchNorm
from torch_geometric.utils import scatter, softmax

from dgl_heta import InputError, Relation
from dgl_heta_pyg.partial import Partial, complete
from dgl_heta_pyg.relation_edges import edges_in, opened

if TYPE_CHECKING:
    from dgl_heta_pyg.merging import Merging

RUNNING: list[Merging] = []  # models whose forward pass is under way, the innermost last


def across(module: nn.Module, **known: Any) -> bool:
    """Let a module compute over the workers of a group, in a model that is merged; returns whether
    it is one that can. `known` is what it is told: the type of a batch normalisation's rows."""
    own = type(module)
    for kind, mixin in _KINDS.items():
        if isinstance(module, kind):
            if not isinstance(module, mixin):
                module.__class__ = type(own.__name__, (mixin, own), {"__module__": own.__module__})
            module.__dict__.update(known)
            return True
    return False


def whole_call(module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Arguments with complete rows and plain edges; an InputError outside of a merged model."""
    if not RUNNING and edges_in((args, kwargs)):
        raise InputError(f"{type(module).__name__} was called outside of the distributed model; "
                         "call the model that dgl_heta_pyg.distribute(model, part) returned")
    return opened(complete(args)), opened(complete(kwargs))


def _calling(function: Any, **others: Any) -> Any:
    """A function of another module in which some names stand for other functions."""
    changed = types.FunctionType(function.__code__, {**function.__globals__, **others},
                                 function.__name__, function.__defaults__, function.__closure__)
    changed.__kwdefaults__ = function.__kwdefaults__
    return changed


def _rows(conv: nn.Module, out: Any) -> Any:
    if not isinstance(out, Tensor | dict | None):
        raise InputError(f"{type(conv).__name__} returned a {type(out).__name__}; only rows can be "
                         "merged over workers: leave out return_attention_weights and the like")
    return out


class _OneRelation(nn.Module):
    """A convolution with the edges of one relation: it gives partial rows."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        relations = {edges.relation for edges in edges_in((args, kwargs))}
        args, kwargs = whole_call(self, args, kwargs)
        if RUNNING and (len(relations) != 1 or None in relations):
            given = "all" if None in relations else len(relations)
            raise InputError(f"{type(self).__name__} was given the edges of {given} relations and "
                             "cannot be merged over workers: give it one of batch.edge_index_dict, "
                             "or use HeteroConv, to_hetero, HGTConv, HANConv, RGCNConv or "
                             "RGATConv, or one worker (--parts 1)")
        out = super().forward(*args, **kwargs)
        whole = not RUNNING or _rows(self, out) is None
        return out if whole else RUNNING[-1].partial(cast(Relation, relations.pop()), out)


class _Convolution(nn.Module):
    """A convolution of several relations at once. Its destinations stand one type after the other,
    `rows` of each."""

    aggrs: tuple[str, ...] = ("add", "sum")  # those that can be merged
    rows: dict[str, int]
    weights: Tensor | None  # (rows, heads): what the result is to be divided by

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        given = edges_in((args, kwargs))
        args, kwargs = whole_call(self, args, kwargs)
        if not RUNNING:
            return super().forward(*args, **kwargs)
        if not given:
            raise InputError(f"{type(self).__name__} was given no edges of the batch")
        if self.aggr not in self.aggrs:
            raise InputError(f"{type(self).__name__} of aggr={self.aggr!r} cannot be merged over "
                             f"workers; use {' or '.join(self.aggrs)}, or one worker (--parts 1)")
        rows = {t: len(nodes) for t, nodes in given[0].origin.hops.nodes.items()}
        one = given[0].relation
        self.__dict__.update(weights=None, rows=rows if one is None else {one.dst: rows[one.dst]})
        return self.merged(*args, **kwargs)

    def merged(self, *args: Any, **kwargs: Any) -> Any:
        """What is computed over the workers."""
        return super().forward(*args, **kwargs)


class _Adding(_Convolution):
    """RGCNConv (Schlichtkrull et al. 2018, Eq. 2): a term of the row itself, and a sum over
    relations, each of which is averaged, or the like, over edges that one worker has."""

    aggrs = ("add", "sum", "mean", "max")

    def merged(self, x: Any, edge_index: Tensor, edge_type: Tensor) -> Tensor:  # type: ignore[override]
        alone = super().merged(x, edge_index[:, :0], edge_type[:0])
        every = super().merged(x, edge_index, edge_type)
        return alone + RUNNING[-1].reduced(every - alone, self.rows, "sum")


class _Attending(_Convolution):
    """An attention over all in-edges, HGTConv (Hu et al. 2020, Eq. 3-5) or RGATConv, as an online
    softmax: of the scores the maxima are merged first, and then the sums of exp(s - max) and of the
    messages weighted by it."""

    def merged(self, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self, HGTConv):  # in the order in which it puts the types' rows together
            x_dict = kwargs.get("x_dict", args[0] if args else {})
            self.__dict__["rows"] = {t: len(x_dict[t]) for t in self.kqv_lin.lins if t in x_dict}
        return _rows(self, super().merged(*args, **kwargs))

    def message(self, *args: Any, **kwargs: Any) -> Tensor:
        message: Any = super().message  # type: ignore[misc]
        if RUNNING:
            message = partial(_calling(message.__func__, softmax=self._softmax,
                                       scatter=self._scatter), self)
        return message(*args, **kwargs)  # type: ignore[no-any-return]

    def aggregate(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        out, weights = super().aggregate(inputs, *args, **kwargs), self.weights  # type: ignore[misc]
        if not RUNNING:
            return out  # type: ignore[no-any-return]
        if weights is None:
            return RUNNING[-1].reduced(out, self.rows, "sum")
        self.__dict__["weights"] = None
        sums, total = RUNNING[-1].reduced(
            torch.cat([out.flatten(1), weights], 1), self.rows, "sum").tensor_split(
                [-weights.shape[1]], 1)
        total = total.where(total != 0, 1)
        return (sums.view(*total.shape, -1) / total.unsqueeze(2)).view(out.shape)

    def _softmax(self, src: Tensor, index: Tensor, ptr: Any = None, num_nodes: Any = None
                 ) -> Tensor:
        if num_nodes is None:  # over the in-edges by one relation, which are on one worker
            return softmax(src, index, ptr, num_nodes)
        top = src.new_full((num_nodes, src.shape[1]), -torch.inf).scatter_reduce(
            0, index[:, None].expand_as(src), src.detach(), "amax")
        weights = torch.exp(src - RUNNING[-1].reduced(top, self.rows, "max")[index])
        sums = scatter(weights, index, 0, num_nodes, "sum")
        if getattr(self, "mod", None) in ("additive", "f-additive"):  # messages are no multiples
            return weights / RUNNING[-1].reduced(sums, self.rows, "sum").index_select(0, index)
        self.__dict__["weights"] = sums
        return weights

    def _scatter(self, src: Tensor, index: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return RUNNING[-1].reduced(scatter(src, index, *args, **kwargs), self.rows, "sum")


class _Semantic(_Convolution):
    """HANConv (Wang et al. 2019, Eq. 7-9): relations weighted by an average over a type's nodes."""

    def merged(self, x_dict: Any, *args: Any, **kwargs: Any) -> Any:
        forward = _calling(HANConv.forward, group=partial(self._group, iter(x_dict)))
        return forward(self, x_dict, *args, **kwargs)

    def _group(self, ntypes: Iterator[str], xs: list[Tensor], q: Tensor, k_lin: Callable[..., Any]
               ) -> tuple[Any, Any]:
        merging, ntype = RUNNING[-1], next(ntypes)
        if not xs:
            return None, None
        rows = {ntype: len(xs[0])}
        # Of a relation whose edges are elsewhere a seed has zeros here.
        out = merging.reduced(torch.stack(xs, 1), rows, "sum")
        mean, _ = merging.mean(torch.tanh(k_lin(out)), merging.once(rows, len(out)))
        weights = torch.softmax((q * mean).sum(-1), 0)
        return (weights.view(1, -1, 1) * out).sum(1), weights


class _Grouping(HeteroConv):
    """Relations' rows merged before they are sent, where that can be."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return _calling(HeteroConv.forward, group=_grouped)(self, *args, **kwargs)


def _grouped(xs: list[Any], aggr: str | None) -> Any:
    folds: dict[Any, Any] = {"sum": torch.add, "mean": torch.add, "max": torch.maximum,
                             "min": torch.minimum}
    fold = folds.get(aggr)
    if fold is None or not all(isinstance(x, Partial) for x in xs):
        return group(complete(xs), aggr)
    merged = reduce(fold, xs)
    return merged / len(xs) if aggr == "mean" else merged


class _Batch(nn.modules.batchnorm._BatchNorm):
    """Batch normalisation by the rows of a node type that all workers have."""

    ntype: str

    def forward(self, input: Tensor) -> Tensor:
        if not RUNNING or not (self.training or self.running_mean is None):
            return super().forward(input)
        merging = RUNNING[-1]
        once = merging.once({self.ntype: -1}, len(input))
        mean, count = merging.mean(input, once)
        centred = input - mean
        variance, _ = merging.mean(centred ** 2, once)
        if self.training and self.running_mean is not None and self.running_var is not None:
            with torch.no_grad():
                self.num_batches_tracked.add_(1)  # type: ignore[union-attr]
                pace = (1 / float(self.num_batches_tracked) if self.momentum is None
                        else self.momentum) * bool(count)
                unbiased = variance * (count / (count - 1).clamp(min=1))
                self.running_mean.lerp_(mean.to(self.running_mean), pace)
                self.running_var.lerp_(unbiased.to(self.running_var), pace)
        out = centred * torch.rsqrt(variance + self.eps)
        return out if self.weight is None else out * self.weight + self.bias


class _HeteroBatch(HeteroBatchNorm):
    """The same of each node type of one graph."""

    def forward(self, x: Tensor, type_vec: Tensor) -> Tensor:
        if not RUNNING or (not self.training and self.track_running_stats):
            return super().forward(x, type_vec)
        merging = RUNNING[-1]
        every = dict.fromkeys(merging.hops.nodes, -1)
        once, moments = merging.once(every, len(x)), []
        with torch.no_grad():
            for number in range(self.num_types):
                own = once & (type_vec == number)
                mean, count = merging.mean(x, own)
                moments.append((count, mean, merging.mean((x - mean) ** 2, own)[0]))
        count, *self.__dict__["moments"] = map(torch.stack, zip(*moments))
        # It looks which types there are: a row more for each that there is on some worker.
        there = torch.nonzero(count.flatten()).flatten()
        return super().forward(torch.cat([x, x.new_zeros(len(there), x.shape[1])]),
                               torch.cat([type_vec, there.to(type_vec)]))[:len(x)]

    def mean_var(self, *args: Any, **kwargs: Any) -> Any:
        return self.moments if RUNNING else self._modules["mean_var"](*args, **kwargs)  # type: ignore[misc]


_KINDS: dict[type, type] = {
    HGTConv: _Attending, RGATConv: _Attending, RGCNConv: _Adding, FastRGCNConv: _Adding,
    HANConv: _Semantic, HeteroConv: _Grouping, HeteroBatchNorm: _HeteroBatch,
    nn.modules.batchnorm._BatchNorm: _Batch, MessagePassing: _OneRelation}
