"""`dgl-heta inspect`: what a store or partition holds, and whether it is whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dgl_heta.cli.options import AsJson
from dgl_heta.errors import InputError
from dgl_heta.report.console import out, print_json, progress

if TYPE_CHECKING:
    from dgl_heta.planning.plan import Plan

app = typer.Typer()


@app.command(epilog="Example: dgl-heta inspect data/debian")
def inspect(
    directory: Annotated[Path, typer.Argument(help="Relation store or partition.")],
    verify: Annotated[bool, typer.Option(help="Compare the checksums of all files.")] = True,
    as_json: AsJson = False,
) -> None:
    """Show what a store or partition holds, and check that it is whole."""
    from dgl_heta.partition.directory import is_partition, open_partition
    from dgl_heta.store import Store

    plan: Plan | None = None
    if is_partition(directory):
        store, plan = open_partition(directory)
    elif Store.is_store(directory):
        store = Store(directory)
    else:
        raise InputError(f"{directory} is neither a relation store nor a partition; write one "
                         "with `dgl-heta partition`")
    if verify:
        with progress(not as_json) as advance:
            store.verify(progress=advance)
        if plan is not None:
            plan.verify()
    if as_json:
        print_json({**store.manifest.to_json(), "verified": verify,
                    "plan": plan.to_json() if plan else None})
        return
    from dgl_heta.report.tables import show_store

    show_store(store.manifest, out)
    out.print("all checksums agree" if verify else "checksums were not compared (--no-verify)")
    if plan:
        from dgl_heta.cli.plan import show
        from dgl_heta.planning.workload import Workload

        out.print()
        show(plan, Workload())
