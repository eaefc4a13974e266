"""What stands for PyG's HeteroData: the attributes that are asked for, and how it pickles."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch


class Storage:
    """Arrays of a type; like PyG's it holds its parent, in a circle."""

    def __init__(self, parent: HeteroData, key: Any) -> None:
        self._mapping: dict[str, Any] = {}
        self._parent, self._key = parent, key


class HeteroData:
    """Node and edge types with arrays."""

    def __init__(self) -> None:
        self._global_store = Storage(self, None)
        self._node_store_dict: dict[str, Storage] = {}
        self._edge_store_dict: dict[tuple[str, str, str], Storage] = {}

    def __getitem__(self, key: Any) -> dict[str, Any]:
        stores: dict[Any, Storage] = (self._node_store_dict if isinstance(key, str)
                                      else self._edge_store_dict)
        return stores.setdefault(key, Storage(self, key))._mapping

    node_types = property(lambda self: list(self._node_store_dict))
    edge_types = property(lambda self: list(self._edge_store_dict))

    def to_dict(self) -> dict[Any, Any]:
        stores = {**self._node_store_dict, **self._edge_store_dict}
        return {"_global_store": {}, **{k: dict(s._mapping) for k, s in stores.items()}}


def hetero_data() -> HeteroData:
    """60 papers of 3 classes, which 20 authors have written."""
    torch.manual_seed(0)
    data = HeteroData()
    data["paper"].update(x=torch.randn(60, 5), y=torch.arange(60) % 3, title=["a"] * 60,
                         train_mask=torch.arange(60) < 40, val_mask=torch.arange(60) >= 50,
                         test_mask=(torch.arange(60) >= 40) & (torch.arange(60) < 50))
    data["author"]["num_nodes"] = 20
    data["author", "writes", "paper"].update(
        edge_index=torch.stack([torch.arange(200) % 20, torch.arange(200) % 60]),
        edge_attr=torch.randn(200, 2))
    return data


@contextmanager
def saved_classes() -> Iterator[None]:
    """Let the classes be pickled under the names that PyG's have."""
    names = {HeteroData: "torch_geometric.data.hetero_data",
             Storage: "torch_geometric.data.storage"}
    modules = {"torch_geometric": ModuleType("torch_geometric"),
               "torch_geometric.data": ModuleType("torch_geometric.data")}
    before = {kind: kind.__module__ for kind in names}
    for kind, name in names.items():
        modules[name] = ModuleType(name)
        setattr(modules[name], kind.__name__, kind)
        kind.__module__ = name
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]
        for kind, name in before.items():
            kind.__module__ = name
