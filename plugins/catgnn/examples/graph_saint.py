"""GraphSAINT's node sampler (Zeng et al., 2020) for `dgl-heta catgnn train`.

A batch is the subgraph of nodes that are drawn by their squared norm in the normalised adjacency
matrix. A node's loss is weighted by how rarely it is drawn, so that its mean is that of all
training nodes. (The weights of edges are left as they are in the subgraph: scaled to the part's
degrees by the models.)

    dgl-heta catgnn train communities --model sage --parts 4 --batches graph_saint:GraphSaint
"""

import dgl
import torch
from dgl_heta_catgnn import PartBatches


class GraphSaint(PartBatches):
    def __init__(self, size=1000):
        self.size, self.chance = size, None

    def batches(self, graph, rng):
        if self.chance is None:
            src, dst = graph.edges()
            degree = graph.in_degrees().clamp(min=1).double()
            norm = torch.zeros(len(degree), dtype=torch.float64).index_add_(
                0, src, 1 / degree[dst] ** 2) + 1e-3 / len(degree)
            self.chance = norm / norm.sum()
        train = int(graph.ndata["train"].sum())
        for _ in range(max(graph.num_nodes() // self.size, 1)):
            drawn = torch.from_numpy(rng.choice(len(self.chance), self.size, p=self.chance))
            nodes, times = drawn.unique(return_counts=True)
            subgraph = dgl.node_subgraph(graph, nodes)
            weight = times / (self.chance[nodes] * self.size * train)
            subgraph.ndata["loss_weight"] = weight.to(graph.ndata["feat"].dtype)
            yield subgraph
