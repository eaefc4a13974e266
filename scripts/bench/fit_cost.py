"""Fit the cost model (dgl_heta/planning/cluster_estimate.py) to compare.py, with held-out errors.

    python scripts/bench/compare.py --parts parts --json a.json …
    python scripts/bench/fit_cost.py a.json b.json --parts parts \
        --out dgl_heta/planning/coefficients.json

Seconds per unit of work are fitted by non-negative least squares, in shares of a step, to what is
left of a step, and of its stages, after the bytes over the link. Errors are of predictions without
the measurement: a third of the settings (shape, model, hosts, rate, hidden, fanouts) at a time is
held out of the fit, or, as a harder question, all settings of one graph. The first epoch of a run
is not counted, nor are first values of learnable rows, which `replica` fetches once. Systems with
a cache are left out.

With `--score FILE` nothing is fitted: measurements are compared with what those coefficients say.

METIS's cut is counted in `--parts`, and is otherwise taken to be the median of that which explains
measured bytes. `--tables` adds predictions for the paper's testbed and for 1 and 100 billion edges.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("DGLBACKEND", "pytorch")

import numpy as np
from common import markdown
from compare import Setting
from scipy.optimize import nnls

from dgl_heta.graph.datasets.synthetic import SHAPES, shape_schema
from dgl_heta.partition.backends.meta import Meta
from dgl_heta.partition.backends.meta_shared import MetaShared
from dgl_heta.partition.backends.relation_random import RelationRandom
from dgl_heta.partition.request import PartitionRequest
from dgl_heta.planning.cluster_estimate import (
    MEASURED,
    Cluster,
    Coefficients,
    Load,
    distdgl_load,
    estimate,
    network_seconds,
    raf_loads,
    summary,
)
from dgl_heta.planning.compute import UNITS
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.workload import Workload
from dgl_heta.settings import default_fanouts

BACKENDS = {"heta": Meta(), "heta-exact": Meta(), "heta-shared": MetaShared(),
            "relation-random": RelationRandom()}
DISTDGL = ("metis", "metis-vol", "random")
STAGES: dict[str, tuple[tuple[str, ...], tuple[str, ...], dict[str, float]]] = {
    # stages of the script, units of work in them, shares of bytes by cause
    "sample": (("sample",), ("edge", "edge_rpc"), {"sampling": 1}),
    "features": (("features",), ("gathered_rpc",), {"features": 1, "learnable": 0.5}),
    "update": (("update",), ("updated", "updated_rpc"), {"learnable": 0.5}),
    "compute": (("forward", "backward"), ("step", "module", "flop", "message", "attention"),
                {"gradients": 1})}
KEYS = ("shape", "scale", "cohesion", "model", "hosts", "rate", "hidden", "fanouts")
PAPER = {"mag": (33.76, 1.08), "freebase": (1.08, 0.57), "donor": (6.8, 0.51),
         "igb-het": (1702.93, 80.16), "mag240m": (108.87, 1.72)}  # Table 2: METIS, Heta


@dataclass(frozen=True)
class Measured:
    """A system in a setting: medians of a step's seconds and bytes, and what it should do."""

    setting: tuple[Any, ...]
    system: str
    seconds: float
    bytes: float
    stages: dict[str, float]
    plan: Plan
    work: Workload
    cluster: Cluster
    cut: float | None

    def loads(self, cut: float) -> list[Load]:
        seeds = self.work.epoch(self.plan.schema, self.plan.targets, self.cluster.machines)[1]
        if self.system in DISTDGL:
            return [distdgl_load(self.plan, self.work, self.cluster, seeds,
                                 cut if self.cut is None else self.cut)]
        return raf_loads(self.plan, self.work, self.cluster, seeds,
                         "exact" if self.system == "heta-exact" else "replica")


def read(files: Sequence[Path], parts: Path | None = None) -> list[Measured]:
    """The measurements in files of compare.py; the cuts of METIS from its parts, if given."""
    epochs_of: dict[tuple, list[dict[str, Any]]] = {}
    for file in files:
        data = json.loads(file.read_text())
        for run in data["runs"]:
            run["scale"] = data["arguments"]["scales"][run["shape"]]
            run.setdefault("cohesion", 0.0)
            if run["shape"] in SHAPES and (run["system"] in BACKENDS or run["system"] in DISTDGL):
                key = (*(run[k] for k in KEYS), run["batch_size"], run["system"])
                epochs_of.setdefault(key, []).extend(run["epochs"][1:])
            else:
                print(f"left out: {run['shape']}, {run['system']}", file=sys.stderr)
    return [_measured(key, epochs, parts) for key, epochs in sorted(epochs_of.items()) if epochs]


