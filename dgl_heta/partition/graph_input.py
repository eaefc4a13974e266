"""Graphs as the command line takes them: a schema, a store, a partition, files, a name."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.errors import InputError, listing, nearest
from dgl_heta.graph.changes import FEAT, with_feature_dtype, with_features, with_reverse
from dgl_heta.graph.readers.dgl_parts import find_config
from dgl_heta.graph.reading_options import split_options
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.graph.source import TRAIN_MASK, GraphSource, Task
from dgl_heta.hooks.manager import Plugins
from dgl_heta.hooks.packaged import to_install
from dgl_heta.partition.directory import is_partition, open_partition
from dgl_heta.planning.plan import Plan
from dgl_heta.store import Store
from dgl_heta.system.remote_files import RemotePath, is_remote


@dataclass(frozen=True)
class GraphInput:
    """An opened input: a schema always, the rest as far as there is any."""

    schema: Schema
    name: str
    store: Store | None = None
    plan: Plan | None = None
    source: GraphSource | None = None

    @property
    def target(self) -> str | None:
        """The target of the graph's task, if it has one."""
        if self.plan is not None:
            return self.plan.targets[0]
        return self.task.target if self.task else None

    @property
    def task(self) -> Task | None:
        """The task that the graph comes with, if any."""
        if self.store is not None:
            return self.store.manifest.task
        return self.source.task if self.source else None

    @property
    def feature_itemsize(self) -> int:
        """Bytes of a number of the features, the widest where types differ; 4 if unknown."""
        if self.source is not None and self.source.feature_dtype:
            return np.dtype(self.source.feature_dtype).itemsize
        arrays: Mapping[str, Mapping[str, Any]] = (
            self.store.manifest.arrays if self.store is not None
            else self.source.node_arrays if self.source is not None else {})
        return max((np.dtype(of[FEAT].dtype).itemsize for of in arrays.values() if FEAT in of),
                   default=4)

    @property
    def info(self) -> Mapping[str, Any]:
        """Where the graph comes from, and notes on it."""
        known = self.store.manifest if self.store is not None else self.source
        return known.info if known else {}

    def beside(self) -> dict[str | Relation, int]:
        """Bytes that a store has of each node type beside features, and of each relation beside its
        CSC, as far as they are known before it is written."""
        sizes: dict[str | Relation, int] = {}
        if self.store is not None:
            known = self.store.manifest
            for ntype, arrays in known.arrays.items():
                sizes[ntype] = sum(entry.bytes for entry in known.entries([ntype], [])
                                   if entry is not arrays.get("feat"))
            for item in known.relations:
                sizes[item.relation] = sum(entry.bytes for entry in item.files[2:])
        elif self.source is not None:
            for ntype, given in self.source.node_arrays.items():
                sizes[ntype] = sum(array.nbytes for name, array in given.items() if name != "feat")
            for ntype, ids in self.source.node_ids.items():
                sizes[ntype] = sizes.get(ntype, 0) + ids.offsets.nbytes + ids.text.nbytes
        return sizes

    def check_seeds(self, targets: Collection[str]) -> None:
        """Check that the reader's table of seeds, if it has made one, is of nodes of the target.

        Raises
        ------
        InputError
            A seed is of no node.
        """
        if self.source is not None and self.source.check_seeds is not None and len(targets) == 1:
            self.source.check_seeds(*targets)

    def write_seeds(self) -> None:
        """Write the table of seeds that the reader has made beside the graph, if it has."""
        if self.source is not None and self.source.write_seeds is not None:
            self.source.write_seeds()

    def num_train_nodes(self, ntype: str) -> int:
        """Nodes of a type in `train_mask`, in any of its columns; 0 if there is none."""
        if self.store is not None:
            known = self.store.has_array(ntype, TRAIN_MASK)
            mask: Any = self.store.held_array(ntype, TRAIN_MASK) if known else None
        else:
            arrays = self.source.node_arrays if self.source else {}
            mask = arrays.get(ntype, {}).get(TRAIN_MASK)
        return 0 if mask is None else int((mask[:] != 0).reshape(len(mask), -1).any(1).sum())


@dataclass(frozen=True)
class Reading:
    """The changes to a graph that is read from files.

    Attributes
    ----------
    reverse : add reverse relations (:func:`~dgl_heta.graph.changes.with_reverse`).
    features : `TYPE=ARRAY`, which array of a type to take for its features.
    feature_dtype : what a store is to keep features as, "float16" or "int8"; "": as they are.
    task : the option `task` of the data set or reader; None: its own default.
    """

    reverse: bool = False
    features: Sequence[str] = ()
    feature_dtype: str = ""
    task: str | None = None

    def changed(self, opened: GraphInput, text: str) -> GraphInput:
        """The graph with the changes.

        Raises
        ------
        InputError
            It is a store or a schema, a type or array that is not there, an item of another form.
        """
        if not (self.reverse or self.features or self.feature_dtype):
            return opened
        if opened.source is None:
            option, kind = ("--reverse" if self.reverse else "--feature" if self.features else
                            "--feature-dtype", "store" if opened.store else "schema")
            raise InputError(f"{option} changes a graph when it is read, but '{text}' is a {kind} "
                             "already; give it the files that it was made from")
        source, chosen = opened.source, {}
        for item in self.features:
            ntype, equals, name = item.rpartition("=")
            if not (ntype and equals and name):
                raise InputError(f"--feature is '{item}'; write a node type and the name of its "
                                 "array, for example paper=x")
            chosen[ntype] = name
        source = with_features(source, chosen) if chosen else source
        source = with_reverse(source) if self.reverse else source
        source = with_feature_dtype(source, self.feature_dtype) if self.feature_dtype else source
        return GraphInput(source.schema(), opened.name, source=source)


