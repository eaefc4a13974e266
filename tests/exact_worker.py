"""A worker of the exactness tests: runs configurations and writes what it computed.

Argument: a JSON file {"store", "out", "parts", "cases": {name: {"settings", "metapaths"}}}.
RANK and WORLD_SIZE say which worker this is.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
from torch.nn.functional import cross_entropy

from dgl_heta.metatree import parse_metapaths
from dgl_heta.plan import make_plan
from dgl_heta.plugins import Plugins
from dgl_heta.settings import load_settings
from dgl_heta.store import Store
from dgl_heta.training.engine import Engine

EPOCHS, STEPS = 2, 3


def run_case(store: Store, case: dict, parts: int, plugins: Plugins,
             steps_of: int | None = None) -> dict[str, np.ndarray]:
    """Six steps in two epochs, the last two with seeds that do not divide by the workers."""
    settings = load_settings(base=case["settings"], environ={})
    task = store.manifest.task
    assert task is not None
    metapaths = (parse_metapaths(case["metapaths"], store.schema) if case.get("metapaths")
                 else None)
    plan = make_plan(store.schema, task.target, settings.model.layers, parts, metapaths)
    engine = Engine(store, plan, settings, plugins)
    found: dict[str, np.ndarray] = {}
    step = 0
    for epoch in range(EPOCHS):
        engine.start_epoch(epoch)
        batches = engine.steps("train", epoch)
        for seeds in [*batches[:STEPS - 1], batches[-1]]:
            seeds = seeds[:steps_of]
            batch = engine.sample(seeds, step)
            logits = engine.wrapped(batch, engine.inputs(batch, train=True))[task.target]
            loss = cross_entropy(logits, engine.labels(batch), reduction="sum")
            loss = loss * (engine.world.size / len(seeds))
            engine.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            engine.wrapped.synchronize_gradients()
            found[f"{step}/logits"] = logits.detach().numpy()
            found[f"{step}/own"] = batch.own_seeds[task.target]
            found[f"{step}/loss"] = np.asarray(float(loss.detach()))
            for name, parameter in engine.model.named_parameters():
                if parameter.grad is not None:
                    found[f"{step}/grad/{name}"] = parameter.grad.numpy().copy()
            engine.optimizer.step()
            engine.learnable.update()
            step += 1
    for name, parameter in engine.model.named_parameters():
        found[f"parameter/{name}"] = parameter.detach().numpy()
    for ntype, (low, rows) in engine.learnable.shards().items():
        found[f"rows/{ntype}/{low}"] = rows.numpy()
    found["val"] = np.asarray(engine.evaluate("val"))
    return found


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    store, plugins = Store(job["store"]), Plugins(load_entry_points=False)
    for name, case in job["cases"].items():
        found = run_case(store, case, job["parts"], plugins, job.get("steps_of"))
        np.savez(Path(job["out"]) / f"{name}-{job['parts']}-{os.environ['RANK']}.npz", **found)
    sys.stderr.flush()
    os._exit(0)  # as the real workers end: a process group's threads can abort an ordinary exit


if __name__ == "__main__":
    main()
