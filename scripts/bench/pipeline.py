"""What the source of batches `pipeline` (plugins/hifuse) hides: a step with and without it.

    python scripts/bench/pipeline.py                    # two shapes, one core and two, 10 minutes

One worker trains on a synthetic shape. Each row is one process that is bound to so many cores. In
it two engines train the same passes in turns, one with `on-demand`, one with `pipeline`, and the
order within a pair changes from pair to pair. The first pair compiles and warms up, and is not
counted. Both must have the same losses, bit for bit.

- sample, fetch: seconds per step that drawing and reading static rows take where nothing runs
  beside them (`on-demand`).
- waited: seconds per step that training waited for both with the pipeline. Hidden is what is left:
  1 - waited / (sample + fetch).
- gained: what a step became shorter, as a share of sample + fetch. Hidden work still takes a core
  and memory from training, so it is less than what is hidden.

Figures are medians over pairs; ratios are medians of the pairs' ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from typing import Any

from common import CLI, finish, machine, markdown, parser, run_child, spread, work_dir

SOURCES = ("on-demand", "pipeline")
SHAPES = {"mag": "synthetic-mag:scale=0.05", "freebase": "synthetic-freebase:scale=0.05"}
QUICK = {"mag": "synthetic-mag:scale=0.002", "freebase": "synthetic-freebase:scale=0.002"}


def child(job: dict[str, Any]) -> None:
    """Train passes in turns, and print what they took."""
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:job["cores"]]))
    from dgl_heta.hooks.manager import plugins
    from dgl_heta.partition.directory import open_partition
    from dgl_heta.settings import load_settings
    from dgl_heta.training.setup import build_engine

    store, plan = open_partition(job["partition"])
    engines = {}
    for source in SOURCES:
        settings = load_settings(None, [*job["settings"], f"train.batches={source}"], {})
        engines[source] = build_engine(store, plan, settings, plugins().configured(settings))
    found: dict[str, list[dict[str, Any]]] = {source: [] for source in SOURCES}
    for number in range(job["pairs"] + 1):
        for source in SOURCES if number % 2 else SOURCES[::-1]:
            engine = engines[source]
            engine.start_epoch(number)
            steps = engine.steps("train", number)[:job["steps"]]
            started = time.perf_counter()
            losses = [float(totals[0]) for totals in engine.train(steps, number << 20)]
            found[source].append({
                "seconds": (time.perf_counter() - started) / len(steps), "losses": losses,
                **{name: {stage: value / len(steps) for stage, value in getattr(
                    engine.loading.making, name).items()} for name in ("worked", "waited")}})
    print(json.dumps({"steps": len(steps), "runs": {s: runs[1:] for s, runs in found.items()}}))
    sys.stdout.flush()
    os._exit(0)


def measure(args: argparse.Namespace, temp: Any) -> list[dict[str, Any]]:
    """One process for each shape and number of cores."""
    rows: list[dict[str, Any]] = []
    for shape in args.shapes:
        spec = (QUICK if args.quick else SHAPES).get(shape, shape)
        out = temp / f"graph-{len(rows)}"
        run_child([*CLI, "partition", spec, "--parts", "1", "--out", str(out), "--json"],
                  f"writing {spec}")
        for cores in args.cores:
            settings = [f"model.name={args.model}", f"model.hidden={args.hidden}",
                        f"train.batch_size={args.batch}", f"train.fanouts={args.fanouts}",
                        f"train.threads={args.threads}", f"train.kernel={args.kernel}",
                        f"plugins.pipeline.depth={args.depth}", "train.device=cpu", *args.set]
            job = {"partition": str(out), "cores": cores, "settings": settings,
                   "steps": args.steps, "pairs": args.pairs}
            made = run_child([sys.executable, __file__, "--child", json.dumps(job)],
                             f"{spec}, {cores} cores").result
            without, ahead = (made["runs"][source] for source in SOURCES)
            if [run["losses"] for run in ahead] != [run["losses"] for run in without]:
                sys.exit(f"error: {spec}: the pipeline gives other losses")
            for run in (*without, *ahead):
                del run["losses"]
            rows.append({"graph": spec, "cores": cores, "steps": made["steps"],
                         "without": without, "with": ahead})
    return rows


def summarize(rows: list[dict[str, Any]]) -> str:
    """The table."""
    lines = []
    for row in rows:
        pairs = list(zip(row["without"], row["with"]))
        sums = [sum(a["worked"].values()) for a, _ in pairs]
        waits = [sum(b["waited"].values()) for _, b in pairs]
        row["ratio"] = [b["seconds"] / a["seconds"] for a, b in pairs]
        row["hidden"] = [100 * (1 - wait / total) for wait, total in zip(waits, sums)]
        row["gained"] = [100 * (a["seconds"] - b["seconds"]) / total
                         for (a, b), total in zip(pairs, sums)]

        def ms(values: list[float]) -> str:
            return f"{1e3 * statistics.median(values):.1f}"

        lines.append([
            row["graph"], str(row["cores"]), ms([a["seconds"] for a, _ in pairs]),
            *(ms([a["worked"][stage] for a, _ in pairs]) for stage in ("sample", "fetch")),
            ms([b["seconds"] for _, b in pairs]), ms(waits), spread(row["ratio"]),
            spread(row["hidden"], 0), spread(row["gained"], 0)])
    return markdown(["graph", "cores", "ms/step without", "sample", "fetch", "ms/step with",
                     "waited", "with ÷ without", "hidden, %", "gained, %"], lines)


def main() -> None:
    options = parser(__doc__, "scripts/bench/pipeline.py --json pipeline.json")
    options.add_argument("--shapes", nargs="+", default=list(SHAPES), metavar="NAME",
                         help="mag, freebase or data sets (default: both)")
    options.add_argument("--cores", nargs="+", type=int, default=[2, 1], metavar="N",
                         help="cores that a process is bound to (default: 2 1)")
    options.add_argument("--pairs", type=int, help="default: 7, quick: 1")
    options.add_argument("--steps", type=int, help="per pass, at most (default: 12, quick: 3)")
    options.add_argument("--batch", type=int, default=1024, help="default: 1024")
    options.add_argument("--fanouts", default="25,20", help="default: 25,20")
    options.add_argument("--hidden", type=int, default=64, help="default: 64")
    options.add_argument("--model", default="rgcn", help="default: rgcn")
    options.add_argument("--kernel", default="fused", help="default: fused")
    options.add_argument("--depth", type=int, default=2, help="plugins.pipeline.depth (default: 2)")
    options.add_argument("--threads", type=int, default=0,
                         help="train.threads (default: 0, all cores)")
    options.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                         help="any other setting, such as plugins.pipeline.all_cores=true")
    options.add_argument("--child", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.child:
        child(json.loads(args.child))
    for name, (full, quick) in {"pairs": (7, 1), "steps": (12, 3)}.items():
        if getattr(args, name) is None:
            setattr(args, name, quick if args.quick else full)
    before = machine()
    with work_dir(args) as temp:
        rows = measure(args, temp)
    head = (f"{args.model}, kernel {args.kernel}, batch {args.batch}, fanouts {args.fanouts}, "
            f"hidden {args.hidden}, {args.depth} batches ahead, {args.pairs} pairs of passes of "
            f"{max(row['steps'] for row in rows)} steps. Median (least–largest).")
    table = summarize(rows)
    finish(args, "Pipeline of batches", [head, table], {"rows": rows}, before)


if __name__ == "__main__":
    main()
