"""Workers that run `training.loop.train` as `dgl-heta train` does, on a store.

A job is a JSON file {"store", "out", "parts", "cases": {name: settings}}.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from dgl_heta.hooks.manager import Plugins
from dgl_heta.planning.making import make_plan
from dgl_heta.settings import load_settings
from dgl_heta.store import Store
from dgl_heta.training.loop import train
from dgl_heta.training.setup import build_engine, check
from dgl_heta.training.tasks import resolve
from tests.support.exact_worker import fork_all


def trained(place: Path, run_dir: Path, parts: int, base: dict[str, Any],
            resume: bool = False) -> dict[str, Any]:
    """Train as the worker that RANK names; returns the summary."""
    store, plugins = Store(place), Plugins(guests=False)
    settings = load_settings(base=base, environ={})
    targets = resolve(settings.task, store.manifest.task, store.schema).targets
    plan = make_plan(store.schema, targets or [], settings.model.layers, parts)
    check(store, plan, settings, plugins)
    run_dir.mkdir(exist_ok=True)
    engine = build_engine(store, plan, settings, plugins, run_dir)
    return train(engine, run_dir, settings, plugins, resume=resume)


def same_models(one: Path, other: Path) -> None:
    """Check that two runs have trained the same model, up to rounding in fp64."""
    want, got = (load_file(run / "model.safetensors") for run in (one, other))
    assert got.keys() == want.keys()
    for key, tensor in want.items():
        torch.testing.assert_close(got[key], tensor, rtol=1e-7, atol=1e-9, msg=key)


def work(job: dict) -> None:
    for name, base in job["cases"].items():
        trained(Path(job["store"]), Path(job["out"]) / f"{name}-{job['parts']}", job["parts"], base)


def main(file: Path) -> int:
    """Run the workers of a job (:mod:`tests.support.copies`)."""
    return fork_all(file, work)
