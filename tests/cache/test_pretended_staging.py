"""Rows of a cache on a GPU that is pretended, read again before the host has waited for it."""

from __future__ import annotations

import os
import subprocess

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


@pytest.mark.needs("pretended")
def test_staged_rows_are_not_overwritten_while_they_are_copied() -> None:
    done = subprocess.run([warm.python(), "-c", READS], text=True, timeout=PATIENCE, check=False,
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"}, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
