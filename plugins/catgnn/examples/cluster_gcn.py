"""Cluster-GCN (Chiang et al., 2019) as an algorithm for `dgl-heta catgnn train`.

A part is divided into clusters once, by SPRING; a batch is the subgraph of a few of them.

    dgl-heta catgnn train communities --model gcn --parts 4 --batches cluster_gcn:ClusterGCN
"""

import dgl
import torch
from dgl_heta_catgnn import EdgeStream, PartBatches, Spring


class ClusterGCN(PartBatches):
    def __init__(self, nodes=50, together=4):
        self.nodes, self.together = nodes, together    # of a cluster; clusters of a batch
        self.clusters = None

    def batches(self, graph, rng):
        if self.clusters is None:
            stream = EdgeStream.of_chunks([graph.edges()], graph.num_nodes())
            count = max(graph.num_nodes() // self.nodes, 1)
            of = torch.from_numpy(Spring().assign(stream, count).owner)
            self.clusters = [(of == i).nonzero().view(-1) for i in range(count)]
        order = rng.permutation(len(self.clusters))
        for first in range(0, len(order), self.together):
            chosen = [self.clusters[i] for i in order[first:first + self.together]]
            yield dgl.node_subgraph(graph, torch.cat(chosen))
