"""Time and bytes of an epoch on a cluster, for RAF and for DistDGL.

From the counts of a schema alone: the expected work of a step (edges sampled, rows gathered,
operations, …) times seconds per unit of it, which were fitted to measurements
(scripts/bench/fit_cost.py), plus bytes over the link and rounds times latency. A step takes as long
as its slowest machine.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dgl_heta.errors import InputError, listing, nearest
from dgl_heta.graph.schema import Relation, Schema, read_json
from dgl_heta.planning.cost import Workload, aggregated_first, memory, type_bytes
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.plan import Plan
from dgl_heta.settings import tomllib

MODELS = ("rgcn", "rgat", "hgt")
UNITS = {
    "step": "steps", "module": "relations run, over all layers",
    "edge": "edges sampled by dgl-heta", "edge_rpc": "edges sampled by DistDGL",
    "gathered": "bytes of input rows read by dgl-heta", "gathered_rpc": "by DistDGL",
    "flop": "operations of dense layers, forward",
    "message": "bytes of messages along edges", "attention": "the same, weighted by attention",
    "updated": "bytes of learnable rows updated by dgl-heta", "updated_rpc": "by DistDGL",
    "remote": "bytes sent to other machines", "exchange": "exchanges with other machines"}
SERIAL = ("step", "module", "exchange")
"""Units that more cores do not make faster."""

SPREAD = 0.7
"""Sigma of degrees and popularity, which are taken to be log-normal."""
_POINTS, _SHARES = np.polynomial.hermite_e.hermegauss(9)
_POPULARITY = np.exp(SPREAD * _POINTS - SPREAD**2 / 2)
_SHARES = _SHARES / _SHARES.sum()
_EDGE_BYTES, _ID_BYTES, _ITEM, _HEADS = 24, 8, 4, 4


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Coefficients(_File):
    """What a unit of work costs on the machine of the measurements.

    `seconds` has one value per key of :data:`UNITS`; `metis_cut` is the number of edges between
    METIS's parts ÷ that between random ones; `errors` are relative, of measurements held out.
    """

    seconds: dict[str, float]
    metis_cut: float = Field(ge=0, le=1)
    errors: dict[str, dict[str, float]] = {}
    measured_on: str = ""

    @classmethod
    def load(cls, path: Path | None = None) -> Coefficients:
        """From a file of fit_cost.py; default: those that dgl-heta comes with."""
        path = path or Path(__file__).with_name("coefficients.json")
        found = _read(cls, read_json(path, "coefficients"), f"coefficients {path}")
        if set(found.seconds) != set(UNITS) or min(found.seconds.values()) < 0:
            raise InputError(f"coefficients {path}: 'seconds' must have a number, 0 or more, for "
                             f"each of {listing(UNITS)}")
        return found


class Cluster(_File):
    """The machines that a prediction is for.

    `speed` is that of a core, relative to the one that the coefficients were fitted on; a trainer
    has `cores / trainers` of them, and its work is taken to scale with them. `metis_cut` and
    `coefficients`, a file of fit_cost.py, replace those that dgl-heta comes with.
    """

    machines: int = Field(ge=1, le=65536)
    trainers: int = Field(1, ge=1)
    cores: int = Field(1, ge=1)
    link_gbit: float = Field(gt=0)
    latency_us: float = Field(50.0, ge=0)
    memory_gb: float | None = Field(None, gt=0)
    speed: float = Field(1.0, ge=1e-3)
    metis_cut: float | None = Field(None, ge=0, le=1)
    coefficients: str | None = None

    @classmethod
    def load(cls, path: str | Path) -> Cluster:
        """Read a TOML file, or a JSON file by its name.

        Raises
        ------
        InputError
            An unreadable file, an unknown or missing key, a value out of range.
        """
        path = Path(path)
        if path.suffix == ".json":
            data = read_json(path, "cluster")
        else:
            try:
                data = tomllib.loads(path.read_text(encoding="utf-8"))
            except OSError as error:
                raise InputError(f"cannot read cluster {path}: {error.strerror or error}") from None
            except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
                raise InputError(f"cluster {path} is not TOML: {error}") from None
        found = _read(cls, data, f"cluster {path}")
        if found.coefficients:
            found = found.model_copy(
                update={"coefficients": str(path.parent / found.coefficients)})
        return found


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
        got = "" if first["type"] == "missing" else f"; got {first['input']!r}"
        raise InputError(f"{origin}: {where}: {first['msg']}{got}") from None


@dataclass(frozen=True)
class Training:
    """The training that a prediction is for.

    Attributes
    ----------
    batch_size : seeds per trainer and step.
    seeds : training nodes per epoch; 0: all target nodes.
    classes : of the output layer; 0 if unknown, then its weights are left out.
    itemsize : bytes per element of static features.
    """

    model: str = "rgcn"
    hidden: int = 64
    fanouts: tuple[int, ...] = (25, 20)
    batch_size: int = 1024
    seeds: int = 0
    classes: int = 0
    itemsize: int = 4

    def epoch(self, schema: Schema, targets: Sequence[str], trainers: int) -> tuple[int, float]:
        """Steps of an epoch and seeds per trainer in each, the last batch spread over all."""
        seeds = self.seeds or sum(schema.node_counts[t] for t in targets)
        steps = -(-seeds // (self.batch_size * trainers))
        return steps, seeds / (steps * trainers)


@dataclass(frozen=True)
class Load:
    """What one machine does in a step.

    Attributes
    ----------
    work : :data:`UNITS` → amount, of one of its trainers; all but `remote`.
    sent : cause → bytes that the machine sends.
    rounds : messages that wait for one another; an all-reduce goes around a ring twice.
    memory : bytes that the machine holds.
    """

    work: dict[str, float]
    sent: dict[str, float]
    rounds: float
    memory: float

    def units(self, trainers: int) -> dict[str, float]:
        """All units of work of a trainer, in the order of :data:`UNITS`."""
        found = {**self.work, "remote": sum(self.sent.values()) / trainers}
        return {unit: found[unit] for unit in UNITS}


@dataclass(frozen=True)
class Estimate:
    """A prediction for one system; `memory` and `seconds_*` of the machine that has most."""

    system: str
    steps: int
    seconds_per_step: float
    bytes_per_step: float
    causes: dict[str, float]
    memory: float
    fits: bool | None

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "seconds_per_epoch": self.seconds_per_step * self.steps,
                "bytes_per_epoch": self.bytes_per_step * self.steps}


def estimate(plan: Plan, training: Training, cluster: Cluster,
             coefficients: Coefficients | None = None) -> list[Estimate]:
    """Predict RAF over `plan`, learnable features exact and as replicas, and DistDGL.

    Raises
    ------
    InputError
        A plan without replication, or for another number of machines.
    """
    coefficients = coefficients or Coefficients.load(
        Path(cluster.coefficients) if cluster.coefficients else None)
    cut = coefficients.metis_cut if cluster.metis_cut is None else cluster.metis_cut
    steps, seeds = training.epoch(plan.schema, plan.targets, cluster.machines * cluster.trainers)
    made = {
        "dgl-heta": raf_loads(plan, training, cluster, seeds, "exact"),
        "dgl-heta, replica": raf_loads(plan, training, cluster, seeds, "replica"),
        "DistDGL METIS": [distdgl_load(plan, training, cluster, seeds, cut)],
        "DistDGL random": [distdgl_load(plan, training, cluster, seeds, 1.0)]}
    return [summary(name, loads, cluster, coefficients, steps) for name, loads in made.items()]


def summary(system: str, loads: Sequence[Load], cluster: Cluster, coefficients: Coefficients,
            steps: int) -> Estimate:
    """One system's prediction from what its machines do; a single load stands for all of them."""
    each = cluster.machines / len(loads)
    causes: Counter[str] = Counter()
    for load in loads:
        causes.update({cause: size * each for cause, size in load.sent.items()})  # type: ignore
    held = max(load.memory for load in loads)
    return Estimate(
        system, steps, max(seconds(load, cluster, coefficients) for load in loads),
        sum(causes.values()), dict(causes), held,
        None if cluster.memory_gb is None else held <= cluster.memory_gb * 1e9)


