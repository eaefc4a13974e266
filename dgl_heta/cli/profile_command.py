"""`dgl-heta profile`: what a feature cache would be filled by, and what it would save."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dgl_heta.cli.options import AsJson, Input, SettingsOptions, grouped
from dgl_heta.report.console import out, print_json

app = typer.Typer()


@app.command(epilog="Example: dgl-heta profile data/debian --svg saved.svg")
@grouped
def profile(
    graph: Input, source: SettingsOptions,
    output: Annotated[Path | None, typer.Option(
        "--out", help="Directory of the profile, to be named by cache.profile. Default: with the "
        "partition or the store, where training finds it.")] = None,
    svg: Annotated[Path | None, typer.Option(
        help="Write a picture of what each cache policy would save.")] = None,
    as_json: AsJson = False,
) -> None:
    """Count visits by pre-sampling, measure what cache misses cost, and show what policies save.

    Training with a cache policy does the first two by itself where no profile is stored.
    """
    from dgl_heta.cli.events import drawn_events
    from dgl_heta.errors import InputError
    from dgl_heta.hooks.manager import plugins
    from dgl_heta.launch.jobs.profiling_job import profile_graph
    from dgl_heta.launch.scheduler import check_alone
    from dgl_heta.system.optional import optional

    check_alone("`dgl-heta profile`")
    if svg is not None and not svg.parent.is_dir():
        raise InputError(f"--svg: there is no directory {svg.parent}")
    if svg is not None:
        optional("matplotlib", "--svg", "charts")
    with drawn_events(not as_json) as report:
        result = profile_graph(graph, source.config, source.overrides, plugins(), output, report)
    if svg is not None:
        from dgl_heta.report.cache_profile import save_picture

        save_picture(result["workers"], svg)
    if as_json:
        print_json(result)
        return
    from dgl_heta.report.cache_profile import show_profile

    show_profile(result, out)
