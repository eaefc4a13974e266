"""Numbers in a loss that are counts of the group's batch: of nodes, of edges, of ids.

Python makes plain integers of `len(ids)`, shapes and `num_edges()`, which nothing can follow. But
such a number is another one on each trainer, and on each it follows in the same way from *its*
count. So trainers tell each other the numbers that their losses were computed with. One that is the
same simple function of the same count on all of them, where these counts differ, is that count: at
once if so many digits agree that chance is out of the question, else if it is so in the next batch,
too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dgl_heta.graph.schema import Relation
from dgl_heta.sampling.blocks import MiniBatch

_SURE = 1000.0
"""Counts whose product is smaller are met by chance."""
_LIKE = 1e-6
_PAIRS = 12
"""Among so many node types sums of two counts are tried."""
_TRIES = 4
"""Batches in which something is looked at again."""
_FORMS: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
    lambda c: c, lambda c: 1 / c, np.square, lambda c: 1 / np.square(c), np.sqrt,
    lambda c: 1 / np.sqrt(c), np.log, lambda c: 1 / np.log(c),
    lambda c: c + 1, lambda c: 1 / (c + 1), np.log1p, lambda c: 1 / np.log1p(c))


class _Suspect(NamedTuple):
    """A number of the loss that follows from a count in some way, in one batch.

    Attributes
    ----------
    position : of the number, from the loss on.
    what : the name of the count.
    form : which of the functions of the count.
    scaling : by the number of own seeds: not, multiplied or divided.
    """

    position: int
    what: str
    form: int
    scaling: int


_Hits = dict[_Suspect, tuple[float, tuple[float, ...]]]
"""Suspect → the factor between number and function, and the count on each trainer."""


class BatchCounts:
    """The counts of the batch that is looked at.

    Attributes
    ----------
    wanted : whether to look at the next batch, too; the same on all trainers of a group.
    values : this trainer's number of own seeds, those of each type, then its counts.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._types = 0
        self._suspects: _Hits = {}
        self._tries = 0
        self.wanted = False
        self.values: list[float] = []

    def begin(self, batch: MiniBatch, ntypes: Sequence[str], relations: Sequence[Relation]) -> None:
        """Note the own seeds and the counts of a batch, of the same things on all trainers."""
        own = [len(batch.own_seeds.get(t, ())) for t in ntypes]
        named = list(_counts(batch, ntypes, relations))
        self._names, self._types = [name for name, _ in named], len(ntypes)
        self.values = [float(value) for value in (sum(own), *own, *(n for _, n in named))]

    def counted(self, numbers: Sequence[Sequence[float]], values: Sequence[Sequence[float]]
                ) -> str | None:
        """Return the count that a number is a function of, as said above; None if there is none.

        Parameters
        ----------
        numbers : of each trainer's loss, those next to the loss last.
        values : of each trainer, its `values` and then numbers that were taken out of tensors.
        """
        # zip stops at the shortest: as many numbers are compared as all trainers have.
        both = np.asarray([*zip(*values)]).T
        seeds, counts = both[:, :1 + self._types], both[:, 1 + self._types:]
        hits: _Hits = {}
        # From the loss on: trainers compute their losses alike, but before that each has the
        # operations of its own relations.
        for position, row in enumerate(zip(*map(reversed, numbers))):
            with np.errstate(all="ignore"):
                followed = [*self._followed(position, np.asarray(row), seeds, counts)]
            for suspect, factor, of in followed:
                if self._is_sure(suspect, factor, of):
                    return suspect.what
                hits[suspect] = factor, of
        self._suspects = hits
        self._tries = self._tries + 1 if hits else 0
        self.wanted = 0 < self._tries <= _TRIES
        return None

    def _is_sure(self, suspect: _Suspect, factor: float, of: tuple[float, ...]) -> bool:
        """Return whether chance is out of the question: by the digits of the counts, or as it was
        so in the batch before, too, where the counts were others."""
        digits = math.prod(count for count in of if count)
        if abs(factor - 1) < _LIKE and len({*of}) > 1 and digits >= _SURE:
            return True
        before = self._suspects.get(suspect)
        return before is not None and abs(factor / before[0] - 1) < _LIKE and before[1] != of

    def _followed(self, position: int, row: np.ndarray, seeds: np.ndarray, counts: np.ndarray
                  ) -> Iterator[tuple[_Suspect, float, tuple[float, ...]]]:
        """Yield the counts that a number follows from on all trainers, with the factor between
        both.

        Parameters
        ----------
        row : float (trainers,), the number on each.
        seeds, counts : float (trainers, so many), by which numbers are right and wrong.
        """
        if not np.isfinite(row).all() or not row.any():
            return
        everywhere, columns = _constant(row), counts.shape[1]
        if everywhere:
            # The same on all trainers, as after an all_reduce: it may be a count of all together,
            # or of rows that all have in common, but for those of all seeds.
            common = (counts == counts[0]).all(0) & ~np.isin(counts[0], seeds.sum(0))
            counts = np.concatenate([np.broadcast_to(counts.sum(0), counts.shape),
                                     np.where(common, counts, np.nan)], 1)
        elif any(_constant(row / form(own)) for own in seeds.T for form in _FORMS):
            return
        # Means over own seeds are usual, so a count may be divided or multiplied by their number.
        total = seeds[:, 0]
        # A count that is the same on all trainers is so in plain DGL, too, or tells nothing.
        usable = everywhere | (counts != counts[:1]).any(0)
        for form, function in enumerate(_FORMS):
            of_form = function(counts)
            nothing = (row == 0)[:, None] & (of_form == 0)  # a trainer without such rows
            for scaling, scaled in enumerate((row, row / total, row * total)):
                factors = np.where(nothing, np.nan, scaled[:, None] / of_form)
                one = np.fmax.reduce(factors)
                alike = usable & (nothing | (np.abs(factors / one - 1) < _LIKE)).all(0)
                if everywhere:
                    alike &= np.abs(one - 1) < _LIKE
                for column in np.flatnonzero(alike & np.isfinite(one) & (one != 0)):
                    name = (self._names[column % columns]
                            if column % columns < len(self._names) else
                            "a number that was taken out of rows")
                    yield (_Suspect(position, name, form, scaling), float(one[column]),
                           tuple(counts[:, column].tolist()))


