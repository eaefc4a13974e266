"""Damaged files: bytes flipped, zeroed and cut off, edits that are signed again, and what is no
file: links, pipes, sockets.

    python scripts/campaign/damage.py [--trials 1000] [--seed 1]

A trial damages one file of a store, a partition, a run or a profile, and runs a command that reads
it. Good is a refusal that names the file, or the same result bit for bit (the file was not read, or
was made again). Bad is another result, a traceback, a signal, an error that does not say which
file, or no end within 120 s; and of a link, that what it leads to is not as it was. Commands run in
a process forked from one that has everything loaded; one in 25 runs as a user starts it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import random
import re
import shutil
import signal
import stat
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import CLI, ROOT, Bad, Ended, Trial, call, parser, run, work_dir

sys.path[:0] = [str(ROOT)]
LIMIT_S, REAL = 120.0, 1 / 25
SET = [word for setting in (
    "model.hidden=8", "train.batch_size=16", "train.fanouts=3,3", "train.dtype=float64",
    "train.threads=1", "cache.epochs=1", "partition.parts=1", "train.epochs=3")
    for word in ("--set", setting)]
AVERAGES = [*SET, "--set", "model.name=sehgnn"]
CACHED = [*SET, "--set", "cache.policy=hotness", "--set", "cache.capacity_mb=0.002"]
CUT = ["--replication", "none", "--memory-mb", "0.042", "--cut", "even-edges", "--hops", "1"]


@dataclass(frozen=True)
class Case:
    """A command and what it reads.

    Attributes
    ----------
    files : patterns of files in the copy of everything that a trial gets.
    arguments : of `dgl-heta`, run in that copy.
    result : what of the outcome must be the same.
    """

    files: tuple[str, ...]
    arguments: tuple[str, ...]
    result: Callable[[Path, Ended], Any]


def _bytes(*names: str) -> Callable[[Path, Ended], Any]:
    return lambda where, ended: [hashlib.sha256((where / name).read_bytes()).hexdigest()
                                 for name in names]


def _printed(where: Path, ended: Ended) -> Any:
    return ended.out.replace(str(where), "")


def _compared(where: Path, ended: Ended) -> Any:
    def untimed(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: untimed(v) for k, v in value.items() if "second" not in k}
        return [untimed(v) for v in value] if isinstance(value, list) else value
    line = next(line for line in ended.out.splitlines() if line.startswith("{"))
    return untimed(json.loads(line))  # METIS prints beside it


def _whatever(where: Path, ended: Ended) -> Any:
    return None  # what it shows goes with what is there


def _content(where: Path, ended: Ended) -> Any:
    return re.sub(r'"sha256": "[0-9a-f]*"', "", _printed(where, ended))


def _visits(where: Path, ended: Ended) -> Any:
    workers = json.loads(ended.out)["workers"]
    return [{t: found["visits"] for t, found in worker["types"].items()} for worker in workers]


STORE = ("store/nodes/**/*.npy", "store/relations/**/*.npy", "store/manifest.json")
PARTITION = ("part/plan.json", "part/*.json", "part/store/**/*.npy", "part/store/manifest.json")
OWNERS = ("cut/owner-*.npy", "cut/plan.json")
CHECKPOINT = ("run/checkpoints/epoch-00003/*",)
MODEL = ("run/model.safetensors", "run/model.json", "run/job.json")
MODEL_OF = _bytes("new/model.safetensors")
PREDICTED = _bytes("out.npy")
ON = ("--run-dir", "new", *SET)
CASES = {
    "store, train": Case(STORE, ("train", "store", *ON), MODEL_OF),
    "store, train --dry-run": Case(STORE, ("train", "store", "--dry-run", *ON), _printed),
    "store, predict": Case(STORE, ("predict", "run", "--store", "store", "--out", "out.npy"),
                           PREDICTED),
    "store, inspect": Case(STORE, ("inspect", "store", "--json"), _printed),
    "store, plan --compare": Case(STORE, (
        "plan", "store", "--parts", "2", "--compare", "--json", "--batch-size", "16"), _compared),
    "store, profile": Case(STORE, ("profile", "store", "--json", "--out", "profile", *SET),
                           _visits),
    "store, partition --cut": Case(
        ("one/relations/**/*.npy", "one/nodes/**/*.npy", "one/manifest.json"),
        ("partition", "one", "--out", "new", *CUT), _bytes("new/owner-0.npy", "new/plan.json")),
    "partition, train": Case(PARTITION, ("train", "part", *ON), MODEL_OF),
    "partition, plan": Case(PARTITION, ("plan", "part", "--json"), _printed),
    "partition, inspect": Case(PARTITION, ("inspect", "part", "--json"), _printed),
    "owners, inspect": Case(OWNERS, ("inspect", "cut", "--json"), _printed),
    "checkpoint, train --resume": Case(CHECKPOINT, (
        "train", "store", "--resume", "--run-dir", "run", *SET[:-1], "train.epochs=4"),
        _bytes("run/model.safetensors")),
    "model, predict": Case(MODEL, ("predict", "run", "--store", "store", "--out", "out.npy"),
                           PREDICTED),
    "averages, train --resume": Case(("averages/averages/**/*.*",), (
        "train", "store", "--resume", "--run-dir", "averages", *AVERAGES[:-3], "train.epochs=4",
        *AVERAGES[-2:]), _bytes("averages/model.safetensors")),
    "averages, predict": Case(("averages/averages/**/*.*", "averages/model.*"), (
        "predict", "averages", "--store", "store", "--out", "out.npy"), PREDICTED),
    "profile, train": Case(("store/profiles/*",), (
        "train", "store", "--run-dir", "new", *CACHED), MODEL_OF),
    "profile that is named, train": Case(("profiles/*",), (
        "train", "store", "--run-dir", "new", *CACHED, "--set", "cache.profile=profiles"),
        MODEL_OF),
}
RESUME = ("train", "store", "--resume", "--run-dir", "run", *SET[:-1], "train.epochs=4")
PREPARED = (".lock", "metrics.jsonl", "checkpoints", "checkpoints/epoch-00001", "worker-0.log",
            "started.json", "model.safetensors", "summary.json", "report.html", "job.json")
RUN = (*PREPARED, "checkpoints/epoch-00004", "checkpoints/epoch-00003/rank-0.safetensors",
       "checkpoints/epoch-00003/complete-0.json", "job.next.json", "model.json")
OTHERS = ("a link to a file", "a link to a directory", "a link to nothing", "a link to a device",
          "a second name of a file", "a pipe", "a socket", "a directory")
NO_FILE = {
    "no file in a new run's directory, train": (PREPARED, "new", Case((), (
        "train", "store", *ON), MODEL_OF)),
    "no file in a run, train --resume": (RUN, "run", Case((), RESUME, _bytes(
        "run/model.safetensors"))),
    "no file in a run, predict": (("model.safetensors", "model.json", "job.json"), "run", Case((), (
        "predict", "run", "--store", "store", "--out", "out.npy"), PREDICTED)),
    "no file in a run, report": (("metrics.jsonl", "summary.json", "started.json", "job.json",
                                  "report.html"), "run", Case((), ("report", "run"), _whatever)),
    "no file in a run, inspect": (RUN, "run", Case((), ("inspect", "run"), _whatever)),
    "no file in a store, train": (("nodes/*/*.npy", "relations/*/*.npy"), "store", Case((), (
        "train", "store", *ON), MODEL_OF)),
}
UNVERIFIED = ("--set", "run.verify=false")
SIGNED = {
    "signed edit, train": CASES["store, train"],
    "signed edit, train unverified": Case(STORE, ("train", "store", *ON, *UNVERIFIED), MODEL_OF),
    "signed edit, predict": CASES["store, predict"],
    "signed edit, predict unverified": Case(STORE, (
        "predict", "unverified", "--store", "store", "--out", "out.npy"), PREDICTED),
    "signed edit, profile unverified": Case(STORE, (
        "profile", "store", "--json", "--out", "profile", *SET, *UNVERIFIED), _visits),
    "signed edit, inspect": Case(STORE, ("inspect", "store", "--json"), _content),
}


# --- the damage -------------------------------------------------------------------------------


def damaged(path: Path, draw: random.Random) -> str:
    """Damage a file; says how, or "" where it is the same as before."""
    data = bytearray(path.read_bytes())
    before, at, how = bytes(data), draw.randrange(max(len(data), 1)), draw.random()
    if how < 0.7 and data:
        data[at] ^= 1 << draw.randrange(8)
        what = f"a bit of byte {at} flipped"
    elif how < 0.9:
        del data[at:]
        what = f"cut off at {at}"
    else:
        data[at:at + 64] = bytes(len(data[at:at + 64]))
        what = f"64 bytes zeroed at {at}"
    path.write_bytes(data)
    return what if bytes(data) != before else ""


def edited(store: Path, draw: random.Random) -> tuple[Path, str]:
    """Put a number that cannot be right into an array of a store, and sign everything again."""
    manifest = json.loads((store / "manifest.json").read_text())
    counts = {t: each["count"] for t, each in manifest["node_types"].items()}
    places = [(each[name], counts[each["src"]] if name == "indices" else each["edges"])
              for each in manifest["relations"] for name in ("indptr", "indices", "edge_ids")]
    target = manifest["node_types"]["paper"]["arrays"]
    places += [(target["label"], manifest["task"]["num_classes"]), (target["train_mask"], 2)]
    entry, limit = draw.choice(places)
    array = np.load(store / entry["file"])
    truths = array.dtype == np.bool_
    array = array.view(np.uint8) if truths else array
    limits = np.iinfo(array.dtype)
    at = draw.randrange(len(array))
    wrong = draw.choice([limits.min, -1, -2, limit + 1, limit + 7, 2**31 - 1, limits.max])
    array[at] = wrong = draw.randrange(2, 256) if truths else min(wrong, int(limits.max))
    np.save(store / entry["file"], array.view(np.bool_) if truths else array)
    entry["sha256"] = hashlib.sha256((store / entry["file"]).read_bytes()).hexdigest()
    manifest.pop("sha256")
    text = json.dumps(manifest, sort_keys=True)
    (store / "manifest.json").write_text(json.dumps(
        {**manifest, "sha256": hashlib.sha256(text.encode()).hexdigest()}))
    return store / entry["file"], f"number {at} of {len(array)} made {wrong}"


def replaced(path: Path, how: str, elsewhere: Path) -> None:
    """Put something else where a file is or could be; a link leads to `elsewhere`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        path.rename(elsewhere / "moved")
    elif how == "a second name of a file" and path.exists():
        os.link(path, elsewhere / "moved")
        return
    else:
        path.unlink(missing_ok=True)
    if how == "a second name of a file":
        os.link(elsewhere / "kept", path)
    elif how == "a pipe":
        os.mkfifo(path)
    elif how == "a directory":
        path.mkdir()
    elif how == "a socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)
    else:
        path.symlink_to({
            "a link to a file": elsewhere / "kept", "a link to nothing": Path("/nowhere"),
            "a link to a directory": elsewhere, "a link to a device": Path("/dev/zero")}[how])


