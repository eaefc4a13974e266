"""Which nodes' in-edges are cut, where a relation is (a vertex cut of hubs; Heta §5).

One owner per destination cannot balance a node with more in-edges than a piece should have. Its
in-edges are shared among the pieces so that these have what they should, as far as the other
destinations leave room; the owner merges what the others aggregate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

HubPieces = dict[int, list[tuple[int, int, int]]]
"""Node → `(piece, low, high)`: the pieces that have its in-edges `low … high - 1`, in order."""


def even_piece(degrees: np.ndarray, pieces: int) -> float:
    """Edges of a piece, if all have as many."""
    return float(degrees.sum()) / max(pieces, 1)


def share_hubs(chosen: np.ndarray, degrees: np.ndarray, parts: Sequence[int], hubs: float
               ) -> HubPieces:
    """Cut the in-edges of nodes that are more than `hubs` even pieces; none if `hubs` is 0.

    Parameters
    ----------
    chosen : the piece of each destination, (destination nodes,).
    degrees : in-edges of each, int64.
    parts : how the pieces are to share the edges: in this proportion.
    """
    hub_nodes = np.flatnonzero(degrees > hubs * even_piece(degrees, len(parts)))
    if not hubs or not len(hub_nodes):
        return {}
    edges = np.bincount(chosen, degrees, len(parts))
    np.subtract.at(edges, chosen[hub_nodes], degrees[hub_nodes])
    wanted = np.array(parts, float) / sum(parts) * degrees.sum()
    room = np.maximum(np.floor(wanted - edges), 0).astype(np.int64)
    cut: HubPieces = {}
    for node in sorted(hub_nodes.tolist(), key=lambda v: -degrees[v]):
        own, left = int(chosen[node]), int(degrees[node])
        given: dict[int, int] = {}
        for piece in sorted(range(len(parts)), key=lambda p: (p != own, -room[p], p)):
            given[piece] = min(left, int(room[piece]))
            left -= given[piece]
        given[own] += left  # rounding, and what the others' imbalance leaves
        for piece, count in given.items():
            room[piece] = max(room[piece] - count, 0)
        pieces, low = [], 0
        for piece, count in given.items():
            if count:
                pieces.append((piece, low, low + count))
                low += count
        if len(pieces) > 1:
            cut[node] = pieces
    return cut
