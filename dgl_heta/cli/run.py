"""`dgl-heta run`: a DistDGL script, unchanged, with what the settings select."""

from __future__ import annotations

from typing import Annotated

import typer

from dgl_heta.cli.options import SettingsOptions, grouped

app = typer.Typer()


@app.command(
    epilog="Example: dgl-heta run -c heta.toml partition_graph.py --part_method meta. Or: dgl-heta "
           "run -c heta.toml -m package.module --num-parts 2",
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
@grouped
def run(
    script: Annotated[str, typer.Argument(help="Python script; with -m a module's name.")],
    source: SettingsOptions,
    module: Annotated[bool, typer.Option(
        "-m", "--module", help="SCRIPT is a module's name, as for python -m. Give it after -c and "
        "--set.")] = False,
    overwrite: Annotated[bool, typer.Option(
        "--overwrite", help="Let partition_graph replace an earlier partition of dgl-heta. Give it "
        "before SCRIPT.")] = False,
    arguments: Annotated[list[str] | None, typer.Argument(help="Its arguments.")] = None,
) -> None:
    """Run a DistDGL script, unchanged, with the selected partition method, wrapper and so on.

    Without settings that select something, and with partitions of DGL's own, it runs as by
    python.
    """
    from dgl_heta.distdgl.running import run_program

    run_program(script, arguments or [], source.config, source.overrides, module, overwrite)
