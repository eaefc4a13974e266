"""multi_update_all on blocks of a meta-partitioned graph.

Message and reduce functions run on this machine's relations, for the rows that the plan names; the
cross reducer goes over the group, by what the trainers have agreed on
(:mod:`dgl_heta.distdgl.modules.message_functions`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from dgl import NID, core
from dgl.base import ALL
from torch import Tensor

from dgl_heta.distdgl.blocks.layer import Layer
from dgl_heta.distdgl.modules import message_functions
from dgl_heta.distdgl.modules.merging import Part, destination_rows, layer_of, merge_agreed
from dgl_heta.distdgl.modules.message_functions import (
    EXTREMES,
    Field,
    Found,
    Functions,
    Plan,
    builtin,
)
from dgl_heta.distdgl.modules.relation_presence import Presence, presence
from dgl_heta.distdgl.modules.remote_destinations import gathered, has_guests
from dgl_heta.errors import HetaError
from dgl_heta.graph.schema import Relation
from dgl_heta.sampling.blocks import RelationBlock

if TYPE_CHECKING:
    from dgl_heta.distdgl.blocks.raf_block import RafBlock


def multi_update_all(g: RafBlock, etype_dict: Mapping[Any, Any], cross_reducer: Any,
                     apply_node_func: Any = None) -> None:
    """`DGLGraph.multi_update_all` on a RAF block of a group of several workers.

    Raises
    ------
    HetaError
        Trainers call it with what does not go together, or a function fails on one of them: on
        all of them.
    """
    layer = layer_of(g)
    sources = {t: dict(g.srcnodes[t].data) for t in g.srctypes}
    layer.session.order.merging(layer.block, sources)
    with layer.session.scope.merge(layer.block, sources) as merged:
        updated = _updated(g, layer, etype_dict, cross_reducer, merged)
    for ntype in updated if apply_node_func is not None else ():
        g.apply_nodes(apply_node_func, ALL, ntype)  # as DGL does: it names the type alone


def _updated(g: RafBlock, layer: Layer, etype_dict: Mapping[Any, Any], cross_reducer: Any,
             merged: Callable[[str, Tensor], None]) -> list[str]:
    """Put what is merged on the block; returns the node types that have got it."""
    functions = message_functions.functions_of(layer, etype_dict)
    plan, key = message_functions.agree(g, layer, functions, cross_reducer)
    found = _run(g, layer, functions, plan)
    if plan.fields is None:
        plan.fields = message_functions.fields_of(layer, found, plan)
        if not plan.by_batch and not any(f.own for f in functions.values()) and all(
                relation in plan.fields for relation in plan.order):
            layer.session.groups.agreed.shapes[key] = plan
    _fill(layer, functions, plan.fields, found)
    fields = message_functions.fields_in_order(layer, plan)
    for ntype, outputs in fields.items():
        into = [r for r in plan.order if r.dst == ntype]
        columns = {}
        for name in outputs:
            columns[name] = _merged(layer, ntype, name, into, found, plan, cross_reducer,
                                    g.device)
            merged(ntype, columns[name])
        g._node_frames[g.get_ntype_id_from_dst(ntype)].update(columns)
    return list(fields)


def _run(g: RafBlock, layer: Layer, functions: Mapping[Relation, Functions], plan: Plan) -> Found:
    """Run the functions on this machine's relations."""
    block = layer.block
    there = presence(layer) if plan.by_batch else None
    columns_of = {(t, name): g.dstnodes[t].data[name] for t in block.num_dst
                  for name in plan.gathered.get(t, ()) if name in g.dstnodes[t].data}
    guests = block.guests if has_guests(layer) else ()
    ends = {(t, name): gathered(layer, t, x) if t in guests else destination_rows(layer, t, x, True)
            for (t, name), x in columns_of.items()}
    found = Found([], {}, {})
    for place, edges in enumerate(block.edges):
        if edges.relation not in functions:
            continue
        own = functions[edges.relation]
        graph = layer.graph(place, g.device).local_var()
        graph.edata.update(layer.data_of(place, g))
        data = {name: column[edges.start:edges.stop] for (t, name), column in ends.items()
                if t == edges.relation.dst}
        data[NID] = layer.destination_ids(edges.relation.dst)[edges.start:edges.stop].to(g.device)
        columns: dict[str, Tensor] = {}
        try:
            if there is not None:
                _leave_out(layer, there, edges, own, found, plan)
            if own.apply is not None or not own.own or _called(edges, plan):
                columns = _columns(g, graph, edges, own, data, there)
        except Exception as error:
            if len(edges.indices) or (own.apply is not None and edges.num_rows) or isinstance(
                    error, HetaError):
                found.error, found.cause = _text(edges.relation, error), error
        found.parts.append((edges, columns))
    if plan.fields is None:
        for relation in functions.keys() - {edges.relation for edges, _ in found.parts}:
            if relation not in plan.with_edges:
                found.empty[relation] = _of_nothing(g, layer, relation, functions[relation])
    return found


