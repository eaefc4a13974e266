"""Ids of nodes that data loaders hand out, and for whose seeds a script reads rows by them.

The sparse optimizers divide the gradient of a row by how often trainers have read it. Under RAF a
trainer reads the rows of a batch for the seeds of its whole group, and all other rows (negatives
that it has sampled, pairs of a skip-gram) for itself. So it must be known which ids are of a batch,
and for whose seeds each one is.

One mechanism tells it: **the identity of a batch travels with its tensors.** A loader hands out
:class:`BatchIds`, a subclass of Tensor with a *mark* for each id (its source trainers, and whether
it is no own seed's). What a script selects, copies or joins of them is a BatchIds, too. What it
computes with them is an ordinary tensor, as one by which a trainer reads for itself; where it comes
of others' ids, that is refused at steps to prove (:meth:`.autograd.loss_scope.LossScope.computed`).
A script may sample the next batch before it reads, or hold several.

Only numbers (`numpy()`, `tolist()`) cannot carry marks. The registry keeps a note of ids that were
taken out so, as long as the script has the ids or the array. Ids that are read later and are the
same numbers, in the same order, are taken for these; some of them are refused, as nobody can tell
whether they are of the batch.
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

from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.source_trainers import SourceTrainers
from dgl_heta.sampling.blocks import MiniBatch
from dgl_heta.sampling.trainer_bits import BESIDES, bit

_SAME = frozenset(("clone", "detach", "contiguous", "cpu", "cuda", "to", "long", "int", "type",
                   "pin_memory", "data", "__deepcopy__", "type_as"))
"""Functions that give the same ids."""
_SELECT = frozenset(("__getitem__", "index_select", "masked_select", "take", "flip", "narrow",
                     "view", "reshape", "flatten", "squeeze", "unsqueeze", "repeat", "split",
                     "chunk", "tensor_split", "repeat_interleave", "gather", "take_along_dim",
                     "roll", "ravel", "T", "mT", "t", "transpose", "swapaxes", "swapdims",
                     "permute", "movedim", "moveaxis", "expand", "expand_as", "broadcast_to",
                     "tile", "select", "diagonal", "unfold", "unflatten", "view_as", "reshape_as",
                     "narrow_copy", "fliplr", "flipud", "rot90", "hsplit", "vsplit"))
"""Functions that give some of the ids, in any order, or one more than once; which ones does not
follow from the ids."""
_SORT = frozenset(("sort", "topk"))
_BOUND = frozenset(("clamp", "clip", "clamp_min", "clamp_max"))
_JOIN = frozenset(("cat", "concat", "concatenate", "hstack", "vstack", "stack", "column_stack"))
_UNIQUE = frozenset(("unique", "unique_consecutive"))
_NUMBERS = frozenset(("numpy", "__array__", "tolist", "item", "__int__", "__index__", "__iter__",
                      "unbind"))
"""Functions that give ids as numbers, which know nothing."""
_ARRAYS = frozenset(("numpy", "__array__", "tolist"))
_TAKEN = ("ids of a batch are taken out as numbers (numpy, tolist), which nothing can follow: a "
          "loss that comes of those that are no own seeds', as of negatives drawn from them, is "
          "not plain DGL's; `dgl-heta prove` finds that (docs/switching.md, 'Whose rows and "
          "numbers')")
# Scripts take ids out at every step, for logs; without a limit each would be compared.
_REMEMBERED = 64
"""So many ids that were taken out as numbers are known, the last ones."""


class BatchIds(Tensor):
    """Ids of nodes of a type in a batch, int64 (n,).

    Attributes
    ----------
    marks : the source trainers of each, and :data:`BESIDES` if it is no own seed; int64 (n,) on
        the CPU.
    asked : whether the source trainers were asked for.
    whole : all ids of the batch; one that several trainers have as a seed is there for each.
    batch : the number of the batch, the same on all trainers that have it together.
    registry : where they are noted when they are taken out as numbers.
    """

    ntype: str
    marks: Tensor
    asked: bool
    whole: Tensor
    batch: int
    registry: IdRegistry

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of PyTorch's on ordinary tensors, and mark what is ids of the batch."""
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name == "__get__":  # of a property, such as `data`
            name = getattr(getattr(func, "__self__", None), "__name__", "")
        if not args and (given := next((n for n in ("input", "tensors") if n in kwargs), None)):
            args = (kwargs[given],)
            kwargs = {name: value for name, value in kwargs.items() if name != given}
        first, bare_args = args[0] if args else None, tree_map(bare, args)
        value = func(*bare_args, **tree_map(bare, kwargs))
        if name in _JOIN and isinstance(first, tuple | list):
            return _joined(first, value, lambda marks: func(marks, *args[1:], **kwargs))
        if not isinstance(first, BatchIds):  # they are an index, or one of several operands
            return value
        if name in _NUMBERS:
            # An array of NumPy's keeps a tensor of its own, which lives as long as views of it.
            memory = getattr(value, "base", None)
            first._note_numbers(name, memory if isinstance(memory, Tensor) else bare_args[0])
        if name in _SAME:
            return first.alike(value, first.marks)
        if name in _UNIQUE:
            ids, *rest = value if isinstance(value, tuple) else (value,)
            unique = first.alike(ids, first._united(name, ids))
            return (unique, *rest) if isinstance(value, tuple) else unique
        if name in _SORT and first.dim() == 1:
            return type(value)((first.alike(value[0], first.marks[value[1].cpu()]), value[1]))
        if name in _BOUND and torch.equal(value, bare_args[0]):  # it was no more than a check
            return first.alike(value, first.marks)
        if name not in _SELECT:
            return value
        with _disable_current_modes():  # a trace of the script's operations need not see this
            marks = func(first.marks, *tree_map(_on_cpu, args[1:]), **tree_map(_on_cpu, kwargs))
        if isinstance(value, tuple | list):
            return type(value)(map(first.alike, value, marks))
        return first.alike(value, marks)

    def alike(self, ids: Tensor, marks: Tensor) -> BatchIds:
        """Return other ids of the same batch."""
        return self.registry.track(self.ntype, ids, marks, self.asked, self.whole, self.batch)

    def _note_numbers(self, name: str, memory: Tensor) -> None:
        self.registry.note_numbers(self, memory)
        if name in _ARRAYS and torch.is_grad_enabled() and bool((self.marks >= BESIDES).any()):
            self.registry.say(_TAKEN)

    def _united(self, name: str, unique: Tensor) -> Tensor:
        """Return for each unique id, or run of ids, the union of its marks."""
        if name == "unique_consecutive":  # an id may be in several runs
            with _disable_current_modes():
                at = torch.unique_consecutive(bare(self), return_inverse=True)[1]
        else:  # torch.unique need not sort (`sorted=False`)
            order = torch.argsort(unique)
            at = order[torch.searchsorted(unique[order], bare(self).contiguous())]
        marks = np.zeros(len(unique), np.int64)
        # PyTorch has no scatter with a bitwise or.
        np.bitwise_or.at(marks, at.cpu().numpy(), self.marks.numpy())
        return torch.from_numpy(marks)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return repr(bare(self))

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A file or another process gets ordinary ids: marks are of this trainer's batch.
        return bare(self).__reduce_ex__(protocol)


