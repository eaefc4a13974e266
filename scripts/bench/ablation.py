"""What each part of plugins/hifuse brings, alone and together, as HiFuse's Fig. 9 shows it.

    python scripts/bench/ablation.py                    # five shapes, two models, 15 minutes
    python scripts/bench/ablation.py --shapes synthetic-mag:scale=0.05 --models rgcn --cores 2 1 \
        --configurations reorganised "reorganised + pipeline" --set train.threads=1

One worker trains on a synthetic shape. One process per shape, model and number of cores, to which
it is bound, has an engine for every configuration; they train the same passes in turns, each round
in another order. The first round compiles and warms up, and is not counted. Configurations with the
same kernel must have the same losses, bit for bit.

- reference: PyTorch's operators, relation by relation, one sampling thread, batches on demand.
- reorganised: the kernel `fused`, which reads the rows of a type where they lie.
- merged: the kernel `merged`, all relations of a layer in one pass.
- threads: the reference, relations sampled side by side on two threads.
- pipeline: the reference, batches made ahead.
- reorganised + pipeline, merged + threads, merged + pipeline, all: together.

Stages are what training waited for (sample, fetch) and did (forward, backward, update). Of batches
made ahead: `hidden` is what sampling and reading took where nothing ran beside them, without what
training still waited for, and `gained` the time that a step got shorter, both in shares of the
former. Operators
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
    "merged + pipeline": (MERGED, ONE, AHEAD), "all": (MERGED, TWO, AHEAD),
    "reorganised + pipeline": (FUSED, ONE, AHEAD)}
BY_DEFAULT = [name for name in CONFIGURATIONS if name != "reorganised + pipeline"]
STAGES = ("sample", "fetch", "forward", "backward", "update")
SHAPES = {"aifb": "synthetic-aifb", "mutag": "synthetic-mutag", "bgs": "synthetic-bgs",
          "am": "synthetic-am:scale=0.25", "freebase": "synthetic-freebase:scale=0.05"}
QUICK = {"aifb": "synthetic-aifb:scale=0.1", "mutag": "synthetic-mutag:scale=0.1"}


def child(job: dict[str, Any]) -> None:
    """Train passes in turns, and print what they took."""
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:job["cores"]]))
    from dgl_heta.hooks.manager import plugins
    from dgl_heta.nn import kernel_in_use, use_kernel
    from dgl_heta.partition.directory import open_partition
    from dgl_heta.settings import load_settings
    from dgl_heta.training.setup import build_engine

    store, plan = open_partition(job["partition"])
    engines, kernels = {}, {}
    for name in job["configurations"]:
        settings = load_settings(None, [*job["settings"], *CONFIGURATIONS[name]], {})
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
            making = engine.loading.making
            found[name].append({
                "seconds": seconds / len(steps), "losses": losses, "stages": {
                    stage: engine.seconds.get(stage, 0.0) / len(steps) for stage in STAGES},
                **{when: sum(getattr(making, when).values()) / len(steps)
                   for when in ("worked", "waited")}})
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
    options.add_argument("--cores", nargs="+", type=int, default=[2], metavar="N",
                         help="cores that a process is bound to (default: 2)")
    options.add_argument("--configurations", nargs="+", choices=list(CONFIGURATIONS),
                         default=BY_DEFAULT, metavar="NAME", help="ratios are to the first one")
    options.add_argument("--set", action="append", default=[], help="any other setting")
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
                            "train.device=cpu", *args.set]
                for cores in args.cores:
                    made = run_child([sys.executable, __file__, "--child", json.dumps(
                        {"partition": str(out), "settings": settings, "steps": steps,
                         "cores": cores, "configurations": args.configurations,
                         "rounds": rounds})], f"{shape}, {model}, {cores} cores").result
                    check(made["runs"])
                    rows.append({"graph": shape, "model": model, "cores": cores, **made})
    head = (f"Batch {args.batch}, fanouts {args.fanouts}, hidden {args.hidden}, {rounds} rounds of "
            f"passes of at most {steps} steps. Median (least–largest).")
    finish(args, "Ablation", [head, *tables(rows)], {"rows": rows}, before)


def check(runs: dict[str, list[dict[str, Any]]]) -> None:
    """Losses of configurations with one kernel are the same; they are not kept."""
    by_kernel: dict[str, list[Any]] = {}
    for name, own in runs.items():
        losses = [run.pop("losses") for run in own]
        if by_kernel.setdefault(CONFIGURATIONS[name][0], losses) != losses:
            sys.exit(f"error: '{name}' has other losses than the same kernel without it")


def tables(rows: list[dict[str, Any]]) -> list[str]:
    """First configuration ÷ the others; stages, operators; what batches ahead hide."""
    speed, stages, ahead = [], [], []
    for row in rows:
        key, runs = [row["graph"], row["model"], str(row["cores"])], row["runs"]
        first = next(iter(runs.values()))
        speed.append([*key, ms(run["seconds"] for run in first), *(
            spread([a["seconds"] / b["seconds"] for a, b in zip(first, own)])
            for own in list(runs.values())[1:])])
        stages += [[*key, name, *(ms(run["stages"][stage] for run in own) for stage in STAGES),
                    str(row["operators"][name])] for name, own in runs.items()]
        for name, own in runs.items():
            kernel, threads, source = CONFIGURATIONS[name]
            without = next((runs[n] for n, sets in CONFIGURATIONS.items()
                            if n in runs and sets == (kernel, threads, DEMAND)), None)
            if source == AHEAD and without is not None:
                took, both = [run["worked"] for run in without], list(zip(without, own))
                ahead.append([
                    *key, name, ms(took), ms(run["waited"] for run in own),
                    spread([b["seconds"] / a["seconds"] for a, b in both]),
                    spread([100 * (1 - b["waited"] / t) for (_, b), t in zip(both, took)], 0),
                    spread([100 * (a["seconds"] - b["seconds"]) / t
                            for (a, b), t in zip(both, took)], 0)])
    names, by = list(rows[0]["runs"]), ["graph", "model", "cores"]
    return [f"Milliseconds of a step by {names[0]}; {names[0]} ÷ the others:",
            markdown([*by, f"{names[0]}, ms", *names[1:]], speed),
            "Milliseconds of a step by stage, and PyTorch's operators of a step:",
            markdown([*by, "configuration", *STAGES, "operators"], stages),
            *(["Batches made ahead, milliseconds of a step:",
               markdown([*by, "configuration", "sample and fetch without", "waited with",
                         "with ÷ without", "hidden, %", "gained, %"], ahead)] if ahead else [])]


def ms(seconds: Any) -> str:
    return f"{1e3 * statistics.median(seconds):.1f}"


if __name__ == "__main__":
    main()
