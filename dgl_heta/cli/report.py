"""`dgl-heta report`: the report of a run once more, or several runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from dgl_heta.cli.options import AsJson, Overwrite
from dgl_heta.errors import InputError, several
from dgl_heta.report.console import note, out, print_json

app = typer.Typer()


@app.command(epilog="Example: dgl-heta report runs/first runs/second --out both.html")
def report(
    runs: Annotated[list[Path], typer.Argument(help="Directories of runs of `dgl-heta train`, "
                                               "finished or not; one of --seeds stands for "
                                               "those of its seeds.")],
    output: Annotated[Path | None, typer.Option(
        "--out", help="HTML file to write. Default: report.html in the directory of a single run; "
        "of several none.")] = None,
    overwrite: Overwrite = False, as_json: AsJson = False,
) -> None:
    """Write the report of a run from its files, or compare several runs: a table, and curves.

    Nothing is trained or loaded but what the runs recorded.
    """
    from dgl_heta.launch.jobs.reporting import check_run, plan_picture
    from dgl_heta.report.comparing import compare_runs
    from dgl_heta.report.page import write_comparison, write_report
    from dgl_heta.report.reading import seeds_in
    from dgl_heta.report.run_table import comparison_table, summary_table

    runs = [one for run in runs for one in seeds_in(run) or [run]]
    for run in runs:
        check_run(run)
    if output is not None:
        if output.is_dir() or not output.parent.is_dir():
            raise InputError(f"--out {output} must be a file in a directory that exists")
        if output.exists() and not overwrite:
            raise InputError(f"{output} exists; choose another file or ask to overwrite it "
                             "(--overwrite)")
    comparison = compare_runs(runs)
    page: Path | None = None
    if len(runs) == 1:
        page = write_report(runs[0], plan_picture(runs[0]), output)
    elif output is not None:
        page = write_comparison(comparison, output)
    if as_json:
        print_json({"report": None if page is None else str(page), "runs": comparison.to_json()})
        return
    (only, *more) = comparison.runs.values()
    out.print(comparison_table(comparison) if more else
              summary_table(only.summary, () if only.summary else only.epochs))
    for run, read in zip(runs, comparison.runs.values()):
        if not read.summary:
            note(f"{run} has not ended: its figures are of "
                 f"{several(len(read.epochs), 'finished epoch')}")
    if page is not None:
        out.print(f"Report: {escape(str(page))}", highlight=False, soft_wrap=True)
