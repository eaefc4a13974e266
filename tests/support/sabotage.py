"""Repairs switched off, one at a time, to show that the proof finds what they repair.

Each function changes dgl_heta in the process that calls it, and says which wrong it lets in.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def s3() -> None:
    """Own operations over a block see this machine's relations, without a word."""
    from dgl_heta.distdgl.blocks import block_index

    block_index.is_partial = lambda layer: False


def s9() -> None:
    """Exchanges whose results nobody uses give zeros as gradients, where plain DGL has none."""
    from dgl_heta.distdgl.autograd.collective_order import CollectiveOrder

    CollectiveOrder.flags = False


def s2() -> None:
    """Rows of a DistEmbedding are taken for those of the batch that was drawn last."""
    import numpy as np

    from dgl_heta.distdgl.batch_ids import IdRegistry, Readers

    right, last = IdRegistry.hand_out, {}

    def hand_out(self: Any, batch: Any, reached: Any, rank: int) -> Any:
        if reached:
            last.update({t: (ids, reached[0][t]) for t, ids in batch.input_nodes.items()})
        return right(self, batch, reached, rank)

    def readers(self: Any, ntype: str, index: Tensor) -> Any:
        none = np.empty(0, np.int64)
        ids, found = last.get(ntype, (none, none))
        of_id = np.zeros(1 + max([0, *index.tolist(), *ids.tolist()]), np.int64)
        of_id[ids] = found
        return Readers(of_id[index.numpy()], torch.zeros(len(index), dtype=torch.bool))

    IdRegistry.hand_out, IdRegistry.readers = (  # type: ignore[method-assign]
        hand_out, readers)


def s4() -> None:
    """GraphConv and GATConv are computed from their weights whatever hangs on them: no hook runs,
    and norms of weights are those of the first step."""
    from dgl_heta.distdgl.modules import gat_conv, graph_conv, hetero_graph_conv

    for module in (gat_conv, graph_conv, hetero_graph_conv):
        module.is_plain_module = lambda module, kind: type(module) is kind  # type: ignore[attr-defined]


def s5() -> None:
    """Out-degrees in a relation's own module, with the edges of other trainers' seeds."""
    from dgl_heta.distdgl.blocks.relation_graph import RelationGraph

    RelationGraph.check_name = lambda self, name: None  # type: ignore[method-assign]


def s6() -> None:
    """A callable and 'stack' get the relations' outputs in another order than DGL's."""
    from dgl_heta.distdgl.modules import hetero_graph_conv

    hetero_graph_conv.in_order = lambda relations: sorted(relations, reverse=True)  # type: ignore[assignment]


def s10() -> None:
    """Hooks, `autograd.grad` and inputs are given this machine's part of a gradient."""
    from dgl_heta.distdgl.autograd import collective_order
    from dgl_heta.distdgl.training import parallel

    def nothing(*_: object, **__: object) -> None:
        pass

    collective_order.check_inputs = parallel.check_hooks = nothing


def s1() -> None:
    """multi_update_all exchanges fields in the order of a machine's own relations."""
    from dgl_heta.distdgl.modules import message_functions

    right = message_functions.fields_in_order

    def by_own_relations(layer: Any, plan: Any) -> dict[str, list[str]]:
        order: dict[str, list[str]] = {}
        for edges in layer.block.edges:
            for one in plan.fields.get(edges.relation, ()):
                names = order.setdefault(edges.relation.dst, [])
                names.extend([one.name] * (one.name not in names))
        return {t: sorted(names, key=lambda n: (n not in order.get(t, ()),
                                                order.get(t, []).index(n)
                                                if n in order.get(t, ()) else 0))
                for t, names in right(layer, plan).items()}
    message_functions.fields_in_order = by_own_relations


def s8() -> None:
    """A relation counts for a trainer's rows where only another trainer's batch has edges of it."""
    from dgl_heta.distdgl.modules.absent_relations import Presence

    def everywhere(self: Any, edges: Any) -> tuple[Tensor, Tensor]:
        none = torch.zeros(edges.num_rows, dtype=torch.bool)
        return none, none
    Presence.of = everywhere  # type: ignore[method-assign]
