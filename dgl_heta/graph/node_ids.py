"""Ids of nodes as their owner writes them: one text per node, as two arrays of numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dgl_heta.errors import InputError
from dgl_heta.system.optional import optional


@dataclass(frozen=True)
class NodeIds:
    """A text per node, in UTF-8.

    Attributes
    ----------
    offsets : (nodes + 1,) int64, from 0 to the number of bytes; the id of node i is the bytes
        `offsets[i]` to `offsets[i + 1]` of `text`.
    text : uint8, all ids one after the other.
    """

    offsets: np.ndarray
    text: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def of(cls, names: Iterable[str]) -> NodeIds:
        """The ids that are given, in their order."""
        parts = [name.encode("utf-8") for name in names]
        offsets = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        return cls(offsets, np.frombuffer(b"".join(parts), np.uint8))

    @classmethod
    def of_arrow(cls, names: Any) -> NodeIds:
        """The ids in an Arrow array of type large_string; they share its memory."""
        _, ends, text = names.buffers()
        begin = names.offset
        offsets = np.frombuffer(ends, np.int64)[begin:begin + len(names) + 1]
        low, high = int(offsets[0]), int(offsets[-1])
        data = np.frombuffer(text, np.uint8)[low:high] if text else np.empty(0, np.uint8)
        return cls(offsets - low, data)

    def to_arrow(self) -> Any:
        """The ids in an Arrow array of type large_string, which shares their memory.

        Raises
        ------
        InputError
            The arrays hold no text; pyarrow is not installed.
        """
        pa = optional("pyarrow", "ids of nodes as a table", "parquet")
        offsets = np.ascontiguousarray(self.offsets, np.int64)
        texts = pa.LargeStringArray.from_buffers(
            len(self), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(self.text)))
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid:
            raise InputError("ids of nodes are no text; the store was damaged: write it again"
                             ) from None
        return texts

    def names(self, low: int, high: int) -> list[str]:
        """The ids of nodes `low … high - 1`.

        Raises
        ------
        InputError
            The arrays hold no text: files that were damaged.
        """
        offsets = np.asarray(self.offsets[low:high + 1])
        if offsets[0] < 0 or (np.diff(offsets) < 0).any() or offsets[-1] > len(self.text):
            raise InputError("ids of nodes lead out of their text; the store was damaged: write it "
                             "again")
        start = int(offsets[0])
        text = self.text[start:int(offsets[-1])].tobytes()
        try:
            return [text[a:b].decode("utf-8") for a, b in
                    zip((offsets[:-1] - start).tolist(), (offsets[1:] - start).tolist())]
        except UnicodeDecodeError:
            raise InputError("ids of nodes are not UTF-8; the store was damaged: write it again"
                             ) from None
