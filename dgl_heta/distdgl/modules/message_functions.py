"""What the trainers of a group agree on of a call of multi_update_all.

Trainers may know different things: a machine without a relation does not know its fields, and a
script may pick relations by what is in its block. So the group agrees on each call, by one small
message (8 bytes a relation), and by two more where it is a new kind of call or has functions of the
script's own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from dgl import NID, core
from dgl.base import DGLError
from dgl.function import BinaryMessageFunction, TargetCode
from torch import Tensor

from dgl_heta.distdgl.blocks.layer import Layer
from dgl_heta.distdgl.modules.merging import DTYPES, canonical
from dgl_heta.errors import HetaError
from dgl_heta.graph.schema import Relation
from dgl_heta.sampling.blocks import RelationBlock

if TYPE_CHECKING:
    from dgl_heta.distdgl.blocks.raf_block import RafBlock

_TAKEN, _HELD, _ASKED = 1, 2, 4
EXTREMES = {"max": float("-inf"), "min": float("inf")}
"""What DGL's reduce functions give rows without an edge, where a relation has any."""


class Functions(NamedTuple):
    """What a script gives for a relation."""

    message: Any
    reduce: Any  # None of a function of edges alone
    apply: Any = None

    @property
    def own(self) -> bool:
        """Whether any is the script's own."""
        return self.apply is not None or not builtin(self.reduce) or not builtin(self.message)

    @property
    def fields(self) -> set[tuple[str, str]] | None:
        """The fields of sources ("u") and destinations ("v") that they may read; None for any."""
        if self.apply is not None or not builtin(self.message) or not (
                self.reduce is None or builtin(self.reduce)):
            return None
        message = self.message
        ends = ([(message.lhs, message.lhs_field), (message.rhs, message.rhs_field)]
                if isinstance(message, BinaryMessageFunction) else
                [(message.target, message.in_field)])
        sides = {TargetCode.SRC: "u", TargetCode.DST: "v"}
        return {(sides[target], name) for target, name in ends if target in sides}

    @property
    def reads(self) -> list[str] | None:
        """The fields of the destinations that they may read; None for any."""
        fields = self.fields
        return None if fields is None else sorted(name for side, name in fields if side == "v")

    def describe(self) -> str:
        return "/".join(repr(vars(f) | {"name": f.name}) if builtin(f) else "own" if f else ""
                        for f in self)


class Field(NamedTuple):
    """An output field of a relation."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass
class Plan:
    """What all trainers of the group know of a call.

    Attributes
    ----------
    order : relations of any trainer's dictionary, in the order for the cross reducer.
    reducer : the cross reducer: its name, or "callable".
    by_batch : whether the result depends on which relations have an edge in a trainer's batch.
    gathered : per node type the destinations' fields to bring together.
    zeroed : whether infinite results become 0.
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
class Found:
    """What a machine has of a call: columns of each part, and what went wrong."""

    parts: list[tuple[RelationBlock, dict[str, Tensor]]]
    empty: dict[Relation, dict[str, Tensor]]
    """What relations without edges here give."""
    absent: dict[int, Tensor]
    """Part → rows in whose trainers' batches plain DGL leaves its relation out."""
    error: str | None = None
    cause: BaseException | None = None


def functions_of(layer: Layer, etype_dict: Mapping[Any, Any]) -> dict[Relation, Functions]:
    functions = {}
    for etype, given in etype_dict.items():
        values = tuple(given) if isinstance(given, tuple | list) else (given,)
        if len(values) not in (2, 3):
            raise DGLError(f"Invalid arguments for edge type \"{etype}\". Should be "
                           "(msg_func, reduce_func, [apply_node_func])")
        relation = canonical(etype, layer.session.store.schema.relations)
        functions[relation] = Functions(*values)
    return functions


