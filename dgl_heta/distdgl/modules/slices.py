"""Message passing on a slice of a block, `block[relation]`, as in plain DGL.

Models that do without HeteroGraphConv call a convolution on the slice of each relation. Its edges
are on one machine, for the seeds of all trainers. Values of edges are made there; rows that they
are reduced to go to the trainers that have the destinations, by an exchange for each call. All else
of a convolution (products, biases, norms of rows) every trainer computes for the rows that plain
DGL has there. So the trainers of a group must make the same calls in the same order; each call
begins with a message of 8 bytes that says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dgl
import torch
from dgl import core
from dgl.base import ALL, DGLWarning, is_all
from dgl.frame import Frame
from dgl.udf import NodeBatch
from torch import Tensor

from dgl_heta.distdgl.blocks.edge_rows import EdgeIds, edge_rows, of_edges
from dgl_heta.distdgl.blocks.layer import Layer
from dgl_heta.distdgl.blocks.relation_graph import RelationGraph
from dgl_heta.distdgl.modules.absent_relations import extreme_rows, presence
from dgl_heta.distdgl.modules.agreements import DTYPES, described, digest
from dgl_heta.distdgl.modules.destination_states import all_destinations
from dgl_heta.distdgl.modules.group_merge import merge_agreed, merge_scope
from dgl_heta.distdgl.modules.message_functions import Functions, builtin
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.versions import homes
from dgl_heta.errors import HetaError
from dgl_heta.graph.schema import Relation
from dgl_heta.planning.extremes import EXTREMES
from dgl_heta.sampling.blocks import RelationBlock
from dgl_heta.system.patching import patch_all

if TYPE_CHECKING:
    from dgl_heta.distdgl.blocks.raf_block import RafBlock

NodeColumns = dict[tuple[str, str], Tensor]
"""Data of nodes by end ("u": sources, "v": destinations) and name."""


@dataclass
class SliceCall:
    """One call on a slice, or on a block with one relation.

    Attributes
    ----------
    tell_merged : is told of the rows that are merged.
    """

    g: RafBlock
    layer: Layer
    relation: Relation
    tell_merged: Callable[[str, Tensor], None]

    @property
    def ids(self) -> EdgeIds:
        return EdgeIds(self.relation, self.layer)

    def graph(self, columns: NodeColumns | None = None) -> tuple[RelationBlock, RelationGraph]:
        """Return this machine's edges, and their graph, with data of all destinations here."""
        # Collective: each of the destinations' columns is brought, in the order of `columns`.
        layer, device = self.layer, self.g.device
        edges, _ = layer.edges_of(self.relation, device)
        data = {name: edges.of(all_destinations(layer, self.relation.dst, x))
                for (end, name), x in (columns or {}).items() if end == "v"}
        data[dgl.NID] = edges.of(layer.destination_ids(self.relation.dst)).to(device)
        return layer.relation(self.relation, self.g, Frame(data, edges.num_rows))

    def merged(self, edges: RelationBlock, rows: Tensor, complete: bool = False) -> Tensor:
        """Return rows of this trainer's destinations, from (edges.num_rows, …) on every machine; if
        `complete`, those that no edge reads here, too. Collective."""
        block, ntype = self.layer.block, self.relation.dst
        if not block.num_dst.get(ntype) and not self.layer.exchanges(ntype):
            return rows[:0]
        out = merge_agreed(self.layer, ntype, [(edges, rows)], "sum", rows.new_empty(0),
                           {self.relation: True}, rows.shape[1:], complete)
        assert out is not None
        self.tell_merged(ntype, out)
        return out


@contextmanager
def _call(g: RafBlock, operation: str, read: NodeColumns, functions: str = "", told: bool = False
          ) -> Iterator[SliceCall]:
    """Let a call on a slice run in the body, which all trainers of the group make.

    Parameters
    ----------
    operation : what is called.
    read : what it reads of nodes.
    functions : a description of functions that are called alike on all trainers.
    told : whether trainers tell each other more than rows, so that they agree wherever they are.

    Raises
    ------
    HetaError
        Another trainer makes another call: on all of them.
    """
    # Collective: 8 bytes a trainer that stand for the call, before any row is sent.
    layer, relation = g._graph.layer, g._graph.relation
    of_ends = [{ntype: [x for key, x in read.items() if key[0] == end]}
               for end, ntype in (("u", relation.src), ("v", relation.dst))]
    with merge_scope(layer, of_ends) as tell_merged:
        if told or layer.exchanges(relation.dst):
            columns = described({str(key): x for key, x in read.items()})
            _agree(layer, [operation, functions, layer.block.layer, list(relation), columns])
        yield SliceCall(g, layer, relation, tell_merged)


