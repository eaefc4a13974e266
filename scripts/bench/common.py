"""What the benchmarks share: children and their memory, calls in turns, tables, the machine."""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))
import temporary  # noqa: E402

work_dir = functools.partial(temporary.work_dir, name="bench")
SYSTEMS_DIR = Path(__file__).resolve().parent / "systems"
CLI = [sys.executable, "-m", "dgl_heta"]
SAMPLE_S = 0.01, 0.25  # between two looks at a child's memory, at first and after half a minute:
# looking at a tree of processes a hundred times a second keeps a tenth of a core busy
TIMEOUT_S = 4 * 3600


@dataclass(frozen=True)
class Child:
    """What a child process took, and the JSON object that it printed last.

    Attributes
    ----------
    seconds : from before its start to after its end.
    peak_mb : VmHWM in MB (10^6 bytes), mapped files included: as the child read it at its end
        where it did (`peak_rss_mb` in its result), else as last seen from outside.
    text : what it printed.
    tree_mb, anon_mb : peaks of VmHWM and of RssAnon, memory that belongs to no file, as seen from
        outside: of the largest of the child and the processes below it.
    """

    seconds: float
    peak_mb: float
    anon_mb: float
    result: dict[str, Any]
    text: str
    tree_mb: float


def run_child(command: Sequence[str], what: str, timeout: float = TIMEOUT_S,
              json_wanted: bool = True) -> Child:
    """Run a command that prints a JSON object as its last line, if one is wanted of it.

    Settings of dgl-heta and of torchrun in the environment are not passed on. Files that were
    written before are flushed first, so that the child does not wait for them.

    Raises
    ------
    SystemExit
        The command failed or printed no such line; what it wrote last is shown.
    """
    progress(f"{what} …")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DGL_HETA_")
                   and k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
    environment.update(DGLBACKEND="pytorch", COLUMNS="120")
    os.sync()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                   env=environment)
        seen: dict[str, float] = {}
        over = threading.Event()
        watch = threading.Thread(target=_watch, args=(process.pid, seen, over), daemon=True)
        limit = threading.Timer(timeout, process.kill)
        limit.daemon = True
        try:
            watch.start()
            limit.start()
            process.wait()
            seconds = time.perf_counter() - started
        finally:
            limit.cancel()
            over.set()
            _stop(process)
        watch.join()
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
    if process.returncode:
        sys.exit(f"error: {what} ended with status {process.returncode}: {' '.join(command)}\n"
                 + "\n".join((texts[0] + texts[1]).splitlines()[-30:]))
    result = last_object(texts[0])
    if result is None and json_wanted:
        sys.exit(f"error: {what} printed no JSON object: {' '.join(command)}")
    progress(f"{what}: {seconds:.2f} s")
    result = result or {}
    return Child(seconds, result.get("peak_rss_mb", seen.get("VmHWM", 0.0)),
                 seen.get("RssAnon", 0.0), result, texts[0], seen.get("tree", 0.0))


def output_of(command: Sequence[str], timeout: float, log: Path | None = None) -> str:
    """What a command writes, errors included, into `log` while it runs if given.

    Raises
    ------
    SystemExit
        It failed; what it wrote last is shown.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DGL_HETA_")}
    with log.open("w+b") if log else tempfile.TemporaryFile() as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, timeout=timeout,
                              stdin=subprocess.DEVNULL, check=False, env=environment)
        file.seek(0)
        text = file.read().decode(errors="replace")
    if done.returncode:
        sys.exit(f"error: {' '.join(map(str, command))} ended with status {done.returncode}:\n"
                 + "\n".join(text.splitlines()[-40:]))
    return text


def last_object(text: str) -> dict[str, Any] | None:
    """The last line that is a JSON object."""
    for line in reversed(text.splitlines()):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            return value
    return None


def memory_mb(pid: int | str = "self") -> dict[str, float]:
    """VmHWM, VmRSS and RssAnon of a process in MB; empty where they cannot be read."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines)
    return {f[0][:-1]: int(f[1]) * 1024 / 1e6 for f in fields
            if f and f[0] in ("VmHWM:", "VmRSS:", "RssAnon:")}


