"""Models of which a proof is hard; every worker prints what is said, and what was proved."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import dgl_heta_pyg
import torch
from torch import nn
from torch_geometric.nn import RGCNConv, SAGEConv

import dgl_heta

warnings.simplefilter("ignore")
torch.set_default_dtype(torch.float64)
SETTINGS = ["model.hidden=8", "train.threads=1", "train.dtype=float64"]
CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")


class Model(nn.Module):
    def __init__(self, width: int, outputs: Callable[..., Any]) -> None:
        super().__init__()
        self.conv, self.outputs, self.alpha = SAGEConv(width, 4), outputs, 1.0

    def forward(self, x: Any, edges: Any, *more: Any) -> Any:
        rows = x if isinstance(x, torch.Tensor) else x["paper"]
        return self.outputs(self.alpha * self.conv(rows, edges[CITES]), x, *more)


class OneGraph(nn.Module):
    """Returns the rows of all types, one type after the other."""

    def __init__(self, widths: Mapping[str, int], relations: int) -> None:
        super().__init__()
        self.lins = nn.ModuleDict({t: nn.Linear(width, 4) for t, width in widths.items()})
        self.conv = RGCNConv(4, 4, relations)

    def forward(self, x: Any, edges: Any, of_edges: Any) -> Any:
        rows = torch.cat([self.lins[t](rows) for t, rows in x.items()])
        return self.conv(self.conv(rows, edges, of_edges).relu(), edges, of_edges)


def as_one(batch: Any) -> Any:
    one = batch.to_homogeneous(node_attrs=["n_id"])
    return batch.x_dict, one.edge_index, one.edge_type


def said_of(part: Any, loader: Any, outputs: Any, given: Callable[[Any], Any] | None = None,
            steps: int = 1) -> Any:
    model = dgl_heta_pyg.distribute(outputs if isinstance(outputs, nn.Module) else Model(
        part.spec(1).input_dims["paper"], outputs), part)
    try:
        for step, batch in enumerate(loader):
            if step == steps:
                break
            vars(model.module)["alpha"] = 1 / (1 + step)
            out = model(*(given(batch) if given else (batch.x_dict, batch.edge_index_dict)))
            next(iter(torch.utils._pytree.tree_flatten(out)[0])).sum().backward()
            part.row_optimizer().step()
    except dgl_heta.HetaError as error:
        return str(error)
    proof: Any = model.proof
    return [proof.proved, proof.told]


def main(paper: str, two: str) -> None:
    part = dgl_heta.open_partition(paper, [*SETTINGS, "run.prove=every 1"])
    loader = dgl_heta_pyg.NeighborLoader(part, [3, 2], "train", batch_size=6)
    said = {
        "rows of another type, too": said_of(part, loader, lambda rows, x: (rows, x["author"])),
        "under other names": said_of(
            part, loader, lambda rows, x: {"logits": rows, "emb": x["author"]}),
        "numbers of types": said_of(
            part, loader, lambda rows, x, ones, weights: rows * ones["paper"] * weights[CITES],
            lambda batch: (batch.x_dict, batch.edge_index_dict, {"paper": torch.ones(4)},
                           {CITES: torch.ones(4)})),
        "numbers that change": said_of(part, loader, lambda rows, x: rows, steps=3),
        "rows that the script made": said_of(
            part, loader, lambda rows, x: rows, lambda batch: (
                {t: 2 * x for t, x in batch.x_dict.items()}, batch.edge_index_dict)),
        "arrays of edges": said_of(
            part, loader, lambda rows, x, arrays: rows, lambda batch: (
                batch.x_dict, batch.edge_index_dict, batch.collect("edge_attr"))),
        "rows alone": said_of(part, loader, lambda rows, x: rows,
                              lambda batch: (batch["paper"].x, batch.edge_index_dict)),
        "all rows of one graph": said_of(part, loader, OneGraph(
            part.spec(1).input_dims, len(part.schema.relations)), as_one),
        "a number of one worker": said_of(
            part, loader, lambda rows, x, many: rows * many,
            lambda batch: (batch.x_dict, batch.edge_index_dict, 1 + part.rank)),
    }
    part = dgl_heta.open_partition(two, [*SETTINGS, 'task.targets=["paper","author"]'])
    links = torch.stack([torch.arange(40) % 3, torch.arange(40)])
    pairs = dgl_heta_pyg.LinkNeighborLoader(part, [3, 2], (CITES, links), batch_size=7)
    seeds = dgl_heta_pyg.NeighborLoader(part, [3, 2], "train", batch_size=6)
    said["scores of links"] = said_of(
        part, pairs, lambda rows, x, ends: (rows[ends[0]] * rows[ends[1]]).sum(-1),
        lambda batch: (batch.x_dict, batch.edge_index_dict, batch[CITES].edge_label_index))
    said["wrong rows of two targets"] = said_of(
        part, seeds, lambda rows, x: (rows - rows.mean(0), x["author"]))
    print(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # as docs/own-loop.md says
