"""Arguments of a pass: the in-edges of relations, and tensors as addresses with sizes."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dgl_heta import InputError
from dgl_heta.nn import Joined, Reading, RelationError, new_tensor, new_zeros, reading_of
from dgl_heta_hifuse import compiled as c

if TYPE_CHECKING:
    from dgl_heta.tools import InEdges


class Rows:
    """Values of relations.

    Attributes
    ----------
    tensors : what autograd sees: one of all relations, or one of each.
    memory : the same in C order, without gradients.
    sizes, shape : how many rows each relation has; the shape of a row.
    """

    def __init__(self, values: Sequence[Tensor]) -> None:
        self.joined = isinstance(values, Joined)
        self.tensors: list[Tensor] = [values.whole] if isinstance(values, Joined) else list(values)
        self.sizes = values.sizes if isinstance(values, Joined) else [len(x) for x in values]
        self.shape = tuple(self.tensors[0].shape[1:])
        self.memory = [x.detach().contiguous() for x in self.tensors]
        self.count, self._dtype = len(self.tensors), self.tensors[0].dtype

    @property
    def at(self) -> list[int]:
        """The address of each relation's."""
        return addresses(self.memory, self.sizes, self.joined)

    def want(self, what: str, sizes: Sequence[int], shape: Sequence[int]) -> None:
        """Raise an :class:`InputError` unless there are so many rows of that shape."""
        if self.shape != tuple(shape):
            raise InputError(f"the {what} rows have the shape {self.shape} each; it should be "
                             f"{tuple(shape)}")
        for i, (size, wanted) in enumerate(zip(self.sizes, sizes)):
            if size != wanted:
                raise RelationError(i, len(self.sizes),
                                    f"{size} {what} rows are given for {wanted}")

    def new(self, filled: bool) -> tuple[Tensor, list[int]]:
        """Memory for the gradients of all, of zeros or of any content, and the address of each
        relation's."""
        make = new_zeros if filled else new_tensor
        out = make((sum(self.sizes), *self.shape), self._dtype)
        return out, addresses([out], self.sizes, True)

    def split(self) -> Sequence[Tensor]:
        """The values of each relation."""
        return self.memory[0].split(self.sizes) if self.joined else self.memory

    def forget(self) -> None:
        """Let the values go: the backward pass does not read them."""
        self.tensors, self.memory = [], []

    def apart(self, whole: Tensor) -> Sequence[Tensor]:
        """The gradient of each tensor that autograd sees."""
        return [whole] if self.joined else whole.split(self.sizes)


def addresses(memory: Sequence[Tensor], sizes: Sequence[int], joined: bool) -> list[int]:
    """Where each relation's values begin, in one tensor of all or in one of each."""
    if not joined:
        return [x.data_ptr() for x in memory]
    (whole,) = memory
    bytes_ = whole.stride(0) * whole.element_size() if whole.dim() else whole.element_size()
    return [whole.data_ptr() + start * bytes_ for start in
            itertools.accumulate(sizes[:-1], initial=0)]


class _Csc(NamedTuple):
    """The CSC of relations, for as long as it is asked for again: a layer has many operators."""

    edges: tuple[InEdges, ...]
    jobs: np.ndarray
    last: np.ndarray
    memory: tuple[InEdges, ...]


_known: deque[_Csc] = deque(maxlen=4)


def _csc(edges: Sequence[InEdges]) -> _Csc:
    for known in _known:
        if len(known.edges) == len(edges) and all(
                a.indices is b.indices and a.indptr is b.indptr
                for a, b in zip(known.edges, edges)):
            return known
    memory = tuple(type(csc)(csc.indptr.contiguous(), csc.indices.contiguous()) for csc in edges)
    jobs = np.zeros((len(memory), 11), np.int64)
    for job, csc in zip(jobs, memory):
        job[:4] = (csc.indptr.data_ptr(), csc.indices.data_ptr(), len(csc.indptr) - 1,
                   len(csc.indices))
    last = np.empty(len(jobs), np.int64)
    if (jobs[:, c.ROWS] < 0).any() or (bad := int(c.last_sources(jobs, last))) >= 0:
        relation = int((jobs[:, c.ROWS] < 0).argmax()) if (jobs[:, c.ROWS] < 0).any() else bad
        raise RelationError(relation, len(jobs), "indptr and indices are no CSC; indptr must begin "
                            "with 0, not decrease and end with the number of indices, which are "
                            "not negative")
    checked = _Csc(tuple(edges), jobs, last, memory)
    _known.append(checked)
    return checked


