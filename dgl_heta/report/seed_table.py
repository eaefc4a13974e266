"""Several seeds of one training: the mean of each figure, and how far the seeds lie apart."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from dgl_heta.report.console import table
from dgl_heta.report.figures import as_number, further_metrics, main_figures, run_names
from dgl_heta.report.text import printable

_COLUMNS = 6


def spread(summaries: Mapping[int, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Figures of several seeds.

    Parameters
    ----------
    summaries : seed → the summary of its training.

    Returns
    -------
    dict
        Figure → `mean`, `std` (of a sample: divided by one less than there are; None for a single
        seed) and `values`, a number for each seed in their order, None where a run has none. Mean
        and deviation are of the others, and None without any.
    """
    rows: dict[str, list[float | None]] = {}
    for index, summary in enumerate(summaries.values()):
        figures = main_figures(summary)
        figures_of = {f"{name} {figures.metric}": score for name, score in figures.scores.items()}
        figures_of |= further_metrics(summary)
        for key, name in (("best_epoch", "best epoch"), ("epochs", "epochs")):
            if (value := as_number(summary.get(key))) is not None:
                figures_of[name] = value
        if figures.seconds is not None:
            figures_of["seconds per epoch"] = figures.seconds
        for name, score in figures_of.items():
            rows.setdefault(name, [None] * len(summaries))[index] = score
    return {name: _of(values) for name, values in rows.items()}


def _of(values: list[float | None]) -> dict[str, Any]:
    there = [value for value in values if value is not None]
    return {"mean": statistics.fmean(there) if there else None,
            "std": statistics.stdev(there) if len(there) > 1 else None, "values": values}


def seeds_table(summaries: Mapping[int, Mapping[str, Any]]) -> Table:
    """A row for each figure: mean ± standard deviation, and each seed where they are few."""
    first = next(iter(summaries.values()), {})
    count = len(summaries)
    title = " · ".join([*run_names(first), f"{count} seed{'s' * (count != 1)}"])
    shown = [f"seed {seed}" for seed in summaries] if count <= _COLUMNS else ["least", "most"]
    heads = ("mean ± standard deviation", *shown)
    rows = table("", *heads, title=Text(title, style="bold"), right=heads)
    for name, one in spread(summaries).items():
        digits = 2 if name in ("best epoch", "epochs", "seconds per epoch") else 4
        values, there = one["values"], [v for v in one["values"] if v is not None]
        mean = f"{one['mean']:.{digits}f}"
        if one["std"] is not None:
            mean += f" ± {one['std']:.{digits}f}"
        few = values if count <= _COLUMNS else (min(there), max(there))
        whole = name in ("best epoch", "epochs")
        rows.add_row(Text(printable(name)), mean, *(
            "–" if value is None else f"{value:.{0 if whole else digits}f}" for value in few))
    return rows
