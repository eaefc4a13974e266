"""DistNodeDataLoader on a meta-partitioned graph: which loader it is, and its methods."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from dgl_heta.distdgl.loading.collated_loader import CollatedLoader, Sampler, collators
from dgl_heta.distdgl.loading.epochs import Epochs
from dgl_heta.distdgl.loading.loader_scope import BY_ITSELF, fanouts_of, way_of
from dgl_heta.distdgl.loading.raf_loader import RafLoader
from dgl_heta.distdgl.loading.seed_loader import SeedLoader
from dgl_heta.distdgl.proof.recording import recorder
from dgl_heta.distdgl.session import Session
from dgl_heta.distdgl.state import state_of
from dgl_heta.distdgl.versions import homes
from dgl_heta.errors import InputError
from dgl_heta.system.patching import patch_all


def open_options(what: str, device: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """A data loader's options, with the sampling workers that the environment asks for."""
    if device not in (None, "cpu"):
        raise InputError(f"{what} with device={device!r} cannot be used with a DistGraph; leave it "
                         "out and move blocks with block.to(device)")
    workers = max(int(options.get("num_workers", 0)), int(os.environ.get("DGL_NUM_SAMPLER", "0")))
    return {**options, "num_workers": workers}


def open_loader(session: Session, graph: Any, nids: Any, sampler: Any, device: Any,
                options: dict[str, Any]) -> RafLoader | SeedLoader | None:
    """The loader of a DistNodeDataLoader on a meta-partitioned graph; None where the script samples
    by itself, so that DGL's own does."""
    how = way_of(sampler)
    if how == "own":
        session.say(BY_ITSELF)
        return None
    options = open_options("DistNodeDataLoader", device, options)
    if not isinstance(nids, Mapping):
        nids = {session.plan.targets[0]: nids}
    nids = {t: torch.as_tensor(ids, dtype=torch.int64) for t, ids in nids.items()}
    if how == "derived":
        collator = collators().NodeCollator(graph, nids, Sampler(sampler))
        return CollatedLoader("DistNodeDataLoader", session, collator, sampler, ntypes=nids,
                              kind=3, **options)
    if not fanouts_of(sampler, session):
        return SeedLoader(nids, **{name: options[name] for name in (
            "batch_size", "shuffle", "drop_last") if name in options})
    return RafLoader(session, nids, sampler, **options)


def _init(original: Any) -> Any:
    def __init__(self: Any, g: Any, nids: Any, graph_sampler: Any, device: Any = None,
                 **kwargs: Any) -> None:
        session = getattr(g, "heta", None)
        if session is None:
            original(self, g, nids, graph_sampler, device, **kwargs)
            return
        self.heta = open_loader(session, g, nids, graph_sampler, device, kwargs)
        if self.heta is None:
            original(self, g, nids, graph_sampler, device, **kwargs)
            return
        self.device, self.num_workers = "cpu", 0
        self.batch_size = kwargs.get("batch_size", 1)
        self.shuffle, self.drop_last = kwargs.get("shuffle", False), kwargs.get("drop_last", False)
        # DGL's name for the number of batches; while `dgl-heta prove` records there is one.
        self.expected_idxs = len(self.heta) if recorder() is None else 1
    return __init__


def start_pass(original: Any) -> Any:
    def __iter__(self: Any) -> Any:
        loader = getattr(self, "heta", None)
        state_of(Epochs).started(self, _seeds_of(self))
        if loader is None:
            return original(self)
        loader.start()
        return self
    return __iter__


def take_batch(original: Any) -> Any:
    def __next__(self: Any) -> Any:
        loader = getattr(self, "heta", None)
        try:
            return original(self) if loader is None else loader.next()
        except StopIteration:
            state_of(Epochs).ended(self, _seeds_of(self))
            raise
    return __next__


def _seeds_of(loader: Any) -> int:
    """The nodes or edges of this trainer that a data loader goes through."""
    ours = getattr(loader, "heta", None)
    return len(loader.dataset) if ours is None else ours.seeds


def forget_loader(original: Any) -> Any:
    def __del__(self: Any) -> None:
        if getattr(self, "heta", None) is None:
            original(self)
    return __del__


PATCHES = (
    *patch_all(homes("DistNodeDataLoader", "__init__"), _init,
               "sample by plan"),
    *patch_all(homes("DistNodeDataLoader", "__iter__"), start_pass,
               "sample by plan; module wrappers are told when an epoch ends"),
    *patch_all(homes("DistNodeDataLoader", "__next__"), take_batch,
               "sample by plan; module wrappers are told when an epoch ends"),
    *patch_all(homes("DistNodeDataLoader", "__del__"), forget_loader, "sample by plan"),
)
