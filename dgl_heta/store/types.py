"""The types of what a manifest says, checked before anything follows from it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dgl_heta.graph.schema import MOST

_Count = Annotated[int, Field(ge=0, le=MOST + 1)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class _Array(_Part):
    file: str
    # NumPy parses others as Python.
    dtype: Annotated[str, Field(pattern=r"^[<>=|]?[a-zA-Z][0-9]{0,4}$")]
    shape: Annotated[list[_Count], Field(max_length=32)]
    bytes: Annotated[int, Field(ge=0, lt=2**63)]
    sha256: str
    scale: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] | None = None


class _Given(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    name: str
    # A name in PyTorch.
    dtype: Annotated[str, Field(pattern="^(bool|bfloat16|(uint|int|float|complex)[1368][0-9]*)$")]
    shape: Annotated[list[_Count], Field(max_length=32)]
    sha256: str
    unfit: str = ""


class _Ids(_Part):
    offsets: _Array
    text: _Array


class _Type(_Part):
    count: _Count
    arrays: dict[str, _Array]
    ids: _Ids | None = None
    times: _Array | None = None
    given: dict[str, _Given] = {}


class _Relation(_Part):
    src: str
    etype: str
    dst: str
    edges: _Count
    indptr: _Array
    indices: _Array
    edge_ids: _Array | None = None
    times: _Array | None = None
    arrays: dict[str, _Array] = {}
    given: dict[str, _Given] = {}


class _Task(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    target: str
    num_classes: Annotated[int, Field(ge=1, lt=2**31)]
    label: str = "label"
    kind: Literal["classification", "multilabel", "regression"] = "classification"
    unlabelled: Annotated[float | None, Field(allow_inf_nan=False)] = None


class _Manifest(_Part):
    created_by: str
    name: str
    node_types: dict[str, _Type]
    relations: list[_Relation]
    task: _Task | None
    info: dict[str, Any]


def check_types(data: Any) -> None:
    """Refuse a manifest with a value of another type.

    Raises
    ------
    ValueError
        There is one; says which.
    """
    try:
        manifest = _Manifest.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))[:200]}: {first['msg']}") from None
    if manifest.task is not None and manifest.task.target not in manifest.node_types:
        raise ValueError("its task is about a node type that is not there")