def contents(elsewhere: Path) -> dict[str, bytes]:
    return {str(path.relative_to(elsewhere)): path.read_bytes() for path in elsewhere.rglob("*")
            if path.is_file()}


# --- the commands -----------------------------------------------------------------------------


def forked(arguments: tuple[str, ...], where: Path) -> Ended:
    """Run a command in a child that has all modules and compiled code already."""
    files, started = [where / name for name in (".out", ".err")], time.monotonic()
    child = os.fork()
    if not child:
        try:
            os.chdir(where)
            for number, file in zip((1, 2), files):
                os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            sys.argv = ["dgl-heta", *arguments]
            from dgl_heta.cli import main

            main()
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
        except BaseException:
            import traceback

            traceback.print_exc()
            status = 1
        (where / ".modules").write_text("\n".join(sys.modules))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() - started > LIMIT_S:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise Bad(f"did not end within {LIMIT_S:g} s")
        time.sleep(0.005)
    out, err = (file.read_text(errors="replace") for file in files)
    return Ended(os.waitstatus_to_exitcode(ended[1]), out, err, time.monotonic() - started)


def in_process() -> None:
    """Make commands with one worker run it in their own process, from the file of the job."""
    from dgl_heta.launch import local, worker
    from dgl_heta.launch.jobs import prediction, profiling_job, training
    from dgl_heta.system.checksums import read_signed, write_signed

    def run_workers(job: dict[str, Any], workers: int, run_dir: Path, report: Any,
                    program: str = local.PROGRAM) -> dict[str, Any]:
        if workers != 1:
            return local.run_workers(job, workers, run_dir, report, program)
        write_signed(run_dir / "job.json", job)
        return worker.run(read_signed(run_dir / "job.json", "run the command again"), report)

    for module in (prediction, profiling_job, training):
        module.run_workers = run_workers  # type: ignore[attr-defined]


