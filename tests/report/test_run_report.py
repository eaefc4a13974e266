"""What a user sees of a finished run: the report, and the table of its figures."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dgl_heta.errors import InputError
from dgl_heta.planning.cost import predict
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.workload import Workload
from dgl_heta.report import plan_picture
from dgl_heta.report.figures import main_figures
from dgl_heta.report.page import write_report
from dgl_heta.report.run_table import summary_table
from tests.support.plans import MAG
from tests.support.runs import Page, epoch, summary, write_run


def test_the_report_has_the_numbers_and_opens_offline(tmp_path: Path) -> None:
    plan = make_plan(MAG, "paper", 2, 2)
    write_run(tmp_path, [epoch(1), epoch(2), epoch(3)], summary())
    path = write_report(tmp_path, plan_picture.svg(plan, predict(plan, Workload())))
    assert path == tmp_path / "report.html"
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    for number in ("0.4691", "0.4815", "8.25 s", "48.0 MB", "1,234 MB", "40.0 MB", "27,414,283",
                   "25,483,280", "[25, 10]", "dgl 2.1.0", "1,111 MB", "80.50 s"):
        assert number in page.words, number
    assert "train.batch_size" in page.words
    assert "train.epochs" not in page.words  # as by default
    assert not {"learnable", "0 B", "0.0 %"} & set(page.words)
    assert page.tags.count("img") == 6  # learning twice, time, bytes, plan, memory
    assert all(reference.startswith("data:image/svg+xml;base64,") for reference in page.references)
    assert "script" not in page.tags
    assert not re.search(r"https?://|@import|url\(", text)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "metrics.jsonl", "report.html", "summary.json"]


def test_words_that_name_a_row_stay_whole_beside_a_long_command(tmp_path: Path) -> None:
    """`overflow-wrap: anywhere` lets a column be one letter wide; a cell's last rule counts."""
    write_run(tmp_path, [epoch(1)], summary())
    text = write_report(tmp_path).read_text(encoding="utf-8")
    rules = re.findall(r"^([^{}@]+)\{([^}]*)\}", text[text.index("<style>"):text.index("</style>")],
                       re.MULTILINE)
    for cell in ("th", "td:first-child"):
        wraps = [style.split("overflow-wrap:")[1].split(";")[0].strip() for cells, style in rules
                 if cell in re.split(r"[,\s]+", cells) and "overflow-wrap:" in style]
        assert wraps[-1:] == ["break-word"], cell


def test_texts_of_a_page_are_cut_and_pictures_are_not(tmp_path: Path) -> None:
    plan = make_plan(MAG, "paper", 2, 2)
    picture = plan_picture.svg(plan, predict(plan, Workload()))
    write_run(tmp_path, [epoch(1)], summary(dataset="d" * 100_000))
    text = write_report(tmp_path, picture).read_text(encoding="utf-8")
    assert "d" * 5000 not in text
    assert base64.b64encode(picture.encode()).decode() in text


@pytest.mark.parametrize(("metrics", "pictures"), [
    ([{"f1_macro": 0.2, "auroc": 0.6}, None, {"f1_macro": 0.3, "auroc": None}], 1),
    ([{"f1_macro": 0.2, "mean_rank": 4.0, "mae": 7.0, "rmse": 9.0}] * 3, 2),  # three panels each
    ([{}, "damaged", {"f1_macro": "high"}], 0),
])
def test_further_metrics_are_drawn(tmp_path: Path, metrics: list[Any], pictures: int) -> None:
    write_run(tmp_path, [epoch(i, metrics=m) for i, m in enumerate(metrics, 1)], summary())
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert page.tags.count("img") == 6 - 1 + pictures  # no plan
    assert page.words.count("Further metrics of validation after each epoch.") == pictures


def test_the_report_is_the_same_when_written_again(tmp_path: Path) -> None:
    write_run(tmp_path, [epoch(1), epoch(2)], summary())
    first = write_report(tmp_path).read_bytes()
    assert write_report(tmp_path).read_bytes() == first


