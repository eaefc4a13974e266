"""Cache policies: epoch time and hit rate against capacity, features larger than memory.

    python scripts/bench/cache.py                                   # all of it, about 40 minutes
    python scripts/bench/cache.py --graph donor --capacities 1      # one shape, one capacity

Epoch and hit rate as pictures: `paper.py heta-fig11 heta-fig12`.

One worker trains R-GCN in a memory control group that holds the process and a quarter of its
features; learnable features are in files, too. So the slow tier are memory-mapped
files on a cold disk, with the page cache that the limit leaves; what a cache takes, the page cache
loses. With `--reads direct` rows below the cache are read past the page cache. Every round runs
every configuration in a process of its own; the first epoch of each warms up and is not counted.
Needs root and control groups (version 1) for memory; elsewhere nothing is limited, and the report
says so.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from common import CLI, Column, finish, machine, parser, progress, run_child, table, work_dir

GRAPHS = {"donor": "synthetic-donor:scale=0.04", "mag240m": "synthetic-mag240m:scale=0.005"}
POLICIES = ("degree", "hotness", "miss_penalty", "density", "fifo", "clock")
GROUP = Path("/sys/fs/cgroup/memory/dgl-heta-bench")
BATCH = {"donor": 512, "mag240m": 128}
COLUMNS = (Column("s/epoch", "seconds"), Column("of it fetching", "fetch"),
           Column("times as fast as none", "faster"),
           Column("rows in the cache, %", "found", 100, 0),
           Column("times as fast as hotness", "hotness"))
OF_TYPES = (Column("rows in the cache, %", "hits", 100, 0),
            Column("a miss, ns per byte", "penalty", 1e9, 1))
SHARE = 0.25  # of the features has room in memory
SLACK_MB = 200  # of the limit, beside what the process needs and the share of its features


def child(job: dict[str, Any]) -> None:
    """Train some steps an epoch, and print what they took."""
    if job["limited"]:
        (GROUP / "tasks").write_text(str(os.getpid()))
    from dgl_heta.hooks.manager import plugins
    from dgl_heta.partition.directory import open_partition
    from dgl_heta.settings import load_settings
    from dgl_heta.training.caches import attach
    from dgl_heta.training.setup import build_engine

    store, plan = open_partition(job["partition"])
    engine = build_engine(store, plan, load_settings(None, job["settings"], {}), plugins(),
                    Path(job["scratch"]))
    caches = attach(engine, Path(job["scratch"]) / "profiles")
    if job["evict"]:
        for path in Path(job["partition"]).rglob("*.npy"):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    seconds, fetch, losses = [], [], []
    for epoch in range(job["epochs"] + 1):
        engine.start_epoch(epoch)
        started = time.perf_counter()
        for totals in engine.train(engine.steps("train", epoch)[:job["steps"]], epoch << 20):
            losses.append(float(totals[0]))
        seconds.append(time.perf_counter() - started)
        fetch.append(engine.seconds["fetch"])
    print(json.dumps({
        "seconds": seconds[1:], "fetch": fetch[1:], "losses": losses,
        "bytes": sum(s.shape[0] * s.shape[1] * s.dtype.itemsize
                     for s in engine.static.sources.values()) + engine.learnable.bytes,
        "whole": len(engine.steps("train")), "reads": engine.static.reads,
        "cache": caches.counted() if caches else {},
        "profile_seconds": caches.seconds if caches else 0.0,
        "penalties": caches.penalties if caches else {}}))
    sys.stdout.flush()
    os._exit(0)


class Bench:
    """Runs configurations of one graph."""

    def __init__(self, args: argparse.Namespace, name: str, directory: Path) -> None:
        self.args, self.name = args, name
        self.partition = directory / name
        spec = GRAPHS.get(name, name)
        if args.quick and name in GRAPHS:
            spec = spec.partition(":")[0] + (":scale=0.002" if name == "donor" else
                                             ":scale=0.0005")
        run_child([*CLI, "partition", spec, "--parts", "1", "--out", str(self.partition), "--json"],
                  f"writing {spec}")
        self.scratch = directory / f"{name}-scratch"
        self.scratch.mkdir()
        self.limited = _make_group()
        self.spec = spec
        self.batch = 64 if args.quick else BATCH.get(name, 512)
        first = self.run("none", 0.0, limit=None)
        self.bytes = first["bytes"]
        self.base_mb = first["anon_mb"]
        self.limit = int((self.base_mb + SLACK_MB) * 1e6 + SHARE * self.bytes)

    def run(self, policy: str, capacity_mb: float, limit: int | None) -> dict[str, Any]:
        """One process; its epochs' seconds and the rest that `child` prints."""
        args = self.args
        if self.limited:
            _set_limit(limit)
            Path("/proc/sys/vm/drop_caches").write_text("1")
        settings = [
            f"cache.policy={policy}", f"cache.capacity_mb={capacity_mb}",
            f"cache.reads={args.reads}", "cache.tables=disk", "model.hidden=64",
            f"train.batch_size={self.batch}", "train.fanouts=25,20",
            "train.device=cpu", "cache.epochs=0.5"]
        job = {"partition": str(self.partition), "scratch": str(self.scratch),
               "settings": settings, "limited": self.limited and limit is not None,
               "epochs": args.epochs, "steps": args.steps, "evict": self.limited}
        child = run_child([sys.executable, __file__, "--child", json.dumps(job)],
                          f"{self.name} {policy} {capacity_mb:,.0f} MB", timeout=900)
        return {**child.result, "anon_mb": child.anon_mb}

    def all(self) -> list[dict[str, Any]]:
        """Every policy and capacity, round after round, each round with its own `none`."""
        budget = SHARE * self.bytes / 1e6
        runs = []
        for turn in range(self.args.rounds):
            base = self.run("none", 0.0, self.limit)
            runs.append({"round": turn, "policy": "none", "share": 0.0, **base})
            for share in self.args.capacities:
                for policy in self.args.policies:
                    run = self.run(policy, share * budget, self.limit)
                    if run["losses"] != base["losses"]:
                        sys.exit(f"error: {policy} gives other losses than none")
                    ratio = statistics.median(base["seconds"]) / statistics.median(
                        run["seconds"])
                    progress(f"  {ratio:.2f} times as fast as no cache")
                    runs.append({"round": turn, "policy": policy, "share": share,
                                 "speedup": ratio, **run})
        return [{k: v for k, v in run.items() if k != "losses"} for run in runs]


