"""HeteroGraphConv on blocks of a meta-partitioned graph, in named steps.

A relation's own module runs on the machine that has the relation, for the rows that the plan names;
the merge over relations, whatever the aggregation, goes over the group (Heta §4). The steps of
:func:`_run` are those of DGL's `HeteroGraphConv.forward`, with a few collectives between them. All
trainers of a group come to these in the same order, because each step follows from the script's
inputs, the plan and the model, which they share, and never from what is in one machine's batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from dgl.nn.pytorch import GATConv, GraphConv, SAGEConv, hetero
from torch import Tensor

from dgl_heta.distdgl.blocks.edge_rows import EdgeRows, unguarded
from dgl_heta.distdgl.blocks.layer import Layer
from dgl_heta.distdgl.modules import gat_conv, graph_conv, sage_conv
from dgl_heta.distdgl.modules.agreements import complete_types, is_agreed
from dgl_heta.distdgl.modules.destination_states import (
    has_remote,
    mapped,
    states_with_remote,
    with_seeds,
    without_absent,
)
from dgl_heta.distdgl.modules.exchange_before_weights import members_that_gain, sum_of_products
from dgl_heta.distdgl.modules.group_merge import (
    Aggregate,
    begin_sum,
    layer_to_merge,
    merge_relations,
    merge_scope,
)
from dgl_heta.distdgl.modules.module_hooks import is_plain_module
from dgl_heta.distdgl.modules.registered_convs import DGLS, Called
from dgl_heta.distdgl.modules.relation_call import FusedConvolution, RelationCall, check_sources
from dgl_heta.distdgl.modules.relation_modules import call_module, runs_alone, shared_buffers
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.features.deferred import LazyRows
from dgl_heta.graph.schema import Relation
from dgl_heta.nn.row_parts import Part
from dgl_heta.raf.maps import EarlySum
from dgl_heta.system.nested import of_type

if TYPE_CHECKING:
    from dgl_heta.distdgl.blocks.raf_block import RafBlock

FUSED: tuple[FusedConvolution, ...] = (graph_conv, gat_conv, sage_conv)
"""Convolutions that are computed for all relations at once."""

_BY_FUNCTION = {hetero._sum_reduce_func: "sum", hetero._mean_reduce_func: "mean",
                hetero._max_reduce_func: "max", hetero._min_reduce_func: "min"}


@dataclass
class _HeteroCall:
    """One call of a HeteroGraphConv on a block, under way.

    Attributes
    ----------
    sources, given_destinations : the script's states by node type: rows of a block's sources, and
        of the trainer's own destinations.
    is_pair : whether the script gave these apart.
    edge_rows : rows of edges for a relation's module, a tuple of one; of few classes alone.
    modules : relations of the model, with their modules.
    without_destinations : those of them whose module reads no destinations.
    read : node types whose destinations some module here, or on another machine, reads.
    destinations : the states of all destination rows here, once they are brought.
    values : the rows that relations give, by the number of their edges in `block.edges`.
    early : what has left of types whose rows for other machines have left early.
    merged : the result by node type.
    """

    conv: Any
    g: RafBlock
    layer: Layer
    called: Called
    inputs: Any
    mod_args: Any
    mod_kwargs: Any
    modules: dict[Relation, Any] = field(default_factory=dict)
    without_destinations: set[Relation] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    destinations: dict[str, Any] = field(default_factory=dict)
    values: dict[int, Part] = field(default_factory=dict)
    early: dict[str, EarlySum] = field(default_factory=dict)
    merged: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.is_pair = isinstance(self.inputs, tuple)
        self.sources: Mapping[str, Any] = self.inputs[0] if self.is_pair else self.inputs
        self.given_destinations: Mapping[str, Any] = self.inputs[1] if self.is_pair else {
            t: self.sources[t] for t in self.layer.block.num_dst if t in self.sources}
        self.edge_rows = _rows_of_edges(self.conv, self.inputs)
        self.aggregate: Aggregate = _BY_FUNCTION.get(
            getattr(self.conv.agg_fn, "keywords", {}).get("fn"), self.conv.agg_fn)
        self.like = next(of_type(Tensor, self.sources), torch.empty(0, device=self.g.device))
        self.into = self.layer.session.store.schema.into

    def of(self, relation: Relation) -> tuple[Any, Any, Any]:
        """Return a relation's module, arguments and keyword arguments."""
        return (self.modules[relation],
                unguarded(self.called.of(self.mod_args, relation, ())),
                unguarded(self.called.of(self.mod_kwargs, relation, {})))


def forward(conv: Any, g: RafBlock, inputs: Any, mod_args: Any = None,
            mod_kwargs: Any = None, called: Called = DGLS) -> dict[str, Tensor]:
    """Return `HeteroGraphConv.forward` of a RAF block, or that of a registered class.

    Parameters
    ----------
    inputs : node type → rows of the sources; or a pair or triple, see
        :func:`.registered_convs.register_hetero_conv`.
    called : how the class is called.
    """
    layer = layer_to_merge(g)
    with merge_scope(layer, inputs) as tell_merged:
        out = _run(_HeteroCall(conv, g, layer, called, inputs, mod_args, mod_kwargs))
        for ntype, rows in out.items():
            tell_merged(ntype, rows)
    return out