def _measured(key: tuple, epochs: list[dict[str, Any]], parts: Path | None) -> Measured:
    *setting, batch, system = key
    shape, scale, cohesion, model, hosts, rate, hidden, fanouts = setting
    layers = tuple(int(f) for f in fanouts.split(","))
    work = replace(_workload(shape, scale, batch), model=model, hidden=hidden, fanouts=layers)
    if epochs[0]["steps"] < work.epoch(shape_schema(shape, scale), (), hosts)[0]:
        work = replace(work, seeds=batch * hosts)  # stopped before a last, smaller batch
    once = system in ("heta", "heta-shared", "relation-random")
    cut = 1.0 if system == "random" else None
    graph = Setting(shape, scale, cohesion, model, hosts)
    folder = parts and parts / f"{graph.name}-{hosts}-{system}"
    if system in DISTDGL and cut is None and folder and folder.is_dir():
        cut = count_cut(folder, hosts)
    stages = {name: statistics.median(sum(e["stages"][s] for s in each) / e["steps"]
                                      for e in epochs) for name, (each, _, _) in STAGES.items()}
    return Measured(
        tuple(setting), system, statistics.median(
            s for e in epochs for s in e.get("step_s", [e["seconds"] / e["steps"]])),
        statistics.median((e["bytes"] - once * e["causes"].get("learnable", 0)) / e["steps"]
                          for e in epochs), stages,
        _plan(shape, scale, hosts, system, work), work,
        Cluster(machines=hosts, link_gbit=_gbit(rate), latency_us=0), cut)


@cache
def count_cut(folder: Path, parts: int) -> float:
    """Edges between DGL's parts ÷ those expected between random ones."""
    import dgl

    away = edges = 0
    for part in range(parts):
        graph = dgl.load_graphs(str(folder / f"part{part}/graph.dgl"))[0][0]
        own = graph.edata["inner_edge"].bool()
        away += int((~graph.ndata["inner_node"].bool()[graph.edges()[0][own]]).sum())
        edges += int(own.sum())
    return min(away / edges * parts / (parts - 1), 1.0)


def _workload(shape: str, scale: float, batch: int) -> Workload:
    graph = SHAPES[shape].scaled(scale)
    return Workload(batch_size=batch, fanouts=default_fanouts(2),
                    seeds=round(graph.labelled * graph.split[0]), classes=graph.num_classes,
                    feature_itemsize=np.dtype(graph.dtype).itemsize)


def _plan(shape: str, scale: float, machines: int, system: str, work: Workload) -> Plan:
    schema, target = shape_schema(shape, scale), SHAPES[shape].target
    hops = len(work.fanouts)
    if system in DISTDGL:
        return make_plan(schema, target, hops, machines)
    return BACKENDS[system].plan(schema, PartitionRequest(
        machines, (target,), hops, workload=work,
        replication="none" if system == "relation-random" else "full"))


def _gbit(rate: str) -> float:
    match = re.fullmatch(r"([\d.]+)([kmg]?)bit", rate.lower())
    if match is None:
        sys.exit(f"error: rate {rate} is not a number with kbit, mbit or gbit")
    return float(match[1]) * {"": 1e-9, "k": 1e-6, "m": 1e-3, "g": 1.0}[match[2]]


def fit(measured: Sequence[Measured]) -> Coefficients:
    """Coefficients that fit best; who is slowest is looked up again until it stays the same."""
    cuts = [_cut(one) for one in measured if one.system == "metis"]
    cut = statistics.median(cuts) if cuts else 1.0
    loads = [one.loads(cut) for one in measured]
    table = [np.array([list(load.units(1).values()) for load in each]) for each in loads]
    network = [np.array([network_seconds(load, one.cluster) for load in each])
               for one, each in zip(measured, loads)]
    names = list(loads[0][0].units(1))
    scale = np.maximum(np.vstack(table).max(0), 1e-30)
    staged = [row for one, each in zip(measured, loads) for row in _stages(one, each, names)]
    values = np.ones(len(scale)) / scale
    slowest: list[int] = []
    for _ in range(50):
        now = [int(np.argmax(rows @ values + wire)) for rows, wire in zip(table, network)]
        if now == slowest:
            break
        slowest = now
        whole = [(rows[i] / one.seconds, 1 - wire[i] / one.seconds)
                 for one, rows, wire, i in zip(measured, table, network, slowest)]
        rows, rest = zip(*whole, *staged)
        values = nnls(np.array(rows) / scale, np.array(rest))[0] / scale
    return Coefficients(seconds=dict(zip(names, map(float, values))), metis_cut=cut)


