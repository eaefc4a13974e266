"""The figures of a run for TensorBoard: `run.loggers = ["tensorboard"]`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dgl_heta.errors import InputError
from dgl_heta.hooks.protocols import Logger, RunLog

DIRECTORY = "tensorboard"


class TensorBoard(Logger):
    """Event files in `RUN/tensorboard`; `tensorboard --logdir runs` shows them. No port is opened.

    Scalars by epoch: `loss/train`, `accuracy/train`, `accuracy/val`, `metrics/NAME` of validation,
    `seconds/STAGE`, `megabytes/CAUSE` (10^6 bytes, of all workers), `hit rate/NODE TYPE`; in the
    end `test/loss`, `test/accuracy` and `test/NAME`.
    """

    name = "tensorboard"
    description = "event files of TensorBoard in the run directory"
    settings = None

    def check(self) -> None:
        if find_spec("tensorboard") is None:
            raise InputError("run.loggers = tensorboard needs the package tensorboard; "
                             "pip install 'dgl-heta[tensorboard]', or leave it out")

    def open(self, run_dir: Path, settings: dict[str, Any], done: int) -> RunLog:
        self.check()
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(run_dir / DIRECTORY), purge_step=done + 1 if done else None)
        if not done:
            writer.add_text("settings", f"```json\n{json.dumps(settings, indent=1)}\n```")
        return _Events(writer, done)


class _Events(RunLog):
    def __init__(self, writer: Any, done: int) -> None:
        self._writer = writer
        self._last = done

    def epoch(self, record: dict[str, Any]) -> None:
        self._last = record["epoch"]
        for name, value in _scalars(record):
            self._writer.add_scalar(name, value, self._last)
        self._writer.flush()

    def close(self, summary: dict[str, Any] | None) -> None:
        if summary is not None:
            figures = {"loss": summary["test_loss"], "accuracy": summary["test_acc"],
                     **summary.get("metrics", {}).get("test", {})}
            for name, value in figures.items():
                if value is not None:
                    self._writer.add_scalar(f"test/{name}", value, self._last)
        self._writer.close()


def _scalars(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Names and values of an epoch's line; what was not computed is left out."""
    named = {"loss/train": record["loss"], "accuracy/train": record["train_acc"],
             "accuracy/val": record["val_acc"],
             **{f"metrics/{n}": v for n, v in record.get("metrics", {}).items()},
             **{f"seconds/{n}": v for n, v in record["seconds"].items()},
             **{f"megabytes/{n}": v / 1e6 for n, v in record["bytes_sent"].items()}}
    for ntype, counts in record.get("cache", {}).items():
        if counts["reads"]:
            named[f"hit rate/{ntype}"] = counts["hits"] / counts["reads"]
    yield from ((name, value) for name, value in named.items() if value is not None)
