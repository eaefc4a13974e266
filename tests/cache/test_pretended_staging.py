"""Rows of a cache, and edges of batches, on a GPU that is pretended, which the host does not wait
for."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support import warm
from tests.support.waiting import PATIENCE

READS = """
import numpy as np
import torch
from dgl_heta.cache.cached_rows import CachedRows
from dgl_heta.features.row_files import MappedRows
from tests.support.pretended import pretend
from tests.support.pretended.counts import COUNTS

rows = np.random.default_rng(0).random((40, 3))
with pretend():
    gpu = torch.device("cuda", 0)
    cached = CachedRows(MappedRows(rows), np.arange(8), [gpu])
    batches = [np.arange(first, first + 20) for first in (0, 4, 2)]
    found = [cached.read(ids, gpu) for ids in batches]
    for ids, got in zip(batches, found):
        np.testing.assert_array_equal(got.cpu().numpy(), rows[ids])
assert not COUNTS.problems, COUNTS.problems
"""


BATCHES = """
import gc
import sys
import numpy as np
import torch
from dgl_heta.features import StaticFeatures
from dgl_heta.planning.making import make_plan
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.store import Store, write_store
from dgl_heta.training.fetching import Fetching
from tests.support.graphs import academic
from tests.support.pretended import pretend
from tests.support.pretended.counts import COUNTS

write_store(academic(papers=80), sys.argv[1])
store = Store(sys.argv[1])
scope = SamplingScope.of(make_plan(store.schema, "paper", 2, 1), 0)
sampler = NeighborSampler(store, scope, [3, 3])
with pretend():
    gpu = torch.device("cuda", 0)
    types = tuple(store.schema.node_counts)
    gc.disable()  # what is dropped is freed at once
    fetching = Fetching(StaticFeatures(store, types, torch.float32, gpu), None, gpu)
    sums = []
    for step in range(3):
        batch = sampler.sample({"paper": np.arange(20 * step, 20 * step + 20)}, None, step)
        want = [int(t.sum()) for t in batch.pack(gpu).tensors()]
        batch = fetching.arrive(fetching.fetch(batch))
        sums.append((want, [t.sum() for t in batch.tensors()]))
        del batch
    for want, got in sums:
        assert [int(x) for x in got] == want
assert not COUNTS.problems, COUNTS.problems
"""


@pytest.mark.needs("pretended")
@pytest.mark.parametrize("program", [READS, BATCHES], ids=["rows of a cache", "edges of batches"])
def test_memory_is_not_used_again_while_it_is_copied_or_read(program: str, tmp_path: Path) -> None:
    done = subprocess.run([warm.python(), "-c", program, tmp_path / "store"], text=True,
                          timeout=PATIENCE, check=False,
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"}, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
