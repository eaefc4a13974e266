"""multi_update_all on blocks of a meta-partitioned graph.

Message and reduce functions run on this machine's relations, for the rows that the plan names; the
cross reducer goes over the group, by what the trainers have agreed on
(:mod:`dgl_heta.distdgl.modules.message_functions`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from dgl import NID, core
from dgl.base import ALL
from torch import Tensor

from dgl_heta.distdgl.blocks.layer import Layer
from dgl_heta.distdgl.modules import message_functions
from dgl_heta.distdgl.modules.absent_relations import Presence, extreme_rows, presence
from dgl_heta.distdgl.modules.agreements import known
from dgl_heta.distdgl.modules.destination_states import all_destinations
from dgl_heta.distdgl.modules.group_merge import layer_to_merge, merge_agreed, merge_scope
from dgl_heta.distdgl.modules.message_functions import (
    CallPlan,
    Functions,
    Outputs,
    builtin,
)
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.errors import HetaError
from dgl_heta.graph.schema import Relation
from dgl_heta.nn.row_parts import Part
from dgl_heta.planning.extremes import EXTREMES
from dgl_heta.sampling.blocks import RelationBlock

if TYPE_CHECKING:
    from dgl_heta.distdgl.blocks.raf_block import RafBlock


@dataclass
class _UpdateCall:
    """One call of multi_update_all, under way.

    Attributes
    ----------
    there : which trainers' batches have which relations, if the result depends on it.
    """

    g: RafBlock
    layer: Layer
    functions: Mapping[Relation, Functions]
    plan: CallPlan
    cross_reducer: Any
    outputs: Outputs
    there: Presence | None = None


def multi_update_all(g: RafBlock, etype_dict: Mapping[Any, Any], cross_reducer: Any,
                     apply_node_func: Any = None) -> None:
    """Run `DGLGraph.multi_update_all` on a RAF block of a group of several workers.

    Raises
    ------
    HetaError
        Trainers call it with what does not go together, or a function fails on one of them: on
        all of them.
    """
    layer = layer_to_merge(g)
    given = [{t: dict(g.srcnodes[t].data) for t in g.srctypes}, _destinations_read(g, etype_dict)]
    with merge_scope(layer, given) as tell_merged:
        updated = _update(g, layer, etype_dict, cross_reducer, tell_merged)
    for ntype in updated if apply_node_func is not None else ():
        g.apply_nodes(apply_node_func, ALL, ntype)  # as DGL does: it names the type alone


def _destinations_read(g: Any, etype_dict: Any) -> dict[str, list[Tensor]]:
    """Return the data of destinations that functions may read, by node type."""
    read: dict[str, list[Tensor]] = {}
    for etype, (message, reduce, *_) in etype_dict.items():
        ntype, fields = g.to_canonical_etype(etype)[2], Functions(message, reduce).fields
        read.setdefault(ntype, []).extend(
            x for name, x in g.dstnodes[ntype].data.items()
            if name != NID and (fields is None or ("v", name) in fields))
    return read


def _update(g: RafBlock, layer: Layer, etype_dict: Mapping[Any, Any], cross_reducer: Any,
            tell_merged: Callable[[str, Tensor], None]) -> list[str]:
    """Put what is merged on the block; return the node types that have got it."""
    # Collectives: the plan of the call; the destinations' columns; the output fields, unless they
    # are known; then each field of each type, in an order that all trainers know from the fields.
    functions = message_functions.functions_of(layer, etype_dict)
    plan, key = message_functions.agree(g, layer, functions, cross_reducer)
    call = _UpdateCall(g, layer, functions, plan, cross_reducer, Outputs())
    _run_functions(call)
    if plan.fields is None:
        plan.fields = message_functions.fields_of(layer, call.outputs, plan)
        # Own functions may give other fields next time, and may fail; then all ask again.
        own = any(f.own for f in functions.values())
        if not plan.by_batch and not own and all(r in plan.fields for r in plan.order):
            known(layer)[key] = plan
    _fill(call)
    fields = message_functions.fields_in_order(layer, plan)
    for ntype, names in fields.items():
        columns = {}
        for name in names:
            columns[name] = _merge_field(call, ntype, name)
            tell_merged(ntype, columns[name])
        g._node_frames[g.get_ntype_id_from_dst(ntype)].update(columns)
    return list(fields)


def _run_functions(call: _UpdateCall) -> None:
    """Run the functions on this machine's relations."""
    # An error is kept, not raised: the other trainers are on their way to the next collective,
    # where all are told of it (:func:`.message_functions.fields_of`).
    layer, block, plan, outputs = call.layer, call.layer.block, call.plan, call.outputs
    call.there = presence(layer) if plan.by_batch else None
    # By type and name, as the plan has them, so that all trainers bring them in one order.
    destinations = {
        t: {name: all_destinations(layer, t, call.g.dstnodes[t].data[name])
            for name in plan.gathered.get(t, ()) if name in call.g.dstnodes[t].data}
        for t in block.num_dst}
    for number, edges in enumerate(block.edges):
        if edges.relation not in call.functions:
            continue
        own = call.functions[edges.relation]
        columns: dict[str, Tensor] = {}
        try:
            _note_absent(call, edges, own)
            if own.apply is not None or not own.own or _is_called(edges, plan):
                columns = _columns_of(call, number, destinations[edges.relation.dst])
        except Exception as error:
            # Functions of the script's own need not be fit for no edges: DGL does not call them.
            if len(edges.indices) or (own.apply is not None and edges.num_rows) or isinstance(
                    error, HetaError):
                outputs.error, outputs.cause = _text(edges.relation, error), error
        outputs.parts.append((edges, columns))
    # Nobody has an edge, so somebody must say what fields the relation would have.
    if plan.fields is None:
        for relation in call.functions.keys() - {edges.relation for edges, _ in outputs.parts}:
            if relation not in plan.with_edges:
                outputs.of_no_edges[relation] = _columns_of_nothing(call, relation)


