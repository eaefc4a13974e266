"""Ids of nodes mapped to numbers within bounded memory, by files on disk.

The ids of a type are dealt to shards by their hash. A shard has its part of the dictionary and all
questions about it, so shards are independent, and one at a time is in memory. Answers come back in
the order of the questions. Numbers in the order of the texts come of a merge of the shards, each
sorted by itself.
"""

from __future__ import annotations

import shutil
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.graph.node_ids import NodeIds
from dgl_heta.graph.readers.column_values import arrow, repeated
from dgl_heta.system.jit import late_kernel
from dgl_heta.system.memory import give_back

_MOST_SHARDS = 256


class ArrayFile:
    """Numbers in a file that grows; it is open only while it is read or written."""

    def __init__(self, path: Path, dtype: Any) -> None:
        self.path, self.dtype, self._count = path, np.dtype(dtype), 0

    def __len__(self) -> int:
        return self._count

    def append(self, values: np.ndarray) -> None:
        if len(values):
            with self.path.open("ab") as file:
                file.write(np.ascontiguousarray(values, self.dtype).data)
        self._count += len(values)

    def read(self, low: int, high: int) -> np.ndarray:
        if low == high:  # perhaps of a file that is not there
            return np.empty(0, self.dtype)
        return np.fromfile(self.path, self.dtype, high - low, offset=low * self.dtype.itemsize)


