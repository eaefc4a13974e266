"""A whole layer at once, where the kernel's compiled passes do not run: on GPUs, for one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dgl_heta.models import Edges, HGNNLayer, Relations, RGATLayer, RGCNLayer
from dgl_heta.nn import CrossRelation, Joined
from dgl_heta_hifuse import layer_functions as f
from dgl_heta_hifuse.layer_edges import LayerEdges

AGGREGATE = (RGCNLayer.aggregate_all, RGATLayer.aggregate_all)
"""Aggregations of which :class:`WholeLayer` has every operator."""
UPDATE = (RGCNLayer.update, RGATLayer.update)
"""Updates that are the same for all node types."""


class NotAtOnce(Exception):
    """An operator is asked for that takes relations one by one."""


class States(dict[str, Tensor]):
    """The states of node types, views of one tensor, `whole`, in which each follows the other."""

    def __init__(self, whole: Tensor, sizes: Sequence[tuple[str, int]]) -> None:
        starts = itertools.accumulate((n for _, n in sizes), initial=0)
        super().__init__({t: whole.narrow(0, start, n) for (t, n), start in zip(sizes, starts)})
        self.whole = whole

    @staticmethod
    def joined(states: Mapping[str, Tensor], sizes: Sequence[tuple[str, int]]) -> Tensor | None:
        """The states of these types in one tensor; None where they are of several widths."""
        if [(t, len(x)) for t, x in states.items() if len(x)] != list(sizes):
            return None
        if isinstance(states, States):
            return states.whole
        each = [states[t] for t, _ in sizes]
        if len({(x.shape[1:], x.dtype, x.device) for x in each}) != 1 or each[0].dim() != 2:
            return None
        return each[0] if len(each) == 1 else torch.cat(each)


class AllRelations(Relations):
    """The relations of a layer, of which operators take all at once."""

    edges: LayerEdges
    whole: Tensor

    @classmethod
    def of(cls, views: Sequence[Edges], edges: LayerEdges, states: Tensor) -> AllRelations:
        made = cls(views)
        made.edges, made.whole = edges, states
        return made

    def reduce(self, op: str = "mean", states: Sequence[Tensor] | None = None) -> Sequence[Tensor]:
        if states is not None or op not in ("sum", "mean"):
            raise NotAtOnce
        return self._of_rows(f.Reduce.apply(self.whole, self.edges, op))

    def matmul(self, rows: Sequence[Tensor], weights: Sequence[Tensor] | Tensor
               ) -> Sequence[Tensor]:
        if not isinstance(rows, Joined) or rows.whole.dim() != 2:
            raise NotAtOnce
        return self._of_rows(f.Products.apply(rows.whole, _stacked(weights), self.edges))

    def attention(self, weights: Sequence[Tensor], to_sources: Sequence[Tensor],
                  to_rows: Sequence[Tensor]) -> Sequence[Tensor]:
        for edges in self:
            self.edges.block.check_rows(edges._edges)
        return self._of_rows(f.Attention.apply(
            self.whole, _stacked(weights).flatten(2), torch.stack([*to_sources, *to_rows]),
            self.edges))

    def _of_rows(self, whole: Tensor) -> Joined:
        return Joined(whole, self.edges.row_counts)


def _stacked(weights: Sequence[Tensor] | Tensor) -> Tensor:
    return weights if isinstance(weights, Tensor) else torch.stack(list(weights))


class WholeLayer(LayerEdges):
    """The edges of a block (:class:`dgl_heta.sampling.blocks.Prepared`)."""

    def __init__(self, block: Any, in_use: Callable[[], bool]) -> None:
        super().__init__(block)
        self._in_use = in_use

    def forward(self, layer: HGNNLayer, block: Any, states: dict[str, Tensor]
                ) -> dict[str, Tensor] | None:
        kind = type(layer)
        if kind.aggregate_all not in AGGREGATE or layer.cross.op not in ("sum", "mean") or (
                type(layer.cross) is not CrossRelation or not self._in_use()):
            return None
        whole = States.joined(states, self.sources)
        if whole is None:
            return None
        views = [Edges(block, edges, states) for edges in self.relations]
        try:
            values = layer.aggregate_all(AllRelations.of(views, self, whole))
        except NotAtOnce:
            return None
        assert isinstance(values, Joined)
        return self._updated(layer, f.Merge.apply(values.whole, self), whole)

    def _updated(self, layer: HGNNLayer, merged: Tensor, whole: Tensor) -> dict[str, Tensor]:
        """The states of the wanted rows, from the sums of all relations (N + 1, width)."""
        block, one = self.block, len(self.results) == 1
        parts = list(States(merged, self.results).values())
        complete = [layer.cross.complete(part, block, t)
                    for part, (t, _) in zip(parts, self.results)]
        sizes = [(t, len(rows)) for rows, (t, _) in zip(complete, self.results)]
        local = all(a is b for a, b in zip(parts, complete))
        rows = complete[0] if one else merged if local else torch.cat(complete)
        own = None
        if layer.reads_state:
            for t, _ in self.results:
                block.check_destinations(t)
            own = self._own(whole, sizes, len(rows))
        if type(layer).update in UPDATE and not _drops(layer):
            return States(layer.update(sizes[0][0], rows, own), sizes)
        each = States(rows, sizes)
        owns = {} if own is None else States(own, sizes)
        return {t: layer.update(t, x, owns.get(t)) for t, x in each.items()}

    def _own(self, whole: Tensor, sizes: Sequence[tuple[str, int]], rows: int) -> Tensor:
        if len(sizes) > 1 and sizes == self.results:
            return whole.index_select(0, self.own[:rows])
        states = States(whole, self.sources)
        each = [states[t][:n] for t, n in sizes if n]
        return each[0] if len(each) == 1 else torch.cat(each)


def _drops(layer: nn.Module) -> bool:
    """Whether the layer draws random numbers, which are drawn type by type."""
    return layer.training and any(isinstance(m, nn.Dropout) and m.p for m in layer.modules())
