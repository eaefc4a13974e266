"""Sections of a report: pictures, tables and notes, without their looks."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dgl_heta.report.changed import changed_settings, flat, shown_value
from dgl_heta.report.charts import (
    byte_scale,
    in_rows,
    learning_chart,
    memory_chart,
    metric_panels,
    overlay_chart,
    stack_chart,
    without_waiting,
)
from dgl_heta.report.classes import class_sections
from dgl_heta.report.epoch_records import CAUSES, STAGES
from dgl_heta.report.figures import (
    as_mapping,
    as_number,
    as_numbers,
    human_megabytes,
    human_seconds,
    main_figures,
    metric_curves,
    percent,
    stopped_early,
)
from dgl_heta.report.page_parts import Picture, Section, Table
from dgl_heta.report.reading import Run
from dgl_heta.report.started import started_rows
from dgl_heta.report.text import human_bytes, printable

_CAUSES = {"partials": "partial aggregations", "gradients": "gradients of dense parameters",
           "learnable": "rows of learnable features",
           "machine": "rows of learnable features within machines",
           "sampling": "ids of common rows"}


def sections_of(run: Run, plan_svg: str | None) -> list[Section]:
    """All sections of the report of a run."""
    summary = run.summary
    return [_run(run), *_curves(run), *class_sections(summary),
            _relations(as_mapping(summary.get("relations"))),
            _cache(as_mapping(summary.get("cache"))),
            _plan(as_mapping(summary.get("plan")), plan_svg, as_mapping(summary.get("shared"))),
            _workers(_objects(summary.get("workers"))), _settings(summary)]


def _run(run: Run) -> Section:
    """When, where and how it ran, and what came of it."""
    summary = run.summary
    rows: list[tuple[str, str]] = started_rows(run.started)
    best = as_number(summary.get("best_epoch"))
    if best is not None:
        tested = " and tested" * (summary.get("test_acc") is not None)
        rows.append(("best epoch", f"{best:.0f} of {len(run.epochs)}, {_chosen(summary)}; the "
                                   f"model that was saved{tested}"))
        if early := stopped_early(summary):
            rows.append(("stopped early", early))
    if (parameters := as_number(summary.get("parameters"))) is not None:
        rows.append(("parameters", f"{parameters:,.0f}, without learnable features"))
    proof = as_mapping(summary.get("proof"))
    if (steps := as_number(proof.get("steps"))) is not None:
        told = proof.get("not_proved")
        rows.append(("proved", f"{_many(steps, 'step')} compared with one process in fp64, in "
                     + human_seconds(as_number(proof.get("seconds")) or 0.0)
                     + (f"; {told}" if told else "")))
    versions = as_mapping(summary.get("versions"))
    if versions:
        rows.append(("versions", ", ".join(f"{name} {value}" for name, value in flat(versions))))
    return Section("Run", tables=_tables(Table((), rows)))


def _relations(recorded: Mapping[str, Any]) -> Section:
    """Return the section with the scores of each of several relations."""
    each = {name: as_numbers(one) for name, one in as_mapping(recorded.get("relations")).items()}
    names = list(dict.fromkeys(name for one in each.values() for name in one if name != "links"))
    rows = [(printable(name), f"{one.get('links', 0):,.0f}",
             *(f"{one[key]:.4f}" if key in one else "–" for key in names))
            for name, one in sorted(each.items(), key=lambda item: -item[1].get("links", 0))]
    return Section(f"Relations, {'test' if recorded.get('split') == 'test' else 'validation'}",
                   tables=_tables(Table(["relation", "links", *map(printable, names)], rows,
                                        range(1, 2 + len(names)), narrow=True)))


def _chosen(summary: Mapping[str, Any]) -> str:
    """Return what the best epoch is the best by."""
    if summary.get("val_acc") is None:
        return "the last one, as none has a score in validation"
    train = as_mapping(as_mapping(summary.get("settings")).get("train"))
    name = train.get("monitor")
    return f"by {name} in validation" if isinstance(name, str) else "by validation"


def _many(count: float, what: str) -> str:
    return f"{count:,.0f} {what}{'s' * (count != 1)}"


def _pictures(*drawn: tuple[str | None, str, str]) -> list[Picture]:
    """Of (data, alternative text, caption), those that could be drawn."""
    return [Picture(data, alt, caption) for data, alt, caption in drawn if data is not None]


def _tables(*tables: Table) -> list[Table]:
    """The tables that have rows."""
    return [table for table in tables if table.rows]


def _curves(run: Run) -> Iterator[Section]:
    epochs, figures = run.epochs, main_figures(run.summary, run.epochs)
    metric, best = figures.metric, as_number(run.summary.get("best_epoch"))
    yield Section("Learning", _pictures(
        (learning_chart(epochs, against_time=False, metric=metric, best=best),
         f"Loss and {metric} against the epoch", f"Loss and {metric} after each epoch"
         + (", and the best one." if best is not None else ".")),
        (learning_chart(epochs, against_time=True, metric=metric, best=best),
         f"Loss and {metric} against time",
         "The same against the seconds trained so far, the sum of the epochs' times."),
        *((overlay_chart(panels), "Further metrics of validation against the epoch",
           "Further metrics of validation after each epoch.")
          for panels in in_rows(metric_panels(metric_curves(epochs))))))
    yield Section("Time", _pictures(
        (stack_chart(without_waiting(epochs), "seconds", STAGES, "seconds", 1.0),
         "Seconds of each stage in every epoch", "Seconds of each stage in every epoch.")),
        _tables(_shares("stage", figures.stages, figures.seconds, human_seconds), Table(
            ["made ahead of time", "worked per epoch", "training waited", "hidden"],
            [(name, human_seconds(worked), human_seconds(worked - hidden), percent(hidden, worked))
             for name, (worked, hidden) in figures.ahead.items()], (1, 2, 3), narrow=True)))
    unit, scale = byte_scale(epochs)
    yield Section("Communication", _pictures(
        (stack_chart(epochs, "bytes_sent", CAUSES, unit, scale),
         "Bytes sent in every epoch by cause",
         f"Bytes sent in every epoch by cause, in {unit}: "
         + ", ".join(_CAUSES.get(c, c) for c, sent in figures.causes.items() if sent) + ".")),
        _tables(_shares("cause", figures.causes, figures.sent, human_bytes)))


def _shares(what: str, parts: Mapping[str, float], total: float | None,
            shown: Callable[[float], str]) -> Table:
    rows = [] if not total else [
        *((name, shown(value), percent(value, total)) for name, value in parts.items() if value),
        ("total", shown(total), "")]
    return Table([what, "per epoch", "share"], rows, (1, 2), narrow=True)


def _cache(cache: Mapping[str, Any]) -> Section:
    """Hit rates and bytes per node type, and how the rows were chosen."""
    if not cache:
        return Section("Feature cache")

    def number(value: object) -> float:
        return as_number(value) or 0.0

    rows, not_cached = [], []
    for ntype, counted in as_mapping(cache.get("types")).items():
        one = as_mapping(counted)
        if not number(one.get("rows")):
            not_cached.append(str(ntype))
            continue
        missed = number(one.get("bytes")) - number(one.get("hit_bytes"))
        rows.append([ntype, f"{number(one.get('rows')):,.0f}",
                     human_bytes(int(number(one.get("cached_bytes")))),
                     percent(number(one.get("hits")), number(one.get("reads"))),
                     human_bytes(int(number(one.get("hit_bytes")))), human_bytes(int(missed)),
                     "not measured" if one.get("penalty") is None
                     else f"{number(one.get('penalty')) * 1e9:,.2f}"])
    notes = cache.get("notes")
    none = [f"Not cached: {', '.join(not_cached)}."] if not_cached else []
    return Section("Feature cache", tables=_tables(Table(
        ["node type", "rows cached", "size", "hits", "read from the cache per epoch",
         "read below it", "miss penalty, ns per byte"], rows, range(1, 7))), notes=[
        f"Policy {shown_value(cache.get('policy'))}, "
        f"{human_bytes(int(number(cache.get('capacity_bytes'))))} per device; "
        f"{human_seconds(number(cache.get('profile_seconds')))} to profile and fill.",
        *none, *(str(note) for note in (notes if isinstance(notes, list) else []))])


def _plan(plan: Mapping[str, Any], plan_svg: str | None, shared: Mapping[str, Any]) -> Section:
    """Who has what, and whether rows of shared learnable features move."""
    roots = [" ".join(map(str, tree.get("root_relation") or ["?"]))
             for tree in _objects(plan.get("sub_metatrees"))]
    alone = plan.get("replication") == "none"
    rows = []
    for index, part in enumerate(_objects(plan.get("partitions"))):
        relations = part.get("relations") or []
        owned = ([" ".join(map(str, r)) for r in relations if isinstance(r, list)] if alone else
                 [roots[i] for i in part.get("sub_metatrees") or []
                  if isinstance(i, int) and i < len(roots)])
        shown = owned if len(owned) <= 6 else [*owned[:5], f"… {len(owned) - 5} more"]
        rows.append((index, ", ".join(shown) or "–", len(relations),
                     *(_count(part.get(key)) for key in ("num_nodes", "num_edges", "weight"))))
    picture = None if not plan_svg else "data:image/svg+xml;base64," + base64.b64encode(
        plan_svg.encode("utf-8")).decode("ascii")
    return Section("Plan", _pictures((
        picture, "The metatree and the partitions",
        "The metatree with node and edge counts, and the relations that each partition runs at "
        "each layer (L1 is the layer farthest from the target).")), _tables(Table(
            ["partition", "its own" if alone else "root relations", "relations", "nodes",
             "edges", "weight"], rows, (2, 3, 4, 5))),
        notes=(f"Learnable features of several partitions: partition.shared = "
               f"{shared.get('asked')} ({shared.get('origin')}); {shared.get('reason')}.",)
        if shared else ())


def _workers(workers: Sequence[Mapping[str, Any]]) -> Section:
    columns = [("peak memory", "peak_rss_mb", human_megabytes), ("sent", "bytes_sent", human_bytes),
               ("time", "seconds", human_seconds), ("waited for others", "waiting", human_seconds)]
    columns = [c for c in columns if any(as_number(w.get(c[1])) for w in workers)]
    rows = []
    for index, worker in enumerate(workers if columns else ()):
        numbers = [as_number(worker.get(key)) for _, key, _ in columns]
        rows.append([str(worker.get("rank", index)), *(
            "–" if number is None else shown(number)
            for number, (_, _, shown) in zip(numbers, columns))])
    return Section("Workers", _pictures(
        (memory_chart(workers), "Peak memory of every worker",
         "Peak resident memory of every worker's process, in MB.")),
        _tables(Table(["worker", *(name for name, _, _ in columns)], rows,
                      range(1, len(columns) + 1))))


def _settings(summary: Mapping[str, Any]) -> Section:
    settings = as_mapping(summary.get("settings"))
    changed = changed_settings(settings)
    notes = () if changed or not settings else ("All settings have their defaults.",)
    return Section("Settings that differ from the defaults", notes=notes, tables=_tables(Table(
        (), [(key, shown_value(value)) for key, value in changed.items()])))


def _objects(value: Any) -> list[Any]:
    """The objects of a JSON list."""
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def _count(value: Any) -> str:
    number = as_number(value)
    return "–" if number is None else f"{number:,}"
