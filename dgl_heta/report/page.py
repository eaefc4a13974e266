"""The report as one HTML page."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dgl_heta.report.charts import (
    byte_scale,
    can_draw,
    learning_chart,
    memory_chart,
    stack_chart,
    without_waiting,
)
from dgl_heta.report.figures import (
    Figures,
    as_mapping,
    as_number,
    human_megabytes,
    human_seconds,
    main_figures,
    percent,
    run_names,
)
from dgl_heta.report.reading import Run, read_run
from dgl_heta.report.records import CAUSES, STAGES
from dgl_heta.report.text import human_bytes, printable
from dgl_heta.system.files import write_atomic

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
    plan_svg : the picture from :func:`dgl_heta.report.plan_picture.svg`.

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
    names = run_names(summary)
    title = names[0] if names else "Training run"
    finished = f"{len(epochs)} epoch{'s' * (len(epochs) != 1)}"
    body = [
        f"<header><h1>{_text(title)}</h1>"
        f"<p>{_text(' · '.join([*names[1:], finished]))}</p></header>",
        *_warnings(run),
        _cards(main_figures(summary, epochs)),
        *_chart_sections(epochs, summary),
        _cache_section(as_mapping(summary.get("cache"))),
        _plan_section(as_mapping(summary.get("plan")), plan_svg),
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
    if not can_draw():
        yield ('<section class="warn"><b>No charts:</b> they need matplotlib; '
               "install 'dgl-heta[charts]'.</section>")
    if run.damaged:
        named = ", ".join(run.damaged[:5]) + (" …" if len(run.damaged) > 5 else "")
        yield (f'<section class="warn"><b>Left out, not readable:</b> {_text(named)}'
               "</section>")


def _cards(figures: Figures) -> str:
    cards = [(f"{score:.4f}", f"{name} {figures.metric}")
             for name, score in figures.scores.items() if name != "training"]
    if figures.seconds is not None:
        cards.append((human_seconds(figures.seconds), "per epoch"))
    if figures.sent is not None:
        cards.append((human_bytes(figures.sent), "sent per epoch"))
    if figures.memory is not None:
        cards.append((human_megabytes(figures.memory), "peak memory of a worker"))
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


def _cache_section(cache: Mapping[str, Any]) -> str:
    """Hit rates and bytes per node type, and how the rows were chosen."""
    def number(value: object) -> float:
        return as_number(value) or 0.0

    rows = []
    for ntype, found in as_mapping(cache.get("types")).items():
        one = as_mapping(found)
        reads, hits = number(one.get("reads")), number(one.get("hits"))
        missed = number(one.get("bytes")) - number(one.get("hit_bytes"))
        rows.append([ntype, f"{number(one.get('rows')):,.0f}",
                     human_bytes(int(number(one.get("cached_bytes")))), percent(hits, reads),
                     human_bytes(int(number(one.get("hit_bytes")))), human_bytes(int(missed)),
                     f"{number(one.get('penalty')) * 1e9:,.2f}"])
    notes = cache.get("notes")
    texts = [f"Policy {_value(cache.get('policy'))}, "
             f"{human_bytes(int(number(cache.get('capacity_bytes'))))} per device; "
             f"{human_seconds(number(cache.get('profile_seconds')))} to profile and fill.",
             *(str(note) for note in (notes if isinstance(notes, list) else []))]
    return _section("Feature cache", _table(
        ["node type", "rows cached", "size", "hits", "read from the cache per epoch",
         "read below it", "miss penalty, ns per byte"], rows, numeric=range(1, 7)),
        *(f'<p class="note">{_text(text)}</p>' for text in texts)) if cache else ""


def _chart_sections(epochs: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]
                    ) -> Iterable[str]:
    figures = main_figures(summary, epochs)
    metric = figures.metric
    yield _section(
        "Learning",
        _image(learning_chart(epochs, against_time=False, metric=metric),
               f"Loss and {metric} against the epoch",
               f"Loss and {metric} after each epoch."),
        _image(learning_chart(epochs, against_time=True, metric=metric),
               f"Loss and {metric} against time",
               "The same against the seconds trained so far, the sum of the epochs' times."),
    )
    yield _section(
        "Time",
        _image(stack_chart(without_waiting(epochs), "seconds", STAGES, "seconds", 1.0),
               "Seconds of each stage in every epoch", "Seconds of each stage in every epoch."),
        _share_table("stage", figures.stages, figures.seconds, human_seconds),
    )
    unit, scale = byte_scale(epochs)
    yield _section(
        "Communication",
        _image(stack_chart(epochs, "bytes_sent", CAUSES, unit, scale),
               "Bytes sent in every epoch by cause",
               f"Bytes sent in every epoch by cause, in {unit}: partial aggregations, "
               "gradients of dense parameters, rows of learnable features, ids of common rows."),
        _share_table("cause", figures.causes, figures.sent, human_bytes),
    )


def _share_table(what: str, parts: Mapping[str, float], total: float | None, shown: Any) -> str:
    if total is None:
        return ""
    rows = [(name, shown(value), percent(value, total)) for name, value in parts.items()]
    return _table([what, "per epoch", "share"], [*rows, ("total", shown(total), "")], (1, 2),
                  narrow=True)


def _rows(value: Any) -> list[Mapping[str, Any]]:
    """The objects of a JSON list."""
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def _worker_section(workers: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for index, worker in enumerate(workers):
        row = [str(worker.get("rank", index))]
        for key, shown in (("peak_rss_mb", human_megabytes), ("bytes_sent", human_bytes),
                           ("seconds", human_seconds)):
            number = as_number(worker.get(key))
            row.append("–" if number is None else shown(number))
        rows.append(row)
    return _section(
        "Workers",
        _image(memory_chart(workers), "Peak memory of every worker",
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
        if plan.get("replication") == "none":
            owned = [" ".join(map(str, r)) for r in _rows(part.get("relations"))]
        shown = owned if len(owned) <= 6 else [*owned[:5], f"… {len(owned) - 5} more"]
        rows.append((index, ", ".join(shown) or "–", len(part.get("relations") or []),
                     *(_count(part.get(key)) for key in ("num_nodes", "num_edges", "weight"))))
    return _section(
        "Plan",
        _image(picture, "The metatree and the partitions",
               "The metatree with node and edge counts, and the relations that each partition "
               "runs at each layer (L1 is the layer farthest from the target)."),
        _table(["partition",
                "its own" if plan.get("replication") == "none" else "root relations",
                "relations", "nodes", "edges", "weight"], rows, (2, 3, 4, 5)),
    )


def _count(value: Any) -> str:
    number = as_number(value)
    return "–" if number is None else f"{number:,}"


def _settings_section(summary: Mapping[str, Any]) -> str:
    known = {"cache", "event", "settings", "versions", "plan", "workers", "stages", "bytes"}
    figures = [(key, _value(value)) for key, value in summary.items() if key not in known]
    settings = list(_flat(as_mapping(summary.get("settings"))))
    versions = list(_flat(as_mapping(summary.get("versions"))))
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
