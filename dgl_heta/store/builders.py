"""The processes that write a store together; one by itself is the usual case."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, TypeVar

import numpy as np

from dgl_heta._version import __version__
from dgl_heta.errors import HetaError, InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import GraphSource, pieces_of

_LOOK, _PIECES = 1024, 16
"""Graphs are compared by so many rows, and so many edges of so many pieces of each relation."""

Value = TypeVar("Value")


class Builders:
    """The processes that write a store together: here one, which waits for nobody.

    Every process calls :meth:`gather`, :meth:`total` and :meth:`each` alike, in the same order.

    Attributes
    ----------
    rank, size : which of how many processes this is.
    one_disk : whether all see the directory that is written.
    beside : how many of them are on this machine.
    """

    rank = 0
    size = 1
    one_disk = True
    beside = 1

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
        said = self.gather(None if failure is None else _said(failure))
        if failure is not None:
            raise failure
        for rank, text in enumerate(said):
            if text is not None:
                raise HetaError(f"worker {rank} failed: {text}")
        return done

    def agree(self, facts: dict[str, str]) -> None:
        """Refuse processes that were told different things, or read another graph.

        Parameters
        ----------
        facts : what must be the same at all of them, by what a user calls it.

        Raises
        ------
        InputError
            Something is not; names it, and the first process that differs.
        """
        first, *others = self.gather(facts)
        for rank, other in enumerate(others, start=1):
            for what in {**first, **other}:
                if first.get(what) != other.get(what):
                    raise InputError(f"worker {rank} has another {what} than worker 0; all workers "
                                     "must be started alike, on the same graph")

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


def _said(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def graph_facts(source: GraphSource) -> dict[str, str]:
    """What tells graphs apart without reading them whole: counts, and some of all arrays."""
    facts = {"version of dgl-heta": __version__, "graph (its node types)": str(source.node_counts)}
    for relation, edges in source.edges.items():
        pieces = pieces_of(edges)
        some = pieces[::-(-len(pieces) // _PIECES) or 1]
        begins = [column for piece in some for column in next(iter(piece.chunks(_LOOK)), ())]
        counts = [piece.num_edges for piece in pieces]
        facts[f"relation '{Relation(*relation)}'"] = f"{counts} {_sum(*begins)}"
    arrays = {f"array '{name}' of '{kind}'": array
              for of in (source.node_arrays, source.edge_arrays)
              for kind, named in of.items() for name, array in named.items()}
    arrays |= {f"times of '{kind}'": times for kind, times in source.times.items()}
    arrays |= {f"ids of '{ntype}'": ids.offsets for ntype, ids in source.node_ids.items()}
    for what, array in arrays.items():
        facts[what] = f"{array.dtype} {array.shape} {_sum(array[:_LOOK])}"
    return facts


def _sum(*arrays: np.ndarray) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)).hexdigest()


ALONE = Builders()
