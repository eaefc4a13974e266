"""Static features: rows of memory-mapped arrays, through a cache where there is one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from dgl_heta.features.row_files import DirectRows, RowReader, open_rows
from dgl_heta.store import Store


class StaticFeatures:
    """The arrays `feat` of the given node types.

    Parameters
    ----------
    ntypes : types to serve; those without static features are left out.
    dtype, device : of the rows returned.
    reads, fits : as for :func:`dgl_heta.features.row_files.open_rows`.

    Attributes
    ----------
    sources : node type → all rows.
    readers : node type → what its rows are read by: the source, or a cache before it.
    """

    def __init__(self, store: Store, ntypes: tuple[str, ...], dtype: torch.dtype,
                 device: torch.device, reads: str = "mapped", fits: bool = True) -> None:
        held = {t: store.features(t) for t in ntypes if store.has_array(t, "feat")}
        self.sources = open_rows({t: rows for t, (rows, _) in held.items()}, reads, fits)
        self._scales = {t: torch.from_numpy(scale).to(device, dtype)
                        for t, (_, scale) in held.items() if scale is not None}
        self.readers: dict[str, RowReader] = dict(self.sources)
        self._dtype, self._device = dtype, device

    @property
    def reads(self) -> str:
        """How rows are read: "mapped" or "direct"."""
        direct = any(isinstance(source, DirectRows) for source in self.sources.values())
        return "direct" if direct else "mapped"

    def read(self, nodes: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
        """Rows of the given nodes (int64, in range), per type that has some, in their order.

        They are decoded here, behind caches, and on the device.
        """
        found = {t: self.readers[t].read(ids, self._device).to(self._dtype)
                 for t, ids in nodes.items() if t in self.readers}
        for ntype in found.keys() & self._scales.keys():
            found[ntype] *= self._scales[ntype]  # a copy, as int8 rows were converted
        return found
