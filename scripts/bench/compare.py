"""DistDGL and dgl-heta side by side: one training script on emulated hosts, one graph, all systems.

The script (systems/distdgl/train.py) is plain DistDGL and runs unedited in every system; only the
parts and the settings of `dgl-heta launch` differ:

  random, metis, metis-vol  DistDGL on parts by DGL; metis-vol minimises communication volume.
  metis+cache               the same METIS parts, remote feature rows cached (DGL-Opt of Heta §8.1).
                            The second epoch, in which it is filled, does not count either.
  relation-random           RAF without meta-partitioning: whole relations dealt out at random, none
                            on two hosts (Heta §8.7, Fig. 14).
  heta                      meta-partitioning and RAF, learnable features kept per partition
                            (`train.learnable=replica`, as in the paper).
  heta-exact                as heta, learnable features exactly as DistDGL has them, rows moving.
  heta-delegated            the same, one host aggregating them for the others
                            (`partition.shared=delegate`).
  heta-whole, heta-shared   as heta-delegated, with whole sub-metatrees (Algorithm 2), and with
                            heavy ones shared for equal work: methods meta-whole and meta-shared.
                            `meta`, of all others, shares them where it is worth it.
  heta-bf16                 as heta-delegated, partial aggregations and rows sent as bfloat16
                            (`train.exchange_dtype`).
  graphlearn                GraphLearn-for-PyTorch by its own script (systems/graphlearn), with
                            --graphlearn PYTHON: R-GCN on graphs with features on all types.
  pyg, heta-pyg             plain PyG with DistributedDataParallel and the whole graph on each host,
                            and the same model in dgl_heta_pyg (beside_loop.py).

Every system runs once per repeat, in turns, every second repeat in the opposite order. The first
epoch of a run warms up and is left out; an epoch is `--steps` steps of `--batch-size` seeds per
trainer. A step takes as long as its slowest trainer, and seconds are the median of all steps that
count, so that other work in some of them does not show; with each run stands how many cores that
kept busy. With `--within 0.1` repeats go on, up to `--most`, until those of each system differ by
no more. Processor seconds are those of the busiest host, its servers included; other work on the
machine moves them less. A ratio is to `metis`, or to `pyg`, of the same repeat. Memory is what
belongs to no file, and /dev/shm; of pyg and heta-pyg the largest resident set, mapped files
included. Bytes are what all hosts sent on their links in an epoch, as their interfaces count;
causes are counted in the trainers, the rest is headers and what DistributedDataParallel, GraphLearn
and heta-pyg send. Needs root for emulated hosts.

`--shapes` are synthetic graphs or other data sets of `dgl-heta datasets`. hgt has a softmax over
the edges of each relation, as DGL's example does, hgt-exact over those of all, as its paper.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common import (
    CLI,
    SYSTEMS_DIR,
    Column,
    apart,
    elsewhere,
    finish,
    grouped,
    machine,
    output_of,
    parser,
    progress,
    run_child,
    table,
    work_dir,
)

SCALES = {"mag": 0.5, "freebase": 0.1, "donor": 0.08, "igb-het": 0.02, "mag240m": 0.005}
HETA, EXACT = (["--set", f"train.learnable={mode}"] for mode in ("replica", "exact"))
SYSTEMS: dict[str, tuple[str, list[str]]] = {  # parts, settings
    "random": ("random", []),
    "metis": ("metis", []),
    "metis-vol": ("metis-vol", []),
    "metis+cache": ("metis", ["--set", "cache.policy=miss_penalty",
                              "--set", "cache.capacity_mb=200"]),
    "relation-random": ("relation-random", HETA),
    "heta": ("meta", HETA),
    "heta-whole": ("meta-whole-delegated", EXACT),
    "heta-shared": ("meta-shared-delegated", EXACT),
    "heta-exact": ("meta", EXACT),
    "heta-delegated": ("meta-delegated", EXACT),
    "heta-bf16": ("meta-delegated", [*EXACT, "--set", "train.exchange_dtype=bfloat16"]),
    "graphlearn": ("graphlearn", []),
    "pyg": ("pyg", []),
    "heta-pyg": ("heta-pyg", []),
}
NO_PARTS = ("graphlearn", "pyg", "heta-pyg")  # of DGL's
LOOP = [sys.executable, str(Path(__file__).with_name("beside_loop.py"))]
DELEGATED = "-delegated"
OURS = ("meta", "relation-random", *(f"meta{how}-delegated" for how in ("", "-whole", "-shared")))
STAGES = ("sample", "features", "forward", "backward", "update")
FILLING = 1  # more epochs of metis+cache: after that which counts visits one fills the cache
KEYS = ("shape", "cohesion", "correlation", "model", "hosts", "rate", "hidden", "fanouts")
COLUMNS = (Column("s/step", "seconds", digits=3), Column("METIS ÷ this", "faster"),
           Column("PyG ÷ this", "than_pyg"),
           Column("processor s/step", "busy", digits=3), Column("METIS's ÷ these", "less_work"),
           Column("MB/step", "bytes", 1e-6), Column("fewer bytes, %", "fewer", digits=1),
           Column("GB per host", "memory", 1e-9), Column("last loss", "loss", digits=3),
           Column("test accuracy", "test", digits=3), Column("cores busy elsewhere", "others"))
PARTS = (Column("partition_graph, s", "call_s"),
         Column("peak GB of the process, graph in memory included", "peak_mb", 1e-3),
         Column("GB on disk", "bytes", 1e-9))


@dataclass(frozen=True)
class Setting:
    """What is the same for all systems that are compared."""

    shape: str
    scale: float | None
    cohesion: float
    model: str
    hosts: int
    correlation: float = 0.0

    @property
    def dataset(self) -> str:
        """The graph, as `dgl-heta` knows it."""
        if self.scale is None:
            return self.shape
        return (f"synthetic-{self.shape}:scale={self.scale:g},cohesion={self.cohesion:g},"
                f"correlation={self.correlation:g}")

    @property
    def name(self) -> str:
        """The graph, in names of files."""
        if self.scale is None:
            return re.sub(r"\W+", "-", self.shape)
        return f"{self.shape}-{self.scale:g}" + (f"-{self.cohesion:g}" if self.cohesion else "") \
            + (f"-degrees{self.correlation:g}" if self.correlation else "")


def settings(args: argparse.Namespace) -> list[Setting]:
    """In the order of the command; only synthetic graphs have scales and communities."""
    return [Setting(shape, args.scales[shape], cohesion, model, hosts,
                    args.correlation if args.scales[shape] is not None else 0.0)
            for shape in args.shapes
            for cohesion in (args.cohesion if args.scales[shape] is not None else [0.0])
            for hosts in args.hosts for model in args.models]


def parts(args: argparse.Namespace, of: Setting, method: str) -> tuple[Path, dict]:
    """The part_config of a graph, made if it is not there, and what making it took."""
    layers, model = len(args.fanouts.split(",")), of.model.removesuffix("-exact")
    kind = f"{method}-{layers}" if method in OURS else method
    kind += f"-{model}" if method.endswith(DELEGATED) else ""
    out = args.parts / f"{of.name}-{of.hosts}-{kind}"
    record = out.with_name(f"{out.name}.json")
    if not record.exists() and method in NO_PARTS:
        (graphlearn_parts if method == "graphlearn" else loop_parts)(args, of, out, record)
    if not record.exists():
        way, objective = (("metis", "vol") if method == "metis-vol" else
                          (method.removesuffix(DELEGATED), "cut"))
        script = [str(SYSTEMS_DIR / "distdgl/parts.py"), "--dataset",
                  of.dataset, "--name", "graph",
                  "--part_method", way, "--objtype", objective, "--num_parts", str(of.hosts),
                  "--output", str(out)]
        sets = [f"model.layers={layers}", f"model.name={model}",
                f"partition.replication={'none' if method == 'relation-random' else 'full'}",
                f"partition.shared={'delegate' if method.endswith(DELEGATED) else 'rows'}"]
        child = run_child([*CLI, "run", *(x for text in sets for x in ("--set", text)), *script]
                          if method in OURS else [sys.executable, *script],
                          f"{method} parts of {of.name}", 3600)
        size = sum(f.stat().st_size for f in out.rglob("*") if f.is_file())
        record.write_text(json.dumps({
            **child.result, "call_s": child.result["seconds"], "peak_mb": child.peak_mb,
            "bytes": size}) + "\n")
    return out / "graph.json", json.loads(record.read_text())


def graphlearn_parts(args: argparse.Namespace, of: Setting, out: Path, record: Path) -> None:
    """Parts by GraphLearn's own random partitioner."""
    script, files = str(SYSTEMS_DIR / "graphlearn/parts.py"), out.with_name(f"{out.name}-files")
    subprocess.run([sys.executable, script, "export",
                    of.dataset, str(files)], check=True)
    child = run_child([args.graphlearn, script, "partition", str(files), str(out), "--parts",
                       str(of.hosts)], f"GraphLearn's parts of {of.name}", 3600)
    shutil.rmtree(files)
    size = sum(f.stat().st_size for f in out.rglob("*") if f.is_file())
    record.write_text(json.dumps({"call_s": child.result["seconds"], "peak_mb": child.peak_mb,
                                  "bytes": size}) + "\n")


