"""HeteroGraphConv and multi_update_all on blocks of a meta-partitioned graph.

A relation's own module runs, on this machine's relations, for the rows that the plan names;
the merge over relations, whatever the aggregation, goes over the group (Heta §4).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from dgl.nn.pytorch import hetero
from torch import Tensor

from dgl_heta.distdgl import gat_conv, graph_conv
from dgl_heta.distdgl.layers import Layer
from dgl_heta.errors import HetaError
from dgl_heta.features.deferred import LazyRows
from dgl_heta.graph.schema import Relation
from dgl_heta.nn.cross import merge
from dgl_heta.sampling.blocks import RelationBlock

if TYPE_CHECKING:
    from dgl_heta.distdgl.blocks import RafBlock

Part = tuple[RelationBlock, Tensor]
_BY_FUNCTION = {hetero._sum_reduce_func: "sum", hetero._mean_reduce_func: "mean",
                hetero._max_reduce_func: "max", hetero._min_reduce_func: "min"}


def forward(conv: Any, g: RafBlock, inputs: Any, mod_args: Any = None,
            mod_kwargs: Any = None) -> dict[str, Tensor]:
    """`HeteroGraphConv.forward` on a RAF block."""
    layer = _layer(g)
    block, session = layer.block, layer.session
    session.token()
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
    rows = {t: _destinations(layer, t, x, pair or (
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
            out = _merge(layer, ntype, values, aggregate, (conv, ntype), like,
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


def multi_update_all(g: RafBlock, etype_dict: Mapping[Any, Any], cross_reducer: Any,
                     apply_node_func: Any = None) -> None:
    """`DGLGraph.multi_update_all` on a RAF block."""
    from dgl import core
    from dgl.base import ALL, DGLError

    layer = _layer(g)
    block, schema = layer.block, layer.session.store.schema
    layer.session.token()
    functions: dict[Relation, tuple[Any, ...]] = {}
    for etype, given in etype_dict.items():
        functions[canonical(etype, schema.relations)] = tuple(given) if isinstance(
            given, tuple | list) else (given,)
    for relation, given in functions.items():
        if len(given) not in (2, 3):
            raise DGLError(f"Invalid arguments for edge type \"{relation}\". Should be "
                           "(msg_func, reduce_func, [apply_node_func])")
    fields: dict[str, dict[str, list[Part]]] = {t: {} for t in block.num_dst}
    gathered: dict[tuple[str, str], Tensor] = {}
    for ntype in block.num_dst:
        for field in _destination_fields(layer, functions, ntype, g):
            gathered[ntype, field] = _destinations(layer, ntype, g.dstnodes[ntype].data[field],
                                                   True)
    like = torch.zeros(1)
    for place, edges in enumerate(block.edges):
        relation = edges.relation
        if relation not in functions:
            continue
        message, reduce, *rest = functions[relation]
        graph = layer.graph(place, g.device).local_var()
        for name, column in g.srcnodes[relation.src].data.items():
            graph.srcdata[name] = column
        for (t, name), column in gathered.items():
            if t == relation.dst:
                graph.dstdata[name] = column[edges.start:edges.stop]
        if not block.last and graph.num_edges() == g.num_edges(tuple(relation)):
            for name, column in g.edges[tuple(relation)].data.items():
                graph.edata[name] = column
        try:
            columns = core.message_passing(graph, message, reduce, rest[0] if rest else None)
        except KeyError as error:
            raise HetaError(
                f"multi_update_all over {relation}: no data {error} on this block of a "
                "meta-partitioned graph; data that a script puts on the edges of the last layer "
                "cannot be used, because other trainers' seeds have edges there too") from error
        for name, value in columns.items():
            fields[relation.dst].setdefault(name, []).append((edges, value))
            like = value
    reducer = cross_reducer if not callable(cross_reducer) else (
        lambda values, _: cross_reducer(values) if len(values) > 1 else values[0])
    last: Any = list(functions.values())[-1][1] if functions else None
    expected = _names(functions)
    for ntype in block.num_dst:
        out = {}
        into = [r for r in functions if r.dst == ntype]
        names = list(fields[ntype]) or ([expected] if into and ntype in block.seeds else [])
        for name in names:
            merged = _merge(layer, ntype, fields[ntype].get(name, []), reducer, (name, ntype),
                            like, schema.into[ntype])
            if merged is not None:
                unreached = torch.isinf(merged) if _builtin(last) and last.name in (
                    "min", "max") else None  # as in DGL, by the last reduce function
                out[name] = merged if unreached is None else merged.masked_fill(unreached, 0)
        if out:
            g._node_frames[g.get_ntype_id_from_dst(ntype)].update(out)
            if apply_node_func is not None:
                g.apply_nodes(apply_node_func, ALL, "DST/" + ntype)


def _layer(g: RafBlock) -> Layer:
    if g.layer is None:
        raise HetaError("a slice of a block of a meta-partitioned graph cannot be aggregated: "
                        "pass the whole block to HeteroGraphConv or multi_update_all")
    return g.layer


def _destinations(layer: Layer, ntype: str, rows: Tensor, gather: bool) -> Tensor:
    """The states of all destination rows of a type, the other trainers' seeds included.

    At the last layer they are gathered where the script gives its own seeds' alone, or these alone
    are complete.
    """
    block, group = layer.block, layer.session.group
    if not gather or not block.last or group.size == 1 or not block.num_seeds(ntype):
        return rows[:block.num_dst[ntype]]
    return layer.session.exchange.gather_rows(rows[:block.seeds[ntype].own], block, ntype)


def _merge(layer: Layer, ntype: str, parts: list[Part], aggregate: str | Callable[..., Tensor],
           owner: tuple[Any, str], like: Tensor, relations: Sequence[Relation]) -> Tensor | None:
    """Merge the relations of one destination type over the group; None if there are none.

    `relations` are all that may be merged, in the order for 'stack' and callables.
    """
    block, session = layer.block, layer.session
    if callable(aggregate) and aggregate is not hetero._stack_agg_func:
        block = replace(block, reads={})  # it may look at all rows together
    shape = _shape(layer, ntype, parts, owner)
    if shape is None:
        return None
    width = shape.numel()
    flat = [(edges, value.reshape(edges.num_rows, width)) for edges, value in parts]

    def reduce(op: str, values: Sequence[Part], columns: int) -> Tensor:
        return merge(session.exchange, op, block, ntype, values, columns, like)

    if aggregate in ("sum", "max", "min"):
        return reduce(str(aggregate), flat, width).view(-1, *shape)
    if aggregate == "mean":
        counted = [(edges, torch.cat([value, value.new_ones(len(value), 1)], 1))
                   for edges, value in flat]
        out = reduce("sum", counted, width + 1)
        return (out[:, :-1] / out[:, -1:].detach().clamp(min=1)).view(-1, *shape)
    return _each(layer, ntype, flat, aggregate, reduce, shape, relations)


def _each(layer: Layer, ntype: str, parts: list[Part], aggregate: str | Callable[..., Tensor],
          reduce: Callable[[str, Sequence[Part], int], Tensor], shape: torch.Size,
          relations: Sequence[Relation]) -> Tensor | None:
    """Bring the outputs of every relation together in order, then aggregate them.

    Each relation has columns of its own, with one more that says whether it was there.
    """
    if aggregate == "stack":
        aggregate = hetero._stack_agg_func
    if not callable(aggregate):
        raise HetaError(f"aggregation {aggregate!r} is unknown; use 'sum', 'mean', 'max', 'min', "
                        "'stack' or a callable")
    place, columns = {r: i for i, r in enumerate(relations)}, shape.numel() + 1
    spread = []
    for edges, value in parts:
        before = place[edges.relation] * columns
        after = (len(relations) - 1) * columns - before
        spread.append((edges, torch.cat([
            value.new_zeros(len(value), before), value, value.new_ones(len(value), 1),
            value.new_zeros(len(value), after)], 1)))
    out = reduce("sum", spread, len(relations) * columns).view(-1, len(relations), columns)
    block = layer.block
    seeds = min(block.num_seeds(ntype), len(out))
    pieces = []
    for rows in (out[:seeds], out[seeds:]):
        if len(rows):
            there = [i for i in range(len(relations)) if rows[0, i, -1] > 0]
            pieces.append((there, rows))
    if len(pieces) == 2 and pieces[0][0] == pieces[1][0]:
        pieces = [(pieces[0][0], out)]
    results = [aggregate([rows[:, i, :-1].reshape(-1, *shape) for i in there], ntype)
               for there, rows in pieces if there]
    return (torch.cat(results) if len(results) > 1 else results[0]) if results else None


def _shape(layer: Layer, ntype: str, parts: list[Part], owner: tuple[Any, str]
           ) -> torch.Size | None:
    """The shape of a row of the result, the same on all trainers of the group.

    A trainer that holds no relation into the type learns it from the others, once.
    """
    own = parts[0][1].shape[1:] if parts else None
    session = layer.session
    if ntype not in layer.block.seeds or session.group.size == 1:
        return own
    key = (*owner, layer.block.layer)
    if key not in session.shapes:
        sizes = torch.full((9,), -1, dtype=torch.int64)
        if own is not None:
            sizes[0] = len(own)
            sizes[1:1 + len(own)] = torch.tensor(own)
        sizes = session.group.all_reduce(sizes, "max", "control")
        session.shapes[key] = torch.Size(sizes[1:1 + int(sizes[0])].tolist()) if (
            sizes[0] >= 0) else None
    agreed = session.shapes[key]
    if own is not None and own != agreed:
        raise HetaError(f"relations into '{ntype}' give rows of shape {tuple(own)} here and of "
                        f"{tuple(agreed or ())} on another trainer")
    return agreed


def canonical(etype: Any, relations: Sequence[Relation]) -> Relation:
    """The relation that a script names by its edge type or in full."""
    from dgl.base import DGLError

    named = [r for r in relations if etype in (tuple(r), r.etype)]
    if len(named) != 1:
        raise DGLError(f"Edge type \"{etype}\" " + ("does not exist." if not named else
                                                    "is ambiguous; use the canonical edge type."))
    return named[0]


def _destination_fields(layer: Layer, functions: Mapping[Relation, tuple[Any, ...]], ntype: str,
                        g: RafBlock) -> list[str]:
    """Destination fields that message functions into a type may read, on any trainer.

    Where rows must be gathered for them, all trainers of the group gather the same.
    """
    from dgl import NID

    needed = any(_reads_destination(*given) for r, given in functions.items() if r.dst == ntype)
    if layer.block.last and layer.session.group.size > 1:
        flag = torch.tensor([int(needed)])
        needed = bool(layer.session.group.all_reduce(flag, "max", "control"))
    return sorted(name for name in g.dstnodes[ntype].data if name != NID) if needed else []


def _reads_destination(message: Any, reduce: Any, *apply: Any) -> bool:
    """Whether functions of a relation may read its destinations' data."""
    from dgl.function import BinaryMessageFunction, CopyMessageFunction, TargetCode

    if apply or not _builtin(reduce):
        return True
    if isinstance(message, BinaryMessageFunction):
        return TargetCode.DST in (message.lhs, message.rhs)
    return not isinstance(message, CopyMessageFunction)


def _builtin(function: Any) -> bool:
    from dgl import core

    return bool(core.is_builtin(function))


def _names(functions: Mapping[Relation, tuple[Any, ...]]) -> str:
    """The output field of reduce functions that say it, for a trainer without a relation."""
    for _, reduce, *_rest in functions.values():
        if _builtin(reduce):
            return str(reduce.out_field)
    return "h"