def _called(edges: RelationBlock, plan: Plan) -> bool:
    """Whether a script's own functions are called for a part: not without edges, unless no machine
    has any of this relation, as in DGL."""
    return len(edges.indices) > 0 or edges.relation not in plan.with_edges


def _of_nothing(g: RafBlock, layer: Layer, relation: Relation, own: Functions
                ) -> dict[str, Tensor]:
    """The output fields of a relation that has no edge anywhere."""
    data = {name: column[:0] for name, column in g.dstnodes[relation.dst].data.items()}
    try:
        graph = layer.empty_graph(relation, g.device)
        graph.edata.update({name: x[:0] for name, x in g._edge_frames.of(relation).items()})
        return _columns(g, graph, None, own, data, None)
    except Exception:  # a script's functions may not be made for this
        return {}


def _text(relation: Relation, error: Exception) -> str:
    """What went wrong in a relation's functions."""
    if isinstance(error, HetaError):
        return str(error)
    text = f"multi_update_all over {relation} failed: {type(error).__name__}: {error}"
    if isinstance(error, KeyError):
        text = (f"multi_update_all over {relation}: there is no data {error} on the nodes or edges "
                "that its functions read; put it on this block's source or destination nodes first "
                "(or on its edges, rows read by their dgl.EID)")
    return text


def _columns(g: RafBlock, graph: Any, edges: RelationBlock | None, own: Functions,
             destinations: Mapping[str, Tensor], there: Presence | None) -> dict[str, Tensor]:
    """A relation's output fields, as DGL's message passing gives them on a whole batch."""
    (src, _, _), = graph.canonical_etypes
    for name, column in g.srcnodes[src].data.items():
        graph.srcdata[name] = column
    for name, column in destinations.items():
        graph.dstdata[name] = column
    columns: dict[str, Tensor] = dict(core.message_passing(graph, own.message, own.reduce, None))
    if edges is not None and builtin(own.reduce) and own.reduce.name in EXTREMES:
        columns = {name: _extreme(value, own.reduce.name, edges, there)
                   for name, value in columns.items()}
    if own.apply is None:
        return columns
    if not columns and graph.num_dst_nodes():
        raise HetaError("multi_update_all with a reduce function and an apply function of the "
                        "script's own: some rows have no edge here, so the apply function cannot "
                        "run for them; apply it to the merged rows instead")
    columns = {**dict(graph.dstdata.items()), **columns}
    return dict(core.invoke_node_udf(graph, ALL, graph.dsttypes[0], own.apply, ndata=columns,
                                     orig_nid=graph.dstdata.get(NID)))


def _extreme(value: Tensor, op: str, edges: RelationBlock, there: Presence | None) -> Tensor:
    """Rows without an edge: infinite, or 0 where DGL sees a relation without any edge."""
    empty = (edges.indptr.diff() == 0).to(value.device)
    if not bool(empty.any()):
        return value
    filler = value.new_full((len(value),), EXTREMES[op])
    if there is not None:
        filler[there.of(edges)[0].to(value.device)] = 0
    if not len(edges.indices):
        value = value.detach()  # DGL's own backward pass would look for a source row
    wide = (-1, *[1] * (value.dim() - 1))
    return torch.where(empty.view(wide), filler.view(wide).expand_as(value), value)


