"""The command line: `dgl-heta plan | partition | train | launch | inspect | plugins | …`.

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

from dgl_heta._version import __version__
from dgl_heta.errors import HetaError, InputError
from dgl_heta.hooks.manager import plugins
from dgl_heta.launch.command import EXAMPLE, launch
from dgl_heta.partition.inputs import GraphInput, open_input
from dgl_heta.partition.request import PartitionRequest
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.workload import Workload
from dgl_heta.report.tables import show_comparison, show_estimates, show_store, table

app = typer.Typer(name="dgl-heta", pretty_exceptions_enable=False, rich_markup_mode="rich",
                  add_completion=False,
                  help="Meta-partitioning and RAF training of heterogeneous GNNs.")
out = Console()
err = Console(stderr=True)
UsageError: Any = typer.BadParameter.__base__  # its home depends on the version of typer

Input = Annotated[str, typer.Argument(
    help="Schema (.json), relation store, partition, directory of edge files or of a GraphBolt "
    "data set, or the name of a data set (see `dgl-heta datasets`).")]
Target = Annotated[list[str] | None, typer.Option(
    "--target", help="Target node type; repeat it, or separate by commas, for several. Default: "
    "the graph's task.")]
Hops = Annotated[int | None, typer.Option(help="Layers of the model. Default: 2, or the longest "
                                               "metapath.")]
Parts = Annotated[int, typer.Option(help="Number of partitions.")]
Metapaths = Annotated[Path | None, typer.Option(
    help='JSON file: a list of metapaths, each a list of relations in edge direction, e.g. '
    '[[["author", "writes", "paper"]]].')]
Method = Annotated[str, typer.Option(help="Partition backend (see `dgl-heta plugins`).")]
Seed = Annotated[int, typer.Option(help="Seed of backends that draw at random.")]
Replication = Annotated[str | None, typer.Option(
    help="full: each partition has all relations that its sub-metatrees need; none: a relation is "
    "on one partition only. Default: the method's own.")]
MemoryMb = Annotated[float | None, typer.Option(
    "--memory-mb", help="Memory that a partition may hold, as predicted; with --replication none "
    "large relations are cut.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object (last line).")]
Config = Annotated[Path | None, typer.Option(
    "-c", "--config", help="Settings in TOML (see `dgl-heta settings`).")]
Set = Annotated[list[str] | None, typer.Option(
    "--set", help="Override a setting, e.g. --set train.lr=0.003.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing output.")]


@app.command(epilog="Example: dgl-heta plan debian --parts 2 --svg plan.svg. Or: dgl-heta plan "
             "schema.json --target paper --cluster cluster.toml with the lines machines = 8, "
             "cores = 16, link_gbit = 25, memory_gb = 128")
def plan(
    graph: Input, target: Target = None, hops: Hops = None,
    parts: Annotated[int | None, typer.Option(help="Number of partitions. Default: 2.")] = None,
    metapaths: Metapaths = None,
    method: Annotated[str | None, typer.Option(
        help="Partition backend (see `dgl-heta plugins`). Default: meta.")] = None,
    seed: Annotated[int | None, typer.Option(
        help="Seed of backends that draw at random. Default: 0.")] = None,
    replication: Replication = None, memory_mb: MemoryMb = None,
    batch_size: Annotated[int, typer.Option(help="Seeds per worker, for the prediction.")] = 1024,
    hidden: Annotated[int, typer.Option(help="Hidden width, for the prediction.")] = 64,
    svg: Annotated[Path | None, typer.Option(help="Write the picture to this file.")] = None,
    compare: Annotated[bool, typer.Option(
        "--compare", help="Compare meta-partitioning with relation-random, random and METIS: bytes "
        "per epoch, memory, balance. Samples some steps, so it needs edges.")] = False,
    fanouts: Annotated[str | None, typer.Option(
        help="Neighbours per relation and layer, input layer first, for the comparison and the "
        "prediction without replication. Default: 25, then 20.")] = None,
    cluster: Annotated[Path | None, typer.Option(
        help="Predict time, bytes and memory on the machines of this file (TOML or JSON), beside "
        "DistDGL. Keys: machines, trainers (per machine), cores, link_gbit, latency_us, memory_gb, "
        "speed (of a core; 1: as measured), metis_cut, coefficients.")] = None,
    model: Annotated[str | None, typer.Option(
        help="rgcn, rgat or hgt, with --cluster. Default: rgcn.")] = None,
    train_nodes: Annotated[int | None, typer.Option(
        help="Training nodes, with --cluster. Default: those in train_mask, or all target "
        "nodes.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show how a graph would be partitioned, with what each partition costs.

    Of a partition, without options that ask for another plan, the plan that it has.
    """
    opened = open_input(graph, plugins())
    work = _positive(batch_size, "--batch-size"), _positive(hidden, "--hidden")
    if cluster is not None:
        for option, given in (
                ("--compare", compare or None), ("--metapaths", metapaths), ("--svg", svg),
                ("--parts", parts), ("--replication", replication), ("--memory-mb", memory_mb)):
            if given is not None:
                raise InputError(f"{option} has no effect on --cluster, whose file says how many "
                                 "machines have a partition each; leave one of them out")
        own = opened.plan if all(x is None for x in (target, hops, method, seed)) else None
        hops = hops if hops is not None else opened.plan.hops if opened.plan else 2
        _estimate(opened, own, cluster, _targets(opened, target), hops, method or "meta", seed or 0,
                  Workload(*work, fanouts=_fanouts(fanouts, hops)), model or "rgcn", train_nodes,
                  as_json)
        return
    for option, without in (("--model", model), ("--train-nodes", train_nodes)):
        if without is not None:
            raise InputError(f"{option} has an effect on --cluster only; give a cluster, or leave "
                             "it out")
    if compare:
        for option, given in (("--metapaths", metapaths), ("--method", method), ("--svg", svg),
                              ("--replication", replication), ("--memory-mb", memory_mb)):
            if given is not None:
                raise InputError(f"{option} has no effect on --compare, which shows methods side "
                                 "by side; leave one of them out")
        if parts is None:
            parts = opened.plan.num_parts if opened.plan else 2
        _compare(opened, _request(opened, target, hops, parts, None, seed or 0),
                 Workload(*work, fanouts=_fanouts(fanouts, hops or 2)), as_json)
        return
    wishes = (target, hops, parts, metapaths, method, seed, replication, memory_mb)
    if opened.plan is not None and all(wish is None for wish in wishes):
        _show(opened.plan, *work, svg, as_json, fanouts)
        return
    parts = parts if parts is not None else opened.plan.num_parts if opened.plan else 2
    request = _request(opened, target, hops, parts, metapaths, seed or 0, replication, memory_mb,
                       Workload(*work))
    backend = plugins().get("partition backend", method or "meta")
    _show(backend.plan(opened.schema, request), *work, svg, as_json, fanouts)