class TextFile:
    """Texts in two files that grow: the arrays of :class:`~dgl_heta.graph.node_ids.NodeIds`."""

    def __init__(self, path: Path) -> None:
        self.offsets = ArrayFile(path.with_name(f"{path.name}-offsets"), np.int64)
        self.text = ArrayFile(path.with_name(f"{path.name}-text"), np.uint8)

    def __len__(self) -> int:
        return max(len(self.offsets) - 1, 0)

    @property
    def size(self) -> int:
        """Bytes of the texts."""
        return len(self.text)

    def append(self, texts: Any) -> None:
        """Append an Arrow array of type large_string."""
        if len(texts):
            ids = NodeIds.of_arrow(texts)
            self.offsets.append(len(self.text) + ids.offsets[len(self.offsets) > 0:])
            self.text.append(ids.text)

    def batches(self, size: int) -> Iterator[Any]:
        """The texts in arrays of about `size` bytes, or one text."""
        low = 0
        while low < len(self):
            ends = self.offsets.read(low, min(low + size // 8 + 1, len(self)) + 1)
            taken = ends - ends[0] + 8 * np.arange(len(ends))
            many = max(int(np.searchsorted(taken, size, side="right")) - 1, 1)
            text = self.text.read(int(ends[0]), int(ends[many]))
            yield NodeIds(ends[:many + 1] - ends[0], text).to_arrow()
            low += many

    def remove(self) -> None:
        for file in (self.offsets, self.text):
            file.path.unlink(missing_ok=True)


def mapped_files(files: Sequence[ArrayFile], path: Path) -> list[np.ndarray]:
    """The contents of files, which move to one new file; one map of it costs one descriptor."""
    starts = []
    with path.open("wb") as whole:
        for file in files:
            starts.append(whole.tell())
            if len(file):
                with file.path.open("rb") as part:
                    shutil.copyfileobj(part, whole, 1 << 20)
                file.path.unlink()
            whole.write(bytes(-whole.tell() % 8))
        size = whole.tell()
    data = np.memmap(path, np.uint8, "r") if size else np.empty(0, np.uint8)
    return [data[start:start + len(file) * file.dtype.itemsize].view(file.dtype)
            for start, file in zip(starts, files)]


class IdShards:
    """Ids, the numbers of those that are known, and questions for the numbers of others.

    Parameters
    ----------
    directory : a new one, for its files.
    size : bytes of the files that the known ids come from.
    memory : bytes that one shard should need at most.
    """

    def __init__(self, directory: Path, size: int, memory: int) -> None:
        directory.mkdir()
        self._batch = memory // 32
        shards = range(min(1 + 24 * size // memory, _MOST_SHARDS))
        self._known = [TextFile(directory / f"known-{i}") for i in shards]
        self._numbers = [ArrayFile(directory / f"numbers-{i}", np.int64) for i in shards]
        self._asked = [TextFile(directory / f"asked-{i}") for i in shards]
        self._answers = [ArrayFile(directory / f"answers-{i}", np.int64) for i in shards]
        self._counts: list[np.ndarray] = []  # of each question, the ids in each shard

    def add(self, ids: Any, first: int) -> None:
        """Ids with the numbers `first`, `first + 1`, …"""
        for shard, rows in enumerate(self._dealt(ids)):
            self._known[shard].append(ids.take(arrow().array(rows)))
            self._numbers[shard].append(rows + first)

    def ask(self, ids: Any) -> tuple[int, np.ndarray]:
        """Ask for the numbers of ids: which question it is, and the place of each row's answer."""
        encoded = ids.dictionary_encode()
        dealt = self._dealt(encoded.dictionary)
        for shard, rows in enumerate(dealt):
            self._asked[shard].append(encoded.dictionary.take(arrow().array(rows)))
        places = np.empty(len(encoded.dictionary), np.int64)
        places[np.concatenate(dealt)] = np.arange(len(places))
        self._counts.append(np.array([len(rows) for rows in dealt]))
        return len(self._counts) - 1, places[encoded.indices.to_numpy()]

    def repeated(self) -> tuple[int, int, str] | None:
        """The first number whose id a smaller one has: the smaller one, it, the id; or None."""
        found = []
        for known, numbers in zip(self._known, self._numbers):
            if len(known) > 1:
                ids, own = self._whole(known), numbers.read(0, len(numbers))
                if (pair := repeated(ids)) is not None:
                    found.append((int(own[pair[0]]), int(own[pair[1]]), ids[pair[1]].as_py()))
        return min(found, key=lambda one: one[1]) if found else None

    def number(self, names: TextFile) -> None:
        """Number the ids that were asked for in the order of their texts, which go to `names`."""
        pa, pc = arrow(), arrow("pyarrow.compute")
        for asked, known in zip(self._asked, self._known):
            ids = pa.array([], pa.large_string())
            for batch in asked.batches(self._batch):
                ids = pc.unique(pa.chunked_array([ids, pc.unique(batch)]))
            known.append(ids.take(pc.array_sort_indices(ids)))
            give_back()
        runs = [known.batches(self._batch // len(self._known)) for known in self._known]
        heads: list[Any] = [next(run, None) for run in runs]
        while left := [head for head in heads if head is not None]:
            last = min(head[-1].as_py() for head in left)  # to it nothing smaller will come
            cuts = [0 if head is None else _up_to(head, last) for head in heads]
            ids = pa.concat_arrays([head[:cut] for head, cut in zip(heads, cuts) if cut])
            order = pc.array_sort_indices(ids)
            numbers = np.empty(len(ids), np.int64)
            numbers[order.to_numpy()] = np.arange(len(names), len(names) + len(ids))
            names.append(ids.take(order))
            for own, part in zip(self._numbers, np.split(numbers, np.cumsum(cuts)[:-1])):
                own.append(part)
            heads = [head if head is None else head[cut:] if cut < len(head) else next(run, None)
                     for head, cut, run in zip(heads, cuts, runs)]

    def answer(self) -> None:
        """Look up what was asked, shard by shard."""
        pc = arrow("pyarrow.compute")
        for known, numbers, asked, answers in zip(self._known, self._numbers, self._asked,
                                                  self._answers):
            if len(asked):
                ids, found = self._whole(known), np.append(numbers.read(0, len(numbers)), -1)
                for batch in asked.batches(self._batch):
                    places = pc.fill_null(pc.index_in(batch, value_set=ids), -1)
                    answers.append(found[places.to_numpy(zero_copy_only=False)])
            for file in (known, asked):
                file.remove()
            give_back()
        counts = np.array(self._counts).reshape(len(self._counts), len(self._known))
        self._begins = np.cumsum(counts, 0) - counts

    def answers(self, question: int) -> np.ndarray:
        """The numbers that were asked for, int64, by their places; -1 where no id is known."""
        return np.concatenate([answers.read(low, low + count) for answers, low, count in zip(
            self._answers, self._begins[question], self._counts[question])])

    def _whole(self, texts: TextFile) -> Any:
        pa = arrow()
        return pa.concat_arrays([pa.array([], pa.large_string()), *texts.batches(self._batch)])

    def _dealt(self, ids: Any) -> list[np.ndarray]:
        """The rows of each shard, ascending."""
        if len(self._known) == 1:
            return [np.arange(len(ids))]
        own = NodeIds.of_arrow(ids)
        shards = _hashed(own.offsets, own.text, np.uint64(len(self._known)))
        ends = np.cumsum(np.bincount(shards, minlength=len(self._known)))
        return np.split(np.argsort(shards, kind="stable"), ends[:-1])


def _up_to(texts: Any, last: str) -> int:
    """How many of sorted texts are at most `last`."""
    return bisect_right(range(len(texts)), last, key=lambda i: texts[i].as_py())


@late_kernel
def _hashed(offsets, text, shards):  # type: ignore[no-untyped-def]
    """FNV-1a of each text (Fowler, Noll, Vo), modulo the number of shards."""
    found = np.empty(len(offsets) - 1, np.uint8)
    for i in range(len(found)):
        code = np.uint64(14695981039346656037)
        for at in range(offsets[i], offsets[i + 1]):
            code = (code ^ np.uint64(text[at])) * np.uint64(1099511628211)
        found[i] = (code ^ (code >> np.uint64(32))) % shards
    return found
