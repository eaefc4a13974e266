"""Destination rows that a script's trainer aggregates for another one.

Where a partition was made with `partition.shared`, one trainer of a group runs some relations of
layer 1 for all of them (:mod:`dgl_heta.planning.offloading`). A script sees its own rows alone:
those of others stand after them inside HeteroGraphConv and multi_update_all. What modules read of
a destination is sent by the trainer that has it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten, treespec_dumps, treespec_loads

from dgl_heta.distdgl.blocks.layer import Layer
from dgl_heta.distdgl.modules.merging import agreed_shape, wide
from dgl_heta.errors import HetaError

_LEFT_OUT = "left out"


def has_guests(layer: Layer) -> bool:
    """Whether trainers aggregate rows for each other in a block."""
    return layer.block.delegated and layer.session.group.size > 1


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
        A type that has rows was left out on one trainer and not on another; or its states are of
        other tensors on one than on another.
    """
    found = {}
    for ntype, form in _forms(layer, owner, given).items():
        rows = given.get(ntype)
        if form == _LEFT_OUT:
            layer.block.done.add((layer.block.layer, ntype))
            continue
        if form is None or ntype not in read:  # nobody has any, or needs them
            found[ntype] = like.new_zeros(0) if rows is None else rows
            continue
        tree, own = treespec_loads(form), [] if rows is None else tree_flatten(rows)[0]
        states = []
        for number in range(tree.num_leaves):
            mine = own[number:number + 1]
            agreed = agreed_shape(layer, (owner, ntype, "destination", number),
                                  [x.shape[1:] for x in mine], [x.dtype for x in mine])
            assert agreed is not None  # who told the form has them
            states.append(gathered(layer, ntype, mine[0] if mine else like.new_zeros(
                (0, *agreed[0]), dtype=agreed[1])))
        found[ntype] = tree_unflatten(states, tree)
    return found


def _forms(layer: Layer, owner: Any, given: Mapping[str, Any]) -> dict[str, str | None]:
    """Per node type that has guests how its states are built of tensors; "left out" where those who
    have rows give none, None where nobody has rows. All trainers agree, once an epoch."""
    session, block = layer.session, layer.block
    own: dict[str, str | None] = {}
    for ntype in block.guests:
        rows = given.get(ntype)
        if rows is None:
            own[ntype] = _LEFT_OUT if block.num_own(ntype) else None
            continue
        leaves, tree = tree_flatten(rows)
        if not all(isinstance(x, Tensor) for x in leaves):
            raise HetaError(f"the states of '{ntype}' that HeteroGraphConv is given are not all "
                            "tensors; give a tensor, or a tuple, list or dictionary of tensors")
        own[ntype] = treespec_dumps(tree)
    key = (owner, block.layer, "forms of guests")
    known = session.groups.agreed.shapes.get(key)
    if known is None or None in known.values():  # or nobody knew before
        told = session.group.all_gather_json(own, "control")
        known = {t: _one([form[t] for form in told], t) for t in own}
        session.groups.agreed.shapes[key] = known
    for ntype, form in own.items():
        if form is not None and form != known[ntype]:
            _one([form, known[ntype]], ntype)
    return dict(known)


def _one(forms: list[str | None], ntype: str) -> str | None:
    """The form that all who know one tell."""
    there = sorted({form for form in forms if form is not None})
    if len(there) > 1:
        raise HetaError(
            f"the states of '{ntype}' are " + (
                "left out of HeteroGraphConv's inputs in some calls and trainers and given in "
                "others" if _LEFT_OUT in there else "built of other tensors in some calls and "
                "trainers than in others") + ", where one partition aggregates for the others; "
            "give the same in all, or set partition.shared = rows")
    return there[0] if there else None


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
