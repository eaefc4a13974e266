"""Readers: existing graphs as a :class:`~dgl_heta.graph.source.GraphSource`.

Importing this package imports no dgl, torch or ogb; a reader imports what it needs when it is
called. No reader unpickles, so that no file can run code by being read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from dgl_heta.errors import InputError, listing
from dgl_heta.graph.readers import edge_files, graphbolt_dataset
from dgl_heta.graph.readers.dgl_graph import read_dgl_graph
from dgl_heta.graph.readers.dgl_parts import find_config, read_parts
from dgl_heta.graph.readers.edge_files import read_edge_files
from dgl_heta.graph.readers.graphbolt_dataset import read_graphbolt
from dgl_heta.graph.readers.ogb import read_ogb
from dgl_heta.graph.reading_options import read_options
from dgl_heta.graph.schema import Schema
from dgl_heta.graph.source import GraphSource
from dgl_heta.hooks.manager import Plugins, plugins
from dgl_heta.hooks.packaged import to_install
from dgl_heta.hooks.protocols import Reader
from dgl_heta.system.remote_files import RemotePath, file_path, is_remote

__all__ = ["DistDGLParts", "EdgeFiles", "GraphBolt", "Ogb", "detect", "find_reader", "open_source",
           "read_dgl_graph", "read_edge_files", "read_graphbolt", "read_ogb", "read_parts"]


Kind = Literal["classification", "multilabel", "regression"]


class GraphBolt(Reader):
    """A directory with `metadata.yaml`."""

    name = "graphbolt"
    description = "a GraphBolt OnDiskDataset in its original form"

    class Options(BaseModel):
        """Options of a GraphBolt data set."""

        task: str | None = Field(None, description="name of the task; default: the first that "
                                 "classifies nodes")
        kind: Kind | None = Field(None, description="classification, multilabel or regression; "
                                  "default: what follows from the labels")
        unlabelled: float | None = Field(None, description="a value of labels that stands "
                                         "for none, besides NaN, such as -1")

    options = Options()

    def matches(self, path: Path) -> bool:
        return any((directory / graphbolt_dataset.METADATA).is_file()
                   for directory in (path, path / graphbolt_dataset.PREPROCESSED))

    def read(self, path: Path, **options: Any) -> GraphSource:
        return read_graphbolt(path, **options)


class EdgeFiles(Reader):
    """A directory with `metadata.json` and files of edges."""

    name = "edges"
    description = "edge files (.npy, CSV, Parquet) with metadata.json"
    remote = True

    def matches(self, path: Path) -> bool:
        metadata = path / edge_files.METADATA
        if not metadata.is_file():
            return False
        try:
            data = json.loads(metadata.read_bytes())
        except (OSError, ValueError, RecursionError):
            return True  # the reader says what is wrong with it
        return isinstance(data, dict) and bool({"nodes", "edges"} & data.keys())

    def read(self, path: Path, **options: Any) -> GraphSource:
        return read_edge_files(path)


class DistDGLParts(Reader):
    """A part_config of DistDGL's parts, or the directory that holds it."""

    name = "distdgl"
    description = "parts of DistDGL (METIS, random, ParMETIS), by their part_config"

    class Options(BaseModel):
        """Options of DistDGL's parts."""

        ids: str = Field("auto", description="original: as before DGL partitioned; parts: as the "
                         "parts number them; auto: original ones where they are known")

    options = Options()

    def matches(self, path: Path) -> bool:
        return path.exists() and find_config(path) is not None

    def read(self, path: Path, **options: Any) -> GraphSource:
        return read_parts(path, **options)


class Ogb(Reader):
    """A directory that OGB made, or OGB's name of a data set."""

    name = "ogb"
    description = "an OGB data set for node properties, by its directory or name (ogbn-mag)"

    class Options(BaseModel):
        """Options of an OGB data set."""

        root: Path = Field(Path("dataset"), description="where the ogb package has put data sets, "
                           "to find one by its name")
        reverse: bool | None = Field(None, description="whether to add reverse relations; default: "
                                     "to heterogeneous graphs")

    options = Options()

    def matches(self, path: Path) -> bool:
        if path.exists():
            return path.resolve().name.startswith("ogbn_") and (path / "raw").is_dir()
        return path.name.startswith("ogbn-")

    def read(self, path: Path, **options: Any) -> GraphSource:
        if not path.exists():
            return read_ogb(path.name, **options)
        resolved = path.resolve()
        return read_ogb(resolved.name.replace("_", "-"), resolved.parent, options["reverse"])