def _cut(one: Measured) -> float:
    """The cut of METIS's parts that explains the bytes measured, if it was not counted."""
    if one.cut is not None:
        return one.cut
    sent = one.loads(1.0)[0].sent
    moved = one.bytes / one.cluster.machines - sent["gradients"]
    share = min(max(moved / (sum(sent.values()) - sent["gradients"]), 0.0), 1.0)
    return 1 - (1 - share) ** (1 / one.plan.hops)


def _stages(one: Measured, loads: Sequence[Load], names: Sequence[str]
            ) -> list[tuple[np.ndarray, float]]:
    """Equations of the stages of a step, means over machines.

    Each is divided by the geometric mean of stage and step, so that short stages tell as well.
    RAF's forward and backward passes wait for other machines and are no such mean; and features
    are read in them.
    """
    equations = []
    for stage, (_, units, causes) in STAGES.items():
        if stage in ("compute", "features") and one.system not in DISTDGL:
            continue
        sent = statistics.mean(sum(load.sent.get(c, 0.0) * part for c, part in causes.items())
                               for load in loads)
        mean = {u: statistics.mean(load.work[u] for load in loads) for u in units}
        row = np.array([{**mean, "remote": sent}.get(name, 0.0) for name in names])
        wire = sent * 8 / (one.cluster.link_gbit * 1e9)
        unit = math.sqrt(one.seconds * max(one.stages[stage], 1e-3 * one.seconds))
        equations.append((row / unit, max(one.stages[stage] - wire, 0.0) / unit))
    return equations


def errors(measured: Sequence[Measured], hold: Callable[[Measured], Any]) -> list[dict[str, Any]]:
    """Every measurement beside its prediction by a fit without its group, as `hold` names it."""
    scored = []
    for group in sorted({hold(one) for one in measured}):
        rest = [one for one in measured if hold(one) != group]
        if not rest:
            continue
        scored += score([m for m in measured if hold(m) == group], fit(rest))
    return scored


def score(measured: Sequence[Measured], coefficients: Coefficients) -> list[dict[str, Any]]:
    """Every measurement beside its prediction by these coefficients."""
    scored = []
    for one in measured:
        said = summary(one.system, one.loads(coefficients.metis_cut), one.cluster, coefficients, 1)
        scored.append({
            **dict(zip(KEYS, one.setting)), "system": one.system,
            "seconds": one.seconds, "bytes": one.bytes,
            "predicted_seconds": said.seconds_per_step, "predicted_bytes": said.bytes_per_step})
    return scored


