"""The snapshot file: written by the build script, read by the dataset `debian`."""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta import EdgeArrays, GraphSource, InputError, Relation, Task
from dgl_heta.tools import MASKS, check_archive, replacing

SNAPSHOT = Path(__file__).parents[1] / "data" / "debian.npz"
FORMAT = "dgl-heta debian snapshot 1"
WORD_BUCKETS = 128

_BROKEN_FILE = (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, RuntimeError,
                MemoryError, zipfile.BadZipFile, zlib.error, struct.error)


def write(path: Path, arrays: dict[str, np.ndarray]) -> int:
    """Write a snapshot, whole or not at all; return its bytes."""
    path = Path(path)
    try:
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    return path.stat().st_size


def load(path: Path | None = None) -> GraphSource:
    """The graph of a snapshot, by default the one in the package.

    Raises
    ------
    InputError
        The file is missing, truncated or not a snapshot.
    """
    path = Path(path) if path is not None else SNAPSHOT
    try:
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise ValueError("it holds a single array")
        check_archive(path)
        with file:
            arrays = {name: file[name] for name in file.files}
        return _source(arrays)
    except FileNotFoundError:
        raise InputError(f"Debian snapshot {path} does not exist") from None
    except InputError as error:
        raise InputError(f"Debian snapshot {path}: {error}") from None
    except _BROKEN_FILE as error:
        raise InputError(f"cannot read Debian snapshot {path}, it is damaged or not a "
                         f"snapshot: {error}") from None


def _source(arrays: dict[str, np.ndarray]) -> GraphSource:
    meta = json.loads(arrays["meta"].tobytes()) if "meta" in arrays else {}
    if meta.get("format") != FORMAT:
        raise InputError(f"its format is {meta.get('format')!r}; it must be {FORMAT!r}")
    counts: dict[str, int] = meta["node_counts"]
    classes: list[str] = meta["classes"]
    packages = counts["package"]

    forward: dict[Relation, Any] = {}
    backward: dict[Relation, Any] = {}
    for i, (src_type, etype, dst_type, edges) in enumerate(meta["relations"]):
        dst = arrays[f"dst_{i}"].astype(np.int32)
        if len(dst) != edges:
            raise InputError(f"relation '{etype}' has {len(dst)} edges; it must have {edges}")
        src = _rows(arrays[f"degree_{i}"], counts[src_type], edges)
        _check_range(f"relation '{etype}'", dst, 0, counts[dst_type])
        forward[Relation(src_type, etype, dst_type)] = EdgeArrays(src, dst)
        backward[Relation(dst_type, f"rev-{etype}", src_type)] = EdgeArrays(dst, src)

    label = arrays["label"].astype(np.int64)
    split = arrays["split"]
    for name in ("label", "split", "numbers"):
        if len(arrays[name]) != packages:
            raise InputError(f"'{name}' has {len(arrays[name])} rows; it must have {packages}")
    _check_range("label", label, -1, len(classes))
    package: dict[str, np.ndarray] = {"feat": _features(arrays, packages), "label": label}
    package |= {name: split == i + 1 for i, name in enumerate(MASKS)}
    info: dict[str, Any] = {
        "description": "packages of the Debian archive and what their records name; "
                       "the label is the section",
        "release": meta["release"], "date": meta["date"], "packages": packages,
        "classes": classes, "tags": meta["tags"],
    }
    source = GraphSource("debian", dict(counts), forward | backward, {"package": package},
                         Task("package", len(classes)), info)
    source.schema()
    return source


def _rows(degree: np.ndarray, rows: int, total: int) -> np.ndarray:
    if degree.shape != (rows,):
        raise InputError(f"an array of degrees has shape {degree.shape}; it must be ({rows},)")
    if not (degree >= 0).all() or degree.sum(dtype=np.float64) != total:
        raise InputError(f"an array of degrees does not add up to {total}")
    return np.repeat(np.arange(rows, dtype=np.int32), degree)


def _features(arrays: dict[str, np.ndarray], packages: int) -> np.ndarray:
    columns = arrays["word_column"]
    _check_range("word_column", columns, 0, WORD_BUCKETS)
    rows = _rows(arrays["word_degree"], packages, len(columns))
    hashed = np.zeros((packages, WORD_BUCKETS), dtype=np.float32)
    hashed[rows, columns] = arrays["word_value"]
    hashed /= np.maximum(np.linalg.norm(hashed, axis=1, keepdims=True), 1)
    return np.concatenate([hashed, arrays["numbers"].astype(np.float32)], axis=1)


def _check_range(name: str, values: np.ndarray, low: int, high: int) -> None:
    if len(values) and not (low <= values.min() and values.max() < high):
        raise InputError(f"{name} has values from {values.min()} to {values.max()}; they must "
                         f"be at least {low} and below {high}")
