"""Readers: existing graphs as a :class:`~dgl_heta.graph.source.GraphSource`.

Importing this package imports no dgl, torch or ogb; a reader imports what it needs when it is
called. No reader unpickles, so that no file can run code by being read.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dgl_heta.errors import InputError, listing, nearest
from dgl_heta.graph.readers import edge_files, graphbolt
from dgl_heta.graph.readers.dgl_graph import read_dgl_graph
from dgl_heta.graph.readers.edge_files import read_edge_files
from dgl_heta.graph.readers.graphbolt import read_graphbolt
from dgl_heta.graph.readers.ogb import read_ogb
from dgl_heta.graph.source import GraphSource

__all__ = ["detect", "open_source", "read_dgl_graph", "read_edge_files", "read_graphbolt",
           "read_ogb"]

#: Where the ogb package puts data sets unless it is told otherwise.
OGB_ROOT = "dataset"


def detect(path: str | Path) -> str | None:
    """What the directory holds: `graphbolt`, `edges`, `ogb`, or None."""
    path = Path(path)
    for directory in (path, path / graphbolt.PREPROCESSED):
        if (directory / graphbolt.METADATA).is_file():
            return "graphbolt"
    metadata = path / edge_files.METADATA
    if metadata.is_file():
        try:
            data = json.loads(metadata.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return "edges"  # whose reader says what is wrong with it
        return "edges" if isinstance(data, dict) and {"nodes", "edges"} & data.keys() else None
    if path.resolve().name.startswith("ogbn_") and (path / "raw").is_dir():
        return "ogb"
    return None


def open_source(path_or_name: str | Path, **options: Any) -> GraphSource:
    """Read the data set in a directory, or the OGB data set of a name such as `ogbn-mag`.

    Parameters
    ----------
    path_or_name : a directory that :func:`detect` knows, or an OGB name.
    options : passed to the reader: `task` for a GraphBolt data set, `reverse` and (with a
        name) `root` for OGB.

    Raises
    ------
    InputError
        Nothing that can be read is there, an option that its reader does not have, or what
        the reader finds wrong.
    """
    path = Path(path_or_name)
    kind = detect(path)
    if kind == "ogb":
        resolved = path.resolve()
        return _call(read_ogb, options, resolved.name.replace("_", "-"), resolved.parent)
    if kind == "graphbolt":
        return _call(read_graphbolt, options, path)
    if kind == "edges":
        return _call(read_edge_files, options, path)
    if isinstance(path_or_name, str) and path_or_name.startswith("ogbn-") and not path.exists():
        return _call(read_ogb, {"root": OGB_ROOT, **options}, path_or_name)
    found = "is a file" if path.is_file() else "holds none" if path.is_dir() else "does not exist"
    raise InputError(
        f"no graph can be read from '{path_or_name}', which {found}: it must be a directory with "
        f"{edge_files.METADATA} (edge files, with keys 'name', 'nodes' and 'edges'), with "
        f"{graphbolt.METADATA} (a GraphBolt OnDiskDataset), or with raw/ and split/ of an OGB data "
        "set (its name must be OGB's, as ogbn_mag), or an OGB name such as ogbn-mag"
    )


def _call(reader: Callable[..., GraphSource], options: dict[str, Any], *args: Any) -> GraphSource:
    names = list(inspect.signature(reader).parameters)
    allowed = names[len(args):]
    for option in options:
        if option not in allowed:
            raise InputError(f"'{option}' is not an option of {reader.__name__} for {args[0]}; "
                             f"options: {listing(allowed)}" + nearest(option, allowed))
    return reader(*args, **options)
