"""The results of a few steps of a worker, to be compared with what one worker alone computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from dgl_heta.training.engine import Engine

STEPS = 3


def steps(engine: Engine) -> dict[str, np.ndarray]:
    """Train some steps; returns what came of each.

    Keys are `STEP|WHAT|NAME`: `loss`; `output` and `ids`, per target type the rows of this worker's
    seeds and whose they are; and `gradient` per parameter.
    """
    _prepare(engine)
    arrays: dict[str, np.ndarray] = {}
    for number, step in enumerate(engine.steps("train", 1)[:STEPS]):
        batch = engine.sample(step, number)
        engine.model.train()
        outputs = engine.distributed(batch)
        loss, _ = engine.loss(outputs, step)
        engine.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        arrays[f"{number}|loss|loss"] = np.asarray(float(loss.detach()))
        for ntype, rows in outputs.items():
            arrays[f"{number}|output|{ntype}"] = rows.detach().numpy()
            arrays[f"{number}|ids|{ntype}"] = batch.seeds[ntype]
        for name, parameter in engine.model.named_parameters():
            if parameter.grad is not None:
                arrays[f"{number}|gradient|{name}"] = parameter.grad.numpy().copy()
        engine.optimizer.step()
        engine.learnable.update()
    return arrays


def write_steps(engine: Engine, directory: Path) -> None:
    """Write :func:`steps` as `found-RANK.npz`."""
    np.savez(directory / f"found-{engine.rank}.npz", **steps(engine))  # type: ignore[arg-type]


def _prepare(engine: Engine) -> None:
    """Leave dropout out, which draws on each worker; move parameters from where they begin, as
    zeros hide what is wrong."""
    generator = torch.Generator().manual_seed(0)
    for module in engine.model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
    with torch.no_grad():
        for parameter in engine.model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.1 * noise.to(parameter))
