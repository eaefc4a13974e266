"""Time and bytes of an epoch on a cluster, for RAF and for DistDGL.

From the counts of a schema alone: the expected work of a step (edges sampled, rows gathered,
operations, …: :mod:`dgl_heta.planning.compute`) times seconds per unit of it, which were fitted to
measurements (scripts/bench/fit_cost.py), plus bytes (:mod:`dgl_heta.planning.traffic`) over the
link and rounds times latency. A step takes as long as its slowest machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dgl_heta.errors import InputError, listing, nearest, quoted
from dgl_heta.graph.schema import read_json
from dgl_heta.planning import traffic
from dgl_heta.planning.compute import UNITS, parameter_groups, step_units
from dgl_heta.planning.cost import below_last
from dgl_heta.planning.footprint import distdgl_footprint, footprint, type_bytes
from dgl_heta.planning.gpu import GPUS, Gpu, forecast
from dgl_heta.planning.making import MOST_PARTS
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.receptive_field import (
    ReceptiveField,
    ReceptiveFields,
    field_of_one_process,
)
from dgl_heta.planning.workload import Workload
from dgl_heta.settings import Settings, read_toml

SERIAL = ("step", "module", "exchange")
"""Units that more cores do not make faster."""
MEASURED = ("machines", "link_gbit", "cores")
"""What of a cluster is compared with the measurements that coefficients were fitted to; `cores` are
those of a trainer."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Coefficients(_File):
    """The seconds of a unit of work on the machine of the measurements.

    `seconds` has one value per key of :data:`UNITS`; `metis_cut` is the number of edges between
    METIS's parts ÷ that between random ones; `errors` are relative, of measurements held out.
    `most` has the largest values of :data:`MEASURED` among the measurements.
    """

    seconds: dict[str, float]
    metis_cut: float = Field(ge=0, le=1)
    errors: dict[str, dict[str, float]] = {}
    measured_on: str = ""
    most: dict[str, float] = {}

    def unmeasured(self, plan: Plan, cluster: Cluster) -> list[str]:
        """Return what of a prediction is outside of the measurements, as far as they are known."""
        of = {"machines": cluster.machines, "link_gbit": cluster.link_gbit,
              "cores": cluster.cores / cluster.trainers}
        beyond = [f"{name} = {of[name]:g} (measured: at most {most:g})"
                  for name, most in self.most.items() if of[name] > most]
        return [*beyond, *(["a plan without replication"] if plan.replication == "none" else [])]

    @classmethod
    def load(cls, path: str | Path | None = None) -> Coefficients:
        """From a file of fit_cost.py; default: those that dgl-heta comes with."""
        path = Path(path or Path(__file__).with_name("coefficients.json"))
        read = _read(cls, read_json(path, "coefficients"), f"coefficients {path}")
        if set(read.seconds) != set(UNITS) or min(read.seconds.values()) < 0:
            raise InputError(f"coefficients {path}: 'seconds' must have a number, 0 or more, for "
                             f"each of {listing(UNITS)}")
        if not {*read.most} <= {*MEASURED}:
            raise InputError(f"coefficients {path}: 'most' can have {listing(MEASURED)}")
        return read


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
    """A prediction for one system; `memory` and `seconds_*` of the machine that has most; `gpu` of
    the slowest, or one that its step does not fit (:func:`~dgl_heta.planning.gpu.forecast`)."""

    system: str
    steps: int
    seconds_per_step: float
    bytes_per_step: float
    causes: dict[str, float]
    memory: float
    fits: bool | None
    gpu: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        own = {name: value for name, value in asdict(self).items() if name != "gpu" or value}
        return {**own, "seconds_per_epoch": self.seconds_per_step * self.steps,
                "bytes_per_epoch": self.bytes_per_step * self.steps}


def estimate(plan: Plan, work: Workload, cluster: Cluster,
             coefficients: Coefficients | None = None,
             counted: Mapping[str, Mapping[str, float]] | None = None,
             settings: Settings | None = None) -> list[Estimate]:
    """Predict RAF over `plan`, learnable features exact and as replicas, and DistDGL.

    Parameters
    ----------
    counted : system → cause → bytes that a machine sends in a step for rows that were counted on
        the graph, with a trainer on each; they replace those that are expected.
    settings : of steps on the cluster's GPUs.

    Raises
    ------
    InputError
        A plan for another number of machines.
    """
    coefficients = coefficients or Coefficients.load(cluster.coefficients)
    cut = coefficients.metis_cut if cluster.metis_cut is None else cluster.metis_cut
    steps, seeds = work.epoch(plan.schema, plan.targets, cluster.machines * cluster.trainers)
    loads_of = {
        "dgl-heta": raf_loads(plan, work, cluster, seeds, "exact"),
        "dgl-heta, replica": raf_loads(plan, work, cluster, seeds, "replica"),
        "DistDGL METIS": [distdgl_load(plan, work, cluster, seeds, cut)],
        "DistDGL random": [distdgl_load(plan, work, cluster, seeds, 1.0)]}
    for name, causes in (counted or {}).items():
        loads_of[name] = [replace(load, sent={**load.sent, **{
            cause: size * cluster.trainers for cause, size in causes.items()
            if size or cause in load.sent}}) for load in loads_of[name]]
    cores = cluster.speed * cluster.cores / cluster.trainers
    cpu = {unit: each / cores for unit, each in coefficients.seconds.items()}
    on_gpu: dict[str, dict[str, Any]] = {name: max((
        forecast(load, plan.schema, work, cluster.gpu, settings or Settings(), cpu,
                 seconds(load, cluster, coefficients, ("exchange", "remote")))
        for load in loads if cluster.gpu and load.step),
        key=lambda one: (not one["fits"], one["seconds_per_step"]), default={})
        for name, loads in loads_of.items()}
    return [replace(summary(name, loads, cluster, coefficients, steps), gpu=on_gpu[name] or None)
            for name, loads in loads_of.items()]


