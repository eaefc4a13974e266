"""scripts/bench/fit_cost.py recovers the coefficients that measurements were computed from."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dgl_heta.graph.datasets.synthetic import SHAPES, shape_schema
from dgl_heta.partition.backends.meta import Meta
from dgl_heta.partition.request import PartitionRequest
from dgl_heta.planning.cluster_estimate import (
    Cluster,
    Coefficients,
    Load,
    distdgl_load,
    raf_loads,
    seconds,
)
from dgl_heta.planning.compute import UNITS
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.workload import Workload

SCRIPT = Path(__file__).parents[2] / "scripts/bench/fit_cost.py"
SCALE, BATCH = 0.01, 64
SETTINGS = list(product(("mag", "freebase", "donor", "mag240m"), ("rgcn", "hgt"), (2, 3), (16, 64)))
STAGES = {  # stage of a script: units of work in it, shares of the bytes by cause
    "sample": (("edge", "edge_rpc"), {"sampling": 1}),
    "features": (("gathered_rpc",), {"features": 1, "learnable": 0.5}),
    "update": (("updated", "updated_rpc"), {"learnable": 0.5}),
    "forward": (("step", "module", "flop", "message", "attention"), {"gradients": 1})}


def loads_of(system: str, shape: str, work: Workload, cluster: Cluster,
             metis_cut: float) -> list[Load]:
    """What the machines do in a step of full batches."""
    schema, target = shape_schema(shape, SCALE), SHAPES[shape].target
    if system in ("random", "metis"):
        return [distdgl_load(make_plan(schema, target, 2, cluster.machines), work, cluster,
                             BATCH, 1.0 if system == "random" else metis_cut)]
    plan = Meta().plan(schema, PartitionRequest(cluster.machines, (target,), 2,
                                                replication="full", workload=work))
    return raf_loads(plan, work, cluster, BATCH,
                     "exact" if system == "heta-exact" else "replica")


def measurements(true: Coefficients) -> dict[str, Any]:
    """A file of compare.py whose seconds and bytes follow from coefficients."""
    runs = []
    for (shape, model, hosts, hidden), system in product(
            SETTINGS, ("random", "metis", "heta", "heta-exact")):
        made = SHAPES[shape].scaled(SCALE)
        work = Workload(model=model, hidden=hidden, fanouts=(10, 5), batch_size=BATCH,
                        classes=made.num_classes,
                        feature_itemsize=np.dtype(made.dtype).itemsize)
        cluster = Cluster(machines=hosts, link_gbit=1, latency_us=0)
        loads = loads_of(system, shape, work, cluster, true.metis_cut)
        stages = {"backward": 0.0}
        for stage, (units, causes) in STAGES.items():
            each = [sum(true.seconds[u] * load.work[u] for u in units) + sum(
                load.sent.get(cause, 0) * share * (8e-9 + true.seconds["remote"])
                for cause, share in causes.items()) for load in loads]
            stages[stage] = sum(each) / len(each)
        epoch = {"steps": 1, "causes": {}, "stages": stages,
                 "seconds": max(seconds(load, cluster, true) for load in loads),
                 "bytes": sum(sum(load.sent.values()) for load in loads) * hosts / len(loads)}
        runs.append({"shape": shape, "model": model, "system": system, "hosts": hosts, "seed": 0,
                     "rate": "1gbit", "hidden": hidden, "fanouts": "10,5", "batch_size": BATCH,
                     "epochs": [{}, epoch]})
    return {"arguments": {"scales": dict.fromkeys(SHAPES, SCALE)}, "machine": {"cpu": "made up"},
            "runs": runs}


def test_the_fit_recovers_the_coefficients_that_made_the_measurements(tmp_path: Path) -> None:
    values = [2e-2, 1e-4, 1e-7, 6e-7, 1e-9, 2e-9, 3e-11, 2e-10, 4e-10, 2e-9, 7e-9, 2e-9, 1e-3]
    true = Coefficients(seconds=dict(zip(UNITS, values)), metis_cut=0.4)
    runs, out, figures = (tmp_path / f"{name}.json" for name in ("runs", "fitted", "figures"))
    runs.write_text(json.dumps(measurements(true)))
    done = subprocess.run([sys.executable, SCRIPT, runs, "--out", out, "--json", figures],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    fitted = Coefficients.load(out)
    assert fitted.seconds == pytest.approx(true.seconds, rel=0.03)  # the cut is not exact
    assert fitted.metis_cut == pytest.approx(0.4, abs=0.01)
    assert "| settings | 128 |" in done.stdout
    assert fitted.errors["graphs"]["measurements"] == 128
    assert fitted.errors["graphs"]["seconds_max"] < 0.02
    assert len(json.loads(figures.read_text())["held_out"]["graphs"]) == 128
