"""The cache in GraphBolt: as a feature store of its own, and under an unchanged script."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml  # type: ignore[import-untyped]

from dgl_heta.errors import InputError
from tests.support.waiting import PATIENCE

gb = pytest.importorskip("dgl.graphbolt")
import dgl_heta  # noqa: E402
from dgl_heta.distdgl.versions import release  # noqa: E402
from dgl_heta.graphbolt import CachedFeature, CachedFeatureStore  # noqa: E402
from dgl_heta.graphbolt.feature_stores import cached  # noqa: E402

PAPER, AUTHOR = ("node", "paper", "feat"), ("node", "author", "feat")


def write_dataset(directory: Path, papers: int = 400, authors: int = 300) -> Path:
    """A GraphBolt data set with features of two node types on disk."""
    rng = np.random.default_rng(0)
    (directory / "data").mkdir(parents=True)

    def save(name: str, array: np.ndarray) -> dict[str, object]:
        np.save(directory / f"data/{name}.npy", array)
        return {"format": "numpy", "path": f"data/{name}.npy"}

    def edges(name: str, src: int, dst: int) -> dict[str, object]:
        pairs = np.stack([(rng.random(1500) ** 2 * src), rng.random(1500) * dst]).astype(np.int64)
        return {"type": name, **save(name.replace(":", "-"), pairs)}

    # DGL 2.4 keeps the ids of a graph of this size in 32 bits, and wants seeds to be alike.
    train = np.arange(0, papers, 5, np.int32 if release() == "2.4.0" else np.int64)
    (directory / "metadata.yaml").write_text(yaml.safe_dump({
        "dataset_name": "small",
        "graph": {"nodes": [{"type": "paper", "num": papers}, {"type": "author", "num": authors}],
                  "edges": [edges("author:writes:paper", authors, papers),
                            edges("paper:cites:paper", papers, papers)]},
        "feature_data": [
            {"domain": "node", "type": t, "name": "feat", "in_memory": False,
             **save(f"{t}-feat", rng.standard_normal((n, w)).astype(np.float32))}
            for t, n, w in (("paper", papers, 16), ("author", authors, 8))],
        "tasks": [{"name": "t", "num_classes": 2, "train_set": [{"type": "paper", "data": [
            {"name": "seed_nodes", **save("seeds", train)},
            {"name": "labels", **save("labels", train % 2)}]}]}],
    }))
    return directory


def stores() -> tuple[object, dict[tuple[str, str, str], torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    rows = {PAPER: torch.randn(50, 4, generator=generator),
            AUTHOR: torch.randn(30, 2, 3, generator=generator),
            ("node", "paper", "label"): torch.arange(50).view(50, 1)}
    return gb.BasicFeatureStore({k: gb.TorchBasedFeature(v.clone()) for k, v in rows.items()}), rows


@pytest.mark.parametrize("policy", ["hotness", "miss_penalty", "density", "fifo", "clock", "none"])
def test_a_cached_store_reads_what_the_store_reads(policy: str) -> None:
    plain, rows = stores()
    store = CachedFeatureStore(plain, policy, 4e-4, batches=3, gate=False)
    generator = torch.Generator().manual_seed(1)
    for _ in range(8):
        for key, whole in rows.items():
            ids = torch.randint(len(whole), (20,), generator=generator)
            assert torch.equal(store.read(*key, ids), whole[ids])
            assert torch.equal(store.read(*key, ids.int()), whole[ids])
    assert torch.equal(store.read(*PAPER), rows[PAPER])
    assert store.size(*AUTHOR) == (2, 3)
    assert len(store) == 3
    assert set(store.keys()) == set(rows)
    stats = store.stats()
    assert set(stats) == {PAPER, AUTHOR}  # a label is no feature
    assert (sum(s["hits"] for s in stats.values()) > 0) == (policy != "none")
    assert sum(s["cached_bytes"] for s in stats.values()) <= 400


def test_what_is_written_is_read() -> None:
    plain, rows = stores()
    store = CachedFeatureStore(plain, "hotness", 1, batches=1, gate=False)
    for _ in range(3):
        store.read(*PAPER, torch.arange(50))
    hits = store.stats()[PAPER]["hits"]
    store.update(*PAPER, torch.ones(2, 4), torch.tensor([3, 4]))
    assert store.stats()[PAPER]["hits"] == hits > 0
    assert f"{hits:,} hits before it was written to" in store.cache.describe()
    rows[PAPER][3:5] = 1
    assert torch.equal(store.read(*PAPER, torch.arange(50)), rows[PAPER])


def test_a_feature_taken_out_of_a_store_is_read_and_written_through_it() -> None:
    plain, rows = stores()
    store = CachedFeatureStore(plain, "hotness", 1, batches=1, gate=False)
    assert PAPER in store
    assert ("node", "paper", "nothing") not in store
    feature, ids = store[PAPER], torch.arange(50)
    for _ in range(3):
        found = list(feature.read_async(ids))
        assert len(found) == feature.read_async_num_stages(ids.device)
        assert torch.equal(found[-1].wait(), rows[PAPER])
    assert store.stats()[PAPER]["hits"] > 0
    feature.update(torch.ones(50, 4))
    assert torch.equal(feature.read(ids), torch.ones(50, 4))


@pytest.mark.skipif(release() != "2.4.0", reason="DGL 2.1 has no features by key")
def test_what_is_put_in_the_place_of_a_feature_is_read() -> None:
    class Twice(gb.Feature):
        def __init__(self, feature: gb.Feature) -> None:
            super().__init__()
            self.feature = feature

        def read(self, ids: torch.Tensor | None = None) -> torch.Tensor:
            return 2 * self.feature.read(ids)

    dgl_heta.enable(settings=["cache.policy=hotness", "cache.batches=1", "cache.gate=false",
                              "cache.capacity_mb=1"])
    try:
        store, rows = stores()
        feature, ids = store[PAPER], torch.arange(50)
        for _ in range(3):
            assert torch.equal(feature.read(ids), rows[PAPER])
        assert cached(store, None).stats()[PAPER]["hits"] > 0
        store[PAPER] = Twice(feature)
        for _ in range(3):
            assert torch.equal(store.read(*PAPER, ids), 2 * rows[PAPER])
            assert torch.equal(store[PAPER].read(ids), 2 * rows[PAPER])
            assert torch.equal(feature.read(ids), rows[PAPER])
    finally:
        dgl_heta.disable()


def test_one_feature_with_visits_that_are_known() -> None:
    whole = torch.randn(50, 4)
    visits = np.arange(50)
    feature = CachedFeature(gb.TorchBasedFeature(whole), visits, policy="hotness",
                            capacity_mb=160e-6, gate=False)
    assert torch.equal(feature.read(torch.arange(50)), whole)
    assert torch.equal(feature.read(torch.arange(45, 50)), whole[45:])
    assert feature.store.stats()["node", None, "feature"]["hits"] == 15
    assert feature.size() == (4,)
    assert torch.equal(feature.read(), whole)
    with pytest.raises(InputError, match="visits of 3 rows"):
        CachedFeature(gb.TorchBasedFeature(whole), visits[:3]).read(torch.arange(3))


@pytest.mark.parametrize("policy", ["hotness", "fifo"])
def test_a_cache_may_stand_before_another_one(policy: str) -> None:
    """As a GPU's before one in memory; a read does not wait for itself."""
    whole, read = torch.randn(50, 4), []
    made: dict[str, Any] = {"policy": policy, "gate": False, "counts": np.arange(50)}
    inner = CachedFeature(gb.TorchBasedFeature(whole), capacity_mb=320e-6, **made)
    outer = CachedFeature(inner, capacity_mb=160e-6, **made)

    def work() -> None:
        read.extend(outer.read(torch.arange(first, first + 30)) for first in (0, 20, 5))

    reading = threading.Thread(target=work, daemon=True)
    reading.start()
    reading.join(PATIENCE / 10)
    assert not reading.is_alive()
    assert len(read) == 3
    assert all(torch.equal(rows, whole[at:at + 30]) for at, rows in zip((0, 20, 5), read))


