"""The main figures of a run, and how they are written.

What a run wrote is JSON of unknown quality: a value of the wrong type counts as missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dgl_heta.report.epoch_records import CAUSES, STAGES
from dgl_heta.report.text import printable


@dataclass
class Figures:
    """The main figures, from the summary or else from the epochs."""

    scores: dict[str, float]
    metric: str
    stages: dict[str, float]
    seconds: float | None
    causes: dict[str, float]
    sent: float | None
    memory: float | None
    ahead: dict[str, tuple[float, float]]
    """Of batches made ahead of time: stage → seconds that it worked per epoch, and those of them
    that training did not wait for."""


def main_figures(summary: Mapping[str, Any], epochs: Sequence[Mapping[str, Any]] = ()) -> Figures:
    last = epochs[-1] if epochs else {}
    steady = epochs[1:] or epochs  # the first one compiles and warms up, as for a summary
    scores = {}
    for key, name in (("test_acc", "test"), ("val_acc", "validation"), ("train_acc", "training")):
        value = as_number(summary.get(key))
        value = as_number(last.get(key)) if value is None else value
        if value is not None:
            scores[name] = value
    metric = summary.get("metric", "accuracy" if summary else "score")
    stages = as_numbers(summary.get("stages"), STAGES) or _mean(steady, "seconds", STAGES)
    causes = as_numbers(summary.get("bytes"), CAUSES) or _mean(steady, "bytes_sent", CAUSES)
    seconds = total_of(stages, summary.get("epoch_seconds"),
                       as_mapping(summary.get("stages")).get("total"),
                       _mean_total(steady, "seconds"))
    sent = total_of(causes, summary.get("bytes_sent_per_epoch"),
                    as_mapping(summary.get("bytes")).get("total"),
                    _mean_total(steady, "bytes_sent"))
    peaks = [n for source in (summary, *epochs)
             if (n := as_number(source.get("peak_rss_mb"))) is not None]
    memory = as_number(summary.get("peak_rss_mb"))
    return Figures(scores, metric if isinstance(metric, str) else "score",
                   with_other(stages, seconds), seconds, with_other(causes, sent), sent,
                   max(peaks, default=None) if memory is None else memory,
                   _ahead(as_mapping(summary.get("ahead", last.get("ahead")))))


def stopped_early(summary: Mapping[str, Any]) -> str | None:
    """Where and why a training ended before its last epoch; None if it did not."""
    if summary.get("stopped_early") is not True:
        return None
    train = as_mapping(as_mapping(summary.get("settings")).get("train"))
    done, patience, epochs = (as_number(value) for value in (
        summary.get("epochs"), train.get("early_stopping"), train.get("epochs")))
    text = "" if done is None or epochs is None else f"after {done:.0f} of {epochs:.0f} epochs"
    if patience is not None:
        text += f"{', ' * bool(text)}none of the last {patience:.0f} was better" \
            if patience > 1 else f"{', ' * bool(text)}the last one was no better"
    return text or "yes"


def further_metrics(summary: Mapping[str, Any]) -> dict[str, float]:
    """Metrics of `train.metrics`, by their names in tables; those of the test first."""
    splits = as_mapping(summary.get("metrics"))
    return {f"{shown} {name}": value for split, shown in (("test", "test"), ("val", "validation"))
            for name, value in as_numbers(splits.get(split)).items()}


def metric_curves(epochs: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Metrics of `train.metrics` in validation: name → (epoch, value) of each epoch with one."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for epoch in epochs:
        for name, value in as_numbers(epoch.get("metrics")).items():
            curves.setdefault(name, []).append((float(epoch["epoch"]), value))
    return curves


def _ahead(stages: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    times = {}
    for name, seconds in stages.items():
        worked = as_number(as_mapping(seconds).get("worked"))
        waited = as_number(as_mapping(seconds).get("waited"))
        if worked is not None and waited is not None:
            times[str(name)] = worked, max(worked - waited, 0.0)
    return times


def _mean(epochs: Sequence[Mapping[str, Any]], key: str, order: Sequence[str]
          ) -> dict[str, float]:
    rows = [as_numbers(epoch.get(key), order) for epoch in epochs]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: sum(row.get(name, 0) for row in rows) / len(rows) for name in names}


def _mean_total(epochs: Sequence[Mapping[str, Any]], key: str) -> float | None:
    totals = [n for epoch in epochs
              if (n := as_number(as_mapping(epoch.get(key)).get("total"))) is not None]
    return sum(totals) / len(totals) if totals else None


def run_names(summary: Mapping[str, Any]) -> list[str]:
    """Dataset, model and number of partitions, as far as they are known."""
    settings = as_mapping(summary.get("settings"))
    names = []
    for key in ("dataset", "model"):
        value = summary.get(key, settings.get(key))
        if isinstance(value, Mapping):
            value = value.get("name")
        if isinstance(value, str | int):
            names.append(printable(value))
    parts = as_mapping(summary.get("plan")).get("parts")
    if isinstance(parts, int):
        names.append(f"{parts} partition{'s' * (parts != 1)}")
    return names


def as_number(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None


def as_numbers(value: Any, order: Sequence[str] = ()) -> dict[str, float]:
    """The finite numbers of a mapping, those named in `order` first; without the total."""
    if not isinstance(value, Mapping):
        return {}
    keys = sorted(value, key=lambda k: order.index(k) if k in order else len(order))
    return {str(k): n for k in keys if k != "total" and (n := as_number(value[k])) is not None}


def as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def total_of(parts: Mapping[str, float], *totals: Any) -> float | None:
    """The first total that is a number, or the sum of the parts."""
    for total in totals:
        if (number := as_number(total)) is not None:
            return number
    return sum(parts.values()) if parts else None


def with_other(parts: Mapping[str, float], total: float | None) -> dict[str, float]:
    """The parts with what they leave of the total as `other`, where it is worth showing."""
    rest = (total or 0) - sum(parts.values())
    return {**parts, "other": rest} if total and rest > 0.005 * total else dict(parts)


def human_seconds(value: float) -> str:
    return f"{value:,.1f} s" if value >= 100 else f"{value:.2f} s" if value >= 0.1 \
        else f"{value * 1000:.2f} ms"


def human_megabytes(value: float) -> str:
    return f"{value:,.0f} MB"


def percent(value: float, total: float) -> str:
    return f"{100 * value / total:.1f} %" if total else ""
