"""`dgl-heta check-model`: does an own model compute on several workers what it does on one?"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from dgl_heta.cli.options import AsJson, SettingsOptions, grouped
from dgl_heta.report.console import out, print_json, table

app = typer.Typer()
ROWS = 12
"""Differences that are shown at most."""


@app.command(name="check-model", epilog="Example: dgl-heta check-model mine:Net, or ./mine.py:Net")
@grouped
def check_model(
    model: Annotated[str, typer.Argument(
        help="Model, as for dgl-heta train --model: module:attribute, FILE.py:attribute or a "
        "name.")],
    source: SettingsOptions,
    workers: Annotated[list[int] | None, typer.Option(
        help="Number of workers to compare with one; repeat it for more. Default: 2 and 3.",
        min=2, max=16)] = None,
    as_json: AsJson = False,
) -> None:
    """Compare a model on several workers with the same on one, in fp64, on a small graph.

    Three steps with all neighbours; losses, outputs and every parameter's gradient are compared.
    Exit status 0 means that they agree, 1 that they differ.
    """
    from dgl_heta.hooks.manager import plugins
    from dgl_heta.launch.jobs import model_check

    counts = tuple(workers or (2, 3))
    differences = model_check.check_model(model, source.config, source.overrides, plugins(), counts)
    wrong = [d for d in differences if d.differs]
    if as_json:
        print_json(model_check.to_json(model, differences))
    elif wrong:
        rows = table("workers", "step", "what", "relation", "difference", right=("difference",))
        for d in wrong[:ROWS]:
            rows.add_row(str(d.workers), str(d.step + 1), escape(f"{d.what} {d.name}"),
                         escape(d.relation), f"{d.difference:.1e}")
        out.print(rows)
        if len(wrong) > ROWS:
            out.print(f"(and {len(wrong) - ROWS} more)", highlight=False)
    else:
        out.print(f"{escape(model)} computes on {' and '.join(map(str, counts))} workers what it "
                  f"does on one: {len(differences)} arrays of 3 steps, largest difference "
                  f"{max(d.difference for d in differences):.1e} in fp64", highlight=False,
                  soft_wrap=True)
    model_check.verdict(model, differences)