def rows_of(bench: Bench, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each run, and one for each node type that it caches."""
    rows = []
    for run in runs:
        mb = run["share"] * SHARE * bench.bytes / 1e6
        row = {"graph": bench.name, "policy": run["policy"], "capacity, MB": f"{mb:,.0f}",
               "seconds": statistics.median(run["seconds"]),
               "fetch": statistics.median(run["fetch"]), "faster": run.get("speedup", 1.0)}
        hot = next((r for r in runs if r["policy"] == "hotness" and
                    (r["round"], r["share"]) == (run["round"], run["share"])), None)
        if hot is not None:
            row["hotness"] = statistics.median(hot["seconds"]) / row["seconds"]
        reads = sum(c["reads"] for c in run["cache"].values())
        if reads:
            row["found"] = sum(c["hits"] for c in run["cache"].values()) / reads
        rows.append(row)
        rows += [{**{k: row[k] for k in ("graph", "policy", "capacity, MB")}, "type": ntype,
                  "hits": of["hits"] / max(of["reads"], 1), "penalty": run["penalties"].get(ntype)}
                 for ntype, of in run["cache"].items()]
    return rows


def report(bench: Bench, runs: list[dict[str, Any]], rows: list[dict[str, Any]]) -> str:
    """The report on one graph."""
    args, by = bench.args, ("policy", "capacity, MB")
    limit = f"limit {bench.limit / 1e6:,.0f} MB" if bench.limited else "no limit of memory"
    profiled = [r["profile_seconds"] for r in runs if r["policy"] != "none"][:1]
    whole = runs[0]["whole"]
    epoch = statistics.median(
        s for r in runs if r["policy"] == "none" for s in r["seconds"]) * whole / args.steps
    return (
        f"### {bench.name}: {bench.spec}\n\nFeatures {bench.bytes / 1e6:,.0f} MB, {limit} (process "
        f"{bench.base_mb:,.0f} MB), rows below the cache {runs[0]['reads']}; {args.rounds} rounds "
        f"of {args.epochs} epochs of {args.steps} steps of {bench.batch} seeds. Median "
        "(least–largest).\n\n" + table([r for r in rows if "type" not in r], by, COLUMNS)
        + "\n\n" + table([r for r in rows if "type" in r], (*by, "type"), OF_TYPES)
        + "".join(f"\n\nThe first profile took {s:.2f} s, {s / epoch:.2f} of a whole epoch "
                  f"({whole} steps) without a cache." for s in profiled))


def _make_group() -> bool:
    try:
        GROUP.mkdir(exist_ok=True)
        return os.access("/proc/sys/vm/drop_caches", os.W_OK)
    except OSError:
        progress("no control group for memory can be made here: memory is not limited")
        return False


def _set_limit(limit: int | None) -> None:
    (GROUP / "memory.limit_in_bytes").write_text(str(limit if limit is not None else -1))


def main() -> None:
    options = parser(__doc__, "scripts/bench/cache.py --graph donor")
    options.add_argument("--graph", action="append", help="donor, mag240m or any data set")
    options.add_argument("--policies", nargs="+", default=list(POLICIES))
    options.add_argument("--capacities", type=float, nargs="+", default=[0.25, 0.5, 0.75, 1.0],
                      help="as shares of the memory for features")
    options.add_argument("--reads", choices=["mapped", "direct"], default="mapped")
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--epochs", type=int, default=2)
    options.add_argument("--steps", type=int, default=8, help="steps per epoch")
    options.add_argument("--child", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.child:
        child(json.loads(args.child))
    if args.quick:
        args.rounds, args.epochs, args.steps = 1, 1, 2
        args.capacities, args.policies = [1.0], ["hotness", "miss_penalty"]
    before = machine()
    parts, rows, data = [], [], {}
    with work_dir(args) as directory:
        for name in args.graph or list(GRAPHS):
            bench = Bench(args, name, directory)
            runs = bench.all()
            own = rows_of(bench, runs)
            parts.append(report(bench, runs, own))
            rows += own
            data[name] = {"bytes": bench.bytes, "limit": bench.limit, "runs": runs}
    if GROUP.exists():
        GROUP.rmdir()
    finish(args, "Cache policies", parts, {"rows": rows, "graphs": data}, before)


if __name__ == "__main__":
    main()
