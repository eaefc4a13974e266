"""`dgl-heta predict`: from a finished run to a file with a row per node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from dgl_heta.cli.options import AsJson, Overwrite
from dgl_heta.errors import HetaError, several
from dgl_heta.report.console import note, out, print_json
from dgl_heta.report.text import printable

app = typer.Typer()


@app.command(epilog="Example: dgl-heta predict runs/debian-… --out predictions.npy")
def predict(
    run_dir: Annotated[Path, typer.Argument(help="Directory of a finished run.")],
    output: Annotated[Path, typer.Option("--out", help="File to write, .npy, .csv or "
                                         ".parquet: a row per node of the type.")],
    ntype: Annotated[str | None, typer.Option("--type", help="Node type. Default: the task's.")] =
    None,
    what: Annotated[str, typer.Option(help="predictions (classes, labels, numbers), probabilities "
                                      "(of classes or labels), scores (the model's outputs) or "
                                      "embeddings (the last hidden states; of any type with "
                                      "incoming relations).")] = "predictions",
    parts: Annotated[int | None, typer.Option(help="Number of workers. Default: the run's.")] =
    None,
    model: Annotated[str | None, typer.Option(
        help="module:attribute, for a run that was trained with one.")] = None,
    store: Annotated[Path | None, typer.Option(help="The relation store, if it has moved.")] = None,
    chunk: Annotated[int, typer.Option(help="Nodes to compute at a time.")] = 8192,
    time: Annotated[str | None, typer.Option(
        help="For a graph with times: when nodes are seen, such as 2026-11-23 or "
        "2026-11-23T09:30:00+01:00; nothing later counts.")] = None,
    overwrite: Overwrite = False, as_json: AsJson = False,
) -> None:
    """Predict for all nodes of a type, layer by layer with all neighbours, out of core."""
    from dgl_heta.cli.events import drawn_events
    from dgl_heta.hooks.manager import plugins
    from dgl_heta.launch.jobs.prediction import PredictionJob
    from dgl_heta.launch.scheduler import check_alone

    check_alone("`dgl-heta predict`")
    with drawn_events(not as_json) as report:
        result = PredictionJob(run_dir, output, ntype, what, parts, model, store, chunk,
                               overwrite, time).run(plugins(), report)
    if as_json:
        print_json(result)
    else:
        _say(result)
    if result["not_finite"]:
        raise HetaError(f"{result['not_finite']:,} of {result['rows']:,} rows of {result['out']} "
                        "are NaN or infinite, or say nothing because the model's outputs are: look "
                        "for such values in the features of these nodes and of their neighbours "
                        "(`dgl-heta inspect` of the store), or the model itself diverged")


def _say(result: dict[str, Any]) -> None:
    out.print(f"{escape(result['out'])}: {result['what']} of {result['rows']:,} nodes of type "
              f"{escape(printable(result['ntype']))}, {result['width']} wide, in "
              f"{result['seconds']:.1f} s by {several(result['workers'], 'worker')}",
              highlight=False, soft_wrap=True)
    if result["later"]:
        note(f"{several(result['later'], 'node')} of {result['rows']:,} are later than --time and "
             "have no prediction: NaN, or -1 for a class, 255 for a label")
    if result["named"]:
        note(f"classes in {result['out']} are places, from 0, in the list of their names "
             "(`classes` of the store's info); .csv has the names")
