"""Destination rows that a script's trainer aggregates for another one.

Where a partition was made with `partition.shared`, one trainer of a group runs some relations of
layer 1 for all of them (:mod:`dgl_heta.planning.delegation`). A script sees its own rows alone:
those of others stand after them inside HeteroGraphConv and multi_update_all. What modules read of
a destination is sent by the trainer that has it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from dgl_heta.distdgl.layers import Layer
from dgl_heta.distdgl.merging import agreed_shape, wide
from dgl_heta.errors import HetaError

_INSTEAD = ("where one partition aggregates for the others (the partition was made with "
            "partition.shared); set partition.shared = rows")


def has_guests(layer: Layer) -> bool:
    """Whether trainers aggregate rows for each other in a block."""
    return layer.block.delegated and layer.session.group.size > 1


def check_merge(layer: Layer, aggregate: Any) -> None:
    """
    Raises
    ------
    HetaError
        Relations that one trainer runs for others are merged by what cannot be: on all trainers.
    """
    if has_guests(layer) and aggregate in ("max", "min"):
        raise HetaError(f"relations cannot be merged by {aggregate!r} {_INSTEAD}")


def check_by_batch(layer: Layer, by_batch: bool) -> None:
    """The same for multi_update_all, whose result may depend on what is in a trainer's batch."""
    if has_guests(layer) and by_batch:
        raise HetaError("multi_update_all cannot use a maximum, a minimum or a reduce function of "
                        f"the script's own {_INSTEAD}")


def with_guests(layer: Layer, owner: Any, given: Mapping[str, Any], read: Collection[str],
                like: Tensor) -> dict[str, Any]:
    """Per node type that has guests on any trainer the states of all destination rows, if modules
    `read` them, else of this trainer's own. All trainers of the group call it alike.

    Parameters
    ----------
    given : the script's states of its own rows; a type without rows may not be there.
    like : gives the device of states that nobody has given.

    Raises
    ------
    HetaError
        A type that has rows was left out on a trainer, or its states are no single tensor.
    """
    session, block = layer.session, layer.block
    left = [t for t in block.guests if t not in given and block.num_own(t)]
    if not session.agreed((owner, block.layer, "guests"), not left) or left:
        raise HetaError((f"the rows of '{left[0]}' are" if left else "rows of a node type are")
                        + f" left out of HeteroGraphConv's inputs, which cannot be {_INSTEAD}")
    found = {}
    for ntype in block.guests:
        rows = given.get(ntype)
        if ntype not in read:
            found[ntype] = like.new_zeros(0) if rows is None else rows
            continue
        if rows is not None and not isinstance(rows, Tensor):
            raise HetaError(f"the states of '{ntype}' are several tensors, which they cannot be "
                            f"{_INSTEAD}")
        known = agreed_shape(layer, (owner, ntype, "destination"),
                             [] if rows is None else [rows.shape[1:]],
                             [] if rows is None else [rows.dtype])
        if known is None:  # nobody has any
            found[ntype] = like.new_zeros(0)
            continue
        if rows is None:
            rows = like.new_zeros((0, *known[0]), dtype=known[1])
        found[ntype] = gathered(layer, ntype, rows)
    return found


def gathered(layer: Layer, ntype: str, rows: Tensor) -> Tensor:
    """States of this trainer's own rows with those of its guests, from who has them."""
    own = rows[:layer.block.num_own(ntype)].to(wide(rows.dtype))
    return layer.session.exchange.gather_guests(own, layer.block, ntype).to(rows.dtype)


def without_absent(layer: Layer, merged: dict[str, Tensor], given: Mapping[str, Any]
                   ) -> dict[str, Tensor]:
    """Results without types that are here for other trainers alone, which the script has not."""
    block = layer.block
    return {t: x for t, x in merged.items()
            if t in given or t in block.seeds or t not in block.guests}
