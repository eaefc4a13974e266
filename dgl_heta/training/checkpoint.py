"""Checkpoints: every worker saves its shard, and a run goes on from all of them.

All files are safetensors and JSON: nothing that is loaded can execute code. Workers have the same
parameters and optimizer states, and each row of a learnable feature has an owner. So a checkpoint
is one of any workers: others than those that wrote it read the parameters of one shard, and of all
shards the rows that they own now.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dgl_heta.errors import InputError, several
from dgl_heta.raf.wrapper import GradientSync
from dgl_heta.system.atomic_files import utf8_name
from dgl_heta.system.checksums import write_signed
from dgl_heta.training.checkpoint_files import (
    check_shard,
    folder_of,
    new_folder,
    note_name,
    positions,
    ranks_of,
    read_note,
    read_notes,
    shard_files,
    written_sum,
)
from dgl_heta.training.engine import Engine
from dgl_heta.training.optimizers import load_state, state_tensors
from dgl_heta.training.preemption import Position
from dgl_heta.training.recorded import best_epoch
from dgl_heta.training.resharding import Shards
from dgl_heta.training.resumed_identity import Identity
from dgl_heta.training.table_files import load_tables, write_tables, written

log = logging.getLogger("dgl_heta")


def save_checkpoint(engine: Engine, run_dir: Path, at: Position, best: dict[str, Any],
                    identity: Identity, progress: Mapping[str, Tensor] | None = None) -> None:
    """Write a checkpoint and drop those but it, the last of a whole epoch and the best.

    Every worker writes all that it holds, dense parameters too: a module wrapper may let them
    differ between workers for a while (model averaging).

    Parameters
    ----------
    progress : what else the epoch goes on from, after some of its steps.
    """
    folder, note = new_folder(run_dir, at, engine.rank), note_name(engine.rank)
    tensors = {f"model.{k}": v for k, v in engine.model.state_dict().items()}
    tensors.update({f"adam.{k}": v for k, v in state_tensors(engine.optimizer).items()})
    tensors.update({f"wrapper.{k}": v for k, v in engine.wrapped.state().items()})
    tensors.update({f"progress.{k}": v for k, v in (progress or {}).items()})
    shard, tables = shard_files(engine.rank)
    _save(folder / shard, tensors)
    with written(folder / tables) as rows:
        write_tables(rows, engine.learnable.tables())
    sums = {name: written_sum(folder / name) for name in (shard, tables)}
    engine.world.barrier()
    write_signed(folder / note, {
        **at._asdict(), "best": best, **identity.to_json(), "files": sums,
        "rows": engine.learnable.places()})
    engine.world.barrier()
    if int(os.environ.get("LOCAL_RANK", engine.rank)) == 0:
        for old in positions(run_dir):
            if old not in (at, Position(at.epoch), Position(best.get("epoch", 0))):
                shutil.rmtree(folder_of(run_dir, old), ignore_errors=True)


def load_checkpoint(engine: Engine, run_dir: Path, at: Position, identity: Identity
                    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Restore model, optimizers and learnable features; returns the checkpoint's note, and what
    else the epoch goes on from.

    Raises
    ------
    InputError
        A file of it is damaged, or it does not fit the run.
    """
    folder, rank = folder_of(run_dir, at), engine.rank
    note = read_note(run_dir, at, rank if rank in ranks_of(run_dir, at) else 0)
    try:
        if identity.same_workers(note):
            progress = _load_own(engine, run_dir, at, note)
        else:
            progress = _load_of_others(engine, run_dir, at)
    except (LookupError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"checkpoint {folder} does not fit this run: {error}") from None
    return note, progress


