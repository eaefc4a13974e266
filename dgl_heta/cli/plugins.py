"""`dgl-heta plugins`: every provider, built in or not."""

from __future__ import annotations

import typer
from rich.markup import escape

from dgl_heta.cli.options import AsJson
from dgl_heta.report.console import out, print_json, table

app = typer.Typer()


@app.command("plugins", epilog="Example: dgl-heta plugins --json")
def list_plugins(as_json: AsJson = False) -> None:
    """List all providers: kind, name, source and version.

    Select one by its name in a setting or option (--method, train.kernel, …).
    """
    from dgl_heta.hooks.manager import plugins

    providers = plugins().all()
    if as_json:
        print_json([{"kind": p.kind, "name": p.name, "source": p.source, "version": p.version}
                    for p in providers])
        return
    rows = table("kind", "name", "source", "version")
    for p in providers:
        rows.add_row(p.kind, escape(p.name), escape(p.source), escape(p.version))
    out.print(rows)
