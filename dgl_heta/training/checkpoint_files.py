"""The files of checkpoints: their names, the notes that complete them, which are whole.

A checkpoint is a directory `checkpoints/epoch-00003`, or `epoch-00003-step-00007` after 7 steps
more. It counts once the `complete-<rank>.json` of all its workers are there, which are written
after every worker has written its shard. They hold the checksums of the shards, and say how many
workers there were.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dgl_heta.errors import HetaError, InputError
from dgl_heta.report.metrics_log import read_log
from dgl_heta.report.started import resuming
from dgl_heta.system.atomic_files import check_plain
from dgl_heta.system.checksums import check_file, file_sum, read_signed
from dgl_heta.training.preemption import Position
from dgl_heta.training.recorded import best_epoch

BRING_BACK = "bring its checkpoints back, or train in a new run directory"
_NOTED = {"best": dict, "files": dict, "rows": list, "settings": dict, "workers": int}


def folder_of(run_dir: Path, at: Position) -> Path:
    """The directory of a checkpoint."""
    step = f"-step-{at.step:05d}" if at.step else ""
    return run_dir / "checkpoints" / f"epoch-{at.epoch:05d}{step}"


def new_folder(run_dir: Path, at: Position, rank: int) -> Path:
    """The directory of a checkpoint, which is there afterwards, without the note of a worker, whose
    shard is no longer whole; what is written to it stays there."""
    folder = folder_of(run_dir, at)
    try:
        for path in (folder.parent, folder):
            check_plain(path, directory=True)
            path.mkdir(exist_ok=True)
        (folder / note_name(rank)).unlink(missing_ok=True)
    except OSError as error:
        raise HetaError(f"cannot make {folder}: {error.strerror or error}") from None
    return folder


def shard_files(rank: int) -> tuple[str, str]:
    """The files of a checkpoint that a worker writes: its shard, its learnable features."""
    return f"rank-{rank}.safetensors", f"rows-{rank}.safetensors"


def note_name(rank: int) -> str:
    """The file that says that a worker has written its own."""
    return f"complete-{rank}.json"


def positions(run_dir: Path) -> list[Position]:
    """The positions of which any worker's note is there, in order."""
    matches = (re.fullmatch(r"epoch-(\d+)(?:-step-(\d+))?", name)
               for name in _names(run_dir / "checkpoints"))
    found = (Position(*(int(number or 0) for number in match.groups()))
             for match in matches if match)
    return sorted(at for at in found if ranks_of(run_dir, at))


def ranks_of(run_dir: Path, at: Position) -> list[int]:
    """The workers whose notes of a checkpoint are there, in order."""
    return sorted(int(match[1]) for name in _names(folder_of(run_dir, at))
                  if (match := re.fullmatch(r"complete-(\d+)\.json", name)))


def _names(folder: Path) -> list[str]:
    """What is in a folder: nothing where it is not there, or not any more. The first worker removes
    what is superseded while others look."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def read_note(run_dir: Path, at: Position, rank: int) -> dict[str, Any]:
    """The note of a worker's shard; an :class:`InputError` if it is missing or damaged."""
    path, remedy = folder_of(run_dir, at) / note_name(rank), _remedy(run_dir, at, rank)
    note = read_signed(path, remedy)
    if (note.get("epoch"), note.get("step")) != at or not all(
            isinstance(note.get(name), kind) for name, kind in _NOTED.items()):
        raise InputError(f"{path} is damaged: it is not of epoch {at.epoch}; {remedy}")
    return note


def read_notes(run_dir: Path, at: Position) -> list[dict[str, Any]]:
    """The notes of all workers of a checkpoint, in order; none where not all of them are there, or
    not all of their files."""
    ranks, folder = ranks_of(run_dir, at), folder_of(run_dir, at)
    workers = read_note(run_dir, at, ranks[0])["workers"] if ranks else 0
    notes = [read_note(run_dir, at, rank) for rank in ranks if rank < workers and all(
        (folder / name).is_file() for name in shard_files(rank))]
    whole = len(notes) == workers and all(n["workers"] == workers for n in notes)
    return notes if whole else []


def saved_position(run_dir: Path) -> Position:
    """The last position that all workers have saved, seen from outside."""
    return next((at for at in reversed(positions(run_dir)) if read_notes(run_dir, at)), Position())


def has_more_than_begun(run_dir: Path) -> bool:
    """Return whether a run has had a checkpoint of all its workers, by what is left of it.

    One that was killed before that has a line in its log, maybe, and first notes of some workers.
    """
    lines = [line.content for line in read_log(run_dir / "metrics.jsonl") if line.content]
    return ((run_dir / "summary.json").exists() or any(at.epoch > 1 for at in positions(run_dir))
            or sum(line.get("event") == "epoch" for line in lines) > 1)


def gone(run_dir: Path) -> str:
    """What is said of a run that has had a checkpoint and has none."""
    return f"{run_dir} holds a run, but no checkpoint of it that is whole on all workers"


def recovery(run_dir: Path) -> str:
    """A sentence: which checkpoint of a run that did not end is good, and how its model is had."""
    epoch = saved_position(run_dir).epoch
    if not epoch:
        return "No epoch of this run was saved"
    best = best_epoch(read_note(run_dir, Position(epoch), 0), epoch, run_dir).get("epoch", epoch)
    return (f"The model of epoch {best}, the best that was saved "
            f"({folder_of(run_dir, Position(best))}), is made ready for `dgl-heta predict` by: "
            f"{resuming(run_dir, epoch)}")


def check_shard(run_dir: Path, at: Position, rank: int, sums: Mapping[str, Any],
                names: Iterable[str]) -> None:
    """Compare files of a worker's shard with the checksums that its note has of them."""
    for name in names:
        check_file(folder_of(run_dir, at) / name, sums.get(name), note_name(rank),
                   _remedy(run_dir, at, rank))


def check_checkpoints(run_dir: Path) -> None:
    """Compare all complete checkpoints with their checksums.

    Raises
    ------
    InputError
        One is damaged.
    """
    for at in positions(run_dir):
        for rank in ranks_of(run_dir, at):
            check_shard(run_dir, at, rank, read_note(run_dir, at, rank)["files"], shard_files(rank))


def check_saved(run_dir: Path) -> None:
    """Check that a run can go on, by what is there of its checkpoints.

    Raises
    ------
    InputError
        One is damaged, or it has had one and has nothing of any.
    """
    check_checkpoints(run_dir)
    if not positions(run_dir) and has_more_than_begun(run_dir):
        raise InputError(f"{gone(run_dir)}; {BRING_BACK}")


def _remedy(run_dir: Path, at: Position, rank: int) -> str:
    """The remedy for a damaged checkpoint of a worker."""
    known = [one for one in positions(run_dir) if rank in ranks_of(run_dir, one)]
    earlier = [one for one in known if one < at]
    if earlier and at == max(known):
        return (f"that of epoch {max(earlier).epoch} is complete: remove {folder_of(run_dir, at)} "
                "and resume to go on from there")
    return "there is no other one to go on from; train in a new run directory"


def written_sum(path: Path) -> str:
    """The checksum of a file that was just written."""
    try:
        return file_sum(path)
    except OSError as error:
        raise HetaError(f"cannot read {path} again, which was just written: "
                        f"{error.strerror or error}") from None
