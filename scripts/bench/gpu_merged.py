"""Kernels launched by a training step, and its time: ours against PyTorch Geometric's layers.

    python scripts/bench/gpu_merged.py [--device cuda] [--graphs aifb mutag bgs am freebase mag]

A step is forward, loss and backward of two layers over one batch; the optimizer is left out.
Graphs are synthetic, with the numbers of HiFuse's Table 2, of Freebase and of ogbn-mag. The batch
has the first in-edges of each node, at most a fanout of them. For every system: kernels that
torch.profiler saw on the device (copies and fills by the driver apart), and the median of
synchronised steps, in turns. On a CPU operators are counted instead, those that call no other.

It needs PyTorch, NumPy, numba, pydantic and pluggy, and this tree with plugins/hifuse in
PYTHONPATH; no DGL. Where there is no network, bring what is missing in a directory:

    python -m pip install --target DIR --only-binary=:all: --python-version 3.12 \\
        pydantic pluggy numpy numba torch_geometric

PyTorch Geometric is measured where it can be imported. Its layers are those of its documentation:
R-GCN by RGCNConv, FastRGCNConv and HeteroConv of SAGEConv; R-GAT by RGATConv (R-GAT of Busbridge et
al., over all relations' edges) and HeteroConv of GATConv; HGT by HGTConv. They are other functions
than ours where the formulas differ, with the same graph, width and heads.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from dgl_heta_hifuse.kernel import MergedKernel
from dgl_heta_hifuse.shapes import SHAPES
from pyg_models import absent, pyg_models
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from dgl_heta import GraphSource
from dgl_heta.graph.datasets.synthetic import SHAPES as LARGE
from dgl_heta.models import HGNN, HGTLayer, ModelSpec, RGATLayer, RGCNLayer
from dgl_heta.nn import TorchKernel, use_kernel
from dgl_heta.sampling.blocks import Block, MiniBatch, RelationBlock
from dgl_heta.sampling.sampling_scope import by_destination
from dgl_heta.sampling.seeds import SeedShares
from dgl_heta.tools import generate

SCALES = {"aifb": 1.0, "mutag": 1.0, "bgs": 1.0, "am": 0.25, "freebase": 0.02, "mag": 0.1}
FEW = ("mag",)  # relations, so little to merge: not among the graphs that are measured by default
LAYERS = {"rgcn": RGCNLayer, "rgat": RGATLayer, "hgt": HGTLayer}
WIDTH, HEADS = 64, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="+", choices=SCALES,
                        default=[graph for graph in SCALES if graph not in FEW])
    parser.add_argument("--models", nargs="+", choices=LAYERS, default=list(LAYERS))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the graphs' own")
    parser.add_argument("--fanouts", nargs=2, type=int, default=[25, 20], help="input layer first")
    parser.add_argument("--seeds", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=20)
    chosen = parser.parse_args()
    if chosen.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no GPU here; --device cpu counts operators instead, which "
                         "says nothing of a GPU")
    device = torch.device(chosen.device, *([0] if chosen.device == "cuda" else []))
    what = "kernels" if chosen.device == "cuda" else "operators"
    said = [f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}" if what == "kernels" else
            "CPU: no figure of a GPU came of this run", f"torch {torch.__version__}",
            *absent()]
    print("| graph | relations | edges | model | system "
          f"| {what} | ms | {what} ÷ ours | ms ÷ ours |")
    print("| --- | ---: | ---: | --- | --- | ---: | ---: | ---: | ---: |")
    ratios: list[tuple[float, float]] = []
    for graph in chosen.graphs:
        source = generate(SHAPES.get(graph) or LARGE[graph], SCALES[graph] * chosen.scale)
        batch, edges = sampled(source, chosen.seeds, chosen.fanouts)
        for model in chosen.models:
            found = measured(source, batch, model, device, chosen.rounds)
            ours = found["merged"]
            for system, cells in found.items():
                ratio = ["", ""]
                if not isinstance(cells, str) and not isinstance(ours, str):
                    times = [a / b for a, b in zip(cells, ours)]
                    ratio = [f"{x:.2f}" for x in times]
                    if system.startswith("PyG"):
                        ratios.append((times[0], times[1]))
                shown = [cells, ""] if isinstance(cells, str) else [
                    f"{cells[0]:,.0f}", f"{cells[1]:.2f}"]
                print("|", " | ".join([graph, str(len(source.edges)), f"{edges:,}", model, system,
                                       *shown, *ratio]), "|", flush=True)
    if ratios:
        fewer, faster = (float(np.exp(np.mean(np.log(column)))) for column in zip(*ratios))
        print(f"\nMean over PyG's layers (geometric): {100 * (1 - 1 / fewer):.0f} % fewer {what}, "
              f"{faster:.2f} times as fast.")
    print("\n" + "; ".join(said))


def sampled(source: GraphSource, seeds: int, fanouts: list[int]) -> tuple[MiniBatch, int]:
    """A batch of two layers, and its edges: the first in-edges of each node, by NumPy alone."""
    task = source.task
    assert task is not None
    columns = {}
    for relation, edges in source.edges.items():
        src, dst = (np.concatenate(ends) for ends in zip(*edges.chunks(1 << 22)))
        order = np.argsort(dst, kind="stable")
        starts = np.searchsorted(dst[order], np.arange(source.node_counts[relation.dst] + 1))
        columns[relation] = starts, src[order]
    train = np.flatnonzero(source.node_arrays[task.target]["train_mask"])[:seeds]
    rows = {t: train if t == task.target else np.empty(0, np.int64) for t in source.node_counts}
    place = {t: np.full(n, -1, np.int64) for t, n in source.node_counts.items()}
    place[task.target][train] = np.arange(len(train))
    into, shares = by_destination(columns), {task.target: SeedShares((len(train),))}
    blocks, total = [], 0
    for layer in (2, 1):
        destinations = dict(rows)
        parts = []
        for number, (relation, (starts, sources)) in enumerate(columns.items()):
            nodes = destinations[relation.dst]
            if not len(nodes):
                continue
            degree = np.minimum(starts[nodes + 1] - starts[nodes], fanouts[layer - 1])
            indptr = np.concatenate([[0], np.cumsum(degree)])
            within = np.arange(indptr[-1]) - np.repeat(indptr[:-1], degree)
            ids = sources[np.repeat(starts[nodes], degree) + within]
            new = np.unique(ids[place[relation.src][ids] < 0])
            place[relation.src][new] = len(rows[relation.src]) + np.arange(len(new))
            rows[relation.src] = np.concatenate([rows[relation.src], new])
            parts.append(RelationBlock(
                relation, 0, torch.from_numpy(indptr),
                torch.from_numpy(place[relation.src][ids].astype(np.int32)), number))
            total += len(ids)
        blocks.append(Block(
            layer, {t: len(ids) for t, ids in rows.items()},
            {t: len(ids) for t, ids in destinations.items() if len(ids)}, parts,
            shares, layer == 2, into, into))
    own = {task.target: train}
    return MiniBatch(blocks[::-1], rows, own, own), total


def measured(source: GraphSource, batch: MiniBatch, model: str, device: torch.device, rounds: int
             ) -> dict[str, tuple[float, float] | str]:
    """Launches and milliseconds of a step by each system, or why there are none."""
    task = source.task
    assert task is not None
    torch.manual_seed(0)
    merged = MergedKernel()
    use_kernel(merged)  # this one, which prepares the batch before it is moved, and merges it then
    batch = copy.deepcopy(batch).to(device)
    spec = ModelSpec(source.schema(), dict.fromkeys(source.node_counts, WIDTH), frozenset(),
                     {task.target: task.num_classes}, 2, WIDTH, HEADS)
    inputs = {t: torch.randn(len(ids), WIDTH, device=device, requires_grad=True)
              for t, ids in batch.input_nodes.items() if len(ids)}
    labels = torch.from_numpy(source.node_arrays[task.target]["label"][batch.seeds[task.target]])
    labels = labels.clamp(min=0).to(device)
    ours: nn.Module = HGNN(spec, LAYERS[model]).to(device)

    def by(kernel: Any) -> Callable[[], Tensor]:
        def forward() -> Tensor:
            use_kernel(kernel)
            out: Mapping[str, Tensor] = ours(batch, inputs)
            return out[task.target]
        return forward

    systems: dict[str, tuple[nn.Module, Callable[[], Tensor]]] = {
        "torch": (ours, by(TorchKernel())), "merged": (ours, by(merged))}
    expected, got = (systems[name][1]().detach() for name in ("torch", "merged"))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    for name, layers in pyg_models(model, source, batch, WIDTH, HEADS, task).items():
        layers = layers.to(device)
        systems[f"PyG {name}"] = layers, lambda layers=layers: layers(inputs)  # type: ignore[misc]
    found: dict[str, tuple[float, float] | str] = {}
    steps: dict[str, Callable[[], None]] = {}
    for name, (module, forward) in systems.items():
        step = step_of(module, forward, labels, list(inputs.values()))
        try:
            for _ in range(3):
                step()
            found[name] = launches(step, device), 0.0
            steps[name] = step
        except torch.cuda.OutOfMemoryError:
            found[name] = "out of memory"
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            synchronize(device)
            start = time.perf_counter()
            step()
            synchronize(device)
            taken[name].append(1e3 * (time.perf_counter() - start))
    for name, times in taken.items():
        number = found[name][0]
        assert isinstance(number, int)
        found[name] = number, statistics.median(times)
    return found


def step_of(module: nn.Module, forward: Callable[[], Tensor], labels: Tensor,
            inputs: list[Tensor]) -> Callable[[], None]:
    def step() -> None:
        for tensor in (*module.parameters(), *inputs):
            tensor.grad = None
        torch.nn.functional.cross_entropy(forward(), labels).backward()
    return step


def launches(step: Callable[[], None], device: torch.device) -> int:
    """Kernels of a step on the device; on a CPU operators that call no other."""
    cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
                 ) as seen:
        step()
        synchronize(device)
    events = seen.events() or []
    if cuda:
        return sum(e.device_type == torch.autograd.DeviceType.CUDA
                   and not e.name.startswith(("Memcpy", "Memset")) for e in events)
    return sum(e.name.startswith("aten::") and not e.cpu_children for e in events)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
