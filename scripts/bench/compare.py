"""DistDGL and dgl-heta side by side: one training script on emulated hosts, one graph, all systems.

The script (systems/distdgl/train.py) is plain DistDGL and runs unedited in every system; only the
parts and the settings of `dgl-heta launch` differ:

  random, metis, metis-vol  DistDGL on parts by DGL; metis-vol minimises communication volume.
  metis+cache               the same METIS parts, remote feature rows cached (DGL-Opt of Heta §8.1).
  relation-random           RAF, whole relations dealt out at random.
  heta                      meta-partitioning and RAF, learnable features kept per partition
                            (`train.learnable=replica`, as in the paper).
  heta-shared               the same with heavy sub-metatrees shared for equal work (method
                            meta-shared): more stored per host, less waiting.
  heta-merged               as heta-shared, with the kernel of plugins/hifuse.
  heta-exact                as heta, learnable features exactly as DistDGL has them, rows moving.
  heta-delegated            the same, one host aggregating them for the others
                            (`partition.shared=delegate`).
  heta-bf16                 as heta-delegated, partial aggregations and rows sent as bfloat16
                            (`train.exchange_dtype`).
  graphlearn                GraphLearn-for-PyTorch by its own script (systems/graphlearn), with
                            --graphlearn PYTHON: R-GCN on graphs with features on all types.

Every system runs once per repeat, in turns. The first epoch of a run warms up and is left out; an
epoch is `--steps` steps of `--batch-size` seeds per trainer, and takes as long as its slowest
trainer. A ratio is to `metis` of the same repeat. Bytes are what all hosts sent on their links in
an epoch, as their interfaces count; causes are counted in the trainers, the rest is headers and
what DistributedDataParallel and GraphLearn send. Parts are kept in `--parts` and used again. Root
is needed for emulated hosts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from common import (
    CLI,
    SYSTEMS_DIR,
    finish,
    machine,
    markdown,
    parser,
    progress,
    run_child,
    work_dir,
)

SCALES = {"mag": 0.5, "freebase": 0.1, "donor": 0.08, "igb-het": 0.02, "mag240m": 0.005}
HETA = ["--set", "train.learnable=replica"]
SYSTEMS: dict[str, tuple[str, list[str]]] = {  # parts, settings
    "random": ("random", []),
    "metis": ("metis", []),
    "metis-vol": ("metis-vol", []),
    "metis+cache": ("metis", ["--set", "cache.policy=miss_penalty"]),
    "relation-random": ("relation-random", HETA),
    "heta": ("meta", HETA),
    "heta-shared": ("meta-shared", HETA),
    "heta-merged": ("meta-shared", [*HETA, "--set", "train.kernel=merged"]),
    "heta-exact": ("meta", ["--set", "train.learnable=exact"]),
    "heta-delegated": ("meta-delegated", ["--set", "train.learnable=exact"]),
    "heta-bf16": ("meta-delegated", ["--set", "train.learnable=exact",
                                     "--set", "train.exchange_dtype=bfloat16"]),
    "graphlearn": ("graphlearn", []),
}
DELEGATED = "-delegated"
OURS = ("meta", "meta-shared", "relation-random", "meta" + DELEGATED)
STAGES = ("sample", "features", "forward", "backward", "update")


def dataset(args: argparse.Namespace, shape: str) -> str:
    """A graph, as `dgl-heta` knows it."""
    return f"synthetic-{shape}:scale={args.scales[shape]:g},cohesion={args.cohesion:g}"


def name(args: argparse.Namespace, shape: str) -> str:
    """A graph, in names of files."""
    return f"{shape}-{args.scales[shape]:g}" + (f"-{args.cohesion:g}" if args.cohesion else "")


def parts(args: argparse.Namespace, shape: str, method: str, hosts: int, model: str
          ) -> tuple[Path, dict]:
    """The part_config of a graph, made if it is not there, and what making it took."""
    layers = len(args.fanouts.split(","))
    kind = f"{method}-{layers}" if method in OURS else method
    kind += f"-{model}" if method.endswith(DELEGATED) else ""
    out = args.parts / f"{name(args, shape)}-{hosts}-{kind}"
    record = out.with_name(f"{out.name}.json")
    if not record.exists() and method == "graphlearn":
        graphlearn_parts(args, shape, hosts, out, record)
    if not record.exists():
        way, objective = (("metis", "vol") if method == "metis-vol" else
                          (method.removesuffix(DELEGATED), "cut"))
        script = [str(SYSTEMS_DIR / "distdgl/parts.py"), "--dataset",
                  dataset(args, shape), "--name", "graph",
                  "--part_method", way, "--objtype", objective, "--num_parts", str(hosts),
                  "--output", str(out)]
        ours = method in OURS
        shared = "delegate" if method.endswith(DELEGATED) else "rows"
        settings = ["--set", f"model.layers={layers}", "--set", "partition.replication=full",
                    "--set", f"partition.shared={shared}", "--set", f"model.name={model}"]
        child = run_child([*CLI, "run", *settings, *script] if ours
                          else [sys.executable, *script], f"{method} parts of {shape}", 3600)
        size = sum(f.stat().st_size for f in out.rglob("*") if f.is_file())
        record.write_text(json.dumps({
            **child.result, "call_s": child.result["seconds"][str(hosts)],
            "process_s": child.seconds, "peak_mb": child.peak_mb, "bytes": size}) + "\n")
    return out / "graph.json", json.loads(record.read_text())


def graphlearn_parts(args: argparse.Namespace, shape: str, hosts: int, out: Path, record: Path
                     ) -> None:
    """Parts by GraphLearn's own random partitioner."""
    script, files = str(SYSTEMS_DIR / "graphlearn/parts.py"), out.with_name(f"{out.name}-files")
    subprocess.run([sys.executable, script, "export",
                    dataset(args, shape), str(files)], check=True)
    child = run_child([args.graphlearn, script, "partition", str(files), str(out), "--parts",
                       str(hosts)], f"GraphLearn's parts of {shape}", 3600)
    shutil.rmtree(files)
    size = sum(f.stat().st_size for f in out.rglob("*") if f.is_file())
    record.write_text(json.dumps({"call_s": child.result["seconds"], "process_s": child.seconds,
                                  "peak_mb": child.peak_mb, "bytes": size}) + "\n")