def test_visits_of_several_features_fill_the_cache_at_once() -> None:
    plain, rows = stores()
    counts = {PAPER: np.arange(50), AUTHOR: np.arange(30)}
    store = CachedFeatureStore(plain, "hotness", 1, counts=counts, gate=False)
    for key in counts:
        assert torch.equal(store.read(*key, torch.arange(30)), rows[key][:30])
    assert {key: s["rows"] for key, s in store.stats().items()} == {PAPER: 50, AUTHOR: 30}
    for wrong, message in (({("node", "typo", "feat"): np.arange(3)}, "has no such feature"),
                           ({PAPER: np.arange(50) / 10}, "whole numbers"),
                           ({PAPER: np.arange(50) - 1}, "0 or more")):
        with pytest.raises(InputError, match=message):
            CachedFeatureStore(plain, "hotness", 1, counts=wrong)


def test_what_is_not_cached_is_read_as_before(caplog: pytest.LogCaptureFixture) -> None:
    class Own(gb.Feature):
        rows = torch.randn(9, 2)

        def read(self, ids: torch.Tensor | None = None) -> torch.Tensor:
            return self.rows if ids is None else self.rows[ids]

    whole = torch.randn(9, 4, requires_grad=True)
    store = CachedFeatureStore(gb.BasicFeatureStore({
        PAPER: gb.TorchBasedFeature(whole), AUTHOR: Own(),
        ("node", "a", "b"): gb.TorchBasedFeature(torch.ones(9, 2, dtype=torch.bfloat16))}),
        "hotness", 1, batches=1, gate=False)
    for _ in range(3):
        for key in store.keys():  # noqa: SIM118 - a method of feature stores
            assert torch.equal(store.read(*key, torch.arange(4)), store.read(*key)[:4])
    if release() == "2.1.0":  # from DGL 2.4 on reads have no gradient
        assert store.read(*PAPER, torch.arange(4)).requires_grad
    for reason in ("requires gradients", "rows is not known (give counts)", "no torch.bfloat16"):
        assert caplog.text.count(reason) == 1
    plain, rows = stores()
    store = CachedFeatureStore(plain, "hotness", 1, batches=1, gate=False)
    for _ in range(3):
        assert torch.equal(store.read(*PAPER, torch.tensor([-1, 3])), rows[PAPER][[-1, 3]])
        assert store.read(*PAPER, torch.zeros(0, dtype=torch.int64)).shape == (0, 4)
        with pytest.raises(IndexError):
            store.read(*PAPER, torch.tensor([50]))


