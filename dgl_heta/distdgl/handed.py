"""Node ids that data loaders handed out, and for whose seeds a script reads rows by them.

The sparse optimizers divide the gradient of a row by the number of trainers that read it for their
batches. Under RAF a trainer reads rows for the seeds of its whole group. For whom follows from the
ids that the script reads, not from the batch that was drawn last: a script may draw the next one
before it reads, or hold several.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dgl_heta.distdgl.reach import Reached
from dgl_heta.errors import HetaError
from dgl_heta.sampling.blocks import MiniBatch


class _Ids(np.ndarray):
    """Node ids (int64) that a tensor keeps alive."""

    ntype: str
    own: int
    """How many of them are the trainer's own seeds, which come first."""
    bits: np.ndarray | None
    """For each id the trainers, by rank, whose seeds reach it; None if that was not asked for."""


class Handed:
    """The ids that are in a script's hands."""

    def __init__(self) -> None:
        self._living: dict[int, weakref.ref[_Ids]] = {}
        self._number = 0

    def hand_out(self, batch: MiniBatch, reached: Reached, rank: int) -> list[dict[str, Tensor]]:
        """Ids per node type of a batch: input nodes, then those that each layer gives states of;
        last the trainer's own seeds. Each in memory of its own."""
        levels = []
        seeds = {t: len(ids) for t, ids in batch.own_seeds.items()}
        for number in range(len(batch.blocks)):
            counts = batch.blocks[number].num_src
            levels.append({t: self._hand(t, ids[:counts.get(t, 0)], seeds.get(t, 0),
                                         reached[number][t] if reached else None, number > 0)
                           for t, ids in batch.input_nodes.items()})
        levels.append({t: self._hand(t, ids, len(ids), np.full(len(ids), 1 << rank), True)
                       for t, ids in batch.own_seeds.items()})
        return levels

    def _hand(self, ntype: str, ids: np.ndarray, own: int, bits: np.ndarray | None, copy: bool
              ) -> Tensor:
        kept = (ids.copy() if copy else ids).view(_Ids)
        kept.ntype, kept.own, kept.bits = ntype, own, bits
        number = self._number = self._number + 1
        self._living[number] = weakref.ref(kept, lambda _: self._living.pop(number, None))
        return torch.from_numpy(kept)

    def own(self, ntype: str, index: Tensor) -> int | None:
        """How many of a batch's ids, which a script reads rows by, are own seeds; they come first.
        None for other ids."""
        ids = index.to("cpu", torch.int64).contiguous().numpy()
        return next((array.own for ref in list(self._living.values())
                     if (array := ref()) is not None and array.ntype == ntype
                     and len(array) == len(ids) and (array.ctypes.data == ids.ctypes.data
                                                     or np.array_equal(array, ids))), None)

    def bits(self, ntype: str, index: Tensor, rank: int) -> np.ndarray:
        """For each id that a trainer reads those that read it in plain DGL for what this one does.

        Ids that the script was given, in any order, or those of several batches together: whose
        seeds reach them. Ids of no batch that is there: this trainer alone.

        Raises
        ------
        HetaError
            Which of both is meant cannot be told, an id is there twice, or the ids were handed out
            before there was an embedding.
        """
        ids = index.to("cpu", torch.int64).contiguous().numpy()
        own = np.full(len(ids), 1 << rank)
        living = [a for ref in list(self._living.values()) if (a := ref()) is not None
                  and a.ntype == ntype and len(a)]
        for array in living:
            if array.ctypes.data == ids.ctypes.data and len(array) == len(ids):
                return _known(array)
        if not len(ids):
            return own
        same = [a for a in living if len(a) == len(ids) and np.array_equal(a, ids)]
        if same:
            return _agreed(ntype, [_known(a) for a in same])
        unique, place = np.unique(ids, return_inverse=True)
        if len(unique) < len(ids):
            raise HetaError(f"rows of the DistEmbedding of '{ntype}' are read with an id twice, "
                            "whose gradient DistDGL's sparse optimizers would count twice; read "
                            "each row once (torch.unique)")
        whole = np.zeros(len(unique), np.int64)
        equal, found = [], np.zeros(len(unique), bool)
        touched = False
        for array in living:
            at = np.minimum(np.searchsorted(unique, array), len(unique) - 1)
            inside = unique[at] == array
            if inside.any():
                touched = True
            if inside.all():
                bits = np.zeros(len(unique), np.int64)
                np.bitwise_or.at(bits, at, _known(array))
                whole |= bits
                found[at] = True
                if len(array) == len(unique):
                    equal.append(bits[place])
        if not touched:
            return own
        if equal:
            return _agreed(ntype, equal)
        if found.all():
            return whole[place]
        seen = [_known(a)[np.isin(a, unique)] for a in living]
        if all((bits == 1 << rank).all() for bits in seen):
            return own
        raise HetaError(_unclear(ntype))


def _known(array: _Ids) -> np.ndarray:
    if array.bits is None:
        raise HetaError(f"a DistEmbedding of '{array.ntype}' was made after the batch that its "
                        "rows are read for was sampled; make it before the data loader is iterated")
    return array.bits


def _agreed(ntype: str, every: Sequence[np.ndarray]) -> np.ndarray:
    if any(not np.array_equal(bits, every[0]) for bits in every):
        raise HetaError(_unclear(ntype))
    return every[0]


def _unclear(ntype: str) -> str:
    return (f"rows of the DistEmbedding of '{ntype}' are read by ids from which it cannot be told "
            "which trainers read them in DistDGL; read them by the tensors of the data loader (the "
            "input nodes, or a block's dgl.NID) as they are")
