"""The relation store: a graph on disk, one CSC per relation, arrays per node type.

Meta-partitioning assigns whole relations and node types, so a store is written once per
graph and every plan refers to it. See docs/format.md.
"""

from dgl_heta.store.csc import CSC
from dgl_heta.store.manifest import ArrayEntry, Manifest, RelationEntry
from dgl_heta.store.reader import Store
from dgl_heta.store.writer import write_store

__all__ = ["CSC", "ArrayEntry", "Manifest", "RelationEntry", "Store", "write_store"]