class Call:
    """One operator on the in-edges of relations, and their source states if it reads these."""

    def __init__(self, edges: Sequence[InEdges], sources: Sequence[Tensor] = ()) -> None:
        self.csc = _csc(edges)
        self.rows, self.edges = (self.csc.jobs[:, k].tolist() for k in (c.ROWS, c.EDGES))
        plain: dict[int, Tensor] = {}
        for x in sources:
            if id(x) not in plain:
                plain[id(x)] = x if type(x) in (Tensor, torch.nn.Parameter) else x.contiguous()
        of = {key: i for i, key in enumerate(plain)}
        self.of = [of[id(x)] for x in sources]
        self.states = list(plain.values())
        self.shapes = [tuple(x.shape) for x in self.states]
        self.shape = self.shapes[0][1:] if plain else ()
        self.readings: list[Reading | None] = [reading_of(x) for x in self.states]
        for i, (last, at) in enumerate(zip(self.csc.last.tolist(), self.of)):
            if last >= len(self.states[at]):
                raise RelationError(i, len(self.of),
                                    f"there are {len(self.states[at])} source rows, but an edge "
                                    f"starts at row {last}")

    def want(self, what: str, shape: Sequence[int], wanted: Sequence[int]) -> None:
        if tuple(shape) != tuple(wanted):
            raise InputError(f"the {what} rows have the shape {tuple(shape)} each; it should be "
                             f"{tuple(wanted)}")

    def jobs(self, memory: Sequence[Tensor]) -> np.ndarray:
        """The relations with the addresses of their source states."""
        jobs = self.csc.jobs.copy()
        if memory:
            at = [x.data_ptr() for x in memory]
            jobs[:, c.SOURCE] = [at[i] for i in self.of]
            jobs[:, c.SOURCES] = [len(memory[i]) for i in self.of]
        return jobs

    @property
    def tokens(self) -> list[Tensor]:
        """Tensors on which the call depends for the gradients of its source states."""
        return [reading.token for reading in self.readings if reading is not None]

    def forget(self) -> None:
        """Let the states go: the backward pass does not read them."""
        self.states = []


class Chosen:
    """Rows that are chosen of tensors: columns of the jobs that do not depend on values."""

    def __init__(self, rows: Sequence[Tensor | slice], lengths: Sequence[int]) -> None:
        self.jobs = np.zeros((len(lengths), 6), np.int64)
        self.kept: list[Tensor] = []
        for job, chosen, length in zip(self.jobs, rows, lengths):
            job[c.COUNT] = length
            if isinstance(chosen, slice):
                start, stop, step = chosen.indices(length)
                if step != 1:
                    raise InputError(f"rows are chosen by steps of {step}; it must be 1")
                job[c.START], job[c.CHOSEN] = start, max(stop - start, 0)
            else:
                index = chosen.to(torch.int64).contiguous()
                self.kept.append(index)
                job[c.INDEX], job[c.CHOSEN] = index.data_ptr(), len(index)
                if not len(index):
                    job[c.INDEX] = 0
        self.counts: list[int] = self.jobs[:, c.CHOSEN].tolist()

    def run(self, function: Callable[..., int], rows: Sequence[int], chosen: Sequence[int],
            width: int, like: Tensor) -> None:
        jobs = self.jobs.copy()
        jobs[:, c.FROM], jobs[:, c.TO] = rows, chosen
        failed = function(jobs, width, like.numpy().reshape(-1)[:0])
        if failed >= 0:
            raise RelationError(failed, len(jobs),
                                f"a row is asked for of {int(jobs[failed, c.COUNT])} that is not "
                                "there")
