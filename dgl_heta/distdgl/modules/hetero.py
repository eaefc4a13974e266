"""HeteroGraphConv on blocks of a meta-partitioned graph.

A relation's own module runs, on this machine's relations, for the rows that the plan names;
the merge over relations, whatever the aggregation, goes over the group (Heta §4).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from dgl.nn.pytorch import GATConv, GraphConv, SAGEConv, hetero
from torch import Tensor

from dgl_heta.distdgl.blocks.edge_rows import EdgeRows, unguarded
from dgl_heta.distdgl.blocks.layer import Layer
from dgl_heta.distdgl.modules import gat_conv, graph_conv, sage_conv
from dgl_heta.distdgl.modules.hetero_convs import DGLS, Called
from dgl_heta.distdgl.modules.merging import (
    Part,
    complete_types,
    destination_rows,
    layer_of,
    mapped,
    merge_relations,
    tensors_in,
    wide,
)
from dgl_heta.distdgl.modules.module_hooks import is_plain_module
from dgl_heta.distdgl.modules.relation_modules import (
    buffers_of,
    call_module,
    runs_alone,
    share_state,
)
from dgl_heta.distdgl.modules.remote_destinations import has_guests, with_guests, without_absent
from dgl_heta.errors import HetaError, InputError
from dgl_heta.features.deferred import LazyRows
from dgl_heta.graph.schema import Relation
from dgl_heta.system.nested import of_type

if TYPE_CHECKING:
    from dgl_heta.distdgl.blocks.raf_block import RafBlock

_BY_FUNCTION = {hetero._sum_reduce_func: "sum", hetero._mean_reduce_func: "mean",
                hetero._max_reduce_func: "max", hetero._min_reduce_func: "min"}


def forward(conv: Any, g: RafBlock, inputs: Any, mod_args: Any = None,
            mod_kwargs: Any = None, way: Called = DGLS) -> dict[str, Tensor]:
    """`HeteroGraphConv.forward` on a RAF block, or that of a class that is called as `way` says.
    """
    layer = layer_of(g)
    layer.session.order.merging(layer.block, inputs)
    with layer.session.scope.merge(layer.block, inputs) as merged:
        out = _forward(conv, g, layer, inputs, mod_args, mod_kwargs, way)
        for ntype, rows in out.items():
            merged(ntype, rows)
    return out


def _forward(conv: Any, g: RafBlock, layer: Layer, inputs: Any, mod_args: Any, mod_kwargs: Any,
             way: Called) -> dict[str, Tensor]:
    block, session = layer.block, layer.session
    pair = isinstance(inputs, tuple)
    sources: Mapping[str, Any] = inputs[0] if pair else inputs
    destinations: Mapping[str, Any] = inputs[1] if pair else {
        t: sources[t] for t in block.num_dst if t in sources}
    of_edges = _rows_of_edges(conv, inputs)
    aggregate = _BY_FUNCTION.get(getattr(conv.agg_fn, "keywords", {}).get("fn"), conv.agg_fn)
    like = next((x for rows in sources.values() for x in tensors_in(rows)),
                torch.empty(0, device=g.device))
    merged = {}

    def call(relation: Relation) -> tuple[Any, Any, Any]:
        return (conv._get_module(tuple(relation)), unguarded(way.of(mod_args, relation, ())),
                unguarded(way.of(mod_kwargs, relation, {})))

    into = session.store.schema.into
    modules = _modules(conv, session.store.schema.relations, sources, destinations)
    by_edge = any(True for _ in of_type(EdgeRows, (mod_args, mod_kwargs)))
    alone = _read_sources_alone(conv, layer, modules, sources, by_edge)
    read = {t for t in {**destinations, **block.guests}
            if any(r in modules and r not in alone for r in into[t])}
    guests = (with_guests(layer, conv, destinations, read, like) if has_guests(layer) else {})
    rows = {t: destination_rows(layer, t, x, t in read and (pair or block.own_states))
            for t, x in destinations.items() if t in block.num_dst and t not in guests} | guests
    if block.last and layer.planned and aggregate == "sum":
        for ntype in block.num_dst:
            if all(r in alone or r not in modules for r in into[ntype]):
                members = graph_conv.narrow_first(session, ntype, modules, call)
                if members is not None:
                    merged[ntype] = _narrow_first(layer, ntype, members, sources, call)
    parts: dict[str, list[Part]] = {t: [] for t in block.num_dst if t not in merged}
    chosen = {place: (edges, *call(edges.relation)) for place, edges in enumerate(block.edges)
              if edges.relation.src in sources and edges.relation.dst in rows
              and edges.relation.dst not in merged}
    convolutions = {place: (module, edges, kwargs)
                    for place, (edges, module, args, kwargs) in chosen.items()
                    if graph_conv.known(module, sources[edges.relation.src], args, kwargs)}
    for ntype, states in sources.items():
        if isinstance(states, LazyRows):
            states.own_rows = block.wanted(ntype) if ntype in block.num_dst else 0
    convolved = graph_conv.run_together(convolutions, sources, aggregate == "sum")
    attentions = {place: (module, edges, sources[edges.relation.src], rows[edges.relation.dst])
                  for place, (edges, module, args, kwargs) in chosen.items()
                  if gat_conv.known(module, sources[edges.relation.src], args, kwargs)}
    attended = dict(zip(attentions, gat_conv.run_together([*attentions.values()])
                        if attentions else ()))
    means = {place: (module, edges, sources[edges.relation.src], rows[edges.relation.dst])
             for place, (edges, module, args, kwargs) in chosen.items()
             if sage_conv.known(module, sources[edges.relation.src], rows[edges.relation.dst],
                                args, kwargs)}
    attended.update(zip(means, sage_conv.run_together([*means.values()])))
    called: set[Relation] = set()
    state = buffers_of(conv, layer)
    before = state.marks() if state else []
    for place, (edges, module, args, kwargs) in chosen.items():
        relation = edges.relation
        source = sources[relation.src]
        if place in convolved:
            edges, value = convolved[place]
        elif place in attended:
            value = attended[place]
        elif relation in called:  # with all its rows
            continue
        else:
            called.add(relation)
            runs_alone(relation, module)
            edges, graph = layer.relation(relation, g)
            ends = mapped(edges.of, rows[relation.dst]) if relation.dst in read else source
            found = call_module(module, edges, graph, (source, ends, *of_edges.get(relation, ())),
                                args, kwargs)
            if found is None:
                continue
            value = found
        parts[relation.dst].append((edges, value))
    if state:
        share_state(state, before, layer, called)
    reached = {r for r in modules if r.src in sources and r.dst in destinations}
    for ntype, values in parts.items():
        if values or ntype in block.seeds or ntype in block.guests:
            out = merge_relations(layer, ntype, values, aggregate, (conv, ntype), like,
                                  {r: r in reached for r in in_order(into[ntype])})
            if out is not None:
                merged[ntype] = out
    return without_absent(layer, complete_types(layer, merged, {r.dst for r in reached}, (conv,),
                                                like), destinations)


def _rows_of_edges(conv: Any, inputs: Any) -> dict[Relation, tuple[Tensor]]:
    """Rows of edges by relation, the third part of a triple; none of what is no triple.

    Raises
    ------
    InputError
        They are for a relation whose module takes none.
    """
    if not isinstance(inputs, tuple) or len(inputs) != 3:
        return {}
    for etype in inputs[2]:
        module = conv._get_module(etype)
        if isinstance(module, GraphConv | GATConv | SAGEConv):
            raise InputError(f"{type(conv).__name__} is given rows of the edges of {etype}, whose "
                             f"module {type(module).__name__} takes none; leave them out")
    return {Relation(*etype): (unguarded(rows),) for etype, rows in inputs[2].items()}


def in_order(relations: Iterable[Relation]) -> list[Relation]:
    """The order in which DGL's blocks have relations, and HeteroGraphConv gives their outputs to
    'stack' and to callables: by name, whatever the order of the schema."""
    return sorted(relations)


def _read_sources_alone(conv: Any, layer: Layer, modules: Mapping[Relation, Any],
                        sources: Mapping[str, Any], by_edge: bool) -> set[Relation]:
    """Relations whose module looks at no destinations and may be computed together with others:
    GraphConv, with nothing hung on it, rows for it and no rows of edges. All trainers of the group
    find the same.

    Raises
    ------
    InputError
        A GraphConv normalises by out-degrees, which inside a batch depend on the other trainers.
    HetaError
        A hook was registered, a node type left out or data of edges given since the other trainers
        have been asked.
    """
    session = layer.session
    block = layer.block
    found, plain = set(), True
    absent = sorted({e.relation.src for e in block.edges if e.relation in modules}
                    - set(sources))
    for relation, module in modules.items():
        if not graph_conv.is_graph_conv(module):
            continue
        found.add(relation)
        if session.group.size > 1 and module._norm not in ("right", "none"):
            raise InputError(
                f"GraphConv with norm='{module._norm}' divides by out-degrees inside a batch, "
                "which depend on the other trainers' seeds on a meta-partitioned graph; use "
                "norm='right' or 'none'")
        plain = plain and is_plain_module(module, GraphConv)
    guests = has_guests(layer)
    if not found or not (layer.block.last or guests):
        return found if plain else set()
    agreed = session.groups.all_agree((conv, layer.block.layer),
                            plain and (guests or (not absent and not by_edge)))
    if agreed and by_edge and not guests:
        raise HetaError("data of edges is given to HeteroGraphConv's modules inside an epoch; give "
                        "it with all batches of an epoch, or with none")
    if left := [t for t in absent if agreed and block.num_src[t] and not guests]:
        raise HetaError(f"the rows of '{left[0]}' are left out of HeteroGraphConv's inputs inside "
                        "an epoch; leave a node type out of all batches of an epoch, or of none")
    if agreed and not plain:
        raise HetaError("a hook was registered on a GraphConv inside an epoch; register it on all "
                        "trainers before the epoch's first batch")
    return found if agreed else set()


def _modules(conv: Any, relations: Iterable[Relation], sources: Mapping[str, Any],
             destinations: Mapping[str, Any]) -> dict[Relation, Any]:
    """The modules of those relations that are of the model. A KeyError, as in DGL, if one is not
    and there are rows for it."""
    found = {}
    for relation in relations:
        try:
            found[relation] = conv._get_module(tuple(relation))
        except KeyError:
            if relation.src in sources and relation.dst in destinations:
                raise
    return found


def _narrow_first(layer: Layer, ntype: str, members: list[list[Relation]],
                  sources: Mapping[str, Any], call: Callable[[Relation], Any]) -> Tensor:
    """The sum over relations of aggregated rows times weights, exchanged before the weights."""
    block, session = layer.block, layer.session
    shares, own = block.seeds[ntype], members[session.group.rank]
    weights = [[graph_conv.weight_of(module, kwargs) for module, _, kwargs in map(call, relations)]
               for relations in members]
    like = next(x for rows in sources.values() for x in tensors_in(rows))
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
        rows.to(wide(rows.dtype)).unsqueeze(2),
        [range(a, b) for a, b in itertools.pairwise(bounds)], block, ntype)
    return out.squeeze(2).to(rows.dtype) @ torch.cat(
        [w for of in weights for w in of if w is not None])
