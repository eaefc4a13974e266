"""Changed files whose own checksum agrees again, as one who wants to deceive would write them."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dgl_heta.system.checksums import KEY, json_sum

Change = Callable[[bytes, random.Random], bytes]


def signed(change: Change) -> Change:
    """The same change, and the checksum in the file made to fit where that can be."""
    def changed(content: bytes, draw: random.Random) -> bytes:
        made = change(content, draw)
        try:
            value = json.loads(made)
            if isinstance(value, dict) and KEY in value:
                value[KEY] = json_sum({k: v for k, v in value.items() if k != KEY})
                made = json.dumps(value).encode()
        except (ValueError, RecursionError):
            pass
        return made
    return changed


def agree(root: Path, path: Path) -> None:
    """Make the checksum and size of a changed file fit, in whatever JSON below `root` has them."""
    for note in root.rglob("*.json"):
        try:
            data = json.loads(note.read_text(encoding="utf-8"))
            name = str(path.relative_to(note.parent))
        except (ValueError, RecursionError):  # not JSON, or not below
            continue
        if not isinstance(data, dict) or KEY not in data:
            continue
        entries = [entry for entry in _objects(data) if entry.get("file") == name]
        files = data.get("files")
        if not entries and not (isinstance(files, dict) and name in files):
            continue
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        for entry in entries:
            entry.update(sha256=digest, bytes=path.stat().st_size)
        if isinstance(files, dict) and name in files:
            files[name] = digest
        data[KEY] = json_sum({k: v for k, v in data.items() if k != KEY})
        note.write_text(json.dumps(data), encoding="utf-8")


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else (
            value if isinstance(value, list) else ()):
        yield from _objects(item)