def open_input(text: str, plugins: Plugins, verify: bool = False,
               reading: Reading | None = None, schema_only: bool = False) -> GraphInput:
    """Open what a user names; `verify` as for :class:`dgl_heta.store.Store`.

    With `schema_only` nothing else is read of what has a schema without (`Reader.schema`).

    A JSON file is a schema, or a part_config of DistDGL's parts. A directory is a partition, a
    relation store, or what a reader knows, told apart by what it holds; a file other than JSON is
    for a reader, too. A URL is of a directory of edge files, or for the reader of its scheme. Any
    other text is a data set of a plugin or a name that a reader knows (`ogbn-…`, in the directory
    `dataset`).
    Options of a data set or reader follow after a colon: `name:option=value,…`.

    Raises
    ------
    InputError
        None of these; the message lists what would be right.
    """
    task = {} if reading is None or reading.task is None else {"task": reading.task}
    opened = _opened(text, plugins, verify, task, schema_only)
    return reading.changed(opened, text) if reading else opened


def _opened(text: str, plugins: Plugins, verify: bool, task: dict[str, str], schema_only: bool
            ) -> GraphInput:
    from dgl_heta.graph.datasets import load_dataset
    from dgl_heta.graph.readers import find_reader, open_source, place, schema_of

    datasets = plugins.providers("dataset")
    name, options = (text, "") if is_remote(text) else _name_and_options(text, datasets)
    path = place(name, plugins)
    if name in datasets and not Path(text).exists():  # `name:option=1`, whatever is in `name`
        source = load_dataset(plugins.get("dataset", name), options, **task)
        return GraphInput(source.schema(), source.name, source=source)
    opened = None if isinstance(path, str) else _written(path, verify)
    if opened is not None:
        if options or task:
            raise InputError(f"'{name}' takes no options, but '{options or '--task'}' is given; it "
                             "is for a graph that is read: leave it out")
        return opened
    reader = find_reader(path, plugins)
    if reader is None and not isinstance(path, str) and path.is_file():
        return GraphInput(Schema.load(path), path.stem)
    if reader is not None or (not isinstance(path, str) and path.is_dir()):
        given = {} if reader is None else split_options(options, name, reader.options) | task
        schema = schema_of(reader, path, given) if reader and schema_only else None
        if schema is not None:
            return GraphInput(schema, Path(path).stem)
        source = open_source(path, plugins, **given)
        return GraphInput(source.schema(), source.name, source=source)
    if is_remote(text):
        raise InputError(f"{text} is no graph: it is not there, or has no metadata.json of edge "
                         "files; from object storage edge files are read, and nothing else")
    raise InputError(
        f"'{text}' is no file, directory or data set; give a schema (.json), a relation "
        f"store, a partition, a directory of edge files or of a GraphBolt data set, or one of the "
        f"data sets {listing(datasets)}" + (to_install("dataset", name) or nearest(name, datasets))
    )


def _name_and_options(text: str, datasets: Mapping[str, Any]) -> tuple[str, str]:
    """`name:options` taken apart, where a path may hold colons itself."""
    head, _, rest = text.partition(":")
    if Path(text).exists() or head in datasets:
        return (text, "") if Path(text).exists() else (head, rest)
    at = len(text)
    while (at := text.rfind(":", 0, at)) > 0:
        if Path(text[:at]).exists():
            return text[:at], text[at + 1:]
    return head, rest


def _written(path: Path, verify: bool) -> GraphInput | None:
    """The input, if dgl-heta has written it itself: a schema, a partition, a store."""
    if path.is_file() and path.suffix == ".json" and find_config(path) is None:
        return GraphInput(Schema.load(path), path.stem)
    if not path.is_dir():
        return None
    if isinstance(path, RemotePath) and (is_partition(path) or Store.is_store(path)):
        raise InputError(f"{path} is a partition or a store in object storage; `dgl-heta stage "
                         f"{path} --to DIR` brings a partition here, and a store is to be copied")
    if is_partition(path):
        store, plan = open_partition(path, verify)
        return GraphInput(store.schema, store.manifest.name, store, plan)
    if Store.is_store(path):
        store = Store(path, verify)
        return GraphInput(store.schema, store.manifest.name, store)
    return None
