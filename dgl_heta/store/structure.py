"""The numbers that a store's arrays may hold, so that none in a file leads out of an array.

Structure is checked piece by piece while checksums are computed, so that the bytes are read once.
Files can change after that: kernels that index with numbers of a mapped file check each of them
(:mod:`dgl_heta.sampling.sampling_kernels`, :func:`in_edges`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.system.jit import late_kernel

if TYPE_CHECKING:
    from dgl_heta.store.csc import CSC
    from dgl_heta.store.manifest import ArrayEntry, Manifest, RelationEntry

_PIECE = 2**20  # numbers
_LARGEST = np.finfo(np.float32).max


@dataclass
class Rule:
    """The rule for all numbers of an array; given to :meth:`add` piece by piece, in order.

    Attributes
    ----------
    low, high : of all numbers, both allowed.
    pointers : whether they ascend from `low` to `high`, as those of a CSC.
    fault : what was wrong first, or "".
    """

    low: int
    high: int
    pointers: bool = False
    fault: str = ""
    _last: int = field(default=0, repr=False)
    _seen: int = field(default=0, repr=False)

    def add(self, values: np.ndarray) -> None:
        """Check the next numbers."""
        if self.fault or not len(values):
            return
        if values.dtype == np.bool_:
            values = values.view(np.uint8)
        if self.pointers:
            if not self._seen and values[0] != self.low:
                self.fault = f"it begins with {values[0]} instead of {self.low}"
            elif values[0] < self._last or (values[1:] < values[:-1]).any():
                self.fault = f"its numbers do not ascend (after number {self._seen})"
            self._last = int(values[-1])
        else:
            low, high = int(values.min()), int(values.max())
            if low < self.low or high > self.high:
                self.fault = (f"it holds {low if low < self.low else high}, but its numbers go "
                              f"from {self.low} to {self.high}")
        self._seen += len(values)

    def end(self) -> str:
        """All numbers were added: what is wrong, or ""."""
        if not self.fault and self.pointers and self._last != self.high:
            self.fault = f"it ends with {self._last} instead of {self.high}"
        return self.fault

    def check(self, array: np.ndarray) -> str:
        """Check a whole array; what is wrong, or ""."""
        for start in range(0, len(array), _PIECE):
            self.add(np.asarray(array[start:start + _PIECE]).reshape(-1))
        return self.end()


@dataclass
class Finite:
    """Counts the numbers of an array that are not finite in single precision.

    Attributes
    ----------
    wrong : how many there are.
    first : the place of the first among all numbers.
    """

    wrong: int = 0
    first: int = 0
    _seen: int = field(default=0, repr=False)

    def add(self, values: np.ndarray) -> None:
        """Look at the next numbers."""
        finite = np.abs(values) <= _LARGEST
        if not finite.all():
            places = np.flatnonzero(~finite)
            if not self.wrong:
                self.first = self._seen + int(places[0])
            self.wrong += len(places)
        self._seen += len(values)


def pointers(entry: RelationEntry) -> Rule:
    """The rule for `indptr` of a relation."""
    return Rule(0, entry.edges, pointers=True)


def rule_of(manifest: Manifest, entry: ArrayEntry) -> Rule | Finite | None:
    """The rule for an array of a store; None for any numbers. Features are only looked at."""
    if np.dtype(entry.dtype).kind == "f" and any(
            entry is arrays.get("feat") for arrays in manifest.arrays.values()):
        return Finite()
    for ids in manifest.ids.values():
        if entry is ids.offsets:
            return Rule(0, ids.text.shape[0], pointers=True)
    for each in manifest.relations:
        if entry is each.indptr:
            return pointers(each)
        if entry is each.indices:
            return Rule(0, manifest.node_counts[each.relation.src] - 1)
        if entry is each.edge_ids:
            return Rule(0, each.edges - 1)
    return Rule(0, 1) if np.dtype(entry.dtype) == np.bool_ else None


def where(csc: CSC) -> str:
    """The files of a relation, for errors."""
    return " or ".join(dict.fromkeys(map(file_of, csc)))


def file_of(array: np.ndarray) -> str:
    """The file that an array is mapped from, for errors."""
    return str(getattr(array, "filename", None) or "an array in memory")


def changed(relation: Relation, csc: CSC) -> InputError:
    """The error where numbers in the files of a relation cannot be right."""
    return InputError(f"relation '{relation}': {where(csc)} holds numbers that lead out of the "
                      "graph; it was edited, damaged, or written to since it was opened: compare "
                      "checksums with `dgl-heta inspect`, and write the store again")


def in_edges(relation: Relation, csc: CSC, nodes: np.ndarray, num_src: int,
             most: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """All in-edges of some destination nodes (int64), or the first ones of each, as many as `most`
    (int64) says: CSC pointers and sources, both int64.

    Raises
    ------
    InputError
        A number in the files is out of range.
    """
    indptr = np.empty(len(nodes) + 1, np.int64)
    total = _count_all(csc.indptr, len(csc.indices), nodes, indptr, most)
    sources = np.empty(max(total, 0), np.int64)
    if total < 0 or not _copy_all(csc.indptr, csc.indices, nodes, num_src, indptr, sources):
        raise changed(relation, csc)
    return indptr, sources


def copied(relation: Relation, csc: CSC, num_src: int) -> CSC:
    """A whole relation in memory, int64, for code that checks nothing.

    Raises
    ------
    InputError
        A number in the files is out of range.
    """
    indptr, indices = np.array(csc.indptr), np.array(csc.indices, np.int64)
    if (Rule(0, len(indices), pointers=True).check(indptr)
            or Rule(0, num_src - 1).check(indices)):
        raise changed(relation, csc)
    return type(csc)(indptr, indices)


def edge_ends(relation: Relation, csc: CSC, positions: np.ndarray, counts: Mapping[str, int]
              ) -> tuple[np.ndarray, np.ndarray]:
    """Sources and destinations of edges by their positions in the CSC, int64; `counts` are of nodes
    by type.

    Raises
    ------
    InputError
        A number in the files is out of range.
    """
    sources = np.asarray(csc.indices[positions], np.int64)
    destinations = np.searchsorted(csc.indptr, positions, side="right") - 1
    check_range(relation, csc, sources, counts[relation.src])
    check_range(relation, csc, destinations, counts[relation.dst])
    return sources, destinations


def check_range(relation: Relation, csc: CSC, ids: np.ndarray, count: int) -> None:
    """Check ids that were read from a relation's files.

    Raises
    ------
    InputError
        One is not in 0 … count - 1.
    """
    if len(ids) and not 0 <= ids.min() <= ids.max() < count:
        raise changed(relation, csc)


@late_kernel
def _count_all(indptr, edges, nodes, out, most):  # type: ignore[no-untyped-def]
    """Fill `out` with the CSC pointers of the nodes' in-edges; return their number, or -1. `most`
    is how many each may have, or None."""
    total = 0
    out[0] = 0
    for i in range(len(nodes)):
        node = nodes[i]
        if node < 0 or node >= len(indptr) - 1:
            return -1
        begin = indptr[node]
        end = indptr[node + 1]
        if begin < 0 or end < begin or end > edges:
            return -1
        total += end - begin if most is None else min(end - begin, most[i])
        out[i + 1] = total
    return total


@late_kernel
def _copy_all(indptr, indices, nodes, num_src, pointers, out):  # type: ignore[no-untyped-def]
    """Copy what :func:`_count_all` has counted; False where a number is out of range."""
    for i in range(len(nodes)):
        begin = indptr[nodes[i]]
        first = pointers[i]
        count = pointers[i + 1] - first
        if begin < 0 or begin > len(indices) - count:
            return False
        for k in range(count):
            source = np.int64(indices[begin + k])
            if source < 0 or source >= num_src:
                return False
            out[first + k] = source
    return True
