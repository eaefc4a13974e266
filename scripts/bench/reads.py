"""Cold rows of a file: mapped with read-ahead, asked for beforehand, read directly.

    python scripts/bench/reads.py

Writes a file of rows of 4 KB, drops it from the page cache, and reads random rows, three ways in
turns. Prints thousand rows per second.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np
from common import finish, machine, markdown, parser, progress, spread, work_dir

WAYS = ("mapped", "asked for", "direct")


def main() -> None:
    options = parser(__doc__, "scripts/bench/reads.py")
    options.add_argument("--mb", type=int, default=1000)
    options.add_argument("--rows", type=int, nargs="+", default=[64, 512, 4096])
    options.add_argument("--rounds", type=int, default=5)
    args = options.parse_args()
    if args.quick:
        args.mb, args.rounds = 50, 2
    before = machine()
    with work_dir(args) as directory:
        rates = measure(directory / "rows.npy", args)
    rows = [[f"{size:,}", *(spread([r / 1e3 for r in rates[way, size]], 1) for way in WAYS)]
            for size in args.rows]
    finish(args, "Cold reads", [f"{args.mb} MB, thousand rows per second, median of {args.rounds} "
                                "(least–largest).\n\n" + markdown(["rows per read", *WAYS], rows)],
           {"rates": {f"{way} {size}": taken for (way, size), taken in rates.items()}}, before)


def measure(path: Path, args: argparse.Namespace) -> dict[tuple[str, int], list[float]]:
    """Rows per second of each way and size."""
    from dgl_heta.features.row_files import DirectRows, MappedRows

    count = args.mb * 10**6 // 4096
    np.save(path, np.random.default_rng(0).standard_normal((count, 1024), np.float32))
    with path.open("rb") as file:
        os.fsync(file.fileno())
    asked, mapped = (MappedRows(np.load(path, mmap_mode="r")) for _ in range(2))
    asked.expect_misses()
    sources: dict[str, MappedRows | DirectRows] = {
        "mapped": mapped, "asked for": asked, "direct": DirectRows(np.load(path, mmap_mode="r"))}
    generator = np.random.default_rng(1)
    for source in sources.values():
        source.read(np.arange(8))  # compiles
    rates: dict[tuple[str, int], list[float]] = {}
    for turn in range(args.rounds):
        for size in args.rows:
            for way in WAYS:
                mapped.evict()
                asked.evict()
                ids = generator.integers(0, count, size)
                start = time.perf_counter()
                sources[way].read(ids)
                rates.setdefault((way, size), []).append(size / (time.perf_counter() - start))
        progress(f"round {turn + 1}")
    return rates


if __name__ == "__main__":
    main()
