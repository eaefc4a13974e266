"""The report as one HTML page, by a template that escapes all that it is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dgl_heta.errors import shortened
from dgl_heta.report.charts import can_draw
from dgl_heta.report.comparing import Comparison, comparison_sections
from dgl_heta.report.figures import (
    Figures,
    further_metrics,
    human_megabytes,
    human_seconds,
    main_figures,
    run_names,
)
from dgl_heta.report.reading import Run, read_run
from dgl_heta.report.run_sections import sections_of
from dgl_heta.report.text import human_bytes, visible
from dgl_heta.system.atomic_files import write_atomic

_LONGEST = 5000  # characters of a text: a command, a list of settings


def write_report(run_dir: Path, plan_svg: str | None = None, out: Path | None = None) -> Path:
    """Write the report of a run and return its path.

    Parameters
    ----------
    run_dir : holds `metrics.jsonl`, `summary.json` and `started.json`; any may be missing.
    plan_svg : the picture from :func:`dgl_heta.report.plan_picture.svg`.
    out : default: `report.html` in the run directory.

    Raises
    ------
    InputError
        `run_dir` is not a directory.
    HetaError
        The report cannot be written.
    """
    run_dir = Path(run_dir)
    run = read_run(run_dir)
    names = run_names(run.summary)
    finished = f"{len(run.epochs)} epoch{'s' * (len(run.epochs) != 1)}"
    return write_atomic(out or run_dir / "report.html", _template().render(
        title=names[0] if names else "Training run", subtitle=" · ".join([*names[1:], finished]),
        warnings=list(_warnings(run)), cards=_cards(main_figures(run.summary, run.epochs),
                                                   further_metrics(run.summary)),
        sections=sections_of(run, plan_svg)))


def write_comparison(comparison: Comparison, out: Path) -> Path:
    """Write the page that shows runs side by side and return its path.

    Raises
    ------
    HetaError
        The page cannot be written.
    """
    runs = comparison.runs
    warnings = [{**warning, "what": f"{name}: {warning['what']}"}
                for name, run in runs.items() for warning in _warnings(run, False)]
    return write_atomic(out, _template().render(
        title=f"{len(runs)} runs side by side", subtitle=" · ".join(runs),
        warnings=[*warnings, *_without_charts()], cards=[],
        sections=comparison_sections(comparison)))


def _template() -> Any:
    environment = Environment(
        loader=PackageLoader("dgl_heta.report"), autoescape=True, undefined=StrictUndefined,
        finalize=_shown, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    return environment.get_template("run.html.jinja")


def _shown(value: Any) -> Any:
    """Return the text of a value for the template; names come from users, with any character."""
    return value if hasattr(value, "__html__") else visible(shortened(str(value), _LONGEST))


def _without_charts() -> Iterator[dict[str, str]]:
    if not can_draw():
        yield {"what": "No charts:", "text": "they need matplotlib; install 'dgl-heta[charts]'."}


def _warnings(run: Run, charts: bool = True) -> Iterator[dict[str, str]]:
    if not run.epochs:
        yield {"what": "No epoch was finished.", "text": (
            "The run was stopped or failed before the end of its first epoch, so there are no "
            "curves.")}
    elif not run.summary:
        yield {"what": "The run did not finish.", "text": (
            "It has no summary; the figures below are of its finished epochs.")}
    if charts:
        yield from _without_charts()
    if run.damaged:
        yield {"what": "Left out, damaged or not readable:", "text": (
            ", ".join(run.damaged[:5]) + (" …" if len(run.damaged) > 5 else ""))}


def _cards(figures: Figures, further: Mapping[str, float]) -> list[dict[str, str]]:
    cards = {f"{name} {figures.metric}": f"{score:.4f}"
             for name, score in figures.scores.items() if name != "training"}
    cards |= {name: f"{value:.4f}" for name, value in further.items() if name.startswith("test ")}
    if figures.seconds is not None:
        cards["per epoch"] = human_seconds(figures.seconds)
    if figures.sent is not None:
        cards["sent per epoch"] = human_bytes(figures.sent)
    if figures.memory is not None:
        cards["peak memory of a worker"] = human_megabytes(figures.memory)
    return [{"name": name, "value": value} for name, value in cards.items()]
