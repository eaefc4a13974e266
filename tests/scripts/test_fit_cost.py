"""scripts/bench/fit_cost.py recovers the coefficients that measurements were computed from."""

from __future__ import annotations

import importlib
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from dgl_heta.graph.datasets.synthetic import SHAPES, shape_schema
from dgl_heta.partition.backends.meta import Meta
from dgl_heta.partition.request import PartitionRequest
from dgl_heta.planning.cluster_estimate import (
    SYSTEMS,
    WAIT,
    Cluster,
    Coefficients,
    Load,
    distdgl_load,
    names,
    network_seconds,
    raf_loads,
)
from dgl_heta.planning.compute import UNITS
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.workload import MODELS, Workload

BENCH = Path(__file__).parents[2] / "scripts/bench"
SCALE = 0.01
SECONDS = dict(zip(UNITS, (2e-2, 1e-3, 5e-8, 1e-9, 1e-11, 1e-9, 3e-10, 2e-9, 1e-9, 2e-3, 3e-9,
                           2e-9, 3e-3)))
WAITS = 2e-3  # an exchange, of the clock alone
LINK = Cluster(machines=1, link_gbit=10)  # that of fit_cost.py's hosts


@pytest.fixture
def fit_cost(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    return importlib.import_module("fit_cost")


def loads_of(system: str, shape: str, work: Workload, hosts: int, seeds: int) -> list[Load]:
    """What the hosts do in a step."""
    schema, target = shape_schema(shape, SCALE), SHAPES[shape].target
    cluster = Cluster(machines=hosts, link_gbit=1)
    if system == "DistDGL":
        plan = make_plan(schema, target, 2, hosts)
        return [distdgl_load(plan, work, cluster, seeds, 0.4)] * hosts
    plan = Meta().plan(schema, PartitionRequest(hosts, (target,), 2, replication="full",
                                                workload=work))
    return raf_loads(plan, work, cluster, seeds, "exact")


def test_the_fit_recovers_the_coefficients_that_made_the_measurements(fit_cost: Any) -> None:
    true = {name: SECONDS[unit] * (1 + place) for place, model in enumerate(MODELS)
            for unit, name in names(model).items() if unit != name} | {
            unit: value for unit, value in SECONDS.items() if unit in names("rgcn").values()} | {
            "aggregated rgcn": 0.0, WAIT: WAITS}
    in_stage = {}  # a unit takes its time in one stage, of those in which it is looked for
    for stage, (_, units) in (*fit_cost.STAGES.items(), ("compute", fit_cost.STAGES["compute"])):
        in_stage.update(dict.fromkeys(units, stage))
    measured = []
    for shape, model, hosts, hidden, seeds, system in product(
            SHAPES, MODELS, (2, 3), (16, 64), (16, 256), SYSTEMS):
        work = Workload(model=model, hidden=hidden, fanouts=(10, 5), classes=8)
        for load in loads_of(system, shape, work, hosts, seeds):
            stages = dict.fromkeys(fit_cost.STAGES, 0.0)
            for unit, name in names(model).items():
                stages[in_stage[unit]] += true[name] * load.units(1)[unit]
            measured.append(fit_cost.Measured(
                (shape, system, hosts, f"{model}/{hidden}/{seeds}"), system, model, stages,
                sum(stages.values()) + network_seconds(load, LINK, WAITS), sum(load.sent.values()),
                load, load, 0.4))
    fitted = fit_cost.fit(measured)
    assert fitted.metis_cut == 0.4
    for system in SYSTEMS:
        assert fitted.seconds[system] == pytest.approx(true, rel=0.02)
    errors = fit_cost.figures(fit_cost.score(measured, fitted))
    assert errors["seconds_max"] < 1e-3
    assert errors["clock_max"] < 1e-3
    assert errors["bytes_max"] < 1e-9
    assert errors["measurements"] == len(SHAPES) * len(MODELS) * 8 * len(SYSTEMS)
    assert Coefficients.model_validate(fitted.model_dump()) == fitted
