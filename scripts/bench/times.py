"""Seconds of sampling with times by seconds without: the same seeds and fanouts, in turn.

    python scripts/bench/times.py [--orders 3000000] [--steps 20]

A made graph: orders with times, of customers and items. "At last": all seeds are at the last time,
so that the edges are as many as without times.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeArrays, GraphSource
from dgl_heta.planning.making import make_plan
from dgl_heta.sampling.blocks import MiniBatch
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.store import Store, write_store

CUSTOMERS, ITEMS, LAST, SEEDS, FANOUT, WARM = 200_000, 50_000, 10**8, 1024, 15, 5


def graph(orders: int, rng: np.random.Generator, timed: bool) -> GraphSource:
    """Orders, each of a customer and an item; a few of these have many."""
    ids = np.arange(orders)
    customer, item = ((rng.random(orders) ** 2 * count).astype(np.int64)
                      for count in (CUSTOMERS, ITEMS))
    return GraphSource(
        "shop", {"customer": CUSTOMERS, "item": ITEMS, "order": orders},
        {Relation("customer", "places", "order"): EdgeArrays(customer, ids),
         Relation("order", "of", "customer"): EdgeArrays(ids, customer),
         Relation("item", "in", "order"): EdgeArrays(item, ids),
         Relation("order", "has", "item"): EdgeArrays(ids, item)},
        times={"order": rng.integers(0, LAST, orders)} if timed else {})


def edges(batch: MiniBatch) -> int:
    """Edges of all layers."""
    return sum(len(part.indices) for block in batch.blocks for part in block.edges)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, default=3_000_000)
    parser.add_argument("--steps", type=int, default=20)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        stores = {}
        for timed in (False, True):
            source = graph(chosen.orders, np.random.default_rng(0), timed)
            begin = time.perf_counter()
            write_store(source, Path(name) / f"{timed}")
            print(f"written {'with' if timed else 'without'} times: "
                  f"{time.perf_counter() - begin:.1f} s")
            stores[timed] = Store(Path(name) / f"{timed}")
        print("| layers | edges without, with, at last | ratio | ratio at last |")
        print("|---|---|---|---|")
        for hops in (2, 3):
            compare(stores, hops, chosen.steps)


def compare(stores: dict[bool, Store], hops: int, steps: int) -> None:
    """Print the medians of so many steps."""
    rng = np.random.default_rng(1)
    plain, timed = (NeighborSampler(store, SamplingScope.of(
        make_plan(store.schema, "customer", hops, 1), 0), [FANOUT] * hops)
        for store in stores.values())
    ratios = []
    for step in range(WARM + steps):
        ids = rng.permutation(CUSTOMERS)[:SEEDS]
        seconds, counts = [], []
        for sampler, seeds in (
                (plain, ids), (timed, np.stack([ids, rng.integers(LAST // 2, LAST, SEEDS)], 1)),
                (timed, np.stack([ids, np.full(SEEDS, LAST)], 1))):
            begin = time.perf_counter()
            batch = sampler.sample({"customer": seeds}, step=step)
            seconds.append(time.perf_counter() - begin)
            counts.append(f"{edges(batch):,}")
        if step >= WARM:
            ratios.append([seconds[1] / seconds[0], seconds[2] / seconds[0]])
    one, last = map(median, zip(*ratios))
    print(f"| {hops} | {', '.join(counts)} | {one:.2f} | {last:.2f} |")


if __name__ == "__main__":
    main()