def test_names_are_escaped_in_the_report(tmp_path: Path) -> None:
    name = '<script>alert("1")</script>&$x_'
    write_run(tmp_path, [epoch(1, seconds={name: 1.0, "total": 2.0})],
              summary(dataset=name, settings={name: {name: name}}, versions={name: name}))
    text = write_report(tmp_path, "<svg><script>alert(1)</script></svg>").read_text()
    assert "<script" not in text
    assert name in Page(text).words


@pytest.mark.parametrize("events", [[], ["", "{}", '{"event": "epo', "[1]", "null"]])
@pytest.mark.parametrize("result", [None, {}, {"test_acc": None, "stages": [], "plan": 3}])
def test_a_run_without_epochs_still_has_a_report(
        tmp_path: Path, events: list[Any], result: dict[str, Any] | None) -> None:
    page = Page(write_report(write_run(tmp_path, events, result)).read_text())
    assert "No epoch was finished." in page.words
    assert "img" not in page.tags


def test_an_empty_run_directory_has_a_report_and_a_missing_one_is_an_error(
        tmp_path: Path) -> None:
    assert write_report(tmp_path).exists()
    with pytest.raises(InputError, match="no-such-run"):
        write_report(tmp_path / "no-such-run")


def test_without_validation_the_best_epoch_is_said_to_be_the_last_one(tmp_path: Path) -> None:
    write_run(tmp_path, [epoch(1), epoch(2)], summary(best_epoch=2, val_acc=None, test_acc=None))
    assert ("2 of 2, the last one, as none has a score in validation; the model that was saved"
            in Page(write_report(tmp_path).read_text()).words)


def test_an_interrupted_run_shows_the_epochs_it_finished(tmp_path: Path) -> None:
    # The second epoch was run again after a restart; the last line was cut off by a crash.
    events = [epoch(1), epoch(2, val_acc=0.1), epoch(2, val_acc=0.4321), '{"event": "ep']
    page = Page(write_report(write_run(tmp_path, events, None)).read_text())
    assert "The run did not finish." in page.words
    assert "2 epochs" in page.words
    assert {"0.4321", "8.00 s", "48.0 MB"} <= set(page.words)
    assert "metrics.jsonl line 4" in page.words


def test_odd_values_in_the_metrics_do_not_stop_the_report(tmp_path: Path) -> None:
    odd = [epoch(1, loss=float("nan"), seconds=None), {"event": "epoch", "epoch": 2},
           epoch(3, loss="x", bytes_sent={"partials": float("inf")}),
           *(epoch(i) for i in range(4, 90))]
    write_run(tmp_path, odd, {"workers": [{"bytes_sent": 5}, {}, 5], "settings": [1],
                              "plan": {"partitions": [{}]}})
    page = Page(write_report(tmp_path).read_text())
    assert "89 epochs" in page.words  # those with odd values count
    assert page.words[page.words.index("Workers"):][1:] == [
        "worker", "sent", "0", "5 B", "1", "–"]  # no column of which nothing is known
    assert page.tags.count("img") == 3  # loss and scores by epoch, seconds, bytes
    assert not {"nan", "inf"} & {word.lower() for word in page.words}


def test_relations_of_a_plan_without_replication_are_listed(tmp_path: Path) -> None:
    plan = {**make_plan(MAG, "paper", 2, 2).to_json(), "replication": "none"}
    page = Page(write_report(write_run(tmp_path, [epoch(1)], summary(plan=plan))).read_text())
    assert any("author writes paper" in word and "rev-writes" in word for word in page.words)


def test_the_summary_from_the_metrics_is_used_where_there_is_no_file(tmp_path: Path) -> None:
    events = [epoch(1), {"event": "summary", **summary(test_acc=0.1234)}]
    page = Page(write_report(write_run(tmp_path, events, None)).read_text())
    assert "0.1234" in page.words


def rendered(result: dict[str, Any]) -> str:
    out = io.StringIO()
    Console(file=out, width=80).print(summary_table(result))
    return out.getvalue()


