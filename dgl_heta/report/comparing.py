"""Several runs side by side: what they were, what came of them, and their curves in one chart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dgl_heta.errors import listing
from dgl_heta.report.changed import flat, shown_value
from dgl_heta.report.charts import byte_scale, in_rows, overlay_chart
from dgl_heta.report.figures import (
    as_mapping,
    as_number,
    as_numbers,
    further_metrics,
    human_megabytes,
    human_seconds,
    main_figures,
    metric_curves,
    total_of,
)
from dgl_heta.report.page_parts import Picture, Section, Table
from dgl_heta.report.reading import Run, read_run
from dgl_heta.report.text import human_bytes

_NONE = "–"


@dataclass(frozen=True)
class Comparison:
    """Runs by their names, and tables with a column for each of them.

    Attributes
    ----------
    figures : rows of a name and a text per run: scores, times, bytes.
    differences : rows of a setting or version and its value in each run, where they differ.
    """

    runs: Mapping[str, Run]
    figures: Sequence[Sequence[str]]
    differences: Sequence[Sequence[str]]

    @property
    def head(self) -> list[str]:
        """The heads of the tables' columns."""
        return ["", *self.runs]

    def to_json(self) -> list[dict[str, Any]]:
        """An object for each run: its name, its main figures, and its values that differ."""
        runs = []
        for index, (name, run) in enumerate(self.runs.items()):
            figures = main_figures(run.summary, run.epochs)
            runs.append({
                "run": name, "epochs": len(run.epochs), "finished": bool(run.summary),
                "damaged": run.damaged, "metric": figures.metric, "scores": figures.scores,
                "metrics": as_mapping(run.summary.get("metrics")),
                "best_epoch": as_number(run.summary.get("best_epoch")),
                "epoch_seconds": figures.seconds, "bytes_sent_per_epoch": figures.sent,
                "peak_rss_mb": figures.memory,
                "differs": {row[0]: row[1 + index] for row in self.differences}})
        return runs


def compare_runs(run_dirs: Sequence[Path]) -> Comparison:
    """Read runs and compare them.

    Raises
    ------
    InputError
        One of them is not a directory.
    """
    names = [path.name for path in map(Path.resolve, run_dirs)]
    if len(set(names)) < len(names):
        names = [str(path) for path in run_dirs]
    return compared(dict(zip(names, map(read_run, run_dirs))))


def compared(runs: Mapping[str, Run]) -> Comparison:
    """The comparison of runs that were read, by the names that they are to have."""
    all_figures = [main_figures(run.summary, run.epochs) for run in runs.values()]
    metrics = {figures.metric for figures in all_figures}
    metric = metrics.pop() if len(metrics) == 1 else "score"
    scores = dict.fromkeys(name for figures in all_figures for name in figures.scores)
    rows = [[f"{name} {metric}", *(_text(figures.scores.get(name), "{:.4f}".format)
                                   for figures in all_figures)] for name in scores]
    summaries = [run.summary for run in runs.values()]
    further = [further_metrics(summary) for summary in summaries]
    rows += [[name, *(_text(of_run.get(name), "{:.4f}".format) for of_run in further)]
             for name in dict.fromkeys(name for of_run in further for name in of_run)]
    rows += [
        ["best epoch", *(_text(as_number(s.get("best_epoch")), "{:.0f}".format)
                         for s in summaries)],
        ["epochs", *(str(len(run.epochs)) for run in runs.values())],
        ["last loss", *(_text(as_number(run.epochs[-1].get("loss")) if run.epochs else None,
                              "{:.4f}".format) for run in runs.values())],
        ["time per epoch", *(_text(f.seconds, human_seconds) for f in all_figures)],
        ["sent per epoch", *(_text(f.sent, human_bytes) for f in all_figures)],
        *([f"sent, {cause}", *(_text(f.causes.get(cause), human_bytes) for f in all_figures)]
          for cause in dict.fromkeys(c for f in all_figures for c, n in f.causes.items() if n)),
        ["rows found in the cache", *(_text(_hits(s), "{:.1%}".format) for s in summaries)],
        ["peak memory of a worker", *(_text(f.memory, human_megabytes) for f in all_figures)],
        ["parameters", *(_text(as_number(s.get("parameters")), "{:,.0f}".format)
                         for s in summaries)]]
    return Comparison(runs, [row for row in rows if set(row[1:]) - {_NONE, "0 B"}],
                      _differences(runs.values()))


