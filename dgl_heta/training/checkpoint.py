"""Checkpoints: every worker saves its shard, and any workers go on from all of them.

All files are safetensors and JSON: nothing that is loaded can execute code. Workers have the same
parameters and optimizer states, and each row of a learnable feature has an owner. So others than
those that saved a checkpoint read the parameters of one shard, and of all shards, a block at a
time, the rows that they own now.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from dgl_heta.errors import InputError, several
from dgl_heta.features import LearnableFeatures
from dgl_heta.features.learnable import Place, Table
from dgl_heta.features.row_table import BLOCK
from dgl_heta.raf.wrapper import GradientSync
from dgl_heta.system.checksums import write_signed
from dgl_heta.training import checkpoint_files as files
from dgl_heta.training.optimizers import load_state, state_tensors
from dgl_heta.training.preemption import Position
from dgl_heta.training.recorded import best_epoch
from dgl_heta.training.resumed_identity import Identity
from dgl_heta.training.table_files import PARTS, mapped_tensors, write_tables, written

if TYPE_CHECKING:
    from dgl_heta.training.distributed import DistributedModel


SET = ("group.", "rows.")
"""How names of numbers begin that optimizers are set to: the same on all workers."""


def save_checkpoint(model: DistributedModel, optimizer: torch.optim.Optimizer, run_dir: Path,
                    at: Position, best: dict[str, Any], identity: Identity,
                    progress: Mapping[str, Tensor] | None = None) -> None:
    """Write a checkpoint and drop those but it, the last of a whole epoch and the best.

    Every worker writes all that it holds, dense parameters too: a module wrapper may let them
    differ between workers for a while (model averaging).

    Parameters
    ----------
    progress : what else the epoch goes on from, after some of its steps.
    """
    rank, world, learnable = model.part.rank, model.part.world, model.part.learnable
    folder, note = files.new_folder(run_dir, at, rank), files.note_name(rank)
    tensors = {f"model.{k}": v for k, v in model.module.state_dict().items()}
    tensors.update({f"adam.{k}": v for k, v in state_tensors(optimizer).items()})
    tensors.update({f"wrapper.{k}": v for k, v in model.wrapped.state().items()})
    tensors.update({f"progress.{k}": v for k, v in (progress or {}).items()})
    shard, tables = files.shard_files(rank)
    _save(folder / shard, tensors)
    with written(folder / tables) as rows:
        write_tables(rows, learnable.tables())
    sums = {name: files.written_sum(folder / name) for name in (shard, tables)}
    world.barrier()
    write_signed(folder / note, {
        **at._asdict(), "best": best, **identity.to_json(), "files": sums,
        "rows": learnable.places()})
    world.barrier()
    if int(os.environ.get("LOCAL_RANK", rank)) == 0:
        for old in files.positions(run_dir):
            if old not in (at, Position(at.epoch), Position(best.get("epoch", 0))):
                shutil.rmtree(files.folder_of(run_dir, old), ignore_errors=True)


def load_checkpoint(model: DistributedModel, optimizer: torch.optim.Optimizer, run_dir: Path,
                    at: Position, identity: Identity) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Restore model, optimizers and learnable features; returns the checkpoint's note, and what
    else the epoch goes on from.

    Raises
    ------
    InputError
        A file of it is damaged, or it does not fit the run.
    """
    rank, learnable = model.part.rank, model.part.learnable
    note = files.read_note(run_dir, at, rank if rank in files.ranks_of(run_dir, at) else 0)
    same = identity.same_workers(note)
    shards = _Shards(run_dir, at, {rank: files.read_note(run_dir, at, rank)} if same
                     else dict(enumerate(files.read_notes(run_dir, at))))
    try:
        tensors = shards.dense(rank if same else 0)
        model.module.load_state_dict(_under("model.", tensors))
        load_state(optimizer, _under("adam.", tensors))
        shards.load(learnable)
        if same:
            model.wrapped.load_state(_under("wrapper.", tensors))
            progress = _under("progress.", tensors)
        else:  # what dropout draws is for a worker's own seeds: no generator is gone on from
            progress = {name: value for name, value in _under("progress.", tensors).items()
                        if name.startswith(SET)}
            if at.step:
                progress["totals"] = shards.totals(rank, model.part.world.size)
        if at.step and (missing := {"totals", *["cpu"] * same} - progress.keys()):
            raise KeyError(*missing)
    except (LookupError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"checkpoint {files.folder_of(run_dir, at)} does not fit this run: "
                         f"{error}") from None
    return note, progress