def _agree(layer: Layer, call: list[Any]) -> None:
    group, own = layer.session.group, digest(call)
    every = group.all_gather_rows(torch.tensor([own]), [1] * group.size, "control")
    if not bool((every != own).any()):
        return
    # All trainers are here, for each has seen a difference: they say whose.
    told = group.all_gather_json(call, "control")
    rank, other = next((rank, one) for rank, one in zip(group.ranks, told) if one != told[0])

    def text(one: list[Any]) -> str:
        return f"{one[0]} by {tuple(one[3])} at layer {one[2]}"
    if text(other) != text(told[0]):
        what = f"{text(told[0])} on trainer {group.ranks[0]}, {text(other)} on trainer {rank}"
    else:
        what = (f"{text(other)} of other functions, or data of other names, shapes or dtypes, "
                f"on trainer {rank} than on trainer {group.ranks[0]}")
    refuse("slices called differently", what=what)


def is_slice(g: Any) -> bool:
    """Return whether a graph is a slice of a block, or a block with one relation, whose edges are
    not all on every machine."""
    return getattr(g._graph, "partial", False) and g._graph.number_of_etypes() == 1


def update_all(g: RafBlock, message: Any, reduce: Any, apply: Any = None) -> None:
    """Run `DGLGraph.update_all` on a slice."""
    # Collectives: the destinations' columns; the form of what a script's own functions give; what
    # an apply function sees where there is no maximum or minimum; then each output field, by name.
    functions = Functions(message, reduce)
    columns = _read(g, functions)
    extreme = reduce.name if builtin(reduce) and reduce.name in EXTREMES else None
    applied = extreme is not None and apply is not None
    with _call(g, "update_all", columns, functions.describe() + "/applied" * applied,
               applied) as call:
        edges, graph = call.graph(columns)
        if len(edges.indices) or not functions.own:
            fields = dict(core.message_passing(graph, message, reduce, None))
        else:
            fields = _zeros(graph, functions)
        if functions.own and call.layer.exchanges(call.relation.dst):
            fields = _agreed_fields(call, edges, fields)
        if extreme is not None:
            fields = _extremes_to_apply_to(call, edges, fields, extreme) if applied else {
                name: _without_infinity(x) for name, x in fields.items()}
        fields = {name: call.merged(edges, fields[name]) for name in sorted(fields)}
    if apply is not None:
        fields = dict(core.invoke_node_udf(
            g, ALL, g.dsttypes[0], apply, ndata={**dict(g.dstdata.items()), **fields},
            orig_nid=g.dstdata.get(dgl.NID)))
        if applied and fields:  # as DGL does, of the first alone
            first = next(iter(fields))
            fields[first] = _without_infinity(fields[first])
    g.dstdata.update(fields)


def _without_infinity(rows: Tensor) -> Tensor:
    return rows.masked_fill(torch.isinf(rows), 0)


def _extremes_to_apply_to(call: SliceCall, edges: RelationBlock, fields: dict[str, Tensor], op: str
                          ) -> dict[str, Tensor]:
    """Return extremes as DGL gives them to an apply function: infinite in rows without an edge, but
    0 where a trainer's batch has no edge at all."""
    there = presence(call.layer)  # collective, once a block
    if edges.num_rows and bool(there.of(edges)[1].any()):
        refuse("a row of several batches with other relations", operation="update_all",
               relation=call.relation, layer=call.layer.block.layer)
    return {name: extreme_rows(x, op, edges, there) for name, x in fields.items()}


def _read(g: RafBlock, functions: Functions) -> NodeColumns:
    """Return the data of nodes that functions may read."""
    fields = functions.fields
    return {(end, name): x for end, data in (("u", g.srcdata), ("v", g.dstdata))
            for name, x in data.items()
            if name != dgl.NID and (fields is None or (end, name) in fields)}


def _zeros(graph: RelationGraph, functions: Functions) -> dict[str, Tensor]:
    """Return zeros, as a script's own functions would give them rows if there were messages;
    nothing where they fail without any: machines that have edges tell the form."""
    try:
        messages = _values(graph, functions.message)
        if builtin(functions.reduce):
            form = {functions.reduce.out_field: messages[functions.reduce.msg_field]}
        else:
            form = functions.reduce(NodeBatch(
                graph, torch.empty(0, dtype=torch.int64), graph.dsttypes[0],
                graph._node_frames[1].subframe(torch.empty(0, dtype=torch.int64)),
                msgs={name: x[:, None] for name, x in messages.items()}))
    except Exception:  # DGL does not call them without edges, so this is no fault of theirs
        return {}
    return {name: x.new_zeros(graph.num_dst_nodes(), *x.shape[1:]) for name, x in form.items()}