def _on_cpu(item: Any) -> Any:
    return bare(item).cpu() if isinstance(item, Tensor) else item


def _joined(several: Any, value: Tensor, join: Callable[[Any], Tensor]) -> BatchIds:
    """Return ids that were joined; ordinary tensors among them are read by this trainer for
    itself."""
    tracked = [ids for ids in several if isinstance(ids, BatchIds)]
    registry = tracked[0].registry
    with _disable_current_modes():
        ids = tracked[0].alike(value, join([ids.marks if isinstance(ids, BatchIds) else
                                            registry.own_marks(ids) for ids in several]))
    ids.asked = all(ids.asked for ids in tracked)
    return ids


def bare(ids: Any) -> Any:
    """Return ids as an ordinary tensor; anything else as it is."""
    if not isinstance(ids, BatchIds):
        return ids
    with torch._C.DisableTorchFunctionSubclass():
        return ids.as_subclass(Tensor)


class Readers(NamedTuple):
    """The trainers for which rows of a batch are read.

    Attributes
    ----------
    bits : int64 (n,), the trainers that would read each row in plain DGL for what this one does.
    others : bool (n,), which rows are no own seed's.
    batch : the number of the batch.
    """

    bits: np.ndarray
    others: Tensor
    batch: int


class _Numbers(NamedTuple):
    """Ids that a script has taken out as numbers, and the memory that an array of NumPy's keeps."""

    # Weak, and PyTorch's own references: a tensor's Python object may be made anew while the tensor
    # lives on.
    ids: TensorWeakRef
    memory: TensorWeakRef
    ntype: str
    marks: Tensor
    asked: bool
    whole: Tensor
    batch: int

    @property
    def living(self) -> Tensor | None:
        """The ids, if a script still has them, or an array of them."""
        ids = self.ids()
        living: Tensor | None = bare(self.memory() if ids is None else ids)
        return living