class Campaign:
    """Everything that is damaged, made once, and what undamaged commands find."""

    def __init__(self, root: Path) -> None:
        self.base = root / "base"
        self.base.mkdir()
        self._make()
        self._good: dict[str, Any] = {}

    def _make(self) -> None:
        from dgl_heta.store import write_store

        write_store(papers(), self.base / "store", edge_ids=True)
        write_store(one_relation(), self.base / "one")
        self._do("partition", "one", "--out", "cut", *CUT)
        self._do("train", "store", "--run-dir", "run", *SET)
        self._do("train", "store", "--run-dir", "unverified", *SET, *UNVERIFIED)
        self._do("train", "store", "--run-dir", "averages", *AVERAGES)
        self._do("profile", "store", "--out", "profiles", *CACHED)
        shutil.copytree(self.base / "profiles", self.base / "store" / "profiles")
        write_partition_of(self.base)

    def _do(self, *arguments: str) -> Ended:
        ended = forked(arguments, self.base)
        if ended.status:
            raise SystemExit(f"{' '.join(arguments)}: {ended.out}{ended.err}")
        for name in (self.base / ".modules").read_text().split():
            with contextlib.suppress(Exception):  # so that a child has them already
                importlib.import_module(name)
        return ended

    def good(self, name: str, case: Case, root: Path) -> Any:
        """What a command finds where nothing is damaged."""
        if name not in self._good:
            where = root / f"good-{len(self._good)}"
            shutil.copytree(self.base, where, symlinks=True)
            ended = forked(case.arguments, where)
            if ended.status:
                raise SystemExit(f"{name}: {ended.out}{ended.err}")
            self._good[name] = case.result(where, ended)
            shutil.rmtree(where)
        return self._good[name]

    def trial(self, draw: random.Random, root: Path) -> Trial:
        if draw.random() < 0.25:
            return self.no_file(draw.choice([*NO_FILE]), root)
        signed = draw.random() < 0.2
        name = draw.choice([*(SIGNED if signed else CASES)])
        case = (SIGNED if signed else CASES)[name]

        def do(directory: Path, draw: random.Random) -> str:
            good = self.good(name, case, root)
            where = directory / "all"
            shutil.copytree(self.base, where, symlinks=True)
            if signed:
                path, how = edited(where / "store", draw)
            else:
                found = sorted({p for each in case.files for p in where.glob(each)
                                if p.is_file()})
                path = draw.choice(found)
                how = damaged(path, draw)
            real = draw.random() < REAL
            ended = (call([*CLI, *case.arguments], where, LIMIT_S) if real
                     else forked(case.arguments, where))
            what = f"{path.relative_to(where)}, {how}: {' '.join(case.arguments[:3])} …"
            try:
                return self._judged(ended, path, where, case, good)
            except Bad as fault:
                raise Bad(f"{what}: {fault}") from None
        return Trial(name, do)

    def no_file(self, name: str, root: Path) -> Trial:
        names, holder, case = NO_FILE[name]

        def do(directory: Path, draw: random.Random) -> str:
            good = self.good(name, case, root)
            where, elsewhere = directory / "all", directory / "elsewhere"
            shutil.copytree(self.base, where, symlinks=True)
            elsewhere.mkdir()
            (elsewhere / "kept").write_text("kept")
            wanted = draw.choice(names)
            path = (draw.choice(sorted((where / holder).glob(wanted))) if "*" in wanted
                    else where / holder / wanted)
            how = draw.choice(OTHERS)
            replaced(path, how, elsewhere)
            before = contents(elsewhere)
            ended = forked(case.arguments, where)
            what = f"{path.relative_to(where)} is {how}: {' '.join(case.arguments[:3])} …"
            try:
                outcome = self._judged(ended, path, where, case, good)
                if contents(elsewhere) != before:
                    raise Bad("what lies elsewhere is not as it was")
            except Bad as fault:
                raise Bad(f"{what}: {fault}") from None
            return outcome
        return Trial(name, do)

    def _judged(self, ended: Ended, path: Path, where: Path, case: Case, good: Any) -> str:
        ended.clean()
        if ended.status == 0:
            if case.result(where, ended) != good:
                raise Bad("finished with another result")
            return "the same result"
        if ended.status < 0:
            raise Bad(f"ended by signal {-ended.status}")
        if path.name not in ended.out + ended.err:
            raise Bad(f"refused without the name of the file: {ended.last[:300]}")
        return "refused"


