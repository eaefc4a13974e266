"""What each part of plugins/hifuse brings, alone and together, as HiFuse's Fig. 9 shows it.

    python scripts/bench/ablation.py                    # five shapes, two models, 4 minutes
    python scripts/bench/ablation.py --shapes synthetic-mag:scale=0.05 --models rgcn \
        --configurations reorganised "reorganised + pipeline" --set train.threads=1

One worker trains on a synthetic shape. One process per shape and model has an engine for every
configuration; they train the same passes in turns, each round in another order. The first round
compiles and warms up, and is not counted. Configurations with the same kernel must have the same
losses, bit for bit.

- reference: PyTorch's operators, relation by relation, one sampling thread, batches on demand.
- reorganised: the kernel `fused`, which reads the rows of a type where they lie, and has what
  merging brings on a CPU: there it is the kernel `merged`.
- threads: the reference, relations sampled side by side on two threads.
- pipeline: the reference, batches made ahead.
- reorganised + threads, reorganised + pipeline, all: together.

Stages are what training waited for (sample, fetch) and did (forward, backward, update). Of batches
made ahead `hidden` is the share of sampling and reading, as long as it took where nothing ran
beside it, that training did not wait for. Kernels of Fig. 8 and 11:
`python -m tests.support.pretended.layer_counts`. Fig. 10 (processor ÷ GPU time) and Table 3
(throughput of a GPU kernel) need a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from common import CLI, Column, finish, machine, parser, run_child, table, work_dir

TORCH, ONE, DEMAND = "train.kernel=torch", "train.sampling_threads=1", "train.batches=on-demand"
FUSED, TWO, AHEAD = "train.kernel=fused", "train.sampling_threads=2", "train.batches=pipeline"
CONFIGURATIONS = {
    "reference": (TORCH, ONE, DEMAND), "reorganised": (FUSED, ONE, DEMAND),
    "threads": (TORCH, TWO, DEMAND), "pipeline": (TORCH, ONE, AHEAD),
    "reorganised + threads": (FUSED, TWO, DEMAND), "reorganised + pipeline": (FUSED, ONE, AHEAD),
    "all": (FUSED, TWO, AHEAD)}
STAGES = ("sample", "fetch", "forward", "backward", "update")
BY = ("graph", "model", "configuration")
COLUMNS = (Column("ms a step", "seconds", 1e3, 1), Column("first ÷ this", "faster"),
           *(Column(stage, f"stages/{stage}", 1e3, 1) for stage in STAGES),
           Column("waited for batches", "waited", 1e3, 1),
           Column("hidden, %", "hidden", 100, 0))
SHAPES = {"aifb": "synthetic-aifb", "mutag": "synthetic-mutag", "bgs": "synthetic-bgs",
          "am": "synthetic-am:scale=0.25", "freebase": "synthetic-freebase:scale=0.05"}
QUICK = {"aifb": "synthetic-aifb:scale=0.1", "mutag": "synthetic-mutag:scale=0.1"}


def child(job: dict[str, Any]) -> None:
    """Train passes in turns, and print what they took."""
    from dgl_heta.hooks.manager import plugins
    from dgl_heta.nn import kernel_in_use, use_kernel
    from dgl_heta.partition.directory import open_partition
    from dgl_heta.settings import load_settings
    from dgl_heta.training.caches import attach
    from dgl_heta.training.setup import build_engine

    store, plan = open_partition(job["partition"])
    engines, kernels = {}, {}
    for name in job["configurations"]:
        settings = load_settings(None, [*job["settings"], *job["also"].get(
            name, CONFIGURATIONS.get(name, ()))], {})
        engines[name] = build_engine(store, plan, settings, plugins().configured(settings))
        kernels[name] = kernel_in_use()  # of the process
        attach(engines[name], Path(job["partition"]) / "profiles")
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in engines}
    names = list(engines)
    for number in range(job["rounds"] + 1):
        for name in names[number % len(names):] + names[:number % len(names)]:
            engine = engines[name]
            use_kernel(kernels[name])
            engine.start_epoch(number)
            steps = engine.steps("train", number)[:job["steps"]]
            started = time.perf_counter()
            losses = [float(totals[0]) for totals in engine.train(steps, number << 20)]
            seconds = time.perf_counter() - started
            making = engine.loading.making
            found[name].append({
                "seconds": seconds / len(steps), "losses": losses, "stages": {
                    stage: engine.seconds.get(stage, 0.0) / len(steps) for stage in STAGES},
                **{when: sum(getattr(making, when).values()) / len(steps)
                   for when in ("worked", "waited")}})
    print(json.dumps({"runs": {name: runs[1:] for name, runs in found.items()}}))
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    options = parser(__doc__, "scripts/bench/ablation.py --shapes am --json ablation.json")
    options.add_argument("--shapes", nargs="+", metavar="NAME",
                         help=f"{', '.join(SHAPES)} or data sets (default: all of these)")
    options.add_argument("--models", nargs="+", default=["rgcn", "rgat"])
    options.add_argument("--rounds", type=int, help="default: 5, quick: 1")
    options.add_argument("--steps", type=int, help="per pass, at most (default: 6, quick: 2)")
    options.add_argument("--batch", type=int, default=1024, help="default: 1024")
    options.add_argument("--fanouts", default="25,20", help="default: 25,20")
    options.add_argument("--hidden", type=int, default=64, help="default: 64")
    options.add_argument("--configurations", nargs="+", choices=list(CONFIGURATIONS),
                         default=list(CONFIGURATIONS), metavar="NAME",
                         help="ratios are to the first one")
    options.add_argument("--also", nargs="+", default=[], metavar="NAME=SETTING,…",
                         help="configurations of one's own, such as cached=cache.policy=hotness")
    options.add_argument("--set", action="append", default=[], help="any other setting")
    options.add_argument("--child", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.child:
        child(json.loads(args.child))
    known = QUICK if args.quick else SHAPES
    rounds, steps = args.rounds or (1 if args.quick else 5), args.steps or (2 if args.quick else 6)
    also = {name: sets.split(",") for name, _, sets in (x.partition("=") for x in args.also)}
    before = machine()
    rows: list[dict[str, Any]] = []
    with work_dir(args) as temp:
        for shape in args.shapes or known:
            out = temp / f"graph-{len(rows)}"
            run_child([*CLI, "partition", known.get(shape, shape), "--parts", "1", "--out",
                       str(out), "--json"], f"writing {shape}")
            for model in args.models:
                settings = [f"model.name={model}", f"model.hidden={args.hidden}",
                            f"train.batch_size={args.batch}", f"train.fanouts={args.fanouts}",
                            "train.device=cpu", *args.set]
                made = run_child([sys.executable, __file__, "--child", json.dumps(
                    {"partition": str(out), "settings": settings, "steps": steps, "also": also,
                     "configurations": [*args.configurations, *also], "rounds": rounds})],
                    f"{shape}, {model}").result
                rows += [{"graph": shape, "model": model, **row} for row in rows_of(made["runs"])]
    head = (f"Batch {args.batch}, fanouts {args.fanouts}, hidden {args.hidden}, {rounds} rounds of "
            f"passes of at most {steps} steps. Median (least–largest).")
    finish(args, "Ablation", [head, table(rows, BY, COLUMNS)], {"rows": rows}, before)


def rows_of(runs: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """A row for each configuration and round, with ratios to the first configuration."""
    rows: list[dict[str, Any]] = []
    by_kernel: dict[str, list[Any]] = {}
    first = next(iter(runs))
    for name, own in runs.items():
        kernel, threads, source = CONFIGURATIONS.get(name, ("", "", ""))
        losses = [run.pop("losses") for run in own]
        if by_kernel.setdefault(kernel or name, losses) != losses:
            sys.exit(f"error: '{name}' has other losses than the same kernel without it")
        without = next((runs[n] for n, sets in CONFIGURATIONS.items()
                        if n in runs and sets == (kernel, threads, DEMAND)), None)
        for number, run in enumerate(own):
            row = {"configuration": name, **run,
                   "faster": runs[first][number]["seconds"] / run["seconds"]}
            if source == AHEAD and without is not None:
                row["hidden"] = 1 - run["waited"] / without[number]["worked"]
            rows.append(row)
    return rows


if __name__ == "__main__":
    main()