def _counts(batch: MiniBatch, ntypes: Sequence[str], relations: Sequence[Relation]
            ) -> Iterator[tuple[str, int]]:
    """Yield the numbers of a batch that a script can ask for, by name: of nodes and edges."""
    totals = [0, 0]
    for number, block in enumerate(batch.blocks):
        sources = {t: block.num_src.get(t, 0) for t in ntypes}
        ends = {t: block.wanted(t) if t in block.num_dst else 0 for t in ntypes}
        edges = dict.fromkeys(relations, 0)
        for some in block.edges:
            edges[some.relation] += len(some.indices)
        rows = "input nodes" if not number else f"source nodes of blocks[{number}]"
        yield from ((f"the number of {rows} of type '{t}'", n) for t, n in sources.items())
        if not block.last:  # else they are own seeds
            yield from ((f"the number of destination nodes of type '{t}' of blocks[{number}]", n)
                        for t, n in ends.items())
            yield f"the number of destination nodes of blocks[{number}]", sum(ends.values())
        yield from ((f"the number of edges {tuple(r)} of blocks[{number}]", n)
                    for r, n in edges.items())
        of_block = [sum(of.values()) for of in (sources, ends, edges)]
        yield f"the number of {rows}", of_block[0]
        yield f"the number of nodes of blocks[{number}]", of_block[0] + of_block[1]
        yield f"the number of edges of blocks[{number}]", of_block[2]
        totals = [totals[0] + of_block[0] + of_block[1], totals[1] + of_block[2]]
        if len(ntypes) <= _PAIRS:
            yield from ((f"the number of {rows} of types '{a}' and '{b}'", sources[a] + sources[b])
                        for a, b in itertools.combinations(ntypes, 2))
    yield "the number of nodes of all blocks", totals[0]
    yield "the number of edges of all blocks", totals[1]


def _constant(row: np.ndarray) -> bool:
    return bool((np.abs(row / row[0] - 1) < _LIKE).all())
