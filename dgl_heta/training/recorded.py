"""The values that a run left in JSON files, checked before anything follows from them.

A checksum says that a file is as it was written; one who writes the file writes the checksum, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dgl_heta.errors import InputError
from dgl_heta.settings import ModelSettings, Settings

_Width = Annotated[int, Field(ge=0, le=2**31)]
_Count = Annotated[int, Field(ge=0, le=2**48)]
_SIZES = ("layers", "hidden", "heads", "bases", "self_loop", "layer_norm", "dropout", "aggregate",
          "reduce", "subsets")


class _Best(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    epoch: Annotated[int, Field(ge=1)]
    val_acc: Annotated[float | None, Field(allow_inf_nan=True)] = None


class _Link(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    decoder: Literal["distmult"]
    relations: Annotated[list[str], Field(min_length=1, max_length=2**20)]


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    provider: str
    plugins: dict[str, dict[str, Any]] = {}
    input_dims: dict[str, _Width]
    static: list[str]
    num_classes: dict[str, Annotated[int, Field(ge=1, le=2**31)]]
    features: dict[str, Annotated[list[_Count], Field(min_length=2, max_length=2)]]
    paths: dict[str, list[tuple[list[Annotated[list[str], Field(min_length=3, max_length=3)]],
                                _Width]]]
    link: _Link | None = None


def best_epoch(note: Mapping[str, Any], epoch: int, where: Path) -> dict[str, Any]:
    """The best epoch so far, as the note of the checkpoint of an epoch says; {} if there is none.

    Raises
    ------
    InputError
        It is not written as training writes it.
    """
    best = note.get("best")
    if best == {}:
        return {}
    try:
        checked = _Best.model_validate(best)
        if checked.epoch > epoch:
            raise ValueError
    except ValueError:  # of pydantic, too
        raise InputError(f"the checkpoint of epoch {epoch} in {where} is damaged: what it says of "
                         "the best epoch is not what training writes") from None
    return checked.model_dump()


def check_model(note: Mapping[str, Any]) -> None:
    """Check the types and sizes in `model.json`, and that they are about its schema.

    Raises
    ------
    ValueError
        Something is of another type, too large, or about node types that are not there.
    """
    try:
        read = _Model.model_validate({**note, "paths": _pairs(note.get("paths"))})
        ModelSettings.model_validate({key: note[key] for key in _SIZES}, strict=True)
    except ValidationError as error:
        raise ValueError(_first(error)) from None
    schema = note["schema"]
    known = set(schema["node_counts"]) if isinstance(schema, dict) else set()
    for key in ("input_dims", "static", "num_classes", "features", "paths"):
        for ntype in getattr(read, key):
            if ntype not in known:
                raise ValueError(f"{key} has {ntype[:80]!r}, which is no node type of its schema")
    if read.input_dims.keys() != known:
        raise ValueError("input_dims lacks a node type")


def recorded_settings(values: Any, where: Path) -> Settings:
    """The settings that a run was trained with.

    Raises
    ------
    InputError
        They are no settings.
    """
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise InputError(f"{where} is damaged: settings: {_first(error)}") from None


def _pairs(paths: Any) -> Any:
    if not isinstance(paths, dict):
        return paths
    return {ntype: [tuple(path) if isinstance(path, list) else path for path in listed]
            if isinstance(listed, list) else listed for ntype, listed in paths.items()}


def _first(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))[:200]}: {first['msg']}"