def _fanouts(text: str | None, hops: int) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise InputError(f"--fanouts is '{text}'; write numbers, for example 25,20") from None
    if text and len(found) != hops:
        raise InputError(f"--fanouts has {len(found)} numbers, but there are {hops} hops")
    if wrong := [fanout for fanout in found if fanout < 1 and fanout != -1]:
        raise InputError(f"--fanouts has {wrong[0]}; a fanout is 1 or more, or -1 for all")
    return found


def _estimate(opened: GraphInput, own: Plan | None, file: Path, targets: tuple[str, ...],
              hops: int, method: str, seed: int, work: Workload, model: str,
              train_nodes: int | None, as_json: bool) -> None:
    """Predict a partition's own plan if it is for so many machines, else a new one."""
    from dataclasses import asdict, replace

    from dgl_heta.planning.cluster import Cluster, Coefficients, estimate
    from dgl_heta.planning.workload import MODELS

    if model not in MODELS:
        raise InputError(f"--model is '{model}'; it must be one of {', '.join(MODELS)}")
    cluster = Cluster.load(file)
    coefficients = Coefficients.load(Path(cluster.coefficients) if cluster.coefficients else None)
    if train_nodes is None:
        train_nodes = sum(opened.num_train_nodes(t) for t in targets)
    elif _positive(train_nodes, "--train-nodes") > sum(
            opened.schema.node_counts.get(t, train_nodes) for t in targets):
        raise InputError(f"--train-nodes is {train_nodes}, more than there are target nodes")
    work = replace(work, model=model, fanouts=work.fanouts_of(hops), seeds=train_nodes,
                   classes=opened.task.num_classes if opened.task else 0)
    if own is not None and own.num_parts == cluster.machines and own.replication == "full":
        made, method = own, own.method
    else:
        made = plugins().get("partition backend", method).plan(opened.schema, PartitionRequest(
            cluster.machines, targets, hops, seed=seed, replication="full", workload=work))
    found = estimate(made, work, cluster, coefficients)
    if as_json:
        print(json.dumps({
            "cluster": cluster.model_dump(), "training": asdict(work), "method": method,
            "coefficients": coefficients.model_dump(),
            "systems": [one.to_json() for one in found]}))
        return
    show_estimates(found, coefficients, (
        f"plan by {method}: {cluster.machines} × {cluster.trainers} trainers, "
        f"{found[0].steps:,} steps per epoch, {model}, batch {work.batch_size} per trainer, "
        f"hidden {work.hidden}"), out)


