"""Tables and figures of the three papers, regenerated: ours beside what the paper says.

    python scripts/bench/paper.py --list
    python scripts/bench/paper.py heta-table2 heta-fig9 --out results
    python scripts/bench/paper.py --all --quick --out results

Figures are named by paper and number: heta-… (PVLDB 18(9), 2025; heta-fig18 is of its technical
report), catgnn-…, hifuse-…. What each one runs, shows and is compared with stands in figures.py.
For each, DIR has NAME.json, NAME.md and a picture, NAME.svg; DIR/README.md lists all of them, and
DIR/measured has what each command measured. A figure that cannot be made here is listed with what
it needs; so is a part of one whose data set is not on disk, and the rest goes on. A measurement
that several figures share is made once, so a run that ended early goes on where it was; --again
measures anew. All figures take a night and more on two cores, and tens of GB of disk; each says its
minutes. What was published last is such a DIR, too: docs/measurements/paper.

The papers measured on other machines, at other scales: compare ratios, not seconds. With each
result stand commit, machine, load, what else ran, and how far repeats are apart (goal: 10 %), as
they were when it was measured.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shlex
import statistics
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from common import (
    CLI,
    ROOT,
    apart,
    elsewhere,
    grouped,
    machine,
    markdown,
    parser,
    progress,
    run_child,
    spread,
    timed,
    work_dir,
)
from figures import BY_NAME, FIGURES
from paper_pictures import draw
from paper_sources import GPU_SCRIPT, Call, Figure, Rows, of_gpu, printed

from dgl_heta.system.atomic_files import write_atomic

BENCH = Path(__file__).resolve().parent
NOT_YET = "it was not measured yet"
SPREAD = 0.1  # of repeats of one setting, at most
WIDTH = 110  # of lines of a page but for tables
INDEX = """# The papers' tables and figures, one by one

```console
$ python scripts/bench/paper.py --list                       # names, and what cannot be made here
$ python scripts/bench/paper.py heta-table2 heta-fig9 --out results
$ python scripts/bench/paper.py --all --kept --out DIR       # pages of DIR/measured alone
```