class _Shards:
    """The shards of a checkpoint, each compared with its checksum when something is first read from
    it.

    Parameters
    ----------
    notes : by worker.
    """

    def __init__(self, run_dir: Path, at: Position, notes: Mapping[int, Mapping[str, Any]]
                 ) -> None:
        self._workers = len(notes)
        self._places = [(rank, Place(*place)) for rank, note in notes.items()
                        for place in note["rows"]]
        folder = files.folder_of(run_dir, at)

        @functools.cache
        def read(rank: int, kind: int) -> tuple[dict[str, Tensor], dict[str, str]]:
            name = files.shard_files(rank)[kind]
            files.check_shard(run_dir, at, rank, notes[rank]["files"], [name])
            return mapped_tensors(folder / name)

        self._read = read

    def dense(self, rank: int) -> dict[str, Tensor]:
        return self._read(rank, 0)[0]

    def totals(self, rank: int, workers: int) -> Tensor:
        """The statistics of the epoch so far that a worker goes on from: sums over the seeds of
        each worker that was, so any worker may go on from any of them."""
        mine = torch.zeros_like(self.dense(0)["progress.totals"])
        for saved in range(rank, self._workers, workers):
            mine += self.dense(saved)["progress.totals"]
        return mine

    def load(self, learnable: LearnableFeatures) -> None:
        """Take over the rows that a worker has; KeyError or ValueError if they are not there."""
        for name, table in learnable.tables().items():
            places = [place for place in learnable.places() if place.table == name]
            steps = {self._read(rank, 1)[1][there.table] for place in places
                     for rank, there, _, _ in self._shared(place.ntype, place.low, place.high)}
            if len(steps) > 1:
                raise ValueError(f"rows of {name} were saved after different steps")
            table.load(({part: self._mean(place.ntype, part, low, min(low + BLOCK, place.high),
                                          table) for part in PARTS}
                        for place in places for low in range(place.low, place.high, BLOCK)),
                       int(*steps))

    def _mean(self, ntype: str, part: str, low: int, high: int, table: Table) -> Tensor:
        """Rows `low … high - 1` of a type, or of their moments: the mean of all copies, as in the
        model at the end (`train.learnable = replica`)."""
        rows, copies = (torch.zeros((high - low, width), dtype=table.dtype)
                        for width in (table.shape[1], 1))
        for rank, there, first, last in self._shared(ntype, low, high):
            start = there.start - there.low
            saved = self._read(rank, 1)[0][f"{there.table}.{part}"][start + first:start + last]
            if saved.shape != (last - first, table.shape[1]) or saved.dtype != table.dtype:
                raise ValueError(f"rows {first} to {last} of '{ntype}' are not as they are here")
            rows[first - low:last - low] += saved
            copies[first - low:last - low] += 1
        if not copies.all():
            raise ValueError(f"its shards do not have all rows of '{ntype}'")
        return rows / copies

    def _shared(self, ntype: str, low: int, high: int) -> Iterator[tuple[int, Place, int, int]]:
        """Who has saved some of the rows `low … high - 1` of a type, where, and which of them."""
        for rank, there in self._places:
            first, last = max(low, there.low), min(high, there.high)
            if there.ntype == ntype and first < last:
                yield rank, there, first, last


def latest_position(model: DistributedModel, run_dir: Path, identity: Identity) -> Position:
    """The last position that every worker has a complete checkpoint of.

    Raises
    ------
    InputError
        The checkpoint was made with other settings or another graph, or by other workers whose
        shards are not all there.
    """
    world = model.part.world
    latest, wrong = _latest(model, run_dir, identity)
    at = Position(*min(world.all_gather_json(latest, "control")))
    # All say the same: a worker that has no checkpoint knows least, and may be the first to stop.
    if said := [text for text in world.all_gather_json(wrong, "control") if text]:
        raise InputError(said[0])
    return at


def _latest(model: DistributedModel, run_dir: Path, identity: Identity) -> tuple[Position, str]:
    """The last position that a worker can go on from, and what speaks against it, or else ""."""
    wrong, rank = "", model.part.rank
    for at in reversed(files.positions(run_dir)):
        ranks = files.ranks_of(run_dir, at)
        note = files.read_note(run_dir, at, rank if rank in ranks else ranks[0])
        if identity.same_workers(note) and rank not in ranks:
            continue  # it was killed before it had saved this one
        if not identity.same_workers(note) and not isinstance(model.wrapped, GradientSync):
            return at, (f"the checkpoint in {run_dir} was made with another plan, and by train."
                        f"wrapper = {identity.settings['train']['wrapper']}, whose workers differ; "
                        "resume with the same partition, or start in a new run directory")
        if differs := identity.difference(note):
            return at, (f"the checkpoint in {run_dir} was made with {differs}; resume with the "
                        "same, or start in a new run directory")
        if identity.same_workers(note):
            return at, ""
        best = best_epoch(note, at.epoch, run_dir).get("epoch", at.epoch)  # its model may be kept
        missing = [files.folder_of(run_dir, one) for one in (at, Position(at.epoch), Position(best))
                   if any(one) and not files.read_notes(run_dir, one)]
        if not missing:
            return at, ""
        wrong = wrong or (
            f"{missing[0]} has not the shards of all {several(note['workers'], 'worker')} that "
            "saved it, from which others would go on; bring its files from all machines to each, "
            "or resume with the same partition")
    return Position(), wrong


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies, as the file will be removed."""
    return {k.removeprefix(prefix): v.clone() for k, v in tensors.items() if k.startswith(prefix)}


def _save(path: Path, tensors: dict[str, Tensor]) -> None:
    with written(path) as temporary:
        save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, temporary)