def _leave_out(layer: Layer, there: Presence, edges: RelationBlock, own: Functions, found: Found,
               plan: Plan) -> None:
    """Note which rows of the next part plain DGL leaves out; refuse what differs between batches.
    """
    extreme = builtin(own.reduce) and own.reduce.name in EXTREMES
    by_function = not builtin(own.reduce) and plan.reducer != "sum"
    if not extreme and not by_function and edges.relation not in layer.asked:
        return
    absent, torn = there.of(edges)
    if bool(torn.any()) or (not extreme and not by_function and bool(absent.any())):
        raise HetaError(
            f"multi_update_all over {edges.relation} at layer {layer.block.layer}: a row is in the "
            "batches of several trainers, of which some have edges of this relation and some have "
            "none, so plain DGL would give it several results; use fn.sum or fn.mean to reduce, or "
            "'sum' as the cross reducer, and the same relations in every batch")
    if by_function and bool(absent.any()):
        found.absent[len(found.parts)] = absent


def _fill(layer: Layer, functions: Mapping[Relation, Functions],
          fields: Mapping[Relation, Sequence[Field]], found: Found) -> None:
    """What DGL gives rows without edges where a script's own functions were not called."""
    for edges, columns in found.parts:
        reduce = functions[edges.relation].reduce
        if columns or len(edges.indices):
            continue
        for name, shape, dtype in fields.get(edges.relation, ()):
            value = torch.zeros(edges.num_rows, *shape, dtype=dtype)
            columns[name] = _extreme(value, reduce.name, edges, presence(layer)) if (
                builtin(reduce) and reduce.name in EXTREMES) else value


def _merged(layer: Layer, ntype: str, name: str, into: Sequence[Relation], found: Found, plan: Plan,
            cross_reducer: Any, device: torch.device) -> Tensor:
    """An output field of a node type, merged over relations and the group."""
    assert plan.fields is not None
    given = {r: one for r in into for one in plan.fields.get(r, ()) if one.name == name}
    dtype = functools.reduce(torch.promote_types, (one.dtype for one in given.values()))
    shape = torch.Size(next(iter(given.values())).shape)
    like = torch.empty(0, dtype=dtype, device=device)
    reducer: Any = plan.reducer
    if len(into) == 1 and reducer != "stack":
        reducer = "sum"  # of one
    elif reducer == "callable":
        def reducer(values: list[Tensor], _: str) -> Any:
            return cross_reducer(values)
    order = [r for r in into if r in given]
    if plan.reducer == "stack":
        order = sorted(given)  # as DGL's blocks have relations
    if not layer.block.num_dst.get(ntype) and ntype not in layer.block.guests:
        here = {edges.relation: columns[name] for edges, columns in found.parts if name in columns}
        values = [here[r].to(dtype) if r in here else like.new_empty(0, *shape) for r in order]
        return (torch.stack(values, 1) if reducer == "stack" else
                torch.stack(values).sum(0) if isinstance(reducer, str) else
                reducer(values, ntype))
    parts: list[Part] = []
    for number, (edges, columns) in enumerate(found.parts):
        if edges.relation.dst != ntype or name not in columns:
            continue
        edges = replace(edges, place=order.index(edges.relation))
        value = columns[name].to(like.dtype)
        if number in found.absent:
            kept = torch.nonzero(~found.absent[number]).flatten()
            value = value[kept.to(device)]
            edges = replace(edges, start=0, rows=kept + edges.start,
                            indptr=torch.zeros(len(kept) + 1, dtype=torch.int64))
        parts.append((edges, value))
    out = merge_agreed(layer, ntype, parts, reducer, like, dict.fromkeys(order, True), shape)
    if out is None:
        return like.new_zeros(layer.block.wanted(ntype), *shape)
    if plan.zeroed:
        out = out.masked_fill(torch.isinf(out), 0)  # as DGL, by the last reduce function
    return out
