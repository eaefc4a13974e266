"""Sampling a batch on one thread and on several, in turns, on graphs with 7 to 108 relations.

    python scripts/bench/sampling_threads.py [--threads 1 2] [--rounds 15] [--work DIR]

For every graph: milliseconds of a batch, the least and the median over the rounds, and of the
processor (least). Blocks must agree bit for bit first. What it leaves out: training beside it. The
figures mean something only where as many cores are free as there are threads.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import tempfile
import time
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
        header += [f"{threads}: least", "median", "processor"]
    print(markdown(header, rows))
    print(f"\nMilliseconds. {machine()['cpu']}; load (1, 5, 15 min) {before} before, "
          f"{os.getloadavg()} after.")


def measured(graph: str, chosen: argparse.Namespace, directory: Path) -> list[str]:
    """A row of the table."""
    name, _, options = graph.partition(":")
    path = directory / graph.replace(":", "-").replace(",", "-").replace("=", "-")
    if not Store.is_store(path):
        progress(f"{graph} …")
        write_store(load_dataset(plugins().get("dataset", name), options), path)
    store = Store(path)
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
    taken: dict[int, list[tuple[float, float]]] = {n: [] for n in samplers}
    for turn in range(chosen.rounds):
        for n, sampler in samplers.items():
            start, cpu = time.perf_counter(), time.process_time()
            batch = sampler.sample(batches[turn % len(batches)])
            taken[n].append((time.perf_counter() - start, time.process_time() - cpu))
    cells = [graph, str(len(store.schema.relations)),
             f"{sum(len(e.indices) for block in batch.blocks for e in block.edges):,}"]
    for times in taken.values():
        wall, processor = zip(*times)
        cells += [f"{1e3 * x:.1f}" for x in (min(wall), statistics.median(wall), min(processor))]
    return cells


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