def seconds(load: Load, cluster: Cluster, coefficients: Coefficients) -> float:
    """Seconds of a machine's step: its work, its link, latency."""
    cores = cluster.cores / cluster.trainers
    busy = sum(coefficients.seconds[unit] * amount / (1 if unit in SERIAL else cores)
               for unit, amount in load.units(cluster.trainers).items())
    return busy / cluster.speed + network_seconds(load, cluster)


def network_seconds(load: Load, cluster: Cluster) -> float:
    """Seconds of a machine's step on its link, and of latency."""
    return (sum(load.sent.values()) * 8 / (cluster.link_gbit * 1e9)
            + load.rounds * cluster.latency_us * 1e-6)


def raf_loads(plan: Plan, training: Training, cluster: Cluster, seeds: float,
              learnable: str) -> list[Load]:
    """What every partition does in a step of `seeds` seeds per trainer."""
    if plan.replication != "full" or plan.num_parts != cluster.machines:
        raise InputError(f"a plan with replication = {plan.replication} for {plan.num_parts} "
                         f"partitions cannot be predicted on {cluster.machines} machines; it must "
                         "have replication = full and a partition per machine")
    schema, machines = plan.schema, cluster.machines
    row, work = training.hidden * _ITEM, Workload(1, training.hidden)
    alone, several = _gradients(plan, training, cluster.trainers)
    gradients = _ITEM * (machines - 1) / machines * (alone + 2 * several)
    users = {t: len(plan.users(t)) for t in schema.node_types}
    reached: dict[Any, Reach] = {}
    loads = []
    for partition in plan.partitions:
        size = len(plan.groups[partition.group])
        key = (size, tuple(partition.sub_metatrees.items()))
        if key not in reached:
            reached[key] = reach(plan, partition.index, training.fanouts, seeds * size, seeds)
        found = reached[key]
        # Forward and backward: one at the last layer, a ring at each below; then gradients.
        exchanges = 2 * plan.hops * (size > 1) + 2 * (machines > 1)
        rounds = (2 + 4 * (size - 1) * (plan.hops - 1)) * (size > 1) + (2 * machines - 1) * (
            machines > 1)
        sent = {"partials": _partial_rows(size, plan.hops, training.model) * seeds * row
                * cluster.trainers,
                "gradients": gradients}
        held = float(memory(schema, partition, work))
        for ntype, rows in found.inputs.items():
            if not schema.feature_bytes.get(ntype) and users[ntype] > 1 and learnable == "exact":
                away = (users[ntype] - 1) / users[ntype]
                sent["learnable"] = sent.get("learnable", 0.0) + (
                    rows * away * (_ID_BYTES + 2 * row) * cluster.trainers)
                exchanges += 2
                rounds += 4
                held -= away * type_bytes(schema, [ntype], work)[1]
        loads.append(Load(_work(schema, found, training, exchanges, training.model == "rgcn"),
                          sent, rounds, held))
    return loads


