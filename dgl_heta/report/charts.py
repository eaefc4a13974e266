"""The charts of the report, each an SVG in a `data:` address."""

from __future__ import annotations

import base64
import importlib.util
import io
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

from dgl_heta.report.figures import as_mapping, as_number, as_numbers, total_of, with_other
from dgl_heta.report.text import PALETTE, printable
from dgl_heta.system.optional import optional

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SCORES = {"train_acc": "training", "val_acc": "validation", "test_acc": "test"}
_REST = "#aab2bb"
_MAX_BARS = 60


def can_draw() -> bool:
    """Return whether matplotlib is installed; without it the charts below are None."""
    return importlib.util.find_spec("matplotlib") is not None


def learning_chart(epochs: Sequence[Mapping[str, Any]], against_time: bool,
                   metric: str = "accuracy", best: float | None = None) -> str | None:
    """Loss and scores against the epoch or against the seconds trained so far; a line shows the
    best epoch."""
    xs: list[float]
    if against_time:
        seconds = [total_of(as_numbers(e.get("seconds")), as_mapping(e.get("seconds")).get("total"))
                   for e in epochs]
        if None in seconds:
            return None
        xs = list(accumulate(s or 0.0 for s in seconds))
    else:
        xs = [e["epoch"] for e in epochs]
    curves = {key: [_nan(e.get(key)) for e in epochs] for key in ("loss", *_SCORES)}
    curves = {key: ys for key, ys in curves.items() if not all(map(math.isnan, ys))}
    if not curves or not can_draw():
        return None
    figure, axes = new_figure(9.6, 3.1, 2)
    style: dict[str, Any] = {"marker": "o" if len(xs) <= 40 else "", "markersize": 3.5,
                             "linewidth": 1.6}
    axes[0].set_title("Loss", loc="left", fontsize=10.5, color="#1f2933")
    axes[1].set_title(metric[:1].upper() + metric[1:], loc="left", fontsize=10.5, color="#1f2933")
    if "loss" in curves:
        axes[0].plot(xs, curves["loss"], color=PALETTE[0], **style)
    for colour, (key, name) in zip((PALETTE[1], PALETTE[2], PALETTE[3]), _SCORES.items()):
        if key in curves:
            axes[1].plot(xs, curves[key], color=colour, label=name, **style)
    if len(curves) > ("loss" in curves):
        axes[1].legend(frameon=False, fontsize=9)
    marked = [x for x, e in zip(xs, epochs) if e["epoch"] == best]
    for ax in axes:
        for x in marked:
            ax.axvline(x, color=_REST, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
        ax.set_xlabel("seconds" if against_time else "epoch", fontsize=9, color="#52606d")
        if not against_time:
            _epoch_ticks(ax, xs)
    return _encode(figure)


def overlay_chart(panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]
                  ) -> str | None:
    """Panels side by side, each with a curve of (epoch, value) for every name; those without a
    value are left out."""
    kept = {title: curves for title, curves in panels.items() if any(curves.values())}
    if not kept or not can_draw():
        return None
    figure, axes = new_figure(9.6, 3.3, len(kept))
    names = list(dict.fromkeys(name for curves in kept.values() for name in curves))
    styles = ("-", "--", ":", "-.")  # once all colours are taken
    for ax, (title, curves) in zip(axes, kept.items()):
        ax.set_title(_label(title[:1].upper() + title[1:]), loc="left", fontsize=10.5,
                     color="#1f2933")
        for index, name in enumerate(names):
            points = curves.get(name, ())
            ax.plot([x for x, _ in points], [y for _, y in points], label=_label(name),
                    color=PALETTE[index % len(PALETTE)], linewidth=1.6, markersize=3.5,
                    linestyle=styles[index // len(PALETTE) % len(styles)],
                    marker="o" if len(points) <= 40 else "")
        ax.set_xlabel("epoch", fontsize=9, color="#52606d")
        _epoch_ticks(ax, sorted({x for points in curves.values() for x, _ in points}))
        ax.set_ylim(bottom=min(0.0, ax.get_ylim()[0]) if title.endswith(("seconds", "sent"))
                    else None)
    axes[-1].legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return _encode(figure)


def metric_panels(curves: Mapping[str, Sequence[tuple[float, float]]]
                  ) -> dict[str, dict[str, Sequence[tuple[float, float]]]]:
    """Panels for :func:`overlay_chart` of metrics by name: those that are shares in one, each
    other in one of its own."""
    panels: dict[str, dict[str, Sequence[tuple[float, float]]]] = {}
    for name, points in curves.items():
        share = all(-1 <= value <= 1 for _, value in points)
        panels.setdefault("metrics of validation" if share else name, {})[name] = points
    return panels


_Panels = TypeVar("_Panels")


def in_rows(panels: Mapping[str, _Panels], most: int = 3) -> list[dict[str, _Panels]]:
    """Panels in pictures of at most so many side by side."""
    items = list(panels.items())
    return [dict(items[low:low + most]) for low in range(0, len(items), most)]


def stack_chart(epochs: Sequence[Mapping[str, Any]], key: str, order: Sequence[str],
                unit: str, scale: float) -> str | None:
    """Stacked bars of the parts of `key` for every epoch; areas where bars would be hairs."""
    rows = [with_other(parts := as_numbers(e.get(key), order),
                       total_of(parts, as_mapping(e.get(key)).get("total"))) for e in epochs]
    names = list(dict.fromkeys(name for row in rows for name, value in row.items() if value))
    if not can_draw() or not any(value for row in rows for value in row.values()):
        return None
    names.sort(key=lambda name: name == "other")
    xs = [e["epoch"] for e in epochs]
    figure, (ax,) = new_figure(9.6, 3.0)
    colours = [_REST if name == "other" else PALETTE[i % len(PALETTE)]
               for i, name in enumerate(names)]
    heights = [[row.get(name, 0.0) / scale for row in rows] for name in names]
    labels = [_label(name) for name in names]
    if len(xs) > _MAX_BARS:
        ax.stackplot(xs, heights, labels=labels, colors=colours, step="mid", linewidth=0)
    else:
        base = [0.0] * len(xs)
        for values, colour, label in zip(heights, colours, labels):
            ax.bar(xs, values, bottom=base, color=colour, label=label, width=0.72)
            base = [b + v for b, v in zip(base, values)]
        if len(xs) < 6:
            ax.set_xlim(min(xs) - 3, max(xs) + 3)
    _epoch_ticks(ax, xs)
    ax.set_xlabel("epoch", fontsize=9, color="#52606d")
    ax.set_ylabel(unit, fontsize=9, color="#52606d")
    handles, shown = ax.get_legend_handles_labels()
    ax.legend(handles[::-1], shown[::-1], frameon=False, fontsize=9, loc="center left",
              bbox_to_anchor=(1.0, 0.5))
    return _encode(figure)


def without_waiting(epochs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Epochs without the seconds of waiting for other workers, which the stages contain."""
    return [{**epoch, "seconds": {k: v for k, v in as_mapping(epoch.get("seconds")).items()
                                  if k != "waiting"}} for epoch in epochs]


def memory_chart(workers: Sequence[Mapping[str, Any]]) -> str | None:
    known = [(str(w.get("rank", i)), n) for i, w in enumerate(workers)
             if (n := as_number(w.get("peak_rss_mb"))) is not None]
    if not known or not can_draw():
        return None
    figure, (ax,) = new_figure(9.6, 0.9 + 0.3 * min(len(known), 32))
    rows = range(len(known))
    ax.barh(rows, [n for _, n in known], color=PALETTE[0], height=0.62)
    ax.set_yticks(list(rows), [_label(f"worker {rank}") for rank, _ in known])
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.grid(axis="x", color="#e4e7eb", linewidth=0.8)
    ax.margins(x=0.12)
    for row, (_, n) in zip(rows, known):
        ax.annotate(f"{n:,.0f}", (n, row), xytext=(4, 0), textcoords="offset points",
                    va="center", fontsize=8.5, color="#1f2933")
    ax.set_xlabel("MB", fontsize=9, color="#52606d")
    return _encode(figure)


def byte_scale(epochs: Sequence[Mapping[str, Any]]) -> tuple[str, float]:
    largest = max((total_of(parts := as_numbers(e.get("bytes_sent")),
                            as_mapping(e.get("bytes_sent")).get("total")) or sum(parts.values())
                   for e in epochs), default=0)
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if largest >= scale:
            return unit, scale
    return "B", 1.0


def new_figure(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """An empty figure in our style, of a size in inches, with its axes from left to right."""
    # Imported here: it takes longer than all that the rest of the command line needs.
    figure = optional("matplotlib.figure", "a chart", "charts").Figure(
        figsize=(width, height), layout="constrained")
    axes = [figure.add_subplot(1, columns, i + 1) for i in range(columns)]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set_color("#9aa5b1")
        ax.tick_params(colors="#52606d", labelsize=9)
        ax.grid(axis="y", color="#e4e7eb", linewidth=0.8)
        ax.set_axisbelow(True)
    return figure, axes


def as_svg(figure: Figure) -> str:
    """The figure as an SVG whose text is outlines: it needs no font and is always the same."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "dgl-heta"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _encode(figure: Figure) -> str:
    """The figure in a `data:` address."""
    encoded = base64.b64encode(as_svg(figure).encode("utf-8")).decode("ascii")
    return f"data:image/svg+xml;base64,{encoded}"


def _label(name: str) -> str:
    """A name that matplotlib takes literally: no formulas, not hidden from the legend."""
    return printable(name).replace("$", r"\$").lstrip("_") or "?"


def _epoch_ticks(ax: Axes, epochs: Sequence[float]) -> None:
    """Whole epochs only, and none that was not run."""
    if len(epochs) <= 20:
        ax.set_xticks(list(epochs))
    else:
        from matplotlib.ticker import MaxNLocator

        ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _nan(value: Any) -> float:
    number = as_number(value)
    return math.nan if number is None else number
