"""`dgl-heta train --seeds`: several seeds, one after another, and their spread."""

from __future__ import annotations

import io
import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dgl_heta.errors import InputError
from dgl_heta.hooks.manager import plugins
from dgl_heta.launch.jobs.seed_runs import check_seeds, seeds_of, train_seeds
from dgl_heta.launch.jobs.training import TrainingInterruptedError, TrainingJob
from dgl_heta.report.seed_table import seeds_table, spread
from dgl_heta.store import write_store
from tests.support.command_line import edge_files, refused
from tests.support.graphs import academic
from tests.support.runs import summary

SETTINGS = ["partition.parts=1", "model.hidden=8", "train.fanouts=3,3", "train.batch_size=8",
            "train.threads=1", "train.epochs=40", "train.metrics=f1_macro"]


def test_seeds_are_so_many_or_a_list() -> None:
    assert seeds_of("3") == [0, 1, 2]
    assert seeds_of("2", 7) == [7, 8]
    assert seeds_of("5, 1,2") == [5, 1, 2]
    assert (seeds_of(2, 7), seeds_of([7]), seeds_of((3, 1))) == ([7, 8], [7], [3, 1])
    for text, message in (([], "0 seeds"), ([1.5], "neither"), (True, "neither"), (-1, "neither"),
                          ("", "neither"), ("-1", "neither"), ("1.5", "neither"),
                          ("1,,2", "neither"), ("0", "asks for 0 seeds"), ("1001", "1,001 seeds"),
                          ("3,1,3", "names 3 twice")):
        with pytest.raises(InputError, match=message):
            seeds_of(text)


def test_the_table_has_means_and_deviations() -> None:
    runs = {4: summary(test_acc=0.5, best_epoch=2, metrics={"test": {"f1_macro": 0.25}}),
            9: summary(test_acc=0.75, best_epoch=4)}
    found = spread(runs)
    assert found["test accuracy"] == {"mean": 0.625, "std": pytest.approx(0.125 * 2 ** 0.5),
                                      "values": [0.5, 0.75]}
    assert found["test f1_macro"] == {"mean": 0.25, "std": None, "values": [0.25, None]}
    drawn = io.StringIO()
    Console(file=drawn, width=120).print(seeds_table(runs))
    for text in ("2 seeds", "seed 9", "0.6250 ± 0.1768", "3.00 ± 1.41", "0.2500"):
        assert text in drawn.getvalue(), text
    drawn = io.StringIO()
    Console(file=drawn, width=120).print(seeds_table(
        {seed: summary(test_acc=seed / 10) for seed in range(8)}))
    assert "least" in drawn.getvalue()
    assert "0.7000" in drawn.getvalue()


@pytest.mark.usefixtures("warm_workers")
def test_seeds_go_on_with_the_one_that_was_interrupted(heta: Any, tmp_path: Path) -> None:
    write_store(academic(), tmp_path / "store")
    out = tmp_path / "run"
    job = TrainingJob.prepare(str(tmp_path / "store"), None, SETTINGS, plugins())

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "epoch" and event["epoch"] == 2 and (out / "seed-5").exists():
            raise KeyboardInterrupt

    with pytest.raises(TrainingInterruptedError, match=(
            r"1 of 2 seeds is finished and epochs 1 to \d+ of seed 5 are saved: go on .*--resume "
            rf"--run-dir {out}$")):
        train_seeds(job, [3, 5], out, report=stop)
    with pytest.raises(InputError, match="there is no run to resume in"):  # they are of seeds
        job.run(out, resume=True)
    with pytest.raises(InputError, match="holds runs of several seeds"):
        job.check(out)
    shutil.copytree(out, tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone/seed-5/checkpoints")
    for go_on in (check_seeds, train_seeds):
        with pytest.raises(InputError, match="seed-5 holds a run, but no checkpoint"):
            go_on(job, [3, 5], tmp_path / "gone", resume=True)
    first = (out / "seed-3" / "summary.json").read_bytes()
    command = ("train", tmp_path / "store", "--seeds", "3,5", "--run-dir", out,
               *(word for setting in SETTINGS for word in ("--set", setting)))
    for dry_run in (["--dry-run"], []):
        refused(heta(*command, *dry_run), "seed-3 holds a run already; go on with --resume")
    assert heta(*command, "--resume", "--dry-run").status == 0
    result = heta(*command, "--resume", "--json").json
    assert (out / "seed-3" / "summary.json").read_bytes() == first
    assert [run["epochs"] for run in result["runs"]] == [40, 40]
    kept = [json.loads((out / f"seed-{seed}" / "summary.json").read_text()) for seed in (3, 5)]
    assert [one["settings"]["train"]["seed"] for one in kept] == [3, 5]
    scores = [one["metrics"]["test"]["f1_macro"] for one in kept]
    assert scores == result["figures"]["test f1_macro"]["values"]
    assert result["figures"]["test f1_macro"]["std"] == pytest.approx(statistics.stdev(scores))
    assert result["seeds"] == [3, 5]
    again = heta(*command, "--resume")  # all are finished
    assert "seed 5" in again.out
    assert "seed 5, 2 of 2: finished before" in again.err
    write_store(academic(papers=40), tmp_path / "other")
    other = heta(command[0], tmp_path / "other", *command[2:], "--resume")
    assert other.status == 2
    assert "seed-3 was made with another graph; resume with the same" in other.err
    assert (out / "seed-3" / "summary.json").read_bytes() == first
    shown = heta("report", out, "--json").json
    assert [run["run"] for run in shown["runs"]] == ["seed-3", "seed-5"]
    assert not (out / ".lock").exists()


def test_the_copy_of_the_graph_that_runs_of_other_seeds_have_is_not_replaced(tmp_path: Path
                                                                            ) -> None:
    """They were trained on it: predictions and reports of them read it."""
    job = TrainingJob.prepare(str(edge_files(tmp_path / "files")), None, SETTINGS, plugins())
    out = tmp_path / "run"
    (out / "seed-0/checkpoints").mkdir(parents=True)
    with pytest.raises(InputError, match=r"run holds runs of other seeds with a copy of the graph; "
                                         r"add seeds with --resume"):
        train_seeds(job, [2], out)
    with pytest.raises(InputError, match="run holds runs of several seeds; choose another direct"):
        job.run(out)
    assert not (out / "store").exists()


def test_several_seeds_from_python(tmp_path: Path) -> None:
    import dgl_heta

    write_store(academic(), tmp_path / "store")
    settings = [*(s for s in SETTINGS if "epochs" not in s), "train.epochs=1"]
    found = dgl_heta.train(tmp_path / "store", tmp_path / "run", settings=settings, seeds=[3])
    assert list(found.summaries) == [3]
    assert found.results[3].run_dir == tmp_path / "run" / "seed-3"
