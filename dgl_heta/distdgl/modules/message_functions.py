"""Agreement of a group's trainers on a call of multi_update_all.

Trainers may know different things: a machine without a relation does not know its fields, and a
script may pick relations by what is in its block. So the group agrees on each call, by one small
message (8 bytes a relation), and by two more where it is a new kind of call or has functions of the
script's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from dgl import NID, core
from dgl.base import DGLError
from dgl.function import BinaryMessageFunction, TargetCode
from torch import Tensor

from dgl_heta.distdgl.blocks.layer import Layer
from dgl_heta.distdgl.modules.agreements import DTYPES, described, digest, known
from dgl_heta.distdgl.modules.group_merge import canonical
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.errors import HetaError
from dgl_heta.graph.schema import Relation
from dgl_heta.nn.cross import REDUCERS
from dgl_heta.planning.extremes import EXTREMES
from dgl_heta.sampling.blocks import RelationBlock

if TYPE_CHECKING:
    from dgl_heta.distdgl.blocks.raf_block import RafBlock

_IN_DICTIONARY, _HAS_EDGES, _ASKED = 1, 2, 4
"""Bits of what a trainer tells of a relation: the script gives functions for it; this machine has
edges; the script has asked for their number."""
_REDUCERS = (*REDUCERS, "stack", "callable")


class _Described(NamedTuple):
    """A relation's functions as trainers tell each other of them."""

    text: str
    own: bool
    reads: list[str] | None
    reduce: str  # the name of DGL's, or ""


class Functions(NamedTuple):
    """The functions that a script gives for a relation."""

    message: Any
    reduce: Any  # None of a function of edges alone
    apply: Any = None

    @property
    def own(self) -> bool:
        """Return whether any is the script's own."""
        return self.apply is not None or not builtin(self.reduce) or not builtin(self.message)

    @property
    def fields(self) -> set[tuple[str, str]] | None:
        """Return what they may read of sources ("u") and destinations ("v"); None for anything."""
        if self.apply is not None or not builtin(self.message) or (
                self.reduce is not None and not builtin(self.reduce)):
            return None
        message = self.message
        read = ([(message.lhs, message.lhs_field), (message.rhs, message.rhs_field)]
                if isinstance(message, BinaryMessageFunction) else
                [(message.target, message.in_field)])
        ends = {TargetCode.SRC: "u", TargetCode.DST: "v"}
        return {(ends[target], name) for target, name in read if target in ends}

    def describe(self) -> str:
        """Return a text that is the same for the same functions of DGL's."""
        return "/".join(repr(vars(f) | {"name": f.name}) if builtin(f) else "own" if f else ""
                        for f in self)

    def described(self) -> _Described:
        """Return what the other trainers must know of them."""
        fields = self.fields
        reads = None if fields is None else sorted(name for end, name in fields if end == "v")
        return _Described(self.describe(), self.own, reads,
                          self.reduce.name if builtin(self.reduce) else "")


