"""Static features: rows of memory-mapped arrays, through a cache where there is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dgl_heta.features.files import DirectRows, open_rows
from dgl_heta.store import Store


class Cached(Protocol):
    """What reads rows in the place of a source: :class:`dgl_heta.cache.cached_rows.CachedRows`."""

    def read(self, ids: np.ndarray, device: torch.device) -> Tensor: ...


class StaticFeatures:
    """The arrays `feat` of the given node types.

    Parameters
    ----------
    ntypes : types to serve; those without static features are left out.
    dtype, device : of the rows returned.
    reads, fits : as for :func:`dgl_heta.features.files.open_rows`.

    Attributes
    ----------
    sources : node type → all rows.
    cached : node type → what reads its rows instead of the source; empty at first.
    """

    def __init__(self, store: Store, ntypes: tuple[str, ...], dtype: torch.dtype,
                 device: torch.device, reads: str = "mapped", fits: bool = True) -> None:
        arrays = {t: store.array(t, "feat") for t in ntypes if store.has_array(t, "feat")}
        self.sources = open_rows(arrays, reads, fits)
        self.cached: dict[str, Cached] = {}
        self._dtype, self._device = dtype, device

    @property
    def reads(self) -> str:
        """How rows are read: "mapped" or "direct"."""
        direct = any(isinstance(source, DirectRows) for source in self.sources.values())
        return "direct" if direct else "mapped"

    def fetch(self, nodes: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
        """Rows of the given nodes, per type, in their order."""
        rows = {}
        for ntype, ids in nodes.items():
            if ntype in self.cached:
                rows[ntype] = self.cached[ntype].read(ids, self._device).to(self._dtype)
            elif ntype in self.sources:
                block = torch.from_numpy(self.sources[ntype].read(ids))
                rows[ntype] = block.to(self._device, self._dtype)
        return rows
