"""Files of ours that somebody edits, with checksums that agree again afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.store.manifest import FILE_NAME
from dgl_heta.system.checksums import KEY, file_sum, signed


def edit_json(path: Path, edit: Callable[[dict[str, Any]], object] = lambda data: None) -> None:
    """Change an object in a file and sign it again."""
    data = json.loads(path.read_text(encoding="utf-8"))
    data.pop(KEY, None)
    edit(data)
    path.write_text(json.dumps(signed(data)), encoding="utf-8")


def edit_text(path: Path, old: str, new: str) -> None:
    """Replace text in a file of an object and sign it again."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    edit_json(path)


def edit_array(store: Path, file: str, edit: Callable[[np.ndarray], object]) -> None:
    """Change an array of a store, with its checksum and the manifest's."""
    array = np.load(store / file)
    edit(array)
    np.save(store / file, array)
    total = file_sum(store / file)

    def sign(data: Any) -> None:
        if isinstance(data, dict):
            if data.get("file") == file:
                data[KEY] = total
            for value in data.values():
                sign(value)
        elif isinstance(data, list):
            for value in data:
                sign(value)

    edit_json(store / FILE_NAME, sign)
