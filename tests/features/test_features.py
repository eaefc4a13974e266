"""Static and learnable features, and the sparse optimizer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dgl_heta.comm.collectives import Comm, Traffic
from dgl_heta.errors import InputError
from dgl_heta.features import LearnableFeatures, initial_rows
from dgl_heta.features.row_kernels import RECYCLED, check_ids, gather_rows, sum_rows
from dgl_heta.features.row_optimizers import AdamSettings
from dgl_heta.features.row_table import RowTable


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", "i8", "u1"])
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_gathered_rows_are_the_rows(dtype: str, data: st.DataObject) -> None:
    rows, width = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 5))
    array = np.random.default_rng(0).integers(0, 100, (rows, width)).astype(dtype)
    ids = np.asarray(data.draw(st.lists(st.integers(0, rows - 1))), dtype=np.int64)
    np.testing.assert_array_equal(gather_rows(array, ids), array[ids])


@pytest.mark.parametrize("wrong", [-1, 7])
def test_row_out_of_range_is_an_error_and_not_other_memory(wrong: int) -> None:
    """Kernels do not look at ids; every door does (DistTensor, DistEmbedding, feature stores)."""
    with pytest.raises(IndexError, match="7 rows"):
        check_ids(np.array([0, wrong]), 7)


@given(st.lists(st.integers(0, 9), max_size=30))
@settings(deadline=None)
def test_rows_are_summed_by_id(ids: list[int]) -> None:
    rows = np.asarray(ids, np.int64)
    values = np.arange(len(ids) * 2, dtype=np.float64).reshape(-1, 2)
    slots = np.full(10, -1, np.int32)
    unique, sums = sum_rows(rows, values, slots)
    want = np.zeros((10, 2))
    np.add.at(want, rows, values)
    assert sorted(unique) == sorted(set(ids))
    np.testing.assert_array_equal(sums, want[unique])
    assert (slots == -1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sparse_adam_is_torchs_sparse_adam(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    start = torch.randn(12, 3, dtype=dtype)
    table, weight = RowTable(start.clone()), torch.nn.Parameter(start.clone())
    optimizer = torch.optim.SparseAdam([weight], lr=0.02)
    for _ in range(6):
        rows = torch.randperm(12)[:5]
        grads = torch.randn(5, 3, dtype=dtype)
        table.update(rows.numpy(), grads * 4, 0.25, AdamSettings(lr=0.02))
        weight.grad = torch.sparse_coo_tensor(rows.unsqueeze(0), grads, (12, 3))
        optimizer.step()
    torch.testing.assert_close(table.value, weight.detach())


@given(st.integers(0, 200_000), st.integers(0, 200_000))
@settings(max_examples=20, deadline=None)
def test_any_part_of_a_table_starts_with_the_same_values(first: int, second: int) -> None:
    low, high = sorted((first, second))
    high = min(high, low + 1000)
    whole = initial_rows(5, "author", 0, 200_000, 2, torch.float32)
    torch.testing.assert_close(initial_rows(5, "author", low, high, 2, torch.float32),
                               whole[low:high], rtol=0, atol=0)


def test_learnable_rows_collect_gradients_and_move() -> None:
    table = LearnableFeatures({"author": 10}, {"author": (0,)}, 4, torch.float64, Comm(Traffic()))
    before = table.local["author"].value.clone()
    ids = np.array([7, 2], np.int64)
    rows = table.read({"author": ids}, torch.device("cpu"))["author"]
    torch.testing.assert_close(rows.detach(), before[[7, 2]])
    rows.sum().backward()
    table.update()
    moved = (table.local["author"].value != before).any(1)
    assert moved.nonzero().flatten().tolist() == [2, 7]


def test_unknown_mode_is_refused() -> None:
    with pytest.raises(InputError, match="exact, replica"):
        LearnableFeatures({}, {}, 4, torch.float64, Comm(Traffic()), mode="replicas")


def test_memory_of_gathered_rows_is_used_again_only_when_nothing_refers_to_it() -> None:
    width = 64
    count = RECYCLED // (4 * width) + 1
    table = np.arange(2 * count * width, dtype=np.float32).reshape(-1, width)
    rng = np.random.default_rng(0)
    held: list[tuple[torch.Tensor, np.ndarray]] = []
    addresses = set()
    for turn in range(40):
        ids = rng.integers(0, len(table), count)
        rows = gather_rows(table, ids)
        addresses.add(rows.ctypes.data)
        kept = (torch.from_numpy(rows).view(-1, 2, width // 2)[3:, 1],  # a view of a view
                torch.from_numpy(rows.reshape(-1)[width:2 * width]),
                torch.from_numpy(rows) * 1.0)[turn % 3]
        held.append((kept, kept.numpy().copy()))
        del rows, kept
        if len(held) > 3:
            held.pop(int(rng.integers(len(held))))
        for tensor, wanted in held:
            assert np.array_equal(tensor.numpy(), wanted)
    assert len(addresses) < 15, "every batch took new memory"