def train(args: argparse.Namespace, shape: str, model: str, system: str, hosts: int, seed: int,
          directory: Path) -> dict[str, Any]:
    """One run: a record per epoch, of all trainers together."""
    method, options = SYSTEMS[system]
    config, record = parts(args, shape, method, hosts, model)
    if system == "metis+cache":
        options = [*options, "--set", f"cache.capacity_mb={args.cache_mb}",
                   "--set", f"cache.batches={args.steps}"]
    if method in OURS:  # a proof of each epoch's steps would count in epochs of this few
        options = [*options, "--set", "run.prove=off"]
    if system == "graphlearn":  # `env` keeps the command as it is; part_config is not read
        config, _ = parts(args, shape, "random", hosts, model)
        script = ["env", args.graphlearn, str(SYSTEMS_DIR / "graphlearn/train.py"), "--partitions",
                  str(args.parts / f"{name(args, shape)}-{hosts}-graphlearn")]
    else:
        script = [sys.executable, str(SYSTEMS_DIR / "distdgl/train.py"), "--graph-name", "graph",
                  "--ip-config", "{ip_config}", "--part-config", "{part_config}", "--target",
                  record["target"], "--classes", str(record["classes"]), "--model", model,
                  *(["--evaluate"] if args.evaluate else [])]
    command = [*(["taskset", "-c", args.cpus] if args.cpus else []),
               *CLI, "launch", "--hosts", str(hosts), "--rate", args.rate, "--cores", "1",
               "--part-config", str(config), "--stop-after", str(args.timeout), *options, "--",
               *script, "--hidden", str(args.hidden), "--fanouts", args.fanouts,
               "--batch-size", str(args.batch_size), "--epochs", str(args.epochs),
               "--steps", str(args.steps), "--seed", str(seed)]
    started = time.perf_counter()
    epochs = read_epochs(run(command, args.timeout + 60, directory))
    if len(epochs) != args.epochs:
        sys.exit(f"error: {system} printed {len(epochs)} epochs of {args.epochs}")
    return {"shape": shape, "model": model, "system": system, "hosts": hosts, "seed": seed,
            "rate": args.rate, "hidden": args.hidden, "fanouts": args.fanouts,
            "batch_size": args.batch_size, "whole_s": time.perf_counter() - started,
            "epochs": epochs}


