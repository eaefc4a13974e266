"""Ids of nodes of several types in one order, and how trainers tell each other seeds."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from dgl_heta.comm.collectives import Comm
from dgl_heta.distdgl.refusals import refuse

Type = TypeVar("Type", bound=Hashable)
_NONE = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True)
class TypedIds:
    """Ids of nodes with their types.

    Attributes
    ----------
    types : node types; the same on all trainers, who send a type as its number.
    rows : int64 (ids, 2): the number of each one's type, and the id.
    """

    types: Sequence[str]
    rows: Tensor

    @classmethod
    def of(cls, types: Sequence[str], ids: Iterable[tuple[str, Any]]) -> TypedIds:
        """Return ids from pairs of a type and its ids (any integers), in this order."""
        pieces = [torch.empty(0, 2, dtype=torch.int64)]
        for each, given in ids:
            numbers = torch.as_tensor(given, dtype=torch.int64).flatten()
            pieces.append(torch.stack([torch.full_like(numbers, types.index(each)), numbers], 1))
        return cls(types, torch.cat(pieces))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> TypedIds:
        return TypedIds(self.types, self.rows[index])

    def by_type(self) -> dict[str, Tensor]:
        """Return type → ids (int64) in their order; every type is a key."""
        return {each: self.rows[self.rows[:, 0] == number, 1]
                for number, each in enumerate(self.types)}

    def repeats(self) -> bool:
        """Return whether an id is there twice."""
        # As one number each: PyTorch finds unique numbers much faster than unique rows.
        keys = (self.rows[:, 0] << 48) + self.rows[:, 1]
        return len(keys.unique()) < len(keys)

    def gathered(self, comm: Comm, sizes: Sequence[int]) -> list[TypedIds]:
        """Return the ids of all trainers of `comm`, by rank, of which each has so many; all of them
        call it alike."""
        rows = comm.all_gather_rows(self.rows, [*sizes], "seeds")
        return [TypedIds(self.types, piece) for piece in rows.split([*sizes])]


def gather_seeds(comm: Comm, types: Sequence[Type], own: Mapping[Type, Tensor]
                 ) -> list[dict[Type, Tensor]]:
    """Return the seeds of a batch of all trainers of `comm`, by rank, as type → ids; of edges
    relation → ids.

    All trainers call it alike. The order within a type is all that counts in a batch, so ids
    travel sorted by type, without their types: half of the bytes of :meth:`TypedIds.gathered`.
    """
    ids = [own.get(t, _NONE).to(torch.int64) for t in types]
    counts = comm.all_gather_rows(torch.tensor([[len(of_type) for of_type in ids]]),
                                  [1] * comm.size, "seeds")
    rows = comm.all_gather_rows(torch.cat(ids), counts.sum(1).tolist(), "seeds")
    pieces = iter(rows.split(counts.flatten().tolist()))
    return [{t: next(pieces) for t in types} for _ in range(comm.size)]


def check_once(ids: Tensor, ntype: str, batch: str) -> None:
    """Check that a trainer's seeds of a type are there once each; `batch` names the batch.

    Raises
    ------
    InputError
        One is there twice.
    """
    unique, counts = ids.unique(return_counts=True)
    if len(unique) < len(ids):
        refuse("node twice in a batch", batch=batch, node=int(unique[counts > 1][0]), ntype=ntype)
