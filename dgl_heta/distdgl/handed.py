"""Node ids that data loaders hand out, and for whose seeds a script reads rows by them.

The sparse optimizers divide the gradient of a row by how often trainers have read it. Under RAF a
trainer reads the rows of a batch for the seeds of its whole group, and all other rows (negatives
that it has drawn, pairs of a skip-gram) for itself. So ids of a batch know for whose seeds they
are, and so do those that a script selects of them: it may draw the next batch before it reads, or
hold several.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from dgl_heta.distdgl.reach import Reached
from dgl_heta.errors import HetaError
from dgl_heta.sampling.blocks import MiniBatch

_SAME = frozenset(("clone", "detach", "contiguous", "cpu", "cuda", "to", "long", "int", "type",
                   "pin_memory", "data", "__deepcopy__"))
"""Functions that give the same ids."""
_SELECT = frozenset(("__getitem__", "index_select", "masked_select", "take", "flip", "narrow",
                     "view", "reshape", "flatten", "squeeze", "unsqueeze", "repeat", "split",
                     "chunk", "tensor_split", "repeat_interleave"))
"""Functions that give some of the ids, or one more than once."""
_JOIN = frozenset(("cat", "concat", "concatenate", "hstack"))
_UNIQUE = frozenset(("unique", "unique_consecutive"))
_NUMBERS = frozenset(("numpy", "__array__", "tolist", "item", "__int__", "__index__", "__iter__",
                      "unbind"))
"""Functions that give ids as numbers, which know nothing."""
_REMEMBERED = 8
"""Of so many batches ids that were taken out as numbers are known."""


class BatchIds(Tensor):
    """Ids of nodes of a type in a batch, int64 (n,).

    Attributes
    ----------
    bits : for each the trainers, by rank, whose seeds reach it, int64 on the CPU; None if that was
        not asked for.
    """

    ntype: str
    bits: Tensor | None
    handed: Handed

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name == "__get__":
            name = getattr(getattr(func, "__self__", None), "__name__", "")
        value = func(*tree_map(bare, args), **tree_map(bare, kwargs))
        first = args[0] if args else None
        if name in _JOIN and isinstance(first, tuple | list):
            known = next(ids for ids in first if isinstance(ids, BatchIds))
            return known.alike(value, _joined(first))
        if not isinstance(first, BatchIds):  # they are an index, or one of several operands
            return value
        if name in _NUMBERS:
            first.handed.taken(first)
        if name in _SAME:
            return first.alike(value, first.bits)
        if name in _UNIQUE:
            ids, *rest = value if isinstance(value, tuple) else (value,)
            found = first.alike(ids, first.united(ids))
            return (found, *rest) if isinstance(value, tuple) else found
        if name not in _SELECT:
            return value
        bits = None if first.bits is None else func(first.bits, *tree_map(_on_cpu, args[1:]),
                                                    **tree_map(_on_cpu, kwargs))
        if isinstance(value, tuple | list):
            return type(value)(first.alike(ids, bits and bits[place])
                               for place, ids in enumerate(value))
        return first.alike(value, bits)

    def alike(self, ids: Tensor, bits: Tensor | None) -> BatchIds:
        """Other ids, of the same batch."""
        return self.handed.ids(self.ntype, ids, bits)

    def united(self, unique: Tensor) -> Tensor | None:
        """For each of them once the union of its bits."""
        if self.bits is None:
            return None
        order = torch.argsort(unique)
        at = order[torch.searchsorted(unique[order], bare(self).contiguous())]
        bits = np.zeros(len(unique), np.int64)
        np.bitwise_or.at(bits, at.cpu().numpy(), self.bits.numpy())
        return torch.from_numpy(bits)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return repr(bare(self))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return bare(self).__reduce_ex__(protocol)


def _on_cpu(item: Any) -> Any:
    return bare(item).cpu() if isinstance(item, Tensor) else item


def _joined(several: Any) -> Tensor | None:
    """The bits of ids that are joined; others are read by this trainer for itself."""
    handed = next(ids for ids in several if isinstance(ids, BatchIds)).handed
    every = [ids.bits if isinstance(ids, BatchIds) else handed.own(ids) for ids in several]
    known = [bits for bits in every if bits is not None]
    return torch.cat(known) if len(known) == len(every) else None


def bare(ids: Any) -> Any:
    """Ids as an ordinary tensor; anything else as it is."""
    if not isinstance(ids, BatchIds):
        return ids
    with torch._C.DisableTorchFunctionSubclass():
        return ids.as_subclass(Tensor)


class Handed:
    """What is known of the ids in a script's hands.

    Attributes
    ----------
    rank : of this trainer.
    """

    def __init__(self) -> None:
        self.rank = 0
        self._taken: deque[BatchIds] = deque(maxlen=_REMEMBERED)

    def hand_out(self, batch: MiniBatch, reached: Reached, rank: int
                 ) -> list[Mapping[str, Tensor]]:
        """Ids per node type of a batch: input nodes, then those that each layer gives states of;
        last the trainer's own seeds."""
        self.rank = rank
        levels: list[Mapping[str, Tensor]] = []
        for number, block in enumerate(batch.blocks):
            levels.append({t: self.ids(
                t, torch.from_numpy(ids[:block.num_src.get(t, 0)]),
                torch.from_numpy(reached[number][t]) if reached else None)
                for t, ids in batch.input_nodes.items()})
        levels.append({t: self.ids(t, own := torch.from_numpy(ids), self.own(own))
                       for t, ids in batch.own_seeds.items()})
        return levels

    def ids(self, ntype: str, ids: Tensor, bits: Tensor | None) -> BatchIds:
        """Ids that know their trainers."""
        made: BatchIds = ids.as_subclass(BatchIds)
        made.ntype, made.bits, made.handed = ntype, bits, self
        return made

    def own(self, ids: Tensor) -> Tensor:
        """The bits of what this trainer reads for itself."""
        return torch.full(ids.shape, 1 << self.rank)

    def taken(self, ids: BatchIds) -> None:
        """A script has taken ids out as numbers."""
        if ids.bits is None or bool((ids.bits != 1 << self.rank).any()):
            self._taken.append(ids)

    def bits(self, ntype: str, ids: Tensor) -> np.ndarray | None:
        """For each id that a trainer reads those that read it in plain DGL for what this one does;
        None if it reads them for itself.

        Raises
        ------
        HetaError
            The ids were handed out before there was an embedding, or one is there twice; or it
            cannot be told whether they are of a batch, as those were taken out as numbers.
        """
        if not isinstance(ids, BatchIds):
            return self._of_numbers(ntype, ids)
        if ids.bits is None:
            raise HetaError(f"a DistEmbedding of '{ntype}' was made after the batch that its rows "
                            "are read for was sampled; make it before the data loader is iterated")
        if len(torch.unique(bare(ids))) < len(ids):
            if bool((ids.bits == 1 << self.rank).all()):
                return None  # its own seeds
            raise HetaError(f"rows of the DistEmbedding of '{ntype}' are read with an id of a "
                            "batch twice: on a meta-partitioned graph its input nodes are those of "
                            "all trainers; read each row once (torch.unique), and rows for this "
                            "trainer alone by ids that it has drawn itself")
        bits: np.ndarray = ids.bits.numpy()
        return bits

    def _of_numbers(self, ntype: str, ids: Tensor) -> np.ndarray | None:
        numbers = ids.to("cpu", torch.int64)
        for taken in (ids for ids in self._taken if ids.ntype == ntype):
            before = bare(taken).to("cpu", torch.int64)
            if torch.equal(before, numbers):
                return self.bits(ntype, taken)
            if len(numbers) and bool(torch.isin(numbers, before).all()):
                raise HetaError(
                    f"rows of the DistEmbedding of '{ntype}' are read by numbers, some of those "
                    "that were taken out of a batch's ids (numpy(), tolist()), so it cannot be "
                    "told which trainers read them in DistDGL; read them by the tensors of the "
                    "data loader (the input nodes, or a block's dgl.NID) and selections of them")
        return None
