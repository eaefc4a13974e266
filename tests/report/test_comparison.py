"""`dgl-heta report` and `inspect` on runs that are files alone: side by side, settings, damage."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from dgl_heta import cli
from dgl_heta.report.changed import changed_settings
from dgl_heta.report.comparing import compared
from dgl_heta.report.reading import Run
from dgl_heta.settings import Settings
from tests.support.runs import Page, epoch, summary, write_run

NAME = '<img src=x onerror="alert(1)">&$x_'


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    first, second = tmp_path / "first", tmp_path / NAME
    for folder in (first, second):
        folder.mkdir()
    write_run(first, [epoch(1), epoch(2)], summary(best_epoch=2))
    write_run(second, [epoch(n, loss=1.25, metrics={"f1_macro": 0.1 * n})
                       for n in range(1, 4)], summary(
        test_acc=0.5123, settings={"train": {"batch_size": 64}, "run": {"directory": "x"}},
        bytes={"partials": 1000, "gradients": 0}, bytes_sent_per_epoch=1000))
    return [first, second]


@pytest.fixture
def heta(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    def command(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dgl-heta", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return (int(end.value.code or 0), *capsys.readouterr())

    return command


def test_runs_are_compared_with_what_differs_and_curves_of_all(
        heta: Any, runs: list[Path], tmp_path: Path) -> None:
    page = tmp_path / "both.html"
    status, said, _ = heta("report", *runs, "--out", page, "--json")
    result = json.loads(said)
    assert status == 0
    assert result["report"] == str(page)
    assert [run["scores"]["test"] for run in result["runs"]] == [0.4691, 0.5123]
    assert [run["bytes_sent_per_epoch"] for run in result["runs"]] == [48_000_000, 1000]
    assert result["runs"][1]["differs"] == {
        "train.batch_size": "64", "train.fanouts": "–", "train.epochs": "–"}
    text = page.read_text(encoding="utf-8")
    found = Page(text)
    assert {"first", NAME, "0.4691", "0.5123", "1.00 kB", "train.batch_size", "512", "1.2500"
            } <= set(found.words)
    assert found.tags.count("img") == 3  # loss and accuracy; F1; seconds and bytes
    assert "Further metrics of validation after each epoch." in found.words
    assert "<img src=x" not in text
    assert "script" not in found.tags
    assert all(reference.startswith("data:image/svg+xml;base64,") for reference in found.references)
    assert not re.search(r"https?://|@import|url\(", text)


def test_a_table_of_runs_is_printed_and_an_output_is_not_replaced(
        heta: Any, runs: list[Path], tmp_path: Path) -> None:
    page = tmp_path / "both.html"
    page.write_text("mine")
    assert "0.5123" in heta("report", *runs)[1]
    status, _, said = heta("report", *runs, "--out", page)
    assert status == 2
    assert "--overwrite" in said
    assert page.read_text() == "mine"
    assert heta("report", *runs, "--out", page, "--overwrite")[0] == 0
    assert "side by side" in page.read_text()


def test_the_report_of_one_run_is_made_again_and_others_are_refused(
        heta: Any, runs: list[Path], tmp_path: Path) -> None:
    status, said, _ = heta("report", runs[0])
    assert status == 0
    assert "0.4691" in said
    assert "0.4691" in (runs[0] / "report.html").read_text()
    for path, why in ((tmp_path, "is not the directory of a run"),
                      (tmp_path / "none", "does not exist")):
        for command in ("report", "inspect"):
            status, _, said = heta(command, path)
            assert status == 2
            assert (why in said) or command == "inspect"


def test_a_run_is_inspected_and_its_damage_is_named(heta: Any, runs: list[Path]) -> None:
    status, said, _ = heta("inspect", runs[0])
    assert status == 0
    assert "train.batch_size" in said
    assert "train.epochs" not in said
    assert json.loads(heta("inspect", runs[0], "--json")[1].splitlines()[-1])[
        "changed_settings"] == {"train.batch_size": 512, "train.fanouts": [25, 10]}
    with (runs[0] / "metrics.jsonl").open("a") as log:
        log.write('{"event": "epoch", "epoch": 3, "sha256": "0"}\n')
    status, _, said = heta("inspect", runs[0])
    assert status == 2
    assert "metrics.jsonl line 3 was edited or damaged" in " ".join(said.split())


def test_only_settings_that_differ_are_shown() -> None:
    settings = Settings().model_dump()
    settings["train"]["fanouts"] = [25, 20, 20]  # the default of three layers
    settings["model"]["layers"] = 3
    settings["plugins"] = {"pipeline": {"depth": 2}}
    assert changed_settings(settings) == {"model.layers": 3, "plugins.pipeline.depth": 2}
    settings["train"]["fanouts"] = [25, 20]
    assert changed_settings(settings)["train.fanouts"] == [25, 20]


def test_graphs_of_one_name_may_differ() -> None:
    runs = {}
    for name, nodes in (("one", 320), ("other", 270)):
        runs[name] = run = Run()
        run.summary, run.started = {"dataset": "toy"}, {"graph": {"nodes": nodes}}
    assert ["graph.nodes", "320", "270"] in compared(runs).differences