def test_the_summary_table_has_time_by_stage_and_bytes_by_cause() -> None:
    text = rendered(summary())
    assert text.startswith("ogbn-mag · rgcn · 2 partitions")
    for line in (r"test accuracy +0\.4691", r"seconds per epoch +8\.25 s",
                 r"backward +2\.00 s +24\.2 %", r"other +0\.75 s +9\.1 %",
                 r"sent per epoch +48\.0 MB", r"partials +40\.0 MB +83\.3 %",
                 r"peak memory of a worker +1,234 MB"):
        assert re.search(line, text), line


def test_figures_of_a_run_that_has_not_ended_are_as_a_summary_has_them() -> None:
    """Without the first epoch, which compiles; and of a task that is not known."""
    first, *more = (epoch(number) for number in (1, 2, 3))
    first["seconds"] = {name: 10 * value for name, value in first["seconds"].items()}
    figures = main_figures({}, [first, *more])
    assert (figures.metric, figures.seconds, figures.stages["sample"]) == ("score", 8.0, 1.5)
    assert main_figures({}, [first]).seconds == 80


def test_the_summary_table_of_nothing_says_so() -> None:
    assert "no epoch was finished" in rendered({})


CLASSES = {"split": "test", "types": {"paper": {
    "number": 3, "matrix": [[8, 2, 0], [1, 4, 0], [0, 0, 0]],
    "classes": [
        {"class": 0, "name": "ham <b>", "precision": 8 / 9, "recall": 0.8, "f1": 0.8421,
         "support": 10, "predicted": 9},
        {"class": 1, "name": "eggs", "precision": 2 / 3, "recall": 0.8, "f1": 0.7273,
         "support": 5, "predicted": 6},
        {"class": 2, "name": "spam", "precision": 0.0, "recall": 0.0, "f1": 0.0,
         "support": 0, "predicted": 0}],
    "confusions": [{"true": 0, "predicted": 1, "count": 2, "names": ["ham <b>", "eggs"]},
                   {"true": 1, "predicted": 0, "count": 1, "names": ["eggs", "ham <b>"]}]}}}


def test_the_report_shows_classes_and_how_they_are_confused(tmp_path: Path) -> None:
    write_run(tmp_path, [epoch(1)], summary(classes=CLASSES))
    page = Page(write_report(tmp_path).read_text())
    assert "Classes, test" in page.words
    for text in ("ham <b>", "0.8889", "0.7273", "Worst confusions", "20.0 %"):
        assert text in page.words, text
    write_run(tmp_path, [epoch(1)], summary())
    fewer = Page(write_report(tmp_path).read_text())
    assert page.tags.count("img") == fewer.tags.count("img") + 1


def test_the_report_of_many_classes_shows_the_worst(tmp_path: Path) -> None:
    many: list[Any] = [{"class": [1]}, "x"]  # what a file may hold
    many += [{"class": c, "precision": 1.0, "recall": 1.0, "f1": c / 100, "support": 1,
             "predicted": 1} for c in range(60, 0, -1)]
    write_run(tmp_path, [epoch(1)], summary(classes={"split": "val", "types": {"paper": {
        "number": 400, "classes": many, "matrix": [["x"], 3],
        "confusions": [{"true": [1], "count": "x"}, 3]}}}))
    page = Page(write_report(tmp_path).read_text())
    assert "Classes, validation" in page.words
    assert page.words[page.words.index("predicted") + 1] == "1"
    assert any("The 25 classes with the lowest F1, of 400" in word for word in page.words)


def test_further_metrics_and_an_early_end_are_shown(tmp_path: Path) -> None:
    settings = {"train": {"early_stopping": 2, "epochs": 9, "monitor": "f1_macro"}}
    result = summary(metrics={"test": {"f1_macro": 0.1234, "auroc": None}}, stopped_early=True,
                     epochs=4, best_epoch=2, settings=settings)
    early = "after 4 of 9 epochs, none of the last 2 was better"
    shown = rendered(result)
    assert "test f1_macro" in shown
    assert "0.1234" in shown
    assert "after 4 of 9 epochs" in shown
    write_run(tmp_path, [epoch(n) for n in range(1, 5)], result)
    words = Page(write_report(tmp_path).read_text()).words
    assert early in words
    assert "0.1234" in words
    assert any("by f1_macro in validation" in word for word in words)
    assert "stopped early" not in rendered(summary(stopped_early=False))
