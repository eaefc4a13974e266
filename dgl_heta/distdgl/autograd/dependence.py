"""Compute what came of a batch again, with other values in rows that are no own seed's.

A :class:`Computation` has what was handed out (:class:`Source`) and the operations on it, as
:mod:`.trace` notes them. What has the same bits with other values in some rows does not depend on
these rows. To be sure it is computed once more with the values that were there: an operation that
gives other bits at each call (an atomic sum of several threads) tells nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dgl_heta.features.deferred import LazyRows, peek

MOST_COPIED = 1 << 22
"""So many numbers of a tensor are copied at most."""


@dataclass(eq=False)
class Source:
    """Ids or rows that were handed out.

    Attributes
    ----------
    value : as it was handed out.
    foreign : bool (rows,), which ones are no own seed's.
    what : for an error.
    nodes : how many the type has.
    ids : whether these are ids.
    missing : bool (rows,), which states are not complete here; None if all are.
    """

    value: Tensor
    foreign: Tensor
    what: str
    nodes: int
    ids: bool = False
    missing: Tensor | None = None

    def other(self, rows: Tensor) -> Tensor:
        """Return the value with other values in some rows, bool (rows,)."""
        value, rows = self.value.clone(), rows.to(self.value.device)
        if not bool(rows.any()):
            return value
        if self.ids:
            # One that is not in the batch, the same for all rows: so means over all nodes of a
            # type differ, too, which a permutation would leave as they are.
            free = torch.arange(min(self.nodes, len(value) + 1), device=value.device)
            free = free[~torch.isin(free, value)]
            value[rows] = free[0] if len(free) else value[rows][-1].clone()
        elif value.is_floating_point():
            value = noisy(value, rows)
        else:
            value[rows] = ~value[rows] if value.dtype == torch.bool else value[rows] + 1
        return value


Rows = Callable[[Source], Tensor | None]
"""The rows of a source that get other values, bool (rows,); None if none do."""


class Ref(NamedTuple):
    """A result of an entry of a computation, by its number among the results."""

    entry: int
    result: int


@dataclass(eq=False)
class Operation:
    """One operation: `run` computes its results from `given`, in which each :class:`Ref` stands for
    a result of another entry; `numbers` are among its arguments."""

    run: Callable[[list[Any]], list[Any]]
    given: list[Any]
    numbers: list[float] = field(default_factory=list)


class Computation:
    """A sequence of sources, and of operations on them."""

    def __init__(self) -> None:
        self._entries: list[Source | Operation] = []
        self._nearby: dict[int, tuple[Tensor, Tensor]] = {}

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._nearby.clear()

    def add(self, entry: Source | Operation) -> int:
        """Append an entry and return its number."""
        self._entries.append(entry)
        return len(self._entries) - 1

    def numbers(self, refs: Iterable[Ref]) -> list[float]:
        """Return the numbers that were arguments of the operations below some results, in order."""
        return [number for entry in self._below(refs)
                if isinstance(entry, Operation) for number in entry.numbers]

    def dependence(self, refs: Sequence[Ref], rows: Rows) -> str | None:
        """Return a source some of whose `rows` one of these results depends on; None if there is
        no such source."""
        sources = [source for source in self._below(refs) if isinstance(source, Source)
                   and (chosen := rows(source)) is not None and bool(chosen.any())]
        if not sources:
            return None
        # Most losses depend on nothing, so all sources are changed at once; one by one only to name
        # the one.
        as_it_was = self._values(refs, [], rows)
        if _same(as_it_was, self._values(refs, sources, rows)) or not _same(
                as_it_was, self._values(refs, [], rows)):
            return None
        return next((source.what for source in sources if not _same(
            as_it_was, self._values(refs, [source], rows))), sources[0].what)

    def _numbers_below(self, refs: Iterable[Ref]) -> list[int]:
        """Return the numbers of the entries that some results depend on, in their order."""
        numbers: set[int] = set()
        pending = [ref.entry for ref in refs]
        while pending:
            number = pending.pop()
            if number not in numbers:
                numbers.add(number)
                entry = self._entries[number]
                if isinstance(entry, Operation):
                    pending += [item.entry for item in entry.given if isinstance(item, Ref)]
        return sorted(numbers)

    def _below(self, refs: Iterable[Ref]) -> list[Source | Operation]:
        return [self._entries[number] for number in self._numbers_below(refs)]

    @torch.no_grad()
    def _values(self, refs: Sequence[Ref], changed: Sequence[Source], rows: Rows) -> list[Any]:
        """Compute results, with other values in some rows of the sources that are changed."""
        values: dict[int, list[Any]] = {}
        for number in self._numbers_below(refs):
            entry = self._entries[number]
            if isinstance(entry, Operation):
                values[number] = entry.run([
                    values[item.entry][item.result] if isinstance(item, Ref)
                    else self._argument(item) for item in entry.given])
            else:
                chosen = rows(entry)
                values[number] = [entry.other(chosen) if entry in changed and chosen is not None
                                  else entry.value]
        return [values[ref.entry][ref.result] for ref in refs]

    def _argument(self, item: Any) -> Any:
        """Return an argument that comes from no source. In place of a parameter, which may be zero
        at first and hide a dependence, values nearby."""
        if isinstance(item, LazyRows):
            return peek(item)
        if not isinstance(item, nn.Parameter) or item.numel() > MOST_COPIED:
            return item
        if id(item) not in self._nearby:  # the parameter is kept, so that its id stays its own
            every = torch.ones(item.shape[:1], dtype=torch.bool)
            self._nearby[id(item)] = noisy(item.detach(), every), item
        return self._nearby[id(item)][0]


def noisy(value: Tensor, rows: Tensor) -> Tensor:
    """Return the same numbers, but other ones in some rows, bool (rows,)."""
    # A generator of its own: the script's random numbers must not depend on whether it is proved.
    generator = torch.Generator().manual_seed(1)
    noise = torch.rand(value.shape, dtype=torch.float64, generator=generator)
    noise = noise.to(value) * (1 + value.abs().mean())
    return torch.where(rows.to(value.device).view(-1, *[1] * (value.dim() - 1)), value + noise,
                       value)


def _same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Return whether results are equal to the last bit; not-a-number equals itself."""
    return all(a == b if not isinstance(a, Tensor) else a.shape == b.shape and bool(
        ((a == b) | (a != a) & (b != b)).all()) for a, b in zip(some, others))