def _compare(opened: GraphInput, request: PartitionRequest, work: Workload, as_json: bool) -> None:
    import tempfile

    from dgl_heta.partition.comparison import compare
    from dgl_heta.store import Store, write_store

    with tempfile.TemporaryDirectory() as directory:
        if opened.store is None:
            if opened.source is None:
                raise InputError("--compare samples the graph, but a schema has no edges; give a "
                                 "store, a partition, a directory of edge files or a data set")
            write_store(opened.source, Path(directory) / "store")
        store = opened.store or Store(Path(directory) / "store")
        with err.status("comparing") as status:
            found = compare(store, request, work, progress=lambda what: status.update(what))
    if as_json:
        print(json.dumps(found.to_json()))
        return
    show_comparison(found, work, out)


def _show(made: Plan, batch_size: int, hidden: int, svg: Path | None, as_json: bool,
          fanouts: str | None = None) -> None:
    from dgl_heta.planning.cost import predict, to_json

    work = Workload(batch_size, hidden, fanouts=_fanouts(fanouts, made.hops))
    costs = predict(made, work)
    if svg:
        from dgl_heta.report.plan_picture import save_svg

        save_svg(made, costs, svg)
    if as_json:
        print(json.dumps({**made.to_json(), "prediction": to_json(made, work)}))
        return
    from dgl_heta.report.plan_terminal import terminal

    terminal(made, costs, out)
    if svg:
        out.print(f"Picture: {escape(str(svg))}", highlight=False, soft_wrap=True)


