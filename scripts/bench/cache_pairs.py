"""Is a feature cache ever slower than none? Pairs of steps in one process.

    python scripts/bench/cache_pairs.py debian synthetic-donor:scale=0.02

Two engines train the same steps in turns, one without a cache and one with; which goes first
alternates. Features are in the page cache, where a cache of RAM gains nothing, or are read directly
from the disk (`direct`). `gate off` caches also what was measured to gain nothing.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from common import CLI, finish, machine, markdown, parser, progress, run_child, work_dir

CASES = (("mapped", "gate on", "memory"), ("mapped", "gate off", "memory"),
         ("direct", "gate on", "memory"), ("mapped", "gate on", "disk"))


def main() -> None:
    options = parser(__doc__, "scripts/bench/cache_pairs.py debian")
    options.add_argument("graph", nargs="*")
    options.add_argument("--policies", nargs="+", default=["hotness", "miss_penalty", "density"])
    options.add_argument("--capacities", type=float, nargs="+", default=[0, 0.1, 0.5, 1],
                      help="as shares of all features")
    options.add_argument("--epochs", type=int, default=5)
    options.add_argument("--steps", type=int, default=10)
    args = options.parse_args()
    graphs = args.graph or ["debian", "synthetic-donor:scale=0.02"]
    if args.quick:
        graphs, args.policies, args.capacities, args.epochs = graphs[:1], ["density"], [0.5], 2
    before, parts, data = machine(), [], {}
    with work_dir(args) as directory:
        for number, graph in enumerate(graphs):
            path = directory / str(number)
            run_child([*CLI, "partition", graph, "--parts", "1", "--out", str(path), "--json"],
                      f"writing {graph}")
            data[graph] = [
                {"reads": reads, "gate": gate, "learnable": learnable, "policy": policy,
                 "capacity": capacity,
                 **pairs(args, path, reads, gate, learnable, policy, capacity)}
                for reads, gate, learnable in CASES for policy in args.policies
                for capacity in args.capacities]
            rows = [[r["reads"], r["gate"], r["learnable"], r["policy"], f"{r['capacity']:.0%}",
                     quartiles(r["ratios"]), f"{r['hits']:.0%}"] for r in data[graph]]
            parts.append(f"### {graph}\n\nTime with the cache ÷ without, "
                         f"{args.epochs * args.steps} pairs of steps, median (quartiles). What is "
                         "beside 0 % is the noise.\n\n" + markdown(
                             ["reads", "gate", "learnable features in", "policy", "capacity",
                              "with ÷ without", "rows in the cache"], rows))
    finish(args, "A cache against none", parts, {"graphs": data}, before)


def quartiles(ratios: list[float]) -> str:
    """The median with the quartiles around it."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.3f} ({low:.3f}–{high:.3f})"


def pairs(args: argparse.Namespace, partition: Path, reads: str, gate: str, learnable: str,
          policy: str, capacity: float) -> dict[str, object]:
    """Ratios of epochs' seconds of two engines, and the rate of hits."""
    from dgl_heta.hooks.manager import plugins
    from dgl_heta.partition.directory import open_partition
    from dgl_heta.settings import load_settings
    from dgl_heta.training.caches import attach
    from dgl_heta.training.setup import build_engine

    engines = []
    with tempfile.TemporaryDirectory(dir=partition.parent) as scratch:
        for name in ("none", policy):
            store, plan = open_partition(partition)
            settings = [f"cache.policy={name}", f"cache.reads={reads}",
                        f"cache.tables={learnable}",
                        f"cache.gate={str(gate == 'gate on').lower()}", "train.device=cpu",
                        "train.batch_size=512"]
            size = sum(store.array(t, "feat").nbytes for t in store.schema.node_types
                       if store.has_array(t, "feat")) + 3 * 64 * 4 * sum(
                store.schema.node_counts[t] for t in store.schema.node_types
                if not store.has_array(t, "feat"))
            settings.append(f"cache.capacity_mb={capacity * size / 1e6}")
            engine = build_engine(store, plan, load_settings(None, settings, {}), plugins(),
                            Path(scratch))
            attach(engine, Path(scratch) / "profiles")
            engines.append(engine)
        ratios = []
        for epoch in range(args.epochs + 1):
            for engine in engines:
                engine.start_epoch(epoch)
            for number, step in enumerate(engines[0].steps("train", epoch)[:args.steps]):
                seconds = [0.0, 0.0]
                for which in ((0, 1) if number % 2 else (1, 0)):
                    start = time.perf_counter()
                    chosen = engines[which]
                    with chosen.timed("sample"):
                        batch = chosen.sample(step, (epoch << 20) + number)
                    chosen.train_step(batch)
                    seconds[which] = time.perf_counter() - start
                if epoch:  # the first compiles and warms up
                    ratios.append(seconds[1] / seconds[0])
        counted = engines[1].part.caches.counted() if engines[1].part.caches else {}
    reads_of = sum(c["reads"] for c in counted.values())
    progress(f"{partition.name} {reads} {gate} {learnable} {policy} {capacity:.0%}: "
             f"{statistics.median(ratios):.3f}")
    return {"ratios": ratios, "hits": sum(c["hits"] for c in counted.values()) / reads_of
            if reads_of else 0.0}


if __name__ == "__main__":
    main()