class Field(NamedTuple):
    """An output field of a relation: its name, and the form of a row."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass
class CallPlan:
    """A call, as all trainers of the group know it.

    Attributes
    ----------
    order : relations of any trainer's dictionary, in the order for the cross reducer.
    reducer : the cross reducer: its name, or "callable".
    by_batch : whether the result depends on which relations have an edge in a trainer's batch.
    zeroed : whether infinite results become 0.
    gathered : per node type the destinations' fields to bring together.
    fields : per relation its output fields, once they are known.
    with_edges : relations with an edge in this batch, on any machine.
    """

    order: list[Relation]
    reducer: str
    by_batch: bool
    zeroed: bool
    gathered: dict[str, list[str]]
    fields: dict[Relation, list[Field]] | None = None
    with_edges: set[Relation] = field(default_factory=set)


@dataclass
class Outputs:
    """The results of a call on one machine.

    Attributes
    ----------
    parts : edges of a relation, and the columns that its functions give their rows.
    of_no_edges : columns of relations that have no edge on any machine.
    absent : number of a part → bool, rows in whose trainers' batches plain DGL leaves its relation
        out.
    error, cause : of the first function that failed.
    """

    parts: list[tuple[RelationBlock, dict[str, Tensor]]] = field(default_factory=list)
    of_no_edges: dict[Relation, dict[str, Tensor]] = field(default_factory=dict)
    absent: dict[int, Tensor] = field(default_factory=dict)
    error: str | None = None
    cause: BaseException | None = None


def functions_of(layer: Layer, etype_dict: Mapping[Any, Any]) -> dict[Relation, Functions]:
    """Return the functions of a script's dictionary, by relation in full.

    Raises
    ------
    HetaError
        A relation is there twice, by its name and in full.
    """
    functions: dict[Relation, Functions] = {}
    for etype, given in etype_dict.items():
        values = tuple(given) if isinstance(given, tuple | list) else (given,)
        if len(values) not in (2, 3):
            raise DGLError(f"Invalid arguments for edge type \"{etype}\". Should be "
                           "(msg_func, reduce_func, [apply_node_func])")
        relation = canonical(etype, layer.session.store.schema.relations)
        if relation in functions:  # plain DGL merges both
            refuse("a relation named twice", relation=relation)
        functions[relation] = Functions(*values)
    return functions


def agree(g: RafBlock, layer: Layer, functions: Mapping[Relation, Functions], cross_reducer: Any
          ) -> tuple[CallPlan, Any]:
    """Return the plan of a call, and the key by which it is known when it comes again."""
    # Collectives: a word for each relation and the digest of the description; the descriptions, in
    # JSON, where the call is new to any trainer (all see all digests, so they know the same).
    group, relations = layer.session.group, list(layer.session.store.schema.relations)
    here = {edges.relation for edges in layer.block.edges if len(edges.indices)}
    words = [_IN_DICTIONARY * (r in functions) + _HAS_EDGES * (r in here)
             + _ASKED * (r in layer.asked) for r in relations]
    description = _description(g, functions, cross_reducer, relations)
    every = group.all_gather_rows(torch.tensor([[*words, digest(description)]]),
                                  [1] * group.size, "control")
    words_of_all, digests = every[:, :-1], every[:, -1]
    given, has_edges = words_of_all & _IN_DICTIONARY > 0, words_of_all & _HAS_EDGES > 0
    # Its edges would be left out of all trainers' rows, whatever theirs have.
    lacking = (has_edges & ~given & given.any(0)).nonzero()
    if len(lacking):
        rank, number = lacking[0].tolist()
        refuse("a relation left out by who has its edges", relation=relations[number],
               trainer=group.ranks[rank])
    # Whoever asks for the number of edges may leave a relation out by it.
    asked = bool(((words_of_all & _ASKED > 0) & ~given).any())
    key = ("multi_update_all", layer.block.layer, tuple(digests.tolist()), asked)
    plans = known(layer)
    if key not in plans:
        told = group.all_gather_json(description, "control")
        plans[key] = _plan(layer, told, relations, asked)
    with_edges = {r for r, any_has in zip(relations, has_edges.any(0).tolist()) if any_has}
    return replace(plans[key], with_edges=with_edges), key


def _description(g: RafBlock, functions: Mapping[Relation, Functions], cross_reducer: Any,
                 relations: Sequence[Relation]) -> dict[str, Any]:
    """Return what other trainers must know of this one's call, for JSON."""
    types = sorted({ntype for r in functions for ntype in (r.src, r.dst)})

    def columns(data: Any) -> list[Any]:
        return described({name: data[name] for name in sorted(data) if name != NID})
    return {
        "functions": [[relations.index(r), *f.described()] for r, f in functions.items()],
        "reducer": "callable" if callable(cross_reducer) else str(cross_reducer),
        "destinations": {t: columns(g.dstnodes[t].data) for t in types},
        "sources": {t: columns(g.srcnodes[t].data) for t in types}}


def _plan(layer: Layer, told: Sequence[dict[str, Any]], relations: Sequence[Relation], asked: bool
          ) -> CallPlan:
    """Return the plan of a call that all trainers have described."""
    _same("cross reducers", [one["reducer"] for one in told], layer)
    reducer = told[0]["reducer"]
    if reducer not in _REDUCERS:
        raise DGLError("Invalid cross type reducer. Must be one of \"sum\", \"max\", \"min\", "
                       "\"mean\" or \"stack\".")
    functions: dict[int, _Described] = {}
    for one in told:
        for number, *rest in one["functions"]:
            function = _Described(*rest)
            if functions.setdefault(number, function).text != function.text:
                refuse("other functions on some trainers", relation=relations[number])
    orders = [[number for number, *_ in one["functions"]] for one in told]
    differ = any(set(order) != set(orders[0]) for order in orders)
    extremes = [f.reduce for f in functions.values() if f.reduce in EXTREMES]
    _check_relations(reducer, functions, orders, differ, extremes)
    # DGL zeroes infinite results if the last relation of the dictionary reduces by an extreme.
    last = functions[orders[0][-1]].reduce if orders[0] and not differ else (
        extremes[-1] if extremes else "")
    by_function = any(not f.reduce for f in functions.values())
    return CallPlan([relations[number] for number in functions], reducer,
                    bool(extremes) or (reducer != "sum" and (asked or by_function)),
                    last in EXTREMES, _gathered(layer, told, relations, functions))


def _check_relations(reducer: str, functions: Mapping[int, _Described],
                     orders: Sequence[Sequence[int]], differ: bool, extremes: Sequence[str]
                     ) -> None:
    """Refuse dictionaries that differ between trainers in what the result depends on."""
    if differ and (reducer != "sum" or any(f.own for f in functions.values())
                   or 0 < len(extremes) < len(functions)):
        refuse("other relations on some trainers", reducer=reducer)
    if reducer == "callable" and any(order != orders[0] for order in orders):
        refuse("relations in other orders")


