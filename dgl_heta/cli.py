"""The command line: `dgl-heta plan | partition | train | inspect | plugins | datasets | settings`.

Errors are one line on standard error: exit status 2 for wrong input, 1 for other failures.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from dgl_heta._version import __version__
from dgl_heta.errors import HetaError, InputError
from dgl_heta.inputs import GraphInput, open_input
from dgl_heta.plan import Plan
from dgl_heta.plugins import plugins
from dgl_heta.schema import Schema

app = typer.Typer(name="dgl-heta", no_args_is_help=True, pretty_exceptions_enable=False,
                  rich_markup_mode="rich", add_completion=False,
                  help="Meta-partitioning and RAF training of heterogeneous GNNs.")
out = Console()
err = Console(stderr=True)

Input = Annotated[str, typer.Argument(
    help="Schema (.json), relation store, partition, directory of edge files or of a GraphBolt "
    "data set, or the name of a data set (see `dgl-heta datasets`).")]
Target = Annotated[list[str] | None, typer.Option(
    "--target", help="Target node type; repeat it for several. Default: the graph's task.")]
Hops = Annotated[int | None, typer.Option(help="Layers of the model. Default: 2, or the longest "
                                               "metapath.")]
Parts = Annotated[int, typer.Option(help="Number of partitions.")]
Metapaths = Annotated[Path | None, typer.Option(
    help='JSON file: a list of metapaths, each a list of relations in edge direction, e.g. '
    '[[["author", "writes", "paper"]]].')]
Method = Annotated[str, typer.Option(help="Partition backend (see `dgl-heta plugins`).")]
Seed = Annotated[int, typer.Option(help="Seed of backends that draw at random.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object (last line).")]
Config = Annotated[Path | None, typer.Option(
    "-c", "--config", help="Settings in TOML (see `dgl-heta settings`).")]
Set = Annotated[list[str] | None, typer.Option(
    "--set", help="Override a setting, e.g. --set train.lr=0.003.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing output.")]


@app.command(epilog="Example: dgl-heta plan debian --parts 2 --svg plan.svg")
def plan(
    graph: Input, target: Target = None, hops: Hops = None, parts: Parts = 2,
    metapaths: Metapaths = None, method: Method = "meta", seed: Seed = 0,
    batch_size: Annotated[int, typer.Option(help="Seeds per worker, for the prediction.")] = 1024,
    hidden: Annotated[int, typer.Option(help="Hidden width, for the prediction.")] = 64,
    svg: Annotated[Path | None, typer.Option(help="Write the picture to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show how a graph would be partitioned, with what each partition costs."""
    from dgl_heta.cost import Workload, predict

    opened = open_input(graph, plugins())
    made = _plan(opened, target, hops, parts, metapaths, method, seed)
    work = Workload(_positive(batch_size, "--batch-size"), _positive(hidden, "--hidden"))
    costs = predict(made, work)
    if svg:
        from dgl_heta.draw import save_svg

        save_svg(made, costs, svg)
    if as_json:
        from dataclasses import asdict

        data = made.to_json()
        data["prediction"] = {"workload": asdict(work), "partitions": [asdict(c) for c in costs]}
        print(json.dumps(data))
        return
    from dgl_heta.draw import terminal

    terminal(made, costs, out)
    if svg:
        out.print(f"Picture: {escape(str(svg))}")


@app.command(epilog="Example: dgl-heta partition debian --out data/debian --target package "
                    "--parts 2")
