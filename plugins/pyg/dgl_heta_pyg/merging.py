"""A PyG model over the workers of a group: which of its modules merge, and which cannot."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch_geometric.nn import HeteroConv, MessagePassing, norm
from torch_geometric.nn.aggr import Aggregation
from torch_geometric.nn.to_hetero_transformer import key2str

from dgl_heta import HetaError, InputError, Relation
from dgl_heta.tools import Block, Comm, GroupExchange
from dgl_heta_pyg.across import RUNNING, across
from dgl_heta_pyg.hops import Hops
from dgl_heta_pyg.partial import Partial, complete, merge

_ACROSS_ROWS = (nn.modules.instancenorm._InstanceNorm, norm.InstanceNorm, norm.GraphNorm,
                norm.GraphSizeNorm, norm.PairNorm, norm.MeanSubtractionNorm, norm.DiffGroupNorm)
_AGREED = 2
"""Forward passes, of those that train and of others, in which workers compare what they merge."""


class Merging(nn.Module):
    """A model whose convolutions are merged over a group of several workers, by an exchange."""

    def __init__(self, module: nn.Module, group: Comm, exchange: GroupExchange) -> None:
        super().__init__()
        self.module, self._group, self.exchange = module, group, exchange
        self.hops: Any = None  # the graph of the batch, in a forward pass
        self._merged, self._passes, self._agree = 0, [0, 0], False
        convs = _outermost(module)
        inside = {id(part) for conv in convs for part in conv.modules()}
        for part in module.modules():
            if part in convs or isinstance(part, HeteroConv):
                across(part)
            # Layers that no convolution has may look at what they are given.
            elif id(part) not in inside and _completed not in part._forward_pre_hooks.values():
                part.register_forward_pre_hook(_completed, with_kwargs=True)

    def forward(self, hops: Hops, args: Any, kwargs: Any) -> Any:
        """What the model returns for arguments of a batch."""
        train = self.module.training and torch.is_grad_enabled()
        self._passes[train] += 1
        self._agree = self._passes[train] <= _AGREED
        return tree_map(lambda x: self.exchange.anchor(x) if isinstance(x, Tensor) and
                        x.is_floating_point() else x, self._run(hops, args, kwargs))

    def _run(self, hops: Hops, args: Any, kwargs: Any) -> Any:
        self.hops, self._merged = hops, 0
        self.exchange.begin()
        RUNNING.append(self)
        try:
            outputs = complete(self.module(*args, **kwargs))
            self.agree("the end of the forward pass")
        finally:
            self.hops = None
            RUNNING.remove(self)
        return outputs

    def agree(self, what: str) -> int:
        """Check that all workers do the same, or raise a HetaError on all; returns how many
        exchanges were before."""
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

    def partial(self, relation: Relation, rows: Tensor) -> Any:
        """What a convolution of a relation gave; partial if its rows are of a type of seeds."""
        if not (shares := self.hops.seeds.get(relation.dst)) or not shares.total:
            return rows
        return Partial(self.completed, relation.dst, [(relation, rows)])

    def completed(self, partial: Partial) -> Tensor:
        """The complete rows of partial ones."""
        if self.hops is None:
            raise HetaError("rows of a convolution are used after the forward pass of the "
                            "distributed model; return them from its forward")
        rows, seeds = partial.pieces[0][1], self.hops.seeds[partial.ntype].total
        layer = self.agree(f"{partial.op or 'one relation'} of {partial.ntype} "
                           f"{tuple(rows.shape[1:])} from "
                           f"{[str(relation) for relation, _ in partial.pieces]}"
                           f"{', fewer rows than seeds' * (len(rows) < seeds)}")
        return merge(partial, self.hops, self.exchange, layer)

    def reduced(self, rows: Tensor, of: dict[str, int], op: str) -> Tensor:
        """Rows (rows, …) of node types, `of` how many of each, one type after the other: sums of
        the seeds' over the workers, or maxima, which have no gradient; others as they are."""
        rest, width = len(rows) - sum(of.values()), math.prod(rows.shape[1:])
        if rest < 0:
            raise HetaError(f"a convolution gave {len(rows)} rows for {sum(of.values())} nodes of "
                            f"{', '.join(of)}; it must give a row for each destination")
        whole = []
        for ntype, part in zip([*of, ""], rows.reshape(len(rows), width).split(
                [*of.values(), rest])):
            if ntype in self.hops.seeds and self.hops.seeds[ntype].total:
                layer = self.agree(f"{op} of {ntype} ({width})")
                block = Block(layer, {}, {ntype: len(part)}, [], self.hops.seeds, False, {}, {})
                reduce = self.exchange.reduce_max if op == "max" else self.exchange.reduce_sum
                part = reduce(part, block, ntype)
            whole.append(part)
        return torch.cat(whole).view(rows.shape)

    def mean(self, rows: Tensor, once: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of the rows (rows, …) of all workers that a mask chooses, and their number."""
        layer = self.agree(f"a mean over rows {tuple(rows.shape[1:])}")
        sums = torch.cat([rows[once].sum(0).flatten(), once.sum().to(rows)[None]])
        block = Block(layer, {}, {}, [], {}, False, {}, {})
        sums = self.exchange.join(sums, block, _EVERYBODY, "sum")
        count = sums[-1].detach()
        return sums[:-1].view(rows.shape[1:]) / count.clamp(min=1), count

    def once(self, of: dict[str, int], rows: int) -> Tensor:
        """Which of the leading rows of node types, `of` how many of each (-1: all), one type after
        the other, count where each node of a hop is to count once over all workers: bool (rows,).
        """
        ntype, *others = of
        ends = [*accumulate(self.hops.num_nodes[ntype])]  # a type's rows may be trimmed
        if not others and rows not in (*ends, ends[-1] + 1):
            raise HetaError(f"what averages nodes of '{ntype}' was given other rows than the batch "
                            "has of them; name a BatchNorm after the type of its rows")
        if not self.hops.once:
            self.hops.find_once(self._group)
        masks = [self.hops.once[t][:count if count >= 0 else None] for t, count in of.items()]
        mask = torch.cat([*masks, masks[0].new_zeros(max(rows - sum(map(len, masks)), 0))])
        return mask[:rows]


_EVERYBODY: Any = ""  # no relation: whoever holds what is not shared among some


def _completed(module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    return complete(args), complete(kwargs)


def _outermost(module: nn.Module) -> list[nn.Module]:
    """Convolutions that are in no other one."""
    if isinstance(module, MessagePassing):
        return [module]
    return [conv for child in module.children() for conv in _outermost(child)]


def check_rows(module: nn.Module, ntypes: Iterable[str]) -> None:
    """Let batch normalisations take the rows of all workers; an InputError names another module
    that takes rows of a batch together, of which no worker has all."""
    inside = {id(part) for conv in _outermost(module) for part in conv.modules()}
    types = {key: t for t in ntypes for key in (t, key2str(t))}
    for name, part in module.named_modules():
        within, graphwide = id(part) in inside, getattr(part, "mode", None) == "graph"
        above = module.get_submodule(name.rpartition(".")[0])
        own = {types[key] for key in name.split(".") if key in types}
        if isinstance(part, Aggregation):
            wrong = not within and not isinstance(above, norm.HeteroBatchNorm)
        elif isinstance(part, nn.modules.batchnorm._BatchNorm):
            alone = isinstance(above, norm.BatchNorm) and above.allow_single_element
            wrong = within or alone or len(own) != 1 or not across(part, ntype=own.pop())
        elif isinstance(part, norm.HeteroBatchNorm):
            wrong = within or not across(part)
        else:
            wrong = isinstance(part, _ACROSS_ROWS) or (
                isinstance(part, norm.LayerNorm) and graphwide)
        if wrong:
            raise InputError(
                f"{type(part).__name__} '{name}'{' of mode graph' * graphwide} takes all nodes of "
                "a batch together, of which no worker has all; use LayerNorm of mode 'node', or "
                "outside of convolutions a BatchNorm for each node type, in a ModuleDict under its "
                "name; aggregate what the model returns; or use one worker (--parts 1)")
