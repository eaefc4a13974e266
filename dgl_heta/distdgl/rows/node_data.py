"""Node data of a graph in DistDGL: read from this machine's store, and through the feature cache.

Of a meta-partitioned graph, node data is in the store of every machine that needs it. Of a graph
that DGL partitioned (METIS, random), rows of other machines are pulled over the network; with a
cache policy, copies of some of them are kept (the baseline DGL-Opt of Heta §8.1).
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from dgl.utils import toindex
from torch import Tensor

from dgl_heta.cache.observing import ObservingCache, called_rows
from dgl_heta.distdgl.batch_ids import bare
from dgl_heta.distdgl.blocks.edge_rows import EdgeIds
from dgl_heta.distdgl.rows.local_partition import own_part
from dgl_heta.distdgl.session import Session, current
from dgl_heta.distdgl.state import selected, state_of
from dgl_heta.distdgl.versions import homes
from dgl_heta.errors import HetaError
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
    """What a DistTensor is indexed by, as DGL takes it: a tensor, an array, a list or a slice."""
    if isinstance(index, Tensor):
        return index
    ids: Tensor = toindex(index).tousertensor()
    return ids


def read(session: Session | None, tensor: Any, index: Any, pull: Pull) -> Tensor | None:
    """Rows of a DistTensor that holds node data of the graph; None if it is not ours to read."""
    array = session.rows(tensor._name) if session is not None else None
    part = own_part() if session is None else None
    if part is not None:
        ids = totensor(index)
        if ids.dtype != torch.bool and ids.dim() == 1:
            rows = part.read(tensor, ids.to(torch.int64), pull)
            if rows is not None:
                return rows
    if array is None and tensor._name not in state_of(_Cached).names:
        return None
    if array is not None and tensor.dtype not in _known(array):
        return None
    ids = totensor(index)
    if ids.dtype == torch.bool or ids.dim() != 1:
        return None
    numbers = ids.to(torch.int64).numpy()
    check_ids(numbers, tensor.shape[0])
    cache = _cache_in_force()
    if cache is not None and _cacheable(tensor):
        if tensor._name not in cache:
            cache.add(tensor._name, *(_pulled(tensor, pull) if array is None else _stored(array)))
        rows = cache.read(tensor._name, numbers)
        return rows.view(len(ids), *tensor.shape[1:]).to(tensor.dtype)
    if array is None or session is None:
        return None
    if session.settings.train.lazy_features and _cacheable(tensor):
        waiting = lazy_rows(array, numbers)
        if waiting is not None and waiting.dtype == tensor.dtype:
            return waiting
    rows = torch.from_numpy(gather_rows(array.reshape(len(array), -1), numbers))
    return rows.view(len(ids), *array.shape[1:]).to(tensor.dtype)


def refuse_write(session: Session | None, tensor: Any) -> None:
    """Refuse to write what the trainers read from their stores, or may have cached.

    Raises
    ------
    HetaError
        The DistTensor holds an array of the graph.
    """
    if session is not None and session.rows(tensor._name) is not None:
        raise HetaError(f"'{tensor.name}' belongs to the meta-partitioned graph and is read from "
                        "its store on every machine, so it cannot be written; create a "
                        "dgl.distributed.DistTensor for results")
    part = own_part()
    if part is not None:
        part.refuse_write(tensor)
    if tensor._name in state_of(_Cached).names and _cacheable(tensor):
        raise HetaError(f"'{tensor.name}' belongs to the graph, and trainers may have cached rows "
                        "of it (cache.policy), which would not see what is written; use "
                        "cache.policy=none, or create a dgl.distributed.DistTensor for results")


def open_graph(graph: Any) -> None:
    """A graph that DGL partitioned was opened: its node data may be cached."""
    names = state_of(_Cached).names
    names.clear()
    if selected().cache.policy == "none":
        return
    data = graph._ndata_store
    tables = [data] if len(graph.ntypes) == 1 else [data[t] for t in graph.ntypes]
    names.update(tensor._name for table in tables for tensor in table.values())


def _cache_in_force() -> ObservingCache | None:
    """The cache of this process, made when it is first needed; None where none is wanted."""
    state, cache = state_of(_Cached), selected().cache
    if cache.policy == "none":
        return None
    if state.cache is None:
        sharers = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        state.cache = made = ObservingCache(
            plugins().get("cache policy", cache.policy),
            capacity_bytes(cache.capacity_mb, _CPU, sharers),
            batches=cache.batches, gate=cache.gate)
        atexit.register(made.tell)
    return state.cache


def _cacheable(tensor: Any) -> bool:
    """Features: rows of floating point numbers; not labels and masks."""
    return len(tensor.shape) >= 2 and tensor.dtype in (torch.float16, torch.float32, torch.float64)


def _pulled(tensor: Any, pull: Pull) -> tuple[RowSource, np.ndarray]:
    """Rows that are pulled; those of other machines are the ones to cache."""
    source = called_rows(tensor.shape[0], tensor.shape[1:], tensor.dtype,
                         lambda ids: pull(tensor, ids))
    assert source is not None
    policy = tensor.part_policy
    parts = policy.to_partid(torch.arange(tensor.shape[0])).numpy()
    return source, np.flatnonzero(parts != policy.part_id)


def _stored(array: np.ndarray) -> tuple[RowSource]:
    """Rows of this machine's store, read as the settings say."""
    flat = array.reshape(len(array), -1)
    return (open_rows({"rows": flat}, selected().cache.reads,
                      fit_in_memory(array.nbytes))["rows"],)


def _known(array: Any) -> set[torch.dtype]:
    """Types under which the key-value store may hold an array: bool becomes uint8 there."""
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
            return peek(rows).to(session.reading.dtype)  # a copy of a module, for a proof
        return rows

    def __getitem__(self: Any, idx: Any) -> Any:
        if isinstance(idx, EdgeIds):
            return idx.rows(self, lambda ids: self[ids])
        idx, session = bare(idx), current()
        if session is None:
            return rows_of(self, idx)
        with session.scope.aside():
            rows = rows_of(self, idx)
        session.scope.read(rows, idx, lambda ids: peek(rows_of(self, ids)))
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
        session.scope.written(len(self), val)
        with session.scope.aside():  # rows that are sent are freed by threads of DGL's
            original(self, bare(idx), val)
    return __setitem__


PATCHES = (
    *patch_all(homes("DistTensor", "__getitem__"), _getitem, "node data from this machine's store"),
    *patch_all(homes("DistTensor", "__setitem__"), _setitem,
               "refuse to write node data of the graph, and states that are not complete"),
)
