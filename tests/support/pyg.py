"""A small HeteroData of PyG."""

from __future__ import annotations

import torch
from torch_geometric.data import HeteroData

PAPERS, AUTHORS, WRITES = 60, 20, ("author", "writes", "paper")


def hetero_data() -> HeteroData:
    """60 papers of 3 classes, which 20 authors have written."""
    torch.manual_seed(0)
    data, number = HeteroData(), torch.arange(PAPERS)
    paper = data["paper"]
    paper.x, paper.y, paper.title = torch.randn(PAPERS, 5), number % 3, ["a"] * PAPERS
    paper.train_mask, paper.val_mask = number < 40, number >= 50
    paper.test_mask = ~paper.train_mask & ~paper.val_mask
    data["author"].num_nodes = AUTHORS
    data[WRITES].edge_index = torch.stack([torch.arange(200) % AUTHORS, torch.arange(200) % PAPERS])
    data[WRITES].edge_attr = torch.randn(200, 2)
    return data
