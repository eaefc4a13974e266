"""The disk is full at a random moment of a command that writes; then there is room again.

Writers: `partition` (a store with its plan; DistDGL parts of a stream partitioner, where
dgl-heta-catgnn is installed), `train` (tables of learnable rows in memory and on the disk, averages
of features), `predict` (.npy, .parquet), `profile`. They take turns. Each works on a small file
system in memory whose size is drawn between nothing and a little more than the command needs.

Bad is: a traceback, SIGBUS, a last line that does not name the disk, an output that is there but
not whole, temporary files left; and with room again, another result than on a large disk.
Mounting needs root, or the right to make user namespaces; else the exit status is 77.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common import CLI, Bad, Ended, Trial, call, parser, run, work_dir

INSIDE = "HETA_CAMPAIGN_MOUNTS"
GRAPH = "synthetic-mag:scale=0.002"
TRAIN = ["--set", "model.hidden=16", "--set", "train.epochs=2", "--set", "train.batch_size=128",
         "--set", "train.threads=1"]
FULL = re.compile(r"no space left|disk is full|quota|MB are free", re.IGNORECASE)
LEFT = (".partial-", ".retired-", ".scratch-", ".tmp-", ".table-", "dgl-heta-")
SPARE = 1.3  # the largest disk ÷ what the command leaves there


@dataclass(frozen=True)
class Writer:
    """A command that writes `out` in its directory; `again` is how it is started after a fault."""

    command: list[str]
    out: str
    again: tuple[str, ...] = ()
    compared: str = "**/*.npy"


@dataclass
class Reference:
    """What a writer leaves on a large disk: bytes and a digest."""

    size: int
    digest: str


def writers(root: Path) -> dict[str, Writer]:
    part, done = str(root / "part"), str(root / "run")
    found = {
        "partition": Writer([*CLI, "partition", GRAPH, "--parts", "2", "--out", "part"], "part"),
        "train": Writer([*CLI, "train", part, "--run-dir", "run", *TRAIN],
                        "run", ("--resume",), "model.safetensors"),
        "train, tables on disk": Writer(
            [*CLI, "train", part, "--run-dir", "run", *TRAIN, "--set", "cache.tables=disk"],
            "run", ("--resume",), "model.safetensors"),
        "train, averages": Writer(
            [*CLI, "train", part, "--run-dir", "run", *TRAIN, "--set", "model.name=sehgnn"],
            "run", ("--resume",), "model.safetensors"),
        "predict": Writer([*CLI, "predict", done, "--out", "rows.npy"], "rows.npy"),
        "predict, embeddings": Writer(
            [*CLI, "predict", done, "--out", "rows.npy", "--what", "embeddings"], "rows.npy"),
        "profile": Writer([*CLI, "profile", part, "--out", "profiles", *TRAIN], "profiles",
                          compared="nothing of it: seconds differ from run to run"),
    }
    if importlib.util.find_spec("pyarrow"):
        found["predict, Parquet"] = Writer(
            [*CLI, "predict", done, "--out", "rows.parquet"], "rows.parquet")
    if importlib.util.find_spec("dgl_heta_catgnn") and importlib.util.find_spec("dgl"):
        found["partition, stream"] = Writer(
            [*CLI, "partition", GRAPH, "--parts", "2", "--method", "spring", "--out", "part"],
            "part")
    return found


def digest(writer: Writer, place: Path) -> str:
    """Of the files that must be the same to the last bit."""
    out = place / writer.out
    total = hashlib.sha256()
    for file in [out] if out.is_file() else sorted(out.glob(writer.compared)):
        total.update(str(file.relative_to(place)).encode() + file.read_bytes())
    return total.hexdigest()


def trial(writer: Writer, size: int, reference: Reference) -> Callable[[Path, random.Random], str]:
    def do(place: Path, generator: random.Random) -> str:
        disk, temporary = place / "disk", place / "tmp"
        disk.mkdir()
        temporary.mkdir()
        _mount(disk, f"size={size // 1024 + 4}k", f"nr_inodes={generator.randint(200, 2000)}")
        try:
            return _on(place, disk, temporary)
        finally:
            # Lazily: a command that is stopped with the campaign may still be in there.
            subprocess.run(["umount", "--lazy", str(disk)], check=False)

    def _on(place: Path, disk: Path, temporary: Path) -> str:
        ended = call(writer.command, disk, said=place, TMPDIR=str(temporary))
        ended.clean()
        outcome = "enough room"
        if ended.status:
            outcome = "refused"
            if not FULL.search(ended.last):
                raise Bad(f"status {ended.status}, and the last line does not name the disk: "
                          f"{ended.last[:300]}")
            if not writer.again and digest(writer, disk) != digest(writer, disk / "nothing"):
                raise Bad(f"a part of {writer.out} was left")
        if ended.status:
            _mount(disk, "remount", "size=1g", "nr_inodes=0")
            more = writer.again if writer.again and (disk / writer.out).exists() else ()
            again: Ended = call([*writer.command, *more], disk, said=place,
                                TMPDIR=str(temporary))
            if again.status:
                raise Bad(f"with room again it fails: {again.last[:300]}")
        _none_left(disk, temporary)
        if digest(writer, disk) != reference.digest:
            raise Bad("another result than on a large disk")
        return outcome

    return do


def _none_left(disk: Path, temporary: Path) -> None:
    left = [path.name for where in (disk, temporary) for path in where.rglob("*")
            if any(mark in path.name for mark in LEFT)]
    if left:
        raise Bad(f"left: {', '.join(left)[:200]}")


def _mount(disk: Path, *options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(disk)],
                   check=True, capture_output=True)


def main() -> int:
    args = parser(__doc__, "disk", 450).parse_args()
    if INSIDE not in os.environ:
        return _inside()
    with work_dir(args) as root:
        for command in ([*CLI, "partition", GRAPH, "--parts", "2", "--out", "part"],
                        [*CLI, "train", "part", "--run-dir", "run", *TRAIN]):
            if (ended := call(command, root)).status:
                raise SystemExit(f"error: undisturbed, it fails: {ended.out}{ended.err}")
        every = writers(root)
        references: dict[str, Reference] = {}

        turns = itertools.count(args.trial or 0)  # the writers in turn: as many trials of each

        def draw(generator: random.Random) -> Trial:
            name = sorted(every)[next(turns) % len(every)]
            if name not in references:
                references[name] = _reference(every[name], root / f"on-{len(references)}")
            size = int(generator.uniform(0, SPARE) * references[name].size)
            return Trial(name, trial(every[name], size, references[name]))

        return run(args, root, draw)


def _reference(writer: Writer, place: Path) -> Reference:
    place.mkdir()
    ended = call(writer.command, place)
    if ended.status:
        raise SystemExit(f"error: undisturbed, {json.dumps(writer.command)} fails: {ended.last}")
    size = sum(f.stat().st_size + 4096 for f in place.rglob("*") if f.is_file())
    return Reference(size, digest(writer, place))


def _inside() -> int:
    """Run in a mount namespace of its own, where this is permitted."""
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    enter = ["unshare", *user, "--mount"]
    test = [*enter, "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/mnt"]
    if shutil.which("unshare") is None or subprocess.run(test, capture_output=True).returncode:
        print("left out: a small file system cannot be mounted here", file=sys.stderr)
        return 77
    return subprocess.run([*enter, sys.executable, *sys.argv],
                          env={**os.environ, INSIDE: "1"}).returncode


if __name__ == "__main__":
    sys.exit(main())
