"""What a run directory holds."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dgl_heta.errors import InputError


@dataclass
class Run:
    """What a run directory holds; `damaged` counts unreadable lines and files."""

    epochs: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)


def read_run(run_dir: Path) -> Run:
    """Read `metrics.jsonl` and `summary.json`, either of which may be missing.

    An epoch that was run again after a restart counts once, as its last run left it.

    Raises
    ------
    InputError
        `run_dir` is not a directory.
    """
    if not run_dir.is_dir():
        raise InputError(f"run directory {run_dir} does not exist or is not a directory")
    run = Run()
    epochs: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(_read(run, run_dir / "metrics.jsonl").splitlines(), 1):
        event = _parse(line) if line.strip() else {}
        if event is None:
            run.damaged.append(f"metrics.jsonl line {number}")
        elif event.get("event") == "epoch" and isinstance(event.get("epoch"), int):
            epochs[event["epoch"]] = event
        elif event.get("event") == "summary":
            run.summary = event
    run.epochs = [epochs[epoch] for epoch in sorted(epochs)]
    text = _read(run, run_dir / "summary.json")
    if text:
        summary = _parse(text)
        if summary is None:
            run.damaged.append("summary.json")
        else:
            run.summary = summary
    return run


def _read(run: Run, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError):
        run.damaged.append(path.name)
        return ""


def _parse(text: str) -> dict[str, Any] | None:
    try:
        data = json.loads(text)
    except json.JSONDecodeError:
        return None
    return data if isinstance(data, dict) else None
