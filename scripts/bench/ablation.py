"""What each part of plugins/hifuse brings, alone and together, as HiFuse's Fig. 9 shows it.

    python scripts/bench/ablation.py                    # five shapes, two models, 15 minutes

One worker trains on a synthetic shape with both cores. One process per shape and model has an
engine for every configuration; they train the same passes in turns, each round in another order.
The first round compiles and warms up, and is not counted.

- reference: PyTorch's operators, relation by relation, one sampling thread, batches on demand.
- reorganised: the kernel `fused`, which reads the rows of a type where they lie.
- merged: the kernel `merged`, all relations of a layer in one pass.
- threads: the reference, relations sampled side by side on two threads.
- pipeline: the reference, batches made ahead.
- merged + threads, merged + pipeline, all: together.

Stages are what training waited for (sample, fetch) and did (forward, backward, update). Operators
are those of PyTorch that a training step calls, by torch.profiler: what Fig. 8 and 11 count on a
GPU as kernels. Fig. 10 (processor ÷ GPU time) and Table 3 (throughput of a GPU kernel) need a GPU.
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

TORCH, ONE, DEMAND = "train.kernel=torch", "train.sampling_threads=1", "train.batches=on-demand"
FUSED, MERGED = "train.kernel=fused", "train.kernel=merged"
TWO, AHEAD = "train.sampling_threads=2", "train.batches=pipeline"
CONFIGURATIONS = {
    "reference": (TORCH, ONE, DEMAND), "reorganised": (FUSED, ONE, DEMAND),
    "merged": (MERGED, ONE, DEMAND), "threads": (TORCH, TWO, DEMAND),
    "pipeline": (TORCH, ONE, AHEAD), "merged + threads": (MERGED, TWO, DEMAND),
    "merged + pipeline": (MERGED, ONE, AHEAD), "all": (MERGED, TWO, AHEAD)}
STAGES = ("sample", "fetch", "forward", "backward", "update")
SHAPES = {"aifb": "synthetic-aifb", "mutag": "synthetic-mutag", "bgs": "synthetic-bgs",
          "am": "synthetic-am:scale=0.25", "freebase": "synthetic-freebase:scale=0.05"}
QUICK = {"aifb": "synthetic-aifb:scale=0.1", "mutag": "synthetic-mutag:scale=0.1"}


def child(job: dict[str, Any]) -> None:
    """Train passes in turns, and print what they took."""
    from dgl_heta.hooks.manager import plugins
    from dgl_heta.nn import kernel_in_use, use_kernel
    from dgl_heta.partition.directory import open_partition
    from dgl_heta.settings import load_settings
    from dgl_heta.training.setup import build_engine

    store, plan = open_partition(job["partition"])
    engines, kernels = {}, {}
    for name, own in CONFIGURATIONS.items():
        settings = load_settings(None, [*job["settings"], *own], {})
        engines[name] = build_engine(store, plan, settings, plugins().configured(settings))
        kernels[name] = kernel_in_use()  # of the process
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
            found[name].append({"seconds": seconds / len(steps), "loss": losses[-1], "stages": {
                stage: engine.seconds.get(stage, 0.0) / len(steps) for stage in STAGES}})
    operators = {}
    for name, engine in engines.items():
        use_kernel(kernels[name])
        operators[name] = count(engine, job["rounds"] + 1)
    print(json.dumps({"steps": len(steps), "operators": operators,
                      "runs": {name: runs[1:] for name, runs in found.items()}}))
    sys.stdout.flush()
    os._exit(0)


def count(engine: Any, number: int) -> int:
    """PyTorch's operators of a step, those that other operators call left out."""
    from torch.profiler import ProfilerActivity, profile

    engine.start_epoch(number)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        list(engine.train(engine.steps("train", number)[:1], number << 20))
    return sum(event.cpu_parent is None or not event.cpu_parent.name.startswith("aten::")
               for event in profiler.events() if event.name.startswith("aten::"))


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
    options.add_argument("--child", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.child:
        child(json.loads(args.child))
    known = QUICK if args.quick else SHAPES
    rounds, steps = args.rounds or (1 if args.quick else 5), args.steps or (2 if args.quick else 6)
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
                            "train.device=cpu"]
                made = run_child([sys.executable, __file__, "--child", json.dumps(
                    {"partition": str(out), "settings": settings, "steps": steps,
                     "rounds": rounds})], f"{shape}, {model}").result
                rows.append({"graph": shape, "model": model, **made})
    head = (f"Batch {args.batch}, fanouts {args.fanouts}, hidden {args.hidden}, {rounds} rounds of "
            f"passes of at most {steps} steps. Median (least–largest).")
    finish(args, "Ablation", [head, *tables(rows)], {"rows": rows}, before)


def tables(rows: list[dict[str, Any]]) -> list[str]:
    """Reference ÷ configuration; stages of the reference and of all; operators."""
    speed, stages = [], []
    for row in rows:
        reference = row["runs"]["reference"]
        speed.append([row["graph"], row["model"],
                      f"{1e3 * statistics.median(run['seconds'] for run in reference):.1f}", *(
                          spread([a["seconds"] / b["seconds"] for a, b in zip(reference, runs)])
                          for name, runs in row["runs"].items() if name != "reference")])
        stages += [[row["graph"], row["model"], name, *(
            f"{1e3 * statistics.median(run['stages'][stage] for run in row['runs'][name]):.1f}"
            for stage in STAGES), str(row["operators"][name])]
            for name in ("reference", "reorganised", "merged", "all")]
    return ["Milliseconds of a step with the reference; reference ÷ the others:",
            markdown(["graph", "model", "reference, ms",
                      *(name for name in CONFIGURATIONS if name != "reference")], speed),
            "Milliseconds of a step by stage, and PyTorch's operators of a step:",
            markdown(["graph", "model", "configuration", *STAGES, "operators"], stages)]


if __name__ == "__main__":
    main()
