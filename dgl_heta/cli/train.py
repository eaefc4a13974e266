"""`dgl-heta train`: from what the user names to a trained model and a report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from dgl_heta.cli.options import AsJson, Input, ReadingOptions, SettingsOptions, grouped
from dgl_heta.report.console import note, out, print_json

if TYPE_CHECKING:
    from dgl_heta.launch.jobs.seed_runs import SeedsResult
    from dgl_heta.launch.jobs.training import TrainingResult

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
    seeds: Annotated[str | None, typer.Option(
        "--seeds", metavar="NUMBER|LIST", help="Train with several seeds, one after another, into "
        "seed-N of the run directory: so many, from train.seed on, or a list as 1,2,3.")] = None,
    resume: Annotated[bool, typer.Option(
        "--resume", help="Continue from the last checkpoint in --run-dir; of several seeds with "
        "the one that was interrupted.")] = False,
    auto_resume: Annotated[bool, typer.Option(
        "--auto-resume", help="Continue from the last checkpoint in --run-dir if there is one, "
        "else begin: where a scheduler may start the command again.")] = False,
    dry_run: Annotated[bool, typer.Option(
        "--dry-run", help="Check all that training checks before its first step, which reads the "
        "whole graph, and show the plan; train and keep nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model with RAF, one worker per partition on this machine.

    Under torchrun, and under srun with several tasks, every process is a worker, on any number of
    machines.
    """
    from dgl_heta.cli.events import drawn_events
    from dgl_heta.cli.requests import reading, say_of_graph
    from dgl_heta.hooks.manager import plugins
    from dgl_heta.launch.jobs.seed_runs import check_seeds, seeds_of, train_seeds
    from dgl_heta.launch.jobs.training import TrainingJob
    from dgl_heta.launch.scheduler import adopt

    adopt()
    overrides = [*source.overrides, *([f"model.name={model}"] if model else []),
                 *([f"partition.parts={parts}"] if parts is not None else [])]
    job = TrainingJob.prepare(graph, source.config, overrides, plugins(), reading(files))
    several = None if seeds is None else seeds_of(seeds, job.settings.train.seed)
    if dry_run:
        from dgl_heta.cli.plan_command import show
        from dgl_heta.planning.workload import Workload

        notes = (job.check(run_dir, resume=resume) if several is None else
                 check_seeds(job, several, run_dir, resume=resume))
        say_of_graph(job.opened, job.plan.targets, bool(job.plan.metapaths))
        for text in notes:
            note(text)
        plan = job.followed
        show(plan, Workload.of(job.settings, parts=plan.num_parts), as_json=as_json,
             beside=job.opened.beside())
        return
    first = os.environ.get("RANK", "0") == "0"
    unsaid = [True]
    with drawn_events(first and not as_json, job.settings.train.epochs) as report:
        def receive(event: dict[str, Any]) -> None:
            if unsaid and unsaid.pop():  # nothing was wrong, or that would be all that is said
                say_of_graph(job.opened, job.plan.targets, bool(job.plan.metapaths))
            report(event)

        if several is None:
            result = job.run(run_dir, resume=resume, again=auto_resume, report=receive)
        else:
            trained = train_seeds(job, several, run_dir, resume=resume, again=auto_resume,
                                  report=receive)
    if several is not None:
        _show_seeds(trained, as_json)
        return
    if result is None:
        return
    if as_json:
        print_json(_for_programs(result))
        return
    from dgl_heta.report.run_table import summary_table

    out.print(summary_table(result.summary))
    out.print(f"Report: {escape(str(result.report))}\nModel: {escape(str(result.model))}",
              highlight=False)


def _show_seeds(trained: SeedsResult, as_json: bool) -> None:
    from dgl_heta.report.seed_table import seeds_table, spread

    if as_json:
        print_json({"run_dir": str(trained.run_dir), "seeds": list(trained.results),
                    "figures": spread(trained.summaries),
                    "runs": [_for_programs(result) for result in trained.results.values()]})
        return
    out.print(seeds_table(trained.summaries))
    out.print(f"Side by side: dgl-heta report {escape(str(trained.run_dir))}", highlight=False,
              soft_wrap=True)


def _for_programs(result: TrainingResult) -> dict[str, Any]:
    return {**{k: v for k, v in result.summary.items() if k not in ("plan", "settings")},
            "run_dir": str(result.run_dir)}
