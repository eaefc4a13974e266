"""Processes of a command are killed at a random moment; then the user starts it again.

Commands: `partition`, `train` (two or three workers), `predict`, and `launch` of a DistDGL script
on two emulated hosts (needs DGL and the right to emulate hosts, else it is left out). Killed is the
command itself (SIGKILL, SIGTERM, SIGINT, SIGHUP), one of its processes, all of them at once, as
when memory runs out, or a worker is stopped for a while (SIGSTOP), as on a machine that swaps. Or
the run directory of a training becomes read-only.

Bad is: it does not end within 10 s (`launch`) or 30 s; a process is left; a traceback on the
terminal; a last line that is no error, where one of its processes was killed, or does not name the
file that cannot be written; an output that is there but not whole; a training that goes on and ends
with another model or another log than one without a break, to the last bit and the last line; a
temporary file that is there after the next start.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common import (
    CLI,
    ROOT,
    Bad,
    Ended,
    Running,
    Trial,
    call,
    parser,
    run,
    undisturbed,
    work_dir,
)

GRAPH = "synthetic-mag:scale=0.002"
TRAIN = ["--set", "model.hidden=16", "--set", "train.epochs=4", "--set", "train.batch_size=128",
         "--set", "train.threads=1", "--set", "model.dropout=0.2"]
WEIGHTS = {"partition": 3, "train": 4, "predict": 2, "launch": 1}
LIMITS_S = {"launch": 10.0}
OTHERS_S = 30.0
PAUSE_S = 2.0  # how long a worker is stopped
SCRIPT = ROOT / "scripts/campaign/systems/train.py"
READ_ONLY = "a directory that becomes read-only"
LEFT = (".partial-", ".retired-", ".scratch-", ".tmp-", "dgl-heta-")


@dataclass
class Reference:
    """What an undisturbed command makes, and how long it takes."""

    seconds: float
    digest: str


def command(kind: str, place: Path, workers: int, root: Path, again: bool = False) -> list[str]:
    """The command of a trial in its directory; `again` as the user starts it after a fault."""
    if kind == "partition":
        return [*CLI, "partition", GRAPH, "--parts", "2", "--out", "part",
                *(["--overwrite"] if again and (place / "part").exists() else [])]
    if kind == "train":
        return [*CLI, "train", str(root / f"part-{workers}"), "--run-dir", "run", *TRAIN,
                *(["--resume"] if again and (place / "run").is_dir() else [])]
    if kind == "predict":
        return [*CLI, "predict", str(root / "run-2"), "--out", "rows.npy",
                *(["--overwrite"] if again and (place / "rows.npy").exists() else [])]
    config = root / "part-2/synthetic-mag.json"
    return [*CLI, "launch", "--hosts", "2", "--part-config", str(config), "--set",
            "train.learnable=exact", "--", sys.executable, str(SCRIPT), "--graph-name",
            "synthetic-mag", "--ip-config", "{ip_config}", "--part-config", "{part_config}"]


def digest(kind: str, place: Path) -> str:
    """Of what must be the same to the last bit."""
    total = hashlib.sha256()
    if kind == "partition":
        files = sorted(f for f in (place / "part").rglob("*") if f.suffix in (".npy", ".json"))
        for file in files:
            data = file.read_bytes()
            if file.name == "manifest.json":  # says when it was made
                data = json.dumps([e["sha256"] for r in json.loads(data)["relations"]
                                   for e in (r["indptr"], r["indices"])]).encode()
            total.update(str(file.relative_to(place)).encode() + data)
    elif kind == "train":
        total.update((place / "run/model.safetensors").read_bytes())
        for line in map(json.loads, (place / "run/metrics.jsonl").read_text().splitlines()):
            total.update(json.dumps([line[k] for k in ("epoch", "loss", "train_acc", "val_acc")]
                                    if line["event"] == "epoch" else line["test_acc"]).encode())
    elif kind == "predict":
        total.update((place / "rows.npy").read_bytes())
    return total.hexdigest()


def whole(kind: str, place: Path, reference: Reference) -> str:
    """What is there after the fault: "whole" or "absent"; Bad if it is neither. Of a script, which
    writes what it likes, nothing is known."""
    if kind == "launch":
        return "ended"
    out = place / {"partition": "part", "predict": "rows.npy"}.get(kind, "run/model.safetensors")
    if not out.exists():
        return "absent"
    if kind == "partition" and call([*CLI, "inspect", "part"], place).status:
        raise Bad("a partition that is not whole was left")
    if kind != "train" and digest(kind, place) != reference.digest:
        raise Bad(f"{out.name} is there, but another one")
    return "whole"


def hit(running: Running, victim: str, number: int, generator: random.Random, place: Path
        ) -> tuple[float, list[int]]:
    """Do it; returns when, and to which processes."""
    now = time.monotonic()
    if victim == READ_ONLY:
        allow(place / "run", False)
        return now, []
    pids = [running.process.pid]
    if victim != "command":
        found = running.processes()
        pids = sorted(set(found) - {running.process.pid}) or pids
        if victim == "one":
            pids = [generator.choice(pids)]
        if victim == "all":
            pids = sorted(found)
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)
    if number == signal.SIGSTOP:
        time.sleep(PAUSE_S)
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)
    return now, pids


def allow(directory: Path, writing: bool) -> None:
    """Let nobody write to the directories of a run, or its owner."""
    for path in [directory, *directory.rglob("*")] if directory.exists() else ():
        if path.is_dir():
            path.chmod(0o755 if writing else 0o555)


def bound(words: list[str]) -> list[str]:
    """The command without root's right to write where nobody may."""
    return words if os.geteuid() else [
        "setpriv", "--bounding-set=-dac_override,-dac_read_search", *words]