def _partial_rows(size: int, hops: int, model: str) -> int:
    """Rows that a trainer of a group sends per own seed in a step, forward and backward.

    At the last layer and the one below, aggregations go to the seeds' own workers; further below,
    where all read all seeds' states, they go around a ring. Attention needs the seeds' states at
    the last layer, too. What edges read of other workers' seeds is left out.
    """
    exchanges = 1 + (hops > 1) + 2 * max(hops - 2, 0) + (model != "rgcn" and hops > 1)
    return 2 * (size - 1) * exchanges


def distdgl_load(plan: Plan, training: Training, cluster: Cluster, seeds: float,
                 cut: float) -> Load:
    """What a machine does in a step of data-parallel training over parts of the nodes.

    `cut` is the number of edges between parts ÷ that between random ones: a row that is k hops
    away is remote as often as under random parts but for the share `(1 - cut) ** k`.
    """
    schema, machines = plan.schema, cluster.machines
    away = (1 - (1 - cut) ** plan.hops) * (machines - 1) / machines
    found = reach(make_plan(schema, plan.targets, plan.hops, 1), 0, training.fanouts, seeds, seeds)
    sent = dict.fromkeys(("features", "learnable", "sampling"), 0.0)
    exchanges, rounds = plan.hops + 1, 2.0 * plan.hops + 2 * (machines - 1)
    for ntype, rows in found.inputs.items():
        width = schema.feature_bytes.get(ntype, 0)
        sent["features" if width else "learnable"] += cluster.trainers * away * rows * (
            _ID_BYTES + (width or 2 * training.hidden * _ITEM))
        exchanges += 1 if width else 2
        rounds += 2 if width else 4
    for hop, layer in enumerate(found.layers):
        share = (1 - (1 - cut) ** hop) * (machines - 1) / machines
        sent["sampling"] += cluster.trainers * share * (
            layer.inner_edges * _EDGE_BYTES + sum(layer.inner.values()) * _ID_BYTES)
    parameters = sum(size for size, _ in _parameters(plan, training))
    sent["gradients"] = 2 * (machines - 1) / machines * parameters * _ITEM
    held = sum(type_bytes(schema, schema.node_types, Workload(1, training.hidden)))
    held += 2 * _ID_BYTES * sum(schema.edge_counts.values())
    work = _work(schema, found, training, exchanges * (machines > 1))
    for unit in ("edge", "updated", "gathered"):
        work[f"{unit}_rpc"], work[unit] = work[unit], 0.0
    return Load(work, sent, rounds * (machines > 1), held / machines)