def _is_called(edges: RelationBlock, plan: CallPlan) -> bool:
    """Return whether a script's own functions are called for a part: not without edges, unless no
    machine has any of this relation, as in DGL."""
    return len(edges.indices) > 0 or edges.relation not in plan.with_edges


def _columns_of(call: _UpdateCall, number: int, destinations: Mapping[str, Tensor]
                ) -> dict[str, Tensor]:
    """Return the output fields of a part, from the columns of all destinations of its type."""
    layer, edges = call.layer, call.layer.block.edges[number]
    graph = layer.graph(number, call.g.device).local_var()
    graph.edata.update(layer.data_of(number, call.g))
    data = {name: edges.of(column) for name, column in destinations.items()}
    data[NID] = edges.of(layer.destination_ids(edges.relation.dst)).to(call.g.device)
    return _columns(call, graph, edges, call.functions[edges.relation], data)


def _columns_of_nothing(call: _UpdateCall, relation: Relation) -> dict[str, Tensor]:
    """Return the output fields of a relation that has no edge anywhere."""
    g = call.g
    data = {name: column[:0] for name, column in g.dstnodes[relation.dst].data.items()}
    graph = call.layer.empty_graph(relation, g.device)
    graph.edata.update({name: x[:0] for name, x in g._edge_frames.of(relation).items()})
    try:
        return _columns(call, graph, None, call.functions[relation], data)
    except Exception:  # a script's functions may not be made for this
        return {}


