"""Samples batches of stores' nodes `p` on a pretended GPU; prints what was counted of the second
one of each, and whether all were those of the CPU, as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dgl_heta_hifuse.gpu_source import GpuSampling

from dgl_heta.planning.making import make_plan
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.store import Store
from tests.support.drawn_graphs import bits
from tests.support.pretended import pretend
from tests.support.pretended.counts import COUNTS


def counted(directory: Path) -> dict[str, Any]:
    store = Store(directory)
    scope = SamplingScope.of(make_plan(store.schema, "p", 2, 1), 0)
    sampler = NeighborSampler(store, scope, [3, 4])
    seeds = [{"p": np.random.default_rng(step).permutation(200)[:40]} for step in range(2)]
    want = [bits(sampler.sample(given, None, step)) for step, given in enumerate(seeds)]
    device = torch.device("cuda", 0)
    layers = GpuSampling().layers(sampler, device)
    assert layers is not None
    batches = []
    for step, given in enumerate(seeds):
        COUNTS.clear()
        batches.append(sampler.on(layers).sample(given, None, step).to(device))
    counts = COUNTS.to_json()
    for batch in batches:
        for block in batch.blocks:
            for edges in block.edges:
                edges.indptr, edges.indices = edges.indptr.cpu(), edges.indices.cpu()
    found = [bits(batch) for batch in batches]
    return {**counts, "equal": found == want}


if __name__ == "__main__":
    with pretend():
        print(json.dumps([counted(Path(path)) for path in sys.argv[1:]]))