@dataclass
class Layer:
    """Expected figures of a layer: rows by type that are no seeds, and destinations and edges."""

    inner: dict[str, float]
    sources: dict[str, float]
    rows: dict[Relation, float]
    edges: float
    inner_edges: float
    drawn: dict[Relation, float] = field(default_factory=dict)


@dataclass
class Reach:
    """What a trainer samples in a step: layers, the last first; distinct input rows by type;
    own seeds by type."""

    layers: list[Layer]
    inputs: dict[str, float]
    own: dict[str, float]


def reach(plan: Plan, part: int, fanouts: Sequence[int], seeds: float, own: float) -> Reach:
    """Expected figures of a step of a partition.

    `seeds` are those of the group, of which it aggregates its shares; of `own` it computes the
    final states. A row that was reached along an edge has more neighbours than the mean, the
    fewer of its type were reached; a row that draws again at a lower layer draws partly the same.
    """
    schema, partition = plan.schema, plan.partitions[part]
    counts = schema.node_counts
    shares = {r: s.width / s.count for r, s in plan.roots(part).items()}
    found: dict[str, float] = {}
    before: dict[tuple[Relation, bool], tuple[float, float]] = {}
    layers = []
    for layer in range(plan.hops, 0, -1):
        fanout = fanouts[layer - 1] if fanouts[layer - 1] >= 0 else math.inf
        draws: dict[str, float] = {}
        made = Layer(dict(found), {}, {}, 0.0, 0.0)
        for relation in partition.layers[layer]:
            count = counts[relation.dst]
            mean = schema.edge_counts[relation] / count
            inner = found.get(relation.dst, 0.0) if relation in partition.inner[layer] else 0.0
            seed = min(seeds / len(plan.targets) * shares.get(relation, 0.0), count)
            for rows, is_seed in ((inner, False), (seed, True)):
                if not rows:
                    continue
                degree = mean if is_seed else mean * (
                    1 + math.expm1(SPREAD**2) * (1 - rows / count))
                taken = _taken(degree, fanout)
                old, known = before.get((relation, is_seed), (0.0, 0.0))
                draws[relation.src] = (draws.get(relation.src, 0.0)
                                       + taken * (rows - old * known))
                share = min(taken / degree, 1.0)
                again = 1 - (1 - known) * (1 - share)
                before[relation, is_seed] = rows, (old * again + (rows - old) * share) / rows
                made.rows[relation] = made.rows.get(relation, 0.0) + rows
                made.edges += rows * taken
                made.drawn[relation] = made.drawn.get(relation, 0.0) + rows * taken
                made.inner_edges += 0 if is_seed else rows * taken
        for ntype, drawn in draws.items():
            already = found.get(ntype, 0.0)
            found[ntype] = already + (counts[ntype] - already) * _covered(drawn / counts[ntype])
        made.sources = dict(found)
        layers.append(made)
    mine = {t: min(own / len(plan.targets), counts[t]) for t in plan.targets}
    inputs = {t: n + mine.get(t, 0.0) * (1 - n / counts[t]) for t, n in found.items()}
    return Reach(layers, {**mine, **inputs}, mine)


