"""Which edges a sample has, drawn again.

A draw is a function of what is asked (:mod:`dgl_heta.sampling.sampling_kernels`), so nobody keeps
the edges of a batch in case that somebody asks: they are drawn a second time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dgl_heta.graph.schema import Relation
from dgl_heta.sampling.sampling_kernels import BAD, sample_positions
from dgl_heta.sampling.sampling_scope import HubPieces
from dgl_heta.store import CSC
from dgl_heta.store.structure import changed

Until = tuple[np.ndarray, np.ndarray, bool]
"""How many in-edges each node sees, the keys of its draws, whether the latest are drawn."""


@dataclass(frozen=True)
class EdgeSample:
    """How the in-edges of some rows by a relation were drawn; attributes are as in
    :class:`dgl_heta.sampling.relation_samples.Draw`."""

    relation: Relation
    csc: CSC
    fanout: int
    key: np.uint64
    hubs: HubPieces | None
    weights: np.ndarray | None = None
    excluded: np.ndarray | None = None
    until: Until | None = None

    def positions(self, nodes: np.ndarray, edges: int) -> np.ndarray:
        """Where the edges are in the relation's CSC, int64 (edges,), in the block's order.

        Parameters
        ----------
        nodes : the destination nodes that were drawn for, int64.
        edges : how many edges were drawn.

        Raises
        ------
        InputError
            The relation's files are not those that were drawn from.
        """
        out = np.empty(edges, np.int64)
        low, high = (None, None) if self.hubs is None else (self.hubs.low, self.hubs.high)
        count = sample_positions(self.csc.indptr, nodes, low, high, self.fanout, self.key,
                               self.weights, len(self.csc.indices), out, self.excluded, self.until)
        if count == BAD or count != edges:
            raise changed(self.relation, self.csc)
        return out