def _load_own(engine: Engine, run_dir: Path, at: Position, note: Mapping[str, Any]
              ) -> dict[str, Tensor]:
    """Take over what this worker has saved; returns what else the epoch goes on from."""
    folder, (shard, tables) = folder_of(run_dir, at), shard_files(engine.rank)
    if note.get("files") is None:
        log.warning("checkpoint %s was written without checksums, so damage to it would not be "
                    "seen", folder)
    else:
        check_shard(run_dir, at, engine.rank, note["files"], (shard, tables))
    tensors = _load(folder / shard)
    _load_dense(engine, tensors)
    engine.wrapped.load_state(_under("wrapper.", tensors))
    load_tables(folder / tables, engine.learnable.tables())
    progress = _under("progress.", tensors)
    if at.step and (missing := {"totals", "cpu"} - progress.keys()):
        raise KeyError(*missing)
    return progress


def _load_of_others(engine: Engine, run_dir: Path, at: Position) -> dict[str, Tensor]:
    """Take over what other workers have saved; returns what else the epoch goes on from."""
    with Shards(run_dir, at, read_notes(run_dir, at)) as shards:
        _load_dense(engine, _load(shards.checked(0, shard_files(0)[0])))
        shards.load(engine.learnable)
        # What dropout draws is for a worker's own seeds, so generators are not gone on from.
        return {"totals": shards.totals(engine.rank, engine.world.size)} if at.step else {}


def latest_position(engine: Engine, run_dir: Path, identity: Identity) -> Position:
    """The last position that every worker has a complete checkpoint of.

    Raises
    ------
    InputError
        The checkpoint was made with other settings or another graph, or by other workers whose
        shards are not all there.
    """
    latest, wrong = _latest(engine, run_dir, identity)
    at = Position(*min(engine.world.all_gather_json(latest, "control")))
    # All say the same: a worker that has no checkpoint knows least, and may be the first to stop.
    if said := [text for text in engine.world.all_gather_json(wrong, "control") if text]:
        raise InputError(said[0])
    return at


def _latest(engine: Engine, run_dir: Path, identity: Identity) -> tuple[Position, str]:
    """The last position that a worker can go on from, and what speaks against it, or else ""."""
    wrong, rank = "", engine.rank
    for at in reversed(positions(run_dir)):
        ranks = ranks_of(run_dir, at)
        note = read_note(run_dir, at, rank if rank in ranks else ranks[0])
        if identity.same_workers(note) and rank not in ranks:
            continue  # it was killed before it had saved this one
        if not identity.same_workers(note) and not isinstance(engine.wrapped, GradientSync):
            return at, (f"the checkpoint in {run_dir} was made with another plan, and by train."
                        f"wrapper = {engine.settings.train.wrapper}, whose workers differ; resume "
                        "with the same partition, or start in a new run directory")
        if differs := identity.difference(note):
            return at, (f"the checkpoint in {run_dir} was made with {differs}; resume with the "
                        "same, or start in a new run directory")
        if identity.same_workers(note):
            return at, ""
        best = best_epoch(note, at.epoch, run_dir).get("epoch", at.epoch)  # its model may be kept
        missing = [folder_of(run_dir, one) for one in (at, Position(at.epoch), Position(best))
                   if any(one) and not _of_all(run_dir, one)]
        if not missing:
            return at, ""
        wrong = wrong or (
            f"{missing[0]} has not the shards of all {several(note['workers'], 'worker')} that "
            "saved it, from which others would go on; bring its files from all machines to each, "
            "or resume with the same partition")
    return Position(), wrong


def _of_all(run_dir: Path, at: Position) -> bool:
    """Return whether the shards of all workers are here, so that others can read them."""
    notes, folder = read_notes(run_dir, at), folder_of(run_dir, at)
    return bool(notes) and all("rows" in note and (folder / name).is_file()
                               for rank, note in enumerate(notes) for name in shard_files(rank))


def _load_dense(engine: Engine, tensors: Mapping[str, Tensor]) -> None:
    engine.model.load_state_dict(_under("model.", tensors))
    load_state(engine.optimizer, _under("adam.", tensors))


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _save(path: Path, tensors: dict[str, Tensor]) -> None:
    with written(path) as temporary:
        save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, temporary)


def _load(path: Path) -> dict[str, Tensor]:
    try:
        with utf8_name(path) as name:
            return load_file(name)
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