def loop_parts(args: argparse.Namespace, of: Setting, out: Path, record: Path) -> None:
    """A graph as plain PyG has it, or in parts of dgl_heta."""
    layers = str(len(args.fanouts.split(",")))
    child = run_child(
        [*CLI, "partition", of.dataset, "--out", str(out), "--parts", str(of.hosts), "--hops",
         layers, "--json"] if "heta-pyg" in out.name else
        [*LOOP, "pyg", str(out), "--write", of.dataset], f"{out.name}", 3600, json_wanted=False)
    size = sum(f.stat().st_size for f in out.rglob("*") if f.is_file())
    record.write_text(json.dumps({"call_s": child.seconds, "peak_mb": child.peak_mb,
                                  "bytes": size}) + "\n")


def train(args: argparse.Namespace, of: Setting, system: str, seed: int, directory: Path
          ) -> dict[str, Any]:
    """One run: a record per epoch that may count, and one to warm up, of all trainers together."""
    method, options = SYSTEMS[system]
    config, record = parts(args, of, method)
    batch, filling = args.global_batch // of.hosts or args.batch_size, 0
    if system == "metis+cache":
        filling = FILLING
        options = [*options, "--set", f"cache.batches={args.steps or 50}"]
    if method in OURS:  # a proof of each epoch's steps would count in epochs of this few
        options = [*options, "--set", "run.prove=off"]
    if system == "graphlearn":  # `env` keeps the command as it is; part_config is not read
        config, _ = parts(args, of, "random")
        script = ["env", args.graphlearn, str(SYSTEMS_DIR / "graphlearn/train.py"), "--partitions",
                  str(args.parts / f"{of.name}-{of.hosts}-graphlearn")]
    elif method in NO_PARTS:
        script = ["env", *LOOP, system, str(config.parent), "--model", of.model, "--threads", "1"]
        config = directory / "hosts.json"  # all that the launcher has to know
        config.write_text(json.dumps({"num_parts": of.hosts}))
    else:
        script = [sys.executable, str(SYSTEMS_DIR / "distdgl/train.py"), "--graph-name", "graph",
                  "--ip-config", "{ip_config}", "--part-config", "{part_config}", "--target",
                  record["target"], "--classes", str(record["classes"]), "--model", of.model,
                  *(["--evaluate"] if args.evaluate else [])]
    command = [*CLI, "launch", "--hosts", str(of.hosts), "--rate", args.rate, "--cores", "1",
               "--part-config", str(config), "--stop-after", str(args.timeout), *options, "--",
               *script, "--hidden", str(args.hidden), "--fanouts", args.fanouts,
               "--batch-size", str(batch), "--epochs", str(args.epochs + filling),
               "--steps", str(args.steps), "--seed", str(seed)]
    started = time.perf_counter()
    others = elsewhere()
    epochs = read_epochs(output_of(command, args.timeout + 60, directory / "output.log"))
    if len(epochs) != args.epochs + filling:
        sys.exit(f"error: {system} printed {len(epochs)} epochs of {args.epochs + filling}")
    return {**asdict(of), "system": system, "seed": seed,
            "rate": args.rate, "hidden": args.hidden, "fanouts": args.fanouts,
            "batch_size": batch, "whole_s": time.perf_counter() - started,
            "others": others(), "epochs": epochs[filling:]}


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
            "step_s": [max(each) for each in zip(*(t["steps"] for t in trainers))],
            "stages": {s: statistics.mean(t["stages"][s] for t in trainers) for s in STAGES},
            "bytes": sent, "causes": dict(causes),
            "busy": max(t.get("host_busy", 0.0) for t in trainers),
            "memory": max(t["memory"]["own"] + t["memory"]["shared"] for t in trainers),
            "loss": statistics.mean(t["loss"][-1] for t in trainers), **accuracy})
    return joined


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each run, with ratios to METIS of the same repeat and setting."""
    rows, base = [], {}
    for one in runs:
        measured = one["epochs"][1:] or one["epochs"]
        steps = sum(e["steps"] for e in measured)
        row = {**{k: one[k] for k in (*KEYS, "system", "seed")},
               "seconds": statistics.median(s for e in measured for s in e["step_s"]),
               "busy": statistics.median(e["busy"] / e["steps"] for e in measured) or None,
               "bytes": sum(e["bytes"] for e in measured) / steps,
               "memory": max(e["memory"] for e in measured), "others": one["others"]["all"],
               "loss": measured[-1]["loss"], "test": measured[-1].get("test"),
               "stages": {s: sum(e["stages"][s] for e in measured) / steps for s in STAGES},
               "causes": {c: sum(e["causes"].get(c, 0) for e in measured) / steps
                          for c in sorted({c for e in measured for c in e["causes"]})}}
        base[*(one[k] for k in KEYS), one["seed"], one["system"]] = row
        rows.append(row)
    for row in rows:
        key = *(row[k] for k in KEYS), row["seed"]
        if metis := base.get((*key, "metis")):
            row["faster"] = metis["seconds"] / row["seconds"]
            row["less_work"] = row["busy"] and metis["busy"] / row["busy"]
            row["fewer"] = 100 * (1 - row["bytes"] / metis["bytes"])
        if pyg := base.get((*key, "pyg")):
            row["than_pyg"] = pyg["seconds"] / row["seconds"]
    return rows


def parts_rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    """What making the parts took (Heta, Tables 3 and 4)."""
    rows: dict[tuple, dict[str, Any]] = {}
    for of in settings(args):
        for method in dict.fromkeys(SYSTEMS[s][0] for s in args.systems):
            record = parts(args, of, method)[1]
            key = of.shape, of.cohesion, of.hosts, method
            rows.setdefault(key, {
                "shape": of.shape, "cohesion": of.cohesion, "hosts": of.hosts, "parts": method,
                **{k: record[k] for k in ("call_s", "peak_mb", "bytes")}})
    return list(rows.values())


def measure(args: argparse.Namespace, directory: Path) -> list[dict[str, Any]]:
    """All runs: a graph after the other, and a setting after the other; within one all systems in
    turns. Parts of a graph are made before it is timed, and kept where `--parts` says."""
    runs: list[dict[str, Any]] = []
    for (name, hosts), group in itertools.groupby(settings(args), lambda of: (of.name, of.hosts)):
        graph = list(group)
        for of, system in itertools.product(graph, args.systems):
            parts(args, of, SYSTEMS[system][0])
        for of in graph if args.repeats else []:
            runs += in_turn(args, of, directory, runs)
        for out in args.parts.glob(f"{name}-{hosts}-*"):
            if out.is_dir() and args.parts.is_relative_to(directory):
                shutil.rmtree(out)  # not its record, which parts_rows reads
    return runs


def in_turn(args: argparse.Namespace, of: Setting, directory: Path, before: list[dict[str, Any]]
            ) -> list[dict[str, Any]]:
    """The runs of a setting; what is measured, with those `before`, is not lost if one fails."""
    own: list[dict[str, Any]] = []
    for repeat in range(args.repeats if args.within is None else args.most):
        for system in args.systems[::-1 if repeat % 2 else 1]:
            own.append(train(args, of, system, repeat, directory))
            last = own[-1]["epochs"][-1]
            progress(f"{of.name} {of.model} {system}, {of.hosts} hosts, repeat {repeat + 1}: "
                     f"{statistics.median(last['step_s']):.3f} s and "
                     f"{last['bytes'] / last['steps'] / 1e6:.2f} MB per step, "
                     f"{own[-1]['others']['all']:.2f} cores busy elsewhere")
            if args.json:
                args.json.with_suffix(".runs.json").write_text(json.dumps(before + own))
        if repeat + 1 >= args.repeats and args.within is not None and all(
                apart(of["s/step"]) <= args.within
                for of in grouped(summary(own), ["system"], COLUMNS[:1]).values()):
            break
    return own


def main() -> None:
    options = parser(__doc__, "scripts/bench/compare.py --shapes mag donor")
    options.add_argument("--shapes", nargs="+", metavar="NAME", default=["mag"],
                         help=f"{', '.join(SCALES)} or data sets (default: mag)")
    options.add_argument("--scale", type=float, help="of synthetic graphs (default: by shape)")
    options.add_argument("--cohesion", type=float, nargs="+", default=[0.0], help="least shares of "
                         "relations' edges within communities, which METIS can find (default: 0)")
    options.add_argument("--correlation", type=float, default=0.0, metavar="SHARE", help="how much "
                         "a node's degrees in its relations are alike, 0 to 1 (default: 0)")
    options.add_argument("--models", nargs="+", default=["rgcn"],
                         choices=["rgcn", "rgat", "hgt", "hgt-exact"])
    options.add_argument("--systems", nargs="+", choices=list(SYSTEMS),
                      default=[s for s in SYSTEMS if s not in NO_PARTS])
    options.add_argument("--graphlearn", metavar="PYTHON", help="of an environment with GraphLearn")
    options.add_argument("--hosts", type=int, nargs="+", default=[2])
    options.add_argument("--rate", default="1gbit")
    options.add_argument("--hidden", type=int, default=64)
    options.add_argument("--fanouts", default="25,20", help="input layer first")
    options.add_argument("--batch-size", type=int, default=1024, help="per trainer")
    options.add_argument("--global-batch", type=int, default=0, help="over all, instead")
    options.add_argument("--steps", type=int, default=6, help="per epoch; 0: all training nodes")
    options.add_argument("--epochs", type=int, default=3, help="the first one is not counted")
    options.add_argument("--evaluate", action="store_true", help="accuracy after every epoch")
    options.add_argument("--repeats", type=int, default=2, help="0: make the parts only")
    options.add_argument("--within", type=float, metavar="SHARE", help="repeat until seconds of "
                         "repeats are within this share of their median")
    options.add_argument("--most", type=int, default=6, help="repeats with --within (default: 6)")
    options.add_argument("--parts", type=Path, metavar="DIR", help="keep the parts here")
    options.add_argument("--timeout", type=float, default=900.0, help="seconds for one run")
    args = options.parse_args()
    if args.quick:
        args.scale, args.repeats, args.epochs, args.steps = (
            args.scale or 0.01, min(args.repeats, 1), 2, 3)
    if "graphlearn" in args.systems and (not args.graphlearn or args.models != ["rgcn"]):
        options.error("graphlearn needs --graphlearn PYTHON and --models rgcn")
    args.scales = {s: (args.scale or SCALES[s]) if s in SCALES else None for s in args.shapes}
    before = machine()
    with work_dir(args) as directory:
        args.parts = args.parts or directory / "parts"
        args.parts.mkdir(parents=True, exist_ok=True)
        runs = measure(args, directory)
        made, rows = parts_rows(args), summary(runs)
    scales = ", ".join(s if x is None else f"{s} × {x:g}" for s, x in args.scales.items())
    finish(args, f"DistDGL and dgl-heta on emulated hosts at {args.rate}: {scales}",
           [*([table(rows, (*KEYS, "system"), COLUMNS)] if rows else []),
            table(made, ("shape", "cohesion", "hosts", "parts"), PARTS)],
           {"rows": rows, "parts": made, "runs": runs}, before)


if __name__ == "__main__":
    main()