def _gathered(layer: Layer, told: Sequence[dict[str, Any]], relations: Sequence[Relation],
              functions: Mapping[int, _Described]) -> dict[str, list[str]]:
    """Return per node type the destinations' fields that any trainer's functions read."""
    gathered: dict[str, list[str]] = {}
    for number, function in functions.items():
        ntype = relations[number].dst
        names = function.reads
        if names is None:
            names = [name for one in told for name, *_ in one["destinations"].get(ntype, [])]
        gathered[ntype] = sorted({*gathered.get(ntype, ()), *names})
    for ntype, names in gathered.items():
        if layer.block.last or (layer.block.offloads and ntype in layer.block.remote):
            # They are exchanged, so every trainer must have them in one form.
            for name in names:
                _same(f"data '{name}' of '{ntype}'", [
                    [column[1:] for column in one["destinations"].get(ntype, [])
                     if column[0] == name] for one in told], layer)
    return gathered


def _same(what: str, values: Sequence[Any], layer: Layer) -> None:
    """Refuse values that differ between trainers."""
    ranks = layer.session.group.ranks
    for rank, value in zip(ranks, values):
        if value != values[0]:
            refuse("other arguments on some trainers", what=what, value=values[0],
                   trainer=ranks[0], other_value=value, other=rank)


def fields_of(layer: Layer, outputs: Outputs, plan: CallPlan) -> dict[Relation, list[Field]]:
    """Return the output fields of every relation, from those who have run it. Collective.

    Raises
    ------
    HetaError
        A function has failed on a trainer: on all of them; or it gives different fields.
    """
    fields: dict[Relation, list[Field]] = {}
    shapes: dict[tuple[str, str], tuple[int, ...]] = {}
    told = _told_fields(layer, outputs)
    for number, relation in enumerate(layer.session.store.schema.relations):
        forms = [one[str(number)] for one in told if str(number) in one]
        if not forms or relation not in plan.order:
            continue
        fields[relation] = _one_form(relation, forms)
        for one in fields[relation]:
            shape = shapes.setdefault((relation.dst, one.name), one.shape)
            if shape != one.shape:
                raise HetaError(
                    f"multi_update_all: relations into '{relation.dst}' give rows of '{one.name}' "
                    f"of shape {shape} and {one.shape}; a cross reducer needs one shape")
    return fields


def _told_fields(layer: Layer, outputs: Outputs) -> list[dict[str, Any]]:
    """Return every trainer's fields, by the number of the relation: whether it has edges, and their
    forms. Collective: in JSON, with the error of who has failed."""
    relations = list(layer.session.store.schema.relations)
    own: dict[str, Any] = {}
    without_edges = ((r, columns, False) for r, columns in outputs.of_no_edges.items())
    for relation, columns, has_edges in (*without_edges, *(
            (edges.relation, columns, len(edges.indices) > 0) for edges, columns in outputs.parts)):
        number = str(relations.index(relation))
        if columns and (number not in own or has_edges):
            own[number] = [has_edges, described(columns)]
    told = layer.session.group.all_gather_json({"error": outputs.error, "fields": own}, "control")
    for rank, one in zip(layer.session.group.ranks, told):
        if one["error"] is not None:
            raise HetaError(f"{one['error']} (trainer {rank})") from outputs.cause
    return [one["fields"] for one in told]


def _one_form(relation: Relation, forms: Sequence[tuple[bool, list[Any]]]) -> list[Field]:
    """Return the fields that trainers with edges of a relation tell, or else those without."""
    with_edges = [form for has_edges, form in forms if has_edges]
    best = with_edges or [form for _, form in forms]
    if any(sorted(form) != sorted(best[0]) for form in best):
        raise HetaError(f"multi_update_all over {relation} gives other fields, shapes or "
                        f"dtypes on one trainer than on another: {best}")
    return [Field(name, tuple(shape), DTYPES[dtype]) for name, shape, dtype in best[0]]


def fields_in_order(layer: Layer, plan: CallPlan) -> dict[str, list[str]]:
    """Return node type → output fields, in the order in which all trainers exchange them: by
    relation in the schema, then as its functions give them."""
    order: dict[str, list[str]] = {t: [] for t in layer.session.store.schema.node_types}
    assert plan.fields is not None
    for relation in layer.session.store.schema.relations:
        for one in plan.fields.get(relation, ()):
            if one.name not in order[relation.dst]:
                order[relation.dst].append(one.name)
    return {t: names for t, names in order.items() if names}


def builtin(function: Any) -> bool:
    """Return whether a message or reduce function is one of DGL's."""
    return bool(core.is_builtin(function))
