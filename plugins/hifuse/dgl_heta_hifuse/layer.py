"""A whole layer at once, where the kernel's compiled passes do not run: on GPUs, for one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dgl_heta import Edges, HGNNLayer, HGTLayer, RGATLayer, RGCNLayer, slot
from dgl_heta.nn import CrossRelation, CrossSoftmax, Joined
from dgl_heta.tools import Block, Relations, is_linear
from dgl_heta_hifuse import layer_functions as f
from dgl_heta_hifuse.kernel import is_autocast
from dgl_heta_hifuse.layer_edges import TILE, LayerEdges

Sizes = Sequence[tuple[str, int]]
"""Node types, and how many rows they have."""
AGGREGATE = (RGCNLayer.aggregate_all, RGATLayer.aggregate_all)
"""Aggregations of which :class:`WholeLayer` has every operator."""
UPDATE = (RGCNLayer.update, RGATLayer.update)
"""Updates that are the same for all node types."""


class NotAtOnce(Exception):
    """An operator is asked for that takes relations one by one."""


class States(dict[str, Tensor]):
    """The states of node types, views of one tensor, `whole`, in which each follows the other."""

    def __init__(self, whole: Tensor, sizes: Sizes) -> None:
        starts = itertools.accumulate((n for _, n in sizes), initial=0)
        super().__init__({t: whole.narrow(0, start, n) for (t, n), start in zip(sizes, starts)})
        self.whole, self._views = whole, dict(self)

    @staticmethod
    def joined(states: Mapping[str, Tensor], sizes: Sizes, read: Container[str]) -> Tensor | None:
        """The states of these types in one tensor, from which those that are `read` have gradients;
        None where they are of several widths."""
        if [(t, len(x)) for t, x in states.items() if len(x)] != list(sizes):
            return None
        if isinstance(states, States) and all(
                x is states._views.get(t) for t, x in states.items()):  # nobody has put others in
            return states.whole
        each = [states[t] if t in read else states[t].detach() for t, _ in sizes]
        if len({(x.shape[1:], x.dtype, x.device) for x in each}) != 1 or each[0].dim() != 2:
            return None
        return each[0] if len(each) == 1 else torch.cat(each)


class AllRelations(Relations):
    """The relations of a layer, of which operators take all at once."""

    edges: LayerEdges
    block: Any
    whole: Tensor
    by_cost = False

    @classmethod
    def of(cls, views: Sequence[Edges], edges: LayerEdges, block: Any, states: Tensor
           ) -> AllRelations:
        made = cls(views)
        made.edges, made.block, made.whole = edges, block, states
        return made

    def reduce(self, op: str = "mean", states: Sequence[Tensor] | None = None) -> Sequence[Tensor]:
        if states is not None or op not in ("sum", "mean"):
            raise NotAtOnce
        return self._of_rows(f.Reduce.apply(self.whole, self.edges, op))

    def matmul(self, rows: Sequence[Tensor], weights: Sequence[Tensor] | Tensor
               ) -> Sequence[Tensor]:
        if not isinstance(rows, Joined):
            raise NotAtOnce
        of_all = weights if isinstance(weights, Tensor) else self.stack(weights)
        product = f.Products if rows.whole.dim() == 2 else f.PerHead
        return self._of_rows(product.apply(rows.whole, of_all, self.edges))

    def stack(self, weights: Sequence[Tensor]) -> Tensor:
        out: Tensor = f.Stack.apply(*weights)
        return out

    def of_sources(self, weight: Callable[[str], Tensor]) -> Tensor:
        return self.stack([weight(t) for t in self.edges.source_types]).index_select(
            0, self.edges.source_type)

    def project(self, linears: nn.ModuleDict, heads: int) -> Sequence[Tensor]:
        self._check_rows()
        of_types = [linears[slot(t)] for t in self.edges.result_types]
        weights, biases = (
            self.stack([getattr(linear, name) for linear in of_types]).index_select(
                0, self.edges.result_type) for name in ("weight", "bias"))
        rows = self.whole.index_select(0, self.edges.destination)
        out = f.Products.apply(rows, weights.transpose(1, 2), self.edges)
        out = out.view(-1, TILE, out.shape[1]) + biases.index_select(
            0, self.edges.row_tiles).unsqueeze(1)
        return self._of_rows(out.view(len(rows), heads, biases.shape[1] // heads))

    def dot_projected(self, queries: Sequence[Tensor], weights: Tensor) -> Sequence[Tensor]:
        assert isinstance(queries, Joined)
        return self._of_edges(f.EdgeDots.apply(self.whole, queries.whole, weights, self.edges))

    def attend_projected(self, weights: Sequence[Tensor], of_sums: Tensor) -> Sequence[Tensor]:
        assert isinstance(weights, Joined)
        return self._of_rows(f.EdgeSums.apply(self.whole, weights.whole, of_sums.transpose(1, 2),
                                              self.edges))

    def spread(self, values: Sequence[Tensor]) -> Sequence[Tensor]:
        assert isinstance(values, Joined)
        return self._of_edges(f.Spread.apply(values.whole, self.edges))

    def total(self, weights: Sequence[Tensor]) -> Sequence[Tensor]:
        assert isinstance(weights, Joined)
        return self._of_rows(f.Total.apply(weights.whole, self.edges))

    def attention(self, weights: Sequence[Tensor], to_sources: Sequence[Tensor],
                  to_rows: Sequence[Tensor]) -> Sequence[Tensor]:
        self._check_rows()
        return self._of_rows(f.Attention.apply(
            self.whole, self.stack(weights).flatten(2), self.stack([*to_sources, *to_rows]),
            self.edges))

    def _check_rows(self) -> None:
        for edges in self:
            self.block.check_rows(edges._edges)

    def _of_rows(self, whole: Tensor) -> Joined:
        return Joined(whole, self.edges.row_counts)

    def _of_edges(self, whole: Tensor) -> Joined:
        return Joined(whole, self.edges.edge_counts)


class WholeLayer(LayerEdges):
    """The edges of a block (:class:`dgl_heta.sampling.blocks.Prepared`). The block refers to this,
    and this not to the block, so that both are freed when its last reference goes."""

    def __init__(self, block: Any, in_use: Callable[[], bool]) -> None:
        super().__init__(block)
        self._in_use = in_use

    def forward(self, layer: HGNNLayer, block: Any, states: dict[str, Tensor]
                ) -> dict[str, Tensor] | None:
        merged_by = {CrossRelation: self._summed, CrossSoftmax: self._attended}.get(
            type(layer.cross))
        if not self._in_use() or merged_by is None or not _is_known(layer):
            return None
        # What nobody reads has no gradient, and nor have the parameters behind it. As a part of one
        # tensor it would have zeros, by which an optimizer's momentum moves them. What the layer
        # above is, is not known here: mostly one like this.
        if block.above is not None and not _read(layer, block.above).issuperset(
                t for t, n in self.results if n):
            return None
        whole = States.joined(states, self.sources, _read(layer, block))
        if whole is None or is_autocast(whole):
            return None
        views = [Edges(block, edges, states) for edges in self.relations]
        try:
            rows, sizes = merged_by(layer, AllRelations.of(views, self, block, whole))
        except NotAtOnce:
            return None
        return self._updated(layer, block, rows, sizes, whole)

    def _summed(self, layer: HGNNLayer, relations: AllRelations) -> tuple[Tensor, Sizes]:
        values = layer.aggregate_all(relations)
        assert isinstance(values, Joined)
        return self._complete(layer, relations.block, f.Merge.apply(values.whole, self))

    def _attended(self, layer: HGNNLayer, relations: AllRelations) -> tuple[Tensor, Sizes]:
        """As :class:`CrossSoftmax`, of all types."""
        # Of several types the default exchanges the maxima and the sums of one after the other, and
        # a worker whose block is not taken as a whole does so: the order must be the same.
        block = relations.block
        if sum(map(block.exchanged, block.num_dst)) > 1:
            raise NotAtOnce
        scores = layer.score_all(relations)
        assert isinstance(scores, Joined)
        with torch.no_grad():
            top = self._top(layer, block, scores.whole.detach()).index_select(0, self.target)
            top = top.index_select(0, self.row)
        share = relations._of_edges(torch.exp(scores.whole - top))
        sums, totals = layer.attend_all(relations, share), relations.total(share)
        assert isinstance(sums, Joined)
        assert isinstance(totals, Joined)
        rows, sizes = self._complete(layer, block, f.Merge.apply(
            torch.cat([sums.whole, totals.whole], 1), self))
        return CrossSoftmax.divided(rows, layer.width), sizes

    def _top(self, layer: HGNNLayer, block: Any, scores: Tensor) -> Tensor:
        """The maximum of each result's scores, (N + 1, heads)."""
        most = f.segments(scores, self.indptr, "max")
        top = most.new_full((self.number + 1, most.shape[1]), float("-inf"))
        top = top.scatter_reduce_(0, self.target.long().unsqueeze(1).expand_as(most), most, "amax")
        parts = States(top, self.results)
        every = [layer.cross.exchange.reduce_max(x, block, t) for t, x in parts.items()]
        if all(a is b for a, b in zip(every, parts.values())):
            return top
        return torch.cat([*every, top[self.number:]])

    def _complete(self, layer: HGNNLayer, block: Any, merged: Tensor
                  ) -> tuple[Tensor, Sizes]:
        """Sums of all relations (N + 1, …) with those of other workers, and the rows of each type
        that are wanted. There may be a row more at the end."""
        parts = States(merged, self.results)
        complete = [layer.cross.complete(part, block, t) for t, part in parts.items()]
        sizes = [(t, len(rows)) for (t, _), rows in zip(self.results, complete)]
        if len(complete) == 1:
            return complete[0], sizes
        local = all(a is b for a, b in zip(parts.values(), complete))
        return (merged if local else torch.cat(complete)), sizes

    def _updated(self, layer: HGNNLayer, block: Any, rows: Tensor, sizes: Sizes, whole: Tensor
                 ) -> dict[str, Tensor]:
        own = None
        if layer.reads_state:
            for t, _ in sizes:
                block.check_destinations(t)
            own = self._own(whole, sizes, len(rows))
        if type(layer).update in UPDATE and not _drops(layer):
            return States(layer.update(sizes[0][0], rows, own), sizes)
        if isinstance(layer, HGTLayer) and type(layer).update is HGTLayer.update and (
                own is not None and not _drops(layer)):
            return States(self._skipped(layer, rows, sizes, own), sizes)
        each = States(rows, sizes)
        owns = {} if own is None else States(own, sizes)
        return {t: layer.update(t, x, owns.get(t)) for t, x in each.items()}

    def _skipped(self, layer: HGTLayer, rows: Tensor, sizes: Sizes, own: Tensor) -> Tensor:
        """HGT's update of all types."""
        count = sum(n for _, n in sizes)
        parts = F.gelu(rows[:count] if len(rows) > count else rows).split([n for _, n in sizes])
        outs = [layer.outputs[slot(t)](x) for (t, _), x in zip(sizes, parts)]
        skip = [layer.skip[slot(t)] for t, _ in sizes]
        if len(outs) == 1:
            return layer.skipped(outs[0], own, skip[0])
        of_rows = f.Stack.apply(*skip)
        of_rows = of_rows.index_select(0, self.result_of[:count]) if sizes == self.results else (
            torch.cat([x.expand(n, 1) for x, (_, n) in zip(of_rows, sizes)]))
        return layer.skipped(torch.cat(outs), own[:count], of_rows)

    def _own(self, whole: Tensor, sizes: Sizes, rows: int) -> Tensor:
        if len(sizes) > 1 and sizes == self.results:
            return whole.index_select(0, self.own[:rows])
        states = States(whole, self.sources)
        each = [states[t][:n] for t, n in sizes if n] or [whole[:0]]  # a worker may have no seed
        return each[0] if len(each) == 1 else torch.cat(each)


