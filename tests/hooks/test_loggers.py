"""Loggers of a run: a third party's that fails, and TensorBoard's files."""

from __future__ import annotations

import contextlib
import logging

import pytest

from dgl_heta.errors import InputError
from dgl_heta.hooks.manager import Plugins
from dgl_heta.report.epoch_records import EpochRecord
from dgl_heta.settings import Settings
from dgl_heta.training.loggers import Loggers
from tests.support.plugins import heta

TWO = """
    from dgl_heta import InputError, Logger, RunLog, hookimpl

    class Log(RunLog):
        def __init__(self, path, worst):
            self.path, self.worst = path, worst

        def epoch(self, record):
            if record["epoch"] == self.worst:
                raise OSError("no route to the archive")
            with self.path.open("a") as file:
                file.write(f"{record['epoch']} ")

        def close(self, summary):
            with self.path.open("a") as file:
                file.write("closed" if summary is None else "ended")

    class Good(Logger):
        name, description, worst = "good", "", None

        def open(self, run_dir, settings, done):
            return Log(run_dir / self.name, self.worst)

    class Bad(Good):
        name, worst = "bad", 2

    class Absent(Good):
        name = "absent"

        def open(self, run_dir, settings, done):
            raise InputError("archive is not configured; set plugins.absent.account")

    @hookimpl
    def dgl_heta_loggers():
        return [Good(), Bad(), Absent()]
"""


def record(epoch: int) -> dict:
    return EpochRecord(epoch, 1.0 / epoch, 0.5, None if epoch == 1 else epoch / 10,
                       {"total": 2.0, "sample": 0.5}, {"total": 3_000_000, "partials": 3_000_000},
                       100.0, {"f1_macro": 0.25}).to_json()


def choose(*names: str) -> Settings:
    return Settings.model_validate({"run": {"loggers": list(names)}})


def test_a_logger_that_fails_is_named_once_and_the_others_go_on(install, tmp_path, caplog):
    install("two-loggers", TWO)
    with caplog.at_level(logging.WARNING, "dgl_heta"), \
            Loggers(Plugins(), choose("bad", "good"), tmp_path, 0, True) as logs:
        for epoch in (1, 2, 3):
            logs.epoch(record(epoch))
        logs.close({})
    (line,) = [r.getMessage() for r in caplog.records]
    assert line.startswith("logger 'bad' failed and is not called again; training goes on")
    assert line.endswith("OSError: no route to the archive")
    assert (tmp_path / "good").read_text() == "1 2 3 ended"
    assert (tmp_path / "bad").read_text() == "1 "


def test_after_an_error_logs_are_closed_without_a_summary(install, tmp_path):
    install("two-loggers", TWO)
    with contextlib.suppress(ZeroDivisionError), \
            Loggers(Plugins(), choose("good"), tmp_path, 0, True) as logs:
        logs.epoch(record(1))
        raise ZeroDivisionError
    assert (tmp_path / "good").read_text() == "1 closed"


def test_worker_0_alone_has_logs_and_all_workers_know_the_names(install, tmp_path):
    install("two-loggers", TWO)
    with Loggers(Plugins(), choose("good", "absent"), tmp_path, 0, False) as logs:
        logs.epoch(record(1))
    assert not (tmp_path / "good").exists()
    with pytest.raises(InputError, match="archive is not configured"):
        Loggers(Plugins(), choose("good", "absent"), tmp_path, 0, True)
    with pytest.raises(InputError, match=r"unknown logger 'godo'; known are: .*mean 'good'"):
        Loggers(Plugins(), choose("godo"), tmp_path, 0, False)


def test_tensorboard_has_each_epoch_once_after_a_run_went_on(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with Loggers(Plugins(), choose("tensorboard"), tmp_path, 0, True) as logs:
        for epoch in (1, 2, 3):  # 2 and 3 were never in a checkpoint
            logs.epoch({**record(epoch), "loss": 9.0})
    with Loggers(Plugins(), choose("tensorboard"), tmp_path, 1, True) as logs:
        for epoch in (2, 3):
            logs.epoch(record(epoch))
        logs.close({"test_loss": 0.5, "test_acc": 0.75, "metrics": {"test": {"f1_macro": None}}})
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()

    def values(name: str) -> list[tuple[int, float]]:
        return [(e.step, round(e.value, 4)) for e in found.Scalars(name)]

    assert values("loss/train") == [(1, 9.0), (2, 0.5), (3, 0.3333)]
    assert values("accuracy/val") == [(2, 0.2), (3, 0.3)]
    assert values("megabytes/partials")[-1] == (3, 3.0)
    assert values("metrics/f1_macro")[-1] == (3, 0.25)
    assert values("test/accuracy") == [(3, 0.75)]
    assert "test/f1_macro" not in found.Tags()["scalars"]


def test_a_logger_that_is_not_known_is_refused_before_anything_is_written(tmp_path):
    done = heta("train", "synthetic-mag:scale=0.001", "--run-dir", tmp_path / "run", "--set",
                "run.loggers=tensorbord", path=tmp_path)
    assert done.returncode == 2
    assert "unknown logger 'tensorbord'" in done.stderr
    assert not (tmp_path / "run").exists()
