"""The states of all destination rows that modules of relations read on this machine.

A script gives the states of its own rows. Modules here run for more of them: at the last layer for
the seeds of all trainers of the group; and where a partition was made with `partition.shared`, for
remote destinations, rows of other trainers whose relations of layer 1 are offloaded to this machine
(:mod:`dgl_heta.planning.offloading`). These stand after the trainer's own rows, inside
HeteroGraphConv and multi_update_all alone. The trainer that has a row sends its state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor
from torch.utils._pytree import (
    tree_flatten,
    tree_map,
    tree_unflatten,
    treespec_dumps,
    treespec_loads,
)

from dgl_heta.distdgl.blocks.layer import Layer
from dgl_heta.distdgl.modules.agreements import agreed_form, known, merge_dtype
from dgl_heta.distdgl.refusals import refuse

_LEFT_OUT = "left out"


def mapped(function: Callable[[Tensor], Tensor], rows: Any) -> Any:
    """Apply a function to the rows of a node type: a tensor, or each of several."""
    return rows if rows is None else tree_map(function, rows)


def all_destinations(layer: Layer, ntype: str, rows: Tensor) -> Tensor:
    """Return all destination rows of a type on this machine, from the trainer's own."""
    # Collective, see :func:`with_seeds` and :func:`with_remote`.
    if has_remote(layer) and ntype in layer.block.remote:
        return with_remote(layer, ntype, rows)
    if ntype not in layer.block.num_dst:
        return rows[:0]
    every: Tensor = with_seeds(layer, ntype, rows, True)
    return every


def with_seeds(layer: Layer, ntype: str, rows: Any, read: bool) -> Any:
    """Return the destination rows of a type, at the last layer with those of all the group's seeds;
    `rows` can be several tensors, in tuples, lists and dictionaries."""
    # Collective if they are `read` there: the trainers gather them, for the script gives its own
    # seeds' alone, or these alone are complete. Elsewhere the rows are here already.
    block = layer.block
    if not read or not block.last or layer.session.group.size == 1 or not block.num_seeds(ntype):
        return mapped(lambda x: x[:block.num_dst[ntype]], rows)

    def gather(x: Tensor) -> Tensor:
        # Own seeds lead. Exchanges add gradients of these rows, so in float32 at least.
        own = x[:block.seeds[ntype].own].to(merge_dtype(x.dtype))
        return layer.session.exchange.gather_rows(own, block, ntype).to(x.dtype)
    return mapped(gather, rows)


def has_remote(layer: Layer) -> bool:
    """Return whether trainers aggregate rows for each other in a block; the same on all of them."""
    return layer.block.offloads and layer.session.group.size > 1


def with_remote(layer: Layer, ntype: str, rows: Tensor) -> Tensor:
    """Return this trainer's own destination rows with the remote ones, sent by who has them."""
    own = rows[:layer.block.num_own(ntype)].to(merge_dtype(rows.dtype))
    return layer.session.exchange.gather_remote(own, layer.block, ntype).to(rows.dtype)


def states_with_remote(layer: Layer, owner: Any, given: Mapping[str, Any], read: Collection[str],
                       like: Tensor) -> dict[str, Any]:
    """Return per node type with remote destinations the states of all destination rows, if modules
    `read` them, else of this trainer's own.

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
    # Collective: what states are built of and their forms once an epoch, then the rows, type by
    # type and tensor by tensor.
    states: dict[str, Any] = {}
    for ntype, structure in _structures(layer, owner, given).items():
        rows = given.get(ntype)
        if structure == _LEFT_OUT:
            # Nobody exchanges them, which the check at the end of the batch would take for a fault.
            layer.block.done.add((layer.block.layer, ntype))
        elif structure is None or ntype not in read:
            states[ntype] = like.new_zeros(0) if rows is None else rows
        else:
            leaves = [] if rows is None else tree_flatten(rows)[0]
            tree = treespec_loads(structure)
            states[ntype] = tree_unflatten(
                [_leaf_with_remote(layer, ntype, (owner, ntype, "destination", number),
                                   leaves[number:number + 1], like)
                 for number in range(tree.num_leaves)], tree)
    return states


def _leaf_with_remote(layer: Layer, ntype: str, owner: tuple[Any, ...], rows: list[Tensor],
                      like: Tensor) -> Tensor:
    """Return one tensor of the states, without own rows where `rows` is empty."""
    form = agreed_form(layer, owner, [x.shape[1:] for x in rows], [x.dtype for x in rows])
    assert form is not None  # who told the structure has them
    none = like.new_zeros((0, *form.shape), dtype=form.dtype)
    return with_remote(layer, ntype, rows[0] if rows else none)


def _structures(layer: Layer, owner: Any, given: Mapping[str, Any]) -> dict[str, str | None]:
    """Return per node type with remote destinations how its states are built of tensors; "left out"
    where who has rows gives none, None where nobody has rows. Agreed on once an epoch."""
    block = layer.block
    own = {ntype: _structure(layer, ntype, given.get(ntype)) for ntype in block.remote}
    key = (owner, block.layer, "structures")
    agreed: dict[str, str | None] | None = known(layer).get(key)
    if agreed is None or None in agreed.values():  # or nobody had rows before
        every = layer.session.group.all_gather_json(own, "control")
        agreed = {t: _one([structures[t] for structures in every], t) for t in own}
        known(layer)[key] = agreed
    for ntype, structure in own.items():
        _one([structure, agreed[ntype]], ntype)
    return dict(agreed)


def _structure(layer: Layer, ntype: str, rows: Any) -> str | None:
    if rows is None:
        return _LEFT_OUT if layer.block.num_own(ntype) else None
    leaves, tree = tree_flatten(rows)
    if not all(isinstance(x, Tensor) for x in leaves):
        refuse("states that are no tensors", ntype=ntype)
    return str(treespec_dumps(tree))


def _one(structures: list[str | None], ntype: str) -> str | None:
    """Return the structure that all who have rows tell."""
    there = sorted({structure for structure in structures if structure is not None})
    if len(there) > 1:
        refuse("states left out by some" if _LEFT_OUT in there else "states of other tensors",
               ntype=ntype)
    return there[0] if there else None


def without_absent(layer: Layer, merged: dict[str, Tensor], given: Mapping[str, Any]
                   ) -> dict[str, Tensor]:
    """Return results without types that are here for other trainers alone."""
    block = layer.block
    return {t: x for t, x in merged.items()
            if t in given or t in block.seeds or t not in block.remote}