def _read(layer: HGNNLayer, block: Block) -> set[str]:
    """The node types whose states the layer reads of a block, also by relations without edges."""
    relations = [edges.relation for edges in block.edges]
    read = {r.src for r in relations}
    if layer.attends or layer.reads_state:
        read.update(r.dst for r in relations)
    if layer.reads_state and (type(layer).update is not RGATLayer.update or layer.loop is not None):
        read.update(block.num_dst)
    return read


def _is_known(layer: HGNNLayer) -> bool:
    """Whether :class:`AllRelations` has every operator that the layer asks for."""
    kind = type(layer)
    if any(callable(value) and hasattr(kind, name) for name, value in vars(layer).items()):
        return False  # a method of this layer alone
    if isinstance(layer.cross, CrossSoftmax):
        return isinstance(layer, HGTLayer) and all(
            getattr(kind, name) is getattr(HGTLayer, name)
            for name in ("score_all", "attend_all", "attend_across", "skipped")) and all(
            is_linear(linear) and linear.bias is not None
            for linears in (layer.keys, layer.values, layer.queries) for linear in linears.values())
    return layer.cross.op in ("sum", "mean") and kind.aggregate_all in AGGREGATE


def _drops(layer: nn.Module) -> bool:
    """Whether the layer draws random numbers, which are drawn type by type."""
    return layer.training and any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p
                                  for m in layer.modules())