class IdRegistry:
    """The ids that a script was given, and for whose seeds it reads rows by them.

    Attributes
    ----------
    rank : of this trainer.
    say : logs a line, once.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.rank, self.say = 0, say
        self._batches = 0
        self._numbers: deque[_Numbers] = deque(maxlen=_REMEMBERED)
        # Apart: a script takes single ids out by the hundred, which must not push arrays out.
        self._single: deque[_Numbers] = deque(maxlen=_REMEMBERED)

    def hand_out(self, batch: MiniBatch, trainers: SourceTrainers, rank: int
                 ) -> list[Mapping[str, Tensor]]:
        """Return ids per node type of a batch: input nodes, then those that each layer gives states
        of; last the trainer's own seeds."""
        self.rank = rank
        self._batches += 1
        levels: list[Mapping[str, Tensor]] = []
        for number, block in enumerate(batch.blocks):
            level = {}
            for t, ids in batch.input_nodes.items():
                of_level = torch.from_numpy(ids[:block.num_src.get(t, 0)])
                # A copy, as marks are written to, and the words are the batch's.
                marks = (torch.from_numpy(trainers[number][t]).clone() if trainers else
                         torch.zeros_like(of_level))
                marks[len(batch.own_seeds.get(t, ())):] |= BESIDES
                level[t] = self.track(t, of_level, marks, bool(trainers))
            levels.append(level)
        levels.append({t: self.track(t, seeds := torch.from_numpy(ids), self.own_marks(seeds))
                       for t, ids in batch.own_seeds.items()})
        return levels

    def track(self, ntype: str, ids: Tensor, marks: Tensor, asked: bool = True,
              whole: Tensor | None = None, batch: int | None = None) -> BatchIds:
        """Return ids with marks, of a batch with the `whole` ids, by default these, which by
        default is the last one."""
        tracked: BatchIds = ids.as_subclass(BatchIds)
        tracked.ntype, tracked.marks, tracked.asked, tracked.registry = ntype, marks, asked, self
        tracked.whole = ids if whole is None else whole
        tracked.batch = self._batches if batch is None else batch
        return tracked

    def own_marks(self, ids: Tensor) -> Tensor:
        """Return the marks of ids that this trainer reads for itself."""
        return torch.full(ids.shape, bit(self.rank))

    def note_numbers(self, ids: BatchIds, memory: Tensor) -> None:
        """Note that a script takes ids out as numbers; an array of NumPy's keeps `memory`."""
        if not ids.asked or not self._is_own(ids):
            notes = self._single if memory.numel() == 1 else self._numbers
            if len(notes) == notes.maxlen:  # those that nobody can read by any longer go first
                living = [note for note in notes if note.living is not None]
                notes.clear()
                notes.extend(living)
            notes.append(_Numbers(TensorWeakRef(ids), TensorWeakRef(memory), ids.ntype,
                                  ids.marks, ids.asked, ids.whole, ids.batch))

    def readers(self, ntype: str, ids: Tensor) -> Readers | None:
        """Return the trainers for which this one reads rows by ids; None if it is for itself.

        Raises
        ------
        HetaError
            The ids were handed out before there was an embedding, or one is there twice; or it
            cannot be told whether they are of a batch, as those were taken out as numbers.
        """
        if not isinstance(ids, BatchIds):
            return self._readers_by_numbers(ntype, ids)
        if not ids.asked:
            refuse("late DistEmbedding", ntype=ntype)
        if _more_than_once(bare(ids), ids.whole):
            if self._is_own(ids):
                return None
            refuse("id of a batch twice", ntype=ntype)
        return Readers((ids.marks & ~BESIDES).numpy(), ids.marks >= BESIDES, ids.batch)

    def _is_own(self, ids: BatchIds) -> bool:
        """Return whether this trainer reads all of the ids for itself."""
        return bool((ids.marks == bit(self.rank)).all())

    def _readers_by_numbers(self, ntype: str, ids: Tensor) -> Readers | None:
        numbers = ids.to("cpu", torch.int64)
        known = [(taken, living.to("cpu", torch.int64))
                 for taken in (*self._numbers, *self._single)
                 if taken.ntype == ntype and (living := taken.living) is not None]
        for taken, before in known:
            # By equality: what the script has done with the numbers in between is not seen.
            if torch.equal(before, numbers):
                return self.readers(ntype, self.track(
                    ntype, before, taken.marks, taken.asked, taken.whole, taken.batch))
        if len(numbers) and any(bool(torch.isin(numbers, before).all()) for _, before in known):
            refuse("ids as numbers", ntype=ntype)
        return None


def _more_than_once(ids: Tensor, whole: Tensor) -> bool:
    """Return whether an id is there more often than in the whole batch."""
    unique, counts = np.unique(ids.cpu().numpy(), return_counts=True)
    if len(unique) == ids.numel():
        return False
    every, most = np.unique(whole.cpu().numpy(), return_counts=True)
    at = np.searchsorted(every, unique).clip(max=len(every) - 1)
    return bool((counts > np.where(every[at] == unique, most[at], 1)).any())
