"""Build the snapshot of the Debian package archive that the dataset `debian` reads.

It keeps numbers, section names and tag names; no other name and no address.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from dgl_heta_datasets.debian.building import build
from dgl_heta_datasets.debian.records import parse_records
from dgl_heta_datasets.debian.snapshot import SNAPSHOT, load, write

from dgl_heta.errors import HetaError, InputError
from dgl_heta.graph.source import MASKS

# What is installed would replace records of the archive by local ones, so it is not read.
DUMP = ["apt-cache", "-o", "Dir::State::status=/dev/null", "dumpavail"]
EXAMPLE = """\
example:
  apt-get update
  python scripts/build_debian_snapshot.py --release "Debian 12, main, amd64"
  python scripts/build_debian_snapshot.py --input records.txt --output debian.npz
"""


def dump_lines() -> Iterator[str]:
    """The lines of `apt-cache dumpavail`."""
    try:
        process = subprocess.Popen(DUMP, stdout=subprocess.PIPE, text=True, encoding="utf-8",
                                   errors="replace")
    except FileNotFoundError:
        raise InputError("apt-cache is not on this machine; run this on Debian, or give "
                         "its output with --input FILE") from None
    with process:
        assert process.stdout is not None
        yield from process.stdout
    if process.returncode:
        raise HetaError(f"'{' '.join(DUMP)}' ended with status {process.returncode}")


def file_lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from file
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None


def counted(records: Iterable[dict[str, str]], count: list[int]) -> Iterator[dict[str, str]]:
    """Pass records on, report progress and leave their number in `count[0]`."""
    for record in records:
        count[0] += 1
        if count[0] % 10_000 == 0:
            print(f"read {count[0]:,} records", file=sys.stderr)
        yield record
    print(f"read {count[0]:,} records, building", file=sys.stderr)


def summary(path: Path, size: int) -> str:
    source = load(path)
    assert source.task is not None
    package = source.node_arrays["package"]
    classes = source.info["classes"]
    lines = [f"{path}: {size:,} bytes", "nodes"]
    lines += [f"  {ntype:<14} {count:>9,}" for ntype, count in source.node_counts.items()]
    lines.append("edges (each relation has as many in reverse)")
    lines += [f"  {relation.etype:<14} {edges.num_edges:>9,}  to {relation.dst}"
              for relation, edges in source.edges.items() if not relation.etype.startswith("rev-")]
    lines.append(f"features of a package: {package['feat'].shape[1]}")
    lines.append(f"split: {', '.join(f'{n} {int(package[n].sum()):,}' for n in MASKS)}, "
                 f"without a label {int((package['label'] < 0).sum()):,}")
    lines.append(f"classes: {len(classes)}")
    counts = np.bincount(package["label"][package["label"] >= 0], minlength=len(classes))
    lines += [f"  {name:<14} {count:>9,}"
              for count, name in sorted(zip(counts.tolist(), classes, strict=True), reverse=True)]
    return "\n".join(lines)


def run(arguments: argparse.Namespace) -> None:
    lines = file_lines(arguments.input) if arguments.input else dump_lines()
    count = [0]
    records = counted(parse_records(lines), count)
    try:
        arrays = build(records, date=arguments.date, release=arguments.release)
    except InputError as error:
        if count[0]:
            raise
        hint = f"{arguments.input} has none" if arguments.input else "run 'apt-get update' first"
        raise InputError(f"{error}; {hint}") from None
    size = write(arguments.output, arrays)
    print(summary(arguments.output, size))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLE,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, metavar="FILE",
                        help="read the output of 'apt-cache dumpavail' from FILE, not from apt")
    parser.add_argument("--output", type=Path, metavar="FILE", default=SNAPSHOT,
                        help="snapshot to write (default: the one in the package)")
    parser.add_argument("--release", default="Debian", metavar="TEXT",
                        help="which archive this is, kept in the snapshot (default: %(default)s)")
    parser.add_argument("--date", default=datetime.date.today().isoformat(), metavar="DAY",
                        help="day of the records, kept in the snapshot (default: today)")
    try:
        run(parser.parse_args(argv))
    except HetaError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