def _agreed_fields(call: SliceCall, edges: RelationBlock, fields: dict[str, Tensor]
                   ) -> dict[str, Tensor]:
    """Return what a script's own functions give where there are edges, else zeros of that form."""
    # Collective: the forms of all trainers, in JSON.
    own, here = described(fields), len(edges.indices) > 0
    told = call.layer.session.group.all_gather_json([here, own], "control")
    first, *others = [forms for there, forms in told if there] or [own]
    if any(sorted(forms) != sorted(first) for forms in others):
        by_name = [{name: [*form] for name, *form in forms} for forms in (first, *others)]
        raise HetaError(f"update_all on the slice of {tuple(call.relation)}: functions of the "
                        f"script's own give {by_name[0]} on one trainer and {by_name[1:]} on "
                        "others")
    return {name: fields[name] if here else torch.zeros(
        edges.num_rows, *shape, dtype=DTYPES[dtype], device=call.g.device)
        for name, shape, dtype in first}


def _values(graph: RelationGraph, function: Any) -> dict[str, Tensor]:
    """Return what a function gives edges, of which there may be none."""
    if builtin(function):
        return dict(core.invoke_gsddmm(graph, function))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DGLWarning)  # that there are none
        return dict(core.invoke_edge_udf(graph, ALL, graph.canonical_etypes[0], function))


def apply_edges(g: RafBlock, function: Any, edges: Any = ALL) -> None:
    """Run `DGLGraph.apply_edges` on all edges of a slice."""
    if not is_all(edges):
        refuse("edges of a block", operation="apply_edges to some edges")
    functions = Functions(function, None)
    columns = _read(g, functions)
    with _call(g, "apply_edges", columns, functions.describe()) as call:
        _, graph = call.graph(columns)
        g._edge_frames.of(call.relation).update(_values(graph, function))


def in_degrees(g: RafBlock, nodes: Any = ALL) -> Tensor:
    """Return `DGLGraph.in_degrees` of a slice: of this trainer's destinations, int64."""
    with _call(g, "in_degrees", {}) as call, torch.no_grad():
        edges, _ = call.graph()
        # Complete: a script may read any of them, while `reads` tells of states alone.
        degrees = call.merged(edges, edges.indptr.diff()[:, None], complete=True)[:, 0]
    return degrees.to(g.device) if is_all(nodes) else degrees.to(g.device)[nodes]


def spmm(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Replace DGL's `gspmm` of a graph: messages, reduced per destination."""
    def gspmm(g: Any, op: str, reduce_op: str, lhs_data: Any, rhs_data: Any) -> Tensor:
        if not is_slice(g):
            return original(g, op, reduce_op, lhs_data, rhs_data)
        read: NodeColumns = {("u", ""): lhs_data} if op != "copy_rhs" else {}
        with _call(g, f"dgl.ops ({op}, {reduce_op})", read) as call:
            weights = None if op == "copy_lhs" else of_edges(rhs_data, call.ids)
            edges, graph = call.graph()
            return call.merged(edges, original(graph, op, reduce_op, lhs_data, weights))
    return gspmm


def sddmm(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Replace DGL's `gsddmm` of a graph: a value per edge from its ends."""
    def gsddmm(g: Any, op: str, lhs_data: Any, rhs_data: Any, lhs_target: str = "u",
               rhs_target: str = "v") -> Tensor:
        if not is_slice(g):
            return original(g, op, lhs_data, rhs_data, lhs_target, rhs_target)
        given = [(lhs_target, lhs_data), (rhs_target, rhs_data)]
        with _call(g, f"dgl.ops ({op})", {(target, ""): x for target, x in given
                                          if target != "e" and x is not None}) as call:
            edges, graph = call.graph()

            def operand(target: str, x: Any) -> Any:
                if x is None or target == "u":
                    return x
                if target == "e":
                    return of_edges(x, call.ids)
                return edges.of(all_destinations(call.layer, call.relation.dst, x))
            lhs, rhs = (operand(target, x) for target, x in given)
            return edge_rows(original(graph, op, lhs, rhs, lhs_target, rhs_target), call.ids)
    return gsddmm


PATCHES = (
    *patch_all(homes("gspmm of graphs"), spmm, "rows reduced on slices of RAF blocks"),
    *patch_all(homes("gsddmm of graphs"), sddmm, "values of edges on slices of RAF blocks"),
)