def agree(g: RafBlock, layer: Layer, functions: Mapping[Relation, Functions], cross_reducer: Any
           ) -> tuple[Plan, Any]:
    """The plan of a call, and by what it is known when it comes again."""
    group, relations = layer.session.group, list(layer.session.store.schema.relations)
    held = {edges.relation for edges in layer.block.edges if len(edges.indices)}
    own = torch.tensor([[_TAKEN * (r in functions) + _HELD * (r in held)
                         + _ASKED * (r in layer.asked) for r in relations]])
    text = json.dumps(_description(g, functions, cross_reducer, relations))
    mark = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
    every = group.all_gather_rows(torch.cat([own, torch.tensor([[mark]])], 1), [1] * group.size,
                                  "control")
    taken = every[:, :-1] & _TAKEN > 0
    asked = bool(((every[:, :-1] & _ASKED > 0) & ~taken).any())
    lacking = ((every[:, :-1] & _HELD > 0) & ~taken & taken.any(0)).nonzero()
    if len(lacking):
        rank, place = lacking[0].tolist()
        raise HetaError(
            "trainers call multi_update_all with different relations: "
            f"{relations[place]} is not in the dictionary of trainer {group.ranks[rank]}, whose "
            "machine has its edges; give all trainers the same relations")
    key = ("multi_update_all", layer.block.layer, tuple(every[:, -1].tolist()), asked)
    if key not in layer.session.groups.agreed.shapes:
        told = group.all_gather_json(json.loads(text), "control")
        layer.session.groups.agreed.shapes[key] = _plan(layer, told, relations, asked)
    has_edges = (every[:, :-1] & _HELD > 0).any(0).tolist()
    return replace(layer.session.groups.agreed.shapes[key], with_edges={
        r for r, there in zip(relations, has_edges) if there}), key


def _description(g: RafBlock, functions: Mapping[Relation, Functions], cross_reducer: Any,
                 relations: Sequence[Relation]) -> dict[str, Any]:
    """What other trainers must know of this one's call."""
    types = {r.dst for r in functions} | {r.src for r in functions}

    def columns(data: Any) -> list[Any]:
        return [[name, list(x.shape[1:]), DTYPES.index(x.dtype)] for name, x in sorted(data.items())
                if name != NID]
    return {
        "functions": [[relations.index(r), f.describe(), f.own, f.reads,
                       f.reduce.name if builtin(f.reduce) else ""]
                      for r, f in functions.items()],
        "reducer": "callable" if callable(cross_reducer) else str(cross_reducer),
        "destinations": {t: columns(g.dstnodes[t].data) for t in sorted(types)},
        "sources": {t: columns(g.srcnodes[t].data) for t in sorted(types)}}


def _plan(layer: Layer, told: Sequence[dict[str, Any]], relations: Sequence[Relation], asked: bool
          ) -> Plan:
    """The plan of a call that all trainers have described."""
    _same("cross reducers", [one["reducer"] for one in told], layer)
    reducer = told[0]["reducer"]
    if reducer not in ("sum", "mean", "max", "min", "stack", "callable"):
        raise DGLError("Invalid cross type reducer. Must be one of \"sum\", \"max\", \"min\", "
                       "\"mean\" or \"stack\".")
    of: dict[int, Any] = {}
    for one in told:
        for place, *function in one["functions"]:
            if of.setdefault(place, function)[0] != function[0]:
                raise HetaError(f"trainers call multi_update_all with different functions for "
                                f"{relations[place]}; give all trainers the same")
    orders = [[place for place, *_ in one["functions"]] for one in told]
    differ = any(set(order) != set(orders[0]) for order in orders)
    extremes = [name for *_, name in of.values() if name in EXTREMES]
    if differ and (reducer != "sum" or any(own for _, own, *_ in of.values()) or (
            0 < len(extremes) < len(of))):
        raise HetaError(
            "trainers call multi_update_all with different relations, which plain sums alone can "
            f"do: the cross reducer is {reducer!r}; give all trainers the same relations, also "
            "those without edges (block.num_edges, and which types have rows, are this machine's)")
    if reducer == "callable" and any(order != orders[0] for order in orders):
        raise HetaError("trainers call multi_update_all with their relations in different orders, "
                        "which a callable cross reducer may depend on; give all trainers the same")
    last = of[orders[0][-1]][-1] if orders[0] else (extremes[-1] if extremes else "")
    if differ:
        last = extremes[-1] if extremes else ""
    gathered: dict[str, list[str]] = {}
    for place, (_, _, reads, _) in of.items():
        ntype = relations[place].dst
        there = [[name for name, *_ in one["destinations"].get(ntype, [])] for one in told]
        wanted = sorted({n for names in there for n in names}) if reads is None else reads
        gathered[ntype] = sorted({*gathered.get(ntype, ()), *wanted})
    if layer.block.last or layer.block.delegated:
        for ntype, names in gathered.items():
            for name in names if layer.block.last or ntype in layer.block.guests else ():
                _same(f"data '{name}' of '{ntype}'", [
                    [c[1:] for c in one["destinations"].get(ntype, []) if c[0] == name]
                    for one in told], layer)
    return Plan([relations[place] for place in of], reducer,
                bool(extremes) or (reducer != "sum" and (asked or any(
                    not name for *_, name in of.values()))),
                last in EXTREMES, gathered)


