"""Models and plugins that do what they should not: print, leave, end processes, fork.

`train` on two workers with a model of the user's, which does one bad thing while it is imported,
built, or called for the first or a later time, in one worker or in all.

Bad is: a training that fails though the model only prints or forks, or whose result is another than
with a model that does nothing of the kind; one that ends well though the model ended a worker; a
last line that is no error or names another worker; a traceback of the command's own; a control
character on the terminal; no end within 30 s after the time of a training alone; a process that is
left.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common import CLI, Bad, Ended, Running, Trial, call, parser, run, undisturbed, work_dir

GRAPH = "synthetic-mag:scale=0.002"
TRAIN = ["--set", "model.hidden=8", "--set", "train.epochs=2", "--set", "train.batch_size=256",
         "--set", "train.threads=1", "--set", "run.prove=off", "--set", "run.timeout_s=60"]
SPARE_S = 30.0
EVENTS = [{"event": "epoch"}, {"event": "step"}, {"event": "error"}, {"event": "summary"},
          {"event": "error", "message": "of nobody"}, {"event": "exit", "status": 0},
          {"event": "exit", "status": -9}, {"event": "signal", "number": 2}, {"event": "done"},
          {"event": 1}, {"event": None}]


@dataclass
class Reference:
    """The training with a model that does nothing bad: its command, seconds, and result."""

    command: list[str]
    seconds: float
    digest: str


HARMLESS: dict[str, Callable[[random.Random], str]] = {
    "prints an event": lambda draw: f"print({json.dumps(draw.choice(EVENTS))!r}, flush=True)",
    "prints an event to its errors": lambda draw: (
        f"print({json.dumps(draw.choice(EVENTS))!r}, file=sys.stderr, flush=True)"),
    "prints what a terminal obeys": lambda draw: r"print('\x1b[2J\x1b]0;title\x07', flush=True)",
    "prints an error that is none": lambda draw: "print('error: all is well', flush=True)",
    "prints without end of line": lambda draw: "print('x' * 100000, end='', flush=True)",
    "closes its output": lambda draw: "os.close(1)",
    "starts a child that stays": lambda draw: (
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3)'])"),
    "forks a child that ends": lambda draw: "os.fork() or os._exit(7)",
}
ENDS = {  # what the error must say where it is called; of workers that all do it, whichever
    "leaves by os._exit(0)": ("os._exit(0)", "ended with exit status 0 before its work was done"),
    "leaves by os._exit(5)": ("os._exit(5)", "failed with exit status 5"),
    "calls sys.exit()": ("sys.exit()", r"a program that it runs called sys\.exit\(None\)"),
    "calls sys.exit(0)": ("sys.exit(0)", r"a program that it runs called sys\.exit\(0\)"),
    "raises": ("raise ValueError('of the model')", "failed with exit status 1"),
    "aborts": ("os.abort()", r"was killed by signal 6 \(SIGABRT\)"),
    "kills itself": ("os.kill(os.getpid(), 9)", r"was killed by signal 9 \(SIGKILL\)"),
}
CAUGHT = ("calls sys.exit()", "calls sys.exit(0)", "raises")  # also in the command's own process
MODEL = """
import os, subprocess, sys
import torch
from torch import nn
from dgl_heta import HGNNLayer, slot

calls = 0

def bad(when):
    global calls
    calls += when == "called"
    if os.environ.get("RANK") in {ranks} and when == "{when}" and calls in (0, {call}):
        {bad}

bad("imported")

class Mean(HGNNLayer):
    def __init__(self, spec):
        bad("built")
        super().__init__(reduce="sum", width=spec.hidden, zero_without_edges=True)
        self.weights = nn.ParameterDict({{
            slot(r): nn.Parameter(torch.eye(spec.hidden)) for r in spec.schema.relations}})

    def aggregate(self, edges):
        bad("called")
        return edges.reduce("mean") @ self.weights[slot(edges.relation)]

    def update(self, ntype, aggregated, state):
        return torch.tanh(aggregated + state)
"""


def trial(how: str, bad: str, when: str, ranks: list[str | None], call: int, reference: Reference
          ) -> Callable[[Path, random.Random], str]:
    def do(place: Path, generator: random.Random) -> str:
        (place / "mine.py").write_text(MODEL.format(bad=bad, when=when, ranks=ranks, call=call))
        running = Running(reference.command, place)
        ended = running.ended(2 * reference.seconds + SPARE_S)
        running.none_left(10.0)
        return _judged(ended, place, how, when, ranks, reference)

    return do


def _judged(ended: Ended, place: Path, how: str, when: str, ranks: list[str | None],
            reference: Reference) -> str:
    if obeyed := [c for c in ended.out + ended.err if c not in "\n\t" and not c.isprintable()]:
        raise Bad(f"says {obeyed[:5]!r}")
    if how in HARMLESS:
        ended.clean()
        if ended.status:
            raise Bad(f"status {ended.status}: {ended.last[:300]}")
        if digest(place) != reference.digest:
            raise Bad("another result than with a model that does nothing of the kind")
        return "the same result"
    if ended.status == 0:
        raise Bad("ended well")
    worker = "worker " + (ranks[0] if len(ranks) == 1 and ranks[0] else r"\d") + r"\b"
    wanted = f"{worker}.*{ENDS[how][1]}"
    if how in CAUGHT and when == "imported":
        wanted = r"model\.name 'mine:Mean' cannot be imported: (SystemExit|ValueError)"
    elif how in CAUGHT and None in ranks:
        wanted = r"code that this command runs.* called sys\.exit" if "exit" in how else ""
    if "error: " not in ended.err.splitlines()[-1] and wanted:
        raise Bad(f"the last line is no error: {ended.last[:300]}")
    if not re.search(wanted, ended.err.splitlines()[-1]):
        raise Bad(f"does not say what happened: {ended.last[:300]}")
    return "ended, named"


def digest(place: Path) -> str:
    return hashlib.sha256((place / "run/model.safetensors").read_bytes()).hexdigest()


def main() -> int:
    args = parser(__doc__, "models", 100).parse_args()
    with work_dir(args) as root:
        undisturbed(call([*CLI, "partition", GRAPH, "--parts", "2", "--out", "part"], root))
        command = [*CLI, "train", str(root / "part"), "--model", "mine:Mean", "--run-dir", "run",
                   *TRAIN]
        (root / "mine.py").write_text(MODEL.format(bad="pass", when="called", ranks=[], call=0))
        reference = Reference(command, undisturbed(call(command, root)).seconds, digest(root))

        def draw(generator: random.Random) -> Trial:
            how = generator.choice([*HARMLESS, *ENDS])
            bad = HARMLESS[how](generator) if how in HARMLESS else ENDS[how][0]
            when = generator.choice(["imported", "built", "called", "called"])
            where: list[list[str | None]] = [["0"], ["1"], ["0", "1"]]
            if when != "called" and how in CAUGHT:
                where.append([None])  # the command's own process has no rank
            return Trial(f"{how}, {when}", trial(how, bad, when, generator.choice(where),
                                                 generator.choice([1, 2, 7, 20]), reference))

        return run(args, root, draw)


if __name__ == "__main__":
    sys.exit(main())
