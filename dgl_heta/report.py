"""The training report: one HTML file that opens offline, and a table for the terminal.

A run directory holds `metrics.jsonl` (a line per epoch) and, once the run has finished,
`summary.json`. Whatever is missing is left out of the report, so that a run that was
interrupted has one too.
"""

from __future__ import annotations

import base64
import html
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from dgl_heta.draw import PALETTE, human_bytes, printable, write_atomic
from dgl_heta.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STAGES = ("sample", "fetch", "forward", "backward", "update")
CAUSES = ("partials", "gradients", "learnable")
_ACCURACIES = {"train_acc": "training", "val_acc": "validation", "test_acc": "test"}
_REST = "#aab2bb"
_MAX_BARS = 60


# --- reading ------------------------------------------------------------------------------


@dataclass
class Run:
    """What a run directory holds; `damaged` counts unreadable lines and files."""

    epochs: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)


def read_run(run_dir: Path) -> Run:
    """Read `metrics.jsonl` and `summary.json`, either of which may be missing.

    An epoch that was run again after a restart counts once, as its last run left it.

    Raises
    ------
    InputError
        `run_dir` is not a directory.
    """
    if not run_dir.is_dir():
        raise InputError(f"run directory {run_dir} does not exist or is not a directory")
    run = Run()
    epochs: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(_read(run, run_dir / "metrics.jsonl").splitlines(), 1):
        event = _parse(line) if line.strip() else {}
        if event is None:
            run.damaged.append(f"metrics.jsonl line {number}")
        elif event.get("event") == "epoch" and isinstance(event.get("epoch"), int):
            epochs[event["epoch"]] = event
        elif event.get("event") == "summary":
            run.summary = event
    run.epochs = [epochs[epoch] for epoch in sorted(epochs)]
    text = _read(run, run_dir / "summary.json")
    if text:
        summary = _parse(text)
        if summary is None:
            run.damaged.append("summary.json")
        else:
            run.summary = summary
    return run


def _read(run: Run, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError):
        run.damaged.append(path.name)
        return ""


def _parse(text: str) -> dict[str, Any] | None:
    try:
        data = json.loads(text)
    except json.JSONDecodeError:
        return None
    return data if isinstance(data, dict) else None


def _number(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None


def _numbers(value: Any, order: Sequence[str] = ()) -> dict[str, float]:
    """The finite numbers of a mapping, those named in `order` first; without the total."""
    if not isinstance(value, Mapping):
        return {}
    keys = sorted(value, key=lambda k: order.index(k) if k in order else len(order))
    return {str(k): n for k in keys if k != "total" and (n := _number(value[k])) is not None}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _total(parts: Mapping[str, float], *totals: Any) -> float | None:
    """The first total that is a number, or the sum of the parts."""
    for total in totals:
        if (number := _number(total)) is not None:
            return number
    return sum(parts.values()) if parts else None


def _rest(parts: Mapping[str, float], total: float | None) -> dict[str, float]:
    """The parts with what they leave of the total as `other`, where it is worth showing."""
    rest = (total or 0) - sum(parts.values())
    return {**parts, "other": rest} if total and rest > 0.005 * total else dict(parts)


@dataclass
class _Figures:
    """The main figures, from the summary or else from the epochs."""

    accuracy: dict[str, float]
    stages: dict[str, float]
    seconds: float | None
    causes: dict[str, float]
    sent: float | None
    memory: float | None


def _figures(summary: Mapping[str, Any], epochs: Sequence[Mapping[str, Any]] = ()) -> _Figures:
    last = epochs[-1] if epochs else {}
    accuracy = {}
    for key, name in (("test_acc", "test"), ("val_acc", "validation"), ("train_acc", "training")):
        value = _number(summary.get(key))
        value = _number(last.get(key)) if value is None else value
        if value is not None:
            accuracy[name] = value
    stages = _numbers(summary.get("stages"), STAGES) or _mean(epochs, "seconds", STAGES)
    causes = _numbers(summary.get("bytes"), CAUSES) or _mean(epochs, "bytes_sent", CAUSES)
    seconds = _total(stages, summary.get("epoch_seconds"),
                     _mapping(summary.get("stages")).get("total"),
                     _mean_total(epochs, "seconds"))
    sent = _total(causes, summary.get("bytes_sent_per_epoch"),
                  _mapping(summary.get("bytes")).get("total"),
                  _mean_total(epochs, "bytes_sent"))
    peaks = [n for source in (summary, *epochs)
             if (n := _number(source.get("peak_rss_mb"))) is not None]
    memory = _number(summary.get("peak_rss_mb"))
    return _Figures(accuracy, _rest(stages, seconds), seconds, _rest(causes, sent), sent,
                    max(peaks, default=None) if memory is None else memory)


def _mean(epochs: Sequence[Mapping[str, Any]], key: str, order: Sequence[str]
          ) -> dict[str, float]:
    rows = [_numbers(epoch.get(key), order) for epoch in epochs]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: sum(row.get(name, 0) for row in rows) / len(rows) for name in names}