def comparison_sections(comparison: Comparison) -> list[Section]:
    """Return the sections of a comparison's page."""
    runs = comparison.runs
    metrics = {main_figures(run.summary, run.epochs).metric for run in runs.values()}
    score = f"validation {metrics.pop()}" if len(metrics) == 1 else "validation score"
    unit, scale = byte_scale([epoch for run in runs.values() for epoch in run.epochs])

    def curves(key: str) -> dict[str, list[tuple[float, float]]]:
        return {name: [(float(e["epoch"]), y) for e in run.epochs
                       if (y := as_number(e.get(key))) is not None] for name, run in runs.items()}

    def totals(key: str, scale: float = 1.0) -> dict[str, list[tuple[float, float]]]:
        curve_of: dict[str, list[tuple[float, float]]] = {}
        for name, run in runs.items():
            curve_of[name] = [
                (float(e["epoch"]), total / scale) for e in run.epochs if (total := total_of(
                    as_numbers(e.get(key)), as_mapping(e.get(key)).get("total"))) is not None]
        return curve_of

    drawn = [
        (overlay_chart({"loss": curves("loss"), score: curves("val_acc")}),
         f"Loss and {score} of all runs", f"Loss and {score} after each epoch."),
        *((overlay_chart(panels), f"{listing(panels)} of all runs",
           "Further metrics of validation after each epoch.")
          for panels in in_rows(_metric_panels(runs))),
        (overlay_chart({"seconds": totals("seconds"), f"{unit} sent": totals("bytes_sent", scale)}),
         "Seconds and bytes of all runs", f"Seconds of each epoch, and {unit} sent in it.")]
    wide = range(1, len(runs) + 1)
    return [
        Section("Figures", tables=[Table(comparison.head, comparison.figures, wide)]),
        Section("Curves", [Picture(data, alt, text) for data, alt, text in drawn
                           if data is not None]),
        Section("What differs", tables=[Table(comparison.head, comparison.differences)]
                if comparison.differences else [],
                notes=[] if comparison.differences
                else ["Nothing that the runs recorded: data set, settings, versions."])]


def _metric_panels(runs: Mapping[str, Run]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Metric → run → its curve; runs without the metric have none."""
    of_runs = {name: metric_curves(run.epochs) for name, run in runs.items()}
    metrics = dict.fromkeys(metric for curves in of_runs.values() for metric in curves)
    return {metric: {name: curves.get(metric, []) for name, curves in of_runs.items()}
            for metric in metrics}


def _differences(runs: Iterable[Run]) -> list[list[str]]:
    """Graphs, models, settings and versions that are not the same in all runs."""
    values = [{**{key: s[key] for key in ("dataset", "model") if key in s},
               **dict(flat(as_mapping(run.started.get("graph")), "graph.")),
               **dict(flat(as_mapping(s.get("settings")))),
               **dict(flat(as_mapping(s.get("versions"))))}
              for run in runs for s in [run.summary]]
    aside = {"run.directory", "model.name" if any("model" in v for v in values) else ""}
    rows = []
    for key in dict.fromkeys(key for settings in values for key in settings):
        texts = [shown_value(settings[key]) if key in settings else _NONE for settings in values]
        if key not in aside and len(set(texts)) > 1:
            rows.append([key, *texts])
    return rows


def _hits(summary: Mapping[str, Any]) -> float | None:
    types = [as_mapping(t) for t in as_mapping(as_mapping(summary.get("cache")).get("types")
                                               ).values()]
    reads = sum(as_number(t.get("reads")) or 0.0 for t in types)
    return sum(as_number(t.get("hits")) or 0.0 for t in types) / reads if reads else None


def _text(value: float | None, shown: Any) -> str:
    return _NONE if value is None else shown(value)
