"""Fit the cost model of `plan --cluster` (dgl_heta/planning/cluster_estimate.py) to measurements.

    python scripts/bench/fit_cost.py --graphs synthetic-mag:scale=0.2 debian git:path=DIR … \
        --parts DIR --json FILE --out dgl_heta/planning/coefficients.json

Measures and fits. One script (systems/distdgl/train.py) trains several models after one another on
emulated hosts of one core: under plain DistDGL on METIS's parts, and under dgl-heta on
meta-partitions, with learnable rows exact, on whole relations dealt out at random, none on two
hosts (relation-random), and on relations that are all cut, as many destinations on each host
(cut). Measured are processor seconds, in which other work on the machine hardly shows: of a trainer
for each stage of a step, the median of an epoch's steps, and of the host's other processes (DGL's
servers) the mean. The first epoch warms up.

Seconds per unit of work are fitted for each system by itself and stage by stage, by non-negative
least squares in shares of a step, to work that is counted in sampled steps. Errors are of
predictions without the measurement: all those of a graph at a time are held out of the fit. They
are told for work that is counted, as `plan` does where a graph has edges, and for work that is
expected from a schema's counts alone. Those of bytes are of what the hosts sent on their links,
METIS's cut counted. Seconds are of the host that took most. How far a step's clock is from its
prediction is told, too: processor seconds, bytes over the link, latency, and for each exchange a
wait, which alone is fitted to the clock. Other work on the machine does show in that.

The parts of heta-exact are made first: what METIS's parts should do is counted on their store. What
is in FILE is not measured again; with `--score COEFFICIENTS` nothing is fitted, and
measurements are compared with what those say. Needs root for emulated hosts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("DGLBACKEND", "pytorch")

import numpy as np
from common import CLI, SYSTEMS_DIR, elsewhere, machine, markdown, output_of, progress
from compare import Setting, parts
from scipy.optimize import nnls

from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.partition.cluster_counts import count_fields
from dgl_heta.partition.directory import open_partition, write_partition
from dgl_heta.partition.graph_input import GraphInput
from dgl_heta.planning.cluster_estimate import (
    CLUSTER,
    SYSTEMS,
    WAIT,
    Cluster,
    Coefficients,
    Load,
    busy,
    distdgl_load,
    names,
    network_seconds,
    raf_loads,
    seconds,
)
from dgl_heta.planning.compute import UNITS
from dgl_heta.planning.making import make_plan, plan_without_replication
from dgl_heta.planning.partition_shares import Piece
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.receptive_field import ReceptiveField
from dgl_heta.planning.workload import MODELS, Workload

PARTS = {"heta-exact": "meta", "metis": "metis", "relation-random": "relation-random",
         "cut": "relation-random"}
"""Measured system → the method of its parts, or of those that are cut."""
CASES = [f"{model}/{rest}" for rest in (
    "64/5,5/32", "64/10,5/256", "64/25,20/512", "128/15,10/512") for model in MODELS]
GRAPHS = ("synthetic-mag:scale=0.2", "synthetic-freebase:scale=0.05", "synthetic-donor:scale=0.05",
          "synthetic-igb-het:scale=0.003")
STAGES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # those of the script; units
    "sample": (("sample",), ("step", "call", "edge", "remote")),
    "compute": (("features", "forward", "backward"), (
        "step", "call", "gathered", "flop", "product", "message", "aggregated", "updated", "remote",
        "exchange")),
    "update": (("update",), ("step", "call", "parameter", "table", "updated", "remote")),
    "servers": (("servers",), ("step", "edge", "gathered", "updated", "remote"))}
FIGURES = {"seconds": "processor seconds", "clock": "clock", "bytes": "bytes"}
LEAST = 0.02  # of a step, that a stage weighs as
RATE_GBIT = 10.0
ALONE = Cluster(machines=1, link_gbit=RATE_GBIT)
"""A core and a link, as each host has."""


def measure(args: argparse.Namespace, graph: str, system: str, hosts: int) -> list[dict[str, Any]]:
    """A record for each case and host; sizes and seconds are of a step."""
    config, made = parts(args, Setting(graph, None, 0.0, "rgcn", hosts), PARTS[system])
    config = cut(config) if system == "cut" else config
    sets = [] if system == "metis" else ["--set=train.learnable=exact", "--set=run.prove=off"]
    others = elsewhere()
    text = output_of([
        *CLI, "launch", "--hosts", str(hosts), "--rate", f"{RATE_GBIT:g}gbit", "--cores", "1",
        "--part-config", str(config), "--stop-after", str(args.timeout), *sets, "--",
        sys.executable, str(SYSTEMS_DIR / "distdgl/train.py"), "--graph-name", "graph",
        "--ip-config", "{ip_config}", "--part-config", "{part_config}", "--target", made["target"],
        "--classes", str(made["classes"]), "--epochs", "2", "--steps", str(args.steps), "--cases",
        *args.cases], args.timeout + 60, args.parts / "output.log")
    found = []
    for line in text.splitlines():
        epoch = json.loads(line[line.index('{"seconds"'):]) if '{"seconds"' in line else {}
        if epoch.get("epoch"):
            steps, own = len(epoch["steps"]), sum(map(sum, epoch["busy"].values()))
            found.append({
                "graph": graph, "system": system, "hosts": hosts, "rank": epoch["rank"],
                "case": args.cases[int(epoch["case"][1:])], "parts": config.parent.name,
                "classes": made["classes"], "seeds": epoch["seen"] / steps,
                "bytes": epoch["link"] / steps, "clock": statistics.median(epoch["steps"]),
                "stages": {**{k: statistics.median(v) for k, v in epoch["busy"].items()},
                           "servers": max(epoch["host_busy"] - own, 0.0) / steps}})
    if len(found) != hosts * len(args.cases):
        sys.exit(f"error: {system} on {graph} printed {len(found)} measurements of "
                 f"{hosts * len(args.cases)}")
    busy_elsewhere = others()["all"]
    return [{**one, "others": busy_elsewhere} for one in found]


def cut(config: Path) -> Path:
    """The part_config of a partition of the same graph in which all relations are cut."""
    out, (store, plan) = config.parent.with_name(f"{config.parent.name}-cut"), open_partition(
        config.parent)

    def halves(schema: Schema, relations: Sequence[Relation], hosts: int) -> list[list[Piece]]:
        return [[(r, n * host // hosts, n * (host + 1) // hosts)
                 for r in relations for n in [schema.node_counts[r.dst]]] for host in range(hosts)]

    if not out.exists():
        write_partition(store, plan_without_replication(
            plan.schema, plan.targets, plan.hops, plan.num_parts, halves, "cut"), out,
            graph_name=config.stem)
    return out / config.name


@dataclass(frozen=True)
class Measured:
    """A step of a host, and the work that it should be.

    Attributes
    ----------
    key : graph, system, hosts and case.
    of : one of :data:`SYSTEMS`.
    load, expected : the host's work, as counted, and as expected from the schema's counts.
    """

    key: tuple[Any, ...]
    of: str
    model: str
    stages: dict[str, float]
    clock: float
    bytes: float
    load: Load
    expected: Load
    cut: float | None

    @property
    def seconds(self) -> float:
        return sum(self.stages.values())


def read(records: Sequence[dict[str, Any]], folder: Path) -> list[Measured]:
    """The measurements with what their hosts do, by the plans among the parts."""
    measured = []
    for one in records:
        model, hidden, fanouts, batch = one["case"].split("/")
        plan, itemsize, cut = graph_of(folder / one["parts"], one["hosts"])
        work = Workload(batch_size=int(batch), hidden=int(hidden), model=model,
                        fanouts=tuple(map(int, fanouts.split(","))), classes=one["classes"],
                        feature_itemsize=itemsize)
        # Most steps have whole batches, unless there are few.
        seeds = float(batch) if one["seeds"] > int(batch) / 2 else one["seeds"]
        cluster = Cluster(machines=one["hosts"], link_gbit=RATE_GBIT)
        *fields, alone = counted(folder / one["parts"], one["hosts"], work.fanouts, seeds)
        load, expected = (
            (distdgl_load(plan, work, cluster, seeds, cut, of) for of in (alone, None))
            if cut is not None else
            (raf_loads(plan, work, cluster, seeds, "exact", of)[one["rank"]]
             for of in (fields, None)))
        measured.append(Measured(
            tuple(one[name] for name in ("graph", "system", "hosts", "case")),
            SYSTEMS[one["system"] == "metis"], model,
            {name: sum(one["stages"][s] for s in each) for name, (each, _) in STAGES.items()},
            one["clock"], one["bytes"] * seeds / one["seeds"], load, expected, cut))
    return measured


def ours(folder: Path) -> Path:
    """The directory of the meta-partitions beside parts of METIS."""
    return folder.with_name(folder.name.replace("-metis", "-meta-2"))


@cache
def counted(folder: Path, hosts: int, fanouts: tuple[int, ...], seeds: float
            ) -> list[ReceptiveField]:
    """What each host samples in a step, and last what one process would."""
    return count_fields(open_partition(ours(folder))[0], graph_of(folder, hosts)[0],
                        Workload(fanouts=fanouts), seeds)


@cache
def graph_of(folder: Path, hosts: int) -> tuple[Plan, int, float | None]:
    """The plan, bytes of a feature's numbers, and METIS's cut if these are its parts."""
    store, plan = open_partition(ours(folder))
    itemsize = GraphInput(store.schema, "", store).feature_itemsize
    if ours(folder) == folder:
        return plan, itemsize, None
    return (make_plan(plan.schema, plan.targets, plan.hops, hosts), itemsize,
            count_cut(folder, hosts))


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


def fit(measured: Sequence[Measured]) -> Coefficients:
    """The coefficients that fit best."""
    seconds = {}
    for system in SYSTEMS:
        own = [one for one in measured if one.of == system]
        seconds[system] = {name: 0.0 for model in MODELS for name in names(model).values()}
        for stage, (_, units) in STAGES.items() if own else ():
            for name, value in fit_stage(own, stage, units).items():
                # A unit that is fitted without regard to the model counts for all of them.
                for each in {names(model)[name] for model in MODELS} if name in UNITS else [name]:
                    seconds[system][each] += value
        seconds[system][WAIT] = fit_wait(own)
    cuts = [one.cut for one in measured if one.cut is not None]
    most: dict[str, dict[str, float]] = {system: {} for system in SYSTEMS}
    for one in measured:
        for unit, name in names(one.model).items():
            most[one.of][name] = max(most[one.of].get(name, 0.0), one.load.units(1)[unit])
    return Coefficients(seconds=seconds, metis_cut=statistics.median(cuts) if cuts else 1.0,
                        most=most)


def fit_stage(measured: Sequence[Measured], stage: str, units: Sequence[str]) -> dict[str, float]:
    """Unit, or its name for a model in the stage that models' operators take → seconds."""
    columns = list(dict.fromkeys(
        names(model)[unit] if stage == "compute" else unit for unit in units for model in MODELS))
    table = np.zeros((len(measured), len(columns)))
    wanted = np.empty(len(measured))
    for row, one in enumerate(measured):
        own = names(one.model) if stage == "compute" else {unit: unit for unit in units}
        amounts, least = one.load.units(1), LEAST * one.seconds
        weight = 1 / np.sqrt(one.seconds * max(one.stages[stage], least))
        for unit in units:
            table[row, columns.index(own[unit])] = amounts[unit] * weight
        wanted[row] = one.stages[stage] * weight
    scale = np.maximum(table.max(0), 1e-30)
    return dict(zip(columns, (nnls(table / scale, wanted)[0] / scale).tolist()))


