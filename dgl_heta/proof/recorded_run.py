"""The record of a trainer's run, in files: arrays in .npz, the rest in JSON; nothing pickled.

A directory has for each trainer `trainer-RANK.npz` and, written last, `trainer-RANK.json`. The same
program gives the same :class:`Key` to the same thing in every run.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dgl_heta.errors import HetaError

ROWS = 8192
"""Rows of an array that are kept; of more, those of the nodes whose hash is least."""
VERSION = 1


class Key(NamedTuple):
    """The name of an array; see :class:`dgl_heta.proof.comparison.Place`."""

    kind: str
    name: str
    detail: str = ""
    step: str = "training"


@dataclass
class Entry:
    """An array of a run.

    Attributes
    ----------
    values : (rows, …) with ids, else of any shape; None for a gradient that is None.
    ids : (rows,) int64, unique, the node of each row.
    dtype : of the tensor that it was; halves are kept as single precision.
    """

    values: np.ndarray | None
    ids: np.ndarray | None = None
    dtype: str = "float32"


@dataclass
class Record:
    """The record of one trainer.

    Attributes
    ----------
    reference : whether it ran in reference mode.
    rank : of the trainer; `group` has the ranks that it exchanges partial aggregations with.
    entries : key → array, in the order of execution.
    learnable : `train.learnable`, of which "replica" lets embeddings part after the first step.
    precision : the coarsest dtype that numbers were computed in.
    random : modules that drew random numbers.
    tables : parameters that are rows of nodes (nn.Embedding).
    norms : modules that ran with running statistics, where a run would use a batch's.
    steps, evaluations : how many optimizer steps and evaluated batches were recorded.
    """

    reference: bool
    rank: int
    group: list[int] = field(default_factory=list)
    learnable: str = "exact"
    precision: str = "float64"
    random: list[str] = field(default_factory=list)
    norms: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    steps: int = 0
    evaluations: int = 0
    entries: dict[Key, Entry] = field(default_factory=dict)

    def add(self, key: Key, values: np.ndarray | None, ids: np.ndarray | None = None,
            dtype: str | None = None) -> None:
        """Keep an array; of a name that was used before, the first is kept."""
        if key in self.entries:
            return
        if values is not None and ids is not None and len(ids) > ROWS:
            kept = fewest(ids, ROWS)
            values, ids = values[kept], ids[kept]
        self.entries[key] = Entry(values, ids, dtype or (
            str(values.dtype) if values is not None else "float32"))

    def save(self, directory: Path) -> None:
        """Write both files."""
        directory.mkdir(parents=True, exist_ok=True)
        arrays, listed = {}, []
        for number, (key, entry) in enumerate(self.entries.items()):
            if entry.values is not None:
                arrays[f"{number}.values"] = entry.values
            if entry.ids is not None:
                arrays[f"{number}.ids"] = entry.ids
            listed.append([*key, entry.dtype])
        np.savez(_file(directory, self.rank, "npz"), **arrays)
        facts = {name: value for name, value in vars(self).items() if name != "entries"}
        text = json.dumps({"version": VERSION, **facts, "entries": listed})
        part = _file(directory, self.rank, "part")
        part.write_text(text, encoding="utf-8")
        os.replace(part, _file(directory, self.rank, "json"))


def fewest(ids: np.ndarray, count: int) -> np.ndarray:
    """Positions of the `count` ids whose hash is least.

    Two runs that have different sets of nodes so keep the same ones of those that both have, but
    for those beyond the smaller of the two largest hashes.
    """
    mixed = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.sort(np.argpartition(mixed, count - 1)[:count])


def load(directory: Path) -> list[Record]:
    """The records of all trainers in a directory, by rank.

    Raises
    ------
    HetaError
        A file is damaged, or of another version.
    """
    return [_load(file) for file in sorted(
        directory.glob("trainer-*.json"), key=lambda f: int(f.stem.partition("-")[2]))]


def _load(file: Path) -> Record:
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
        if facts.pop("version") != VERSION:
            raise HetaError(f"{file} was recorded by another version of dgl-heta; record it again")
        listed: Sequence[Sequence[str]] = facts.pop("entries")
        record = Record(**facts)
        with np.load(file.with_suffix(".npz"), allow_pickle=False) as arrays:
            for number, (*key, dtype) in enumerate(listed):
                record.entries[Key(*key)] = Entry(
                    arrays.get(f"{number}.values"), arrays.get(f"{number}.ids"), dtype)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError,
            EOFError, zipfile.BadZipFile) as error:
        raise HetaError(f"{file} is damaged ({error}); record it again") from None
    return record


def _file(directory: Path, rank: int, suffix: str) -> Path:
    return directory / f"trainer-{rank}.{suffix}"
