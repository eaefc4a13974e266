"""The program of a worker: `python -m dgl_heta_catgnn.training.worker JOB.json`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dgl_heta.tools import (
    Comm,
    Traffic,
    init_workers,
    log_line,
    peak_rss_mb,
    replacing,
    worker_main,
    write_atomic,
)


def run(job: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Train as a job says; returns the summary, and writes model and metrics into `run_dir`."""
    import torch

    from dgl_heta_catgnn.training.parts import TrainingParts

    torch.set_num_threads(job["settings"]["threads"])
    init_workers("gloo", job["settings"]["timeout_s"])
    world, traffic = _world()
    first = world.rank == 0
    summary = train(TrainingParts.open(Path(job["parts"])), job, world,
                    report if first else lambda event: None)
    figures = torch.tensor([[sum(traffic.bytes.values()), peak_rss_mb()]], dtype=torch.float64)
    sent, peak = world.all_gather_rows(figures, [1] * world.size, "control").T.tolist()
    summary |= {"workers": world.size, "bytes_sent_per_epoch": max(sent) / job["epochs"],
                "peak_rss_mb": peak}
    if first:
        report({"event": "summary", **summary})
    return summary


def _world() -> tuple[Comm, Traffic]:
    size, traffic = int(os.environ.get("WORLD_SIZE", "1")), Traffic()
    return (Comm(traffic, range(size)) if size > 1 else Comm(traffic)), traffic


def train(parts: Any, job: dict[str, Any], world: Comm, report: Callable[[dict[str, Any]], None]
          ) -> dict[str, Any]:
    """Train in this process, as the worker that `world` says; the summary, by names of figures.

    After `eval_every` epochs, when models have been averaged, the average is evaluated; the test
    accuracy is that with the best validation accuracy (CATGNN, §5.1), without validation nodes the
    last one.
    """
    from dgl_heta_catgnn.training.evaluation import evaluate
    from dgl_heta_catgnn.training.turns import Turns

    choices = choices_of(parts, job)
    turns, started = Turns(parts, choices, world), time.perf_counter()
    best: dict[str, Any] = {}
    metrics, steps, seen, spent = [], 0, 0, 0.0
    for done in turns.rounds():
        steps += done.steps
        last, line = done.epoch == choices.epochs, {"epoch": done.epoch, "loss": done.loss}
        every = job["settings"]["eval_every"]
        if last or (every and done.epoch - seen >= every):
            seen, before = done.epoch, time.perf_counter()
            accuracy = evaluate(parts, turns.averaged(), world, full=choices.full,
                                whole=job["whole"])
            line |= {f"{split}_acc": value for split, value in accuracy.items()}
            spent += time.perf_counter() - before
            if not best or "val_acc" not in line or line["val_acc"] > best["val_acc"]:
                best = {**line, "state": turns.state}
        metrics.append(line)
        report({"event": "epoch", **line})
    seconds = time.perf_counter() - started - spent
    if job.get("run_dir") and world.rank == 0:
        _save(Path(job["run_dir"]), metrics, best["state"])
    return {"epochs": choices.epochs, "steps": steps, "loss": metrics[-1]["loss"],
            **{f"{split}_acc": best.get(f"{split}_acc") for split in ("train", "val", "test")},
            "best_epoch": best["epoch"], "last_test_acc": metrics[-1].get("test_acc"),
            "epoch_seconds": seconds / choices.epochs, "metrics": metrics}


def choices_of(parts: Any, job: dict[str, Any]) -> Any:
    """Return a job's choices for the training."""
    import torch

    from dgl_heta_catgnn.training.batches import make_batches
    from dgl_heta_catgnn.training.models import ModelShape
    from dgl_heta_catgnn.training.turns import TrainChoices

    one = job["settings"]
    shape = ModelShape(parts.width, one["hidden"], parts.classes, one["layers"], one["dropout"],
                       one["heads"])
    return TrainChoices(
        job["model"], shape,
        lambda: make_batches(job["batches"], job["full_batch"], one["batch_size"],
                             fanouts_of(one["fanouts"], one["layers"])),
        job["epochs"], job["sync_every"], one["lr"], one["weight_decay"], job["seed"],
        full=job["full"], keep=job["keep"], dtype=getattr(torch, one["dtype"]))


def fanouts_of(given: list[int], layers: int) -> list[int]:
    """One fanout for each layer: those given, the last one repeated."""
    return [*given, *[given[-1]] * layers][:layers]


def _save(run_dir: Path, metrics: list[dict[str, Any]], state: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    write_atomic(run_dir / "metrics.jsonl", "".join(log_line(m) for m in metrics))
    with replacing(run_dir / "model.safetensors") as file:
        save_file({k: v.contiguous() for k, v in state.items()}, file)


if __name__ == "__main__":
    worker_main(run)