def partition(
    graph: Input,
    directory: Annotated[Path, typer.Option("--out", help="Directory to write.")],
    target: Target = None, hops: Hops = None, parts: Parts = 2, metapaths: Metapaths = None,
    method: Method = "meta", seed: Seed = 0, overwrite: Overwrite = False,
    dry_run: Annotated[bool, typer.Option(
        "--dry-run", help="Check everything and show the plan, write nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a graph's relation store and a plan over it (or DistDGL's parts).

    From an existing store only the plan is written, which refers to the store.
    """
    import time

    from dgl_heta.partition import PartitionRequest

    started = time.perf_counter()
    opened = open_input(graph, plugins())
    content = opened.store or opened.source
    if content is None:
        raise InputError(f"'{graph}' is a schema without edges; partition a graph, or use "
                         "`dgl-heta plan`")
    backend = plugins().get("partition backend", method)
    if dry_run:
        plan(graph, target, hops, parts, metapaths, method, seed, as_json=as_json)
        return
    request = PartitionRequest(parts, _targets(opened, target), _hops(hops, metapaths),
                               _metapaths(opened.schema, metapaths), seed)
    with _bar(not as_json) as advance:
        config = backend.partition(content, request, directory, overwrite=overwrite,
                                   progress=advance)
    from dgl_heta.training.memory import peak_rss_mb

    result: dict[str, Any] = {"part_config": str(config), "method": method, "parts": parts,
              "seconds": time.perf_counter() - started, "peak_rss_mb": peak_rss_mb(),
              "bytes": sum(f.stat().st_size for f in directory.rglob("*") if f.is_file())}
    if as_json:
        print(json.dumps(result))
        return
    from dgl_heta.draw import human_bytes

    out.print(f"{escape(str(config))}: {parts} partitions by {method}, "
              f"{human_bytes(result['bytes'])} written in {result['seconds']:.1f} s, peak memory "
              f"{result['peak_rss_mb']:.0f} MB", highlight=False)


@app.command(epilog="Example: dgl-heta train debian --model rgcn --parts 2 --set train.epochs=5")
def train(
    graph: Input,
    model: Annotated[str | None, typer.Option(help="Model (see `dgl-heta plugins`).")] = None,
    parts: Annotated[int | None, typer.Option(help="Number of workers.")] = None,
    config: Config = None, overrides: Set = None,
    run_dir: Annotated[Path | None, typer.Option(
        help="Run directory. Default: runs/NAME-TIME.")] = None,
    resume: Annotated[bool, typer.Option(
        "--resume", help="Continue from the last checkpoint in --run-dir.")] = False,
    dry_run: Annotated[bool, typer.Option(
        "--dry-run", help="Check everything and show the plan, train nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model with RAF, one worker per partition on this machine.

    Under torchrun every rank is a worker, on any number of machines.
    """
    from dgl_heta.training.command import TrainRequest, train_command

    extra = [f"model.name={model}"] if model else []
    extra += [f"partition.parts={parts}"] if parts is not None else []
    summary = train_command(TrainRequest(
        graph, config, [*(overrides or []), *extra], run_dir, resume, dry_run, quiet=as_json),
        plugins(), out, err)
    if summary is None:
        return
    if as_json:
        print(json.dumps(summary), flush=True)


@app.command(epilog="Example: dgl-heta inspect data/debian")
def inspect(
    directory: Annotated[Path, typer.Argument(help="Relation store or partition.")],
    verify: Annotated[bool, typer.Option(help="Compare the checksums of all files.")] = True,
    as_json: AsJson = False,
) -> None:
    """Show what a store or partition holds, and check that it is whole."""
    opened = open_input(str(directory), plugins()) if directory.is_dir() else None
    if opened is None or opened.store is None:
        raise InputError(f"{directory} is neither a relation store nor a partition; write one "
                         "with `dgl-heta partition`")
    store, manifest = opened.store, opened.store.manifest
    if verify:
        with _bar(not as_json) as advance:
            store.verify(progress=advance)
    if as_json:
        data = manifest.to_json()
        data["verified"] = verify
        data["plan"] = opened.plan.to_json() if opened.plan else None
        print(json.dumps(data))
        return
    from dgl_heta.draw import human_bytes

    task = manifest.task
    out.print(f"[bold]{escape(manifest.name)}[/]: {sum(manifest.node_counts.values()):,} nodes, "
              f"{sum(r.edges for r in manifest.relations):,} edges, "
              f"{human_bytes(manifest.bytes)}"
              + (f"; task: classify {escape(task.target)} in {task.num_classes} classes"
                 if task else ""), highlight=False)
    nodes = Table("node type", "nodes", "arrays", title="Node types", title_justify="left")
    for ntype, count in manifest.node_counts.items():
        arrays = ", ".join(f"{k} {a.dtype.lstrip('<|')}{list(a.shape[1:]) or ''}"
                           for k, a in manifest.arrays.get(ntype, {}).items())
        nodes.add_row(escape(ntype), f"{count:,}", escape(arrays) or "none: learnable features")
    edges = Table("relation", "edges", "bytes", title="Relations", title_justify="left")
    for entry in manifest.relations:
        edges.add_row(escape(str(entry.relation)), f"{entry.edges:,}",
                      human_bytes(entry.indptr.bytes + entry.indices.bytes))
    out.print(nodes)
    out.print(edges)
    for key, value in manifest.info.items():
        text = str(value)
        out.print(f"{escape(key)}: {escape(text if len(text) < 200 else text[:200] + '…')}",
                  highlight=False)
    out.print("all checksums agree" if verify else "checksums were not compared (--no-verify)")
    if opened.plan:
        from dgl_heta.cost import Workload, predict
        from dgl_heta.draw import terminal

        terminal(opened.plan, predict(opened.plan, Workload()), out)


@app.command("plugins")
def list_plugins(as_json: AsJson = False) -> None:
    """List all providers: kind, name, source and version."""
    providers = plugins().all()
    if as_json:
        print(json.dumps([{"kind": p.kind, "name": p.name, "source": p.source,
                           "version": p.version} for p in providers]))
        return
    table = Table("kind", "name", "source", "version")
    for p in providers:
        table.add_row(p.kind, escape(p.name), escape(p.source), escape(p.version))
    out.print(table)


@app.command()
def datasets(as_json: AsJson = False) -> None:
    """List the data sets that can be named instead of a file."""
    found = list(plugins().providers("dataset").values())
    if as_json:
        print(json.dumps([{"name": p.name, "description": p.value.description,
                           "options": p.value.options, "source": p.source} for p in found]))
        return
    table = Table("name", "description", "options and defaults", "source")
    for p in found:
        options = ",".join(f"{k}={v:g}" for k, v in p.value.options.items())
        table.add_row(escape(p.name), escape(p.value.description), escape(options),
                      escape(p.source))
    out.print(table)
    out.print("Options go after the name: dgl-heta plan synthetic-mag:scale=0.1,seed=1 --parts 2",
              highlight=False)


@app.command("settings")
def list_settings(config: Config = None, overrides: Set = None, as_json: AsJson = False) -> None:
    """List all settings with their values, as a file, the environment and --set give them."""
    from dgl_heta.settings import keys, load_settings

    values = load_settings(config, overrides or []).model_dump()
    if as_json:
        print(json.dumps(values))
        return
    table = Table("setting", "value", "meaning")
    for name, field in keys().items():
        section, key = name.split(".")
        table.add_row(name, escape(json.dumps(values[section][key])),
                      escape(field.description or ""))
    out.print(table)


def _version(show: bool) -> None:
    if show:
        print(f"dgl-heta {__version__}")
        raise typer.Exit


@app.callback()
def _root(version: Annotated[bool, typer.Option(
        "--version", callback=_version, is_eager=True, help="Show the version.")] = False) -> None:
    pass


def _plan(opened: GraphInput, target: list[str] | None, hops: int | None, parts: int,
          metapaths: Path | None, method: str, seed: int) -> Plan:
    from dgl_heta.partition import PartitionRequest

    request = PartitionRequest(parts, _targets(opened, target), _hops(hops, metapaths),
                               _metapaths(opened.schema, metapaths), seed)
    made: Plan = plugins().get("partition backend", method).plan(opened.schema, request)
    return made


def _targets(opened: GraphInput, given: list[str] | None) -> tuple[str, ...]:
    if given:
        return tuple(t for text in given for t in text.split(","))
    if opened.target is None:
        raise InputError("give --target: the graph names no task; node types: "
                         + ", ".join(opened.schema.node_types))
    return (opened.target,)


def _hops(given: int | None, metapaths: Path | None) -> int | None:
    return 2 if given is None and metapaths is None else given


def _metapaths(schema: Schema, path: Path | None) -> list[Any]:
    from dgl_heta.metatree import load_metapaths

    return list(load_metapaths(path, schema)) if path else []


def _positive(value: int, option: str) -> int:
    if value < 1:
        raise InputError(f"{option} is {value}; it must be 1 or more")
    return value


@contextmanager
def _bar(show: bool) -> Iterator[Any]:
    """A progress bar on standard error, where a person looks at it."""
    with Progress(TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(),
                  TimeRemainingColumn(), console=err, transient=True,
                  disable=not (show and err.is_terminal)) as bar:
        task = bar.add_task("", total=1.0)

        def advance(what: str, fraction: float) -> None:
            bar.update(task, description=escape(what), completed=fraction)

        yield advance


def main() -> None:
    """The entry point; turns errors into a line and an exit status."""
    try:
        app()
    except InputError as error:
        err.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
    except HetaError as error:
        err.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        err.print("interrupted")
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
