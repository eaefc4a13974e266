"""Time and bytes of an epoch on a cluster, for RAF and for DistDGL.

From the counts of a schema alone: the expected work of a step (edges sampled, rows gathered,
operations, …: :mod:`dgl_heta.planning.compute`) times seconds per unit of it, which were fitted to
measurements (scripts/bench/fit_cost.py), plus bytes (:mod:`dgl_heta.planning.traffic`) over the
link and rounds times latency. A step takes as long as its slowest machine.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dgl_heta.errors import InputError, listing, nearest, quoted
from dgl_heta.graph.schema import read_json
from dgl_heta.planning import traffic
from dgl_heta.planning.compute import OF_MODELS, UNITS, parameter_groups, step_units
from dgl_heta.planning.cost import below_last
from dgl_heta.planning.footprint import distdgl_footprint, footprint, type_bytes
from dgl_heta.planning.gpu import GPUS, SAMPLERS, Gpu, forecast
from dgl_heta.planning.making import MOST_PARTS
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.receptive_field import (
    ReceptiveField,
    ReceptiveFields,
    field_of_one_process,
)
from dgl_heta.planning.workload import MODELS, Workload
from dgl_heta.settings import Settings, read_toml

SERIAL = ("step", "call", "table", "exchange")
"""Units that more cores do not make faster."""
SYSTEMS = ("dgl-heta", "DistDGL")
"""Whose seconds of a unit of work are fitted, each by itself."""
WAIT = "wait"
"""Fitted beside units: clock seconds of an exchange in which its processes wake each other."""
CLUSTER = ("machines", "link_gbit", "cores")
"""What of a cluster is compared with the measurements that coefficients were fitted to; `cores` are
those of a trainer."""
SHARE = 0.1
"""Work beyond what was measured is named if it takes at least so much of a step."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Coefficients(_File):
    """The processor seconds of a unit of work on the machine of the measurements.

    `seconds` has one value for each of :data:`SYSTEMS` and each unit of :data:`UNITS`, where it is
    one of :data:`OF_MODELS` of each model (`call rgcn`), and for :data:`WAIT`. `metis_cut`: edges
    between METIS's parts ÷ those between random ones; `errors` are relative, of measurements held
    out. `most` has the largest values among the measurements: of :data:`CLUSTER`, and for each
    system of each unit; `cut` says whether there were relations that are cut.
    """

    seconds: dict[str, dict[str, float]]
    metis_cut: float = Field(ge=0, le=1)
    errors: dict[str, dict[str, float]] = {}
    measured_on: str = ""
    cut: bool = False
    most: dict[str, dict[str, float]] = {}

    def of(self, system: str, model: str) -> dict[str, float]:
        """Unit, or :data:`WAIT` → seconds of one of :data:`SYSTEMS`."""
        own = {**names(model), WAIT: WAIT}
        return {unit: self.seconds[system][name] for unit, name in own.items()}

    def beyond(self, system: str, model: str, cluster: Cluster, load: Load) -> list[str]:
        """Return what of a machine's step is beyond the measurements; nothing: all is inside."""
        of = {"machines": cluster.machines, "link_gbit": cluster.link_gbit,
              "cores": cluster.cores / cluster.trainers}
        found = [f"{name} = {of[name]:g} (measured: at most {most:g})"
                 for name, most in self.most.get("cluster", {}).items() if of[name] > most]
        each, most = self.of(system, model), self.most.get(system, {})
        units, whole = load.units(cluster.trainers), seconds(load, cluster, each)
        return found + [
            f"{UNITS[unit]} = {units[unit]:.2g} (measured: at most {most[name]:.2g})"
            for unit, name in names(model).items() if units[unit] > most.get(name, math.inf)
            and busy(load, cluster, each, (unit,)) >= SHARE * whole]

    @classmethod
    def load(cls, path: str | Path | None = None) -> Coefficients:
        """From a file of fit_cost.py; default: those that dgl-heta comes with."""
        path = Path(path or Path(__file__).with_name("coefficients.json"))
        read = _read(cls, read_json(path, "coefficients"), f"coefficients {path}")
        units = {WAIT} | {name for model in MODELS for name in names(model).values()}
        if {*read.seconds} != {*SYSTEMS} or any(
                {*of} != units or min(of.values()) < 0 for of in read.seconds.values()):
            raise InputError(f"coefficients {path}: 'seconds' of each of {listing(SYSTEMS)} must "
                             f"have a number, 0 or more, for each of {listing(sorted(units))}")
        for of, known in (("cluster", {*CLUSTER}), *((s, units) for s in SYSTEMS)):
            if not {*read.most.get(of, {})} <= known:
                raise InputError(f"coefficients {path}: 'most' of {of} can have "
                                 f"{listing(sorted(known))}")
        return read


