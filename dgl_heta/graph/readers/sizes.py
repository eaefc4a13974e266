"""How large what is read may become: nothing expands without a limit.

A file of a few kB can stand for gigabytes: compressed, by references in YAML, by nesting. What is
compressed may grow to :data:`EXPANSION` times its size; text that is parsed as a whole has a limit
in bytes, entries and depth.
"""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

from dgl_heta.errors import InputError

EXPANSION = 200
"""How many times its size a compressed file may have when it is read."""
FREE_BYTES = 64 << 20
"""Up to so many bytes it may expand as it likes."""
METADATA_BYTES = 32 << 20
YAML_BYTES = 1 << 20
YAML_NODES = 200_000
DEPTH = 64


def expanded(size: int) -> int:
    """The most bytes that a compressed file of a size may hold."""
    return max(FREE_BYTES, EXPANSION * size)


def read_text(path: Path, most: int = METADATA_BYTES) -> str:
    """The text of a small UTF-8 file.

    Raises
    ------
    InputError
        It cannot be read, is larger than `most` bytes, or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    if len(data) > most:
        raise InputError(f"{path} has more than {most >> 10:,} KiB, which is too large for its "
                         "kind of file")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: {error}") from None


def check_archive(path: Path) -> None:
    """Refuse a zip archive (.npz) that expands out of proportion.

    Raises
    ------
    InputError
        It does, or it is no such archive.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            total = sum(member.file_size for member in archive.infolist())
        size = path.stat().st_size
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise InputError(f"cannot read {path} as an archive: {error}") from None
    if total > expanded(size):
        raise InputError(f"{path} holds {total:,} bytes in {size:,}, more than {EXPANSION} times "
                         "its size; if it is right, write it again without compression")


def parse_json(text: str, path: Path) -> Any:
    """The content of a JSON file, in which each key of an object stands once."""
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(key for key, count in Counter(k for k, _ in pairs).items() if count > 1)
            raise InputError(f"{path} has '{twice}' twice in one object")
        return found

    try:
        return json.loads(text, object_pairs_hook=once)
    except RecursionError:
        raise InputError(f"{path} is not JSON: it is nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from None


def parse_yaml(yaml: Any, text: str, path: Path) -> Any:
    """The content of a YAML file, by PyYAML's safe loader, where references expand within limits.

    Raises
    ------
    InputError
        Not YAML, or more than :data:`YAML_NODES` entries or :data:`DEPTH` levels with references
        counted as often as they stand.
    """
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            if _entries(node) > YAML_NODES:
                raise InputError(f"{path} has more than {YAML_NODES:,} entries, references (*name) "
                                 "counted as often as they stand")
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except RecursionError:
        raise InputError(f"{path} is not YAML: it is nested too deeply") from None
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, KeyError,
            OverflowError) as error:
        raise InputError(f"{path} is not YAML: {' '.join(str(error).split())}") from None


def _entries(root: Any) -> int:
    """How many entries a node of YAML has with all below it, references followed."""
    counted: dict[int, int] = {}
    within: set[int] = set()

    def count(node: Any, depth: int) -> int:
        key = id(node)
        if key in within or depth > DEPTH:
            raise RecursionError
        if key not in counted:
            within.add(key)
            value = node.value
            below = 0
            if isinstance(value, list):
                for item in value:
                    for child in (item if isinstance(item, tuple) else (item,)):
                        below = min(below + count(child, depth + 1), YAML_NODES + 1)
            within.discard(key)
            counted[key] = 1 + below
        return counted[key]

    return count(root, 0)