def _same(what: str, values: Sequence[Any], layer: Layer) -> None:
    for rank, value in zip(layer.session.group.ranks, values):
        if value != values[0]:
            raise HetaError(f"trainers call multi_update_all with different {what}: {values[0]} on "
                            f"trainer {layer.session.group.ranks[0]}, {value} on trainer {rank}; "
                            "give all trainers the same")


def fields_of(layer: Layer, found: Found, plan: Plan) -> dict[Relation, list[Field]]:
    """The output fields of every relation, from those who have run it."""
    relations = list(layer.session.store.schema.relations)
    own: dict[int, Any] = {}

    def note(relation: Relation, columns: Mapping[str, Tensor], edges: bool) -> None:
        place = relations.index(relation)
        if columns and (str(place) not in own or edges):
            own[str(place)] = [edges, [[name, list(x.shape[1:]), DTYPES.index(x.dtype)]  # type: ignore[index]
                                       for name, x in columns.items()]]
    for relation, columns in found.empty.items():
        note(relation, columns, False)
    for edges, columns in found.parts:
        note(edges.relation, columns, bool(len(edges.indices)))
    told = layer.session.group.all_gather_json({"error": found.error, "fields": own}, "control")
    for rank, one in zip(layer.session.group.ranks, told):
        if one["error"] is not None:
            raise HetaError(f"{one['error']} (trainer {rank})") from found.cause
    fields: dict[Relation, list[Field]] = {}
    for place, relation in enumerate(relations):
        every = sorted((not one["fields"][str(place)][0], rank, one["fields"][str(place)][1])
                       for rank, one in enumerate(told) if str(place) in one["fields"])
        if not every or relation not in plan.order:
            continue
        best = [given for empty, _, given in every if empty == every[0][0]]
        if any(sorted(given) != sorted(best[0]) for given in best):
            raise HetaError(f"multi_update_all over {relation} gives other fields, shapes or "
                            f"dtypes on one trainer than on another: {best}")
        fields[relation] = [Field(name, tuple(shape), DTYPES[dtype])
                            for name, shape, dtype in best[0]]
    _check_shapes(fields)
    return fields


def _check_shapes(fields: Mapping[Relation, Sequence[Field]]) -> None:
    shapes: dict[tuple[str, str], tuple[int, ...]] = {}
    for relation, given in fields.items():
        for one in given:
            if shapes.setdefault((relation.dst, one.name), one.shape) != one.shape:
                raise HetaError(
                    f"multi_update_all: relations into '{relation.dst}' give rows of "
                    f"'{one.name}' of shape {shapes[relation.dst, one.name]} and {one.shape}; a "
                    "cross reducer needs one shape")


def fields_in_order(layer: Layer, plan: Plan) -> dict[str, list[str]]:
    """Node type → output fields, in the order in which all trainers exchange them: by relation in
    the schema, then as its functions give them."""
    order: dict[str, list[str]] = {t: [] for t in layer.session.store.schema.node_types}
    assert plan.fields is not None
    for relation in layer.session.store.schema.relations:
        for one in plan.fields.get(relation, ()):
            if one.name not in order[relation.dst]:
                order[relation.dst].append(one.name)
    return {t: names for t, names in order.items() if names}


def builtin(function: Any) -> bool:
    return bool(core.is_builtin(function))