def names(model: str) -> dict[str, str]:
    """Unit of :data:`UNITS` → its name among the coefficients, of a model."""
    return {unit: f"{unit} {model}" if unit in OF_MODELS else unit for unit in UNITS}


class Cluster(_File):
    """The machines that a prediction is for.

    `speed` is that of a core, relative to the one that the coefficients were fitted on; a trainer
    has `cores / trainers` of them, and its work is taken to scale with them. `metis_cut` and
    `coefficients`, a file of fit_cost.py, replace those that dgl-heta comes with. Each trainer has
    a `gpu`, in a file a name of :data:`~dgl_heta.planning.gpu.GPUS` or a table of the same figures.
    """

    machines: int = Field(ge=1, le=MOST_PARTS)
    trainers: int = Field(1, ge=1)
    cores: int = Field(1, ge=1)
    link_gbit: float = Field(gt=0)
    latency_us: float = Field(50.0, ge=0)
    memory_gb: float | None = Field(None, gt=0)
    speed: float = Field(1.0, ge=1e-3)
    metis_cut: float | None = Field(None, ge=0, le=1)
    coefficients: str | None = None
    gpu: Gpu | None = None

    @classmethod
    def load(cls, path: str | Path) -> Cluster:
        """Read a TOML file, or a JSON file by its name.

        Raises
        ------
        InputError
            An unreadable file, an unknown or missing key, a value out of range.
        """
        path = Path(path)
        data: Any = (read_json if path.suffix == ".json" else read_toml)(path, "cluster")
        if isinstance(data, dict) and (gpu := data.get("gpu")) is not None:
            figures = GPUS.get(gpu) if isinstance(gpu, str) else gpu
            if not isinstance(figures, dict):
                raise InputError(f"cluster {path}: gpu is {quoted(gpu)}; it must be one of "
                                 f"{listing(GPUS)}, or a table of {listing(Gpu.model_fields)}"
                                 + nearest(str(gpu), GPUS))
            data["gpu"] = _read(Gpu, figures, f"cluster {path}: gpu")
        read = _read(cls, data, f"cluster {path}")
        if read.coefficients:
            read = read.model_copy(update={"coefficients": str(path.parent / read.coefficients)})
        return read


