"""`dgl-heta catgnn train`: homogeneous training on parts, with model averaging."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dgl_heta.tools import AsJson, SettingsOptions, grouped, out, print_json, progress, table

if TYPE_CHECKING:
    from dgl_heta.tools import Advance

app = typer.Typer(help="Training of homogeneous graphs on parts, with model averaging (CATGNN).")


def _number_or_auto(text: str) -> int | str:
    if text != "auto" and not text.removeprefix("-").isdecimal():
        raise typer.BadParameter(f"'{text}' is neither a number nor auto.")
    return text if text == "auto" else int(text)


@app.callback()
def _group() -> None:
    """Training of homogeneous graphs on parts, with model averaging (CATGNN)."""


@app.command(epilog="Example: dgl-heta catgnn train communities --model sage --parts 8 --workers 2")
@grouped
def train(
    graph: Annotated[str, typer.Argument(
        help="A data set or files, as `dgl-heta partition` takes them, or DistDGL parts: their "
        "part_config or its directory. Of several node types it is the homogeneous view.")],
    source: SettingsOptions,
    model: Annotated[str, typer.Option(
        help="sage, gcn, gat, sgc, ngnn, or module:attribute.")] = "sage",
    method: Annotated[str | None, typer.Option(
        help="Partitioner: spring, hdrf, dbh, powergraph, 2ps-l, metis, … Default: spring.")
    ] = None,
    parts: Annotated[Any, typer.Option(
        parser=_number_or_auto, metavar="NUMBER",
        help="Number of parts, or auto: as --memory-mb asks. Default: one per worker.")] = None,
    workers: Annotated[int, typer.Option(help="Workers on this machine.")] = 1,
    epochs: Annotated[int, typer.Option(help="Epochs.")] = 20,
    sync_every: Annotated[int, typer.Option(
        help="Epochs between two averages of the models.")] = 1,
    hops: Annotated[int | None, typer.Option(
        help="Hops of neighbours around a part's nodes; 0: an edge between two parts is in one of "
        "them alone. Default: 1, or what parts have.")] = None,
    full_batch: Annotated[bool, typer.Option(
        "--full-batch", help="A step an epoch on the whole part, no sampling.")] = False,
    batches: Annotated[str | None, typer.Option(
        help="An algorithm of your own that gives batches, module:attribute.")] = None,
    evaluate: Annotated[str, typer.Option(
        help="whole: on the whole graph; parts: on parts as they are.")] = "whole",
    memory_mb: Annotated[float | None, typer.Option(
        "--memory-mb", help="Memory of a worker, as estimated: decides --parts auto, and only one "
        "part at a time is in memory.")] = None,
    target: Annotated[str | None, typer.Option(
        help="Node type to classify. Default: that of the graph's task, else the only one with "
        "labels.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of parts, models and batches.")] = 0,
    run_dir: Annotated[Path | None, typer.Option(
        help="Run directory. Default: runs/catgnn-TIME.")] = None,
    as_json: AsJson = False,
) -> None:
    """Train a model on parts of a graph, each by itself, and average the models.

    Where there are more parts than workers, a worker trains its parts in turn.
    """
    from dgl_heta import InputError
    from dgl_heta.tools import load_settings, plugins
    from dgl_heta_catgnn.training.job import TrainRequest, train_graph

    if evaluate not in ("whole", "parts"):
        raise InputError(f"--evaluate is '{evaluate}'; it must be whole or parts")
    if memory_mb is not None and not 0 < memory_mb < math.inf:
        raise InputError(f"--memory-mb is {memory_mb}; it must be a number above 0")
    settings = load_settings(source.config, source.overrides)
    registry = plugins().configured(settings)
    request = TrainRequest(
        graph, model, method, parts, workers, epochs, sync_every, hops, full_batch, batches,
        evaluate == "whole", None if memory_mb is None else round(memory_mb * 1e6), seed, target,
        run_dir, settings.run.verify)
    with progress(not as_json) as advance:
        summary = train_graph(request, registry.get("command", "catgnn").settings, registry,
                              lambda event: _show(event, advance, epochs))
    if as_json:
        print_json(summary)
    else:
        _table(summary)


def _show(event: dict[str, Any], advance: Advance, epochs: int) -> None:
    if event["event"] == "partitioning":
        advance(event["what"], event["done"])
    elif event["event"] == "preparing":
        advance("preparing parts", 0.0)
    elif event["event"] == "epoch":
        accuracy = f", val {event['val_acc']:.3f}" if "val_acc" in event else ""
        advance("training", event["epoch"], epochs, f"loss {event['loss']:.3f}{accuracy}")


def _table(summary: dict[str, Any]) -> None:
    rows = table("", "", head=False)
    shown = {
        "model": f"{summary['model']}, {summary['parts']} parts by {summary['method']}, "
                 f"{summary['workers']} worker{'s' * (summary['workers'] != 1)}",
        "replication factor": f"{summary['replication_factor']:.3f}",
        "accuracy": ", ".join(f"{name} {summary[key]:.4f}" if summary[key] is not None else
                              f"no {name} nodes" for name, key in (
                                  ("test", "test_acc"), ("validation", "val_acc")))
                    + f" (epoch {summary['best_epoch']})",
        "loss": f"{summary['loss']:.4f}",
        "seconds per epoch": f"{summary['epoch_seconds']:.3f}",
        "bytes sent per epoch": f"{summary['bytes_sent_per_epoch']:,.0f} by a worker",
        "peak memory": f"{max(summary['peak_rss_mb']):,.0f} MB of a worker"}
    if "estimated_bytes" in summary:
        shown["estimated memory"] = (f"{summary['estimated_bytes'] / 1e6:,.1f} MB for the largest "
                                     "part, without the program")
    for name, value in shown.items():
        rows.add_row(name, value)
    out.print(rows)
    out.print(f"Model: {summary['run_dir']}/model.safetensors", highlight=False, markup=False,
              soft_wrap=True)
