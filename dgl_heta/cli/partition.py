"""`dgl-heta partition`: a graph as a store with a plan over it, or as DistDGL's parts."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from dgl_heta.cli.options import (
    AsJson,
    Input,
    Overwrite,
    PlanOptions,
    ReadingOptions,
    SettingsOptions,
    grouped,
)
from dgl_heta.errors import InputError
from dgl_heta.report.console import out, print_json, progress, table

if TYPE_CHECKING:
    from dgl_heta.graph.source import GraphSource
    from dgl_heta.partition.request import PartitionResult
    from dgl_heta.store.builders import Builders

app = typer.Typer()
_MOST_COLUMNS = 8


@app.command(epilog="Example: dgl-heta partition debian --out data/debian --parts 2")
@grouped
def partition(
    graph: Input,
    to: Annotated[str, typer.Option(
        "--out", metavar="DIR", help="Directory to write, or a URL of object storage.")],
    options: PlanOptions, source: SettingsOptions, files: ReadingOptions,
    staged: Annotated[Path | None, typer.Option(
        "--stage", metavar="DIR", help="Write also a directory for each machine, DIR/part-0 …, as "
        "`dgl-heta stage` does.")] = None,
    overwrite: Overwrite = False,
    dry_run: Annotated[bool, typer.Option(
        "--dry-run", help="Check what can be known before the edges are read and show the plan, "
        "write nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a graph's relation store and a plan over it (or DistDGL's parts).

    From an existing store only the plan is written, which refers to the store. What the options
    leave open is as the settings say, if they do, else as a partition that is given was made.
    Under torchrun, and under srun with several tasks, all processes write it together, each its
    share.
    """
    from dgl_heta.cli.plan_command import show
    from dgl_heta.cli.requests import (
        cutter_of,
        filled,
        of_one_class,
        partition_request,
        reading,
        say_of_graph,
        without_labels,
    )
    from dgl_heta.hooks.manager import plugins
    from dgl_heta.launch.scheduler import adopt
    from dgl_heta.partition.backends.metatree_backend import MetatreeBackend, check_divided
    from dgl_heta.partition.graph_input import open_input
    from dgl_heta.partition.own_plan import own_plan, settings_beside
    from dgl_heta.partition.staging import stage_all
    from dgl_heta.planning.shared_rows import share_rows
    from dgl_heta.planning.workload import Workload, wire_itemsize
    from dgl_heta.system.memory import peak_rss_mb

    started = time.perf_counter()
    adopt()
    directory = _destination(graph, to)
    builders = _builders(source)
    settings = settings_beside(builders.each(lambda: own_plan(graph)), source.config,
                               source.overrides)
    registry, options = plugins().configured(settings), filled(options, settings)
    method = options.method or "meta"
    backend = registry.get("partition backend", method)
    _check_method(method, isinstance(backend, MetatreeBackend), staged, directory)
    builders.agree({"--out": to, "--stage": str(staged), "--overwrite": str(overwrite),
                    "--dry-run": str(dry_run), "choice of options": f"{options} {files}"})
    opened = builders.each(lambda: open_input(graph, registry, settings.run.verify,
                                              reading(files)))
    content = opened.store or opened.source
    if content is None:
        raise InputError(f"'{graph}' is a schema without edges; partition a graph, or use "
                         "`dgl-heta plan`")
    quiet = as_json or builders.rank > 0
    request = partition_request(
        backend, opened, options, settings, cutter=cutter_of(options, registry),
        hubs=settings.partition.hubs,
        shared=settings.partition.shared, shared_origin=settings.origin("partition.shared"),
        workload=Workload(
            model=settings.model.name, hidden=settings.model.hidden, in_script=True,
            wire_itemsize=wire_itemsize(settings.train)))
    notes = [*without_labels(opened, request.target, settings.task),
             *of_one_class(opened, request.target, settings.task)]
    request = replace(request, builders=builders)
    if dry_run:
        if builders.rank == 0:
            _check(opened.source, directory, overwrite)
            plan, _ = share_rows(backend.plan(opened.schema, request), request.workload,
                                 request.shared, request.shared_origin, request.memory_limit)
            check_divided(plan, request)
            say_of_graph(opened, request.target, bool(request.metapaths), notes)
            show(plan, request.workload, as_json=as_json, beside=opened.beside())
        return
    if opened.store is not None and settings.run.verify and not isinstance(
            backend, MetatreeBackend):
        opened.store.verify()  # which may read all of it
    with progress(not quiet) as advance:
        written = backend.partition(content, request, directory, overwrite=overwrite,
                                    progress=advance)
    if builders.rank == 0:
        opened.write_seeds()
        say_of_graph(opened, request.target, bool(request.metapaths), notes)
    if staged is not None:
        with progress(not quiet) as advance:
            builders.each(lambda: stage_all(directory, staged, overwrite=overwrite,
                                            progress=advance, builders=builders))
    peaks = builders.gather(peak_rss_mb())
    if builders.rank == 0:
        _say(written, as_json, {
            "part_config": str(written.part_config), "method": method, "parts": written.parts,
            "seconds": time.perf_counter() - started, "peak_rss_mb": max(peaks),
            "workers": builders.size,
            "bytes": sum(f.stat().st_size for f in directory.rglob("*") if f.is_file()),
            "statistics": dict(written.statistics)})


