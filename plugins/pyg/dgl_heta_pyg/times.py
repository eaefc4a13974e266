"""Seeds with times, in a graph with times: `input_time` and its kin of PyG's loaders.

A node that seeds of several times see has a row for each time. PyG has one for each seed; seeds of
one time see the same here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from dgl_heta import InputError, Partition

_PAIR = np.dtype([("node", np.int64), ("time", np.int64)])


def check_times(part: Partition, given: Any, attribute: str | None, strategy: str | None = None
                ) -> None:
    """Refuse arguments of PyG's loaders that the partition cannot do as they say.

    Parameters
    ----------
    given : times of the seeds, if any.
    attribute, strategy : `time_attr`, `temporal_strategy`.
    """
    timed, latest = part.store.manifest.timed, part.settings.train.latest
    if (given is not None or attribute is not None) and not timed:
        raise InputError("seeds have times, but the graph of the partition has none; partition the "
                         "HeteroData with its times (data.pt:time_attr=time)")
    if strategy not in (None, "uniform", "last"):
        raise InputError(f"temporal_strategy is {strategy!r}; known are 'uniform' and 'last'")
    if strategy is not None and (strategy == "last") != latest:
        raise InputError(f"temporal_strategy is {strategy!r}, but the partition is open with "
                         f"train.latest = {latest}; open it with dgl_heta_pyg.open_partition("
                         f"directory, ['train.latest={strategy == 'last'}'])")


def with_times(part: Partition, ntype: str, nodes: np.ndarray, given: Any) -> np.ndarray:
    """Nodes at times, int64 (n, 2): those that are given, or those of their rows."""
    rows = part.store.row_times(ntype)
    if given is None:
        if rows is None:
            raise InputError(f"the graph has times, but nodes of '{ntype}' have none of their own; "
                             "give the time of each seed, as input_time or edge_label_time")
        given = rows[nodes]
    times = np.asarray(given.cpu() if isinstance(given, Tensor) else given)
    if times.shape != nodes.shape or times.dtype.kind not in "iu":
        raise InputError(f"times are {times.dtype}{list(times.shape)}; give a whole number for "
                         f"each of {len(nodes)} seeds")
    pairs = np.stack([nodes, times.astype(np.int64)], 1)
    if rows is not None and len(wrong := np.flatnonzero(pairs[:, 1] < rows[nodes])):
        raise InputError(f"seed {nodes[wrong[0]]} of '{ntype}' is at {times[wrong[0]]}, before its "
                         f"row, which is of {rows[nodes[wrong[0]]]}; {len(wrong):,} are such")
    return pairs


def keys(seeds: np.ndarray) -> np.ndarray:
    """Seeds as numbers that can be sorted: nodes (n,), or nodes at times (n, 2)."""
    return seeds if seeds.ndim == 1 else np.ascontiguousarray(seeds).view(_PAIR).ravel()


class NodesByTime:
    """The nodes of a type in the order in which they are there; of a type without times all are."""

    def __init__(self, part: Partition, ntype: str) -> None:
        rows = part.store.row_times(ntype)
        self._ntype, self._count = ntype, part.schema.node_counts[ntype]
        self._order = None if rows is None else np.argsort(rows, kind="stable")
        self._times: Any = None if rows is None else rows[self._order]

    def drawn(self, draws: np.random.Generator, times: np.ndarray) -> np.ndarray:
        """Draw a node for each time, evenly among those that are there then; pairs (n, 2).

        Raises
        ------
        InputError
            None is there at a time.
        """
        if self._order is None:
            return np.stack([draws.integers(0, self._count, len(times)), times], 1)
        known = np.searchsorted(self._times, times, "right")
        if not known.all():
            raise InputError(f"no node of '{self._ntype}' is there at {times[known == 0][0]}, so "
                             "that no negative one can be drawn")
        return np.stack([self._order[draws.integers(0, known)], times], 1)