Each table and figure of Heta (PVLDB 18(9), 2025, and its technical report), CATGNN and HiFuse by
its number, as `paper.py` last measured it: ours beside the paper's numbers, median, least and
largest of the repeats. The papers measured on other machines, at other scales: compare ratios, not
seconds. `heta-delegated` is the default (`exact`), `heta` is `replica`, `heta-exact` the default
with `partition.shared=rows`; the rest: `compare.py --help`. Where `compare.py` is given no scale,
synthetic graphs have those of distdgl.md's table. `measured` has a JSON file for each command: what
it measured, its commit, the machine, and what else ran. Those with a `note` were made again from
the pages of a commit: they have rounded numbers, and of repeats the least, the median and the
largest, taken over all commands that had run the same setting by then."""


class Runner:
    """Makes measurements, each once, and keeps them in a directory."""

    def __init__(self, args: argparse.Namespace, temp: Path) -> None:
        self._args, self._temp = args, temp
        self._again: set[Path] = set()  # measured anew in this run

    def command(self, call: Call) -> list[str]:
        """The words of a command, as a user would write it after `python`."""
        words = [call.program, *shlex.split(call.options),
                 *shlex.split(call.quick if self._args.quick else call.full)]
        return words + ["--graphlearn", "PYTHON"] * ("graphlearn" in words)

    def shown(self, call: Call) -> str:
        """The same as a command line; nothing where no program runs."""
        if call.made:
            return ""
        text = shlex.join(self.command(call))
        if call.program.endswith(".py"):
            quick = self._args.quick and not call.table
            return f"python scripts/bench/{text}{' --quick' * quick}"
        if call.program == GPU_SCRIPT:
            return f"./{text}"
        return text if call.program == "dgl-heta" else f"python -m {text}"

    def calls(self, figure: Figure) -> list[Call]:
        return [call for call in figure.calls if not (self._args.quick and call.full_only)]

    def measured(self, call: Call) -> dict[str, Any]:
        """What a command measured (`rows`), its seconds, and what the machine was and did; of what
        is `made` without one, the rows.

        Raises
        ------
        SystemExit
            It failed; the message says why.
        """
        if call.made:
            return {"made": True, "rows": call.read(call.made())}
        text = self.shown(call)
        key = hashlib.sha256(f"{text} {self._args.quick}".encode()).hexdigest()[:16]
        file = self._args.out / "measured" / f"{key}.json"
        found = json.loads(file.read_text()) if file.exists() else {}
        known = "data" in found
        if self._args.kept and not known:
            sys.exit(found.get("failed", NOT_YET))
        anew = not known or (self._args.again and file not in self._again)
        if anew and "--graphlearn" in text and not self._args.graphlearn:
            sys.exit("GraphLearn is not here")
        if anew and call.program == GPU_SCRIPT and not self._args.gpu:
            sys.exit("error: no results of a GPU are here (--gpu DIR)")
        if anew:
            found = self._made(call, text)
            if not (known and "failed" in found):
                file.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(file, json.dumps(found) + "\n")
                self._again.add(file)
            if "failed" in found:
                sys.exit(found["failed"])
        else:
            at = found["machine"]["versions"]["commit"]
            progress(f"{text}: measured before, at commit {at} (--again measures anew)")
        read = printed if call.table else call.read
        return {**found, "made": False,
                "rows": [{**r, **dict(call.labels)} for r in read(found.pop("data"))]}

    def _made(self, call: Call, text: str) -> dict[str, Any]:
        """A measurement; of one that failed, why (`failed`): it is made anew the next time."""
        before, others = machine()["load"], elsewhere()
        try:
            if call.program == GPU_SCRIPT:
                return {"command": text, **of_gpu(self._args.gpu)}
            seconds, data = timed(lambda: self._run(self.command(call), call))
        except SystemExit as error:
            if not isinstance(error.code, str):  # of a signal
                raise
            return {"command": text, "failed": error.code}
        return {"command": text, "seconds": seconds, "load_before": before,
                "cores_busy_elsewhere": others(), "machine": machine(), "data": data}

    def _run(self, words: Sequence[str], call: Call) -> Any:
        program, *rest = (self._args.graphlearn if word == "PYTHON" else word for word in words)
        what = f"{program} {' '.join(rest)}"
        if program == "dgl-heta":
            return run_child([*CLI, *rest, "--json"], what).result
        file = self._temp / "result.json"
        file.unlink(missing_ok=True)  # of the command before
        quick = ["--quick"] * self._args.quick
        if program.endswith(".py"):
            script = [sys.executable, str(BENCH / program), *rest, *quick, "--json", str(file)]
            if not call.table:
                run_child(script, what, json_wanted=False)
                data = json.loads(file.read_text())
                # What stands beside the data anyway; and runs that rows are made of, whose seconds
                # of each step are as long as all of the rest.
                left_out = {"arguments", "machine", *({"runs"} if "rows" in data else ())}
                return {name: value for name, value in data.items() if name not in left_out}
            return run_child(script[:-2 - len(quick)], what, json_wanted=False).text
        return run_child([sys.executable, "-m", program, *rest], what, json_wanted=False).text


def each_once(figure: Figure, rows: Rows) -> Rows:
    """Without the rows that several files have of one run, as those of pages do (INDEX)."""
    kept: dict[str, dict[str, Any]] = {}
    for row in rows:
        key = json.dumps([[row.get(k) for k in figure.by], row.get("seconds", row)])
        kept[key] = {**kept.get(key, {}), **row}
    return list(kept.values())


def gathered(figure: Figure, rows: Rows) -> Rows:
    """A row for each setting: its labels, and for each column our numbers and the paper's."""
    taken = [row for row in rows if all(str(row.get(k)) in of for k, of in figure.only)]
    made = []
    for key, ours in grouped(each_once(figure, taken), figure.by, figure.columns).items():
        if not any(ours.values()):
            continue  # rows of another kind
        labels = dict(zip(figure.by, key))
        said = figure.paper.get(tuple(labels[k] for k in figure.paper_by or figure.by), {})
        made.append({"labels": labels, "ours": ours, "paper": said})
    seen = {tuple(r["labels"][k] for k in figure.paper_by or figure.by) for r in made}
    return made + [
        {"labels": dict(zip(figure.paper_by or figure.by, key)), "ours": {}, "paper": said}
        for key, said in figure.paper.items() if key not in seen]


