"""A script's ids are checked where they come in, before compiled kernels see them."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("DGLBACKEND", "pytorch")

import numpy as np
import pytest
import torch

from dgl_heta.distdgl.rows import node_data
from dgl_heta.distdgl.rows.embedding import Table
from dgl_heta.errors import HetaError


@pytest.mark.parametrize("wrong", [-1, 5])
@pytest.mark.parametrize("lazy", [True, False])
def test_an_index_out_of_range_of_node_data_is_an_error(wrong: int, lazy: bool) -> None:
    array = np.ones((5, 2), np.float32)
    train = SimpleNamespace(lazy_features=lazy)
    session: Any = SimpleNamespace(rows=lambda name: array, settings=SimpleNamespace(train=train))
    tensor = SimpleNamespace(_name="node~paper~feat", dtype=torch.float32, shape=(5, 2))
    read = node_data.read(session, tensor, torch.tensor([4, 0]), lambda *_: torch.empty(0))
    assert read is not None
    assert read.shape == (2, 2)
    with pytest.raises(IndexError, match="5 rows"):
        node_data.read(session, tensor, torch.tensor([0, wrong]), lambda *_: torch.empty(0))


@pytest.mark.parametrize("wrong", [-1, 5])
def test_an_index_out_of_range_of_an_embedding_is_an_error(wrong: int) -> None:
    table = Table.__new__(Table)
    table.count, table.low, table.high = 5, 0, 5
    table._tensor = SimpleNamespace(local_partition=torch.ones(5, 2))
    assert table.read(torch.tensor([4, 0])).shape == (2, 2)
    with pytest.raises(IndexError, match="5 rows"):
        table.read(torch.tensor([0, wrong]))


def test_more_trainers_than_bits_are_refused() -> None:
    session: Any = SimpleNamespace(connect=lambda: None, world=SimpleNamespace(size=63))
    with pytest.raises(HetaError, match="takes at most 62 trainers; there are 63"):
        Table(session, SimpleNamespace(_tensor=None), "paper", lambda *_: torch.empty(0))
