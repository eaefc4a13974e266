"""Keys of rows as text: one column, or several joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dgl_heta.tools import as_text

SEPARATOR = "|"
MEMORY = 512 << 20
"""Bytes for ids."""


@dataclass(frozen=True)
class Key:
    """Columns of a table that name its rows."""

    table: str
    columns: tuple[str, ...]


def joined(batch: Any, columns: Sequence[str]) -> Any:
    """The key of each row as text (large_string), null where a column is.

    Several columns are joined by :data:`SEPARATOR`; a backslash stands before one in a text.
    """
    texts = [as_text(batch.column(name)) for name in columns]
    if len(texts) == 1:
        return texts[0]
    parts = []
    for text in texts:
        for mark in ("\\", SEPARATOR):
            text = pc.replace_substring(text, mark, "\\" + mark)
        parts.append(text)
    return pc.binary_join_element_wise(*parts, pa.scalar(SEPARATOR, pa.large_string()))