def fit_wait(measured: Sequence[Measured]) -> float:
    """Seconds of the clock per exchange, beside processors, link and latency."""
    exchanges, waited = (np.array([f(one) / one.clock for one in measured]) for f in (
        lambda one: one.load.work["exchange"],
        lambda one: one.clock - one.seconds - network_seconds(one.load, ALONE, 0.0)))
    return max(float(exchanges @ waited / max(exchanges @ exchanges, 1e-30)), 0.0)


def score(measured: Sequence[Measured], coefficients: Coefficients, work: str = "load"
          ) -> list[dict[str, Any]]:
    """Each step beside its prediction, of work as counted (`load`) or `expected`: seconds and
    clock of the host that takes most, bytes of all hosts."""
    steps: dict[tuple[Any, ...], list[Measured]] = {}
    for one in measured:
        steps.setdefault(one.key, []).append(one)
    return [{"key": key, "seconds": max(one.seconds for one in each),
             "predicted_seconds": max(busy(
                 getattr(one, work), ALONE, coefficients.of(one.of, one.model)) for one in each),
             "clock": max(one.clock for one in each),
             "predicted_clock": max(seconds(
                 getattr(one, work), ALONE, coefficients.of(one.of, one.model)) for one in each),
             "bytes": sum(one.bytes for one in each),
             "predicted_bytes": sum(sum(getattr(one, work).sent.values()) for one in each)}
            for key, each in steps.items()]


