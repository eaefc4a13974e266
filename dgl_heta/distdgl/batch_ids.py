"""Node ids that data loaders hand out, and for whose seeds a script reads rows by them.

The sparse optimizers divide the gradient of a row by how often trainers have read it. Under RAF a
trainer reads the rows of a batch for the seeds of its whole group, and all other rows (negatives
that it has drawn, pairs of a skip-gram) for itself. So ids of a batch know for whose seeds they
are, and so do those that a script selects of them: it may draw the next batch before it reads, or
hold several.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map
from torch.utils.weak import TensorWeakRef

from dgl_heta.distdgl.source_trainers import Reached
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
_ARRAYS = frozenset(("numpy", "__array__", "tolist"))
_TAKEN = ("ids of a batch are taken out as numbers (numpy, tolist), which nothing can follow: a "
          "loss that comes of those that are no own seeds', as of negatives drawn from them, is "
          "not plain DGL's; `dgl-heta prove` finds that (docs/switching.md, 'Whose rows and "
          "numbers')")
_REMEMBERED = 64
"""So many ids that were taken out as numbers are known, the last ones."""
_OTHERS = 1 << 62
"""In the mark of an id that is no own seed's, beside the bits of trainers."""


class BatchIds(Tensor):
    """Ids of nodes of a type in a batch, int64 (n,).

    Attributes
    ----------
    marks : for each the trainers, by rank, whose seeds reach it, as bits, and whether it is no own
        seed; int64 on the CPU.
    reached : whether the trainers were asked for.
    whole : all ids of the batch; one that several trainers have as a seed is there for each.
    """

    ntype: str
    marks: Tensor
    reached: bool
    whole: Tensor
    handed: IdRegistry

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name == "__get__":
            name = getattr(getattr(func, "__self__", None), "__name__", "")
        first, bare_args = args[0] if args else None, tree_map(bare, args)
        value = func(*bare_args, **tree_map(bare, kwargs))
        if name in _JOIN and isinstance(first, tuple | list):
            known = [ids for ids in first if isinstance(ids, BatchIds)]
            made = known[0].alike(value, _joined(first))
            made.reached = all(ids.reached for ids in known)
            return made
        if not isinstance(first, BatchIds):  # they are an index, or one of several operands
            return value
        if name in _NUMBERS:
            first.handed.taken(first, bare_args[0])
            if name in _ARRAYS and torch.is_grad_enabled() and bool((first.marks >= _OTHERS).any()):
                first.handed.say(_TAKEN)
        if name in _SAME:
            return first.alike(value, first.marks)
        if name in _UNIQUE:
            ids, *rest = value if isinstance(value, tuple) else (value,)
            found = first.alike(ids, first.united(ids))
            return (found, *rest) if isinstance(value, tuple) else found
        if name not in _SELECT:
            return value
        with _disable_current_modes():  # what looks at operations need not see this
            marks = func(first.marks, *tree_map(_on_cpu, args[1:]), **tree_map(_on_cpu, kwargs))
        if isinstance(value, tuple | list):
            return type(value)(map(first.alike, value, marks))
        return first.alike(value, marks)

    def alike(self, ids: Tensor, marks: Tensor) -> BatchIds:
        """Other ids, of the same batch."""
        return self.handed.ids(self.ntype, ids, marks, self.reached, self.whole)

    def united(self, unique: Tensor) -> Tensor:
        """For each of them once the union of its marks."""
        order = torch.argsort(unique)
        at = order[torch.searchsorted(unique[order], bare(self).contiguous())]
        marks = np.zeros(len(unique), np.int64)
        np.bitwise_or.at(marks, at.cpu().numpy(), self.marks.numpy())
        return torch.from_numpy(marks)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return repr(bare(self))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return bare(self).__reduce_ex__(protocol)


def _on_cpu(item: Any) -> Any:
    return bare(item).cpu() if isinstance(item, Tensor) else item


def _joined(several: Any) -> Tensor:
    """The marks of ids that are joined; others are read by this trainer for itself."""
    handed = next(ids for ids in several if isinstance(ids, BatchIds)).handed
    return torch.cat([ids.marks if isinstance(ids, BatchIds) else handed.own(ids)
                      for ids in several])


def bare(ids: Any) -> Any:
    """Ids as an ordinary tensor; anything else as it is."""
    if not isinstance(ids, BatchIds):
        return ids
    with torch._C.DisableTorchFunctionSubclass():
        return ids.as_subclass(Tensor)


class Readers(NamedTuple):
    """For whom rows of a batch are read.

    Attributes
    ----------
    bits : int64 (n,), the trainers that read each row in plain DGL for what this one does.
    others : bool (n,), which rows are no own seed's.
    """

    bits: np.ndarray
    others: Tensor


