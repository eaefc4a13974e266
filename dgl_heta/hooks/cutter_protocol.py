"""The protocol of cutters: hook `dgl_heta_cutters`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from dgl_heta.hooks.provider import Provider

if TYPE_CHECKING:
    import numpy as np

    from dgl_heta.graph.schema import Relation
    from dgl_heta.graph.source import GraphSource


class Cutter(Provider, Protocol):
    """A way to cut a relation that is too large for a partition; hook `dgl_heta_cutters`."""

    description: str

    @abstractmethod
    def cut(self, source: GraphSource, relation: Relation, parts: Sequence[int]
            ) -> np.ndarray | None:
        """Whose a destination's in-edges are, for a relation that the plan cuts.

        Called when a graph is partitioned; a plan without edges cuts by ranges of destinations.

        Parameters
        ----------
        source : the graph; `source.edges[relation].chunks(size)` gives the edges, again at each
            call.
        parts : how many destinations each of the pieces has in the plan, whose sizes follow from
            the memory limit. That many partitions have a piece of the relation.

        Returns
        -------
        For each destination node the index of its piece, (destination nodes,) integers; None for
        the plan's ranges of destinations.
        """