@app.command(epilog="Example: dgl-heta partition debian --out data/debian --parts 2")
def partition(
    graph: Input,
    directory: Annotated[Path, typer.Option("--out", help="Directory to write.")],
    target: Target = None, hops: Hops = None, parts: Parts = 2, metapaths: Metapaths = None,
    method: Method = "meta", seed: Seed = 0, replication: Replication = None,
    memory_mb: MemoryMb = None, overwrite: Overwrite = False,
    dry_run: Annotated[bool, typer.Option(
        "--dry-run", help="Check what can be known before the edges are read and show the plan, "
        "write nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a graph's relation store and a plan over it (or DistDGL's parts).

    From an existing store only the plan is written, which refers to the store.
    """
    import time

    started = time.perf_counter()
    if Path(graph).exists() and Path(graph).resolve().is_relative_to(directory.resolve()):
        raise InputError(f"'{graph}' lies in {directory}, which would be overwritten; choose "
                         "another directory for the partition")
    opened = open_input(graph, plugins())
    content = opened.store or opened.source
    if content is None:
        raise InputError(f"'{graph}' is a schema without edges; partition a graph, or use "
                         "`dgl-heta plan`")
    backend = plugins().get("partition backend", method)
    request = _request(opened, target, hops, parts, metapaths, seed, replication, memory_mb)
    if dry_run:
        if opened.source:
            from dgl_heta.store.writer import check_source

            check_source(opened.source)
        made = backend.plan(opened.schema, request)
        if directory.exists() and not overwrite:
            raise InputError(f"{directory} exists; choose another directory or ask to overwrite "
                             "it (--overwrite)")
        _show(made, 1024, 64, None, as_json)
        return
    with _bar(not as_json) as advance:
        done = backend.partition(content, request, directory, overwrite=overwrite,
                                 progress=advance)
    config = done.part_config
    from dgl_heta.system.memory import peak_rss_mb

    result: dict[str, Any] = {
        "part_config": str(config), "method": method, "parts": parts,
        "seconds": time.perf_counter() - started, "peak_rss_mb": peak_rss_mb(),
        "bytes": sum(f.stat().st_size for f in directory.rglob("*") if f.is_file())}
    if as_json:
        print(json.dumps(result))
        return
    from dgl_heta.report.text import human_bytes

    out.print(f"{escape(str(config))}: {parts} partition{'s' * (parts != 1)} by {method}, "
              f"{human_bytes(result['bytes'])} written in {result['seconds']:.1f} s, peak memory "
              f"{result['peak_rss_mb']:.0f} MB", highlight=False, soft_wrap=True)


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


@app.command(epilog="Example: dgl-heta predict runs/debian-… --out predictions.npy")
def predict(
    run_dir: Annotated[Path, typer.Argument(help="Directory of a finished run.")],
    output: Annotated[Path, typer.Option("--out", help="File to write, .npy or .parquet: a row "
                                         "per node of the type.")],
    ntype: Annotated[str | None, typer.Option("--type", help="Node type. Default: the task's.")] =
    None,
    what: Annotated[str, typer.Option(help="predictions (classes, labels, numbers), scores (the "
                                      "model's outputs) or embeddings (the last hidden states; of "
                                      "any type with incoming relations).")] = "predictions",
    parts: Annotated[int | None, typer.Option(help="Number of workers. Default: the run's.")] =
    None,
    model: Annotated[str | None, typer.Option(
        help="module:attribute, for a run that was trained with one.")] = None,
    store: Annotated[Path | None, typer.Option(help="The relation store, if it has moved.")] = None,
    chunk: Annotated[int, typer.Option(help="Nodes to compute at a time.")] = 8192,
    overwrite: Overwrite = False, as_json: AsJson = False,
) -> None:
    """Predict for all nodes of a type, layer by layer with all neighbours, out of core."""
    from dgl_heta.prediction.command import PredictRequest, predict_command

    result = predict_command(
        PredictRequest(run_dir, output, ntype, what, parts, model, store, chunk, overwrite,
                       quiet=as_json), plugins(), err)
    if as_json:
        print(json.dumps(result), flush=True)
        return
    out.print(f"{escape(result['out'])}: {what} of {result['rows']:,} nodes of type "
              f"{escape(result['ntype'])}, {result['width']} wide, in {result['seconds']:.1f} s by "
              f"{result['workers']} workers", highlight=False, soft_wrap=True)


@app.command(epilog="Example: dgl-heta profile data/debian --svg saved.svg")
def profile(
    graph: Input, config: Config = None, overrides: Set = None,
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
    from dgl_heta.training.profiling import ProfileRequest, profile_command, show

    result = profile_command(ProfileRequest(graph, config, overrides or [], output, svg, as_json),
                             plugins(), err)
    if as_json:
        print(json.dumps(result), flush=True)
    else:
        show(result, out)


@app.command(
    epilog="Example: dgl-heta run -c heta.toml partition_graph.py --part_method meta",
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
def run(
    script: Annotated[Path, typer.Argument(help="Python script.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its arguments.")] = None,
    config: Config = None, overrides: Set = None,
) -> None:
    """Run a DistDGL script, unchanged, with the selected partition method, wrapper and so on.

    Without settings that select something, and with partitions of DGL's own, it runs as by
    python.
    """
    from dgl_heta.distdgl.activate import run_script

    run_script(script, arguments or [], config, overrides or [])


@app.command(epilog="Example: dgl-heta inspect data/debian")
def inspect(
    directory: Annotated[Path, typer.Argument(help="Relation store or partition.")],
    verify: Annotated[bool, typer.Option(help="Compare the checksums of all files.")] = True,
    as_json: AsJson = False,
) -> None:
    """Show what a store or partition holds, and check that it is whole."""
    from dgl_heta.partition.directory import is_partition, open_partition
    from dgl_heta.store import Store

    made: Plan | None = None
    if is_partition(directory):
        store, made = open_partition(directory)
    elif Store.is_store(directory):
        store = Store(directory)
    else:
        raise InputError(f"{directory} is neither a relation store nor a partition; write one "
                         "with `dgl-heta partition`")
    manifest = store.manifest
    if verify:
        with _bar(not as_json) as advance:
            store.verify(progress=advance)
    if as_json:
        data = manifest.to_json()
        data["verified"] = verify
        data["plan"] = made.to_json() if made else None
        print(json.dumps(data))
        return
    show_store(manifest, out)
    out.print("all checksums agree" if verify else "checksums were not compared (--no-verify)")
    if made:
        from dgl_heta.planning.cost import predict
        from dgl_heta.report.plan_terminal import terminal

        out.print()
        terminal(made, predict(made, Workload()), out)


@app.command("plugins", epilog="Example: dgl-heta plugins --json")
def list_plugins(as_json: AsJson = False) -> None:
    """List all providers: kind, name, source and version.

    Select one by its name in a setting or option (--method, train.kernel, …).
    """
    providers = plugins().all()
    if as_json:
        print(json.dumps([{"kind": p.kind, "name": p.name, "source": p.source,
                           "version": p.version} for p in providers]))
        return
    made = table("kind", "name", "source", "version")
    for p in providers:
        made.add_row(p.kind, escape(p.name), escape(p.source), escape(p.version))
    out.print(made)


@app.command(epilog="Example: dgl-heta datasets")
def datasets(as_json: AsJson = False) -> None:
    """List the data sets that can be named instead of a file."""
    found = list(plugins().providers("dataset").values())
    if as_json:
        print(json.dumps([{"name": p.name, "description": p.value.description,
                           "options": p.value.options, "source": p.source} for p in found]))
        return
    made = table("name", "description", "options", "source")
    for p in found:
        options = ",".join(f"{k}={v:g}" for k, v in p.value.options.items())
        made.add_row(escape(p.name), escape(p.value.description), escape(options),
                     escape(p.source))
    out.print(made)
    out.print("\nOptions go after the name: dgl-heta plan synthetic-mag:scale=0.1,seed=1",
              highlight=False)


@app.command("settings", epilog="Example: dgl-heta settings -c heta.toml --set train.lr=0.003")
def list_settings(config: Config = None, overrides: Set = None, as_json: AsJson = False) -> None:
    """List all settings with their values, as a file, the environment and --set give them."""
    from dgl_heta.settings import keys, load_settings

    values = load_settings(config, overrides or []).model_dump()
    if as_json:
        print(json.dumps(values))
        return
    made = table("setting", "value", "meaning")
    for name, field in keys().items():
        section, key = name.split(".")
        made.add_row(name, escape(json.dumps(values[section][key])),
                     escape(field.description or ""))
    out.print(made)


app.command(epilog=EXAMPLE, context_settings={"allow_interspersed_args": False})(launch)


def _version(show: bool) -> None:
    if show:
        print(f"dgl-heta {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(context: typer.Context, version: Annotated[bool, typer.Option(
        "--version", callback=_version, is_eager=True, help="Show the version.")] = False) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _request(opened: GraphInput, target: list[str] | None, hops: int | None, parts: int,
             metapaths: Path | None, seed: int, replication: str | None = None,
             memory_mb: float | None = None, work: Workload | None = None) -> PartitionRequest:
    from dgl_heta.planning.metatree import load_metapaths

    if replication not in (None, "full", "none"):
        raise InputError(f"--replication is '{replication}'; it must be full or none")
    if memory_mb is not None and not 0 < memory_mb < float("inf"):
        raise InputError(f"--memory-mb is {memory_mb}; it must be a number above 0")
    paths = load_metapaths(metapaths, opened.schema) if metapaths else []
    return PartitionRequest(
        parts, _targets(opened, target), 2 if hops is None and not paths else hops, paths, seed,
        replication=replication, workload=work or Workload(),
        memory_limit=None if memory_mb is None else round(memory_mb * 1e6))


def _targets(opened: GraphInput, given: list[str] | None) -> tuple[str, ...]:
    if given:
        known = opened.schema.node_types  # a name may hold a comma itself
        return tuple(t for text in given for t in ([text] if text in known else text.split(",")))
    if opened.plan is not None:
        return opened.plan.targets
    return (opened.target,) if opened.target else ()


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
    for stream in (sys.stdout, sys.stderr):  # a picture in ASCII beats a lost exit status
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        status = app(prog_name="dgl-heta", standalone_mode=False) or 0
    except UsageError as error:
        command = error.ctx.command_path if error.ctx else "dgl-heta"
        status = _fail(2, f"{error.format_message().rstrip('.')}; see `{command} --help`")
    except HetaError as error:
        status = _fail(error.exit_status, str(error), error.details)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    except OSError as error:
        status = _fail(1, ": ".join(str(x) for x in (error.filename, error.strerror or error)
                                    if x))
    except MemoryError as error:
        status = _fail(1, f"not enough memory: {error}")
    except (KeyboardInterrupt, typer.Abort):
        status = _fail(130, "interrupted")
    _leave_process_group(status)
    sys.exit(status)


def _fail(status: int, message: str, details: str = "") -> int:
    from dgl_heta.report.text import printable

    if details:
        print(details, file=sys.stderr)
    line = printable(" ".join(message.splitlines()))
    err.print(f"error: {line}", style="red", markup=False, highlight=False, soft_wrap=True)
    return status


def _leave_process_group(status: int) -> None:
    """End a rank at once: its process group's threads can hang an ordinary exit.

    After an error DistDGL, too, would wait at exit for the others, without end.
    """
    torch, dgl = sys.modules.get("torch"), sys.modules.get("dgl.distributed.dist_context")
    if (dgl is not None and dgl.is_initialized()) or (
            torch is not None and torch.distributed.is_available()
            and torch.distributed.is_initialized()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
