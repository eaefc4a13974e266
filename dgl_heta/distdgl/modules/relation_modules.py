"""A relation's own module inside HeteroGraphConv: its call, and its state on machines that do not
run it."""

from __future__ import annotations

import logging
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dgl
import torch
from dgl.nn.pytorch import GATConv, GraphConv, SAGEConv
from torch import Tensor, nn

from dgl_heta.distdgl.blocks.layer import Layer, RelationGraph
from dgl_heta.distdgl.state import state_of
from dgl_heta.errors import HetaError
from dgl_heta.graph.schema import Relation
from dgl_heta.sampling.blocks import RelationBlock


def call_module(module: Any, edges: RelationBlock, graph: RelationGraph, rows: Any,
                args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """What a relation's module gives for the rows of both ends, (edges.num_rows, …); None if it
    fails where there are no rows.

    Raises
    ------
    HetaError
        It reads the ids of edges; it returned no rows.
    """
    relation = tuple(edges.relation)
    try:
        value = module(graph, rows, *args, **kwargs)
    except Exception as error:
        if isinstance(error, KeyError) and error.args == (dgl.EID,):
            raise HetaError(
                f"the module of {relation} reads edge ids (dgl.EID) of its graph, which on a "
                "meta-partitioned graph has none; read data of edges by the block's, "
                "block.edges[relation].data[dgl.EID], and give the module the rows (mod_kwargs)"
                ) from error
        if edges.num_rows or isinstance(error, HetaError):
            raise
        fails_without_rows(module, edges.relation.dst, error)
        return None
    if not isinstance(value, Tensor):
        raise HetaError(f"the module of {relation} returned {type(value).__name__}; on a "
                        "meta-partitioned graph it must return one tensor, with a row for each "
                        "destination")
    if value.dim() == 0 or len(value) != edges.num_rows:
        raise HetaError(f"the module of {relation} returned a tensor of shape "
                        f"{tuple(value.shape)} for {edges.num_rows} destinations; on a "
                        "meta-partitioned graph it must return a row for each")
    return value


class _Told:
    """What was logged once: functions and classes of modules."""

    def __init__(self) -> None:
        self.of: set[Any] = set()

    def first(self, what: Any) -> bool:
        """Return whether it is told of for the first time."""
        if what in self.of:
            return False
        self.of.add(what)
        return True


def fails_without_rows(function: Any, ntype: str, error: Exception) -> None:
    """Log, once for each, that what a script merges relations with fails where a batch reaches no
    node of a type: it is left out there, as by DistDGL. In one process it would fail."""
    if state_of(_Told).first(function):
        logging.getLogger("dgl_heta").warning(
            "%s fails for a batch that reaches no node of '%s' (%s: %s); it is left out there, and "
            "parameters that nothing else uses have no gradient (None) in place of zeros",
            getattr(function, '__name__', type(function).__name__), ntype,
            type(error).__name__, error)


def runs_alone(relation: Relation, module: Any) -> None:
    """Log, once for each class of modules, that one is called by itself and why."""
    kind = type(module)
    if state_of(_Told).first(kind):
        why = ("hooks, options or inputs of it ask for its own forward"
               if kind in (GraphConv, GATConv, SAGEConv) else "it is none of DGL's GraphConv, "
               "GATConv and SAGEConv, of which all relations are computed together")
        logging.getLogger("dgl_heta").info(
            "%s of relation %s runs relation by relation: %s", kind.__name__, relation, why)


@dataclass
class State:
    """What the relations' modules of a HeteroGraphConv keep in buffers.

    Attributes
    ----------
    modules : relations whose modules have buffers.
    common : (module, buffer's name) that several relations' modules have, but for running
        statistics of batch norms.
    """

    modules: list[tuple[Relation, nn.Module]]
    common: list[tuple[nn.Module, str]]

    def marks(self) -> list[tuple[int, int]]:
        """Other ones where a common buffer has been written to."""
        found = (module._buffers.get(name) for module, name in self.common)
        return [(id(b), 0 if b is None or b.is_inference() else b._version) for b in found]


class _States:
    """HeteroGraphConv → the buffers of its modules."""

    def __init__(self) -> None:
        self.of: weakref.WeakKeyDictionary[Any, State] = weakref.WeakKeyDictionary()


def buffers_of(conv: Any, layer: Layer) -> State | None:
    """The buffers of a HeteroGraphConv's modules, if they may change and there are any."""
    if layer.session.group.size == 1 or not conv.training:
        return None
    known = state_of(_States).of
    if conv not in known:
        modules, users = [], Counter[tuple[nn.Module, str]]()
        for relation in layer.session.store.schema.relations:
            try:
                module = conv._get_module(tuple(relation))
            except KeyError:
                continue
            if any(True for _ in module.buffers()):
                modules.append((relation, module))
            users.update((part, name) for part in module.modules() for name, _ in
                         part.named_buffers(recurse=False)
                         if not isinstance(part, nn.modules.batchnorm._NormBase))
        known[conv] = State(modules, [place for place, n in users.items() if n > 1])
    return known[conv] if known[conv].modules else None


def share_state(state: State, before: list[tuple[int, int]], layer: Layer, ran: set[Relation]
                ) -> None:
    """Bring what modules keep in buffers (running statistics, the vectors of spectral_norm) from a
    trainer that ran them to the others of its group.

    Parameters
    ----------
    before : the state's marks before modules ran.

    Raises
    ------
    HetaError
        What several relations have in common has changed, on any trainer.
    """
    group = layer.session.group
    changed = [place for place, (old, new) in enumerate(zip(before, state.marks())) if old != new]
    mine = torch.tensor([min(changed, default=len(before)),
                         *(group.rank if r in ran else group.size for r, _ in state.modules)])
    first, *runners = group.all_reduce(mine, "min", "control").tolist()
    if first < len(before):
        module, name = state.common[first]
        raise HetaError(f"buffer '{name}' of {type(module).__name__}, in a module that several "
                        "relations have in common, changes with every call, and its calls are in "
                        "another order on a meta-partitioned graph; give each relation a module of "
                        "its own (spectral_norm: or norm the common weight once, outside of "
                        "HeteroGraphConv)")
    buffers = [(runner, b) for (_, module), runner in zip(state.modules, runners)
               if runner < group.size for b in module.buffers() if b.numel()]
    for runner, buffer in buffers:
        sizes = [int(rank == runner) for rank in range(group.size)]
        row = buffer.detach().reshape(1, -1)
        sent = group.all_gather_rows(row[:sizes[group.rank]], sizes, "control")
        buffer.data.copy_(sent.view_as(buffer))
