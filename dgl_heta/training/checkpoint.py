"""Checkpoints: every worker its shard, one consolidated model at the end.

All files are safetensors and JSON: nothing that is loaded can execute code. A checkpoint is a
directory `checkpoints/epoch-0003`; it counts once its `complete-<rank>.json` are there, which
are written after every worker has written its shard.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dgl_heta.errors import HetaError, InputError
from dgl_heta.features import LearnableFeatures
from dgl_heta.models import ModelSpec
from dgl_heta.models.rgcn import slot
from dgl_heta.plugins import Plugins, plugins
from dgl_heta.raf.comm import Comm
from dgl_heta.schema import Schema
from dgl_heta.training.engine import Engine

MODEL_FILE, SPEC_FILE = "model.safetensors", "model.json"


def save_checkpoint(engine: Engine, run_dir: Path, epoch: int, best: dict[str, Any],
                    fingerprint: str) -> None:
    """Write the checkpoint of an epoch and drop those but the last and the best."""
    folder = _folder(run_dir, epoch)
    folder.mkdir(parents=True, exist_ok=True)
    if int(os.environ.get("LOCAL_RANK", engine.rank)) == 0:
        dense = {f"model.{k}": v for k, v in engine.model.state_dict().items()}
        for index, state in engine.optimizer.state_dict()["state"].items():
            dense.update({f"adam.{index}.{k}": torch.as_tensor(v) for k, v in state.items()})
        _save(folder / "dense.safetensors", dense)
    _save(folder / f"rank-{engine.rank}.safetensors", {
        f"{name}.{key}": value for name, table in engine.learnable.tables().items()
        for key, value in table.state().items()})
    engine.world.barrier()
    note = {"epoch": epoch, "best": best, "fingerprint": fingerprint}
    _write(folder / f"complete-{engine.rank}.json", json.dumps(note))
    engine.world.barrier()
    if int(os.environ.get("LOCAL_RANK", engine.rank)) == 0:
        for old in _complete(run_dir, engine.rank):
            if old not in (epoch, best.get("epoch")):
                shutil.rmtree(_folder(run_dir, old), ignore_errors=True)


def load_checkpoint(engine: Engine, run_dir: Path, epoch: int) -> dict[str, Any]:
    """Restore model, optimizers and learnable features; returns the checkpoint's note."""
    folder = _folder(run_dir, epoch)
    note = _note(folder / f"complete-{engine.rank}.json")
    dense = _load(folder / "dense.safetensors")
    try:
        engine.model.load_state_dict(
            {k.removeprefix("model."): v for k, v in dense.items() if k.startswith("model.")})
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in dense.items():
            if name.startswith("adam."):
                _, index, key = name.split(".", 2)
                state.setdefault(int(index), {})[key] = value
        groups = engine.optimizer.state_dict()["param_groups"]
        engine.optimizer.load_state_dict({"state": state, "param_groups": groups})
        rows = _load(folder / f"rank-{engine.rank}.safetensors")
        for name, table in engine.learnable.tables().items():
            table.load({key: rows[f"{name}.{key}"] for key in table.state()})
    except (KeyError, RuntimeError, ValueError) as error:
        raise InputError(f"checkpoint {folder} does not fit this run: {error}") from None
    return note


def latest_epoch(run_dir: Path, rank: int, world: Comm, fingerprint: str) -> int:
    """The last epoch that every worker has a complete checkpoint of; 0 if none.

    Raises
    ------
    InputError
        The checkpoint was made with other settings, another plan or another graph.
    """
    mine = max(_complete(run_dir, rank), default=0)
    oldest = torch.tensor([float(mine)])
    epoch = int(world.all_reduce(oldest, "min", "control").item())
    if epoch:
        note = _note(_folder(run_dir, epoch) / f"complete-{rank}.json")
        if note.get("fingerprint") != fingerprint:
            raise InputError(
                f"the checkpoint in {run_dir} was made with other settings, another plan or "
                "another graph; resume with the same ones, or start in a new run directory"
            )
    return epoch


