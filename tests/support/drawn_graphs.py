"""Graphs to sample that hypothesis draws, and all that is in a sampled batch."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeArrays, GraphSource
from dgl_heta.sampling.blocks import MiniBatch

TYPES = ("p", "q", "r")


def bits(batch: MiniBatch) -> list[tuple[Any, ...]]:
    """All that is in a batch."""
    found: list[tuple[Any, ...]] = [(t, ids.dtype, ids.tobytes())
                                    for t, ids in batch.input_nodes.items()]
    for block in batch.blocks:
        found.append((block.layer, block.num_src, block.num_dst))
        for e in block.edges:
            found.append((e.relation, e.start, e.place, *(
                None if x is None else (x.dtype, x.cpu().numpy().tobytes())
                for x in (e.indptr, e.indices, e.rows, *(e.shared or (None, None))))))
    return found


@st.composite
def graphs(draw) -> GraphSource:
    """Up to six relations over three types; some nodes have most of the edges, some none."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    counts = {t: draw(st.integers(1, 60)) for t in TYPES}
    edges: dict[Relation, Any] = {}
    for i in range(draw(st.integers(1, 6))):
        src, dst = (draw(st.sampled_from(TYPES)) for _ in range(2))
        size = draw(st.sampled_from([1, 3, 40, 300]))
        edges[Relation(src, f"r{i}", dst)] = EdgeArrays(
            rng.integers(0, counts[src], size),
            (rng.random(size) ** 3 * counts[dst]).astype(np.int64))
    used = {t for r in edges for t in (r.src, r.dst)}
    return GraphSource("drawn", {t: n for t, n in counts.items() if t in used}, edges, {})
