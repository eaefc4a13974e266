"""The picture of a figure of paper.py: bars with the paper's numbers, or curves."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from paper_sources import Figure, Rows


def draw(figure: Figure, rows: Rows, curves: Rows, file: Path) -> str:
    """A picture as SVG: what a page has to show it, or why there is none, if so."""
    try:
        from matplotlib import rcParams
        from matplotlib.figure import Figure as Picture
    except ImportError:
        return "no picture: matplotlib is not installed (pip install 'dgl-heta[charts]')"
    rcParams.update({"svg.hashsalt": "dgl-heta", "svg.fonttype": "none"})
    rows = [r for r in rows if any(r["ours"].values())]
    if not rows and not curves:
        return ""
    picture = Picture(figsize=(9, 1.4 + 0.26 * max(len(rows), 6)), layout="constrained")
    axis = picture.add_subplot()
    if curves:
        for curve in curves:
            axis.plot(curve["x"], curve["y"], marker=".", label=curve["name"])
        axis.set(xlabel=figure.axes[0], ylabel=figure.axes[1])
    else:
        bars(figure, rows, axis)
    axis.legend(fontsize="small", frameon=False)
    axis.set_title(figure.title, loc="left", fontsize="medium")
    axis.spines[["top", "right"]].set_visible(False)
    picture.savefig(file, metadata={"Date": None})
    return f"![{figure.title}]({file.name})"


def bars(figure: Figure, rows: Rows, axis: Any) -> None:
    """The first column as bars, with its spread and the paper's numbers; or all, one upon the
    other."""
    places = range(len(rows))
    left = [0.0] * len(rows)
    for column in figure.columns if figure.stacked else figure.columns[:1]:
        each = [row["ours"].get(column.name) or [0.0] for row in rows]
        middle = [statistics.median(x) for x in each]
        error = None if figure.stacked else [[m - min(x) for m, x in zip(middle, each)],
                                             [max(x) - m for m, x in zip(middle, each)]]
        axis.barh(places, middle, left=left, xerr=error, label=column.name)
        left = [a + b for a, b in zip(left, middle)]
        said = [(r["paper"].get(column.name), i) for i, r in enumerate(rows)]
        known = [(x, i) for x, i in said if isinstance(x, float | int)]
        if known and not figure.stacked:
            axis.scatter(*zip(*known), marker="D", color="black", label="the paper")
    axis.set_yticks(places, [" ".join(filter(None, r["labels"].values())) for r in rows])
    axis.invert_yaxis()
