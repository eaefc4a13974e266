"""Checkpoints: every worker its shard, one consolidated model at the end.

All files are safetensors and JSON: nothing that is loaded can execute code. A checkpoint is a
directory `checkpoints/epoch-00003`, or `epoch-00003-step-00007` after 7 steps more; it counts once
its `complete-<rank>.json` are there, which are written after every worker has written its shard.
They hold the checksums of the shards, and `model.json` that of the model; both carry one of
themselves.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dgl_heta.comm.collectives import Comm
from dgl_heta.errors import HetaError, InputError
from dgl_heta.features import LearnableFeatures
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.hooks.manager import Plugins, plugins
from dgl_heta.models import ModelProvider, ModelSpec, find_model, slot
from dgl_heta.models.link_model import Linked, decoded
from dgl_heta.report.started import resuming
from dgl_heta.settings import Settings, section_name
from dgl_heta.system.atomic_files import check_plain, replacing, utf8_name
from dgl_heta.system.checksums import check_file, file_sum, read_signed, write_signed
from dgl_heta.training.engine import Engine
from dgl_heta.training.optimizers import load_state, state_tensors
from dgl_heta.training.preemption import Position
from dgl_heta.training.recorded import best_epoch, check_model
from dgl_heta.training.resumed_identity import Identity
from dgl_heta.training.table_files import TensorFile, load_tables, write_tables

MODEL_FILE, SPEC_FILE = "model.safetensors", "model.json"

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
    folder = _new_folder(run_dir, at)
    tensors = {f"model.{k}": v for k, v in engine.model.state_dict().items()}
    tensors.update({f"adam.{k}": v for k, v in state_tensors(engine.optimizer).items()})
    tensors.update({f"wrapper.{k}": v for k, v in engine.wrapped.state().items()})
    tensors.update({f"progress.{k}": v for k, v in (progress or {}).items()})
    shard, tables = _files(engine.rank)
    _save(folder / shard, tensors)
    with _whole(folder / tables) as rows:
        write_tables(rows, engine.learnable.tables())
    sums = {name: _sum(folder / name) for name in (shard, tables)}
    engine.world.barrier()
    write_signed(folder / _complete_name(engine.rank), {
        **at._asdict(), "best": best, **identity.to_json(), "files": sums})
    engine.world.barrier()
    if int(os.environ.get("LOCAL_RANK", engine.rank)) == 0:
        for old in _complete(run_dir, engine.rank):
            if old not in (at, Position(at.epoch), Position(best.get("epoch", 0))):
                shutil.rmtree(_folder(run_dir, old), ignore_errors=True)


def load_checkpoint(engine: Engine, run_dir: Path, at: Position
                    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Restore model, optimizers and learnable features; returns the checkpoint's note, and what
    else the epoch goes on from.

    Raises
    ------
    InputError
        A file of it is damaged, or it does not fit the run.
    """
    folder = _folder(run_dir, at)
    note, (shard, tables) = _note(run_dir, at, engine.rank), _files(engine.rank)
    sums = note.get("files")
    if sums is None:
        log.warning("checkpoint %s was written without checksums, so damage to it would not be "
                    "seen", folder)
    else:
        for name in (shard, tables):
            check_file(folder / name, sums.get(name), _complete_name(engine.rank),
                       _remedy(run_dir, at, engine.rank))
    tensors = _load(folder / shard)
    try:
        engine.model.load_state_dict(
            {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
        load_state(engine.optimizer, {k.removeprefix("adam."): v for k, v in tensors.items()
                                      if k.startswith("adam.")})
        engine.wrapped.load_state({k.removeprefix("wrapper."): v for k, v in tensors.items()
                                   if k.startswith("wrapper.")})
        load_tables(folder / tables, engine.learnable.tables())
        progress = {k.removeprefix("progress."): v for k, v in tensors.items()
                    if k.startswith("progress.")}
        if at.step and (missing := {"totals", "cpu"} - progress.keys()):
            raise KeyError(*missing)
    except (KeyError, RuntimeError, ValueError) as error:
        raise InputError(f"checkpoint {folder} does not fit this run: {error}") from None
    return note, progress


def latest_position(run_dir: Path, rank: int, world: Comm, identity: Identity) -> Position:
    """The last position that every worker has a complete checkpoint of.

    Raises
    ------
    InputError
        The checkpoint was made with other settings, another plan or another graph.
    """
    latest = max(_complete(run_dir, rank), default=Position())
    at = Position(*min(world.all_gather_json(latest, "control")))
    # One that not all workers have is not gone on from, but it may be that of other workers.
    differs = identity.difference(
        _note(run_dir, at if any(at) else latest, rank)) if any(latest) else ""
    # All say the same: a worker that has no checkpoint knows least, and may be the first to stop.
    if said := [text for text in world.all_gather_json(differs, "control") if text]:
        raise InputError(f"the checkpoint in {run_dir} was made with {said[0]}; resume with the "
                         "same, or start in a new run directory")
    return at


def saved_position(run_dir: Path, workers: int) -> Position:
    """The last position that all workers have saved, seen from outside."""
    return min(max(_complete(run_dir, rank), default=Position()) for rank in range(workers))


def recovery(run_dir: Path) -> str:
    """A sentence: which checkpoint of a run that did not end is good, and how its model is had."""
    ranks = {int(match[1]) for note in (run_dir / "checkpoints").glob("epoch-*/complete-*.json")
             if (match := re.fullmatch(r"complete-(\d+)\.json", note.name))}
    epoch = saved_position(run_dir, max(ranks) + 1).epoch if ranks else 0
    if not epoch:
        return "No epoch of this run was saved"
    best = best_epoch(_note(run_dir, Position(epoch), 0), epoch, run_dir).get("epoch", epoch)
    return (f"The model of epoch {best}, the best that was saved "
            f"({_folder(run_dir, Position(best))}), is made ready for `dgl-heta predict` by: "
            f"{resuming(run_dir, epoch)}")


def consolidate(engine: Engine, run_dir: Path) -> None:
    """Write the plain model, with the keys of :class:`PlainModel`, on worker 0.

    A learnable feature with several replicas is their mean. Its rows come a block at a time, so
    that no worker holds a table that is not its own.
    """
    learnable = engine.learnable
    gathered = _gathered_rows(learnable, engine.world)
    if engine.rank:
        for _ in gathered:  # its part in the collectives
            pass
        return
    weights = {f"model.{k}": v for k, v in engine.model.state_dict().items()}
    layout = {k: (v.dtype, tuple(v.shape)) for k, v in weights.items()}
    layout |= {f"features.{slot(t)}.weight": (learnable.dtype, (count, learnable.width))
               for t, count in learnable.counts.items()}
    # As safetensors sorts: every tensor begins at a multiple of its numbers' size.
    order = sorted(layout, key=lambda name: (-layout[name][0].itemsize, name))
    with _whole(run_dir / MODEL_FILE) as path, TensorFile(
            path, {name: layout[name] for name in order}) as file:
        for name, tensor in weights.items():
            file.put(name, tensor)
        for ntype, first, rows in gathered:
            file.put(f"features.{slot(ntype)}.weight", rows, first)
    spec = engine.spec
    write_signed(run_dir / SPEC_FILE, {
        "format": "dgl-heta-model", "version": 1,
        "provider": engine.settings.model.name,
        "plugins": {name: values for name, values in engine.settings.plugins.items()
                    if name == section_name(engine.settings.model.name)},
        "schema": spec.schema.to_json(), "input_dims": dict(spec.input_dims),
        "static": sorted(spec.static), "num_classes": dict(spec.num_classes),
        "features": {t: [count, learnable.width] for t, count in learnable.counts.items()},
        "paths": {t: [[[list(r) for r in path], width] for path, width in paths]
                  for t, paths in spec.paths.items()},
        **{key: getattr(spec, key) for key in _SIZES},
        **({"link": engine.model.decoder()} if isinstance(engine.model, Linked) else {}),
        "files": {MODEL_FILE: _sum(run_dir / MODEL_FILE)},
    }, indent=1)


_BLOCK = 2**16  # rows
_SIZES = ("layers", "hidden", "heads", "bases", "self_loop", "layer_norm", "dropout", "aggregate",
          "reduce", "subsets")


class PlainModel(nn.Module):
    """A trained model in one process: the model and its learnable features.

    `features` holds an `nn.Embedding` per node type without static features.
    """

    def __init__(self, spec: ModelSpec, rows: Mapping[str, int], provider: ModelProvider) -> None:
        super().__init__()
        self.model = provider.build(spec)
        self.features = nn.ModuleDict({slot(t): nn.Embedding(n, spec.hidden, sparse=True)
                                       for t, n in rows.items()})


def load_model(run_dir: str | Path, provider: ModelProvider | None = None) -> PlainModel:
    """The consolidated model of a run, ready for one process.

    Parameters
    ----------
    provider : of the model; needed where it was trained as `module:attribute`, because a file
        that is loaded must not say which code to run. Default: the plugin that the file names.

    Raises
    ------
    InputError
        The run has no consolidated model (it did not end), or the file is damaged.
    """
    run_dir = Path(run_dir)
    spec, rows, named = read_spec(run_dir, plugins(), given=provider)
    check_weights(run_dir)
    model = PlainModel(spec, rows, named)
    try:
        weights = _load(run_dir / MODEL_FILE)
        model.to(next(iter(weights.values())).dtype)
        model.load_state_dict(weights)
    except (KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"model {run_dir} is damaged: {error}") from None
    return model


def read_spec(run_dir: Path, registry: Plugins, name: str | None = None,
              given: ModelProvider | None = None
              ) -> tuple[ModelSpec, dict[str, int], ModelProvider]:
    """The specification of a run's model, its learnable types with their rows, its provider.

    The provider is the one `given`, or that of a `name` that the user said, or the plugin that
    the file names. A file must not say which code to import.
    """
    note = _spec(run_dir)
    try:
        check_model(note)
        spec = ModelSpec(Schema.from_json(note["schema"]), note["input_dims"],
                         frozenset(note["static"]), note["num_classes"],
                         **{key: note[key] for key in _SIZES},
                         paths={t: tuple((tuple(Relation(*r) for r in path), int(width))
                                         for path, width in paths)
                                for t, paths in note["paths"].items()})
        rows = {t: int(shape[0]) for t, shape in note["features"].items()}
        provider = given
        if provider is None:
            if ":" in str(note["provider"]) and name is None:
                raise InputError(
                    f"the model in {run_dir} was trained as '{note['provider']}', which a file "
                    "cannot make dgl-heta import; say so with --model, or give load_model the "
                    "provider, for example BlockModel('mine', MyLayer)")
            own = registry.configured(Settings(plugins=note.get("plugins", {})))
            provider = find_model(own, name or note["provider"])
        if "link" in note:
            if not {*note["link"]["relations"]} <= {*map(str, spec.schema.relations)}:
                raise ValueError("link is about relations that are not in its schema")
            provider = decoded(provider, **note["link"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"model {run_dir} is damaged: {error}") from None
    return spec, rows, provider


def _gathered_rows(learnable: LearnableFeatures, world: Comm
                   ) -> Iterator[tuple[str, int, Tensor]]:
    """All rows of every learnable type on worker 0, a block at a time: type, its first row, rows.
    Replicas are averaged. On other workers nothing comes, but each must iterate to the end."""
    shards = learnable.shards()
    first = world.rank == 0
    from_all = [1 if first else 0] * world.size
    for ntype, count in learnable.counts.items():
        low, rows = shards.get(ntype, (0, torch.empty((0, learnable.width), dtype=learnable.dtype)))
        extents = world.all_to_all_rows(torch.tensor([[low, low + len(rows)]]),
                                        [1] + [0] * (world.size - 1), from_all, "control").tolist()
        for start in range(0, count, _BLOCK):
            stop = min(start + _BLOCK, count)
            owned = rows[max(start - low, 0):max(stop - low, 0)]
            overlaps = [(max(a, start), max(min(b, stop), max(a, start))) for a, b in extents]
            sizes = [b - a for a, b in overlaps] if first else [0] * world.size
            arrived = world.all_to_all_rows(owned, [len(owned)] + [0] * (world.size - 1), sizes,
                                            "control")
            if first:
                rows_of_all = torch.zeros((stop - start, learnable.width), dtype=learnable.dtype)
                copies = torch.zeros((stop - start, 1), dtype=learnable.dtype)
                for (a, b), part in zip(overlaps, arrived.split(sizes)):
                    rows_of_all[a - start:b - start] += part
                    copies[a - start:b - start] += 1
                yield ntype, start, rows_of_all / copies.clamp(min=1)


def _folder(run_dir: Path, at: Position) -> Path:
    step = f"-step-{at.step:05d}" if at.step else ""
    return run_dir / "checkpoints" / f"epoch-{at.epoch:05d}{step}"


def _position(folder: Path) -> Position | None:
    """Return the position that a directory is the checkpoint of."""
    match = re.fullmatch(r"epoch-(\d+)(?:-step-(\d+))?", folder.name)
    return Position(*(int(number or 0) for number in match.groups())) if match else None


def _new_folder(run_dir: Path, at: Position) -> Path:
    """The directory of a checkpoint, which is there afterwards; what is written to it stays
    there."""
    folder = _folder(run_dir, at)
    for path in (folder.parent, folder):
        check_plain(path, directory=True)
        try:
            path.mkdir(exist_ok=True)
        except OSError as error:
            raise HetaError(f"cannot make {path}: {error.strerror or error}") from None
    return folder


def _complete(run_dir: Path, rank: int) -> list[Position]:
    notes = (run_dir / "checkpoints").glob(f"epoch-*/complete-{rank}.json")
    return sorted(at for note in notes if (at := _position(note.parent)) is not None)


def _files(rank: int) -> tuple[str, str]:
    """The files of a checkpoint that a worker writes: its shard, its learnable features."""
    return f"rank-{rank}.safetensors", f"rows-{rank}.safetensors"


def _complete_name(rank: int) -> str:
    return f"complete-{rank}.json"


def _note(run_dir: Path, at: Position, rank: int) -> dict[str, Any]:
    """The content of the file that says that a checkpoint is complete."""
    path, remedy = _folder(run_dir, at) / _complete_name(rank), _remedy(run_dir, at, rank)
    note = read_signed(path, remedy)
    if (note.get("epoch"), note.get("step", 0)) != at or not isinstance(
            note.get("best"), dict) or not isinstance(note.get("files", {}), dict):
        raise InputError(f"{path} is damaged: it is not of epoch {at.epoch}; {remedy}")
    return note


def _remedy(run_dir: Path, at: Position, rank: int) -> str:
    """The remedy for a damaged checkpoint."""
    complete = _complete(run_dir, rank)
    earlier = [one for one in complete if one < at]
    if earlier and at == max(complete):
        return (f"that of epoch {max(earlier).epoch} is complete: remove {_folder(run_dir, at)} "
                "and resume to go on from there")
    return "there is no other one to go on from; train in a new run directory"


def _spec(run_dir: Path) -> dict[str, Any]:
    if not (run_dir / SPEC_FILE).exists():
        raise InputError(f"the run in {run_dir} has no model ({SPEC_FILE}): it did not come to its "
                         f"end. {recovery(run_dir)}")
    return read_signed(run_dir / SPEC_FILE, "train again, or resume the run to write it again")


def check_weights(run_dir: Path) -> None:
    """Compare the consolidated model with the checksum in `model.json`.

    Raises
    ------
    InputError
        They differ, or a file cannot be read.
    """
    files = _spec(run_dir).get("files")
    if files is None:
        log.warning("model %s was written without checksums, so damage to it would not be seen",
                    run_dir)
    elif not isinstance(files, dict):
        raise InputError(f"model {run_dir} is damaged: {SPEC_FILE} lists no files")
    else:
        check_file(run_dir / MODEL_FILE, files.get(MODEL_FILE), SPEC_FILE,
                   "resume the run to write it again from its last checkpoint")


def check_checkpoints(run_dir: Path) -> None:
    """Compare all complete checkpoints with their checksums.

    Raises
    ------
    InputError
        One is damaged.
    """
    for path in sorted((run_dir / "checkpoints").glob("epoch-*/complete-*.json")):
        rank, at = path.stem.removeprefix("complete-"), _position(path.parent)
        if not rank.isdecimal() or at is None:
            continue
        files = _note(run_dir, at, int(rank)).get("files") or {}
        for name in _files(int(rank)):
            if files:
                check_file(path.parent / name, files.get(name), path.name,
                           _remedy(run_dir, at, int(rank)))


def _sum(path: Path) -> str:
    try:
        return file_sum(path)
    except OSError as error:
        raise HetaError(f"cannot read {path} again, which was just written: "
                        f"{error.strerror or error}") from None


def _save(path: Path, tensors: dict[str, Tensor]) -> None:
    with _whole(path) as temporary:
        save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, temporary)


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """:func:`replacing`, for writers of tensors too."""
    try:
        with replacing(path) as temporary:
            yield temporary
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise HetaError(f"cannot write {path}: {reason}") from error


def _load(path: Path) -> dict[str, Tensor]:
    try:
        with utf8_name(path) as name:
            return load_file(name)
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
