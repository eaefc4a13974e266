"""Exchange GraphConv's aggregated rows before they are multiplied by weights.

Where weights make rows wider (the output layer: 64 → 349 classes in ogbn-mag) this is the same sum
by linearity with a fraction of the bytes, and every trainer multiplies its own seeds' rows alone:
Σ_r A_r X_r W_r = [A_1 X_1 | A_2 X_2 | …] [W_1; W_2; …].
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Mapping
from typing import Any

import torch
from torch import Tensor

from dgl_heta.distdgl.blocks.layer import Layer
from dgl_heta.distdgl.modules import graph_conv
from dgl_heta.distdgl.modules.agreements import merge_dtype
from dgl_heta.distdgl.modules.relation_call import check_sources
from dgl_heta.graph.schema import Relation
from dgl_heta.sampling.blocks import InEdges

Call = Callable[[Relation], tuple[Any, Any, Any]]
"""Gives the module, arguments and keyword arguments of a relation."""


def members_that_gain(layer: Layer, ntype: str, modules: Container[Relation], call: Call
                      ) -> list[list[Relation]] | None:
    """Return each trainer's relations into a type if exchanging before weights pays, else None.

    All trainers find the same without a message: it follows from the plan and the model.

    Parameters
    ----------
    modules : the relations of the model, all of them GraphConvs.
    """
    session = layer.session
    if session.group.size == 1:
        return None
    members = [[r for r in session.plan.roots(part) if r.dst == ntype and r in modules]
               for part in session.groups.members]
    before = after = 0
    for relation in itertools.chain(*members):
        module, args, kwargs = call(relation)
        weight = (graph_conv.weight_of(module, kwargs)
                  if not args and set(kwargs) <= {"weight"} else None)
        if weight is None or module.bias is not None or module._activation is not None:
            return None
        # A row before the weights travels once per relation; after them once per trainer.
        before += weight.shape[0]
        after = weight.shape[1]
    return members if before < after * session.group.size else None


def sum_of_products(layer: Layer, ntype: str, members: list[list[Relation]],
                    sources: Mapping[str, Any], call: Call, like: Tensor) -> Tensor:
    """Return the sum over all trainers' relations for this trainer's own seeds, (own seeds, out).

    One exchange: every trainer sends its relations' aggregated columns of the others' seeds.
    """
    session, block = layer.session, layer.block
    weights = []
    for relations in members:
        calls = [call(relation) for relation in relations]
        weights.append([graph_conv.weight_of(module, kwargs) for module, _, kwargs in calls])
    widths = [sum(w.shape[0] for w in of if w is not None) for of in weights]
    columns = [_aggregated_seeds(layer, relation, width.shape[0], sources, call(relation)[0], like)
               for relation, width in zip(members[session.group.rank], weights[session.group.rank])
               if width is not None]
    rows = torch.cat(columns, 1) if columns else like.new_zeros(block.seeds[ntype].total, 0)
    bounds = [0, *itertools.accumulate(widths)]
    # Each trainer multiplies its own seeds' rows by all relations' weights, of which it has copies.
    whole = session.exchange.gather_columns(
        rows.to(merge_dtype(rows.dtype)).unsqueeze(2),
        [range(begin, end) for begin, end in itertools.pairwise(bounds)], block, ntype)
    return whole.squeeze(2).to(rows.dtype) @ torch.cat(
        [w for of in weights for w in of if w is not None])


def _aggregated_seeds(layer: Layer, relation: Relation, width: int, sources: Mapping[str, Any],
                      module: Any, like: Tensor) -> Tensor:
    """Return a relation's aggregated rows of all the group's seeds, (seeds, width); 0 where this
    machine has no edges of it."""
    block, pieces, end = layer.block, [], 0
    total = block.seeds[relation.dst].total
    for edges in block.into(relation.dst):
        if edges.relation != relation or relation.src not in sources:
            continue
        rows = sources[relation.src]
        check_sources(block, relation.src, rows)
        in_edges = InEdges(edges.indptr.to(rows.device), edges.indices.to(rows.device))
        pieces.append(like.new_zeros(edges.start - end, width))
        pieces.append(graph_conv.aggregate(module, in_edges, rows))
        end = edges.stop
    pieces.append(like.new_zeros(total - end, width))
    return torch.cat([piece for piece in pieces if len(piece)]) if total else pieces[-1]
