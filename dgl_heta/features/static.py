"""Static features: rows of memory-mapped arrays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from dgl_heta.features.rows import gather_rows
from dgl_heta.store import Store


class StaticFeatures:
    """The arrays `feat` of the given node types.

    Parameters
    ----------
    ntypes : types to serve; those without static features are left out.
    dtype, device : of the rows returned.
    """

    def __init__(self, store: Store, ntypes: tuple[str, ...], dtype: torch.dtype,
                 device: torch.device) -> None:
        self._arrays = {t: store.array(t, "feat") for t in ntypes if store.has_array(t, "feat")}
        self._dtype, self._device = dtype, device

    @property
    def dims(self) -> dict[str, int]:
        return {t: array.shape[1] for t, array in self._arrays.items()}

    def fetch(self, nodes: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
        """Rows of the given nodes, per type, in their order."""
        rows = {}
        for ntype, ids in nodes.items():
            if ntype in self._arrays:
                block = torch.from_numpy(gather_rows(self._arrays[ntype], ids))
                rows[ntype] = block.to(self._device, self._dtype)
        return rows
