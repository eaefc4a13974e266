"""Kernels and waits of a step on the pretended device, by graph, model and kernel, as a table.

    python -m tests.support.pretended.layer_counts [--graphs synthetic-mag:scale=0.1 …]

A step of one worker with default settings (1,024 seeds, fanouts 25 and 20, 64 wide), the second
one; *f + b* is forward, loss and backward. Beside it forward, loss and backward of PyTorch
Geometric's layers over one graph, FastRGCNConv and RGATConv, where it is installed; on a batch of
32 seeds, because they have a weight in memory for each edge. Views launch nothing; every other
operator counts as a kernel, which a GPU may run as several.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

os.environ |= {"CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "1"}

import torch
from torch import Tensor, nn

from dgl_heta.sampling.blocks import MiniBatch
from dgl_heta.store import Store
from dgl_heta.training.engine import Engine
from tests.support.pretended import pretend
from tests.support.pretended.counts import COUNTS
from tests.support.pretended.engines import engine_of, written

GRAPHS = ("synthetic-mag:scale=0.1", "synthetic-freebase:scale=0.05")
PYG = {"rgcn": "FastRGCNConv", "rgat": "RGATConv"}
WIDTH, HEADS = 64, 4
Counted = tuple[int, int]
"""Kernels and waits."""


class OneGraph(nn.Module):
    """Two layers of PyG over nodes of all types in one numbering, and a head."""

    def __init__(self, model: str, batch: MiniBatch, target: str, relations: int) -> None:
        from torch_geometric import nn as pyg

        super().__init__()
        make = {"rgcn": lambda: pyg.FastRGCNConv(WIDTH, WIDTH, relations),
                "rgat": lambda: pyg.RGATConv(WIDTH, WIDTH // HEADS, relations, heads=HEADS)}[model]
        self.layers = nn.ModuleList(make() for _ in batch.blocks)
        self.head = nn.Linear(WIDTH, 8)
        starts, total = {}, 0
        for ntype, ids in batch.input_nodes.items():
            starts[ntype], total = total, total + len(ids)
        self.seeds = slice(starts[target], starts[target] + len(batch.seeds[target]))
        self.edges = [(
            torch.cat([torch.stack([e.indices.long() + starts[e.relation.src],
                                    e.rows_at(e.in_edges.rows()) + starts[e.relation.dst]])
                       for e in block.edges], 1),
            torch.cat([torch.full((len(e.indices),), e.place) for e in block.edges]))
            for block in batch.blocks]

    def forward(self, inputs: list[Tensor]) -> Tensor:
        x = torch.cat(inputs)
        for layer, (edges, kinds) in zip(self.layers, self.edges):
            x = torch.relu(layer(x, edges.to(x.device), kinds.to(x.device)))
        out: Tensor = self.head(x[self.seeds])
        return out


def of_pyg(model: str, engine: Engine, batch: MiniBatch) -> Counted | None:
    """Counts of PyG's layers; None without PyG or such a layer."""
    if model not in PYG or importlib.util.find_spec("torch_geometric") is None:
        return None
    (target,) = engine.plan.targets
    made = OneGraph(model, batch, target, len(engine.store.schema.relations))
    made.to(engine.device)
    made.edges = [(a.to(engine.device), b.to(engine.device)) for a, b in made.edges]
    inputs = [torch.randn(len(ids), WIDTH).to(engine.device).requires_grad_()
              for ids in batch.input_nodes.values() if len(ids)]
    labels = torch.zeros(len(batch.seeds[target]), dtype=torch.int64).to(engine.device)
    COUNTS.clear()
    nn.functional.cross_entropy(made(inputs), labels).backward()
    return COUNTS.kernels.total(), COUNTS.syncs.total()


def of_step(engine: Engine) -> dict[str, Any]:
    """Counts of a training step, and of its forward and backward pass."""
    found = {"step": (0, 0), "inner": (0, 0)}
    timed, stages = engine.timed, Counter[str]()

    class Stage:
        def __init__(self, name: str) -> None:
            self.name, self.body = name, timed(name)

        def __enter__(self) -> None:
            self.before = COUNTS.kernels.total(), COUNTS.syncs.total()
            self.body.__enter__()

        def __exit__(self, *error: Any) -> None:
            self.body.__exit__(*error)
            stages[self.name] += 1
            now = COUNTS.kernels.total(), COUNTS.syncs.total()
            if self.name in ("forward", "backward"):
                found["inner"] = tuple(  # type: ignore[assignment]
                    x + b - a for x, a, b in zip(found["inner"], self.before, now))

    engine.timed = Stage  # type: ignore[method-assign, assignment]
    for number, step in enumerate(engine.steps("train", 1)[:2]):
        found["inner"] = 0, 0
        COUNTS.clear()
        engine.train_step(engine.sample(step, number))
    found["step"] = COUNTS.kernels.total(), COUNTS.syncs.total()
    assert stages["forward"] == 4, stages  # of two steps, each the model's and the loss's
    return {**found, "problems": [" | ".join(key) for key in COUNTS.problems]}


def counted(store: Store, model: str, kernels: list[str]) -> dict[str, Any]:
    """Counts by kernel, and of PyG's layers."""
    name = f"model.name={model}"
    found: dict[str, Any] = {kernel: of_step(engine_of(store, name, f"train.kernel={kernel}"))
                             for kernel in kernels}
    few = engine_of(store, name, "train.batch_size=32")
    first = few.steps("train", 1)[0]
    found["pyg"] = of_pyg(model, few, few.loading.sampled(few._sampler, first, 0))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS), metavar="NAME")
    parser.add_argument("--models", nargs="+", default=["rgcn", "rgat", "hgt"])
    parser.add_argument("--kernels", nargs="+", default=["fused", "merged"])
    parser.add_argument("--json", type=Path, help="also write all counts here")
    chosen = parser.parse_args()
    if importlib.util.find_spec("torch_geometric") is not None:
        import torch_geometric.nn  # noqa: F401  # asks PyTorch what its CUDA is, which is not there
    everything = []
    print("| graph | model | kernel | step: kernels | step: waits | f + b: kernels | f + b: waits |"
          "\n| --- | --- | --- | ---: | ---: | ---: | ---: |")
    with pretend(), tempfile.TemporaryDirectory() as path:
        for number, graph in enumerate(chosen.graphs):
            store = written(graph, Path(path) / str(number))
            for model in chosen.models:
                found = counted(store, model, chosen.kernels)
                everything.append({"graph": graph, "model": model, **found})
                rows = [(kernel, *found[kernel]["step"], *found[kernel]["inner"])
                        for kernel in chosen.kernels]
                if found["pyg"] is not None:
                    rows.append((f"PyG {PYG[model]}", "", "", *found["pyg"]))
                for name, *cells in rows:
                    print(f"| {graph.removeprefix('synthetic-')} | {model} | {name} | "
                          f"{' | '.join(f'{x:,}' if x != '' else '' for x in cells)} |", flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps(everything))


if __name__ == "__main__":
    main()
