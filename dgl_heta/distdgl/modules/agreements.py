"""Agreement of a group's trainers on rows: each machine knows its relations alone.

A machine without a relation does not know the shape and dtype of its rows, and needs them to take
part in an exchange. So trainers ask each other when something comes for the first time in an epoch,
and remember the answer until the next one (:func:`known`). All trainers of a group must ask alike
and in the same order: every question is a collective.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dgl_heta.distdgl.blocks.layer import Layer

DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
          torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
          torch.complex128)
"""The dtypes of rows, in the order in which trainers name them to each other."""
_DIMS = 8
"""Dimensions that a row may have."""


class RowForm(NamedTuple):
    """The shape of one row and its dtype."""

    shape: torch.Size
    dtype: torch.dtype


def known(layer: Layer) -> dict[Any, Any]:
    """Return what the group has agreed on since the epoch began, by key; it may be added to."""
    return layer.session.groups.agreed


def merge_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which rows are merged and sent: float32 for less precise ones."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def described(columns: Mapping[str, Tensor]) -> list[list[Any]]:
    """Return the name, the shape of a row and the dtype of columns, for a message in JSON."""
    return [[name, list(x.shape[1:]), DTYPES.index(x.dtype)] for name, x in columns.items()]


def digest(call: Any) -> int:
    """Return 7 bytes that stand for a description in JSON, as a number that is an int64."""
    text = json.dumps(call).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")


def is_agreed(layer: Layer, owner: tuple[Any, ...]) -> bool:
    """Return whether the group knows a form since the epoch began, so that nobody asks for it; the
    same on all of its trainers."""
    return known(layer).get(_key(layer, owner)) is not None


def agreed_form(layer: Layer, owner: tuple[Any, ...], shapes: Iterable[torch.Size],
                dtypes: Iterable[torch.dtype]) -> RowForm | None:
    """Return the form of a row as any trainer of the group knows it; None if nobody does.

    Parameters
    ----------
    owner : the module that gives the rows, and which of its rows they are.
    shapes, dtypes : what this trainer knows; of several dtypes the result has the common one.
    """
    # Collective: an all-reduce at the first call of an epoch, and again where nobody knew.
    key = _key(layer, owner)
    # All trainers have the same keys, so they come here or not together.
    if known(layer).get(key) is None:
        numbers = layer.session.group.all_reduce(_in_numbers(shapes, dtypes), "max", "control")
        known(layer)[key] = _from_numbers(numbers)
    form: RowForm | None = known(layer)[key]
    return form


def complete_types(layer: Layer, merged: dict[str, Tensor], wanted: Iterable[str], owner: Any,
                   like: Tensor) -> dict[str, Tensor]:
    """Return results of all wanted node types, in DGL's order; without a row where the type is on
    other machines alone."""
    # Collective: an all-reduce at the first call of an epoch, in which who has rows tells their
    # form.
    session = layer.session
    ntypes = sorted({r.dst for r in session.store.schema.relations})
    key = ("all types", owner, *_conditions(layer, owner))
    if session.group.size > 1 and key not in known(layer):
        numbers = session.group.all_reduce(torch.stack([
            _in_numbers([merged[t].shape[1:]], [merged[t].dtype]) if t in merged
            else _in_numbers((), ()) for t in ntypes]), "max", "control")
        known(layer)[key] = {t: _from_numbers(row) for t, row in zip(ntypes, numbers)}
    forms = known(layer).get(key, {})
    any_form = next((RowForm(x.shape[1:], x.dtype) for x in merged.values()), None)
    wanted, results = set(wanted), {}
    for ntype in ntypes:
        form = forms.get(ntype) or any_form  # nobody has rows of it: any width will do
        if ntype in merged:
            results[ntype] = merged[ntype]
        elif ntype in wanted and form is not None and not layer.block.num_dst.get(ntype):
            results[ntype] = like.new_zeros((0, *form.shape), dtype=form.dtype)
    return results


def _key(layer: Layer, owner: tuple[Any, ...]) -> tuple[Any, ...]:
    return *owner, *_conditions(layer, owner[0])


def _conditions(layer: Layer, owner: Any) -> tuple[Any, ...]:
    """Return on what, besides the epoch, forms may depend; alike on all trainers."""
    # A script may cast its model, or compute in double now and then; outputs follow parameters.
    parameter = next(getattr(owner, "parameters", lambda: iter(()))(), None)
    return (layer.block.layer, torch.is_autocast_enabled(), torch.is_autocast_cpu_enabled(),
            None if parameter is None else parameter.dtype)


def _in_numbers(shapes: Iterable[torch.Size], dtypes: Iterable[torch.dtype]) -> Tensor:
    """Return a shape and dtypes as int64 of one length, for a maximum over trainers: the number of
    dimensions (-1 if it is not known), the dimensions, and a 1 for each dtype that is there."""
    shape, there = torch.full((1 + _DIMS,), -1, dtype=torch.int64), set(dtypes)
    for each in shapes:
        shape[0] = len(each)
        shape[1:1 + len(each)] = torch.tensor(each)
    return torch.cat([shape, torch.tensor([int(dtype in there) for dtype in DTYPES])])


def _from_numbers(numbers: Tensor) -> RowForm | None:
    if numbers[0] < 0:
        return None
    dtypes = (dtype for dtype, there in zip(DTYPES, numbers[1 + _DIMS:]) if there)
    return RowForm(torch.Size(numbers[1:1 + int(numbers[0])].tolist()),
                   functools.reduce(torch.promote_types, dtypes))