def figures(scored: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Median and largest relative errors."""
    errors: dict[str, float] = {"measurements": len(scored)}
    for what in ("seconds", "bytes"):
        off = [abs(f[f"predicted_{what}"] / f[what] - 1) for f in scored if f[what]]
        errors |= {f"{what}_median": statistics.median(off), f"{what}_max": max(off)}
    return errors


def error_table(errors: dict[str, dict[str, float]]) -> str:
    return markdown(
        ["held out", "measurements", "seconds, median", "largest", "bytes, median", "largest"],
        [[name, f"{f['measurements']:.0f}", *(f"{100 * f[k]:.0f} %" for k in (
            "seconds_median", "seconds_max", "bytes_median", "bytes_max"))]
         for name, f in errors.items()])


def rows_table(scored: Sequence[dict[str, Any]]) -> str:
    return markdown(["setting", "system", "s/step", "predicted", "MB/step", "predicted"], [
        [" ".join(str(f[k]) for k in KEYS), f["system"], f"{f['seconds']:.3f}",
         f"{f['predicted_seconds']:.3f}", f"{f['bytes'] / 1e6:.2f}",
         f"{f['predicted_bytes'] / 1e6:.2f}"] for f in scored])


def tables(coefficients: Coefficients) -> list[str]:
    """Markdown: the paper's testbed, large graphs."""
    rows = []
    for shape, paper in PAPER.items():
        cluster = Cluster(machines=2, trainers=8, cores=96, link_gbit=100, memory_gb=384)
        work = _workload(shape, 1, 64)
        said = {e.system: e for e in estimate(_plan(shape, 1, 2, "heta", work), work,
                                              cluster, coefficients)}
        for system, published in zip(("DistDGL METIS", "dgl-heta, replica"), paper):
            one = said[system]
            rows.append([shape, system, f"{one.bytes_per_step * one.steps / 1e9:,.2f}",
                         f"{published:,.2f}", f"{one.seconds_per_step * one.steps:,.1f}",
                         f"{one.memory / 1e9:,.1f}"])
    testbed = ["Paper's testbed: 2 machines, 8 trainers each, 100 Gbit/s, 1024 seeds in all; on "
               "CPU cores as measured, not its GPUs",
               markdown(["graph", "system", "GB/epoch", "paper's GB (Table 2)", "s/epoch",
                         "GB per machine"], rows)]
    rows = []
    for edges, name in ((1e9, "1 billion"), (1e11, "100 billion")):
        for shape in ("mag240m", "igb-het"):
            scale = edges / sum(shape_schema(shape).edge_counts.values())
            work = _workload(shape, scale, 1024)
            for machines in (8, 32, 64, 128, 256):
                cluster = Cluster(machines=machines, cores=96, link_gbit=100, memory_gb=384)
                plan = _plan(shape, scale, machines, "heta", work)
                exact, *others = estimate(plan, work, cluster, coefficients)
                for one in (exact, *others):
                    same = one.system == others[0].system and one.causes == exact.causes
                    if one.system != "DistDGL random" and not same:
                        rows.append([
                            name, shape, str(machines), one.system, f"{one.seconds_per_step:.3f}",
                            f"{one.seconds_per_step * one.steps:,.1f}",
                            f"{one.bytes_per_step * one.steps / 1e9:,.1f}",
                            f"{one.memory / 1e9:,.0f}{'' if one.fits else ' (too much)'}"])
    return [*testbed, "Machines of 96 cores, 384 GB and 100 Gbit/s, one trainer each, at most 1024 "
            "seeds per trainer", markdown(["edges", "shape", "machines", "system", "s/step",
                                           "s/epoch", "GB/epoch", "GB per machine"], rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUNS.json")
    parser.add_argument("--parts", type=Path, metavar="DIR", help="parts that compare.py kept")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the coefficients here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    parser.add_argument("--tables", action="store_true", help="also print predictions")
    parser.add_argument("--score", type=Path, metavar="FILE", help="compare with these alone")
    args = parser.parse_args()
    measured = read(args.runs, args.parts)
    if not measured:
        sys.exit("error: no measurement of a system that can be predicted")
    if args.score:
        scored = score(measured, Coefficients.load(args.score))
        print(error_table({f"as in {args.score.name}": figures(scored)}), rows_table(scored),
              sep="\n\n")
        return
    thirds = {s: i % 3 for i, s in enumerate(sorted({one.setting for one in measured}))}
    by_group = {"settings": errors(measured, lambda one: thirds[one.setting]),
            "graphs": errors(measured, lambda one: one.setting[0])}
    if args.parts:
        unknown = [replace(m, cut=None) if m.system != "random" else m for m in measured]
        by_group["graphs, cut unknown"] = errors(unknown, lambda one: one.setting[0])
    machine = json.loads(args.runs[0].read_text())["machine"]
    coefficients = fit(measured).model_copy(update={
        "errors": {name: figures(scored) for name, scored in by_group.items() if scored},
        "measured_on": f"emulated hosts of one core, {machine['cpu']}",
        "most": {name: max(getattr(m.cluster, name) for m in measured) for name in MEASURED}})
    print("## Cost model: errors of held-out measurements\n")
    print(f"{error_table(coefficients.errors)}\n\n{rows_table(by_group['settings'])}\n")
    print(markdown(["unit", "amount", "nanoseconds each"], [
        [unit, UNITS[unit], f"{1e9 * value:.4g}"]
        for unit, value in coefficients.seconds.items()])
        + f"\n\nEdges between METIS's parts ÷ between random ones: {coefficients.metis_cut:.3f}")
    for text in tables(coefficients) if args.tables else ():
        print(f"\n{text}")
    if args.out:
        args.out.write_text(json.dumps(coefficients.model_dump(), indent=1) + "\n")
    if args.json:
        args.json.write_text(json.dumps({"coefficients": coefficients.model_dump(),
                                         "held_out": by_group}, indent=1) + "\n")


if __name__ == "__main__":
    main()