def _mean_total(epochs: Sequence[Mapping[str, Any]], key: str) -> float | None:
    totals = [n for epoch in epochs
              if (n := _number(_mapping(epoch.get(key)).get("total"))) is not None]
    return sum(totals) / len(totals) if totals else None


# --- terminal -----------------------------------------------------------------------------


def summary_table(summary: Mapping[str, Any]) -> Table:
    """Accuracy, seconds per epoch by stage, bytes sent per epoch by cause and peak memory."""
    title = " · ".join(_names(summary)) or "Training"
    table = Table(title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD,
                  show_edge=False, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True, style="dim")
    figures = _figures(summary)

    def row(name: str, value: str, share: str = "", main: bool = True) -> None:
        table.add_row(Text(printable(name) if main else f"  {printable(name)}",
                           style="bold" if main else ""), value, share)

    for name, accuracy in figures.accuracy.items():
        row(f"{name} accuracy", f"{accuracy:.4f}")
    for heading, total, parts, shown in (
        ("seconds per epoch", figures.seconds, figures.stages, _seconds),
        ("sent per epoch", figures.sent, figures.causes, human_bytes),
    ):
        if total is None:
            continue
        row(heading, shown(total))
        for name, value in parts.items():
            row(name, shown(value), _percent(value, total), main=False)
    if figures.memory is not None:
        row("peak memory of a worker", _megabytes(figures.memory))
    if not table.row_count:
        row("no figures: no epoch was finished", "")
    return table


def _names(summary: Mapping[str, Any]) -> list[str]:
    """Dataset, model and number of partitions, as far as they are known."""
    settings = _mapping(summary.get("settings"))
    names = []
    for key in ("dataset", "model"):
        value = summary.get(key, settings.get(key))
        if isinstance(value, Mapping):
            value = value.get("name")
        if isinstance(value, str | int):
            names.append(printable(value))
    parts = _mapping(summary.get("plan")).get("parts")
    if isinstance(parts, int):
        names.append(f"{parts} partition{'s' * (parts != 1)}")
    return names


def _seconds(value: float) -> str:
    return f"{value:,.1f} s" if value >= 100 else f"{value:.2f} s" if value >= 0.1 \
        else f"{value * 1000:.2f} ms"


def _megabytes(value: float) -> str:
    return f"{value:,.0f} MB"


def _percent(value: float, total: float) -> str:
    return f"{100 * value / total:.1f} %" if total else ""


# --- charts -------------------------------------------------------------------------------


