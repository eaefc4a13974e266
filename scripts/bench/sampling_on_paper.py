"""What sampling a batch would take on more cores and on a GPU, on paper, from what it does here.

    python scripts/bench/sampling_on_paper.py [GRAPH …] [--work DIR]

Cores: the tasks that threads divide among them (pieces of relations, then node types) run one after
the other, and their processor times are dealt to N threads as the threads would take them. Of four
batches at once, as `pipeline` samples them, each has a quarter of the threads. Memory that all
cores wait for counts as nothing.

GPU: the layers of `train.batches = gpu` (plugins/hifuse) run on the CPU, where their blocks must be
those of the compiled sampler, bit for bit. Counted are operators that launch something, waits of
the host, bytes that go up and down, and bytes that operators read and write. Each of these is
multiplied by what it costs on an H100 as its data sheet and common measurements have it. No GPU has
run this, so the milliseconds are a guess; the counts are not.

An entry that an index leads to counts as a sector of memory, 32 bytes. Sorting counts as four
passes. Caches of the GPU count as nothing.
"""

from __future__ import annotations

import argparse
import heapq
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import machine, markdown
from sampling_threads import fingerprint, store_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dgl_heta.graph.source import TRAIN_MASK
from dgl_heta.planning.making import make_plan
from dgl_heta.sampling.blocks import MiniBatch
from dgl_heta.sampling.relation_samples import OnCores, Threads
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope

LAUNCH_S = 6e-6  # an operator of PyTorch, by the host
WAIT_S = 20e-6
MEMORY_BS = 2.0e12  # 60 % of 3.35 TB/s
LINK_BS = 25e9  # PCIe, pinned
SECTOR = 32
INDEXED = {"index", "gather", "scatter_", "scatter_reduce_", "index_copy_", "index_fill_"}
CORES = (2, 4, 8, 16)
AT_ONCE = 4  # plugins.pipeline.at_once
FREE = {"empty", "new_empty", "empty_like", "lift_fresh"}  # launch nothing


