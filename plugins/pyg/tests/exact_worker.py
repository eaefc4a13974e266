"""Trains every model for three steps on one worker of several; worker 0 writes what came of it."""

from __future__ import annotations

import copy
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import dgl_heta_pyg
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))
from drawn_models import drawn_models
from pyg_models import TARGET, OfTypes, models

LINKS = {"links": None, "links, pairs": {"mode": "binary", "amount": 1.5},
         "links, triplets": {"mode": "triplet", "amount": 2}}


def trained(name: str, model: Any, data: dgl_heta_pyg.PartitionData, saved: str) -> Any:
    """Losses of three steps, outputs and gradients of the first, and how often rows were sent."""
    part = data.part
    workers = part.world.size
    optimizer, rows = torch.optim.SGD(model.parameters(), lr=0.1), part.row_optimizer(lr=0.01)
    loader = dgl_heta_pyg.NeighborLoader(
        data, num_neighbors=[3, 2], input_nodes="train", batch_size=12 // workers)
    losses, first = [], {}
    for step, batch in enumerate(loader):
        if hasattr(model.module, "homogeneous"):
            one = batch.to_homogeneous(node_attrs=["n_id"])
            given = one.edge_index, one.edge_type, one.node_type
        else:
            more = [batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict]
            given = batch.edge_index_dict, *(more * (name == "trimmed"))
        out = model(batch.x_dict, *given)[:batch[TARGET].batch_size]
        loss = F.cross_entropy(out, batch[TARGET].y)
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            first = {n: p.grad.clone() for n, p in model.module.named_parameters()
                     if p.grad is not None}
            every = [out.detach()] * workers
            if workers > 1:
                torch.distributed.all_gather_object(every, out.detach())
            first["outputs"] = torch.cat(every)
        optimizer.step()
        rows.step()
        losses.append(part.world.all_reduce(loss.detach()[None]) / workers)
        if step == 1 and name == "HGTConv":  # goes on from what it saved
            model.save(saved, optimizer, 1)
            for parameter in model.parameters():
                parameter.data.zero_()
            assert model.resume(saved, optimizer) == 1
        if step == 1 and name in ("HANConv", "RGAT", "to_hetero mean"):  # goes on as a copy
            model = copy.deepcopy(model)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if step == 2:
            break
    (merging,) = model._merging
    assert model.proof is None or (model.proof.proved and not model.proof.told), (name, model.proof)
    counted = {n: x for n, x in model.module.named_buffers() if "running" in n}
    return {**first, **counted, "losses": torch.cat(losses)}, merging and merging._merged


def of_both(data: dgl_heta_pyg.PartitionData) -> Any:
    """Gradients and loss of a step with seeds of two types, of which workers have other numbers."""
    part, model = data.part, dgl_heta_pyg.distribute(OfTypes(data.metadata()), data)
    batch = next(iter(dgl_heta_pyg.NeighborLoader(
        data, [3, 2], "train", batch_size=14 // part.world.size)))
    out = model(batch.x_dict, batch.edge_index_dict)
    loss = torch.stack([batch.mean(F.cross_entropy(
        out[t][:batch[t].batch_size], batch[t].y, reduction="none"), t)
        for t in part.targets]).sum()
    loss.backward()
    part.row_optimizer().step()
    first = {n: p.grad for n, p in model.module.named_parameters() if p.grad is not None}
    total = part.world.all_reduce(loss.detach()[None]) / part.world.size
    return {**first, "losses": total}, None


def of_links(data: dgl_heta_pyg.PartitionData, negatives: Any) -> Any:
    """Gradients and loss of a step of links, whose ends several workers have."""
    part, model = data.part, dgl_heta_pyg.distribute(OfTypes(data.metadata(), norms=True), data)
    edges = ("author", "writes", "paper")
    links = torch.stack([torch.arange(40) % 37, torch.arange(40) * 7 % 120])
    loader = dgl_heta_pyg.LinkNeighborLoader(
        data, {r: [2, 3] if r[0] == "paper" else [3, -1] for r in data.edge_types},
        edge_label_index=(edges, links), edge_label=None if negatives else torch.arange(40.0) / 40,
        neg_sampling=negatives, batch_size=14 // part.world.size, shuffle=True)
    batch = next(iter(loader))
    out = model(batch.x_dict, batch.edge_index_dict)
    if isinstance(negatives, dict) and negatives["mode"] == "triplet":
        source, right = out["author"][batch["author"].src_index], batch["paper"].dst_pos_index
        wrong = (source[:, None] * out["paper"][batch["paper"].dst_neg_index]).sum(-1)
        losses = F.softplus(wrong - (source * out["paper"][right]).sum(-1)[:, None])
    else:
        of, label = batch[edges].edge_label_index, batch[edges].edge_label
        losses = F.binary_cross_entropy_with_logits(
            (out["author"][of[0]] * out["paper"][of[1]]).sum(-1), label, reduction="none")
    loss = batch.mean(losses)
    loss.backward()
    part.row_optimizer().step()
    first = {n: p.grad for n, p in model.module.named_parameters() if p.grad is not None}
    return {**first, "losses": part.world.all_reduce(loss.detach()[None]) / part.world.size}, None


def main(given: dict[str, Any]) -> None:
    data = dgl_heta_pyg.open_partition(given["part"], given["settings"])
    part, results = data.part, {}
    several = len(part.targets) > 1
    every = {} if several else {**models(data.metadata()), **drawn_models(data.metadata(), 20)}
    for name, make in every.items():
        tables: Any = part.learnable.tables().values()
        for table in tables:  # each model begins without moments
            table.first.zero_()
            table.second.zero_()
            table.step = 0
        torch.manual_seed(5 + part.rank)  # all have the parameters of worker 0
        made = make()
        if hasattr(made, "homogeneous"):  # finds its sizes
            made.inputs({t: torch.zeros(1, data[t].num_features) for t in data.node_types})
        results[name] = trained(name, dgl_heta_pyg.distribute(made, data), data,
                                given["out"] + ".saved")
    if several:
        torch.manual_seed(5 + part.rank)
        results["two targets"] = of_both(data)
        for name, negatives in LINKS.items():
            results[name] = of_links(data, negatives)
    if part.rank == 0:
        torch.save(results, given["out"])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_default_dtype(torch.float64)
    for graph in json.loads(sys.argv[1]):
        main(graph)
    sys.stdout.flush()
    os._exit(0)  # as docs/own-loop.md says
