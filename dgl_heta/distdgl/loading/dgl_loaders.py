"""DGL's distributed data loaders while dgl-heta is enabled: the classes that a script uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dgl_heta.distdgl.loading.edge_loader import open_edge_loader
from dgl_heta.distdgl.loading.epochs import Epochs
from dgl_heta.distdgl.loading.node_loader import open_node_loader
from dgl_heta.distdgl.loading.script_sampler import settings_of, way_of
from dgl_heta.distdgl.proof.recording import recorder
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.state import state_of
from dgl_heta.distdgl.versions import homes
from dgl_heta.system.patching import Patch, patch_all


def _init_nodes(original: Any) -> Any:
    def __init__(self: Any, g: Any, nids: Any, graph_sampler: Any, device: Any = None,
                 **kwargs: Any) -> None:
        if not _takes(self, open_node_loader, g, nids, graph_sampler, device, kwargs):
            original(self, g, nids, graph_sampler, device, **kwargs)
    return __init__


def _init_edges(original: Any) -> Any:
    def __init__(self: Any, g: Any, eids: Any, graph_sampler: Any, device: Any = None,
                 **kwargs: Any) -> None:
        if not _takes(self, open_edge_loader, g, eids, graph_sampler, device, kwargs):
            original(self, g, eids, graph_sampler, device, **kwargs)
    return __init__


def _takes(self: Any, open_loader: Callable[..., Any], graph: Any, *arguments: Any) -> bool:
    """Give a loader of DGL's one of ours, and return whether there is one.

    There is none where DGL's own is to work: on a graph of DGL's parts, or by a sampler that asks
    DGL for nothing. What scripts read of DGL's loaders is there in both.
    """
    session = getattr(graph, "heta", None)
    self.heta = loader = None if session is None else open_loader(session, graph, *arguments)
    if loader is None:
        return False
    options = loader.options
    self.device, self.num_workers = "cpu", 0
    self.batch_size, self.shuffle = options.batch_size, options.shuffle
    self.drop_last = options.drop_last
    # DGL's name for the number of batches; while `dgl-heta prove` records there is one.
    self.expected_idxs = len(loader) if recorder() is None else 1
    if hasattr(loader, "collator"):
        self.collator = loader.collator
    sampler = arguments[1]
    # What a derived class samples by is looked at when it asks for samples.
    self.heta_sampler = sampler if way_of(sampler) == "known" else None
    self.heta_made = _settings_of(self)
    return True


def _settings_of(self: Any) -> dict[str, Any]:
    """Return what DGL's loader would read anew for each epoch or batch, and ours has not."""
    sampler = self.heta_sampler
    return {**{name: getattr(self, name) for name in ("batch_size", "shuffle", "drop_last")},
            **({} if sampler is None else settings_of(sampler))}


def _check_unchanged(self: Any) -> None:
    """Refuse a loader that the script has changed.

    Raises
    ------
    HetaError
        The script has set something on the loader or its sampler that ours would not follow.
    """
    if (now := _settings_of(self)) != self.heta_made:
        name = next(name for name in now if now[name] != self.heta_made[name])
        refuse("loader that changes", what=name, then=self.heta_made[name], now=now[name])


def _iter(original: Any) -> Any:
    def __iter__(self: Any) -> Any:
        loader = getattr(self, "heta", None)
        state_of(Epochs).started(self, _seeds_of(self))
        if loader is None:
            return original(self)
        _check_unchanged(self)
        loader.start()
        return self
    return __iter__


def _next(original: Any) -> Any:
    def __next__(self: Any) -> Any:
        loader = getattr(self, "heta", None)
        if loader is not None:
            _check_unchanged(self)
        try:
            return original(self) if loader is None else loader.next()
        except StopIteration:
            state_of(Epochs).ended(self, _seeds_of(self))
            raise
    return __next__


def _seeds_of(self: Any) -> int:
    """Return the number of this trainer's nodes or edges in a data loader."""
    loader = getattr(self, "heta", None)
    return len(self.dataset) if loader is None else loader.seeds


def _del(original: Any) -> Any:
    def __del__(self: Any) -> None:
        # DGL's own ends its workers here, which ours has not.
        if getattr(self, "heta", None) is None:
            original(self)
    return __del__


def _patches(loader: str, init: Callable[[Any], Any]) -> tuple[Patch, ...]:
    epochs = "sample by plan; module wrappers are told when an epoch ends"
    return (*patch_all(homes(loader, "__init__"), init, "sample by plan"),
            *patch_all(homes(loader, "__iter__"), _iter, epochs),
            *patch_all(homes(loader, "__next__"), _next, epochs),
            *patch_all(homes(loader, "__del__"), _del, "sample by plan"))


PATCHES = (
    *_patches("DistNodeDataLoader", _init_nodes),
    *_patches("DistEdgeDataLoader", _init_edges),
)
