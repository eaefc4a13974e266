"""The main figures of a run as a table for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from dgl_heta.report.comparing import Comparison
from dgl_heta.report.console import table
from dgl_heta.report.figures import (
    as_mapping,
    as_number,
    further_metrics,
    human_megabytes,
    human_seconds,
    main_figures,
    percent,
    run_names,
    stopped_early,
)
from dgl_heta.report.text import human_bytes, printable, visible


def comparison_table(comparison: Comparison) -> Table:
    """Runs side by side: a column for each, their figures, then what differs between them."""
    names = [printable(name) for name in comparison.head]
    rows = table()
    for index, name in enumerate(names):
        rows.add_column(Text(name), justify="right" if index else "left", overflow="fold")
    for part in (comparison.figures, comparison.differences):
        for row in part:
            rows.add_row(*(Text(visible(str(value))) for value in row))
        rows.add_section()
    return rows


Row = Callable[..., None]
"""`row(name, value, share, main)` adds one to a table."""


def summary_table(summary: Mapping[str, Any], epochs: Sequence[Mapping[str, Any]] = ()) -> Table:
    """Scores, seconds per epoch by stage, bytes sent per epoch by cause and peak memory."""
    title = " · ".join(run_names(summary)) or "Training"
    rows = table("figure", "value", "share", title=Text(title, style="bold"), head=False,
                 right=("value", "share"))
    rows.columns[2].style = "dim"
    figures = main_figures(summary, epochs)

    def row(name: str, value: str, share: str = "", main: bool = True) -> None:
        rows.add_row(Text(printable(name) if main else f"  {printable(name)}",
                          style="bold" if main else ""), value, share)

    for name, score in figures.scores.items():
        row(f"{name} {figures.metric}", f"{score:.4f}")
    for name, value in further_metrics(summary).items():
        row(name, f"{value:.4f}", main=False)
    if (best := as_number(summary.get("best_epoch"))) is not None:
        row("best epoch", f"{best:.0f} of {as_number(summary.get('epochs')) or best:.0f}")
    if early := stopped_early(summary):
        row("stopped early", early)
    _parts_of(row, "seconds per epoch", figures.seconds, figures.stages, human_seconds)
    if figures.seconds is not None and figures.ahead:
        row("made ahead of time", "", "hidden")
        for name, (worked, hidden) in figures.ahead.items():
            row(name, human_seconds(worked), percent(hidden, worked), main=False)
    _parts_of(row, "sent per epoch", figures.sent, figures.causes, human_bytes)
    _cache_rows(row, summary)
    if figures.memory is not None:
        row("peak memory of a worker", human_megabytes(figures.memory))
    if not rows.row_count:
        row("no figures: no epoch was finished", "")
    return rows


def _parts_of(row: Row, heading: str, total: float | None, parts: Mapping[str, float],
              shown: Callable[[float], str]) -> None:
    """A total and what it is made of, if there is one."""
    if total is None:
        return
    row(heading, shown(total))
    for name, value in parts.items():
        if value:
            row(name, shown(value), percent(value, total), main=False)


def _cache_rows(row: Row, summary: Mapping[str, Any]) -> None:
    """The share of rows that the caches had, over all types and of each."""
    types = as_mapping(as_mapping(summary.get("cache")).get("types"))
    counted = {t: (as_number(as_mapping(c).get("hits")) or 0.0,
                   as_number(as_mapping(c).get("reads")) or 0.0) for t, c in types.items()}
    if any(reads for _, reads in counted.values()):
        row("rows found in the cache", percent(*map(sum, zip(*counted.values()))))
        for ntype, (hits, reads) in counted.items():
            if hits:
                row(ntype, percent(hits, reads), main=False)
