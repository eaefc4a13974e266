"""What the command line takes for a graph: a schema, a store, a partition, files, a name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dgl_heta.errors import InputError, listing, nearest
from dgl_heta.graph.schema import Schema
from dgl_heta.graph.source import TRAIN_MASK, GraphSource, Task
from dgl_heta.hooks.manager import Plugins
from dgl_heta.partition.directory import is_partition, open_partition
from dgl_heta.planning.plan import Plan
from dgl_heta.store import Store


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

    def num_train_nodes(self, ntype: str) -> int:
        """Nodes of a type in `train_mask`; 0 if there is none."""
        if self.store is not None:
            known = self.store.has_array(ntype, TRAIN_MASK)
            mask: Any = self.store.array(ntype, TRAIN_MASK) if known else None
        else:
            arrays = self.source.node_arrays if self.source else {}
            mask = arrays.get(ntype, {}).get(TRAIN_MASK)
        return 0 if mask is None else int((mask[:] != 0).sum())


def open_input(text: str, plugins: Plugins) -> GraphInput:
    """Open what a user names.

    A JSON file is a schema. A directory is a partition, a relation store, a GraphBolt data set
    or edge files, told apart by what it holds. Any other text is a data set of a plugin
    (`name` or `name:option=value,…`) or an OGB data set (`ogbn-…`) in the directory `dataset`.

    Raises
    ------
    InputError
        None of these; the message lists what would be right.
    """
    from dgl_heta.graph.datasets import load_dataset, parse_dataset

    path = Path(text)
    if path.is_file():
        return GraphInput(Schema.load(path), path.stem)
    if path.is_dir():
        if is_partition(path):
            store, plan = open_partition(path)
            return GraphInput(store.schema, store.manifest.name, store, plan)
        if Store.is_store(path):
            store = Store(path)
            return GraphInput(store.schema, store.manifest.name, store)
        if any('"part_graph"' in file.read_text(errors="replace") for file in path.glob("*.json")):
            raise InputError(f"{path} holds parts for DistDGL (method metis or random), which only "
                             "DGL reads; partition the graph with --method meta for dgl-heta")
    known = plugins.providers("dataset")
    name, options = parse_dataset(text)
    if not path.exists() and name in known:
        source = load_dataset(known[name].value, options)
        return GraphInput(source.schema(), source.name, source=source)
    if path.is_dir() or name.startswith("ogbn-"):
        from dgl_heta.graph.readers import open_source

        source = open_source(text)
        return GraphInput(source.schema(), source.name, source=source)
    raise InputError(
        f"'{text}' is no file, directory or data set; give a schema (.json), a relation "
        f"store, a partition, a directory of edge files or of a GraphBolt data set, or one of the "
        f"data sets {listing(known)}" + nearest(name, known)
    )
