"""Relations cut by an array, which says of each destination node whose its in-edges are.

Ranges of destinations (:data:`dgl_heta.planning.partition_shares.Piece`) are the compact form; an
array is for cuts that look at the edges. It lies beside the plan, in a file of its own. The
in-edges of a node that has very many can be on several partitions (:class:`Hub`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation, Schema

_PARTITION = np.dtype("<u2")
_CHUNK = 2**20  # nodes


@dataclass(frozen=True)
class Hub:
    """A destination node whose in-edges are on several partitions.

    Attributes
    ----------
    pieces : `(partition, low, high)`, in order: who has its in-edges `low … high - 1`, as the store
        counts them. Together they are all of them.
    """

    node: int
    pieces: tuple[tuple[int, int, int], ...]

    @property
    def degree(self) -> int:
        """All its in-edges."""
        return self.pieces[-1][2]

    def of(self, part: int) -> tuple[int, int]:
        """The in-edges that a partition has; an empty range for none."""
        return next(((low, high) for p, low, high in self.pieces if p == part), (0, 0))


@dataclass(frozen=True)
class Ownership:
    """Who has the in-edges of a relation's destination nodes.

    Attributes
    ----------
    rows, edges : per partition the number of destination nodes, and of in-edges.
    sha256 : of the array's bytes, and of the hubs if there are some.
    file : where the array lies, if it does.
    hubs : nodes whose in-edges are cut, too, in the order of their ids. The owner that the array
        names merges what the others have.
    """

    rows: tuple[int, ...]
    edges: tuple[int, ...]
    sha256: str
    file: Path | None = field(default=None, compare=False)
    hubs: tuple[Hub, ...] = ()
    _array: np.ndarray | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, chosen: np.ndarray, relation: Relation, schema: Schema, holders: Sequence[int],
           parts: int, method: str, degrees: np.ndarray,
           hubs: Mapping[int, Sequence[tuple[int, int, int]]] | None = None) -> Ownership:
        """The ownership by an array, (destination nodes,) integers: indices into `holders`.

        Parameters
        ----------
        holders : the partitions that have a piece of the relation, of `parts` altogether.
        method : what has cut the relation, for errors.
        degrees : in-edges of each destination node, int64.
        hubs : node → its in-edges in pieces, as of :class:`Hub`, with indices into `holders`.

        Raises
        ------
        InputError
            The array does not give every destination node to one of them.
        """
        chosen = checked_cut(chosen, relation, schema, len(holders), method)
        array = np.array(holders, _PARTITION)[chosen]
        cut = tuple(Hub(node, tuple((holders[i], low, high) for i, low, high in pieces))
                    for node, pieces in sorted((hubs or {}).items()))
        edges = np.bincount(array, degrees, parts).astype(np.int64)
        for hub in cut:
            edges[array[hub.node]] -= hub.degree
            for part, low, high in hub.pieces:
                edges[part] += high - low
        rows = np.bincount(array, minlength=parts)
        return cls(tuple(rows.tolist()), tuple(edges.tolist()), _digest(array, cut), None, cut,
                   array)

    @cached_property
    def owner(self) -> np.ndarray:
        """The partition of each destination node, uint16; a memory map where it is a file.

        Raises
        ------
        InputError
            The file is missing or holds something else.
        """
        array = self._mapped()
        if self._array is not None:
            return array
        counts = np.zeros(len(self.rows), np.int64)
        for start in range(0, len(array), _CHUNK):
            counted = np.bincount(array[start:start + _CHUNK], minlength=len(counts))
            if len(counted) > len(counts):
                break  # of a partition that there is not
            counts += counted
        if counts.tolist() != list(self.rows):
            raise InputError(f"{self.file} was edited or damaged: partitions own other numbers of "
                             "nodes in it than the plan says; make the partition again")
        return array

    def _mapped(self) -> np.ndarray:
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
            They differ, or it does not fit the plan.
        """
        if _digest(self._mapped(), self.hubs) != self.sha256:
            raise InputError(f"{self.file} was edited or damaged: its checksum does not agree with "
                             "the plan; make the partition again")
        _ = self.owner

    def save(self, file: Path) -> None:
        """Write the array."""
        np.save(file, self.owner, allow_pickle=False)

    def to_json(self, relation: Relation) -> dict[str, Any]:
        return {"relation": list(relation), "file": str(self.file), "sha256": self.sha256,
                "rows": list(self.rows), "edges": list(self.edges),
                **({"hubs": [[h.node, [list(piece) for piece in h.pieces]] for h in self.hubs]}
                   if self.hubs else {})}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Ownership:
        return cls(tuple(map(int, data["rows"])), tuple(map(int, data["edges"])),
                   str(data["sha256"]), Path(data["file"]),
                   tuple(Hub(int(node), tuple((int(part), int(low), int(high))
                                              for part, low, high in pieces))
                         for node, pieces in data.get("hubs", ())))


def checked_cut(chosen: Any, relation: Relation, schema: Schema, pieces: int, method: str
                ) -> np.ndarray:
    """The owners that a cutter gave, as an array.

    Raises
    ------
    InputError
        It does not give every destination node to one of so many pieces.
    """
    count = schema.node_counts[relation.dst]
    try:
        array = np.asarray(chosen)
    except Exception as error:  # a ragged list, a tensor that wants a gradient
        raise InputError(f"{method} cut relation '{relation}' by what is no array: {error}"
                         ) from None
    if array.shape != (count,) or array.dtype.kind not in "iu":
        raise InputError(
            f"{method} cut relation '{relation}' by an array {array.dtype.str}{list(array.shape)}; "
            f"it must be [{count}] integers, the piece of each '{relation.dst}'")
    low, high = int(array.min(initial=0)), int(array.max(initial=0))
    if low < 0 or high >= pieces:
        raise InputError(f"{method} cut relation '{relation}' in pieces {low} … {high}; there are "
                         f"0 … {pieces - 1}")
    return array


def check_counts(ownership: dict[Relation, Ownership], schema: Schema, parts: int) -> bool:
    """Return whether each array's counts are of so many partitions and make up its relation."""
    return all(len(own.rows) == len(own.edges) == parts and min(own.rows + own.edges) >= 0
               and sum(own.rows) == schema.node_counts[relation.dst]
               and sum(own.edges) == schema.edge_counts[relation]
               and _are_cut_once(own, schema.node_counts[relation.dst], parts)
               for relation, own in ownership.items())


def _are_cut_once(own: Ownership, nodes: int, parts: int) -> bool:
    """Return whether hubs are nodes, each once, whose pieces follow each other on partitions."""
    ids = [hub.node for hub in own.hubs]
    return (all(low < high for low, high in pairwise([-1, *ids, nodes]))
            and all(len(hub.pieces) > 1
                    and len({part for part, _, _ in hub.pieces}) == len(hub.pieces)
                    and [low for _, low, _ in hub.pieces] == [
                        0, *(high for _, _, high in hub.pieces[:-1])]
                    and all(0 <= part < parts and low < high for part, low, high in hub.pieces)
                    for hub in own.hubs)
            and all(sum(high - low for hub in own.hubs for low, high in [hub.of(part)])
                    <= own.edges[part] for part in range(parts)))


def _digest(array: np.ndarray, hubs: Sequence[Hub]) -> str:
    listed = json.dumps([[hub.node, hub.pieces] for hub in hubs]) if hubs else ""
    digest = hashlib.sha256(listed.encode())
    for start in range(0, len(array), _CHUNK):
        digest.update(np.ascontiguousarray(array[start:start + _CHUNK]).data)
    return digest.hexdigest()
