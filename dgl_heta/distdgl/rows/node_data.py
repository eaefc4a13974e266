"""Node data of a graph in DistDGL: read from this machine's store, and through the feature cache.

Of a meta-partitioned graph, node data is in the store of every machine that needs it. Of a graph
that DGL partitioned (METIS, random), rows of other machines are pulled over the network; with a
cache policy, copies of some of them are kept (the baseline DGL-Opt of Heta §8.1).
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from dgl.utils import toindex
from torch import Tensor

from dgl_heta.cache.observing import ObservingCache, called_rows
from dgl_heta.distdgl.autograd.loss_scope import weakly
from dgl_heta.distdgl.batch_ids import bare
from dgl_heta.distdgl.blocks.edge_ids import EdgeIds
from dgl_heta.distdgl.blocks.edge_rows import rows_by_ids
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.session import Session, current
from dgl_heta.distdgl.state import selected, state_of
from dgl_heta.distdgl.versions import homes
from dgl_heta.features.deferred import lazy_rows, peek
from dgl_heta.features.row_files import RowSource, open_rows
from dgl_heta.features.row_kernels import check_ids, gather_rows
from dgl_heta.hooks.manager import plugins
from dgl_heta.system.memory import capacity_bytes, fit_in_memory
from dgl_heta.system.patching import patch_all

Pull = Callable[[Any, Any], Tensor]

_CPU = torch.device("cpu")


class _Cached:
    """The cache of this process.

    Attributes
    ----------
    cache : made when it is first needed.
    names : of the node data of the graph that DGL partitioned, in the key-value store.
    """

    def __init__(self) -> None:
        self.cache: ObservingCache | None = None
        self.names: set[str] = set()


def totensor(index: Any) -> Tensor:
    """Return what a DistTensor is indexed by as DGL takes it: a tensor, array, list or slice."""
    if isinstance(index, Tensor):
        return index
    ids: Tensor = toindex(index).tousertensor()
    return ids


def read(session: Session | None, tensor: Any, index: Any, pull: Pull) -> Tensor | None:
    """Return rows of a DistTensor that holds node data of the graph; None if DGL is to read them.

    They come from the cache, or from this machine's store.
    """
    array = None if session is None else session.rows(tensor._name)
    if not _is_node_data(tensor, array):
        return None
    ids = _row_ids(tensor, index)
    if ids is None:
        return None
    rows = _of_cache(tensor, array, ids, pull)
    if rows is None and session is not None and array is not None:
        rows = _of_store(tensor, array, ids, session.settings.train.lazy_features)
    return rows


def _is_node_data(tensor: Any, array: np.ndarray | None) -> bool:
    """Return whether a DistTensor is node data of the graph that is open.

    `array` is what the store has under its name. A script may make a DistTensor of the same name
    with another dtype, which is its own.
    """
    if array is None:
        return tensor._name in state_of(_Cached).names
    return tensor.dtype in _dtypes_served(array)


def _row_ids(tensor: Any, index: Any) -> np.ndarray | None:
    """Return row ids (int64), checked; None for a mask or several dimensions, which DGL reads."""
    ids = totensor(index)
    if ids.dtype == torch.bool or ids.dim() != 1:
        return None
    numbers: np.ndarray = ids.to(torch.int64).numpy()
    check_ids(numbers, tensor.shape[0])  # compiled kernels do not
    return numbers


def _of_cache(tensor: Any, array: np.ndarray | None, ids: np.ndarray, pull: Pull
              ) -> Tensor | None:
    """Return rows by the cache; None where it has not this DistTensor."""
    cache = _cache_in_force()
    if cache is None or not _cacheable(tensor):
        return None
    if tensor._name not in cache:
        cache.add(tensor._name, *(_pulled(tensor, pull) if array is None else _stored(array)))
    rows = cache.read(tensor._name, ids)
    return rows.view(len(ids), *tensor.shape[1:]).to(tensor.dtype)


def _of_store(tensor: Any, array: np.ndarray, ids: np.ndarray, lazy: bool) -> Tensor:
    """Return rows of an array of the store; with `lazy` ones that are read when they are used."""
    if lazy and _cacheable(tensor):
        # A script that reads features of all types uses some of them on other machines alone.
        waiting = lazy_rows(array, ids)
        if waiting is not None and waiting.dtype == tensor.dtype:
            return waiting
    rows = torch.from_numpy(gather_rows(array.reshape(len(array), -1), ids))
    return rows.view(len(ids), *array.shape[1:]).to(tensor.dtype)


def refuse_write(session: Session | None, tensor: Any) -> None:
    """Refuse to write what the trainers read from their stores, or may have cached.

    Raises
    ------
    HetaError
        The DistTensor holds an array of the graph.
    """
    if session is not None and session.stored(tensor._name) is not None:
        refuse("writes to node data", name=tensor.name)
    if tensor._name in state_of(_Cached).names and _cacheable(tensor):
        refuse("writes to cached node data", name=tensor.name)


def open_graph(graph: Any) -> None:
    """Note the node data of a graph that DGL partitioned, which may be cached from now on."""
    if selected().cache.policy_on(False) == "none":
        return
    data = graph._ndata_store
    tables = [data] if len(graph.ntypes) == 1 else [data[t] for t in graph.ntypes]
    state_of(_Cached).names = {tensor._name for table in tables for tensor in table.values()}


def forget_cached() -> None:
    """Another graph is opened: its node data may have the same names."""
    cached = state_of(_Cached)
    cached.cache, cached.names = None, set()


def _cache_in_force() -> ObservingCache | None:
    """Return the cache of this process, made at the first call; None where none is wanted."""
    state, cache = state_of(_Cached), selected().cache
    if (policy := cache.policy_on(False)) == "none":
        return None
    if state.cache is None:
        sharers = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        state.cache = ObservingCache(
            plugins().get("cache policy", policy),
            capacity_bytes(cache.capacity_mb, _CPU, sharers),
            batches=cache.batches, gate=cache.gate)
        atexit.register(state.cache.tell)
    return state.cache


def _cacheable(tensor: Any) -> bool:
    """Return whether they are features: rows of floats; not labels and masks."""
    return len(tensor.shape) >= 2 and tensor.dtype in (torch.float16, torch.float32, torch.float64)


def _pulled(tensor: Any, pull: Pull) -> tuple[RowSource, np.ndarray]:
    """Return a source of rows that are pulled, and the rows to cache: other machines'."""
    source = called_rows(tensor.shape[0], tensor.shape[1:], tensor.dtype,
                         lambda ids: pull(tensor, ids))
    assert source is not None
    policy = tensor.part_policy
    parts = policy.to_partid(torch.arange(tensor.shape[0])).numpy()
    return source, np.flatnonzero(parts != policy.part_id)


