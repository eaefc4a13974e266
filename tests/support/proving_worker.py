"""The workers of the tests of the proof inside training: they run cases and write what came of it.

A job is a JSON file {"store", "out", "parts", "cases": {name: settings}}; a case may have a "store"
of its own. Models are built in, or one of the layers below.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import nn

from dgl_heta import HGNNLayer
from dgl_heta.errors import HetaError
from dgl_heta.hooks.manager import Plugins
from dgl_heta.planning.making import make_plan
from dgl_heta.settings import load_settings
from dgl_heta.store import Store
from dgl_heta.training.setup import build_engine
from dgl_heta.training.tasks import resolve
from tests.support.exact_worker import delegating, fork_all


class Mean(HGNNLayer):
    """Right: AGG_r depends on its relation alone."""

    def __init__(self, spec):
        super().__init__("max", spec.hidden)
        self.linear = nn.Linear(spec.hidden, spec.hidden)

    def aggregate(self, edges):
        return self.linear(edges.reduce("mean"))


class Sum(Mean):
    """Right: a sum of a seed's edges, which several workers have where they share the seed."""

    def aggregate(self, edges):
        return self.linear(edges.reduce("sum"))


class OverRelations(Mean):
    """Wrong: a relation's share depends on the others that this worker runs."""

    def aggregate_all(self, relations):
        each = [self.linear(x) for x in relations.reduce("mean")]
        return [x / len(each) for x in each]


class AcrossRows(Mean):
    """Wrong: a row depends on the other rows of the batch."""

    def update(self, ntype, aggregated, state):
        return torch.relu(aggregated - aggregated.mean(0)) + state


def work(job: dict) -> None:
    """Two epochs of each case as the worker that RANK names."""
    plugins = Plugins(job.get("guests", False))
    rank = int(os.environ["RANK"])
    for name, base in job["cases"].items():
        store = Store(base.pop("store", job["store"]))
        settings = load_settings(base=base, environ={})
        targets = resolve(settings.task, store.manifest.task, store.schema).targets
        plan = make_plan(store.schema, targets or [], settings.model.layers,
                         job["parts"] // settings.train.trainers)
        if settings.partition.shared == "delegate":
            plan = delegating(plan, 1, Path(job["out"]) / f"plan-{rank}")
        engine = build_engine(store, plan, settings, plugins,
                              Path(job["out"]) / f"averages-{len(name)}")
        found: dict[str, object] = {}
        try:
            for epoch in (1, 2):
                engine.start_epoch(epoch)
                statistics = list(engine.train(engine.steps("train", epoch), epoch << 20))
                found[f"{epoch}/statistics"] = torch.stack(statistics).numpy()
                sent = engine.sent
                found[f"{epoch}/proof sent"] = sent.pop("proof", 0)
                found |= {f"{epoch}/sent/{cause}": size for cause, size in sent.items()}
            found |= {f"parameter/{n}": p.detach().numpy()
                      for n, p in engine.model.named_parameters()}
            for ntype, (_, rows) in engine.learnable.shards().items():
                found[f"rows/{ntype}"] = rows.numpy()
            found["generator"] = torch.get_rng_state().numpy()
        except HetaError as error:
            found["error"] = str(error)
        assert (engine.proof is None) == (job["parts"] == 1)
        if engine.proof is not None:
            found["steps"] = engine.proof.proved
            found["not proved"] = engine.proof.told or ""
        np.savez(Path(job["out"]) / f"{name}-{job['parts']}-{rank}.npz", **found)  # texts, too


def main(file: Path) -> int:
    """Run the workers of a job (:mod:`tests.support.copies`)."""
    return fork_all(file, work)
