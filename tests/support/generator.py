"""Programs that nobody wrote, run by plain DGL and under RAF: none may differ without an error.

    python -m tests.support.generator --draws 300 --seed 1 --machines 2 --trainers 2 [--prove]
    python -m tests.support.generator --draws 300 --seed 1 --set partition.shared=delegate
    python -m tests.support.generator --draws 300 --seed 1 --only 24 --trace

Programs are drawn (:mod:`tests.support.drawn`) and run by :mod:`tests.support.programs`, many in
one start of the trainers. Each has a verdict:

- exact: the same within 1e-9, in fp64;
- refused: an error of dgl-heta's that names a thing, on all trainers; refused by some: on the
  others a collective failed, which ends a script as well;
- caught: the same by the proof inside runs;
- no case: plain DGL refuses it, gives NaN, trainers drift apart, or rounding grows as much by plain
  DGL, from first values of parameters that differ by 1e-14;
- silent: it differs, and nothing was said;
- crash: another error, or no end.

The last two are failures. The smallest program that fails alike is looked for, and printed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dgl_heta.settings import Settings
from tests.support.drawn.description import Program, from_json, to_json
from tests.support.drawn.shrinking import simpler
from tests.support.drawn.strategies import draw, singles
from tests.support.drawn.text import text_of
from tests.support.programs import LIMIT, Found, compare, run_some, size

AT_ONCE = 40
"""Programs in one start of the trainers."""
SLOW = 15.0
"""Seconds after which an error has not come promptly: the group's time-out is longer."""
PATIENCE_S = 75.0
"""For one program; more than the time-outs of its process groups."""
NUDGE = 1e-14
FAILURES = ("silent", "crash")
_OURS = ("HetaError", "InputError", "PeerLostError", "ProofError")


@dataclass(frozen=True)
class Verdict:
    """What became of a program."""

    name: str
    why: str = ""

    @property
    def failed(self) -> bool:
        return self.name in FAILURES


def _raised(found: Found) -> str:
    return (found.error or "").partition(":")[0]


def judge(plain: Sequence[Found], ours: Sequence[Found] | None) -> Verdict:
    """The verdict by what the trainers found; `ours` is None where they did not end."""
    refused = [f.error for f in plain if f.error]
    if refused:
        return Verdict("no case", refused[0])
    if any(not np.isfinite(array).all() for f in plain for array in f.arrays.values()):
        return Verdict("no case", "plain DGL gives NaN")
    if _drifted(plain):
        return Verdict("no case", "by plain DGL, too, trainers have different parameters")
    if ours is None:
        return Verdict("crash", "a trainer ended, or none ended in time")
    errors = [f for f in ours if f.error]
    if errors:
        return _of_errors(ours, errors)
    texts = [f"trainer {rank}: {text}" for rank, pair in enumerate(zip(ours, plain))
             for text in compare(*pair, LIMIT)]
    return Verdict("silent", "; ".join(texts)) if texts else Verdict("exact")


def _drifted(plain: Sequence[Found]) -> bool:
    """Whether parameters are not the same on all trainers: gradients were not averaged."""
    return any(name.startswith("parameter ") and name in found.arrays and not np.allclose(
        array, found.arrays[name], rtol=1e-9, atol=1e-9)
        for found in plain[1:] for name, array in plain[0].arrays.items())


def _of_errors(ours: Sequence[Found], errors: Sequence[Found]) -> Verdict:
    named = [f for f in errors if _raised(f) in _OURS and _raised(f) != "PeerLostError"]
    strange = [f for f in errors if _raised(f) not in _OURS]
    said = (strange or named or errors)[0].error or ""
    if strange or not named:
        # Others may fail as a consequence of one that was refused by name.
        if named and all("onnection" in (f.error or "") for f in strange):
            return Verdict("refused by some", named[0].error or "")
        return Verdict("crash", said)
    if "proof" in said.lower() or "proved" in said.lower():
        return Verdict("caught", said)
    if len(named) < len(ours) or max(f.seconds for f in errors) > SLOW:
        return Verdict("refused by some", said)
    return Verdict("refused", said)


def survey(programs: Sequence[Program], machines: int, trainers: int, directory: Path,
           settings: Sequence[str] = (), sabotage: Sequence[str] = (), trace: bool = False,
           rare: bool = False) -> list[Verdict]:
    """The verdicts of programs, which run by plain DGL first; those that it refuses run no more.

    With `rare` on the graph in which small batches reach not every node type.
    """
    names = [f"tests.support.drawn.loop:run {json.dumps(to_json(p))}" for p in programs]
    plain = _run_all(names, machines, trainers, directory, raf=False, trace=trace, rare=rare)
    assert all(plain), "a program by plain DGL has no end"
    verdicts = {n: judge(found, None) for n, found in enumerate(plain) if found is not None}
    cases = [n for n, verdict in verdicts.items() if verdict.name != "no case"]
    ours = _run_all([names[n] for n in cases], machines, trainers, directory, raf=True,
                    settings=settings, sabotage=sabotage, trace=trace, rare=rare)
    of = dict(zip(cases, ours))
    for n, found in of.items():
        verdicts[n] = judge(plain[n] or (), found)
    silent = [n for n in cases if verdicts[n].name == "silent"]
    nudged = _run_all([names[n] for n in silent], machines, trainers, directory, raf=False,
                      trace=trace, nudge=NUDGE, rare=rare)
    for n, other in zip(silent, nudged):
        if rounding_grows(plain[n] or (), other or (), of[n] or ()):
            verdicts[n] = Verdict("no case", "by plain DGL, too, rounding grows so much")
    return [verdicts[n] for n in range(len(programs))]


