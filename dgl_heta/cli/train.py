"""`dgl-heta train`: from what the user names to a trained model and a report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from dgl_heta.cli.options import AsJson, Input, ReadingOptions, SettingsOptions, grouped
from dgl_heta.report.console import out, print_json

app = typer.Typer()


@app.command(epilog="Example: dgl-heta train debian --model rgcn --parts 2 --set train.epochs=5")
@grouped
def train(
    graph: Input,
    source: SettingsOptions,
    files: ReadingOptions,
    model: Annotated[str | None, typer.Option(help="Model (see `dgl-heta plugins`).")] = None,
    parts: Annotated[int | None, typer.Option(help="Number of workers.")] = None,
    run_dir: Annotated[Path | None, typer.Option(
        help="Run directory. Default: runs/NAME-TIME.")] = None,
    resume: Annotated[bool, typer.Option(
        "--resume", help="Continue from the last checkpoint in --run-dir.")] = False,
    dry_run: Annotated[bool, typer.Option(
        "--dry-run", help="Check everything and show the plan, train nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model with RAF, one worker per partition on this machine.

    Under torchrun every rank is a worker, on any number of machines.
    """
    from dgl_heta.cli.events import drawn_events
    from dgl_heta.cli.requests import reading, say_of_graph
    from dgl_heta.hooks.manager import plugins
    from dgl_heta.launch.jobs.training import TrainingJob

    overrides = [*source.overrides, *([f"model.name={model}"] if model else []),
                 *([f"partition.parts={parts}"] if parts is not None else [])]
    job = TrainingJob.prepare(graph, source.config, overrides, plugins(), reading(files))
    if dry_run:
        from dgl_heta.cli.plan import show
        from dgl_heta.planning.workload import Workload

        say_of_graph(job.opened, job.plan.targets, bool(job.plan.metapaths))
        show(job.plan, Workload.of(job.settings, parts=job.plan.num_parts), as_json=as_json)
        return
    first = os.environ.get("RANK", "0") == "0"
    unsaid = [True]
    with drawn_events(first and not as_json, job.settings.train.epochs) as report:
        def receive(event: dict[str, Any]) -> None:
            if unsaid and unsaid.pop():  # nothing was wrong, or that would be all that is said
                say_of_graph(job.opened, job.plan.targets, bool(job.plan.metapaths))
            report(event)

        result = job.run(run_dir, resume=resume, report=receive)
    if result is None:
        return
    if as_json:
        print_json({**{k: v for k, v in result.summary.items() if k not in ("plan", "settings")},
                    "run_dir": str(result.run_dir)})
        return
    from dgl_heta.report.run_table import summary_table

    out.print(summary_table(result.summary))
    out.print(f"Report: {escape(str(result.report))}\nModel: {escape(str(result.model))}",
              highlight=False)
