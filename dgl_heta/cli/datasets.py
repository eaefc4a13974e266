"""`dgl-heta datasets`: the data sets that can be named instead of a file."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import typer
from rich.markup import escape

from dgl_heta.cli.options import AsJson
from dgl_heta.report.console import out, print_json, table

app = typer.Typer()


@app.command("datasets", epilog="Example: dgl-heta datasets")
def list_datasets(as_json: AsJson = False) -> None:
    """List the data sets that can be named instead of a file."""
    from dgl_heta.hooks.manager import plugins

    providers = list(plugins().providers("dataset").values())
    if as_json:
        print_json([{"name": p.name, "description": p.value.description,
                     "options": _shown(p.value.options), "source": p.source}
                    for p in providers])
        return
    rows = table("name", "description", "options", "source")
    for p in providers:
        options = ",".join(f"{k}={v}" for k, v in _shown(p.value.options).items())
        rows.add_row(escape(p.name), escape(p.value.description), escape(options),
                     escape(p.source))
    out.print(rows)
    out.print("\nOptions go after the name: dgl-heta plan synthetic-mag:scale=0.1,seed=1",
              highlight=False)


def _shown(options: Any) -> dict[str, Any]:
    """Options with their defaults; paths as text."""
    return {name: str(default) if isinstance(default, PurePath) else default
            for name, default in dict(options).items()}