def summary(system: str, loads: Sequence[Load], cluster: Cluster, coefficients: Coefficients,
            steps: int) -> Estimate:
    """One system's prediction from what its machines do; a single load stands for all of them."""
    each = cluster.machines / len(loads)
    causes: Counter[str] = Counter()
    for load in loads:
        causes.update({cause: size * each for cause, size in load.sent.items()})  # type: ignore
    memory = max(load.memory for load in loads)
    return Estimate(
        system, steps, max(seconds(load, cluster, coefficients) for load in loads),
        sum(causes.values()), dict(causes), memory,
        None if cluster.memory_gb is None else memory <= cluster.memory_gb * 1e9)


def seconds(load: Load, cluster: Cluster, coefficients: Coefficients,
            units: Container[str] = UNITS) -> float:
    """Seconds of a machine's step: its work, of `units` alone, its link, latency."""
    cores = cluster.cores / cluster.trainers
    busy = sum(coefficients.seconds[unit] * amount / (1 if unit in SERIAL else cores)
               for unit, amount in load.units(cluster.trainers).items() if unit in units)
    return busy / cluster.speed + network_seconds(load, cluster)


def network_seconds(load: Load, cluster: Cluster) -> float:
    """Seconds of a machine's step on its link, and of latency."""
    return (sum(load.sent.values()) * 8 / (cluster.link_gbit * 1e9)
            + load.rounds * cluster.latency_us * 1e-6)


def raf_loads(plan: Plan, work: Workload, cluster: Cluster, seeds: float,
              learnable: str) -> list[Load]:
    """The work of every partition in a step of `seeds` seeds per trainer."""
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
    common = {} if whole else below_last(in_scripts, replace(script, batch_size=seeds))  # type: ignore[arg-type]
    steps: dict[Any, ReceptiveField] = {}
    fields = ReceptiveFields(in_scripts, work.fanouts_of(plan.hops))
    loads = []
    for partition in plan.partitions:
        size = len(plan.groups[partition.group])
        key = (size, tuple(partition.sub_metatrees.items()) if whole else partition.index)
        if key not in steps:
            # Without replication every worker completes the rows of all seeds below the last layer.
            steps[key] = fields.field(partition.index, seeds * size,
                                      seeds if whole else seeds * size)
        step = steps[key]
        # Forward and backward: one at the last layer, a ring for each type at each below, of
        # which all first tell each other the rows; then gradients.
        merges = (plan.hops - 1) * (1 if whole else len(common))
        told = 0 if whole else plan.hops - 1 + merges
        exchanges = (2 + 2 * merges + told) * (size > 1) + 2 * (machines > 1)
        rounds = (2 + 4 * (size - 1) * merges + told) * (size > 1) + (2 * machines - 1) * (
            machines > 1)
        sent = {"partials": traffic.partials(size, seeds, row_bytes) * cluster.trainers,
                "gradients": gradients}
        if common:
            sent["partials"] = cluster.trainers * (
                traffic.partials(size, seeds, traffic.last_layer(script))
                + sum(partials for partials, _ in common.values()))
            sent["sampling"] = cluster.trainers * sum(ids for _, ids in common.values())
        memory = float(footprint(schema, partition, work))
        for ntype, rows in step.inputs.items():
            if not schema.feature_bytes.get(ntype) and users[ntype] > 1 and learnable == "exact":
                away = traffic.owned_elsewhere(users[ntype])
                share = rows / max(schema.node_counts[ntype], 1)
                sent["learnable"] = sent.get("learnable", 0.0) + cluster.trainers * (
                    traffic.learnable(rows * away, script, share))
                exchanges += 2
                rounds += 4
                if ntype in partition.node_types:  # else it has no row of it
                    memory -= (traffic.owned_elsewhere(len(plan.users(ntype)))
                               * type_bytes(schema, [ntype], work)[1])
        loads.append(Load(step_units(schema, step, work, exchanges, work.model == "rgcn"),
                          sent, rounds, memory, step, frozenset(
                              t for t in step.inputs if not schema.feature_bytes.get(t)
                              and learnable == "exact" and users[t] * cluster.trainers > 1)))
    return loads


def distdgl_load(plan: Plan, work: Workload, cluster: Cluster, seeds: float,
                 cut: float) -> Load:
    """The work of a machine in a step of data-parallel training over parts of the nodes.

    `cut` is the number of edges between parts ÷ that between random ones: a row that is k hops
    away is remote as often as under random parts but for the share `(1 - cut) ** k`.
    """
    schema, machines = plan.schema, cluster.machines
    step = field_of_one_process(plan, work.fanouts_of(plan.hops), seeds)

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
    for unit in ("edge", "updated", "gathered"):
        units[f"{unit}_rpc"], units[unit] = units[unit], 0.0
    return Load(units, sent, rounds * (machines > 1), distdgl_footprint(schema, work) / machines)
