"""Values of several relations in one tensor, so that what is done with each is done once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import overload

import torch
from torch import Tensor


class Joined(Sequence[Tensor]):
    """Tensors (rows_i, …) whose rows follow each other in one tensor.

    It stands wherever a list of them does. A kernel that computes all relations at once returns
    one, and takes the tensor as it is where it is given one again.

    Attributes
    ----------
    whole : the tensor (Σ rows_i, …).
    sizes : rows of each.
    """

    def __init__(self, whole: Tensor, sizes: Sequence[int]) -> None:
        self.whole, self.sizes = whole, list(sizes)
        self._pieces: tuple[bool, tuple[Tensor, ...]] | None = None

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Tensor]: ...

    def __getitem__(self, index: int | slice) -> Tensor | Sequence[Tensor]:
        """One of the tensors, a view, or several."""
        return self._split()[index]

    def _split(self) -> tuple[Tensor, ...]:
        """The views; those that were made without gradients are not used with them."""
        grad = torch.is_grad_enabled()
        if self._pieces is None or self._pieces[0] != grad:
            self._pieces = grad, torch.split(self.whole, self.sizes)
        return self._pieces[1]


def grouped(values: Sequence[Tensor], counts: Sequence[int]) -> list[Sequence[Tensor]]:
    """The first so many tensors, the next so many, and so on; of joined ones joined ones."""
    ends = list(itertools.accumulate(counts, initial=0))
    if not isinstance(values, Joined):
        return [values[a:b] for a, b in itertools.pairwise(ends)]
    sizes = [values.sizes[a:b] for a, b in itertools.pairwise(ends)]
    if len(sizes) == 1:
        return [values]
    return [Joined(whole, each) for whole, each in
            zip(torch.split(values.whole, [sum(each) for each in sizes]), sizes)]


def elementwise(function: Callable[..., Tensor], *lists: Sequence[Tensor]) -> Sequence[Tensor]:
    """`function` of each relation's tensors, at once where they are joined alike.

    `function` takes one tensor of each list and returns one with the same rows, each a function of
    the same row of its arguments.
    """
    first = lists[0]
    if isinstance(first, Joined) and all(
            isinstance(other, Joined) and other.sizes == first.sizes for other in lists):
        return Joined(function(*(each.whole for each in lists)), first.sizes)  # type: ignore[attr-defined]
    return [function(*each) for each in zip(*lists)]