def test_wrong_options_are_said() -> None:
    plain, _ = stores()
    for options, message in (({"policy": "hotest"}, "did you mean 'hotness'"),
                             ({"capacity_mb": -1}, "must be 0 or more"),
                             ({"capacity_mb": 1e9}, "MB free"),
                             ({"policy": "degree"}, "chooses by degrees"),
                             ({"batches": 0}, "1 or more"), ({"batches": 2.5}, "whole number"),
                             ({"policy": "fifo", "devices": ["cpu", "cpu"]}, "on one device"),
                             ({"devices": []}, "needs a device"),
                             ({"policy": None}, "no cache policy")):
        with pytest.raises(InputError, match=message):
            CachedFeatureStore(plain, **options)
    with pytest.raises(InputError, match="no feature store"):
        CachedFeatureStore(None)


def run(out: Path, dataset: Path, *options: str) -> str:
    script = Path(__file__).parents[1] / "support/gb_script.py"
    # As by python, but for the end of the interpreter, which threads of DGL 2.4 can abort.
    plain = ("import os, runpy, sys; del sys.argv[0]; "
             "runpy.run_path(sys.argv[0], run_name='__main__'); os._exit(0)")
    command = ([sys.executable, "-m", "dgl_heta", "run", *options] if options
               else [sys.executable, "-c", plain])
    done = subprocess.run([*command, str(script), str(dataset), str(out)], capture_output=True,
                          text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


def test_an_unchanged_script_gets_the_cache_by_configuration(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data")
    run(tmp_path / "plain.npy", dataset)
    want = np.load(tmp_path / "plain.npy")
    assert len(want) == 20 * 24 + 48
    text = run(tmp_path / "cached.npy", dataset, "--set", "cache.policy=density", "--set",
               "cache.batches=4", "--set", "cache.capacity_mb=0.01", "--set", "cache.gate=false")
    np.testing.assert_array_equal(np.load(tmp_path / "cached.npy"), want)
    assert "dgl-heta: cache policy density" in text
    assert "% hits" in text
