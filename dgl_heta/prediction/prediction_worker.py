"""One worker of `dgl-heta predict`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgl_heta.comm.collectives import Traffic, init_workers, make_comms
from dgl_heta.errors import InputError
from dgl_heta.hooks.manager import Plugins
from dgl_heta.models import HGNN, slot
from dgl_heta.models.link_model import without_decoder
from dgl_heta.planning.plan import Plan
from dgl_heta.prediction.layerwise import Layerwise, head
from dgl_heta.settings import Settings
from dgl_heta.store import Store
from dgl_heta.training.engine import not_finite
from dgl_heta.training.setup import build_engine
from dgl_heta.training.table_files import mapped_tensors
from dgl_heta.training.tasks import NodeStep
from dgl_heta.training.trained_model import MODEL_FILE, learned_tables, load_weights, read_spec

Report = Callable[[dict[str, Any]], None]


def run(job: dict[str, Any], registry: Plugins, report: Report) -> dict[str, Any]:
    """Predict what a job describes, as the worker that the environment names.

    Rows go into the mapped file `job["out"]`, which exists already; returns the number of nodes,
    and of those whose outputs are NaN or infinite.
    """
    store, settings = Store(job["store"]), Settings(**job["settings"])
    plan = Plan.from_json(job["plan"], store.schema, "of this job")
    out = np.lib.format.open_memmap(job["out"], "r+")
    worker = _layerwise if job["layerwise"] else _batchwise
    wrong = worker(job, store, plan, settings, registry, out, report)
    out.flush()
    return {"nodes": len(out), "not_finite": wrong}


def _layerwise(job: dict[str, Any], store: Store, plan: Plan, settings: Settings,
               registry: Plugins, out: np.ndarray, report: Report) -> int:
    workers = int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(max((os.cpu_count() or 1) // workers, 1))
    init_workers("gloo", settings.run.timeout_s)
    world, _ = make_comms(plan, Traffic(), settings.run.timeout_s)
    file = Path(job["run_dir"]) / MODEL_FILE
    spec, _, provider = read_spec(Path(job["run_dir"]), registry, job["model"])
    trained = provider.build(spec)
    model = without_decoder(trained)
    assert isinstance(model, HGNN)
    weights, _ = mapped_tensors(file)
    load_weights(trained, weights)

    def inputs(ntype: str, low: int, high: int) -> Tensor:
        if store.has_array(ntype, "feat"):
            return torch.from_numpy(store.feature_rows(ntype, low, high))
        return weights[f"features.{slot(ntype)}.weight"][low:high]

    (target,) = plan.targets
    linked = job["task"] == "link" and slot(target) in model.heads
    finish = head(model, target) if linked or job["what"] != "embeddings" else None

    wrong = torch.zeros(1)

    def write(ids: np.ndarray, states: Tensor) -> None:
        rows = states if finish is None else finish(states)
        known = torch.from_numpy(store.there(job["ntype"], ids, job["time"]))
        wrong[0] += not_finite(rows[known])
        rows[~known] = np.nan
        out[ids] = _of_kind(rows, job["what"], job["task"])

    Layerwise(store, plan.without_owners(), model, inputs, world, Path(job["scratch"]),
              job["chunk"], report if world.rank == 0 else lambda event: None, job["time"],
              settings.strictly_before).run(write)
    return int(world.all_reduce(wrong.double(), cause="control").item())


@torch.no_grad()
def _batchwise(job: dict[str, Any], store: Store, plan: Plan, settings: Settings,
               registry: Plugins, out: np.ndarray, report: Report) -> int:
    run_dir = Path(job["run_dir"])
    _, shapes, _ = read_spec(run_dir, registry, job["model"])
    weights, _ = mapped_tensors(run_dir / MODEL_FILE)
    engine = build_engine(store, plan, settings, registry, run_dir, learned_tables(weights, shapes))
    load_weights(engine.model, weights)
    engine.model.eval()
    target, size, wrong = job["ntype"], job["chunk"], 0
    for number, low in enumerate(range(0, len(out), size)):
        nodes = {t: np.empty(0, np.int64) for t in engine.task.targets}
        nodes[target] = np.arange(low, min(low + size, len(out)))
        if job["time"] is not None:
            nodes = {t: np.stack([ids, np.full(len(ids), job["time"])], 1)
                     for t, ids in nodes.items()}
        batch = engine.sample(NodeStep(nodes), number)
        rows, ids = engine.distributed(batch)[target], batch.seeds[target]
        ids = ids if ids.ndim == 1 else ids[:, 0]
        known = torch.from_numpy(store.there(target, ids, job["time"]))
        wrong += not_finite(rows[known])
        rows[~known] = np.nan
        out[ids] = _of_kind(rows, job["what"], job["task"])
        if engine.rank == 0:
            report({"event": "progress", "layer": settings.model.layers, "ntype": target,
                    "done": min(low + size, len(out)), "total": len(out)})
    return int(engine.sum_over_workers(torch.tensor([float(wrong)], dtype=torch.float64))[0])


def _of_kind(rows: Tensor, what: str, kind: str) -> np.ndarray:
    """Outputs as what the user asked for; of one that is NaN or infinite no class (-1), and no
    label (255)."""
    if what == "predictions" and kind == "classification":
        rows = rows.argmax(1).where(rows.isfinite().all(1), -1)
    elif what == "predictions" and kind == "multilabel":
        rows = (rows > 0).to(torch.uint8).where(rows.isfinite(), 255)
    elif what == "probabilities":
        rows = rows.softmax(1) if kind == "classification" else rows.sigmoid()
    elif what not in ("predictions", "scores", "embeddings"):
        raise InputError(f"'{what}' is unknown; known are predictions, probabilities, "
                         "scores, embeddings")
    array: np.ndarray = rows.cpu().numpy()
    return array
