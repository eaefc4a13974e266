"""The model that a training leaves: written as one file, and read for one process.

`model.safetensors` has the parameters and the learnable features, `model.json` what the model is
built from. Neither is ever in memory as a whole: rows are written a block at a time, and read where
they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dgl_heta.comm.collectives import Comm
from dgl_heta.errors import InputError
from dgl_heta.features import LearnableFeatures
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.hooks.manager import Plugins, plugins
from dgl_heta.models import ModelProvider, ModelSpec, find_model, slot
from dgl_heta.models.link_model import Linked, decoded
from dgl_heta.settings import Settings, section_name
from dgl_heta.system.checksums import check_file, read_signed, write_signed
from dgl_heta.training.checkpoint_files import recovery, written_sum
from dgl_heta.training.engine import Engine
from dgl_heta.training.recorded import check_model
from dgl_heta.training.table_files import TensorFile, mapped_tensors, written

MODEL_FILE, SPEC_FILE = "model.safetensors", "model.json"
_BLOCK = 2**16  # rows
_SIZES = ("layers", "hidden", "heads", "bases", "self_loop", "layer_norm", "dropout", "aggregate",
          "reduce", "subsets")


def write_weights(path: Path, model: nn.Module, learnable: LearnableFeatures, world: Comm) -> None:
    """Write the parameters and all learnable features as one file, on worker 0; all call it.

    A learnable feature with several replicas is their mean. Its rows come a block at a time, so
    that no worker holds a table that is not its own.
    """
    gathered = _gathered_rows(learnable, world)
    if world.rank:
        for _ in gathered:  # its part in the collectives
            pass
        return
    weights = {f"model.{k}": v for k, v in model.state_dict().items()}
    layout = {k: (v.dtype, tuple(v.shape)) for k, v in weights.items()}
    layout |= {f"features.{slot(t)}.weight": (learnable.dtype, (count, learnable.width))
               for t, count in learnable.counts.items()}
    # As safetensors sorts: every tensor begins at a multiple of its numbers' size.
    order = sorted(layout, key=lambda name: (-layout[name][0].itemsize, name))
    with written(path) as temporary, TensorFile(
            temporary, {name: layout[name] for name in order}) as file:
        for name, tensor in weights.items():
            file.put(name, tensor)
        for ntype, first, rows in gathered:
            file.put(f"features.{slot(ntype)}.weight", rows, first)


def consolidate(engine: Engine, run_dir: Path) -> None:
    """Write the plain model, with the keys of :class:`PlainModel`, on worker 0."""
    learnable = engine.learnable
    engine.distributed.warn_of_buffers()
    write_weights(run_dir / MODEL_FILE, engine.model, learnable, engine.world)
    if engine.rank:
        return
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
        "files": {MODEL_FILE: written_sum(run_dir / MODEL_FILE)},
    }, indent=1)


class PlainModel(nn.Module):
    """A trained model in one process: the model and its learnable features.

    `features` holds an `nn.Embedding` per node type without static features.

    Parameters
    ----------
    tables : node type → its rows (nodes, width), which are not copied.
    """

    def __init__(self, spec: ModelSpec, tables: Mapping[str, Tensor], provider: ModelProvider
                 ) -> None:
        super().__init__()
        self.model = provider.build(spec)
        self.features = nn.ModuleDict({
            slot(t): nn.Embedding.from_pretrained(rows, freeze=False, sparse=True)
            for t, rows in tables.items()})


def load_model(run_dir: str | Path, provider: ModelProvider | None = None) -> PlainModel:
    """The consolidated model of a run, ready for one process.

    Learnable features stay in the file: memory has the pages of it that are read, and those that
    are written, as in training, which the file does not get.

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
    spec, shapes, named = read_spec(run_dir, plugins(), given=provider)
    check_weights(run_dir)
    tensors, _ = mapped_tensors(run_dir / MODEL_FILE)
    model = PlainModel(spec, learned_tables(tensors, shapes), named)
    load_weights(model.model, tensors)
    return model


def learned_tables(tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, int]]
                   ) -> dict[str, Tensor]:
    """The learnable features in a model's file, by node type.

    Raises
    ------
    InputError
        They do not have the shapes that `model.json` says.
    """
    tables = {t: tensors.get(f"features.{slot(t)}.weight", torch.empty(0)) for t in shapes}
    for ntype, rows in tables.items():
        if rows.shape != shapes[ntype]:
            raise _another(f"rows of '{ntype}' have the shape {list(rows.shape)}")
    return tables


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load the parameters in a model's file, in their own precision.

    Raises
    ------
    InputError
        They are not those of the model.
    """
    weights = {name.removeprefix("model."): tensor for name, tensor in tensors.items()
               if name.startswith("model.")}
    try:
        dtype = next(w.dtype for w in weights.values() if w.is_floating_point())
        if any(p.dtype != dtype for p in model.parameters()):  # (`to` may make new parameters)
            model.to(dtype)
        model.load_state_dict(weights)
    except (RuntimeError, StopIteration) as error:
        raise _another(" ".join(str(error).split()) or "it is empty") from None


def _another(why: str) -> InputError:
    return InputError(f"the model in the run's {MODEL_FILE} is not the one that {SPEC_FILE} "
                      f"describes: {why}")


def read_spec(run_dir: Path, registry: Plugins, name: str | None = None,
              given: ModelProvider | None = None
              ) -> tuple[ModelSpec, dict[str, tuple[int, int]], ModelProvider]:
    """The specification of a run's model, the shapes of its learnable types, its provider.

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
        shapes = {t: (int(rows), int(width)) for t, (rows, width) in note["features"].items()}
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
            # Relations of a table of links may be others than the graph's, between its types.
            types = spec.schema.node_types
            if not all(text.startswith(tuple(f"{t} " for t in types))
                       and text.endswith(tuple(f" {t}" for t in types))
                       for text in note["link"]["relations"]):
                raise ValueError("link is about node types that are not in its schema")
            provider = decoded(provider, **note["link"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"model {run_dir} is damaged: {error}") from None
    return spec, shapes, provider


def check_weights(run_dir: Path) -> None:
    """Compare the consolidated model with the checksum in `model.json`.

    Raises
    ------
    InputError
        They differ, or a file cannot be read.
    """
    files = _spec(run_dir).get("files")
    if not isinstance(files, dict):
        raise InputError(f"model {run_dir} is damaged: {SPEC_FILE} lists no files")
    check_file(run_dir / MODEL_FILE, files.get(MODEL_FILE), SPEC_FILE,
               "resume the run to write it again from its last checkpoint")


def _spec(run_dir: Path) -> dict[str, Any]:
    if not (run_dir / SPEC_FILE).exists():
        raise InputError(f"the run in {run_dir} has no model ({SPEC_FILE}): it did not come to its "
                         f"end. {recovery(run_dir)}")
    return read_signed(run_dir / SPEC_FILE, "train again, or resume the run to write it again")


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