def run(command: list[str], timeout: float, directory: Path) -> str:
    """The output of a command; it is shown if the command fails."""
    log = directory / "output.log"
    with log.open("w") as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, timeout=timeout,
                              stdin=subprocess.DEVNULL, check=False, env=_environment())
    text = log.read_text(errors="replace")
    if done.returncode:
        sys.exit(f"error: {' '.join(command)} ended with status {done.returncode}:\n"
                 + "\n".join(text.splitlines()[-40:]))
    return text


def _environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("DGL_HETA_")}


def read_epochs(text: str) -> list[dict[str, Any]]:
    """The trainers' lines, joined per epoch: slowest seconds, all bytes, largest memory."""
    by_epoch: dict[int, list[dict[str, Any]]] = {}
    for line in text.splitlines():
        at = line.find('{"seconds"')
        if at >= 0:
            record = json.loads(line[at:])
            by_epoch.setdefault(record["epoch"], []).append(record)
    joined = []
    for _, trainers in sorted(by_epoch.items()):
        causes: Counter[str] = Counter()
        for one in trainers:
            causes.update(one["causes"])
        sent = sum(t["link"] for t in trainers)
        causes["rest"] = max(sent - sum(causes.values()), 0)
        accuracy = {name: sum(t[name][0] for t in trainers) / sum(t[name][1] for t in trainers)
                    for name in ("val", "test") if name in trainers[0]}
        joined.append({
            "seconds": max(t["seconds"] for t in trainers),
            "steps": len(trainers[0]["loss"]),
            "stages": {s: statistics.mean(t["stages"][s] for t in trainers) for s in STAGES},
            "bytes": sent, "causes": dict(causes),
            "memory": max(t["memory"]["own"] + t["memory"]["shared"] for t in trainers),
            "loss": statistics.mean(t["loss"][-1] for t in trainers),
            "trained": max(t["trained"] for t in trainers),
            "parameters": trainers[0]["parameters"], **accuracy})
    return joined


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per setting and system: medians over repeats, ratios to METIS of the same repeat."""
    keys = ("shape", "model", "hosts", "rate", "hidden", "fanouts")
    groups: dict[tuple, dict[str, list[dict[str, Any]]]] = {}
    for one in runs:
        measured = one["epochs"][1:] or one["epochs"]
        steps = sum(e["steps"] for e in measured)
        figures = {"seconds": statistics.median(e["seconds"] / e["steps"] for e in measured),
                   "bytes": sum(e["bytes"] for e in measured) / steps,
                   "memory": max(e["memory"] for e in measured),
                   "loss": measured[-1]["loss"], "seed": one["seed"],
                   "stages": {s: sum(e["stages"][s] for e in measured) / steps for s in STAGES},
                   "causes": {c: sum(e["causes"].get(c, 0) for e in measured) / steps
                              for c in {c for e in measured for c in e["causes"]}},
                   "test": measured[-1].get("test")}
        of_setting = groups.setdefault(tuple(one[k] for k in keys), {})
        of_setting.setdefault(one["system"], []).append(figures)
    rows = []
    for key, systems in groups.items():
        base = {f["seed"]: f for f in systems.get("metis", [])}
        for system, group in systems.items():
            pairs = [(base[f["seed"]], f) for f in group if f["seed"] in base]
            rows.append({
                **dict(zip(keys, key)), "system": system,
                "seconds": [f["seconds"] for f in group], "bytes": [f["bytes"] for f in group],
                "faster": [b["seconds"] / f["seconds"] for b, f in pairs],
                "fewer": [1 - f["bytes"] / b["bytes"] for b, f in pairs],
                "memory": max(f["memory"] for f in group), "loss": [f["loss"] for f in group],
                "test": [f["test"] for f in group if f["test"] is not None],
                "stages": {s: statistics.median(f["stages"][s] for f in group) for s in STAGES},
                "causes": {c: statistics.median(f["causes"].get(c, 0) for f in group)
                           for c in sorted({c for f in group for c in f["causes"]})}})
    return rows


def _range(values: list[float], form: str, unit: float = 1) -> str:
    if not values:
        return ""
    middle = format(statistics.median(values) * unit, form)
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values) * unit:{form}}–{max(values) * unit:{form}})"


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    varied = [k for k in ("shape", "model", "hosts", "rate", "hidden", "fanouts")
              if len({str(r[k]) for r in rows}) > 1]
    cells = [[*(str(r[k]) for k in varied), r["system"], _range(r["seconds"], ".3f"),
              _range(r["faster"], ".2f"), _range(r["bytes"], ".2f", 1e-6),
              f"{100 * statistics.median(r['fewer']):.1f} %" if r["fewer"] else "",
              f"{r['memory'] / 1e9:.2f}", _range(r["loss"], ".3f"), _range(r["test"], ".3f")]
             for r in rows]
    header = [*varied, "system", "s/step", "METIS ÷ this", "MB/step", "fewer bytes", "GB per host",
              "last loss", "test accuracy"]
    if not any(r["test"] for r in rows):
        header, cells = header[:-1], [c[:-1] for c in cells]
    return markdown(header, cells)


def parts_table(args: argparse.Namespace, hosts: int) -> str:
    """What making the parts took (Heta, Tables 3 and 4)."""
    cells = []
    for shape in args.shapes:
        done = {m: parts(args, shape, m, hosts, args.models[0])[1] for m in dict.fromkeys(
            SYSTEMS[s][0] for s in args.systems)}
        metis = done.get("metis")
        for method, record in done.items():
            cells.append([shape, method, f"{record['call_s']:.2f}",
                          f"{metis['call_s'] / record['call_s']:.1f}" if metis else "",
                          f"{record['peak_mb'] / 1e3:.2f}", f"{record['bytes'] / 1e9:.2f}"])
    return markdown(["shape", "parts", "partition_graph, s", "METIS ÷ this",
                     "peak GB of the process, graph in memory included", "GB on disk"], cells)


def draw(args: argparse.Namespace, rows: list[dict[str, Any]], runs: list[dict[str, Any]]) -> None:
    """Stages of a step, bytes by cause, accuracy against time."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    chosen = [r for r in rows if r["hosts"] == args.hosts[0]]
    names = [" ".join(str(r[k]) for k in ("shape", "model", "system")) for r in chosen]
    causes = sorted({c for r in chosen for c in r["causes"] if r["causes"][c] > 1e3})
    pyplot.rcParams["svg.hashsalt"] = "dgl-heta"
    accuracy = [r for r in runs if "test" in r["epochs"][0]]
    figure, axes = pyplot.subplots(1, 3 if accuracy else 2, layout="constrained", squeeze=False,
                                   figsize=(13, 1.5 + 0.24 * max(len(chosen), 8)))
    for axis, kinds, field, unit, label in (
            (axes[0][0], STAGES, "stages", 1, "seconds per step, mean of trainers"),
            (axes[0][1], causes, "causes", 1e-6, "MB per step, all hosts")):
        left = [0.0] * len(chosen)
        for kind in kinds:
            widths = [r[field].get(kind, 0) * unit for r in chosen]
            axis.barh(names, widths, left=left, label=kind)
            left = [a + b for a, b in zip(left, widths)]
        axis.invert_yaxis()
        axis.set_xlabel(label)
        axis.legend(fontsize="small")
    axes[0][1].set_yticks([])
    if accuracy:
        for one in accuracy:
            axes[0][2].plot([e["trained"] for e in one["epochs"]],
                            [e["test"] for e in one["epochs"]], marker=".",
                            color=f"C{list(SYSTEMS).index(one['system'])}",
                            label=one["system"] if one["seed"] == 0 else None)
        axes[0][2].set(xlabel="seconds of training", ylabel="test accuracy")
        axes[0][2].legend(fontsize="small")
    figure.savefig(args.plot, metadata={"Date": None})


