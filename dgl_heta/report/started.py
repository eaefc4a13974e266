"""When, where and by which command a run was started: `started.json` in its directory."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dgl_heta.errors import InputError, shortened
from dgl_heta.graph.schema import Schema
from dgl_heta.system.checksums import read_signed, write_signed

FILE = "started.json"
_OWN_DIRECTORY = ("--run-dir", "--seeds")  # options that say where a run is
_KEPT = 100  # starts of a run that was resumed again and again


def note_start(run_dir: Path, name: str, schema: Schema, resume: bool) -> None:
    """Write when, where and how a run starts; one that goes on keeps what was written before.

    Parameters
    ----------
    name : of the graph.

    Raises
    ------
    HetaError
        It cannot be written.
    """
    file = run_dir / FILE
    before: list[Any] = []
    if resume and file.is_file():
        try:
            starts = read_signed(file, "").get("starts")
            before = starts if isinstance(starts, list) else []
        except InputError:  # a run goes on without what is only shown
            before = []
    write_signed(file, {
        "starts": [*before, {"date": time.strftime("%Y-%m-%d %H:%M:%S %z"), "host": _host(),
                             "command": _command()}][-_KEPT:],
        "graph": {"name": name, "nodes": sum(schema.node_counts.values()),
                  "edges": sum(schema.edge_counts.values()),
                  "node_types": len(schema.node_counts), "relations": len(schema.relations)}})


def resuming(run_dir: Path, epochs: int) -> str:
    """The command that goes on with a run until it has so many epochs, as far as it is known by
    which one it was started."""
    more = ["--run-dir", str(run_dir), "--resume", "--set", f"train.epochs={epochs}"]
    try:
        starts = _list(read_signed(run_dir / FILE, "").get("starts"))
        words = shlex.split(str(starts[-1]["command"]))
    except (InputError, LookupError, TypeError, ValueError):
        words = []
    if words[:2] != ["dgl-heta", "train"] or "…" in words:
        return f"the same call or command, going on in {run_dir} with train.epochs={epochs}"
    kept: list[str] = []
    for word, before in zip(words, ["", *words]):
        name, equals, _ = word.partition("=")
        if before in _OWN_DIRECTORY or (name in _OWN_DIRECTORY and not equals):
            continue
        if name not in _OWN_DIRECTORY and word != "--resume":
            kept.append(word)
    if any(word.partition("=")[0] == "--seeds" for word in words):
        more += ["--set", f"train.seed={run_dir.name.removeprefix('seed-')}"]
    return shlex.join([*kept, *more])


def started_rows(started: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the notes of :func:`note_start` as rows (name, text); what is missing has no row."""
    starts = [s for s in _list(started.get("starts")) if isinstance(s, Mapping)]
    rows = []
    if starts:
        last = len(starts) > 1
        rows = [("started", str(starts[0].get("date", ""))),
                (f"resumed {len(starts) - 1} times, at last" if len(starts) > 2 else "resumed",
                 str(starts[-1].get("date", "")) if last else ""),
                ("command", str(starts[-1].get("command", ""))),
                ("host", str(starts[-1].get("host", "")))]
    graph = started.get("graph")
    if isinstance(graph, Mapping):
        counts = [f"{graph[key]:,} {word}" for key, word in (
            ("nodes", "nodes"), ("node_types", "types"), ("edges", "edges"),
            ("relations", "relations")) if isinstance(graph.get(key), int)]
        if len(counts) == 4:
            rows.append(("graph", f"{graph.get('name', '')}: {counts[0]} of {counts[1]}, "
                                  f"{counts[2]} by {counts[3]}"))
    return [(name, text) for name, text in rows if text]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _host() -> str:
    return (f"{platform.node()}, {platform.system()} {platform.machine()}, "
            f"{len(os.sched_getaffinity(0))} cores")


def _command() -> str:
    """The command line, as a person could type it again."""
    program = Path(sys.argv[0] or "python")
    own = program.name == "dgl-heta" or program.parts[-2:] == ("dgl_heta", "__main__.py")
    words = ["dgl-heta"] if own else [sys.argv[0] or "python"]
    return shortened(shlex.join([*words, *sys.argv[1:]]), 2000)
