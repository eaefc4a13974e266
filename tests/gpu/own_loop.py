"""A loop of one's own on a device, in double precision: prints the losses of some steps as JSON.

    python -m tests.gpu.own_loop PARTITION DEVICE LOOP

LOOP is a kernel of dgl-heta's models, or `pyg`, for a model of PyTorch Geometric. The GPU is
pretended, unless HETA_TESTS_GPU=1 asks for the machine's.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dgl_heta
from dgl_heta.nn import kernel_in_use
from tests.support.pretended import pretend

STEPS = 6


def main(directory: str, device: str, loop: str) -> None:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    settings = [f"train.device={device}", "train.dtype=float64", "model.hidden=8"]
    if loop == "pyg":
        import torch_geometric.nn  # noqa: F401  # asks PyTorch what its CUDA is, which is not there
    pretended = os.environ.get("HETA_TESTS_GPU") != "1" and device == "cuda"
    if pretended:
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    with pretend() if pretended else contextlib.nullcontext():
        losses, model, rows = (of_pyg if loop == "pyg" else of_blocks)(directory, settings, loop)
        optimizer, found = torch.optim.Adam(model.parameters(), lr=0.01), []
        while len(found) < STEPS:
            for loss in losses():
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                rows.step()
                found.append(float(loss.detach()))
        devices = {p.device.type for p in model.parameters()}
    print(json.dumps({"losses": found[:STEPS], "devices": [*devices],
                      "kernel": kernel_in_use().name}))
    sys.stdout.flush()
    os._exit(0)  # as docs/own-loop.md says


Loop = tuple[Callable[[], Iterator[Tensor]], nn.Module, Any]


def of_blocks(directory: str, settings: list[str], kernel: str) -> Loop:
    part = dgl_heta.open_partition(directory, [*settings, f"train.kernel={kernel}"])
    model = dgl_heta.distribute(dgl_heta.HGNN(part.spec(), dgl_heta.RGATLayer), part)
    loader = part.loader("train", [3, 3], batch_size=12)

    def losses() -> Iterator[Tensor]:
        for batch in loader:
            yield batch.mean(F.cross_entropy(model(batch)["paper"], batch.labels["paper"],
                                             reduction="none"))

    return losses, model, part.row_optimizer(lr=0.01)


def of_pyg(directory: str, settings: list[str], _: str) -> Loop:
    import dgl_heta_pyg
    from torch_geometric.nn import HeteroConv, SAGEConv

    class Sage(nn.Module):
        def __init__(self, relations: list[tuple[str, str, str]]) -> None:
            super().__init__()
            self.first, self.second = (HeteroConv({r: SAGEConv((-1, -1), width) for r in relations})
                                       for width in (8, 5))

        def forward(self, x: dict[str, Tensor], edges: dict[Any, Tensor]) -> dict[str, Tensor]:
            hidden = {t: rows.relu() for t, rows in self.first(x, edges).items()}
            out: dict[str, Tensor] = self.second(hidden, edges)
            return out

    data = dgl_heta_pyg.open_partition(directory, settings)
    loader = dgl_heta_pyg.NeighborLoader(
        data, num_neighbors=[3, 3], batch_size=12, shuffle=True,
        input_nodes=("paper", data["paper"].train_mask))
    model = dgl_heta_pyg.distribute(Sage(data.edge_types), data)

    def losses() -> Iterator[Tensor]:
        for batch in loader:
            out = model(batch.x_dict, batch.edge_index_dict)["paper"]
            yield F.cross_entropy(out[:batch["paper"].batch_size], batch["paper"].y)

    return losses, model, data.part.row_optimizer(lr=0.01)


if __name__ == "__main__":
    main(*sys.argv[1:])
