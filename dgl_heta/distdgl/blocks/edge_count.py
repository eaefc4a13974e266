"""The number of a block's edges, in a script's hands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class EdgeCount(int):
    """Edges that this machine has, for the seeds of all trainers.

    Models leave relations without edges out, and all trainers of a group must leave out the same.
    So a comparison, or whether it is 0, is of the edges that all their machines have. For that they
    exchange numbers, once for a block; all of them must ask.

    Parameters
    ----------
    count : on this machine.
    everywhere : gives the number on all machines.
    """

    everywhere: Callable[[], int]

    def __new__(cls, count: int, everywhere: Callable[[], int]) -> EdgeCount:
        made = super().__new__(cls, count)
        made.everywhere = everywhere
        return made

    def _beside(self, other: Any) -> int:
        """What is compared: edges here with edges here, and all edges with other numbers."""
        return int(self) if isinstance(other, EdgeCount) else self.everywhere()

    def __add__(self, other: int) -> int:
        """With other counts a count again, as in a sum."""
        if isinstance(other, EdgeCount):
            return EdgeCount(int(self) + int(other),
                             lambda: self.everywhere() + other.everywhere())
        return int(self) + other if other else self

    __radd__ = __add__

    def __bool__(self) -> bool:
        return self.everywhere() != 0

    def __eq__(self, other: object) -> bool:
        return self._beside(other) == _number(other)

    def __ne__(self, other: object) -> bool:
        return self._beside(other) != _number(other)

    def __lt__(self, other: int) -> bool:
        return self._beside(other) < _number(other)

    def __le__(self, other: int) -> bool:
        return self._beside(other) <= _number(other)

    def __gt__(self, other: int) -> bool:
        return self._beside(other) > _number(other)

    def __ge__(self, other: int) -> bool:
        return self._beside(other) >= _number(other)

    __hash__ = int.__hash__

    def __reduce__(self) -> Any:
        return int, (int(self),)


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, EdgeCount) else value