def _columns(call: _UpdateCall, graph: Any, edges: RelationBlock | None, own: Functions,
             destinations: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a relation's output fields, as DGL's message passing gives them on a whole batch."""
    (src, _, _), = graph.canonical_etypes
    for name, column in call.g.srcnodes[src].data.items():
        graph.srcdata[name] = column
    for name, column in destinations.items():
        graph.dstdata[name] = column
    columns: dict[str, Tensor] = dict(core.message_passing(graph, own.message, own.reduce, None))
    if edges is not None and builtin(own.reduce) and own.reduce.name in EXTREMES:
        columns = {name: extreme_rows(value, own.reduce.name, edges, call.there)
                   for name, value in columns.items()}
    if own.apply is None:
        return columns
    if not columns and graph.num_dst_nodes():
        refuse("own reduce and apply functions for rows without edges")
    columns = {**dict(graph.dstdata.items()), **columns}
    return dict(core.invoke_node_udf(graph, ALL, graph.dsttypes[0], own.apply, ndata=columns,
                                     orig_nid=graph.dstdata.get(NID)))


def _text(relation: Relation, error: Exception) -> str:
    """Return what went wrong in a relation's functions."""
    if isinstance(error, HetaError):
        return str(error)
    if isinstance(error, KeyError):
        return (f"multi_update_all over {relation}: there is no data {error} on the nodes or edges "
                "that its functions read; put it on this block's source or destination nodes first "
                "(or on its edges, rows read by their dgl.EID)")
    return f"multi_update_all over {relation} failed: {type(error).__name__}: {error}"


def _note_absent(call: _UpdateCall, edges: RelationBlock, own: Functions) -> None:
    """Note which rows of the next part plain DGL leaves out, which must be so in all batches."""
    if call.there is None:
        return
    extreme = builtin(own.reduce) and own.reduce.name in EXTREMES
    by_function = not builtin(own.reduce) and call.plan.reducer != "sum"
    if not extreme and not by_function and edges.relation not in call.layer.asked:
        return
    absent, torn = call.there.of(edges)
    if bool(torn.any()) or (not extreme and not by_function and bool(absent.any())):
        refuse("a row of several batches with other relations", operation="multi_update_all",
               relation=edges.relation, layer=call.layer.block.layer)
    if by_function and bool(absent.any()):
        call.outputs.absent[len(call.outputs.parts)] = absent


def _fill(call: _UpdateCall) -> None:
    """Fill in what DGL gives rows without edges where a script's own functions were not called."""
    assert call.plan.fields is not None
    for edges, columns in call.outputs.parts:
        reduce = call.functions[edges.relation].reduce
        if columns or len(edges.indices):
            continue
        for name, shape, dtype in call.plan.fields.get(edges.relation, ()):
            value = torch.zeros(edges.num_rows, *shape, dtype=dtype, device=call.g.device)
            if builtin(reduce) and reduce.name in EXTREMES:
                value = extreme_rows(value, reduce.name, edges, presence(call.layer))
            columns[name] = value


def _merge_field(call: _UpdateCall, ntype: str, name: str) -> Tensor:
    """Return an output field of a node type, merged over relations and the group. Collective."""
    layer, plan = call.layer, call.plan
    assert plan.fields is not None
    into = [r for r in plan.order if r.dst == ntype]
    given = {r: one for r in into for one in plan.fields.get(r, ()) if one.name == name}
    dtype = functools.reduce(torch.promote_types, (one.dtype for one in given.values()))
    shape = torch.Size(next(iter(given.values())).shape)
    like = torch.empty(0, dtype=dtype, device=call.g.device)
    order = [r for r in into if r in given]
    if plan.reducer == "stack":
        order = sorted(given)  # as DGL's blocks have relations
    reducer = _reducer(call, len(into))
    if not layer.block.num_dst.get(ntype) and not layer.exchanges(ntype):
        return _without_rows(call, name, ntype, order, reducer, like, shape)
    out = merge_agreed(layer, ntype, _parts(call, ntype, name, order, like), reducer, like,
                       dict.fromkeys(order, True), shape)
    if out is None:
        return like.new_zeros(layer.block.wanted(ntype), *shape)
    if plan.zeroed:
        out = out.masked_fill(torch.isinf(out), 0)  # as DGL, by the last reduce function
    return out


def _reducer(call: _UpdateCall, relations: int) -> Any:
    """Return how a node type's relations are merged, so many of them."""
    if relations == 1 and call.plan.reducer != "stack":
        return "sum"  # of one, which DGL does not hand to a cross reducer
    if call.plan.reducer != "callable":
        return call.plan.reducer
    return lambda values, ntype: call.cross_reducer(values)


def _parts(call: _UpdateCall, ntype: str, name: str, order: Sequence[Relation], like: Tensor
           ) -> list[Part]:
    """Return a field of all relations into a type, without rows that plain DGL leaves out."""
    parts: list[Part] = []
    for number, (edges, columns) in enumerate(call.outputs.parts):
        if edges.relation.dst != ntype or name not in columns:
            continue
        # Where several attain an extreme, the first of the order has the gradient, as in DGL.
        edges = replace(edges, place=order.index(edges.relation))
        value = columns[name].to(like.dtype)
        if number in call.outputs.absent:
            kept = torch.nonzero(~call.outputs.absent[number]).flatten()
            value = value[kept.to(like.device)]
            edges = replace(edges, start=0, rows=edges.rows_at(kept),
                            indptr=torch.zeros(len(kept) + 1, dtype=torch.int64))
        parts.append((edges, value))
    return parts


def _without_rows(call: _UpdateCall, name: str, ntype: str, order: Sequence[Relation],
                  reducer: Any, like: Tensor, shape: torch.Size) -> Tensor:
    """Return the field of a type that has no rows here, which no exchange serves."""
    here = {edges.relation: columns[name] for edges, columns in call.outputs.parts
            if name in columns}
    values = [here[r].to(like.dtype) if r in here else like.new_empty(0, *shape) for r in order]
    if reducer == "stack":
        return torch.stack(values, 1)
    if isinstance(reducer, str):
        return torch.stack(values).sum(0)
    result: Tensor = reducer(values, ntype)
    return result
