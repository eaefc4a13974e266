"""Trains on a graph with times on one worker of several; worker 0 writes what came of it."""

import os
import sys
import warnings
from typing import Any

import dgl_heta_pyg
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import SAGEConv, to_hetero


class Sage(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SAGEConv((-1, -1), 8), SAGEConv((-1, -1), 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


def with_age(batch: Any) -> dict[str, Tensor]:
    """Features that know how long ago each row was when it is seen."""
    return {t: x + ((batch[t].seed_time - batch[t].time) / 100.0)[:, None]
            if "time" in batch[t] else x for t, x in batch.x_dict.items()}


def main(directory: str, out_file: str, loading: str) -> None:
    data = dgl_heta_pyg.open_partition(directory, ["train.dtype=float64", "train.threads=1"])
    part, seeds = data.part, torch.load(loading)
    workers = part.world.size
    torch.manual_seed(3)
    model = dgl_heta_pyg.distribute(to_hetero(Sage(), data.metadata()), data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, of_links = [], []
    loader = dgl_heta_pyg.NeighborLoader(
        data, [3, 2], ("user", seeds["ids"]), batch_size=12 // workers, shuffle=True,
        input_time=seeds["times"], time_attr="time", temporal_strategy="uniform")
    for batch in loader:
        user = batch["user"]
        assert torch.equal(user.n_id[:user.batch_size], seeds["ids"][user.input_id])
        assert torch.equal(user.seed_time[:user.batch_size], seeds["times"][user.input_id])
        out = model(batch.x_dict, batch.edge_index_dict)
        losses.append(trained(model, optimizer, batch, F.cross_entropy(
            out["user"][:user.batch_size], user.y, reduction="none"), "user"))
    links = dgl_heta_pyg.LinkNeighborLoader(
        data, [3, 2], (("user", "views", "item"), seeds["views"]), neg_sampling="binary",
        edge_label_time=seeds["when"] - 1, batch_size=12 // workers, shuffle=True)
    for batch in links:
        of = batch["user", "views", "item"]
        out = model(with_age(batch), batch.edge_index_dict)
        of_links.append(trained(model, optimizer, batch, F.binary_cross_entropy_with_logits(
            (out["user"][of.edge_label_index[0]] * out["item"][of.edge_label_index[1]]).sum(1),
            of.edge_label, reduction="none")))
    assert model.proof is None or (model.proof.proved and not model.proof.told), model.proof
    many = torch.arange(40 * workers)  # a proof is of 32 of them
    (batch,) = dgl_heta_pyg.NeighborLoader(data, [3, 2], ("user", many % 25), batch_size=40,
                                           input_time=105 + many)
    again = dgl_heta_pyg.distribute(to_hetero(Sage(), data.metadata()), data)
    again(with_age(batch), batch.edge_index_dict)["user"].sum().backward()
    assert again.proof is None or (again.proof.proved and not again.proof.told), again.proof.told
    if part.rank == 0:
        torch.save({"losses": torch.stack(losses), "of links": torch.stack(of_links),
                    **model.module.state_dict()}, out_file)


def trained(model: Any, optimizer: Any, batch: Any, losses: Tensor, of: Any = None) -> Tensor:
    loss = batch.mean(losses, of)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    world = model.part.world
    total: Tensor = world.all_reduce(loss.detach()[None])[0] / world.size
    return total


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_default_dtype(torch.float64)
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # as docs/own-loop.md says
