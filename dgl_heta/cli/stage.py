"""`dgl-heta stage`: for each machine a directory with what its partitions read."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from dgl_heta.cli.options import AsJson, Overwrite
from dgl_heta.report.console import out, print_json, progress, table

app = typer.Typer()
_MOST_ROWS = 12


@app.command(epilog="Example: dgl-heta stage data/mag --to /nvme/mag --part 0. Or, for all "
             "machines: dgl-heta stage data/mag --hosts hosts.txt --to /nvme/mag --dry-run")
def stage(
    partition: Annotated[str, typer.Argument(
        help="Partition, as `dgl-heta partition` writes it, or a copy of it in object storage by "
        "its URL, such as s3://bucket/mag.")],
    to: Annotated[Path, typer.Option("--to", help="Directory to write, on each machine.")],
    part: Annotated[list[int] | None, typer.Option(
        "--part", metavar="NUMBER", help="Partition that this machine runs; repeat it for "
        "several. Default: each into a directory of its own, part-0, part-1 …")] = None,
    also: Annotated[list[str] | None, typer.Option(
        "--also", metavar="NAME", help="Relation (src:etype:dst) or node type that a training "
        "reads beside its partition's, such as one whose edges it predicts.")] = None,
    dry_run: Annotated[bool, typer.Option(
        "--dry-run", help="Show the bytes per machine, write nothing.")] = False,
    overwrite: Overwrite = False, as_json: AsJson = False,
) -> None:
    """Copy what a machine's partitions read into a directory that opens with nothing else.

    Staging that was interrupted goes on where it ended; what is there already is not copied again.
    All files are compared with the checksums of the partition before the directory appears.
    """
    from dgl_heta.partition.staging import Staging, opened_partition

    result: list[dict[str, Any]] = []
    with opened_partition(partition) as opened:
        parts = [part] if part else [[p] for p in range(opened.plan.num_parts)]
        stagings = [(Staging.of(opened, group, also or ()),
                     to if part else to / f"part-{group[0]}") for group in parts]
        for staging, directory in stagings:
            started, copied = time.perf_counter(), False
            if not dry_run:
                with progress(not as_json) as advance:
                    copied = staging.write(directory, overwrite=overwrite, progress=advance)
            result.append({"parts": list(staging.staged.parts), "directory": str(directory),
                           "bytes": staging.bytes, "by_name": staging.by_name(), "copied": copied,
                           "seconds": time.perf_counter() - started})
        whole = opened.store.manifest.bytes
    if as_json:
        print_json({"partition": partition, "dry_run": dry_run, "stagings": result})
    else:
        _show(whole, result, dry_run)


def _show(whole: int, stagings: list[dict[str, Any]], dry_run: bool) -> None:
    from dgl_heta.report.text import human_bytes

    rows = table("partition", "bytes", "of the store", "directory", "", right=["bytes"])
    for each in stagings:
        state = ("" if dry_run else f"copied in {each['seconds']:.1f} s" if each["copied"]
                 else "there already")
        rows.add_row(", ".join(map(str, each["parts"])), human_bytes(each["bytes"]),
                     f"{each['bytes'] / max(whole, 1):.0%}", escape(each["directory"]), state)
    out.print(rows)
    heaviest = max(stagings, key=lambda each: each["bytes"])
    largest = sorted(heaviest["by_name"].items(), key=lambda item: -item[1])[:_MOST_ROWS]
    out.print(f"Largest in partition {', '.join(map(str, heaviest['parts']))}: " + ", ".join(
        f"{escape(name)} {human_bytes(size)}" for name, size in largest), highlight=False)
    if dry_run:
        out.print("Nothing was written (--dry-run).", highlight=False)