def _watch(pid: int, seen: dict[str, float], over: threading.Event) -> None:
    at_first, later = SAMPLE_S
    started = time.monotonic()
    while not over.wait(min(at_first + (time.monotonic() - started) / 100, later)):
        for one in (pid, *_children(pid)):
            found = memory_mb(one)
            found["tree"] = found.get("VmHWM", 0.0)
            for name in ("VmHWM", "tree", "RssAnon") if one == pid else ("tree", "RssAnon"):
                seen[name] = max(seen.get(name, 0.0), found.get(name, 0.0))


def _children(pid: int) -> list[int]:
    """All processes below one."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            own = [int(word) for word in file.read_text().split()]
        except OSError:
            continue  # the thread has ended
        found += [*own, *(x for one in own for x in _children(one))]
    return found


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def elsewhere() -> Callable[[], dict[str, float]]:
    """A call that says how many cores others kept busy since now, in all and by command.

    In all is what the machine worked beside this process and its children that have ended; of
    commands those that run at both ends, 5 % of a core and more.
    """
    tick = os.sysconf("SC_CLK_TCK")

    def worked() -> tuple[float, dict[tuple[str, str], float]]:
        busy = Path("/proc/stat").read_text().split(None, 11)[1:9]
        whole = sum(int(n) for i, n in enumerate(busy) if i not in (3, 4)) / tick  # idle, iowait
        each = {}
        for file in Path("/proc").glob("[0-9]*/stat"):
            try:
                name, fields = file.read_text().split("(", 1)[1].rsplit(")", 1)
            except OSError:
                continue  # it has ended
            of = fields.split()
            each[file.parent.name, name] = (int(of[11]) + int(of[12])) / tick
        return whole, each

    started, (before, first), own = time.perf_counter(), worked(), sum(os.times()[:4])

    def since() -> dict[str, float]:
        wall, (after, last) = time.perf_counter() - started, worked()
        cores = {"all": max(after - before - (sum(os.times()[:4]) - own), 0.0) / wall}
        for (pid, name), seconds in last.items():
            if pid != str(os.getpid()) and (pid, name) in first:
                share = (seconds - first[pid, name]) / wall
                cores[name] = cores.get(name, 0.0) + share
        return {name: round(n, 2) for name, n in cores.items() if n >= 0.05 or name == "all"}

    return since


def opened(name: str) -> Any:
    """The graph that `dgl-heta partition` reads by this name, a :class:`dgl_heta.GraphSource`."""
    from dgl_heta import as_source
    from dgl_heta.hooks.manager import plugins
    from dgl_heta.partition.graph_input import open_input

    given = open_input(name, plugins())
    content = given.store or given.source
    if content is None:
        raise SystemExit(f"'{name}' is a schema without edges")
    return as_source(content)


def parser(doc: str | None, example: str) -> argparse.ArgumentParser:
    """An argument parser with the options that all benchmarks have."""
    options = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"Example: python {example}")
    options.add_argument("--quick", action="store_true",
                         help="a small run of under a minute, to see that everything works")
    options.add_argument("--json", type=Path, metavar="FILE", help="also write all figures here")
    options.add_argument("--work-dir", type=Path, metavar="DIR",
                         help="where the temporary directory goes (default: the system's)")
    return options


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """Hardware, versions and load: what the figures depend on."""
    from dgl_heta.training.summary import versions

    told: dict[str, str] = {}  # of the first core
    if (cores := Path("/proc/cpuinfo")).exists():
        for line in cores.read_text().splitlines():
            name, _, value = line.partition(":")
            told.setdefault(name.strip(), value.strip())
    model = told.get("model name") or platform.processor()
    if "cpu family" in told:  # one name can stand for processors of many years
        model += f" (family {told['cpu family']}, model {told['model']})"
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"cpu": model or platform.machine(), "cores": os.cpu_count(),
            "memory_gb": round(pages / 1e9, 1), "system": platform.platform(),
            "load": [round(x, 2) for x in os.getloadavg()],
            "versions": {**versions(), "commit": _commit()}}


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; columns whose cells begin with a digit or a sign go to the right."""
    right = [all(row[i][:1] in "0123456789+-−" for row in rows) for i in range(len(header))]
    lines = [list(header), ["---:" if r else "---" for r in right], *map(list, rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


@dataclass(frozen=True)
class Column:
    """Numbers of rows: a heading, and where they stand in a row (`a/b` is b in a).

    Attributes
    ----------
    unit : what they are multiplied by.
    digits : after the point.
    share : whether they are percent of all numbers beside them.
    per : a field that they are divided by.
    """

    name: str
    field: str
    unit: float = 1.0
    digits: int = 2
    share: bool = False
    per: str | None = None

    def of(self, row: dict[str, Any]) -> list[float]:
        """The numbers of a row, in the column's unit; none where it has none."""
        found: Any = row
        for name in self.field.split("/"):
            found = found.get(name) if isinstance(found, dict) else None
        if isinstance(found, str):  # of a table that was printed
            match = re.match(r"[+−-]?[\d,]*\.?\d+(e-?\d+)?", found)
            found = float(match[0].replace(",", "").replace("−", "-")) if match else None
        whole = 1.0
        if self.share:
            whole = sum(row.get(self.field.split("/")[0], {}).values()) / 100
        if self.per:
            whole = row[self.per]
        return [x * self.unit / whole for x in (found if isinstance(found, list) else [found])
                if isinstance(x, int | float) and whole]


def grouped(rows: Sequence[dict[str, Any]], by: Sequence[str], columns: Sequence[Column]
            ) -> dict[tuple[str, ...], dict[str, list[float]]]:
    """Numbers of all rows that have the same labels, by the columns' names."""
    groups: dict[tuple[str, ...], dict[str, list[float]]] = {}
    for row in rows:
        own = groups.setdefault(tuple(f"{row[k]:g}" if isinstance(row.get(k), float)
                                      else str(row.get(k, "")) for k in by),
                                {c.name: [] for c in columns})
        for column in columns:
            own[column.name] += column.of(row)
    return groups


def table(rows: Sequence[dict[str, Any]], by: Sequence[str], columns: Sequence[Column]) -> str:
    """Markdown: a row for each combination of labels, medians with the least and the largest.

    Labels that are the same in all rows, but for the last, and columns without a number are left
    out.
    """
    groups = grouped(rows, by, columns)
    labels = [i for i in range(len(by)) if i == len(by) - 1 or len({key[i] for key in groups}) > 1]
    there = [c for c in columns if any(of[c.name] for of in groups.values())]
    return markdown([*(by[i] for i in labels), *(c.name for c in there)], [
        [*(key[i] for i in labels), *(spread(of[c.name], c.digits) or "–" for c in there)]
        for key, of in groups.items()])


def apart(values: Sequence[float]) -> float:
    """How far values are from each other, in shares of their median."""
    return (max(values) - min(values)) / statistics.median(values)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median, with the least and the largest where there are several; nothing of none."""
    if not values:
        return ""
    middle, least, most = (f"{x:.1e}" if 0 < abs(x) < 1e-6 else f"{x:,.{digits}f}"
                           for x in (statistics.median(values), min(values), max(values)))
    return middle if len(values) == 1 else f"{middle} ({least}–{most})"


def finish(args: argparse.Namespace, title: str, parts: Sequence[str],
           data: dict[str, Any], before: dict[str, Any]) -> None:
    """Print the report as Markdown and write the figures where `--json` says."""
    after = machine()
    versions = ", ".join(f"{k} {v}" for k, v in after["versions"].items())
    print(f"## {title}\n")
    print("\n\n".join(parts))
    print(f"\n{after['cpu']}, {after['cores']} cores, {after['memory_gb']} GB, "
          f"{after['system']}; {versions}; load (1, 5, 15 min) {before['load']} before, "
          f"{after['load']} after." + (" QUICK RUN: not a result." if args.quick else ""))
    if args.json:
        arguments = {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()}
        text = json.dumps({"benchmark": title, "arguments": arguments,
                           "machine": {**after, "load_before": before["load"]}, **data}, indent=1)
        args.json.write_text(text + "\n", encoding="utf-8")


def in_turns(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each call, called in turns; a first round is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            taken[name].append(timed(call)[0] * 1e3)
    return {name: statistics.median(times[1:]) for name, times in taken.items()}


def against_first(title: str, medians: dict[str, float]) -> str:
    """A Markdown table of milliseconds and of their ratios to the first, which is ours."""
    ours = next(iter(medians.values()))
    return markdown([title, "ms", "÷ ours"], [
        [name, f"{ms:.2f}", f"{ms / ours:.1f}"] for name, ms in medians.items()])


def timed(body: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds and result of a call."""
    started = time.perf_counter()
    value = body()
    return time.perf_counter() - started, value
