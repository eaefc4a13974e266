"""Calls models that cannot be merged on several workers; every worker prints what is said."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import dgl_heta_pyg
import torch
from torch import nn
from torch_geometric.nn import (
    BatchNorm,
    GATConv,
    GINConv,
    HeteroConv,
    LayerNorm,
    RGATConv,
    RGCNConv,
    SAGEConv,
)
from torch_geometric.nn.aggr import MeanAggregation

import dgl_heta

warnings.simplefilter("ignore")
part = dgl_heta.open_partition(sys.argv[1], ["model.hidden=8", "train.threads=1"])
metadata = (list(part.schema.node_types), [tuple(r) for r in part.schema.relations])
CITES = ("paper", "cites", "paper")
loader = dgl_heta_pyg.NeighborLoader(part, [3, 2], "train", batch_size=6)


class Model(nn.Module):
    def __init__(self, function: Callable[..., Any], *modules: nn.Module) -> None:
        super().__init__()
        self.function, self.modules_ = function, nn.ModuleList(modules)

    def forward(self, x: Any, edges: Any) -> Any:
        return self.function(x, edges, *self.modules_)


def merged(norm: nn.Module) -> Model:
    conv = HeteroConv({r: SAGEConv((-1, -1), 4) for r in metadata[1]})
    return Model(lambda x, edges, conv, norm: norm(conv(x, edges)["paper"]), conv, norm)


def by_hand(x: Any, edges: Any) -> Any:
    source, row = edges[CITES]
    return torch.zeros_like(x["paper"]).index_add(0, row, x["paper"][source])


def as_one_graph(x: Any, edges: Any, conv: nn.Module) -> Any:
    every = torch.cat([edges[r] for r in edges], 1)
    return conv(x["paper"], every, torch.zeros(every.size(1)).long())


def attention(x: Any, edges: Any, conv: nn.Module) -> Any:
    return conv(x["paper"], edges[CITES], return_attention_weights=True)[0]


def as_data_has_it(x: Any, edges: Any, conv: nn.Module) -> Any:
    rows = conv(x["paper"], edges[CITES])
    return rows.relu() if part.rank else rows.relu() + conv(x["paper"], edges[CITES]) * 2


def centred(x: Any, edges: Any, conv: nn.Module) -> Any:
    rows = conv(x["paper"], edges[CITES])
    return rows - rows.mean(0)


width = part.spec(1).input_dims["paper"]
CASES = {
    "batch norm": lambda: merged(BatchNorm(4)),
    "torch's batch norm": lambda: merged(nn.BatchNorm1d(4)),
    "layer norm of the graph": lambda: merged(LayerNorm(4)),
    "pooling": lambda: merged(MeanAggregation()),
    "batch norm in a convolution": lambda: Model(
        lambda x, edges, conv: conv(x["paper"], edges[CITES]),
        GINConv(nn.Sequential(nn.Linear(width, 4), nn.BatchNorm1d(4)))),
    "batch norm of another type": lambda: Model(
        lambda x, edges, conv, norms: norms["author"](conv(x["paper"], edges[CITES])),
        SAGEConv(width, 4), nn.ModuleDict({"author": nn.BatchNorm1d(4)})),
    "edges put together": lambda: Model(as_one_graph, RGCNConv(width, 4, 8)),
    "one graph": lambda: Model(lambda x, edges, conv: conv(x["paper"], edges), SAGEConv(width, 4)),
    "one graph, another aggr": lambda: Model(lambda x, edges, conv: conv(
        x["paper"], edges, torch.zeros(edges.size(1))), RGCNConv(width, 4, 8, aggr="median")),
    "one graph, attention weights": lambda: Model(lambda x, edges, conv: conv(
        torch.zeros(sum(map(len, x.values())), width), edges, torch.zeros(edges.size(1)).long(),
        return_attention_weights=True)[0], RGATConv(width, 4, 8)),
    "edges by hand": lambda: Model(by_hand),
    "a mean over rows": lambda: Model(centred, SAGEConv(width, 4)),
    "attention weights": lambda: Model(attention, GATConv(width, 4, add_self_loops=False)),
    "workers that differ": lambda: Model(as_data_has_it, SAGEConv(width, 4)),
}
said = {}
for name, make in CASES.items():
    batch = next(iter(loader))
    try:
        model = dgl_heta_pyg.distribute(make(), part)
        model(batch.x_dict, batch.to_homogeneous(node_attrs=["n_id"]).edge_index
              if name.startswith("one graph") else batch.edge_index_dict)
        said[name] = "nothing"
    except dgl_heta.HetaError as error:
        said[name] = f"{type(error).__name__}: {error}"
model = dgl_heta_pyg.distribute(
    Model(lambda x, edges, conv: conv(x["paper"], edges[CITES]), SAGEConv(width, 4)), part)
batch = next(iter(loader))
calls = {
    "no edges": lambda: model(batch.x_dict, {}),
    "the model itself": lambda: model.module(batch.x_dict, batch.edge_index_dict),
    "an older batch": lambda: (next(iter(loader)), model(
        batch.x_dict, batch.edge_index_dict).sum().backward()),
    "a batch before backward": lambda: (lambda out: (next(iter(loader)), out.sum().backward()))(
        model(*(lambda b: (b.x_dict, b.edge_index_dict))(next(iter(loader))))),
    "gradients of one worker": lambda: torch.autograd.grad(
        model(*(lambda b: (b.x_dict, b.edge_index_dict))(next(iter(loader)))).sum(),
        list(model.parameters())),
    "other fanouts": lambda: dgl_heta_pyg.NeighborLoader(part, [3, 2 + part.rank], batch_size=6),
    "other seeds": lambda: dgl_heta_pyg.NeighborLoader(
        part, [3, 2], ("paper", range(12 + part.rank, 24 + part.rank)), batch_size=6),
    "a last step too small": lambda: dgl_heta_pyg.NeighborLoader(
        part, [3, 2], ("paper", range(13)), batch_size=6),
}
for name, call in calls.items():
    try:
        call()
        said[name] = "nothing"
    except dgl_heta.HetaError as error:
        said[name] = f"{type(error).__name__}: {error}"
print(json.dumps(said))
sys.stdout.flush()
os._exit(0)  # as docs/own-loop.md says
