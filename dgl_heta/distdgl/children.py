"""A relation's own module inside HeteroGraphConv: its call, and its state on machines that do not
run it."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import dgl
import torch
from torch import Tensor, nn

from dgl_heta.distdgl.layers import Layer, RelationGraph
from dgl_heta.errors import HetaError
from dgl_heta.graph.schema import Relation
from dgl_heta.sampling.blocks import RelationBlock

_stateful: weakref.WeakKeyDictionary[Any, list[tuple[Relation, nn.Module]]] = (
    weakref.WeakKeyDictionary())


def call_module(module: Any, edges: RelationBlock, graph: RelationGraph, rows: Any,
                args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """What a relation's module gives for the rows of both ends, (edges.num_rows, …).

    Raises
    ------
    HetaError
        It reads the ids of edges; it returned no rows.
    """
    relation = tuple(edges.relation)
    try:
        value = module(graph, rows, *args, **kwargs)
    except KeyError as error:
        if error.args != (dgl.EID,):
            raise
        raise HetaError(f"the module of {relation} reads edge ids (dgl.EID), which a "
                        "meta-partitioned graph does not store; compute what it needs from the "
                        "rows of both ends") from error
    if not isinstance(value, Tensor):
        raise HetaError(f"the module of {relation} returned {type(value).__name__}; on a "
                        "meta-partitioned graph it must return one tensor, with a row for each "
                        "destination")
    if value.dim() == 0 or len(value) != edges.num_rows:
        raise HetaError(f"the module of {relation} returned a tensor of shape "
                        f"{tuple(value.shape)} for {edges.num_rows} destinations; on a "
                        "meta-partitioned graph it must return a row for each")
    return value


def share_state(conv: Any, layer: Layer, ran: set[Relation]) -> None:
    """Bring what modules keep in buffers (running statistics, the vectors of spectral_norm) from a
    trainer that ran them to the others of its group, in training."""
    group = layer.session.group
    if group.size == 1 or not conv.training:
        return
    if conv not in _stateful:
        found = {}
        for relation in layer.session.store.schema.relations:
            try:
                module = conv._get_module(tuple(relation))
            except KeyError:
                continue
            if any(True for _ in module.buffers()):
                found[relation] = module
        _stateful[conv] = [*found.items()]
    stateful = _stateful[conv]
    if not stateful:
        return
    mine = torch.tensor([group.rank if r in ran else group.size for r, _ in stateful])
    runners = group.all_reduce(mine, "min", "control").tolist()
    buffers = [(runner, b) for (_, module), runner in zip(stateful, runners)
               if runner < group.size for b in module.buffers() if b.numel()]
    for runner, buffer in buffers:
        sizes = [int(rank == runner) for rank in range(group.size)]
        row = buffer.detach().reshape(1, -1)
        sent = group.all_gather_rows(row[:sizes[group.rank]], sizes, "control")
        buffer.data.copy_(sent.view_as(buffer))