def _run(call: _HeteroCall) -> dict[str, Tensor]:
    # Trainers meet in these steps in this order, whether or not a machine has a relation of its own
    # there, so none is left out.
    _choose_modules(call)
    _bring_destinations(call)
    _exchange_before_weights(call)
    _run_relations(call)
    _merge(call)
    return _complete(call)


def _choose_modules(call: _HeteroCall) -> None:
    """Find the relations of the model, and those whose modules read no destinations."""
    # Collective: at most one agreement an epoch. It comes first, because trainers decide by it
    # which destinations they exchange.
    sources = call.sources
    for relation in call.layer.session.store.schema.relations:
        try:
            call.modules[relation] = call.conv._get_module(tuple(relation))
        except KeyError:  # as in DGL, unless the relation has no rows
            if relation.src in sources and relation.dst in call.given_destinations:
                raise
    # DGL's GraphConv alone is known to leave its destinations unread.
    graph_convs = {r: m for r, m in call.modules.items() if graph_conv.is_graph_conv(m)}
    for module in graph_convs.values():
        if call.layer.session.group.size > 1 and module._norm not in ("right", "none"):
            refuse("GraphConv's norm by out-degrees", norm=module._norm)
    if _read_no_destinations(call, graph_convs):
        call.without_destinations = set(graph_convs)
    call.read = {t for t in {**call.given_destinations, **call.layer.block.remote}
                 if any(r in call.modules and r not in call.without_destinations
                        for r in call.into[t])}


def _read_no_destinations(call: _HeteroCall, graph_convs: Mapping[Relation, Any]) -> bool:
    """Return whether no GraphConv needs states of destinations, on any trainer of the group."""
    # One that is called by itself is given them, as in DGL: with a hook, with rows of edges, or
    # without rows of its sources. Trainers agree once an epoch; what has changed since is refused.
    layer, block = call.layer, call.layer.block
    plain = all(is_plain_module(module, GraphConv) for module in graph_convs.values())
    if not graph_convs or not (block.last or has_remote(layer)):
        return plain  # no destinations are exchanged, so nobody has to agree
    by_edge = any(True for _ in of_type(EdgeRows, (call.mod_args, call.mod_kwargs)))
    absent = sorted({e.relation.src for e in block.edges if e.relation in call.modules}
                    - set(call.sources))
    # With remote destinations what is left out is agreed on with their states.
    fit = has_remote(layer) or (not absent and not by_edge)
    if not layer.session.groups.all_agree((call.conv, block.layer), plain and fit):
        return False
    if not has_remote(layer):
        if by_edge:
            refuse("data of edges in some batches")
        if left_out := [t for t in absent if block.num_src[t]]:
            refuse("a node type left out of some batches", ntype=left_out[0])
    if not plain:
        refuse("a hook registered inside an epoch")
    return True


def _bring_destinations(call: _HeteroCall) -> None:
    """Bring the states of destinations that modules here read and other trainers have."""
    # Collectives: remote destinations first, with what they agree on once an epoch; then at the
    # last layer the seeds of all trainers, type by type in the schema's order.
    layer, given = call.layer, call.given_destinations
    remote = (states_with_remote(layer, call.conv, given, call.read, call.like)
              if has_remote(layer) else {})
    # States that the script gives apart, or that are complete for own seeds alone, are gathered;
    # else every trainer has those of all seeds among its source rows.
    apart = call.is_pair or layer.block.own_states
    call.destinations = {t: with_seeds(layer, t, given[t], t in call.read and apart)
                         for t in layer.block.num_dst if t in given and t not in remote} | remote


def _exchange_before_weights(call: _HeteroCall) -> None:
    """Merge GraphConvs that make rows wider before the product, where that saves bytes."""
    # Collective: one exchange for each such type at the last layer; plan and model say which.
    layer = call.layer
    if not layer.block.last or not layer.planned or call.aggregate != "sum":
        return
    for ntype in layer.block.num_dst:
        if all(r in call.without_destinations or r not in call.modules for r in call.into[ntype]):
            members = members_that_gain(layer, ntype, call.modules, call.of)
            if members is not None:
                call.merged[ntype] = sum_of_products(layer, ntype, members, call.sources, call.of,
                                                     call.like)