def rounding_grows(plain: Sequence[Found], nudged: Sequence[Found], ours: Sequence[Found]) -> bool:
    """Whether all that differs does so about as much by plain DGL itself, where it was nudged."""
    for want, other, got in zip(plain, nudged, ours):
        if other.error or not want.arrays.keys() == got.arrays.keys() == other.arrays.keys():
            return False
        for key in want.arrays:
            wrong = 0.0 if key.endswith("#ids") else size(key, got, want)
            if wrong is None or (wrong > LIMIT and wrong > 10 * (size(key, other, want) or 0.0)):
                return False
    return len(plain) == len(nudged)


def _run_all(names: Sequence[str], machines: int, trainers: int, directory: Path, *, raf: bool,
             settings: Sequence[str] = (), sabotage: Sequence[str] = (), trace: bool = False,
             nudge: float = 0.0, rare: bool = False) -> list[list[Found] | None]:
    """What was found in each; None for one that ended a trainer, or did not end."""
    found: list[list[Found] | None] = []
    while len(found) < len(names):
        part = names[len(found):][:AT_ONCE]
        some, text = run_some(part, machines, trainers, directory, raf=raf, settings=settings,
                              sabotage=sabotage, patience=PATIENCE_S, timeout_s=25, trace=trace,
                              nudge=nudge, rare=rare)
        if trace:
            print(text)
        found += some
        if len(some) < len(part):
            found.append(None)
            print(text[-2000:], file=sys.stderr)
    return found


def smallest(program: Program, verdict: Verdict, machines: int, trainers: int, directory: Path,
             settings: Sequence[str] = (), rounds: int = 8) -> tuple[Program, Verdict]:
    """A smaller program that fails in the same way: each round runs all that are one step simpler,
    and goes on with the simplest of those that fail."""
    for _ in range(rounds):
        some = simpler(program)[:AT_ONCE]
        verdicts = survey(some, machines, trainers, directory, settings) if some else []
        failing = [pair for pair in zip(some, verdicts) if pair[1].name == verdict.name
                   and kind(pair[1]) == kind(verdict)]
        if not failing:
            break
        program, verdict = min(failing, key=lambda pair: len(text_of(pair[0])))
    return program, verdict


def kind(verdict: Verdict) -> str:
    """Failures that look alike: their message without what changes from program to program."""
    if verdict.name == "silent":
        return "silent"
    return re.sub(r"\d+|'[^']*'|\([^)]*\)", "…", verdict.why)[:60]


def proof(on: bool) -> list[str]:
    """The setting of the proof inside runs."""
    if not hasattr(Settings().run, "prove"):
        return []
    return [f"run.prove={'1' if on else 'off'}"]


def table(programs: Sequence[Program], verdicts: Sequence[Verdict]) -> str:
    """How many there are of each verdict, and the messages."""
    counts = Counter(v.name for v in verdicts)
    lines = [f"{count:5} {name}" for name, count in counts.most_common()]
    lines.append("")
    said = Counter((v.name, kind(v)) for v in verdicts if v.name != "exact")
    for (name, text), count in said.most_common():
        lines.append(f"{count:5} {name}: {text}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--machines", type=int, default=2)
    parser.add_argument("--trainers", type=int, default=1)
    parser.add_argument("--prove", action="store_true", help="with the proof inside runs")
    parser.add_argument("--set", action="append", default=[], help="a setting of dgl-heta")
    parser.add_argument("--shrink", type=int, default=3, help="of so many kinds of failures")
    parser.add_argument("--singles", action="store_true",
                        help="every part alone instead of drawn programs")
    parser.add_argument("--only", help="the draw of this number alone, from 0 on; or the programs "
                        "in this file of JSON lines")
    parser.add_argument("--out", type=Path, help="verdicts as JSON lines")
    parser.add_argument("--trace", action="store_true", help="tracebacks of the trainers")
    chosen = parser.parse_args()
    settings = [*chosen.set, *proof(chosen.prove)]
    if chosen.only and not chosen.only.isdecimal():
        programs = [from_json(json.loads(line)["program"])
                    for line in Path(chosen.only).read_text().splitlines()]
    elif chosen.singles:
        programs = singles()
    else:
        programs = draw(chosen.draws, chosen.seed)
        if chosen.only:
            programs = programs[int(chosen.only):][:1]
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        while len(verdicts) < len(programs):
            began, part = time.monotonic(), programs[len(verdicts):][:AT_ONCE]
            verdicts += survey(part, chosen.machines, chosen.trainers, directory, settings,
                               trace=chosen.trace)
            counts = Counter(v.name for v in verdicts)
            print(f"{len(verdicts)} of {len(programs)}: {dict(counts)} "
                  f"({time.monotonic() - began:.0f} s)", flush=True)
        if chosen.out:
            chosen.out.write_text("".join(json.dumps(
                {"verdict": v.name, "why": v.why, "program": to_json(p)}) + "\n"
                for p, v in zip(programs, verdicts)))
        print(table(programs, verdicts), flush=True)
        failures = {(v.name, kind(v) if v.name == "crash" else str(n)): (p, v)
                    for n, (p, v) in enumerate(zip(programs, verdicts)) if v.failed}
        for program, verdict in list(failures.values())[:chosen.shrink]:
            program, verdict = smallest(program, verdict, chosen.machines, chosen.trainers,
                                        directory, settings)
            print(f"\n=== {verdict.name}: {verdict.why[:600]}\n{text_of(program)}\n"
                  f"{json.dumps(to_json(program))}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
