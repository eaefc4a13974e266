"""`dgl-heta inspect`: what a store, a partition or a run holds, and whether it is whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dgl_heta.cli.options import AsJson
from dgl_heta.errors import InputError
from dgl_heta.report.console import note, out, print_json, progress

if TYPE_CHECKING:
    from dgl_heta.planning.plan import Plan

app = typer.Typer()


@app.command(epilog="Example: dgl-heta inspect data/debian")
def inspect(
    directory: Annotated[Path, typer.Argument(help="Relation store, partition, or directory of a "
                                         "run.")],
    verify: Annotated[bool, typer.Option(help="Compare the checksums of all files.")] = True,
    as_json: AsJson = False,
) -> None:
    """Show what a store, a partition or a run holds, and check that it is whole."""
    from dgl_heta.partition.directory import is_partition, open_partition
    from dgl_heta.report.reading import is_run
    from dgl_heta.store import Store

    plan: Plan | None = None
    if is_partition(directory):
        store, plan = open_partition(directory)
    elif Store.is_store(directory):
        store = Store(directory)
    elif is_run(directory):
        _inspect_run(directory, verify, as_json)
        return
    else:
        raise InputError(f"{directory} is neither a relation store nor a partition nor the "
                         "directory of a run; write a partition with `dgl-heta partition`")
    if verify:
        with progress(not as_json) as advance:
            texts = store.verify(progress=advance)
        for text in texts:
            note(text)
        if plan is not None:
            plan.verify()
    if as_json:
        print_json({**store.manifest.to_json(), "verified": verify,
                    "plan": plan.to_json() if plan else None})
        return
    from dgl_heta.report.console_tables import show_store

    show_store(store.manifest, out)
    out.print("all checksums agree" if verify else "checksums were not compared (--no-verify)")
    if plan:
        from dgl_heta.cli.plan_command import show
        from dgl_heta.partition.graph_input import GraphInput
        from dgl_heta.planning.workload import Workload

        out.print()
        opened = GraphInput(store.schema, store.manifest.name, store, plan)
        show(plan, Workload(), beside=opened.beside())
        out.print("Bytes are those of the default settings; of others: dgl-heta plan "
                  f"{directory} -c FILE", markup=False, highlight=False, soft_wrap=True)


def _inspect_run(directory: Path, verify: bool, as_json: bool) -> None:
    """Show when a run was started and what came of it, and compare its checksums."""
    from rich.text import Text

    from dgl_heta.launch.jobs.reporting import verify_run
    from dgl_heta.report.changed import changed_settings, shown_value
    from dgl_heta.report.comparing import compared
    from dgl_heta.report.console import table
    from dgl_heta.report.figures import as_mapping
    from dgl_heta.report.reading import read_run
    from dgl_heta.report.run_table import summary_table
    from dgl_heta.report.started import started_rows
    from dgl_heta.report.text import visible

    damaged = verify_run(directory) if verify else []
    if damaged:
        raise InputError("; ".join(damaged))
    run = read_run(directory)
    changed = changed_settings(as_mapping(run.summary.get("settings")))
    if as_json:
        print_json({**compared({str(directory): run}).to_json()[0], "verified": verify,
                    "started": run.started, "changed_settings": changed})
        return
    rows = table("what", "value", head=False)
    for name, text in [*started_rows(run.started), ("epochs", str(len(run.epochs))), (
            "finished", "yes" if run.summary else "no: --resume goes on with it"),
            *((key, shown_value(value)) for key, value in changed.items())]:
        rows.add_row(name, Text(visible(text)))
    out.print(rows)
    out.print()
    out.print(summary_table(run.summary, () if run.summary else run.epochs))
    out.print("all checksums agree" if verify else "checksums were not compared (--no-verify)")