def compared_table(figure: Figure, rows: Rows) -> str:
    """Labels, then for each column ours and, where the paper has numbers, the paper's."""
    compared = {c.name for c in figure.columns if any(c.name in r["paper"] for r in rows)}
    header, cells = list(figure.by), []
    for column in figure.columns:
        header += [column.name] + ["paper"] * (column.name in compared)
    for row in rows:
        line = [row["labels"].get(k, "") for k in figure.by]
        none = "–" if any(row["ours"].values()) else "not measured"
        for column in figure.columns:
            line.append(spread(row["ours"].get(column.name, []), column.digits) or none)
            if column.name in compared:
                said = row["paper"].get(column.name, "")
                line.append(f"{said:,.10g}" if isinstance(said, float | int) else said)
        cells.append(line)
    return markdown(header, cells)


def make(figure: Figure, runner: Runner, args: argparse.Namespace) -> dict[str, Any]:
    """All of a figure that can be made here; its files are written."""
    missing = list(figure.missing)
    rows: Rows = []
    measured: list[dict[str, Any]] = []
    for call in runner.calls(figure):
        try:
            found = runner.measured(call)
            rows += found.pop("rows")
            measured.append(found)
        except SystemExit as error:
            if not isinstance(error.code, str):  # of a signal
                raise
            why = str(error).strip().splitlines() or ["it failed"]
            told = next((line for line in reversed(why) if "rror:" in line), why[-1])
            missing.append(f"`{runner.shown(call)}`: {told[:300]}"
                           + (f". To get it: {call.get}" if call.get else ""))
    missing += [f"{row['name']}: {row['missing']}" for row in rows if row.get("missing")]
    shown = gathered(figure, rows)
    curves = [c for row in rows for c in (figure.curve(row) if figure.curve else ())]
    first = [row["ours"].get(figure.columns[0].name, []) for row in shown] if figure.columns else []
    spreads = [apart(x) for x in first if len(x) > 1 and statistics.median(x)]
    result = {
        "figure": figure.name, "title": figure.title, "quick": args.quick,
        "commands": [text for text in map(runner.shown, runner.calls(figure)) if text],
        "measured": measured, "repeats": max(map(len, first), default=0),
        "spread": max(spreads, default=None), "rows": shown, "curves": curves, "missing": missing}
    args.out.mkdir(parents=True, exist_ok=True)
    picture = draw(figure, shown, curves, args.out / f"{figure.name}.svg")
    text = report(figure, result, picture)
    write_atomic(args.out / f"{figure.name}.json", json.dumps(result) + "\n")
    write_atomic(args.out / f"{figure.name}.md", text + "\n")
    print(text, flush=True)
    return result


def report(figure: Figure, result: dict[str, Any], picture: str | None = None) -> str:
    """What is written of a figure, on a page of its own."""
    parts = [f"# {figure.name}: {figure.title}" + " (quick: not a result)" * result["quick"]]
    if result["commands"]:
        shown = (" \\\n    ".join(filled(f"$ {c}", WIDTH - 6)) for c in result["commands"])
        parts.append("\n".join(["```console", *shown, "```"]))
    if any(row["ours"] or row["paper"] for row in result["rows"]):
        parts.append(compared_table(figure, result["rows"]))
    parts += [f"The paper: {figure.says}"] * bool(figure.says) + [figure.note] * bool(figure.note)
    parts += [f"Missing: {what}" for what in result["missing"]] + [picture] * bool(picture)
    measured = [m for m in result["measured"] if not m["made"]]
    parts += dict.fromkeys(m["note"] for m in measured if "note" in m)
    if measured:
        far = result["spread"]
        machines = dict.fromkeys("{cpu}, {cores} cores".format(**m["machine"]) for m in measured)
        loads = [x for m in measured for x in (m["load_before"][0], m["machine"]["load"][0])]
        minutes = sum(m.get("seconds", math.nan) for m in measured) / 60
        parts.append(
            f"{' and '.join(machines)}, commit {', '.join(commits(result))}, load "
            f"{min(loads):g} to {max(loads):g}{elsewhere_at_most(measured)}; "
            + ("" if math.isnan(minutes) else f"{minutes:.0f} minutes; ")
            + f"{result['repeats']} repeats"
            + ("" if far is None else
               f", at most {far:.0%} apart{' (over 10 %)' * (far > SPREAD)}") + ".")
    whole = ("#", "|", "!", "```")
    return "\n\n".join(part if part.startswith(whole) else "\n".join(filled(part))
                       for part in parts)


