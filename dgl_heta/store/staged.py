"""Which files of a store are on this machine: a staged store has those of some partitions only.

Its manifest is that of the whole store: neighbours are sampled by a hash that a relation's position
in the schema is part of, so a shorter list would sample others. `staged.json` beside the manifest
lists the files that are there. A file of which only pieces are there has its full size, with holes,
so that positions in it stay; holes take no disk.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from dgl_heta.errors import InputError
from dgl_heta.system.checksums import KEY, json_sum, read_signed, write_signed

if TYPE_CHECKING:
    from dgl_heta.store.manifest import ArrayEntry

FILE_NAME = "staged.json"
FORMAT = "dgl-heta-staged"
_BLOCK = 2**22  # bytes
Range = tuple[int, int]
"""Bytes `low … high - 1` of a file."""


@dataclass(frozen=True)
class Pieces:
    """Parts of a file, in order, none empty, and the SHA-256 of all their bytes one after another;
    "" while they have not been read."""

    ranges: tuple[Range, ...]
    sha256: str = ""

    @property
    def bytes(self) -> int:
        return sum(high - low for low, high in self.ranges)

    def read(self, file: BinaryIO) -> Iterator[tuple[int, memoryview]]:
        """Where in a file their bytes are, and the bytes, a block at a time."""
        for low, high in self.ranges:
            file.seek(low)
            while low < high and (data := file.read(min(high - low, _BLOCK))):
                yield low, memoryview(data)
                low += len(data)


@dataclass(frozen=True)
class Staged:
    """The files of a store that are on this machine, and for which partitions.

    Attributes
    ----------
    parts, num_parts : the partitions whose files are there, of so many.
    plan, manifest : checksums of the plan and of the store's manifest.
    files : file → None if it is there as a whole, else its pieces.
    """

    parts: tuple[int, ...]
    num_parts: int
    plan: str
    manifest: str
    files: Mapping[str, Pieces | None] = field(default_factory=dict)

    def __str__(self) -> str:
        listed = ", ".join(map(str, self.parts))
        return f"partition{'s' * (len(self.parts) != 1)} {listed or 'none'} of {self.num_parts}"

    def alike(self, other: Staged | None) -> bool:
        """Return whether two stagings have the same files of the same store and plan."""
        return other is not None and self.to_json(sums=False) == other.to_json(sums=False)

    def bytes_of(self, entry: ArrayEntry) -> int:
        """The bytes of a file that are there."""
        pieces = self.files.get(entry.file)
        return pieces.bytes if pieces else entry.bytes * (entry.file in self.files)

    def check(self, part: int, where: Path) -> None:
        """Check that a partition's files are among them.

        Raises
        ------
        InputError
            They are not.
        """
        if part not in self.parts:
            raise InputError(f"{where} is staged for {self}, but this machine is to run partition "
                             f"{part}; stage it here with --part {part}")

    def save(self, store: Path) -> None:
        """Write it into a store's directory."""
        write_signed(store / FILE_NAME, self.to_json(sums=True))

    def to_json(self, sums: bool) -> dict[str, Any]:
        """One JSON object, with the checksums of pieces or without."""
        return {"format": FORMAT, "version": 1, "parts": list(self.parts),
                "num_parts": self.num_parts, "plan": self.plan, "manifest": self.manifest,
                "files": {file: None if pieces is None else {
                    "ranges": [list(r) for r in pieces.ranges],
                    **({"sha256": pieces.sha256} if sums else {})}
                    for file, pieces in sorted(self.files.items())}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Staged:
        """Read what :meth:`to_json` wrote; KeyError, TypeError or ValueError for all else."""
        return cls(
            tuple(map(int, data["parts"])), int(data["num_parts"]), str(data["plan"]),
            str(data["manifest"]),
            {str(file): None if pieces is None else Pieces(
                tuple((int(low), int(high)) for low, high in pieces["ranges"]),
                str(pieces.get("sha256", ""))) for file, pieces in data["files"].items()})

    @classmethod
    def load(cls, store: Path, manifest: Callable[[], Mapping[str, Any]], sizes: Mapping[str, int]
             ) -> Staged | None:
        """The staging of a store's directory; None where the whole store is there.

        Parameters
        ----------
        manifest : makes the JSON of the manifest; `sizes` has the bytes of its files.

        Raises
        ------
        InputError
            The file is damaged, or of another store.
        """
        path = store / FILE_NAME
        if not path.exists():
            return None
        data = read_signed(path, "stage it again")
        try:
            if data["format"] != FORMAT or data["version"] != 1:
                raise InputError(f"{path} has format {data['format']!r}, version "
                                 f"{data['version']!r}; this dgl-heta reads {FORMAT}, version 1")
            staged = cls.from_json(data)
            if staged.manifest != manifest()[KEY]:
                raise InputError(f"{path} is of another store than the manifest beside it; stage "
                                 "it again")
            staged._check(sizes)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{path} is damaged: {error}; stage it again") from None
        return staged

    def _check(self, sizes: Mapping[str, int]) -> None:
        """Raise ValueError for files that the store does not have, or that are shorter."""
        for file, pieces in self.files.items():
            if file not in sizes:
                raise ValueError(f"the store has no file {file!r}")
            ends = [end for r in (pieces.ranges if pieces else ()) for end in r]
            if ends != sorted(ends) or (ends and not 0 <= ends[0] <= ends[-1] <= sizes[file]):
                raise ValueError(f"file {file!r} has no such pieces")


def plan_sum(content: Mapping[str, Any]) -> str:
    """The checksum of a plan's JSON; where the files of its arrays lie does not count."""
    cut = [{key: value for key, value in entry.items() if key != "file"}
           for entry in content.get("ownership", ())]
    return json_sum({**content, "ownership": cut})


def pieces_of(entry: ArrayEntry, chosen: Iterable[tuple[int, int]], most: int = 1000
              ) -> Pieces | None:
    """The pieces of a file with its header and some of its rows; None for the whole file, where
    that is hardly more.

    Parameters
    ----------
    chosen : ranges of rows, in order, none of which overlap.
    most : pieces; gaps between rows that are shorter than this part of the file belong to them.
    """
    dtype = np.dtype(entry.dtype)
    row = dtype.itemsize * math.prod(entry.shape[1:])
    header = entry.bytes - row * entry.shape[0]
    gap = max(4096, entry.bytes // most)
    merged: list[list[int]] = [[0, header]]
    for low, high in chosen:
        if low < high:
            first, last = header + low * row, header + high * row
            if first <= merged[-1][1] + gap:
                merged[-1][1] = last
            else:
                merged.append([first, last])
    pieces = Pieces(tuple((low, high) for low, high in merged))
    return pieces if pieces.bytes < 0.9 * entry.bytes else None


def pieces_sum(pieces: Pieces, path: Path) -> str:
    """The SHA-256 of the pieces of a file, one after another.

    Raises
    ------
    OSError
        It cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for _, data in pieces.read(file):
            digest.update(data)
    return digest.hexdigest()
