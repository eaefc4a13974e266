"""Sampling a batch on one thread and on several, in turns, on graphs with 7 to 108 relations.

    python scripts/bench/sampling_threads.py [--threads 1 2] [--at-once 1 2] [--rounds 15]

For every graph: milliseconds of a batch, the least and the median over the rounds, and of the
processor (least). With `--at-once` also of several batches that are sampled side by side, as
`pipeline` does, over their number; and the median of the rounds' ratios to the first column. Blocks
must agree bit for bit first. What it leaves out: training beside it. The figures mean something
only where as many cores are free as there are threads.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from common import machine, markdown, progress

from dgl_heta.graph.datasets import load_dataset
from dgl_heta.graph.source import TRAIN_MASK
from dgl_heta.hooks.manager import plugins
from dgl_heta.planning.making import make_plan
from dgl_heta.sampling.blocks import MiniBatch
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.store import Store, write_store

GRAPHS = ("synthetic-mag:scale=0.1", "synthetic-freebase:scale=0.1", "synthetic-am:scale=0.5")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="*", default=GRAPHS, metavar="GRAPH")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--at-once", nargs="+", type=int, default=[1])
    parser.add_argument("--fanouts", nargs="+", type=int, default=[25, 20])
    parser.add_argument("--seeds", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--work", type=Path, metavar="DIR", help="keep the stores here")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    before = os.getloadavg()
    with tempfile.TemporaryDirectory() as temporary:
        rows = [measured(graph, chosen, chosen.work or Path(temporary)) for graph in chosen.graphs]
    header = ["graph", "relations", "edges of a batch"]
    for threads in chosen.threads:
        for batches in chosen.at_once:
            name = str(threads) if batches == 1 else f"{threads}, {batches} batches"
            header += [f"{name}: least", "median", "processor", "× first"]
    print(markdown(header, rows))
    print(f"\nMilliseconds. {machine()['cpu']}; load (1, 5, 15 min) {before} before, "
          f"{os.getloadavg()} after.")


def measured(graph: str, chosen: argparse.Namespace, directory: Path) -> list[str]:
    """A row of the table."""
    store = store_of(graph, directory)
    assert store.manifest.task is not None
    target = store.manifest.task.target
    scope = SamplingScope.of(make_plan(store.schema, target, len(chosen.fanouts), 1), 0)
    train = np.flatnonzero(store.array(target, TRAIN_MASK))
    rng = np.random.default_rng(0)
    batches = [{target: rng.choice(train, min(chosen.seeds, len(train)), replace=False)}
               for _ in range(3)]
    samplers = {n: NeighborSampler(store, scope, chosen.fanouts, threads=n)
                for n in chosen.threads}
    for seeds in batches:
        found = {fingerprint(sampler.sample(seeds)) for sampler in samplers.values()}
        if len(found) > 1:
            raise SystemExit(f"{graph}: blocks differ by the number of threads")
    taken: dict[tuple[int, int], list[tuple[float, float]]] = {
        (n, at_once): [] for n in samplers for at_once in chosen.at_once}
    with ThreadPoolExecutor(max(chosen.at_once)) as pool:
        for turn in range(chosen.rounds):
            for n, at_once in taken:
                given = [batches[(turn + i) % len(batches)] for i in range(at_once)]
                start, cpu = time.perf_counter(), time.process_time()
                made = [samplers[n].sample(given[0])] if at_once == 1 else [
                    *pool.map(samplers[n].sample, given)]
                taken[n, at_once].append(((time.perf_counter() - start) / at_once,
                                          (time.process_time() - cpu) / at_once))
    cells = [graph, str(len(store.schema.relations)),
             f"{sum(len(e.indices) for block in made[0].blocks for e in block.edges):,}"]
    first = [wall for wall, _ in next(iter(taken.values()))]
    for times in taken.values():
        wall, processor = zip(*times)
        cells += [f"{1e3 * x:.1f}" for x in (min(wall), statistics.median(wall), min(processor))]
        cells.append(f"{statistics.median(a / b for a, b in zip(first, wall)):.2f}")
    return cells


def store_of(graph: str, directory: Path) -> Store:
    """The store of a synthetic graph, written there if it is not there yet."""
    name, _, options = graph.partition(":")
    path = directory / graph.replace(":", "-").replace(",", "-").replace("=", "-")
    if not Store.is_store(path):
        progress(f"{graph} …")
        write_store(load_dataset(plugins().get("dataset", name), options), path)
    return Store(path)


def fingerprint(batch: MiniBatch) -> str:
    digest = hashlib.sha256()
    for block in batch.blocks:
        for edges in block.edges:
            digest.update(edges.indptr.numpy().tobytes() + edges.indices.numpy().tobytes())
    for ids in batch.input_nodes.values():
        digest.update(ids.tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main()