def consolidate(engine: Engine, run_dir: Path) -> None:
    """Write the plain model, with the keys of :class:`PlainModel`, on worker 0.

    A learnable feature with several replicas is their mean.
    """
    tables = gather_tables(engine.learnable, engine.world)
    if engine.rank:
        return
    weights = {f"model.{k}": v.detach().cpu() for k, v in engine.model.state_dict().items()}
    weights.update({f"features.{slot(t)}.weight": rows for t, rows in tables.items()})
    _save(run_dir / MODEL_FILE, weights)
    spec = engine.spec
    _write(run_dir / SPEC_FILE, json.dumps({
        "format": "dgl-heta-model", "version": 1,
        "provider": engine.settings.model.name,
        "schema": spec.schema.to_json(), "input_dims": dict(spec.input_dims),
        "static": sorted(spec.static), "num_classes": dict(spec.num_classes),
        "features": {t: list(rows.shape) for t, rows in tables.items()},
        **{key: getattr(spec, key) for key in _SIZES},
    }, indent=1))


_SIZES = ("layers", "hidden", "bases", "self_loop", "layer_norm", "dropout", "aggregate", "reduce")


class PlainModel(nn.Module):
    """A trained model in one process: the model and its learnable features.

    `features` holds an `nn.Embedding` per node type without static features.
    """

    def __init__(self, spec: ModelSpec, rows: Mapping[str, int], provider: str = "rgcn",
                 registry: Plugins | None = None) -> None:
        super().__init__()
        self.model = (registry or plugins()).get("model", provider).build(spec)
        self.features = nn.ModuleDict({slot(t): nn.Embedding(n, spec.hidden, sparse=True)
                                       for t, n in rows.items()})


def load_model(run_dir: str | Path) -> PlainModel:
    """The consolidated model of a run, ready for one process.

    Raises
    ------
    InputError
        The run has no consolidated model (it did not end), or the file is damaged.
    """
    run_dir = Path(run_dir)
    note = _note(run_dir / SPEC_FILE)
    try:
        spec = ModelSpec(Schema.from_json(note["schema"]), note["input_dims"],
                         frozenset(note["static"]), note["num_classes"],
                         **{key: note[key] for key in _SIZES})
        model = PlainModel(spec, {t: shape[0] for t, shape in note["features"].items()},
                           note["provider"])
        weights = _load(run_dir / MODEL_FILE)
        model.to(next(iter(weights.values())).dtype)
        model.load_state_dict(weights)
    except (KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"model {run_dir} is damaged: {error}") from None
    return model


def gather_tables(learnable: LearnableFeatures, world: Comm) -> dict[str, Tensor]:
    """All rows of every learnable type on worker 0; replicas are averaged. Empty elsewhere."""
    held = learnable.shards()
    tables = {}
    for ntype, count in learnable.counts.items():
        low, rows = held.get(ntype, (0, None))
        size = len(rows) if rows is not None else 0
        mine = rows if rows is not None else torch.empty((0, learnable.width),
                                                         dtype=learnable.dtype)
        to_first = [size] + [0] * (world.size - 1)
        extent = torch.tensor([[low, size]])
        ones = [1] + [0] * (world.size - 1)
        first = world.rank == 0
        extents = world.all_to_all_rows(extent, ones, [1 if first else 0] * world.size, "control")
        sizes = extents[:, 1].tolist() if first else [0] * world.size
        everything = world.all_to_all_rows(mine, to_first, sizes, "control")
        if not first:
            continue
        total = torch.zeros((count, learnable.width), dtype=learnable.dtype)
        copies = torch.zeros((count, 1), dtype=learnable.dtype)
        start = 0
        for begin, size in extents.tolist():
            total[begin:begin + size] += everything[start:start + size]
            copies[begin:begin + size] += 1
            start += size
        tables[ntype] = total / copies.clamp(min=1)
    return tables


def _folder(run_dir: Path, epoch: int) -> Path:
    return run_dir / "checkpoints" / f"epoch-{epoch:05d}"


def _complete(run_dir: Path, rank: int) -> list[int]:
    found = []
    for note in (run_dir / "checkpoints").glob(f"epoch-*/complete-{rank}.json"):
        if match := re.fullmatch(r"epoch-(\d+)", note.parent.name):
            found.append(int(match[1]))
    return sorted(found)


def _note(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    if not isinstance(data, dict):
        raise InputError(f"{path} is damaged: it holds no object")
    return data


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(path)


def _save(path: Path, tensors: dict[str, Tensor]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, temporary)
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise HetaError(f"cannot write {path}: {error}") from error


def _load(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
