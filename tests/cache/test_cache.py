"""The feature cache: policies, slots, copies of rows, direct reads, penalties, limits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dgl_heta.cache import built_in, by_device, choose
from dgl_heta.cache.cached_rows import CachedRows
from dgl_heta.cache.cached_table import CachedTable
from dgl_heta.cache.observing import ObservingCache
from dgl_heta.cache.policies import Policy, share_bytes
from dgl_heta.cache.slots import Slots
from dgl_heta.errors import HetaError, InputError
from dgl_heta.features.disk_tables import DiskTables
from dgl_heta.features.row_files import CalledRows, MappedRows
from dgl_heta.features.row_optimizers import AdamSettings, step_by_operators
from dgl_heta.features.row_table import RowTable
from dgl_heta.system.memory import capacity_bytes, free_bytes
from dgl_heta.training.caches import _use_rows
from tests.support.caches import CPU

POLICIES = {policy.name: policy for policy in built_in()}
CUDA = torch.device("cuda", 0)


@st.composite
def problems(draw: st.DrawFn) -> tuple:
    """Counts, row bytes, penalties and a capacity, of up to four types."""
    types = [f"type{i}" for i in range(draw(st.integers(1, 4)))]
    counts = {t: np.asarray(draw(st.lists(st.integers(0, 9), max_size=20)), np.int64)
              for t in types}
    row_bytes = {t: draw(st.integers(1, 50)) for t in types}
    penalties = {t: draw(st.sampled_from([0.0, 1e-9, 3e-9, 1e-6])) for t in types}
    return counts, row_bytes, penalties, draw(st.integers(0, 2000))


@settings(deadline=None)
@given(problems(), st.sampled_from(sorted(POLICIES)))
def test_a_policy_fills_the_capacity_and_no_more(problem: tuple, name: str) -> None:
    counts, row_bytes, penalties, capacity = problem
    found = choose(POLICIES[name], counts, row_bytes, penalties, capacity)
    assert set(found) == set(counts)
    used = sum(len(ids) * row_bytes[t] for t, ids in found.items())
    assert used <= capacity
    useful = {t for t in counts if penalties[t]}
    assert all(not len(ids) for t, ids in found.items() if t not in useful)
    left = [row_bytes[t] for t in useful if len(found[t]) < len(counts[t])]
    if name in ("hotness", "density", "degree", "miss_penalty") and not left:
        assert used == sum(len(counts[t]) * row_bytes[t] for t in useful)
    if name == "miss_penalty" and left and any(counts[t].sum() for t in useful):
        # Only what is smaller than a row of each type that could use it stays free.
        seen = [row_bytes[t] for t in useful if len(found[t]) < len(counts[t]) and counts[t].sum()]
        assert not seen or capacity - used < max(seen) * len(useful)


@given(problems())
@settings(deadline=None)
def test_density_saves_at_least_as_much_as_any_policy_but_for_one_row(problem: tuple) -> None:
    counts, row_bytes, penalties, capacity = problem

    def saved(name: str) -> float:
        found = choose(POLICIES[name], counts, row_bytes, penalties, capacity)
        return sum(float(counts[t][ids].sum()) * penalties[t] * row_bytes[t]
                   for t, ids in found.items())

    # Ties are shared among types, so up to a row of each type may be missing.
    rows = sum(float(count.max(initial=0)) * penalties[t] * row_bytes[t]
               for t, count in counts.items())
    best = max(saved(name) for name in POLICIES)
    assert saved("density") >= best - rows - 1e-12


def test_miss_penalty_is_the_rule_of_the_paper() -> None:
    counts = {"a": np.arange(100), "b": np.full(100, 9)}
    penalties = {"a": 2e-9, "b": 1e-9}
    found = choose(POLICIES["miss_penalty"], counts, {"a": 10, "b": 10}, penalties, 1000)
    weight_a, weight_b = 2 * counts["a"].sum(), counts["b"].sum()
    assert len(found["a"]) == pytest.approx(100 * weight_a / (weight_a + weight_b), abs=1)
    assert sorted(found["a"]) == list(range(100 - len(found["a"]), 100))  # the most visited
    assert len(found["a"]) + len(found["b"]) == 100


def test_what_a_type_cannot_use_goes_to_the_others() -> None:
    found = choose(POLICIES["miss_penalty"],
                   {"small": np.full(3, 1000), "large": np.ones(100, np.int64)},
                   {"small": 8, "large": 8}, {"small": 1e-6, "large": 1e-9}, 8 * 50)
    assert (len(found["small"]), len(found["large"])) == (3, 47)
    assert share_bytes({"x": 3.0, "y": 1.0, "z": 0.0}, {"x": 10, "y": 100, "z": 100}, 50) == {
        "x": 10, "y": 40, "z": 0}


def test_hotness_ranks_nodes_of_all_types_by_visits_alone() -> None:
    found = choose(POLICIES["hotness"], {"a": np.array([5, 1, 9]), "b": np.array([7, 2])},
                   {"a": 4, "b": 400}, {"a": 1e-6, "b": 1e-9}, 408)
    assert sorted(found["a"]) == [0, 2]
    assert found["b"].tolist() == [0]


@pytest.mark.parametrize(("penalty", "capacity", "message"), [
    (float("nan"), 10, "the miss penalty of 'a' is nan"),
    (float("inf"), 10, "the miss penalty of 'a' is inf"),
    (-1.0, 10, "the miss penalty of 'a' is -1"),
    (1.0, -1, "capacity is -1 bytes; it must be 0 or more"),
])
def test_wrong_numbers_are_refused(penalty: float, capacity: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        choose(POLICIES["hotness"], {"a": np.ones(3, np.int64)}, {"a": 4}, {"a": penalty}, capacity)


@pytest.mark.parametrize(("answer", "message"), [
    ({"a": [0, 1, 2]}, "selected rows of 12 bytes for a cache of 8"),
    ({"a": [1, 1]}, "more than once"),
    ({"a": [7]}, "from 7 to 7, but there are 3 nodes"),
    ({"a": [0.5]}, "vector of integers"),
    ({"z": [0]}, "must map node types"),
    (None, "must map node types"),
])
def test_what_a_third_partys_policy_gets_wrong_is_said(answer: object, message: str) -> None:
    policy = Policy("theirs", lambda *numbers: answer)
    with pytest.raises(HetaError, match=f"cache policy 'theirs' .*{message}"):
        choose(policy, {"a": np.ones(3, np.int64)}, {"a": 4}, {"a": 1e-9}, 8)


@settings(deadline=None, max_examples=50)
@given(st.data(), st.sampled_from([None, "fifo", "clock"]), st.integers(1, 3))
def test_every_row_has_one_slot_and_every_slot_one_row(data: st.DataObject, rule: str | None,
                                                       devices: int) -> None:
    count = data.draw(st.integers(1, 30))
    ids = np.asarray(data.draw(st.lists(st.integers(0, count - 1), unique=True)), np.int64)
    slots = Slots(count, ids, 1 if rule else devices, rule)
    for _ in range(5):
        asked = np.asarray(data.draw(st.lists(st.integers(0, count - 1), max_size=40)), np.int64)
        places, found, misses = slots.split(asked)
        assert sorted([*places, *misses]) == list(range(len(asked)))
        assert all(slots.rows[n % slots.devices][s] == n for n, s in zip(asked[places], found))
        admitted, taken, _ = slots.admit(found, asked[misses])
        assert len(set(taken)) == len(taken)
        assert all(slots.of[asked[misses[a]]] == s for a, s in zip(admitted, taken))
        for device, held in enumerate(slots.rows):
            assert (slots.of[held] == np.arange(len(held))).all()
            assert (held % slots.devices == device).all()
        assert np.count_nonzero(slots.of >= 0) == len(slots) == len(ids)


def test_clock_keeps_what_is_used_and_fifo_does_not() -> None:
    for rule, kept in (("clock", True), ("fifo", False)):
        slots = Slots(100, np.arange(4), 1, rule)
        for new in range(4, 9):
            _, found, misses = slots.split(np.array([0, new]))
            slots.admit(found, np.array([0, new])[misses])
        assert (slots.of[0] >= 0) == kept


@pytest.mark.parametrize("rule", [None, "fifo", "clock"])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", "i4"])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_cached_rows_are_the_rows(rule: str | None, dtype: str, share: float) -> None:
    check_cached_rows(CPU, rule, dtype, share)


@pytest.mark.gpu
@pytest.mark.parametrize("rule", [None, "fifo", "clock"])
@pytest.mark.parametrize("dtype", ["f2", "f4", ">f4"])
def test_rows_that_are_cached_on_a_gpu_are_the_rows(rule: str | None, dtype: str) -> None:
    for share in (0.0, 0.3, 1.0):
        check_cached_rows(CUDA, rule, dtype, share)


def check_cached_rows(device: torch.device, rule: str | None, dtype: str, share: float) -> None:
    rng = np.random.default_rng(0)
    array = rng.integers(0, 1000, (50, 5)).astype(dtype)
    ids = rng.permutation(50)[:int(50 * share)]
    for source in (MappedRows(array), CalledRows(array.shape, array.dtype, lambda i: array[i])):
        cached = CachedRows(source, ids, [device], rule)
        for _ in range(6):
            asked = rng.integers(0, 50, 40)
            want = torch.from_numpy(array[asked].astype(array.dtype.newbyteorder("=")))
            torch.testing.assert_close(cached.read(asked, device).cpu(), want, rtol=0, atol=0)
        assert cached.rows == 240
        if rule is None:
            assert (cached.hits == 240) == (share == 1)
            assert (cached.hits == 0) == (share == 0)


def test_rows_of_several_devices_have_no_second_copy() -> None:
    array = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
    chosen = by_device(POLICIES["hotness"], {"a": np.arange(40)}, {"a": 12}, {"a": 1e-9}, 120, 3)
    cached = CachedRows(MappedRows(array), chosen["a"], [CPU, CPU, CPU])
    assert [len(copy) for copy in cached.copies] == [10, 10, 10]
    assert cached.bytes == 360
    for device, held in enumerate(cached.slots.rows):
        assert (held % 3 == device).all()
        np.testing.assert_array_equal(cached.copies[device].numpy(), array[held])
    asked = np.random.default_rng(1).integers(0, 40, 100)
    np.testing.assert_array_equal(cached.read(asked).numpy(), array[asked])
    with pytest.raises(InputError, match="one device"):
        CachedRows(MappedRows(array), chosen["a"], [CPU, CPU], "fifo")


@pytest.mark.parametrize(("rule", "devices"), [(None, 1), (None, 2), ("fifo", 1), ("clock", 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_updates_through_a_cache_are_the_updates(rule, dtype, devices, tmp_path) -> None:
    """Value and moments, bit for bit, whichever tier a row is in and whatever moves it."""
    check_updates([CPU] * devices, rule, dtype, tmp_path, {"rtol": 0, "atol": 0})


@pytest.mark.gpu
@pytest.mark.parametrize("rule", [None, "fifo", "clock"])
def test_updates_through_a_cache_on_a_gpu_are_the_updates(rule, tmp_path) -> None:
    """But for the last bits: a GPU rounds a product and a sum once."""
    check_updates([CUDA], rule, torch.float64, tmp_path, {"rtol": 1e-12, "atol": 1e-12})


def check_updates(devices: list[torch.device], rule: str | None, dtype: torch.dtype,
                  tmp_path: Path, close: dict[str, float]) -> None:
    device = devices[0]
    rng = np.random.default_rng(0)
    start = torch.randn(30, 4, dtype=dtype, generator=torch.Generator().manual_seed(1))
    plain, below = RowTable(start.clone()), DiskTables(tmp_path)("x", 30, 4, dtype)
    below.value.copy_(start)
    assert list(tmp_path.iterdir()) == []  # the file has no name, so nothing can be left behind
    cached = CachedTable(below, rng.permutation(30)[:12], devices, rule, starts=[0, 20])
    adam = AdamSettings(lr=0.03)
    for step in range(8):
        rows = rng.permutation(30)[:17]
        torch.testing.assert_close(cached.read(rows, device).cpu(), plain.read(rows, CPU), **close)
        grads = torch.randn(17, 4, dtype=dtype)
        plain.update(rows, grads, 0.25, adam)
        cached.update(rows, grads.to(device), 0.25, adam)
        if step % 3 == 2:
            for want, got in zip(plain.blocks(), cached.blocks()):
                for part in want:
                    torch.testing.assert_close(got[part], want[part], **close)
    assert cached.rows.sum() == 8 * 17
    assert 0 < cached.hits.sum() < 8 * 17
    torch.testing.assert_close(cached.value, plain.value, **close)
    torch.testing.assert_close(cached.table.first, plain.first, **close)
    torch.testing.assert_close(cached.table.second, plain.second, **close)
    saved = [{k: v.clone() for k, v in block.items()} for block in plain.blocks()]
    cached.update(np.arange(30), torch.ones(30, 4, dtype=dtype, device=device), 1.0, adam)
    cached.load(iter(saved), 8)
    assert cached.step == 8
    torch.testing.assert_close(cached.read(np.arange(30), device).cpu(), plain.value, **close)


def test_capacity_is_what_is_free_at_most() -> None:
    free = free_bytes(CPU)
    assert 0 < free < 2**50
    assert capacity_bytes(1.5, CPU) == 1_500_000
    assert capacity_bytes(0, CPU) == 0
    assert 0 < capacity_bytes(None, CPU) <= 4_000_000_000
    with pytest.raises(InputError, match=r"cpu has [\d,]+ MB free.*smaller cache.capacity_mb"):
        capacity_bytes(free / 1e6 * 2, CPU)
    with pytest.raises(InputError, match="for each of 4 workers"):
        capacity_bytes(free / 1e6 / 2, CPU, 4)
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(InputError, match="must be 0 or more"):
            capacity_bytes(wrong, CPU)


def slow_source(array: np.ndarray) -> CalledRows:
    def read(ids: np.ndarray) -> np.ndarray:
        import time

        time.sleep(2e-6 * len(ids))
        return array[ids]
    return CalledRows(array.shape, array.dtype, read)


def test_a_cache_that_observes_reads_the_same_before_and_after_it_is_filled() -> None:
    rng = np.random.default_rng(0)
    arrays = {("node", t, "feat"): rng.standard_normal((200, w)).astype(np.float32)
              for t, w in (("a", 4), ("b", 9))}
    cache = ObservingCache(POLICIES["density"], 1000, batches=5)
    cache.add(("node", "a", "feat"), slow_source(arrays["node", "a", "feat"]))
    cache.add(("node", "b", "feat"), slow_source(arrays["node", "b", "feat"]),
              costly=np.arange(0, 200, 2))
    for step in range(12):
        assert cache.filled == (step > 5)
        for key, array in arrays.items():
            ids = (rng.random(80) ** 3 * 200).astype(np.int64)
            np.testing.assert_array_equal(cache.read(key, ids).numpy(), array[ids])
    stats = cache.stats()
    assert 0 < sum(s["cached_bytes"] for s in stats.values()) <= 1000
    assert stats["node", "a", "feat"]["hits"] > 0
    held = cache._features["node", "b", "feat"].cached
    assert held is None or (np.concatenate(held.slots.rows) % 2 == 0).all()
    assert "node/a/feat" in cache.describe()
    cache.forget(("node", "a", "feat"))
    before = stats["node", "a", "feat"]
    after = cache.stats()["node", "a", "feat"]
    assert (after["reads"], after["hits"], after["rows"]) == (before["reads"], before["hits"], 0)
    assert (f"node/a/feat: {before['hits']:,} hits before it was written to, not cached since, "
            f"{before['hits'] / before['reads']:.1%} hits") in cache.describe()
    arrays["node", "a", "feat"][:] = 7
    assert (cache.read(("node", "a", "feat"), np.arange(200)).numpy() == 7).all()
    assert cache.stats()["node", "a", "feat"]["reads"] == before["reads"] + 200


def test_what_costs_nothing_to_miss_is_cached_only_without_the_gate() -> None:
    array = np.zeros((5000, 8), np.float32)
    for gate in (True, False):
        cache = ObservingCache(POLICIES["hotness"], 10_000, batches=1, gate=gate)
        cache.add("a", MappedRows(array))
        for _ in range(3):
            cache.read("a", np.arange(100))
        assert bool(cache.stats()["a"]["rows"]) != gate


def test_observing_needs_a_policy_of_visits() -> None:
    with pytest.raises(InputError, match="'degree' chooses by degrees"):
        ObservingCache(POLICIES["degree"], 10)


def test_the_step_by_operators_is_the_compiled_step_but_for_the_square_roots_rounding() -> None:
    generator = torch.Generator().manual_seed(0)
    state = torch.rand(500, 12, dtype=torch.float64, generator=generator)
    grads = torch.randn(500, 4, dtype=torch.float64, generator=generator)
    table = RowTable(*(part.clone() for part in state.chunk(3, 1)))
    table.update(np.arange(500), grads, 0.5, AdamSettings())
    got = step_by_operators(state, grads, AdamSettings().constants(table.step, 0.5, table.dtype))
    want = torch.cat([table.value, table.first, table.second], 1)
    torch.testing.assert_close(got, want, rtol=1e-14, atol=0)
    assert torch.equal(got[:, 4:], want[:, 4:])


@pytest.mark.parametrize("rule", ["fifo", "clock"])
def test_threads_of_several_loaders_read_the_rows(rule: str) -> None:
    rows = np.repeat(np.arange(20_000, dtype=np.float32)[:, None], 8, 1)
    cached = CachedRows(MappedRows(rows), np.arange(2_000), replacement=rule)

    def wrong(seed: int) -> int:
        generator, found = np.random.default_rng(seed), 0
        for _ in range(200):
            ids = generator.integers(0, len(rows), 2_000)
            found += int((cached.read(ids).numpy() != rows[ids]).sum())
        return found

    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(wrong, (1, 2))] == [0, 0]


def test_measuring_misses_leaves_rows_and_moments_as_they_are() -> None:
    """They may be those of a checkpoint."""
    tables = [RowTable(*torch.rand(3, 50, 4, dtype=dtype).add(1).unbind())
              for dtype in (torch.float32, torch.float64)]
    for table in tables:
        before = [part.clone() for part in (table.value, table.first, table.second)]
        for used in (table, CachedTable(table, np.arange(0, 50, 2), (CPU,))):
            _use_rows(used, 0, CPU)(np.arange(1, 30))
        assert all(map(torch.equal, before, (table.value, table.first, table.second)))
        assert table.step == 0
