"""A worker of the exactness tests: runs configurations, writes what it computed.

Arguments: a JSON file with {"store", "out", "cases": {name: {"parts", "settings"}}}. RANK and
WORLD_SIZE say which worker this is; every case has that many partitions.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch

from dgl_heta.plan import make_plan
from dgl_heta.plugins import Plugins
from dgl_heta.settings import load_settings
from dgl_heta.store import Store
from dgl_heta.training.engine import Engine


def run_case(store: Store, case: dict, plugins: Plugins) -> dict[str, np.ndarray]:
    settings = load_settings(base=case["settings"], environ={})
    target = store.manifest.task.target
    plan = make_plan(store.schema, target, settings.model.layers, case["parts"],
                     method="meta")
    engine = Engine(store, plan, settings, plugins)
    found: dict[str, np.ndarray] = {}
    step = 0
    for epoch in range(2):
        engine.start_epoch(epoch)
        for seeds in engine.steps("train", epoch)[:3]:
            batch = engine._batch(engine._sampler, seeds, step)
            inputs = engine.inputs(batch, train=True)
            logits = engine.wrapped(batch, inputs)[target]
            labels = engine.labels(batch)
            loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
            loss = loss * (engine.world.size / len(seeds))
            engine.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            engine.wrapped.synchronize_gradients()
            found[f"{step}/logits"] = logits.detach().numpy()
            found[f"{step}/own"] = batch.own_seeds[target]
            found[f"{step}/loss"] = np.asarray(float(loss))
            for name, parameter in engine.model.named_parameters():
                if parameter.grad is not None:
                    found[f"{step}/grad/{name}"] = parameter.grad.numpy().copy()
            engine.optimizer.step()
            engine.learnable.update()
            step += 1
    for name, parameter in engine.model.named_parameters():
        found[f"param/{name}"] = parameter.detach().numpy()
    for ntype, (low, rows) in engine.learnable.shards().items():
        found[f"rows/{ntype}/{low}"] = rows.numpy()
    return found


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    store, plugins = Store(job["store"]), Plugins(load_entry_points=False)
    for name, case in job["cases"].items():
        found = run_case(store, case, plugins)
        import os

        np.savez(Path(job["out"]) / f"{name}-{os.environ.get('RANK', '0')}.npz", **found)


if __name__ == "__main__":
    main()
