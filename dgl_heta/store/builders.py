"""The processes that write a store together; one by itself is the usual case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, TypeVar

import numpy as np

from dgl_heta.errors import HetaError

Value = TypeVar("Value")


class Builders:
    """The processes that write a store together: here one, which waits for nobody.

    Every process calls :meth:`gather`, :meth:`total` and :meth:`each` alike, in the same order.

    Attributes
    ----------
    rank, size : which of how many processes this is.
    one_disk : whether all see the directory that is written, so that several may write to a file.
    """

    rank = 0
    size = 1
    one_disk = True

    def apart(self) -> Builders:
        """The same processes where each has a directory of its own."""
        other = copy(self)
        other.one_disk = False
        return other

    def gather(self, value: Any) -> list[Any]:
        """Return what each process gives, by rank; anything that JSON knows."""
        return [value]

    def total(self, counts: np.ndarray) -> np.ndarray:
        """Return the sum of the arrays (int64, of one shape) that the processes give."""
        return counts

    def each(self, work: Callable[[], Value]) -> Value:
        """Do this process's part of something; returns when all have done theirs.

        Raises
        ------
        HetaError
            It failed at another process; names which, and why.
        BaseException
            What `work` raises here, after the others have heard of it.
        """
        if self.size == 1:
            return work()
        failure: BaseException | None = None
        try:
            done = work()
        except BaseException as error:
            failure = error
        said = self.gather(None if failure is None else str(failure) or type(failure).__name__)
        if failure is not None:
            raise failure
        for rank, text in enumerate(said):
            if text is not None:
                raise HetaError(f"worker {rank} failed: {text}")
        return done

    def dealt(self, weights: Sequence[int]) -> list[int]:
        """Return which of the tasks are this process's: the heaviest first to whoever has least."""
        loads = [0] * self.size
        own = []
        for task in sorted(range(len(weights)), key=lambda task: -weights[task]):
            rank = loads.index(min(loads))
            loads[rank] += weights[task]
            if rank == self.rank:
                own.append(task)
        return sorted(own)


ALONE = Builders()
