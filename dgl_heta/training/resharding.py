"""A checkpoint for other workers than those that saved it.

Every worker reads, a block at a time, the learnable rows that it owns now from the shards of those
that owned them, and opens no other shard. Of rows that several workers had copies of
(`train.learnable = replica`) it takes the mean, as the model at the end does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dgl_heta.features import LearnableFeatures
from dgl_heta.features.learnable import Place, Table
from dgl_heta.features.row_table import BLOCK
from dgl_heta.training.checkpoint_files import check_shard, folder_of, shard_files
from dgl_heta.training.preemption import Position
from dgl_heta.training.table_files import PARTS, StoredTensors


class Shards:
    """The shards of all workers of a checkpoint; a context.

    A file is compared with its checksum when something is first read from it.

    Parameters
    ----------
    notes : of all workers, in order.
    """

    def __init__(self, run_dir: Path, at: Position, notes: Sequence[Mapping[str, Any]]) -> None:
        self._run_dir, self._at, self._notes = run_dir, at, notes
        self._stack, self._files = ExitStack(), dict[tuple[int, str], StoredTensors]()
        self._places: dict[str, list[tuple[int, Place]]] = {}
        for rank, note in enumerate(notes):
            for place in (Place(*given) for given in note["rows"]):
                self._places.setdefault(place.ntype, []).append((rank, place))

    def __enter__(self) -> Shards:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def checked(self, rank: int, name: str) -> Path:
        """A file of a worker's, after it was compared with its checksum."""
        check_shard(self._run_dir, self._at, rank, self._notes[rank]["files"], [name])
        return folder_of(self._run_dir, self._at) / name

    def totals(self, rank: int, workers: int) -> Tensor:
        """The statistics of the epoch so far that a worker goes on from.

        They are sums, each over the seeds of a worker, so any worker may go on from any of them.
        """
        mine = torch.zeros_like(self._totals(0))
        for saved in range(rank, len(self._notes), workers):
            mine += self._totals(saved)
        return mine

    def load(self, learnable: LearnableFeatures) -> None:
        """Take over the rows that a worker has.

        Raises
        ------
        InputError
            A shard is damaged or missing.
        KeyError, ValueError
            The shards do not have all of the rows, or rows of another kind.
        """
        for name, table in learnable.tables().items():
            places = [place for place in learnable.places() if place.table == name]
            steps = {self._file(rank, tables=True).notes[there.table] for place in places
                     for rank, there, _, _ in self._shared(place.ntype, place.low, place.high)}
            if len(steps) > 1:
                raise ValueError(f"rows of {name} were saved after different steps")
            table.load(self._blocks(places, table), int(*steps))

    def _blocks(self, places: Sequence[Place], table: Table) -> Iterator[dict[str, Tensor]]:
        for place in places:
            for low in range(place.low, place.high, BLOCK):
                yield {part: self._rows(place.ntype, part, low, min(low + BLOCK, place.high), table)
                       for part in PARTS}

    def _rows(self, ntype: str, part: str, low: int, high: int, table: Table) -> Tensor:
        """Rows `low … high - 1` of a type, or of their moments."""
        rows = torch.zeros((high - low, table.shape[1]), dtype=table.dtype)
        copies = torch.zeros((high - low, 1), dtype=table.dtype)
        for rank, place, first, last in self._shared(ntype, low, high):
            start = place.start - place.low
            saved = self._file(rank, tables=True).rows(f"{place.table}.{part}", start + first,
                                                       start + last)
            if saved.shape[1:] != rows.shape[1:] or saved.dtype != rows.dtype:
                raise ValueError(f"rows of '{ntype}' are {saved.dtype}{list(saved.shape[1:])}, not "
                                 f"{rows.dtype}{list(rows.shape[1:])}")
            rows[first - low:last - low] += saved
            copies[first - low:last - low] += 1
        if not copies.all():
            raise ValueError(f"its shards do not have all rows of '{ntype}'")
        return rows / copies

    def _shared(self, ntype: str, low: int, high: int) -> Iterator[tuple[int, Place, int, int]]:
        """Who has saved some of the rows `low … high - 1` of a type, where, and which of them."""
        for rank, place in self._places.get(ntype, ()):
            first, last = max(low, place.low), min(high, place.high)
            if first < last:
                yield rank, place, first, last

    def _totals(self, rank: int) -> Tensor:
        file = self._file(rank, tables=False)
        return file.rows("progress.totals", 0, *file.layout["progress.totals"][1])

    def _file(self, rank: int, tables: bool) -> StoredTensors:
        name = shard_files(rank)[tables]
        if (rank, name) not in self._files:
            self._files[rank, name] = self._stack.enter_context(
                StoredTensors(self.checked(rank, name)))
        return self._files[rank, name]
