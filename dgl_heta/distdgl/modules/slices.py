"""Message passing on a slice of a block, `block[relation]`, as in plain DGL.

Models that do without HeteroGraphConv call a convolution on the slice of each relation. Its edges
are on one machine, for the seeds of all trainers. Values of edges are made there; rows that they
are reduced to go to the trainers that have the destinations, by an exchange for each call. All else
of a convolution (products, biases, norms of rows) every trainer computes for the rows that plain
DGL has there. So the trainers of a group must make the same calls in the same order; each call
begins with a message of 8 bytes that says so.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import dgl
import torch
from dgl import core
from dgl.base import ALL, DGLWarning, is_all
from dgl.frame import Frame
from dgl.udf import NodeBatch
from torch import Tensor

from dgl_heta.distdgl.blocks.block_names import EDGES, refuse
from dgl_heta.distdgl.blocks.edge_rows import EdgeIds, edge_rows, of_edges
from dgl_heta.distdgl.blocks.layer import RelationGraph
from dgl_heta.distdgl.modules.merging import DTYPES, check_forward, destination_rows, merge_agreed
from dgl_heta.distdgl.modules.message_functions import EXTREMES, Functions, builtin
from dgl_heta.distdgl.modules.remote_destinations import gathered, has_guests
from dgl_heta.distdgl.versions import homes
from dgl_heta.errors import HetaError
from dgl_heta.sampling.blocks import RelationBlock
from dgl_heta.system.patching import patch_all

if TYPE_CHECKING:
    from dgl_heta.distdgl.blocks.raf_block import RafBlock

Columns = dict[tuple[str, str], Tensor]
"""Data of nodes by side ("u": sources, "v": destinations) and name."""


class Call:
    """One call on a slice, which all trainers of the group make; entered while it runs.

    Parameters
    ----------
    g : the slice, or a block with one relation.
    operation : what is called.
    read : what it reads of nodes.
    functions : what more is called alike on all trainers.

    Raises
    ------
    HetaError
        Another trainer makes another call: on all of them.
    """

    def __init__(self, g: RafBlock, operation: str, read: Mapping[Any, Tensor],
                 functions: str = "") -> None:
        self.g, self.layer, self.relation = g, g._graph.layer, g._graph.relation
        self.ids = EdgeIds(self.relation, self.layer)
        layer = self.layer
        check_forward(layer)
        layer.session.order.merging(layer.block, [*read.values()])
        self._scope = layer.session.scope.merge(layer.block, [
            {ntype: [x for key, x in read.items() if key[0] == side]}
            for side, ntype in (("u", self.relation.src), ("v", self.relation.dst))])
        if layer.exchanges(self.relation.dst):
            self._agree([operation, functions, layer.block.layer, list(self.relation), [
                [str(key), list(x.shape[1:]), DTYPES.index(x.dtype)] for key, x in read.items()]])

    def __enter__(self) -> Call:
        self._merged = self._scope.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._scope.__exit__(*error)  # type: ignore[arg-type]

    def _agree(self, call: list[Any]) -> None:
        group = self.layer.session.group
        mark = int.from_bytes(hashlib.blake2b(json.dumps(call).encode(), digest_size=7).digest(),
                              "big")
        every = group.all_gather_rows(torch.tensor([mark]), [1] * group.size, "control")
        if not bool((every != mark).any()):
            return
        told = group.all_gather_json(call, "control")
        rank, other = next((rank, one) for rank, one in zip(group.ranks, told) if one != told[0])

        def text(one: list[Any]) -> str:
            return f"{one[0]} by {tuple(one[3])} at layer {one[2]}"
        if text(other) != text(told[0]):
            what = f"{text(told[0])} on trainer {group.ranks[0]}, {text(other)} on trainer {rank}"
        else:
            what = (f"{text(other)} of other functions, or data of other names, shapes or dtypes, "
                    f"on trainer {rank} than on trainer {group.ranks[0]}")
        raise HetaError(
            f"trainers call slices of blocks differently: {what}; let every trainer call the "
            "slices of all relations in the same order, whatever its machine has of them (whether "
            "block.num_edges(relation) is 0 is the same on all trainers; numbers of nodes are not)")

    def graph(self, columns: Columns | None = None) -> tuple[RelationBlock, RelationGraph]:
        """This machine's edges, and their graph, with data of all destinations here."""
        layer, device = self.layer, self.g.device
        edges, _ = layer.edges_of(self.relation, device)
        whole = {name: edges.of(self.whole(x)) for (side, name), x in (columns or {}).items()
                 if side == "v"}
        whole[dgl.NID] = edges.of(layer.destination_ids(self.relation.dst)).to(device)
        return layer.relation(self.relation, self.g, Frame(whole, edges.num_rows))

    def whole(self, rows: Tensor) -> Tensor:
        """Rows of this trainer's destinations with those of all that are aggregated here."""
        layer, ntype = self.layer, self.relation.dst
        if has_guests(layer) and ntype in layer.block.guests:
            return gathered(layer, ntype, rows)
        if ntype not in layer.block.num_dst:
            return rows[:0]
        found: Tensor = destination_rows(layer, ntype, rows, True)
        return found

    def merged(self, edges: RelationBlock, rows: Tensor, complete: bool = False) -> Tensor:
        """Rows of this trainer's destinations, from (edges.num_rows, …) on every machine.

        `complete`: those that no edge reads here, too.
        """
        block, ntype = self.layer.block, self.relation.dst
        if not block.num_dst.get(ntype) and ntype not in block.guests:
            return rows[:0]
        out = merge_agreed(self.layer, ntype, [(edges, rows)], "sum", rows.new_empty(0),
                           {self.relation: True}, rows.shape[1:], complete)
        assert out is not None
        self._merged(ntype, out)
        return out


