"""The seeds of all trainers that step together, for a script whose inputs depend on seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from dgl_heta.errors import HetaError, InputError


def all_seeds(blocks: Sequence[Any] | Any) -> dict[str, Tensor]:
    """Return ids of the seeds of all trainers for which a batch's states are computed.

    Under RAF a node has one state for the seeds of all trainers of a group. So a script that feeds
    labels to the model hides those of all these nodes, not of its own seeds alone. By plain DGL, or
    where a trainer is a group by itself, they are its own seeds.

    Parameters
    ----------
    blocks : of a batch, as the data loader gave them; or one of them, with plain DGL the last.

    Returns
    -------
    Node type → ids (int64), this trainer's own first. Every type that has seeds is there.

    Raises
    ------
    InputError
        There are no blocks.
    HetaError
        It is a slice of a block.

    Examples
    --------
    >>> hidden = torch.isin(ids["paper"], dgl_heta.all_seeds(blocks)["paper"])
    """
    # Public, so that it can be imported without DGL.
    from dgl import NID
    from dgl.heterograph import DGLBlock

    from dgl_heta.distdgl.blocks.dgl_block import SEEDS
    from dgl_heta.distdgl.blocks.raf_block import RafBlock

    last = blocks[-1] if isinstance(blocks, list | tuple) and blocks else blocks
    if not isinstance(last, DGLBlock):
        raise InputError("all_seeds wants a batch's blocks, as the data loader gave them")
    if isinstance(last, RafBlock):
        if last.layer is None:
            raise HetaError("all_seeds wants a whole block, not a slice of it")
        ids, shares = last.layer.ids, last.layer.blocks[-1].seeds
        return {t: ids[t][:share.total] for t, share in shares.items()}
    if (known := getattr(last, SEEDS, None)) is not None:
        return dict(known)
    own = {t: last.dstnodes[t].data[NID] for t in last.dsttypes}
    return {t: ids for t, ids in own.items() if len(ids)}
