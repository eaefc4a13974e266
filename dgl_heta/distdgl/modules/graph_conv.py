"""GraphConv inside HeteroGraphConv, without a DGL graph per relation.

DGL's GraphConv is what R-GCN scripts use per relation. Its aggregation runs in the selected
kernel; and where weights make rows wider (the output layer: 64 → 349 classes in ogbn-mag), the
rows are exchanged before they are multiplied, which is the same sum by linearity with a fraction
of the bytes, and every trainer multiplies its own seeds' rows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from dgl.nn.pytorch import GraphConv
from torch import Tensor

from dgl_heta.distdgl.modules.module_hooks import is_plain_module
from dgl_heta.distdgl.session import Session
from dgl_heta.graph.schema import Relation
from dgl_heta.nn.aggregate import reduce_each, segment_reduce
from dgl_heta.nn.gradient_hub import shaped
from dgl_heta.nn.kernels import kernel_in_use
from dgl_heta.sampling.blocks import InEdges, RelationBlock


def is_graph_conv(module: Any) -> bool:
    """Whether a module is DGL's GraphConv, which reads no destinations."""
    return type(module) is GraphConv


def known(module: Any, rows: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a relation's module and its call are such that :func:`run_together` gives its result.

    With another norm than 'right' and 'none' it is called itself, and its graph says whether the
    out-degrees that it asks for can be had (:class:`dgl_heta.distdgl.blocks.layer.RelationGraph`).
    """
    return (is_plain_module(module, GraphConv) and isinstance(rows, Tensor)
            and rows.is_floating_point() and module._norm in ("right", "none")
            and module._allow_zero_in_degree and not args and set(kwargs) <= {"weight"}
            and (kwargs.get("weight") is None or module.weight is None))


def weight_of(module: Any, kwargs: Mapping[str, Any]) -> Tensor | None:
    """The weight of a call: the script's, or the module's own."""
    given = kwargs.get("weight")
    return module.weight if given is None else given


def _operation(module: Any) -> str:
    return "mean" if module._norm == "right" else "sum"


def _weights_first(module: Any, kwargs: Mapping[str, Any]) -> bool:
    return weight_of(module, kwargs) is not None and module._in_feats > module._out_feats


def aggregate(module: Any, edges: RelationBlock, rows: Tensor) -> Tensor:
    """The rows' sum or mean over in-edges, before or after weights."""
    flat = shaped(rows, len(rows), rows.shape[1:].numel())
    indptr, indices = edges.indptr.to(rows.device), edges.indices.to(rows.device)
    return segment_reduce(indptr, indices, flat, _operation(module)).view(-1, *rows.shape[1:])


def run_together(calls: Mapping[int, tuple[Any, RelationBlock, Mapping[str, Any]]],
                 sources: Mapping[str, Tensor], summed: bool
                 ) -> dict[int, tuple[RelationBlock, Tensor]]:
    """`GraphConv.forward` of several relations from source rows: rows and values, (rows, out).

    What is done alike is done in one call of the kernel: aggregations by the sum and by the mean,
    products with weights of one shape.

    Parameters
    ----------
    calls : modules with their relation's edges and keyword arguments, by any key.
    sources : source rows per node type.
    summed : whether relations are added up, so that rows without edges, whose value is 0, can be
        left out.
    """
    chosen = {key: (module, edges.with_edges() if summed and _zero_without_edges(module) else edges,
                    kwargs) for key, (module, edges, kwargs) in calls.items()}
    alike: dict[Any, list[int]] = {}
    found: dict[int, Tensor] = {}
    for key, (module, edges, kwargs) in chosen.items():
        rows, weight = sources[edges.relation.src], weight_of(module, kwargs)
        if rows.dim() != 2 or _weights_first(module, kwargs):
            found[key] = _alone(module, edges, rows, weight)
            continue
        shape = None if weight is None else (*weight.shape, rows.dtype == weight.dtype)
        alike.setdefault((_operation(module), shape), []).append(key)
    for (op, shape), keys in alike.items():
        rows_of = [sources[chosen[key][1].relation.src] for key in keys]
        edges_of = [InEdges(chosen[key][1].indptr.to(x.device), chosen[key][1].indices.to(x.device))
                    for key, x in zip(keys, rows_of)]
        values = reduce_each(edges_of, rows_of, op)
        if shape is not None and shape[-1]:
            values = kernel_in_use().matmul(
                values, [weight_of(chosen[key][0], chosen[key][2]) for key in keys])  # type: ignore[misc]
        elif shape is not None:
            values = [x @ weight_of(chosen[key][0], chosen[key][2])
                      for key, x in zip(keys, values)]
        found.update(zip(keys, values))
    return {key: (edges, _finished(module, found[key]))
            for key, (module, edges, _) in chosen.items()}


def _zero_without_edges(module: Any) -> bool:
    return module.bias is None and module._activation is None


def _alone(module: Any, edges: RelationBlock, rows: Tensor, weight: Tensor | None) -> Tensor:
    """Aggregated rows times the weight, whichever is first."""
    if weight is not None and module._in_feats > module._out_feats:
        return aggregate(module, edges, rows @ weight)
    out = aggregate(module, edges, rows)
    return out if weight is None else out @ weight


def _finished(module: Any, rows: Tensor) -> Tensor:
    if module.bias is not None:
        rows = rows + module.bias
    return rows if module._activation is None else module._activation(rows)


def narrow_first(session: Session, ntype: str, modules: Container[Relation],
                 call: Callable[[Relation], Any]) -> list[list[Relation]] | None:
    """Per trainer of the group its relations into a target, if exchanging before weights pays.

    `modules` are the relations of the model. `call` gives a relation's module and keyword
    arguments. All trainers find the same: it follows from the plan and the model.
    """
    group = session.group
    if group.size == 1:
        return None
    members = [[r for r in session.plan.roots(part) if r.dst == ntype and r in modules]
               for part in session.groups.members]
    before = after = 0
    for relations in members:
        for relation in relations:
            module, args, kwargs = call(relation)
            weight = weight_of(module, kwargs) if not args and set(kwargs) <= {"weight"} else None
            if weight is None or module.bias is not None or module._activation is not None:
                return None
            before += weight.shape[0]
            after = weight.shape[1]
    return members if before < after * group.size else None