def is_slice(g: Any) -> bool:
    """Whether a graph is a slice of a block, or a block with one relation, whose edges are not all
    on every machine."""
    return getattr(g._graph, "partial", False) and g._graph.number_of_etypes() == 1


def update_all(g: RafBlock, message: Any, reduce: Any, apply: Any = None) -> None:
    """`DGLGraph.update_all` on a slice."""
    functions = Functions(message, reduce)
    columns = _read(g, functions)
    with Call(g, "update_all", columns, functions.describe()) as call:
        edges, graph = call.graph(columns)
        if len(edges.indices) or not functions.own:
            found = dict(core.message_passing(graph, message, reduce, None))
        else:
            found = _of_no_edges(graph, functions)
        if builtin(reduce) and reduce.name in EXTREMES:  # as DGL does
            found = {name: x.masked_fill(torch.isinf(x), 0) for name, x in found.items()}
        if functions.own and call.layer.exchanges(call.relation.dst):
            found = _told(call, edges, found)
        found = {name: call.merged(edges, found[name]) for name in sorted(found)}
    if apply is not None:
        found = dict(core.invoke_node_udf(
            g, ALL, g.dsttypes[0], apply, ndata={**dict(g.dstdata.items()), **found},
            orig_nid=g.dstdata.get(dgl.NID)))
    g.dstdata.update(found)


def _read(g: RafBlock, functions: Functions) -> Columns:
    """The data of nodes that functions may read."""
    named = functions.fields
    return {(side, name): x for side, data in (("u", g.srcdata), ("v", g.dstdata))
            for name, x in data.items() if name != dgl.NID and (
                named is None or (side, name) in named)}


def _of_no_edges(graph: RelationGraph, functions: Functions) -> dict[str, Tensor]:
    """Zeros, as a script's own functions would give them rows if there were messages; nothing where
    they fail without any: then machines that have edges tell the form (:func:`_told`)."""
    rows = graph.num_dst_nodes()
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
    return {name: x.new_zeros(rows, *x.shape[1:]) for name, x in form.items()}