class Taken(NamedTuple):
    """Ids that a script has taken out as numbers, and what an array of NumPy's keeps of them."""

    ids: TensorWeakRef
    memory: TensorWeakRef
    ntype: str
    marks: Tensor
    reached: bool
    whole: Tensor

    @property
    def living(self) -> Tensor | None:
        """The ids, if a script still has them, or an array of them."""
        ids = self.ids()
        found: Tensor | None = bare(self.memory() if ids is None else ids)
        return found


class IdRegistry:
    """What is known of the ids in a script's hands.

    Attributes
    ----------
    rank : of this trainer.
    say : logs a line, once.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.rank, self.say = 0, say
        self._taken: deque[Taken] = deque(maxlen=_REMEMBERED)

    def hand_out(self, batch: MiniBatch, reached: Reached, rank: int
                 ) -> list[Mapping[str, Tensor]]:
        """Ids per node type of a batch: input nodes, then those that each layer gives states of;
        last the trainer's own seeds."""
        self.rank = rank
        levels: list[Mapping[str, Tensor]] = []
        for number, block in enumerate(batch.blocks):
            level = {}
            for t, ids in batch.input_nodes.items():
                some = torch.from_numpy(ids[:block.num_src.get(t, 0)])
                marks = (torch.from_numpy(reached[number][t]).clone() if reached else
                         torch.zeros_like(some))
                marks[len(batch.own_seeds.get(t, ())):] |= _OTHERS
                level[t] = self.ids(t, some, marks, bool(reached))
            levels.append(level)
        levels.append({t: self.ids(t, own := torch.from_numpy(ids), self.own(own))
                       for t, ids in batch.own_seeds.items()})
        return levels

    def ids(self, ntype: str, ids: Tensor, marks: Tensor, reached: bool = True,
            whole: Tensor | None = None) -> BatchIds:
        """Ids that know their trainers; of a batch with the `whole` ids, by default these."""
        made: BatchIds = ids.as_subclass(BatchIds)
        made.ntype, made.marks, made.reached, made.handed = ntype, marks, reached, self
        made.whole = ids if whole is None else whole
        return made

    def own(self, ids: Tensor) -> Tensor:
        """The marks of what this trainer reads for itself."""
        return torch.full(ids.shape, 1 << self.rank)

    def taken(self, ids: BatchIds, memory: Tensor) -> None:
        """A script has taken ids out as numbers; an array of NumPy's keeps `memory`."""
        if not ids.reached or bool((ids.marks != 1 << self.rank).any()):
            self._taken.append(Taken(TensorWeakRef(ids), TensorWeakRef(memory), ids.ntype,
                                     ids.marks, ids.reached, ids.whole))

    def readers(self, ntype: str, ids: Tensor) -> Readers | None:
        """For whom a trainer reads rows of a batch; None if it reads them for itself.

        Raises
        ------
        HetaError
            The ids were handed out before there was an embedding, or one is there twice; or it
            cannot be told whether they are of a batch, as those were taken out as numbers.
        """
        if not isinstance(ids, BatchIds):
            return self._of_numbers(ntype, ids)
        if not ids.reached:
            raise HetaError(f"a DistEmbedding of '{ntype}' was made after the batch that its rows "
                            "are read for was sampled; make it before the data loader is iterated")
        if _more_than_once(bare(ids), ids.whole):
            if bool((ids.marks == 1 << self.rank).all()):
                return None  # its own seeds
            raise HetaError(f"rows of the DistEmbedding of '{ntype}' are read with an id of a "
                            "batch twice: on a meta-partitioned graph its input nodes are those of "
                            "all trainers; read each row once (torch.unique), and rows for this "
                            "trainer alone by ids that it has drawn itself")
        return Readers((ids.marks & ~_OTHERS).numpy(), ids.marks >= _OTHERS)

    def _of_numbers(self, ntype: str, ids: Tensor) -> Readers | None:
        numbers = ids.to("cpu", torch.int64)
        for taken in (taken for taken in self._taken if taken.ntype == ntype):
            if taken.living is None:
                continue
            before = taken.living.to("cpu", torch.int64)
            if torch.equal(before, numbers):
                return self.readers(ntype, self.ids(ntype, before, *taken[3:]))
            if len(numbers) and bool(torch.isin(numbers, before).all()):
                raise HetaError(
                    f"rows of the DistEmbedding of '{ntype}' are read by numbers, some of those "
                    "that were taken out of a batch's ids (numpy(), tolist()), so it cannot be "
                    "told which trainers read them in DistDGL; read them by the tensors of the "
                    "data loader (the input nodes, or a block's dgl.NID) and selections of them; "
                    "where the script draws such ids itself, let it take none out as numbers")
        return None


def _more_than_once(ids: Tensor, whole: Tensor) -> bool:
    """Whether an id is there more often than in the whole batch."""
    unique, counts = np.unique(ids.cpu().numpy(), return_counts=True)
    if len(unique) == len(ids):
        return False
    every, most = np.unique(whole.cpu().numpy(), return_counts=True)
    at = np.searchsorted(every, unique).clip(max=len(every) - 1)
    return bool((counts > np.where(every[at] == unique, most[at], 1)).any())