class Counting(TorchDispatchMode):
    """Counts operators and the bytes that they read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.operators, self.bytes = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[1]
        view = not func._schema.is_mutable and any(r.alias_info for r in func._schema.returns)
        if view or name in FREE:
            return made
        self.operators += 1
        given, out = _tensors(args), _tensors([made])
        if name in INDEXED:
            entries = max(t.numel() for t in given[1:])
            own = [t for t in given[1:] if t.dtype in (torch.int64, torch.int32)]
            self.bytes += SECTOR * entries + sum(t.nbytes for t in own)
            self.bytes += 0 if func._schema.is_mutable else sum(t.nbytes for t in out)
        else:
            times = 4 if name == "sort" else 1
            self.bytes += times * sum(t.nbytes for t in (*given, *out))
        return made


def _tensors(values: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _tensors(value)
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("graphs", nargs="*", metavar="GRAPH", default=[
        "synthetic-mag:scale=0.1", "synthetic-mag:scale=1.0", "synthetic-freebase:scale=0.1"])
    options.add_argument("--fanouts", nargs="+", type=int, default=[25, 20])
    options.add_argument("--seeds", type=int, default=1024)
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--work", type=Path, metavar="DIR", help="keep the stores here")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        rows = [measured(graph, chosen, chosen.work or Path(temporary)) for graph in chosen.graphs]
    cores, gpus = zip(*rows)
    print(markdown(["graph", "edges of a batch", "one thread, in one pass: ms",
                    *(f"{n} threads; {min(n, AT_ONCE)} batches at once" for n in CORES)], cores))
    print(markdown(["graph", "graph on the GPU, MB", "operators", "waits", "MB up", "MB down",
                    "MB read and written", "on paper: launches, ms", "memory", "link and waits",
                    "batch"], gpus))
    print(f"\nThe CPU is {machine()['cpu']}; processor time, least. On paper: an operator "
          f"{1e6 * LAUNCH_S:.0f} µs, a wait {1e6 * WAIT_S:.0f} µs, memory {MEMORY_BS / 1e12:.1f} "
          f"TB/s, link {LINK_BS / 1e9:.0f} GB/s. A batch takes its launches or its memory's time, "
          "whichever is longer, and link and waits.")


def measured(graph: str, chosen: argparse.Namespace, directory: Path
             ) -> tuple[list[str], list[str]]:
    """A row of each table."""
    store = store_of(graph, directory)
    assert store.manifest.task is not None
    target = store.manifest.task.target
    scope = SamplingScope.of(make_plan(store.schema, target, len(chosen.fanouts), 1), 0)
    train = np.flatnonzero(store.array(target, TRAIN_MASK))
    seeds = {target: np.random.default_rng(0).choice(train, min(chosen.seeds, len(train)),
                                                     replace=False)}
    sampler = NeighborSampler(store, scope, chosen.fanouts)
    alone = min(_seconds(sampler, seeds) for _ in range(chosen.rounds))
    want = sampler.sample(seeds)
    on_cores = min((on_several(sampler, seeds) for _ in range(chosen.rounds)),
                   key=lambda taken: taken[1])
    cells = [graph, f"{sum(len(e.indices) for block in want.blocks for e in block.edges):,}",
             f"{1e3 * alone:.1f}"]
    for n in CORES:
        batches = min(n, AT_ONCE)
        cells.append(f"{1e3 * on_cores[n]:.1f}; {1e3 * on_cores[n // batches] / batches:.1f}")
    return cells, on_gpu(graph, sampler, seeds, want)


def _seconds(sampler: NeighborSampler, seeds: dict[str, np.ndarray]) -> float:
    start = time.thread_time()
    sampler.sample(seeds)
    return time.thread_time() - start


def on_several(sampler: NeighborSampler, seeds: dict[str, np.ndarray]) -> dict[int, float]:
    """Seconds of a batch by the number of threads, from the processor times of its tasks."""
    layers = OnCores(sampler.counts, 2)
    layers._threads = tasks = Tasks()
    total = _seconds(sampler.on(layers), seeds)
    rest = total - sum(map(sum, tasks.lists))
    return {n: rest + sum(_dealt(taken, n) for taken in tasks.lists) for n in (1, *CORES)}


def _dealt(tasks: list[float], threads: int) -> float:
    """When the last of some tasks ends, of which each thread takes the next when it is free."""
    free = [0.0] * threads
    for seconds in tasks:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)


class Tasks(Threads):
    """Runs lists of tasks one after the other, and notes what each took."""

    def __init__(self) -> None:
        super().__init__(2)
        self.lists: list[list[float]] = []

    def run(self, tasks: Any) -> None:
        self.lists.append([])
        for task in tasks:
            start = time.thread_time()
            task()
            self.lists[-1].append(time.thread_time() - start)


def on_gpu(graph: str, sampler: NeighborSampler, seeds: dict[str, np.ndarray], want: MiniBatch
           ) -> list[str]:
    """A row of the table of GPUs."""
    from dgl_heta_hifuse.device_sampling import DeviceLayers

    layers = Noted(DeviceLayers, sampler)
    with Counting() as counted:
        got = sampler.on(layers.made).sample(seeds)
    if fingerprint(got) != fingerprint(want):
        raise SystemExit(f"{graph}: blocks are not those of the compiled sampler")
    waits = 2 * len(want.blocks) + 1
    down = sum(ids.nbytes for ids in got.input_nodes.values())
    launches, memory = counted.operators * LAUNCH_S, counted.bytes / MEMORY_BS
    link = (layers.up + down) / LINK_BS + waits * WAIT_S
    numbers = (launches, memory, link, max(launches, memory) + link)
    return [graph, f"{math.ceil(layers.made.bytes / 1e6):,}", str(counted.operators), str(waits),
            f"{layers.up / 1e6:.2f}", f"{down / 1e6:.2f}", f"{counted.bytes / 1e6:,.0f}",
            *(f"{1e3 * number:.2f}" for number in numbers)]


class Noted:
    """Layers on the CPU, and the bytes that would go up of a batch."""

    def __init__(self, layers: Any, sampler: NeighborSampler) -> None:
        self.up = 0
        self.made = layers(sampler, torch.device("cpu"))
        self.made.load()
        given = self.made.up

        def up(values: np.ndarray) -> Tensor:
            self.up += values.nbytes
            made: Tensor = given(values)
            return made

        self.made.up = up


if __name__ == "__main__":
    main()