def main() -> None:
    options = parser(__doc__, "scripts/bench/compare.py --shapes mag donor --plot compare.svg")
    options.add_argument("--shapes", nargs="+", choices=list(SCALES), default=["mag"])
    options.add_argument("--scale", type=float, help="of the graph (default: by shape)")
    options.add_argument("--cohesion", type=float, default=0.0, help="least share of every "
                         "relation's edges within communities, which METIS can find (default: 0)")
    options.add_argument("--models", nargs="+", choices=["rgcn", "rgat", "hgt"], default=["rgcn"])
    options.add_argument("--systems", nargs="+", choices=list(SYSTEMS),
                      default=[s for s in SYSTEMS if s != "graphlearn"])
    options.add_argument("--graphlearn", metavar="PYTHON", help="of an environment with GraphLearn")
    options.add_argument("--hosts", type=int, nargs="+", default=[2])
    options.add_argument("--rate", default="1gbit")
    options.add_argument("--cpus", help="cores for everything, as taskset takes them")
    options.add_argument("--hidden", type=int, default=64)
    options.add_argument("--fanouts", default="25,20", help="input layer first")
    options.add_argument("--batch-size", type=int, default=1024)
    options.add_argument("--steps", type=int, default=6, help="per epoch; 0: all training nodes")
    options.add_argument("--epochs", type=int, default=3, help="the first one is not counted")
    options.add_argument("--evaluate", action="store_true", help="accuracy after every epoch")
    options.add_argument("--repeats", type=int, default=2)
    options.add_argument("--cache-mb", type=float, default=200.0, help="of metis+cache, per host")
    options.add_argument("--parts", type=Path, metavar="DIR", help="keep the parts here")
    options.add_argument("--plot", type=Path, metavar="FILE", help="draw stages and bytes (SVG)")
    options.add_argument("--timeout", type=float, default=900.0, help="seconds for one run")
    args = options.parse_args()
    if args.quick:
        args.scale, args.repeats, args.epochs, args.steps = args.scale or 0.01, 1, 2, 3
    if "graphlearn" in args.systems and (not args.graphlearn or args.models != ["rgcn"]):
        options.error("graphlearn needs --graphlearn PYTHON and --models rgcn")
    args.scales = {s: args.scale or SCALES[s] for s in args.shapes}
    before = machine()
    runs: list[dict[str, Any]] = []
    with work_dir(args) as directory:
        args.parts = args.parts or directory / "parts"
        args.parts.mkdir(parents=True, exist_ok=True)
        settings = [(shape, model, hosts) for shape in args.shapes for hosts in args.hosts
                    for model in args.models]
        for shape, model, hosts in settings:  # before anything is timed
            for system in args.systems:
                parts(args, shape, SYSTEMS[system][0], hosts, model)
        total, count = len(settings) * args.repeats * len(args.systems), 0
        for shape, model, hosts in settings:
            for repeat in range(args.repeats):
                for system in args.systems:
                    run = train(args, shape, model, system, hosts, repeat, directory)
                    runs.append(run)
                    count += 1
                    last = run["epochs"][-1]
                    progress(f"{count}/{total} {shape} {model} {system}, {hosts} hosts: "
                             f"{last['seconds'] / last['steps']:.3f} s and "
                             f"{last['bytes'] / last['steps'] / 1e6:.2f} MB per step")
                    if args.json:  # what is measured is not lost if a later run fails
                        args.json.with_suffix(".runs.json").write_text(json.dumps(runs))
        rows = summary(runs)
        tables = [table(rows), *(parts_table(args, hosts) for hosts in args.hosts)]
    if args.plot:
        draw(args, rows, runs)
    scales = ", ".join(f"{s} × {args.scales[s]:g}" for s in args.shapes)
    finish(args, f"DistDGL and dgl-heta on emulated hosts at {args.rate}: {scales}", tables,
           {"rows": rows, "runs": runs}, before)


if __name__ == "__main__":
    main()