def papers() -> Any:
    """A small graph with features and without, in parallel relations and both directions."""
    from dgl_heta.graph.schema import Relation
    from dgl_heta.graph.source import EdgeArrays, EdgeSource, GraphSource, Task

    draw, counts = np.random.default_rng(1), {"author": 40, "field": 12, "paper": 60}
    edges: dict[Relation, EdgeSource] = {
        Relation(*names): EdgeArrays(draw.integers(0, counts[names[0]], 180),
                                     (draw.random(180) ** 2 * counts[names[2]]).astype(int))
        for names in (("author", "writes", "paper"), ("paper", "by", "author"),
                      ("field", "of", "paper"), ("paper", "in", "field"),
                      ("paper", "cites", "paper"), ("paper", "cited", "paper"))}
    part = draw.permutation(60)
    masks = {name: np.isin(part, np.arange(low, high)) for name, low, high in (
        ("train_mask", 0, 36), ("val_mask", 36, 48), ("test_mask", 48, 60))}
    return GraphSource("papers", counts, edges, {
        "paper": {"feat": draw.standard_normal((60, 7)), "label": draw.integers(0, 4, 60), **masks},
        "field": {"feat": draw.standard_normal((12, 3)).astype(np.float32)}}, Task("paper", 4))


def one_relation() -> Any:
    """A graph of a relation that is too large for a partition."""
    from dgl_heta.graph.schema import Relation
    from dgl_heta.graph.source import EdgeArrays, GraphSource, Task

    draw, items = np.random.default_rng(0), 200
    edges = EdgeArrays(draw.integers(0, 50, 12_000),
                       (np.sqrt(draw.random(12_000)) * items).astype(int))
    return GraphSource("one", {"user": 50, "item": items}, {
        Relation("user", "reads", "item"): edges}, {
        "item": {"feat": draw.random((items, 2)), "label": np.arange(items) % 2,
                 "train_mask": np.arange(items) % 3 == 0},
        "user": {"feat": draw.random((50, 2))}}, Task("item", 2))


def write_partition_of(base: Path) -> None:
    """A partition with a store of its own."""
    from dgl_heta.partition.directory import write_partition
    from dgl_heta.planning.making import make_plan

    source = papers()
    write_partition(source, make_plan(source.schema(), "paper", 2, 1), base / "part")


def main() -> int:
    args = parser(__doc__, "damage", 1000).parse_args()
    os.environ.update(OMP_NUM_THREADS="1", COLUMNS="200", DGLBACKEND="pytorch")
    with work_dir(args) as root:
        in_process()
        campaign = Campaign(root)
        return run(args, root, lambda draw: campaign.trial(draw, root))


if __name__ == "__main__":
    raise SystemExit(main())