def _run_relations(call: _HeteroCall) -> None:
    """Run the relations of this machine: each module once with all rows of its relation, but for
    what fused convolutions compute at once: first rows of other machines, which leave while own
    ones are computed."""
    # Collectives: in training, the buffers of modules that have any; then the rows of others, of
    # each type in the schema's order.
    fused: dict[int, tuple[FusedConvolution, RelationCall]] = {}
    others: dict[Relation, int] = {}
    for number, edges in enumerate(call.layer.block.edges):
        relation = edges.relation
        if (relation.src not in call.sources or relation.dst not in call.destinations
                or relation.dst in call.merged):
            continue
        module, args, kwargs = call.of(relation)
        one = RelationCall(module, edges, call.sources[relation.src],
                           call.destinations[relation.dst], args, kwargs, call.aggregate == "sum")
        kind = next((kind for kind in FUSED if kind.fits(one)), None)
        if kind is None:
            others.setdefault(relation, number)
        else:
            check_sources(call.layer.block, relation.src, one.source)
            fused[number] = kind, one
    _announce_own_rows(call)
    with shared_buffers(call.conv, call.layer, others):
        for relation, number in others.items():
            part = _call_module(call, relation)
            if part is not None:
                call.values[number] = part
    for ntype in _leaving_early(call):
        own = call.layer.block.num_own(ntype)
        _run_fused(call, {n: fused.pop(n) for n, (_, one) in [*fused.items()]
                          if one.edges.relation.dst == ntype and one.edges.start >= own})
        parts = {n: call.values.pop(n) for n, (edges, _) in [*call.values.items()]
                 if edges.relation.dst == ntype}
        call.early[ntype], rest = begin_sum(call.layer, ntype, parts, (call.conv, ntype),
                                            call.like)
        call.values.update(rest)
    _run_fused(call, fused)


def _leaving_early(call: _HeteroCall) -> list[str]:
    """Return node types of which rows for other machines leave before own ones are computed; the
    same on all trainers of the group."""
    layer = call.layer
    if call.aggregate != "sum" or layer.session.group.size == 1:
        return []
    return [t for t in layer.block.remote if is_agreed(layer, (call.conv, t))]


def _run_fused(call: _HeteroCall, fused: Mapping[int, tuple[FusedConvolution, RelationCall]]
               ) -> None:
    for kind in FUSED:
        own = {number: one for number, (of, one) in fused.items() if of is kind}
        if own:
            call.values.update(zip(own, kind.run_together([*own.values()])))


def _announce_own_rows(call: _HeteroCall) -> None:
    """Tell rows that wait to be read which of them are wanted besides aggregations, so that they
    choose the shorter way (:mod:`dgl_heta.features.deferred`)."""
    block = call.layer.block
    for ntype, states in call.sources.items():
        if isinstance(states, LazyRows):
            states.own_rows = block.wanted(ntype) if ntype in block.num_dst else 0


def _call_module(call: _HeteroCall, relation: Relation) -> Part | None:
    """Call a relation's module on the graph of all its edges here, as DGL does."""
    module, args, kwargs = call.of(relation)
    runs_alone(relation, module)
    edges, graph = call.layer.relation(relation, call.g)
    source = call.sources[relation.src]
    # DGL gives a module the source rows twice where it takes destinations from none.
    destination = (mapped(edges.of, call.destinations[relation.dst])
                   if relation.dst in call.read else source)
    rows = call_module(module, edges, graph,
                       (source, destination, *call.edge_rows.get(relation, ())), args, kwargs)
    return None if rows is None else (edges, rows)


def _merge(call: _HeteroCall) -> None:
    """Merge the relations of each destination type over the group."""
    # Collectives: of each type with seeds or remote destinations, in the schema's order; trainers
    # without a relation into it take part, too.
    block = call.layer.block
    parts: dict[str, list[Part]] = {t: [] for t in block.num_dst if t not in call.merged}
    for _, (edges, rows) in sorted(call.values.items(), key=lambda item: item[0]):
        parts[edges.relation.dst].append((edges, rows))
    for ntype, relations_in in parts.items():
        if relations_in or ntype in block.seeds or ntype in block.remote:
            relations = {r: _is_merged(call, r) for r in in_order(call.into[ntype])}
            out = merge_relations(call.layer, ntype, relations_in, call.aggregate,
                                  (call.conv, ntype), call.like, relations, call.early.get(ntype))
            if out is not None:
                call.merged[ntype] = out


def _is_merged(call: _HeteroCall, relation: Relation) -> bool:
    """Return whether plain DGL merges a relation: the model has it, the script rows of its ends."""
    return (relation in call.modules and relation.src in call.sources
            and relation.dst in call.given_destinations)


def _complete(call: _HeteroCall) -> dict[str, Tensor]:
    """Return the result with all types that plain DGL has, in its order."""
    # Collective: one agreement an epoch; last, because it tells what was merged.
    wanted = {r.dst for r in call.modules if _is_merged(call, r)}
    every = complete_types(call.layer, call.merged, wanted, call.conv, call.like)
    return without_absent(call.layer, every, call.given_destinations)


def _rows_of_edges(conv: Any, inputs: Any) -> dict[Relation, tuple[Tensor]]:
    """Return rows of edges by relation, the third part of a triple; none of what is no triple.

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
            refuse("rows of edges for DGL's convolutions", conv=type(conv).__name__, etype=etype,
                   module=type(module).__name__)
    return {Relation(*etype): (unguarded(rows),) for etype, rows in inputs[2].items()}


def in_order(relations: Iterable[Relation]) -> list[Relation]:
    """Return relations in the order in which DGL's blocks have them, and HeteroGraphConv gives
    their outputs to 'stack' and to callables: by name, whatever the order of the schema."""
    return sorted(relations)
