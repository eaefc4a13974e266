"""multi_update_all on blocks of a meta-partitioned graph.

Message and reduce functions run on this machine's relations, for the rows that the plan names; the
cross reducer goes over the group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dgl_heta.distdgl.layers import Layer
from dgl_heta.distdgl.merging import (
    Part,
    canonical,
    destination_rows,
    layer_of,
    merge_relations,
)
from dgl_heta.errors import HetaError
from dgl_heta.graph.schema import Relation

if TYPE_CHECKING:
    from dgl_heta.distdgl.blocks import RafBlock


def multi_update_all(g: RafBlock, etype_dict: Mapping[Any, Any], cross_reducer: Any,
                     apply_node_func: Any = None) -> None:
    """`DGLGraph.multi_update_all` on a RAF block."""
    from dgl import core
    from dgl.base import ALL, DGLError

    layer = layer_of(g)
    block, schema = layer.block, layer.session.store.schema
    layer.session.chains.merging(block, [dict(g.srcnodes[t].data) for t in g.srctypes])
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
            gathered[ntype, field] = destination_rows(
                layer, ntype, g.dstnodes[ntype].data[field], True)
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
            merged = merge_relations(layer, ntype, fields[ntype].get(name, []), reducer,
                                     (name, ntype), like, schema.into[ntype])
            if merged is not None:
                unreached = torch.isinf(merged) if _builtin(last) and last.name in (
                    "min", "max") else None  # as in DGL, by the last reduce function
                out[name] = merged if unreached is None else merged.masked_fill(unreached, 0)
        if out:
            g._node_frames[g.get_ntype_id_from_dst(ntype)].update(out)
            if apply_node_func is not None:
                g.apply_nodes(apply_node_func, ALL, "DST/" + ntype)


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
