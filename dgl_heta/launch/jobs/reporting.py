"""The picture of a run's plan, and the check that the run's files are whole."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Schema
from dgl_heta.planning.cost import predict
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.workload import Workload
from dgl_heta.report.plan_picture import svg
from dgl_heta.report.reading import is_run, read_run
from dgl_heta.store import Store
from dgl_heta.system.checksums import read_signed
from dgl_heta.training.checkpoint_files import check_checkpoints
from dgl_heta.training.recorded import recorded_settings
from dgl_heta.training.trained_model import SPEC_FILE, check_weights

log = logging.getLogger("dgl_heta")


def check_run(run_dir: Path) -> None:
    """Refuse what is not the directory of a run.

    Raises
    ------
    InputError
        It is not one.
    """
    if not run_dir.is_dir():
        raise InputError(f"run directory {run_dir} does not exist or is not a directory")
    if not is_run(run_dir):
        raise InputError(f"{run_dir} is not the directory of a run of `dgl-heta train`: it has "
                         "neither metrics.jsonl nor summary.json")


def plan_picture(run_dir: Path) -> str | None:
    """The plan of a run as an SVG; None where the run left none that can be read."""
    run = read_run(run_dir)
    try:
        recorded, where = run.summary, run_dir / "summary.json"
        if not recorded:
            where = run_dir / "job.json"
            recorded = read_signed(where, "resume the run to write it again")
        settings = recorded_settings(recorded.get("settings"), where)
        content = recorded.get("plan")
        if not isinstance(content, dict):
            raise InputError(f"{where} has no plan")
        plan = Plan.from_json(content, _schema(run_dir), "of this run")
        parameters = recorded.get("parameters")
        work = Workload.of(settings, parameters if type(parameters) is int else 0)
        return svg(plan, predict(plan, work))
    except InputError as error:
        log.warning("the plan is not drawn: %s", error)
        return None


def verify_run(run_dir: Path) -> list[str]:
    """Return a sentence for each damaged part of a run: log, summary, model, checkpoints."""
    damaged = [f"{run_dir}/{name} was edited or damaged" for name in read_run(run_dir).damaged]
    checks: list[Callable[[Path], Any]] = [check_checkpoints]
    if (run_dir / SPEC_FILE).exists():
        checks.append(check_weights)
    for check in checks:
        try:
            check(run_dir)
        except InputError as error:
            damaged.append(str(error))
    return damaged


def _schema(run_dir: Path) -> Schema:
    """The schema of the graph of a run: from its model, or else from its store."""
    if (run_dir / SPEC_FILE).exists():
        content = read_signed(run_dir / SPEC_FILE, "resume the run to write it again")
        return Schema.from_json(content.get("schema"))
    return Store(str(read_signed(run_dir / "job.json", "resume the run to write it again"
                                 ).get("store"))).schema