def trial(kind: str, workers: int, victim: str, number: int, root: Path, reference: Reference
          ) -> Callable[[Path, random.Random], str]:
    def do(place: Path, generator: random.Random) -> str:
        temporary = place / "tmp"
        temporary.mkdir()
        limit = LIMITS_S.get(kind, OTHERS_S)
        words = command(kind, place, workers, root)
        running = Running(bound(words) if victim == READ_ONLY else words, place,
                          TMPDIR=str(temporary))
        moment = generator.uniform(0, reference.seconds)
        with contextlib.suppress(Exception):
            running.process.wait(moment)
        at, pids = hit(running, victim, number, generator, place)
        ended = running.ended(reference.seconds + limit)
        running.none_left(max(limit - (time.monotonic() - at), 1.0))
        ended.clean()
        allow(place / "run", True)
        wanted = {"one": "error: ", READ_ONLY: r"error: .*run/[\w./-]+: Permission denied"
                  }.get(victim)
        # A command that has no other process yet is hit itself, and may end without a word.
        if pids == [running.process.pid]:
            wanted = None
        if ended.status and wanted and not re.match(wanted, ended.last):
            raise Bad(f"the last line does not say what failed: {ended.last[:300]}")
        after = whole(kind, place, reference)
        if ended.status == 0:
            after = "done"
            if kind == "train" and digest(kind, place) != reference.digest:
                raise Bad("ended well, but with another model or log")
        if kind != "launch":
            if ended.status or kind == "train":
                _again(kind, place, workers, root, temporary)
            if digest(kind, place) != reference.digest:
                raise Bad("started again, it made something else")
        left = [str(path.relative_to(place)) for path in place.rglob("*")
                if any(mark in path.name for mark in LEFT)]
        if kind != "launch" and left:
            raise Bad(f"left after the next start: {', '.join(left)[:200]}")
        return after
    return do


def _again(kind: str, place: Path, workers: int, root: Path, temporary: Path) -> None:
    again: Ended = call(command(kind, place, workers, root, again=True), place,
                        TMPDIR=str(temporary))
    if again.status:
        raise Bad(f"could not be started again: {again.last[:300]}")


class References:
    """What undisturbed commands make; each is run when it is first asked for."""

    def __init__(self, root: Path) -> None:
        self._root, self._found = root, dict[str, Reference]()

    def of(self, kind: str, workers: int) -> Reference:
        name = f"{kind}-{workers}"
        if name not in self._found:
            self._input(kind, workers)
            place = self._root / name
            place.mkdir()
            ended = undisturbed(call(command(kind, place, workers, self._root), place))
            self._found[name] = Reference(ended.seconds, digest(kind, place))
        return self._found[name]

    def _input(self, kind: str, workers: int) -> None:
        part = self._root / f"part-{workers}"
        if kind == "predict" and not (self._root / "run-2").exists():
            self.of("train", 2)
            shutil.copytree(self._root / "train-2/run", self._root / "run-2")
        if kind in ("train", "launch") and not part.exists():
            undisturbed(call([*CLI, "partition", GRAPH, "--parts", str(workers), "--out",
                              part.name], self._root))


def main() -> int:
    args = parser(__doc__, "kill", 300).parse_args()
    kinds = [kind for kind in WEIGHTS if kind != "launch" or launches()]
    if "launch" not in kinds:
        print("launch is left out: hosts cannot be emulated here, or there is no DGL",
              file=sys.stderr)
    with work_dir(args) as root:
        references = References(root)

        def draw(generator: random.Random) -> Trial:
            kind = generator.choices(kinds, [WEIGHTS[k] for k in kinds])[0]
            workers = generator.choice([2, 3]) if kind == "train" else 2
            victim = generator.choice(["command", "command", "one", "all", *(
                [READ_ONLY] if kind == "train" and (os.geteuid() or shutil.which("setpriv"))
                else [])])
            numbers: list[signal.Signals] = [signal.SIGKILL]
            if victim == "command":
                numbers += [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
            if victim == "one":
                numbers += [signal.SIGTERM, signal.SIGSTOP]
            number = generator.choice(numbers)
            what = victim if victim == READ_ONLY else f"{number.name} to {victim}"
            return Trial(f"{kind}: {what}", trial(
                kind, workers, victim, number, root, references.of(kind, workers)))

        return run(args, root, draw)


def launches() -> bool:
    """Whether scripts can be launched on emulated hosts here."""
    import importlib.util

    from dgl_heta.launch.emulated import emulation_refused

    return emulation_refused() is None and importlib.util.find_spec("dgl") is not None


if __name__ == "__main__":
    sys.exit(main())
