"""PyTorch Geometric's models of `beside_loop.py`; its layers over a batch of ours, for
`gpu_merged.py`."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dgl_heta import GraphSource, Task
from dgl_heta.sampling.blocks import Block, MiniBatch


def absent() -> list[str]:
    """What of PyTorch Geometric is here and what is not."""
    if importlib.util.find_spec("torch_geometric") is None:
        return ["PyTorch Geometric cannot be imported: no comparison"]
    import torch_geometric

    return [f"torch_geometric {torch_geometric.__version__}",
            *(f"{name} {'there' if importlib.util.find_spec(name) else 'absent'}"
              for name in ("pyg_lib", "torch_scatter", "torch_sparse"))]


def pyg_models(model: str, source: GraphSource, batch: MiniBatch, width: int, heads: int,
               task: Task) -> dict[str, nn.Module]:
    """The layers that PyTorch Geometric has for a model, by name; none where it is not there."""
    if importlib.util.find_spec("torch_geometric") is None:
        return {}
    from torch_geometric import nn as pyg

    number = len(source.edges)
    types = [t for t, ids in batch.input_nodes.items() if len(ids)]
    used = [tuple(e.relation) for block in batch.blocks for e in block.edges]
    metadata = types, list(dict.fromkeys(used))

    def hetero(block: Block) -> nn.Module:
        return make_layer(model, (types, [tuple(e.relation) for e in block.edges]), width, heads)

    one_graph: dict[str, Any] = {}
    by_type: dict[str, Any] = {}
    if model == "rgcn":
        one_graph = {"RGCNConv": lambda _: pyg.RGCNConv(width, width, number),
                     "FastRGCNConv": lambda _: pyg.FastRGCNConv(width, width, number)}
        by_type = {"HeteroConv of SAGEConv": hetero}
    elif model == "rgat":
        one_graph = {"RGATConv": lambda _: pyg.RGATConv(
            width, width // heads, number, heads=heads)}
        by_type = {"HeteroConv of GATConv": hetero}
    else:
        by_type = {"HGTConv": lambda _: make_layer(model, metadata, width, heads)}
    args = batch, task, width
    return {**{name: OneGraph(make, *args) for name, make in one_graph.items()},
            **{name: ByType(make, *args, bipartite=name != "HGTConv")
               for name, make in by_type.items()}}


def make_layer(model: str, metadata: tuple[list[str], list[Any]], width: int, heads: int
               ) -> nn.Module:
    """A layer over a tensor per node type and edges per relation, without the row itself but for
    HGT's."""
    from torch_geometric import nn as pyg

    convs = {
        "rgcn": lambda: pyg.SAGEConv(width, width, root_weight=False, bias=False),
        "rgat": lambda: pyg.GATConv(width, width // heads, heads, add_self_loops=False, bias=False)}
    if model == "hgt":
        layer: nn.Module = pyg.HGTConv(width, width, metadata, heads)
    else:
        layer = pyg.HeteroConv({relation: convs[model]() for relation in metadata[1]}, "sum")
    return layer


class Net(nn.Module):
    """Projections of features, layers, logits of the target's rows.

    Each layer trims what the next one does not need, as PyG's examples of large graphs do.
    """

    def __init__(self, model: str, metadata: tuple[list[str], list[Any]], widths: dict[str, int],
                 hidden: int, heads: int, layers: int, classes: int, target: str) -> None:
        import torch_geometric as pyg

        super().__init__()
        # Else PyG times two ways of HGTConv's products once, forward alone, and takes by chance one
        # whose backward pass is four times as slow.
        pyg.backend.use_segment_matmul = pyg.typing.WITH_SEGMM
        self.target = target
        self.project = nn.ModuleDict({t: nn.Linear(n, hidden) for t, n in widths.items()})
        self.layers = nn.ModuleList(make_layer(model, metadata, hidden, heads)
                                    for _ in range(layers))
        self.own = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers)
                                 if model != "hgt")
        self.head = nn.Linear(hidden, classes)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: Any, num_nodes: Any,
                num_edges: Any) -> Tensor:
        from torch_geometric.utils import trim_to_layer

        states = {t: self.project[t](x) if t in self.project else x for t, x in x_dict.items()}
        for number, layer in enumerate(self.layers):
            states, edge_index_dict, _ = trim_to_layer(number, num_nodes, num_edges, states,
                                                       edge_index_dict)
            merged = layer(states, edge_index_dict)
            if self.own:
                own = self.own[number]
                merged = {t: torch.relu(merged[t] + own(x) if t in merged else own(x))
                          for t, x in states.items()}
            states = merged
        out: Tensor = self.head(states[self.target])
        return out


class OneGraph(nn.Module):
    """Layers over nodes of all types in one numbering, with the relation of each edge."""

    def __init__(self, make: Any, batch: MiniBatch, task: Task, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(make(block) for block in batch.blocks)
        self.head = nn.Linear(width, task.num_classes)
        self.types = [t for t, ids in batch.input_nodes.items() if len(ids)]
        offsets, total = {}, 0
        for ntype in self.types:
            offsets[ntype] = total
            total += len(batch.input_nodes[ntype])
        self.first, self.seeds = offsets[task.target], len(batch.seeds[task.target])
        for i, block in enumerate(batch.blocks):
            ends = [torch.stack([e.indices.long() + offsets[e.relation.src],
                                 e.in_edges.rows() + offsets[e.relation.dst]])
                    for e in block.edges]
            self.register_buffer(f"edges{i}", torch.cat(ends, 1))
            self.register_buffer(f"relations{i}", torch.cat([
                torch.full((len(e.indices),), e.place, device=e.indices.device)
                for e in block.edges]))

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        x = torch.cat([inputs[t] for t in self.types])
        for i, layer in enumerate(self.layers):
            x = torch.relu(layer(x, getattr(self, f"edges{i}"), getattr(self, f"relations{i}")))
        out: Tensor = self.head(x[self.first:self.first + self.seeds])
        return out


class ByType(nn.Module):
    """Layers over a tensor per node type and edges per relation."""

    def __init__(self, make: Any, batch: MiniBatch, task: Task, width: int, bipartite: bool
                 ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(make(block) for block in batch.blocks)
        self.head, self.target, self.bipartite = (nn.Linear(width, task.num_classes), task.target,
                                                  bipartite)
        self.blocks, self.seeds = batch.blocks, len(batch.seeds[task.target])
        self.edges = [{tuple(e.relation): torch.stack([e.indices.long(), e.in_edges.rows()])
                       for e in block.edges} for block in batch.blocks]

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        x = dict(inputs)
        for layer, block, edges in zip(self.layers, self.blocks, self.edges):
            x = {t: torch.relu(rows) for t, rows in self._layer(layer, block, edges, x).items()
                 if rows is not None}
        out: Tensor = self.head(x[self.target][:self.seeds])
        return out

    def _layer(self, layer: nn.Module, block: Block, edges: Mapping[Any, Tensor],
               x: dict[str, Tensor]) -> dict[str, Tensor]:
        if not self.bipartite:
            kept: dict[str, Tensor] = layer(x, edges)
            return kept
        ends = {r: (x[r[0]], x[r[2]][:block.num_dst[r[2]]]) for r in edges}
        out: dict[str, Tensor] = layer(ends, edges)
        return out