def _say(written: PartitionResult, as_json: bool, result: dict[str, Any]) -> None:
    from dgl_heta.report.text import human_bytes

    if as_json:
        print_json(result)
        return
    peak = f"peak memory {result['peak_rss_mb']:.0f} MB"
    if result["workers"] > 1:
        peak = f"{result['workers']} workers, {peak} of one"
    out.print(f"{escape(str(written.part_config))}: {written.parts} "
              f"partition{'s' * (written.parts != 1)} by {result['method']}, "
              f"{human_bytes(result['bytes'])} written in {result['seconds']:.1f} s, {peak}",
              highlight=False, soft_wrap=True)
    _show_statistics(written.statistics)


def _destination(graph: str, to: str) -> Path:
    """The directory or the URL that is to be written."""
    from dgl_heta.system.remote_files import file_path, is_remote

    directory = file_path(to)
    # A path may have an option after it, as in PARTS/mag.json:ids=parts, and colons of its own.
    paths = [graph, *(graph[:colon.start()] for colon in re.finditer(":", graph))]
    if not is_remote(to) and any(Path(path).exists() and Path(path).resolve().is_relative_to(
            directory.resolve()) for path in paths if path):
        raise InputError(f"'{graph}' lies in {directory}, which would be overwritten; choose "
                         "another directory for the partition")
    return directory


def _check_method(method: str, ours: bool, staged: Path | None, directory: Path) -> None:
    """Refuse what only partitions of whole relations (`ours`) can be asked for, and a URL to stage
    to."""
    from dgl_heta.launch.scheduler import check_alone
    from dgl_heta.system.remote_files import RemotePath, check_on_disk

    if staged is not None:
        check_on_disk(staged, "--stage")
    if ours:
        return
    if staged is not None:
        raise InputError(f"--stage has no effect on --method {method}, whose parts are DGL's, one "
                         "directory each already; leave it out")
    if isinstance(directory, RemotePath):
        raise InputError(f"--method {method} writes to a disk; give a directory, and copy it")
    check_alone(f"--method {method}")


def _builders(source: SettingsOptions) -> Builders:
    """This process, or it and the others that a scheduler has started."""
    from dgl_heta.launch.scheduler import workers
    from dgl_heta.settings import load_settings
    from dgl_heta.store.builders import ALONE

    if workers() == 1:
        return ALONE
    from dgl_heta.launch.worker_builders import WorkerBuilders

    return WorkerBuilders.of_scheduler(
        load_settings(source.config, source.overrides).run.timeout_s)


def _show_statistics(statistics: Mapping[str, Any]) -> None:
    """A row for each figure; one per partition, where it is a list."""
    if not statistics:
        return
    columns = max((len(v) for v in statistics.values() if isinstance(v, list)), default=1)
    names = [str(part) for part in range(min(columns, _MOST_COLUMNS))] if columns > 1 else [""]
    rows = table("partition", *names, *["…"] * (columns > _MOST_COLUMNS), right=names)
    for name, value in statistics.items():
        cells = value if isinstance(value, list) else [value]
        shown = [f"{cell:,.3f}" if isinstance(cell, float) else f"{cell:,}"
                 if isinstance(cell, int) else escape(str(cell)) for cell in cells]
        rows.add_row(escape(name.replace("_", " ")), *shown[:_MOST_COLUMNS])
    out.print(rows)


def _check(source: GraphSource | None, directory: Path, overwrite: bool) -> None:
    """Find what can be known to be wrong before edges are read."""
    if source is not None:
        from dgl_heta.store.source_checks import check_source

        check_source(source, encodes=True)
    if directory.exists() and not overwrite:
        raise InputError(f"{directory} exists; choose another directory or ask to overwrite it "
                         "(--overwrite)")