def place(name: str | Path, registry: Plugins) -> Path | str:
    """What readers are given of what a user names: a path, or a URL whose scheme one of them reads.

    Raises
    ------
    InputError
        No reader, and no package, is there for the URL's scheme.
    """
    return str(name) if _of_scheme(name, registry) else file_path(name)


def _of_scheme(name: str | Path, registry: Plugins) -> list[Any]:
    """The readers of a URL by its scheme, `sqlite` also in `sqlite+driver://`."""
    if not isinstance(name, str) or not is_remote(name):
        return []
    scheme = name.partition("://")[0].partition("+")[0]
    return [p for p in registry.providers("reader").values()
            if scheme in getattr(p.value, "schemes", ())]


def find_reader(path: Path | str, registry: Plugins) -> Reader | None:
    """The reader of a path or a URL, a plugin's before a built-in one; None if there is none.

    Raises
    ------
    InputError
        Several plugins read it; it is a file of `torch.save`, and the plugin that reads PyG's
        HeteroData is not installed.
    """
    here = not isinstance(path, RemotePath)
    matching = _of_scheme(path, registry) if isinstance(path, str) else [
        p for p in registry.providers("reader").values()
        if (here or getattr(p.value, "remote", False)) and p.value.matches(path)]
    guests = [p for p in matching if p.source != "built in"]
    if len(guests) > 1:
        raise InputError(f"several plugins read '{path}': "
                         f"{listing(f'{p.name} of {p.source}' for p in guests)}; uninstall one")
    if not matching:
        if here and not isinstance(path, str) and path.suffix in (".pt", ".pth") and path.is_file():
            raise InputError(f"no reader knows what torch.save wrote to {path}; there is one of "
                             f"PyG's HeteroData{to_install('reader', 'pyg')}")
        return None
    reader: Reader = registry.get("reader", (guests or matching)[0].name)
    return reader


def detect(path: str | Path) -> str | None:
    """The name of the reader of what is there: `graphbolt`, `edges`, `ogb`, …, or None."""
    reader = find_reader(place(path, plugins()), plugins())
    return None if reader is None else reader.name


def schema_of(reader: Reader, path: Any, options: dict[str, Any]) -> Schema | None:
    """The schema of what a reader reads, if it is known before that."""
    known: Any = getattr(reader, "schema", lambda *_, **__: None)
    return known(path, **read_options("reader", reader.name, reader.options, options))


def open_source(path_or_name: str | Path, registry: Plugins | None = None, **options: Any
                ) -> GraphSource:
    """Read a graph by the reader that knows its format.

    Parameters
    ----------
    path_or_name : a file, a directory, the URL of a directory of edge files, or a name that a
        reader knows (`ogbn-mag`).
    options : of the reader, as text or as values.

    Raises
    ------
    InputError
        Nothing that can be read is there, an option that its reader does not have, or what
        the reader finds wrong.
    """
    registry = registry or plugins()
    path: Any = place(path_or_name, registry)
    reader = find_reader(path, registry)
    if reader is None:
        seen = ("is a file" if path.is_file() else "holds none" if path.is_dir()
                else "does not exist")
        guests = [p.name for p in registry.providers("reader").values() if p.source != "built in"]
        raise InputError(
            f"no graph can be read from '{path_or_name}', which {seen}: it must be a directory "
            f"with {edge_files.METADATA} (edge files, with keys 'name', 'nodes' and 'edges'), with "
            f"{graphbolt_dataset.METADATA} (a GraphBolt OnDiskDataset), or with raw/ and split/ of "
            "an OGB data set (its name must be OGB's, as ogbn_mag), with a part_config of "
            "DistDGL's parts, or an OGB name such as ogbn-mag"
            + (f", or for a reader of a plugin ({listing(guests)})" if guests else "")
            + ("; from object storage edge files are read, and nothing else" * isinstance(
                path, RemotePath)))
    return reader.read(path, **read_options("reader", reader.name, reader.options, options))
