"""Reading run directories."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dgl_heta.errors import InputError
from dgl_heta.report.metrics_log import log_lines
from dgl_heta.report.started import FILE
from dgl_heta.system.atomic_files import plainly
from dgl_heta.system.checksums import read_signed


@dataclass
class Run:
    """The contents of a run directory; `damaged` names lines and files that are unreadable."""

    epochs: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    started: dict[str, Any] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)


def read_run(run_dir: Path) -> Run:
    """Read `metrics.jsonl`, `summary.json` and `started.json`, any of which may be missing.

    Lines and files whose checksum does not agree count as damaged, and nothing of them is read. An
    epoch that was run again after a restart counts once, as its last run left it.

    Raises
    ------
    InputError
        `run_dir` is not a directory.
    """
    if not run_dir.is_dir():
        raise InputError(f"run directory {run_dir} does not exist or is not a directory")
    run = Run()
    epochs: dict[int, dict[str, Any]] = {}
    log = run_dir / "metrics.jsonl"
    for line in log_lines(_read(run, log)):
        event = line.content
        if event is None:
            run.damaged.append(f"metrics.jsonl line {line.number}")
        elif event.get("event") == "epoch" and isinstance(event.get("epoch"), int):
            epochs[event["epoch"]] = event
        elif event.get("event") == "summary":
            run.summary = event
    run.epochs = [epochs[epoch] for epoch in sorted(epochs)]
    run.summary = _signed(run, run_dir / "summary.json") or run.summary
    run.started = _signed(run, run_dir / FILE)
    return run


def is_run(directory: Path) -> bool:
    """Return whether a directory is that of a run of `dgl-heta train`, finished or not."""
    return any((directory / name).is_file() for name in ("metrics.jsonl", "summary.json", FILE))


def seeds_in(directory: Path) -> list[Path]:
    """The directories of the runs that `dgl-heta train --seeds` left in one, in order of seeds."""
    if is_run(directory):
        return []
    by_seed = {int(run_dir.name[5:]): run_dir for run_dir in directory.glob("seed-*")
             if re.fullmatch(r"seed-\d{1,18}", run_dir.name, re.ASCII) and is_run(run_dir)}
    return [by_seed[seed] for seed in sorted(by_seed)]


def _signed(run: Run, file: Path) -> dict[str, Any]:
    if _read(run, file):
        try:
            return read_signed(file, "")
        except InputError:
            run.damaged.append(file.name)
    return {}


def _read(run: Run, path: Path) -> bytes:
    try:
        with open(path, "rb", opener=plainly) as file:
            return file.read()
    except FileNotFoundError:
        return b""
    except OSError:
        run.damaged.append(path.name)
        return b""