def _covered(draws: float) -> float:
    """Share of the nodes that so many draws per node find, by popularity."""
    return float(-(_SHARES * np.expm1(-draws * _POPULARITY)).sum())


@cache
def _taken(mean: float, fanout: float) -> float:
    """Expected min(degree, fanout) of log-normal degrees."""
    if math.isinf(fanout):
        return mean
    at = (math.log(fanout / mean) + SPREAD**2 / 2) / SPREAD
    below = [(1 + math.erf(x / math.sqrt(2))) / 2 for x in (at - SPREAD, at)]
    return mean * below[0] + fanout * (1 - below[1])


def _work(schema: Schema, found: Reach, training: Training, exchanges: float, lazy: bool = False
          ) -> dict[str, float]:
    """Units of work of a trainer's step; `lazy` features may be aggregated before projected."""
    hidden, square = training.hidden, 2.0 * training.hidden**2
    row = hidden * _ITEM
    work = dict.fromkeys(UNITS, 0.0) | {"step": 1.0, "exchange": float(exchanges)}
    for ntype, rows in found.inputs.items():
        width = schema.feature_bytes.get(ntype, 0)
        wide, read, multiplied = width / training.itemsize, rows, rows
        if width and lazy:
            first = found.layers[-1]
            edges = sum(n for r, n in first.drawn.items() if r.src == ntype)
            into = sum(n for r, n in first.rows.items() if r.src == ntype)
            own = first.inner.get(ntype, 0.0) + found.own.get(ntype, 0.0)
            if aggregated_first(rows, edges, into, own, wide, hidden):
                read, multiplied = edges / 2 + into + own, into + own
        work["gathered"] += read * (width or row)
        work["updated"] += 0 if width else rows * row
        work["flop"] += 2 * multiplied * wide * hidden
    for layer in found.layers:
        states = {t: layer.inner.get(t, 0.0) + found.own.get(t, 0.0)
                  for t in {*layer.inner, *found.own}}
        sources = {t: n + found.own.get(t, 0.0) for t, n in layer.sources.items()}
        work["module"] += len(layer.rows)
        work["edge"] += layer.edges
        work["message"] += layer.edges * row
        work["attention"] += layer.edges * row * (training.model != "rgcn")
        if training.model == "hgt":
            work["flop"] += square * (
                2 * sum(sources.values()) + 2 * sum(states.values())
                + 2 / _HEADS * sum(layer.rows.values()))
        else:
            both = training.model == "rgat"
            work["flop"] += square * sum(states.values()) + square * sum(
                rows + both * sources.get(r.src, 0.0) for r, rows in layer.rows.items())
    return work


def _parameters(plan: Plan, training: Training) -> list[tuple[float, int]]:
    """Size of every group of parameters, with the number of partitions that have it."""
    hidden, square = training.hidden, float(training.hidden**2)
    schema, parts = plan.schema, plan.num_parts
    per_relation = {"rgcn": square, "rgat": square + 2 * hidden,
                    "hgt": 2 * square / _HEADS + _HEADS}[training.model]
    found = [(float((hidden + 1) * training.classes), parts)]
    found += [((width / training.itemsize + 1) * hidden, len(plan.users(t)))
              for t, width in schema.feature_bytes.items() if width]
    for layer in range(1, plan.hops + 1):
        owners = Counter(r for p in plan.partitions for r in p.layers[layer])
        found += [(per_relation, owners[r]) for r in schema.relations]
        found += ([(4 * (square + hidden) + 1, len(plan.users(t))) for t in schema.node_types]
                  if training.model == "hgt" else [(square + hidden, parts)])
    return found


def _gradients(plan: Plan, training: Training, trainers: int) -> tuple[float, float]:
    """Parameters whose gradients one worker alone has, and those that several have."""
    sizes = _parameters(plan, training)
    alone = sum(size for size, owners in sizes if owners * trainers == 1)
    return alone, sum(size for size, owners in sizes if owners * trainers > 1)