def _new_figure(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    # Imported here: it takes longer than all that the rest of the command line needs.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = [figure.add_subplot(1, columns, i + 1) for i in range(columns)]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set_color("#9aa5b1")
        ax.tick_params(colors="#52606d", labelsize=9)
        ax.grid(axis="y", color="#e4e7eb", linewidth=0.8)
        ax.set_axisbelow(True)
    return figure, axes


def _encode(figure: Figure) -> str:
    """The figure as an SVG in a `data:` address, its text as outlines: needs no font."""
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "dgl-heta"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


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


def _learning_chart(epochs: Sequence[Mapping[str, Any]], against_time: bool) -> str | None:
    """Loss and accuracies against the epoch or against the seconds trained so far."""
    xs: list[float]
    if against_time:
        seconds = [_total(_numbers(e.get("seconds")), _mapping(e.get("seconds")).get("total"))
                   for e in epochs]
        if None in seconds:
            return None
        xs = list(accumulate(s or 0.0 for s in seconds))
    else:
        xs = [e["epoch"] for e in epochs]
    curves = {key: [_nan(e.get(key)) for e in epochs] for key in ("loss", *_ACCURACIES)}
    curves = {key: ys for key, ys in curves.items() if not all(map(math.isnan, ys))}
    if not curves:
        return None
    figure, axes = _new_figure(9.6, 3.1, 2)
    style: dict[str, Any] = {"marker": "o" if len(xs) <= 40 else "", "markersize": 3.5,
                             "linewidth": 1.6}
    axes[0].set_title("Loss", loc="left", fontsize=10.5, color="#1f2933")
    axes[1].set_title("Accuracy", loc="left", fontsize=10.5, color="#1f2933")
    if "loss" in curves:
        axes[0].plot(xs, curves["loss"], color=PALETTE[0], **style)
    for colour, (key, name) in zip((PALETTE[1], PALETTE[2], PALETTE[3]), _ACCURACIES.items()):
        if key in curves:
            axes[1].plot(xs, curves[key], color=colour, label=name, **style)
    if len(curves) > ("loss" in curves):
        axes[1].legend(frameon=False, fontsize=9)
    for ax in axes:
        ax.set_xlabel("seconds" if against_time else "epoch", fontsize=9, color="#52606d")
        if not against_time:
            _epoch_ticks(ax, xs)
    return _encode(figure)


def _nan(value: Any) -> float:
    number = _number(value)
    return math.nan if number is None else number


def _stack_chart(epochs: Sequence[Mapping[str, Any]], key: str, order: Sequence[str],
                 unit: str, scale: float) -> str | None:
    """Stacked bars of the parts of `key` for every epoch; areas where bars would be hairs."""
    rows = [_rest(parts := _numbers(e.get(key), order),
                  _total(parts, _mapping(e.get(key)).get("total"))) for e in epochs]
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not names or not any(value for row in rows for value in row.values()):
        return None
    names.sort(key=lambda name: name == "other")
    xs = [e["epoch"] for e in epochs]
    figure, (ax,) = _new_figure(9.6, 3.0)
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


def _memory_chart(workers: Sequence[Mapping[str, Any]]) -> str | None:
    known = [(str(w.get("rank", i)), n) for i, w in enumerate(workers)
             if (n := _number(w.get("peak_rss_mb"))) is not None]
    if not known:
        return None
    figure, (ax,) = _new_figure(9.6, 0.9 + 0.3 * min(len(known), 32))
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


def _byte_scale(epochs: Sequence[Mapping[str, Any]]) -> tuple[str, float]:
    largest = max((_total(parts := _numbers(e.get("bytes_sent")),
                          _mapping(e.get("bytes_sent")).get("total")) or sum(parts.values())
                   for e in epochs), default=0)
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if largest >= scale:
            return unit, scale
    return "B", 1.0


# --- HTML ---------------------------------------------------------------------------------

_CSS = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0; background: #f5f7fa; color: #1f2933; line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", Helvetica, Arial, sans-serif; }
main { max-width: 1060px; margin: 0 auto; padding: 32px 20px 56px; }
h1 { font-size: 1.7rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 0 0 12px; }
header p { margin: 4px 0 20px; color: #52606d; overflow-wrap: anywhere; }
section { background: #fff; border: 1px solid #e4e7eb; border-radius: 10px; padding: 20px 24px;
  margin-top: 18px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: 12px; }
section + .cards { margin-top: 18px; }
.card { background: #fff; border: 1px solid #e4e7eb; border-radius: 10px; padding: 14px 18px; }
.card b { display: block; font-size: 1.45rem; font-weight: 650; white-space: nowrap; }
.card span { color: #52606d; font-size: .86rem; }
figure { margin: 0 0 18px; } figure:last-child { margin-bottom: 0; }
figure img { display: block; max-width: 100%; height: auto; margin: 0 auto; }
figcaption, .note { color: #52606d; font-size: .86rem; margin-top: 6px; }
.scroll { overflow-x: auto; } .scroll + .scroll { margin-top: 18px; }
table { border-collapse: collapse; font-size: .92rem; width: 100%; }
table.narrow { max-width: 480px; }
caption { text-align: left; font-weight: 600; padding-bottom: 4px; }
th, td { text-align: left; padding: 5px 16px 5px 0; border-bottom: 1px solid #eef0f3;
  vertical-align: top; overflow-wrap: anywhere; }
th { color: #52606d; font-weight: 500; }
thead th { border-bottom-color: #cbd2d9; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 12px 40px; }
.warn { border-left: 4px solid #d2691e; }
@media print { body { background: #fff; } section, .card { break-inside: avoid; } }
"""


def write_report(run_dir: Path, plan_svg: str | None = None) -> Path:
    """Write `report.html` into the run directory and return its path.

    Parameters
    ----------
    run_dir : holds `metrics.jsonl` and `summary.json`; either may be missing.
    plan_svg : the picture from :func:`dgl_heta.draw.svg`.

    Raises
    ------
    InputError
        `run_dir` is not a directory.
    HetaError
        The report cannot be written.
    """
    run_dir = Path(run_dir)
    run = read_run(run_dir)
    return write_atomic(run_dir / "report.html", _page(run, plan_svg))


def _page(run: Run, plan_svg: str | None) -> str:
    summary, epochs = run.summary, run.epochs
    names = _names(summary)
    title = names[0] if names else "Training run"
    finished = f"{len(epochs)} epoch{'s' * (len(epochs) != 1)}"
    body = [
        f"<header><h1>{_text(title)}</h1>"
        f"<p>{_text(' · '.join([*names[1:], finished]))}</p></header>",
        *_warnings(run),
        _cards(_figures(summary, epochs)),
        *_chart_sections(epochs, summary),
        _plan_section(_mapping(summary.get("plan")), plan_svg),
        _worker_section(_rows(summary.get("workers"))),
        _settings_section(summary),
    ]
    return "\n".join([
        '<!DOCTYPE html>', '<html lang="en">', "<head>", '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        # Nothing but what is in this file: no scripts, no network.
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "img-src data:; style-src 'unsafe-inline'\">",
        f"<title>{_text(title)}: training report</title>", f"<style>{_CSS}</style>", "</head>",
        "<body>", "<main>", *(part for part in body if part), "</main>", "</body>", "</html>", "",
    ])


def _text(value: object) -> str:
    return html.escape(printable(value))


def _warnings(run: Run) -> Iterable[str]:
    if not run.epochs:
        yield ('<section class="warn"><b>No epoch was finished.</b> The run was stopped or '
               "failed before the end of its first epoch, so there are no curves.</section>")
    elif not run.summary:
        yield ('<section class="warn"><b>The run did not finish.</b> It has no summary; the '
               "figures below are of its finished epochs.</section>")
    if run.damaged:
        named = ", ".join(run.damaged[:5]) + (" …" if len(run.damaged) > 5 else "")
        yield (f'<section class="warn"><b>Left out, not readable:</b> {_text(named)}'
               "</section>")


def _cards(figures: _Figures) -> str:
    cards = [(f"{accuracy:.4f}", f"{name} accuracy")
             for name, accuracy in figures.accuracy.items() if name != "training"]
    if figures.seconds is not None:
        cards.append((_seconds(figures.seconds), "per epoch"))
    if figures.sent is not None:
        cards.append((human_bytes(figures.sent), "sent per epoch"))
    if figures.memory is not None:
        cards.append((_megabytes(figures.memory), "peak memory of a worker"))
    inner = "".join(f'<div class="card"><b>{_text(value)}</b><span>{_text(name)}</span></div>'
                    for value, name in cards)
    return f'<div class="cards">{inner}</div>' if cards else ""


def _section(title: str, *parts: str) -> str:
    inner = "\n".join(part for part in parts if part)
    return f"<section>\n<h2>{_text(title)}</h2>\n{inner}\n</section>" if inner else ""


def _image(data: str | None, alt: str, caption: str) -> str:
    return "" if data is None else (
        f'<figure><img alt="{_text(alt)}" src="{data}">'
        f"<figcaption>{_text(caption)}</figcaption></figure>")


def _table(head: Sequence[str], rows: Iterable[Sequence[object]], numeric: Sequence[int] = (),
           caption: str = "", narrow: bool = False) -> str:
    def cells(values: Sequence[object], tag: str) -> str:
        classes = [' class="n"' if i in numeric else "" for i in range(len(values))]
        return "".join(f"<{tag}{kind}>{_text(value)}</{tag}>"
                       for kind, value in zip(classes, values))

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    if not body:
        return ""
    top = f"<thead><tr>{cells(head, 'th')}</tr></thead>" if any(head) else ""
    named = f"<caption>{_text(caption)}</caption>" if caption else ""
    kind = ' class="narrow"' if narrow else ""
    return f'<div class="scroll"><table{kind}>{named}{top}<tbody>{body}</tbody></table></div>'


def _chart_sections(epochs: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]
                    ) -> Iterable[str]:
    figures = _figures(summary, epochs)
    yield _section(
        "Learning",
        _image(_learning_chart(epochs, against_time=False), "Loss and accuracy against the epoch",
               "Loss and accuracy (fraction of the nodes predicted right) after each epoch."),
        _image(_learning_chart(epochs, against_time=True), "Loss and accuracy against time",
               "The same against the seconds trained so far, the sum of the epochs' times."),
    )
    yield _section(
        "Time",
        _image(_stack_chart(epochs, "seconds", STAGES, "seconds", 1.0),
               "Seconds of each stage in every epoch", "Seconds of each stage in every epoch."),
        _share_table("stage", figures.stages, figures.seconds, _seconds),
    )
    unit, scale = _byte_scale(epochs)
    yield _section(
        "Communication",
        _image(_stack_chart(epochs, "bytes_sent", CAUSES, unit, scale),
               "Bytes sent in every epoch by cause",
               f"Bytes sent in every epoch by cause, in {unit}: partial aggregations, "
               "gradients of dense parameters, rows of learnable features."),
        _share_table("cause", figures.causes, figures.sent, human_bytes),
    )


def _share_table(what: str, parts: Mapping[str, float], total: float | None, shown: Any) -> str:
    if total is None:
        return ""
    rows = [(name, shown(value), _percent(value, total)) for name, value in parts.items()]
    return _table([what, "per epoch", "share"], [*rows, ("total", shown(total), "")], (1, 2),
                  narrow=True)


def _rows(value: Any) -> list[Mapping[str, Any]]:
    """The objects of a JSON list."""
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def _worker_section(workers: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for index, worker in enumerate(workers):
        row = [str(worker.get("rank", index))]
        for key, shown in (("peak_rss_mb", _megabytes), ("bytes_sent", human_bytes),
                           ("seconds", _seconds)):
            number = _number(worker.get(key))
            row.append("–" if number is None else shown(number))
        rows.append(row)
    return _section(
        "Workers",
        _image(_memory_chart(workers), "Peak memory of every worker",
               "Peak resident memory of every worker's process, in MB."),
        _table(["worker", "peak memory", "sent", "time"], rows, (1, 2, 3)),
    )


def _plan_section(plan: Mapping[str, Any], plan_svg: str | None) -> str:
    picture = None
    if plan_svg:
        picture = ("data:image/svg+xml;base64,"
                   + base64.b64encode(plan_svg.encode("utf-8")).decode("ascii"))
    roots = [" ".join(map(str, tree.get("root_relation") or ["?"]))
             for tree in _rows(plan.get("sub_metatrees"))]
    rows = []
    for index, part in enumerate(_rows(plan.get("partitions"))):
        owned = [roots[i] for i in part.get("sub_metatrees") or []
                 if isinstance(i, int) and i < len(roots)]
        shown = owned if len(owned) <= 6 else [*owned[:5], f"… {len(owned) - 5} more"]
        rows.append((index, ", ".join(shown) or "–", len(part.get("relations") or []),
                     *(_count(part.get(key)) for key in ("num_nodes", "num_edges", "weight"))))
    return _section(
        "Plan",
        _image(picture, "The metatree and the partitions",
               "The metatree with node and edge counts, and the relations that each partition "
               "runs at each layer (L1 is the layer farthest from the target)."),
        _table(["partition", "root relations", "relations", "nodes", "edges", "weight"], rows,
               (2, 3, 4, 5)),
    )


def _count(value: Any) -> str:
    number = _number(value)
    return "–" if number is None else f"{number:,}"


def _settings_section(summary: Mapping[str, Any]) -> str:
    known = {"event", "settings", "versions", "plan", "workers", "stages", "bytes"}
    figures = [(key, _value(value)) for key, value in summary.items() if key not in known]
    settings = list(_flat(_mapping(summary.get("settings"))))
    versions = list(_flat(_mapping(summary.get("versions"))))
    tables = [_table(["", ""], rows, caption=caption) for rows, caption in (
        (settings, "Settings"), (figures, "Summary"), (versions, "Versions")) if rows]
    if not tables:
        return ""
    # Settings are the long one: the other two share the second column.
    columns = [tables[0], "".join(tables[1:])]
    return _section("Settings, summary, versions", '<div class="two">' + "".join(
        f"<div>{column}</div>" for column in columns if column) + "</div>")


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    """Nested settings as `section.key`, value."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", _value(value)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return json.dumps(value, ensure_ascii=False, default=str)
