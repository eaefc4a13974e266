"""HeteroGraphConv on blocks of a meta-partitioned graph.

A relation's own module runs, on this machine's relations, for the rows that the plan names;
the merge over relations, whatever the aggregation, goes over the group (Heta §4).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from dgl.nn.pytorch import hetero
from torch import Tensor

from dgl_heta.distdgl import gat_conv, graph_conv
from dgl_heta.distdgl.layers import Layer
from dgl_heta.distdgl.merging import Part, destination_rows, layer_of, merge_relations
from dgl_heta.features.deferred import LazyRows
from dgl_heta.graph.schema import Relation

if TYPE_CHECKING:
    from dgl_heta.distdgl.blocks import RafBlock

_BY_FUNCTION = {hetero._sum_reduce_func: "sum", hetero._mean_reduce_func: "mean",
                hetero._max_reduce_func: "max", hetero._min_reduce_func: "min"}


def forward(conv: Any, g: RafBlock, inputs: Any, mod_args: Any = None,
            mod_kwargs: Any = None) -> dict[str, Tensor]:
    """`HeteroGraphConv.forward` on a RAF block."""
    layer = layer_of(g)
    block, session = layer.block, layer.session
    session.chains.merging(block)
    pair = isinstance(inputs, tuple)
    sources: Mapping[str, Tensor] = inputs[0] if pair else inputs
    destinations: Mapping[str, Tensor] = inputs[1] if pair else {
        t: sources[t] for t in block.num_dst if t in sources}
    aggregate = _BY_FUNCTION.get(getattr(conv.agg_fn, "keywords", {}).get("fn"), conv.agg_fn)
    like = _first(next(iter(sources.values())))
    merged = {}

    def call(relation: Relation) -> tuple[Any, Any, Any]:
        return (conv._get_module(tuple(relation)), (mod_args or {}).get(relation.etype, ()),
                (mod_kwargs or {}).get(relation.etype, {}))

    into = session.store.schema.into
    rows = {t: destination_rows(layer, t, x, pair or (
        block.own_states and any(_reads_destinations(conv, r) for r in into[t])))
            for t, x in destinations.items() if t in block.num_dst}
    if block.last and aggregate == "sum":
        for ntype in block.num_dst:
            members = graph_conv.narrow_first(session, ntype, call)
            if members is not None:
                merged[ntype] = _narrow_first(layer, ntype, members, sources, call)
    parts: dict[str, list[Part]] = {t: [] for t in block.num_dst if t not in merged}
    chosen = {place: (edges, *call(edges.relation)) for place, edges in enumerate(block.edges)
              if edges.relation.src in sources and edges.relation.dst in rows
              and edges.relation.dst not in merged}
    convolutions = {place: (module, edges, kwargs)
                    for place, (edges, module, args, kwargs) in chosen.items()
                    if graph_conv.known(module, args, kwargs)}
    for ntype, states in sources.items():
        if isinstance(states, LazyRows):
            states.own_rows = block.wanted(ntype) if ntype in block.num_dst else 0
    aggregated = graph_conv.aggregate_together(convolutions, sources)
    attentions = {place: (module, edges, sources[edges.relation.src], edges.of(
                      rows[edges.relation.dst]))
                  for place, (edges, module, args, kwargs) in chosen.items()
                  if gat_conv.known(module, sources[edges.relation.src], args, kwargs)}
    attended = dict(zip(attentions, gat_conv.run_together([*attentions.values()])
                        if attentions else ()))
    for place, (edges, module, args, kwargs) in chosen.items():
        relation = edges.relation
        source = sources[relation.src]
        if place in convolutions:
            value = graph_conv.run(module, edges, source, kwargs, aggregated.get(place))
        elif place in attended:
            value = attended[place]
        else:
            own = rows[relation.dst][edges.start:edges.stop]
            value = module(layer.graph(place, like.device), (source, own), *args, **kwargs)
        parts[relation.dst].append((edges, value))
    for ntype, values in parts.items():
        if values or ntype in block.seeds:
            out = merge_relations(layer, ntype, values, aggregate, (conv, ntype), like,
                                  into[ntype])
            if out is not None:
                merged[ntype] = out
    return merged


def _reads_destinations(conv: Any, relation: Relation) -> bool:
    """Whether a relation's module may look at its destinations' states; on all machines alike."""
    try:
        return not graph_conv.is_graph_conv(conv._get_module(tuple(relation)))
    except KeyError:  # this relation is not of the model
        return False


def _first(rows: Any) -> Tensor:
    """The rows of a node type, or the first of several tensors that a module takes."""
    first: Tensor = rows if isinstance(rows, Tensor) else rows[0]
    return first


def _narrow_first(layer: Layer, ntype: str, members: list[list[Relation]],
                  sources: Mapping[str, Tensor], call: Callable[[Relation], Any]) -> Tensor:
    """The sum over relations of aggregated rows times weights, exchanged before the weights."""
    block, session = layer.block, layer.session
    shares, own = block.seeds[ntype], members[session.group.rank]
    weights = [[graph_conv.weight_of(module, kwargs) for module, _, kwargs in map(call, relations)]
               for relations in members]
    like = next(iter(sources.values()))
    columns = []
    for relation, weight in zip(own, weights[session.group.rank]):
        assert weight is not None
        pieces, reached = [], 0
        for edges in block.into(ntype):
            if edges.relation != relation or relation.src not in sources:
                continue
            pieces.append(like.new_zeros(edges.start - reached, weight.shape[0]))
            pieces.append(graph_conv.aggregate(call(relation)[0], edges, sources[relation.src]))
            reached = edges.stop
        pieces.append(like.new_zeros(shares.total - reached, weight.shape[0]))
        columns.append(torch.cat([p for p in pieces if len(p)]) if shares.total else pieces[-1])
    rows = torch.cat(columns, 1) if columns else like.new_zeros(shares.total, 0)
    widths = [sum(w.shape[0] for w in of if w is not None) for of in weights]
    bounds = [0, *itertools.accumulate(widths)]
    out = session.exchange.gather_columns(
        rows.unsqueeze(2), [range(a, b) for a, b in itertools.pairwise(bounds)], block, ntype)
    return out.squeeze(2) @ torch.cat([w for of in weights for w in of if w is not None])