def _told(call: Call, edges: RelationBlock, found: dict[str, Tensor]) -> dict[str, Tensor]:
    """What a script's own functions give where there are edges; zeros where there are none."""
    group = call.layer.session.group
    own = {name: [list(x.shape[1:]), DTYPES.index(x.dtype)] for name, x in found.items()}
    told = group.all_gather_json([len(edges.indices) > 0, own], "control")
    first, *others = [forms for there, forms in told if there] or [own]
    if any(forms != first for forms in others):
        raise HetaError(f"update_all on the slice of {tuple(call.relation)}: functions of the "
                        f"script's own give {first} on one trainer and {others} on others")
    return {name: found[name] if len(edges.indices) else torch.zeros(
        edges.num_rows, *shape, dtype=DTYPES[dtype], device=call.g.device)
        for name, (shape, dtype) in first.items()}


def _values(graph: RelationGraph, function: Any) -> dict[str, Tensor]:
    """What a function gives edges, of which there may be none."""
    if builtin(function):
        return dict(core.invoke_gsddmm(graph, function))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DGLWarning)  # that there are none
        return dict(core.invoke_edge_udf(graph, ALL, graph.canonical_etypes[0], function))


def apply_edges(g: RafBlock, function: Any, edges: Any = ALL) -> None:
    """`DGLGraph.apply_edges` on a slice, of all its edges."""
    if not is_all(edges):
        refuse("apply_edges to some edges", EDGES)
    functions = Functions(function, None)
    columns = _read(g, functions)
    with Call(g, "apply_edges", columns, functions.describe()) as call:
        _, graph = call.graph(columns)
        g._edge_frames.of(call.relation).update(_values(graph, function))


def in_degrees(g: RafBlock, nodes: Any = ALL) -> Tensor:
    """`DGLGraph.in_degrees` of a slice: of this trainer's destinations, int64."""
    with Call(g, "in_degrees", {}) as call, torch.no_grad():
        edges, _ = call.graph()
        found = call.merged(edges, edges.indptr.diff()[:, None], complete=True)[:, 0].to(g.device)
    return found if is_all(nodes) else found[nodes]


def spmm(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Replaces DGL's `gspmm` of a graph: messages, reduced per destination."""
    def gspmm(g: Any, op: str, reduce_op: str, lhs_data: Any, rhs_data: Any) -> Tensor:
        if not is_slice(g):
            return original(g, op, reduce_op, lhs_data, rhs_data)
        name = f"dgl.ops ({op}, {reduce_op})"
        with Call(g, name, {"u": lhs_data} if op != "copy_rhs" else {}) as call:
            weights = None if op == "copy_lhs" else of_edges(rhs_data, call.ids)
            edges, graph = call.graph()
            return call.merged(edges, original(graph, op, reduce_op, lhs_data, weights))
    return gspmm


def sddmm(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Replaces DGL's `gsddmm` of a graph: a value per edge from its ends."""
    def gsddmm(g: Any, op: str, lhs_data: Any, rhs_data: Any, lhs_target: str = "u",
               rhs_target: str = "v") -> Tensor:
        if not is_slice(g):
            return original(g, op, lhs_data, rhs_data, lhs_target, rhs_target)
        given = [(lhs_target, lhs_data), (rhs_target, rhs_data)]
        with Call(g, f"dgl.ops ({op})", {target: x for target, x in given
                                         if target != "e" and x is not None}) as call:
            edges, graph = call.graph()
            lhs, rhs = (x if x is None or target == "u" else of_edges(x, call.ids)
                        if target == "e" else edges.of(call.whole(x)) for target, x in given)
            return edge_rows(original(graph, op, lhs, rhs, lhs_target, rhs_target), call.ids)
    return gsddmm


PATCHES = (
    *patch_all(homes("gspmm of graphs"), spmm, "rows reduced on slices of RAF blocks"),
    *patch_all(homes("gsddmm of graphs"), sddmm, "values of edges on slices of RAF blocks"),
)