def filled(text: str, width: int = WIDTH) -> list[str]:
    """The lines of a text."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def elsewhere_at_most(measured: Rows) -> str:
    """How busy other programs kept cores, where that was looked at."""
    seen = [m["cores_busy_elsewhere"]["all"] for m in measured if "cores_busy_elsewhere" in m]
    return f", at most {max(seen):g} cores busy elsewhere" if seen else ""


def results_in(directory: Path) -> Rows:
    """Those of all figures that a directory has."""
    files = (directory / f"{figure.name}.json" for figure in FIGURES)
    return [json.loads(file.read_text()) for file in files if file.exists()]


def commits(result: dict[str, Any]) -> list[str]:
    """Those at which a figure's parts were measured."""
    return list(dict.fromkeys(commit for m in result["measured"] if not m["made"]
                              for commit in m["machine"]["versions"]["commit"].split(", ")))


def run_of(result: dict[str, Any]) -> str:
    """How much of a figure was run."""
    if not result["measured"]:
        return "-"
    left = any(NOT_YET in what for what in result["missing"])
    return "quick" if result["quick"] else "in part" if left else "full"


def index(results: Iterable[dict[str, Any]]) -> str:
    """A table of figures: whether and where they were measured, and how much of them is missing."""
    rows = [[f"[{r['figure']}]({r['figure']}.md)", r["title"],
             ", ".join(commits(r)) or "-", run_of(r), str(r["repeats"]),
             "-" if r["spread"] is None else f"{r['spread']:.0%}", str(len(r["missing"]) or "-")]
            for r in results]
    return markdown(["figure", "what", "commit", "run", "repeats", "apart", "missing"], rows)


def chosen_figures(args: argparse.Namespace, options: argparse.ArgumentParser) -> list[Figure]:
    if args.all:
        return list(FIGURES)
    unknown = [name for name in args.figures if name not in BY_NAME]
    if unknown or not args.figures:
        options.error(f"there is no figure '{' '.join(unknown)}'; --list names them" if unknown else
                      "no figure is named; --list names them, and --all are all")
    return [BY_NAME[name] for name in args.figures]


def main() -> None:
    options = parser(__doc__, "scripts/bench/paper.py heta-fig9 --out results")
    options.add_argument("figures", nargs="*", metavar="FIGURE")
    options.add_argument("--all", action="store_true", help="every one")
    options.add_argument("--list", action="store_true", help="names, titles and what is missing")
    options.add_argument("--dry-run", action="store_true", help="say what would be run")
    options.add_argument("--out", type=Path, metavar="DIR", default=Path("paper-results"),
                         help="where results go (default: paper-results)")
    either = options.add_mutually_exclusive_group()
    either.add_argument("--again", action="store_true", help="measure what DIR/measured has, too")
    either.add_argument("--kept", action="store_true", help="measure nothing: show what "
                        "DIR/measured has, and list the rest as missing")
    options.add_argument("--graphlearn", metavar="PYTHON", help="of an environment with GraphLearn")
    options.add_argument("--gpu", type=Path, metavar="DIR", help="results of scripts/gpu.sh, from "
                         "a machine with a GPU (docs/gpu.md)")
    args = options.parse_args()
    args.out = args.out.resolve()
    args.json, args.gpu = (file and file.resolve() for file in (args.json, args.gpu))
    os.chdir(ROOT)  # `git:.` is this repository
    if args.list:
        print(markdown(["figure", "what", "missing"], [
            [f.name, f.title, "; ".join(f.missing) or "-"] for f in FIGURES]))
        return
    figures, results = chosen_figures(args, options), []
    with work_dir(args) as temp:
        runner = Runner(args, temp)
        for at, figure in enumerate(figures, 1):
            if args.dry_run:
                print(f"{figure.name}: {figure.title}", *(
                    f"  {text}" for text in map(runner.shown, runner.calls(figure)) if text),
                    sep="\n")
                continue
            seconds, result = timed(lambda one=figure: make(one, runner, args))
            progress(f"{figure.name}: {seconds:.0f} s, {at} of {len(figures)} figures")
            results.append({**result, "seconds": seconds})
            write_atomic(args.out / "README.md", f"{INDEX}\n\n{index(results_in(args.out))}\n")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