def _stored(array: np.ndarray) -> tuple[RowSource]:
    """Return a source of rows of this machine's store, read as the settings say."""
    flat = array.reshape(len(array), -1)
    return (open_rows({"rows": flat}, selected().cache.reads,
                      fit_in_memory(array.nbytes))["rows"],)


def _dtypes_served(array: np.ndarray) -> set[torch.dtype]:
    """Return under which dtypes the key-value store may have an array: bool becomes uint8."""
    dtype = torch.from_numpy(array[:0].copy()).dtype
    return {dtype, torch.uint8} if dtype == torch.bool else {dtype}


def _getitem(original: Any) -> Any:
    def rows_of(tensor: Any, idx: Any) -> Any:
        if tensor._attach:
            return original(tensor, idx)
        session = current()
        rows = read(session, tensor, idx, original)
        if rows is None:
            rows = original(tensor, idx)
        if session is not None and session.reading is not None and rows.is_floating_point():
            # A proof runs a copy of a module, in its own dtype; it must not make the script's rows
            # wait less than they do.
            return peek(rows).to(session.reading.dtype)
        return rows

    def read_again(tensor: Any, ids: Tensor) -> Tensor:
        return peek(rows_of(tensor, ids))

    def __getitem__(self: Any, idx: Any) -> Any:
        if isinstance(idx, EdgeIds):
            return rows_by_ids(idx, self, lambda ids: self[ids])
        # DGL's kernels take ordinary tensors alone, not ids that know their batch.
        idx, session = bare(idx), current()
        if session is None:
            return rows_of(self, idx)
        with session.scope.aside():
            rows = rows_of(self, idx)
        # One that holds rows is let go with the script; the graph's are made for each read.
        session.scope.read(rows, idx, weakly(self, read_again) if self._owner else partial(
            read_again, self))
        return rows
    return __getitem__


def _setitem(original: Any) -> Any:
    def __setitem__(self: Any, idx: Any, val: Any) -> None:
        session = current()
        if not self._attach:
            refuse_write(session, self)
        if session is None:
            original(self, bare(idx), val)
            return
        if (table := session.replicas.get(self._name)) is not None and table.was_read:
            refuse("writes to replicas", name=self.tensor_name)
        session.scope.written(len(self), val)
        with session.scope.aside():  # rows that are sent are freed by threads of DGL's
            original(self, bare(idx), val)
    return __setitem__


PATCHES = (
    *patch_all(homes("DistTensor", "__getitem__"), _getitem, "node data from this machine's store"),
    *patch_all(homes("DistTensor", "__setitem__"), _setitem,
               "refuse to write node data of the graph, and states that are not complete"),
)
