"""Relations cut by an array, which says of each destination node whose its in-edges are.

Ranges of destinations (:data:`dgl_heta.planning.assignment.Piece`) are the compact form; an array
is for cuts that look at the edges. It lies beside the plan, in a file of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation, Schema

_PARTITION = np.dtype("<u2")


@dataclass(frozen=True)
class Ownership:
    """Who has the in-edges of a relation's destination nodes.

    Attributes
    ----------
    rows, edges : per partition the number of destination nodes, and of their in-edges.
    sha256 : of the array's bytes.
    file : where the array lies, if it does.
    """

    rows: tuple[int, ...]
    edges: tuple[int, ...]
    sha256: str
    file: Path | None = field(default=None, compare=False)
    _array: np.ndarray | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, chosen: np.ndarray, relation: Relation, schema: Schema, holders: Sequence[int],
           parts: int, method: str, destinations: Iterable[np.ndarray]) -> Ownership:
        """The ownership by an array, (destination nodes,) integers: indices into `holders`.

        Parameters
        ----------
        holders : the partitions that have a piece of the relation, of `parts` altogether.
        method : the partition method, for errors.
        destinations : the destination of every edge of the relation, in chunks.

        Raises
        ------
        InputError
            The array does not give every destination node to one of them.
        """
        chosen, count = np.asarray(chosen), schema.node_counts[relation.dst]
        if chosen.shape != (count,) or chosen.dtype.kind not in "iu":
            raise InputError(
                f"partition method '{method}' cut relation '{relation}' by an array "
                f"{chosen.dtype.str}{list(chosen.shape)}; it must be [{count}] integers, the piece "
                f"of each '{relation.dst}'")
        low, high = int(chosen.min(initial=0)), int(chosen.max(initial=0))
        if low < 0 or high >= len(holders):
            raise InputError(f"partition method '{method}' cut relation '{relation}' in pieces "
                             f"{low} … {high}; there are 0 … {len(holders) - 1}")
        array = np.array(holders, _PARTITION)[chosen]
        edges = np.zeros(parts, np.int64)
        for dst in destinations:
            edges += np.bincount(array[dst], minlength=parts)
        rows = np.bincount(array, minlength=parts)
        return cls(tuple(rows.tolist()), tuple(edges.tolist()), _digest(array), None, array)

    @cached_property
    def owner(self) -> np.ndarray:
        """The partition of each destination node, uint16; a memory map where it is a file.

        Raises
        ------
        InputError
            The file is missing or holds something else.
        """
        if self._array is not None:
            return self._array
        try:
            array = np.lib.format.open_memmap(self.file, mode="r")  # never unpickles
        except Exception as error:  # NumPy's parser raises almost anything at a damaged header
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"cannot read {self.file}, by which a relation is cut: {reason}; make "
                             "the partition again") from None
        if array.dtype != _PARTITION or array.shape != (sum(self.rows),):
            raise InputError(f"{self.file} holds {array.dtype.str}{list(array.shape)}, but the "
                             f"plan says {_PARTITION.str}[{sum(self.rows)}]; make the partition "
                             "again")
        return array

    def verify(self) -> None:
        """Compare the array with its checksum.

        Raises
        ------
        InputError
            They differ.
        """
        if _digest(self.owner) != self.sha256:
            raise InputError(f"{self.file} was edited or damaged: its checksum does not agree with "
                             "the plan; make the partition again")

    def save(self, file: Path) -> None:
        """Write the array."""
        np.save(file, self.owner, allow_pickle=False)

    def to_json(self, relation: Relation) -> dict[str, Any]:
        return {"relation": list(relation), "file": str(self.file), "sha256": self.sha256,
                "rows": list(self.rows), "edges": list(self.edges)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Ownership:
        return cls(tuple(map(int, data["rows"])), tuple(map(int, data["edges"])),
                   str(data["sha256"]), Path(data["file"]))


def check_counts(ownership: dict[Relation, Ownership], schema: Schema, parts: int) -> bool:
    """Whether each array's counts are of so many partitions and make up its relation."""
    return all(len(own.rows) == len(own.edges) == parts and min(own.rows + own.edges) >= 0
               and sum(own.rows) == schema.node_counts[relation.dst]
               and sum(own.edges) == schema.edge_counts[relation]
               for relation, own in ownership.items())


def _digest(array: np.ndarray) -> str:
    digest = hashlib.sha256()
    for start in range(0, len(array), 2**20):
        digest.update(np.ascontiguousarray(array[start:start + 2**20]).data)
    return digest.hexdigest()