def _read(kind: Any, data: Any, origin: str) -> Any:
    if not isinstance(data, dict):
        raise InputError(f"{origin} must be an object of keys and values")
    for key in data:
        if key not in kind.model_fields:
            raise InputError(f"{origin}: unknown key '{key}'; keys: {listing(kind.model_fields)}"
                             + nearest(key, kind.model_fields))
    try:
        return kind.model_validate(data, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        got = "" if first["type"] == "missing" else f"; got {quoted(first['input'])}"
        raise InputError(f"{origin}: {where}: {first['msg']}{got}") from None


@dataclass(frozen=True)
class Load:
    """The work of one machine in a step.

    Attributes
    ----------
    work : :data:`UNITS` → amount, of one of its trainers; all but `remote`.
    sent : cause → bytes that the machine sends.
    rounds : messages that wait for one another; an all-reduce goes around a ring twice.
    memory : bytes that the machine holds.
    step, shared : rows of a trainer's step (None: DistDGL's, whose kernels on a GPU were not
        counted), and types whose learnable rows other trainers use, too.
    """

    work: dict[str, float]
    sent: dict[str, float]
    rounds: float
    memory: float
    step: ReceptiveField | None = None
    shared: frozenset[str] = frozenset()

    def units(self, trainers: int) -> dict[str, float]:
        """All units of work of a trainer, in the order of :data:`UNITS`."""
        return {**self.work, "remote": sum(self.sent.values()) / trainers}


@dataclass(frozen=True)
class Estimate:
    """A prediction for one system; `memory` and `seconds_*` of the machine that has most; `beyond`
    says what of the seconds is beyond the measurements; `gpu` of the slowest, or one that its step
    does not fit (:func:`~dgl_heta.planning.gpu.forecast`)."""

    system: str
    steps: int
    seconds_per_step: float
    bytes_per_step: float
    causes: dict[str, float]
    memory: float
    fits: bool | None
    beyond: list[str]
    gpu: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        own = {name: value for name, value in asdict(self).items() if name != "gpu" or value}
        return {**own, "seconds_per_epoch": self.seconds_per_step * self.steps,
                "bytes_per_epoch": self.bytes_per_step * self.steps}


def estimate(plan: Plan, work: Workload, cluster: Cluster,
             coefficients: Coefficients | None = None,
             counted: Mapping[str, Mapping[str, float]] | None = None,
             fields: Sequence[ReceptiveField] | None = None,
             settings: Settings | None = None) -> list[Estimate]:
    """Predict RAF over `plan`, learnable features exact and as replicas, and DistDGL.

    Parameters
    ----------
    counted : system → cause → bytes that a trainer of a machine sends in a step for rows that were
        counted on the graph; they replace those that are expected.
    fields : the rows and edges that each partition samples in a step, and last those of one
        process, as they were counted; they, too, replace those that are expected.
    settings : of steps on the cluster's GPUs.

    Raises
    ------
    InputError
        A plan for another number of machines.
    """
    coefficients = coefficients or Coefficients.load(cluster.coefficients)
    cut = coefficients.metis_cut if cluster.metis_cut is None else cluster.metis_cut
    steps, seeds = work.epoch(plan.schema, plan.targets, cluster.machines * cluster.trainers)
    ours, alone = (fields[:-1], fields[-1]) if fields else (None, None)
    loads_of = {
        "dgl-heta": raf_loads(plan, work, cluster, seeds, "exact", ours),
        "dgl-heta, replica": raf_loads(plan, work, cluster, seeds, "replica", ours),
        "DistDGL METIS": [distdgl_load(plan, work, cluster, seeds, cut, alone)],
        "DistDGL random": [distdgl_load(plan, work, cluster, seeds, 1.0, alone)]}
    for name, causes in (counted or {}).items():
        loads_of[name] = [replace(load, sent={**load.sent, **{
            cause: size * cluster.trainers for cause, size in causes.items()
            if size or cause in load.sent}}) for load in loads_of[name]]
    samplers = min(cluster.cores / cluster.trainers, SAMPLERS)  # else one thread
    on_cpu = coefficients.of(SYSTEMS[0], work.model)
    cpu = {unit: each / cluster.speed / (samplers if unit == "edge" else 1)
           for unit, each in on_cpu.items()}
    on_gpu: dict[str, dict[str, Any]] = {name: max((
        forecast(load, plan.schema, work, cluster.gpu, settings or Settings(), cpu,
                 busy(load, cluster, on_cpu, ("exchange", "remote"))
                 + network_seconds(load, cluster, on_cpu[WAIT]))
        for load in loads if cluster.gpu and load.step),
        key=lambda one: (not one["fits"], one["seconds_per_step"]), default={})
        for name, loads in loads_of.items()}
    return [replace(summary(name, loads, plan, work, cluster, coefficients, steps),
                    gpu=on_gpu[name] or None) for name, loads in loads_of.items()]


def summary(system: str, loads: Sequence[Load], plan: Plan, work: Workload, cluster: Cluster,
            coefficients: Coefficients, steps: int) -> Estimate:
    """One system's prediction from what its machines do; a single load stands for all of them."""
    each = cluster.machines / len(loads)
    causes: Counter[str] = Counter()
    for load in loads:
        causes.update({cause: size * each for cause, size in load.sent.items()})  # type: ignore
    memory = max(load.memory for load in loads)
    of = next(name for name in SYSTEMS if system.startswith(name))
    slowest = max(loads, key=lambda one: seconds(one, cluster, coefficients.of(of, work.model)))
    return Estimate(
        system, steps, seconds(slowest, cluster, coefficients.of(of, work.model)),
        sum(causes.values()), dict(causes), memory,
        None if cluster.memory_gb is None else memory <= cluster.memory_gb * 1e9,
        [*coefficients.beyond(of, work.model, cluster, slowest), *(
            ["relations that are cut"] if of == SYSTEMS[0] and not coefficients.cut
            and any(p.ranges or p.owned for p in plan.partitions) else [])])


def seconds(load: Load, cluster: Cluster, each: Mapping[str, float]) -> float:
    """Seconds of a machine's step: its work, its link, waits. `each` has those of a unit."""
    return busy(load, cluster, each) + network_seconds(load, cluster, each[WAIT])


def busy(load: Load, cluster: Cluster, each: Mapping[str, float],
         units: Container[str] = UNITS) -> float:
    """Seconds of work, of `units` alone, by what one of each takes on a core."""
    cores = cluster.cores / cluster.trainers
    return sum(each[unit] * amount / (1 if unit in SERIAL else cores)
               for unit, amount in load.units(cluster.trainers).items()
               if unit in units) / cluster.speed


def network_seconds(load: Load, cluster: Cluster, wait: float) -> float:
    """Seconds of a machine's step on its link, of latency, and of so long a wait an exchange."""
    return (sum(load.sent.values()) * 8 / (cluster.link_gbit * 1e9)
            + load.rounds * cluster.latency_us * 1e-6 + load.work["exchange"] * wait)


def raf_loads(plan: Plan, work: Workload, cluster: Cluster, seeds: float, learnable: str,
              counted: Sequence[ReceptiveField] | None = None) -> list[Load]:
    """The work of every partition in a step of `seeds` seeds per trainer; `counted` are the rows
    and edges that each samples, in place of those expected."""
    if plan.num_parts != cluster.machines:
        raise InputError(f"a plan for {plan.num_parts} partitions cannot be predicted on "
                         f"{cluster.machines} machines; it must have a partition per machine")
    schema, machines, whole = plan.schema, cluster.machines, plan.replication == "full"
    groups = [(size, owners * cluster.trainers) for size, owners in parameter_groups(plan, work)]
    gradients = traffic.gradients(machines, sum(size for size, owners in groups if owners > 1),
                                  sum(size for size, owners in groups if owners == 1), work)
    row_bytes, script = traffic.script_bytes(plan.hops, work), replace(work, in_script=True)
    in_scripts = plan.for_scripts()
    users = {t: len(in_scripts.users(t)) for t in schema.node_types}
    known: dict[Any, ReceptiveField] = {}
    fields, steps = ReceptiveFields(in_scripts, work.fanouts_of(plan.hops)), [*(counted or ())]
    for partition in () if counted else plan.partitions:
        size = len(plan.groups[partition.group])
        key = (size, tuple(partition.sub_metatrees.items()) if whole else partition.index)
        if key not in known:
            known[key] = fields.field(partition.index, seeds * size, seeds)
        steps.append(known[key])
    common = {} if whole else below_last(in_scripts, replace(script, batch_size=seeds), counted)  # type: ignore[arg-type]
    # Owners have even ranges of shared rows: they answer for, and update, an even part of what all
    # users read.
    moved = {t: [step.inputs.get(t, 0.0) for step in steps] for t in schema.node_types
             if not schema.feature_bytes.get(t) and users[t] > 1 and learnable == "exact"}
    loads = []
    for partition, step in zip(plan.partitions, steps):
        size = len(plan.groups[partition.group])
        # Forward and backward: one at the last layer, a ring for each type at each below, of
        # which all first tell each other the rows; then gradients.
        merges = (plan.hops - 1) * (1 if whole else len({*common} & {*schema.node_types}))
        told = 0 if whole else plan.hops - 1 + merges
        exchanges = (2 + 2 * merges + told) * (size > 1) + 2 * (machines > 1)
        rounds = (2 + 4 * (size - 1) * merges + told) * (size > 1) + (2 * machines - 1) * (
            machines > 1)
        sent = {"partials": traffic.partials(size, seeds, row_bytes) * cluster.trainers,
                "gradients": gradients}
        if common:
            sent["partials"] = cluster.trainers * (
                traffic.partials(size, seeds, traffic.last_layer(script))
                + sum(partials for of, (partials, _) in common.items()
                      if isinstance(of, str) or of in partition.relations))
            sent["sampling"] = cluster.trainers * sum(ids for _, ids in common.values())
        memory = float(footprint(schema, partition, work))
        units = step_units(schema, step, work, exchanges, True)
        units["parameter"] = sum(size for size, _ in groups)
        for ntype in moved.keys() & step.inputs.keys():
            rows, even = step.inputs[ntype], sum(moved[ntype]) / users[ntype]
            away = traffic.owned_elsewhere(users[ntype])
            share = rows / max(schema.node_counts[ntype], 1)
            sent["learnable"] = sent.get("learnable", 0.0) + cluster.trainers * (
                traffic.learnable((rows + even) / 2 * away, script, share))
            units["updated"] += (even - rows) * work.row_bytes
            units["exchange"] += 2
            rounds += 4
            if ntype in partition.node_types:  # else it has no row of it
                memory -= (traffic.owned_elsewhere(len(plan.users(ntype)))
                           * type_bytes(schema, [ntype], work)[1])
        loads.append(Load(units, sent, rounds, memory, step, frozenset(
            t for t in step.inputs if not schema.feature_bytes.get(t)
            and learnable == "exact" and users[t] * cluster.trainers > 1)))
    return loads


def distdgl_load(plan: Plan, work: Workload, cluster: Cluster, seeds: float, cut: float,
                 counted: ReceptiveField | None = None) -> Load:
    """The work of a machine in a step of data-parallel training over parts of the nodes.

    `cut` is the number of edges between parts ÷ that between random ones: a row that is k hops
    away is remote as often as under random parts but for the share `(1 - cut) ** k`.
    """
    schema, machines = plan.schema, cluster.machines
    step = counted or field_of_one_process(plan, work.fanouts_of(plan.hops), seeds)

    def remote(hops: int) -> float:
        return (1 - (1 - cut) ** hops) * (machines - 1) / machines

    sent = dict.fromkeys(("features", "learnable", "sampling"), 0.0)
    exchanges, rounds = plan.hops + 1, 2.0 * plan.hops + 2 * (machines - 1)
    for ntype, rows in step.inputs.items():
        width, away = schema.feature_bytes.get(ntype, 0), remote(plan.hops) * rows
        sent["features" if width else "learnable"] += cluster.trainers * (
            traffic.features(away, width) if width else traffic.pulled(away, work))
        exchanges += 1 if width else 2
        rounds += 2 if width else 4
    for hop, layer in enumerate(step.layers):
        sent["sampling"] += cluster.trainers * remote(hop) * traffic.remote_sampling(
            sum(layer.inner.values()), layer.inner_edges)
    parameters = sum(size for size, _ in parameter_groups(plan, work))
    sent["gradients"] = traffic.gradients(machines, parameters, 0, work)
    units = step_units(schema, step, work, exchanges * (machines > 1))
    units["parameter"] = parameters
    return Load(units, sent, rounds * (machines > 1), distdgl_footprint(schema, work) / machines)