def figures(scored: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Median and largest relative errors."""
    errors: dict[str, float] = {"measurements": len(scored)}
    for what in FIGURES:
        off = [abs(f[f"predicted_{what}"] / f[what] - 1) for f in scored if f[what]]
        errors |= {f"{what}_median": statistics.median(off), f"{what}_max": max(off)}
    return errors


def report(scored: Sequence[dict[str, Any]]) -> str:
    """Markdown: errors by graph and system, and of all."""
    groups = {"all": list(scored)} | {
        f"{graph}, {system}": [f for f in scored if f["key"][:2] == (graph, system)]
        for graph, system in dict.fromkeys(f["key"][:2] for f in scored)}
    return markdown(
        ["held out", "steps", *(
            head for name in FIGURES.values() for head in (f"{name}, median", "largest"))],
        [[name, f"{f['measurements']:.0f}", *(
            f"{100 * f[f'{figure}_{of}']:.0f} %" for figure in FIGURES for of in ("median", "max"))]
         for name, f in ((name, figures(of)) for name, of in groups.items())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS), metavar="NAME")
    parser.add_argument("--systems", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--hosts", nargs="+", type=int, default=[2], metavar="N")
    parser.add_argument("--cases", nargs="+", default=CASES, metavar="MODEL/HIDDEN/FANOUTS/BATCH")
    parser.add_argument("--steps", type=int, default=4, help="of an epoch (default: 4)")
    parser.add_argument("--parts", type=Path, required=True, metavar="DIR", help="keep parts here")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="measurements")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the coefficients here")
    parser.add_argument("--score", type=Path, metavar="FILE", help="compare with these alone")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for one run")
    args = parser.parse_args()
    args.fanouts = "25,20"  # two layers, of the parts
    args.parts.mkdir(parents=True, exist_ok=True)
    kept = json.loads(args.json.read_text()) if args.json.exists() else {
        "machine": machine(), "records": []}
    for graph, system, hosts in product(args.graphs, args.systems, args.hosts):
        if not any((graph, system, hosts) == (r["graph"], r["system"], r["hosts"])
                   for r in kept["records"]):
            kept["records"] += measure(args, graph, system, hosts)
            args.json.write_text(json.dumps(kept))
            progress(f"{graph}, {system}, {hosts} hosts")
    measured = read(kept["records"], args.parts)
    if args.score:
        print(report(score(measured, Coefficients.load(args.score))))
        return
    held_out: dict[str, list[dict[str, Any]]] = {"counted": [], "expected": []}
    graphs = {one.key[0]: None for one in measured}
    if len(graphs) < 2:
        sys.exit("error: only one graph is measured; errors are of one that is held out: give two")
    for graph in graphs:
        rest = fit([one for one in measured if one.key[0] != graph])
        for name, of in zip(held_out, ("load", "expected")):
            held_out[name] += score([m for m in measured if m.key[0] == graph], rest, of)
    largest = {"machines": max(one.key[2] for one in measured), "link_gbit": RATE_GBIT, "cores": 1}
    fitted = fit(measured)
    fitted = fitted.model_copy(update={
        "errors": {name: figures(scored) for name, scored in held_out.items()},
        "cut": any(one.key[1] == "cut" for one in measured),
        "measured_on": f"emulated hosts of one core, {kept['machine']['cpu']}",
        "most": {"cluster": {name: largest[name] for name in CLUSTER}, **fitted.most}})
    print("## Cost model: errors of graphs that were held out", *(
        f"\nWork {name}:\n\n{report(scored)}" for name, scored in held_out.items()), "", markdown(
        ["unit", *SYSTEMS], [[name, *(f"{1e9 * fitted.seconds[s][name]:.4g} ns" for s in SYSTEMS)]
                             for name in fitted.seconds[SYSTEMS[0]]]), sep="\n")
    print(f"\nEdges between METIS's parts ÷ between random ones: {fitted.metis_cut:.3f}")
    if args.out:
        args.out.write_text(json.dumps(fitted.model_dump(), indent=1) + "\n")


if __name__ == "__main__":
    main()
