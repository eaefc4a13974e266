"""Features kept as int8 with a scale for each column, or as float16: what is read is what was given
but for rounding, on every worker the same, and who cannot decode them says so."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dgl_heta.errors import InputError
from dgl_heta.features import StaticFeatures
from dgl_heta.graph.changes import with_feature_dtype
from dgl_heta.graph.source import GraphSource
from dgl_heta.partition.graph_input import GraphInput
from dgl_heta.store import Store, write_store
from tests.support import warm
from tests.support.exactness import differences, job, run
from tests.support.graphs import academic, with_tasks
from tests.support.waiting import PATIENCE


def given(**features: np.ndarray) -> GraphSource:
    source = with_tasks(academic())
    for ntype, rows in features.items():
        source.node_arrays[ntype] = {**source.node_arrays[ntype], "feat": rows}
    return source


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    path = tmp_path_factory.mktemp("int8") / "store"
    write_store(with_feature_dtype(given(), "int8"), path)
    return Store(path, verify=True)


def test_a_number_is_at_most_half_a_scale_away_and_takes_a_byte(store: Store) -> None:
    whole = given().node_arrays["paper"]["feat"]
    rows, scale = store.features("paper")
    assert scale is not None
    assert (rows.dtype, scale.dtype) == (np.int8, np.float32)
    np.testing.assert_allclose(scale, np.abs(whole).max(0) / 127, rtol=1e-6)
    read = store.feature_rows("paper", 10, 50)
    assert np.all(np.abs(read - whole[10:50]) <= scale / 2 * (1 + 1e-6))
    assert store.schema.feature_bytes == {"paper": 7, "field": 3}
    assert with_feature_dtype(given(), "int8").schema() == store.schema  # as `plan` has it before
    assert GraphInput(store.schema, "", store).feature_itemsize == 1
    static = StaticFeatures(store, ("paper",), torch.float64, torch.device("cpu"))
    assert static.sources["paper"].dtype == np.int8  # in memory, and in what caches copy
    ids = np.array([3, 59, 3])
    (found,) = static.read({"paper": ids}).values()
    np.testing.assert_array_equal(found.numpy(), store.feature_rows("paper", 0, 60)[ids])


def test_constant_and_tiny_columns_and_pieces(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dgl_heta.store.encoding.row_starts", lambda rows, size: range(0, rows, 7))
    monkeypatch.setattr("dgl_heta.store.writer.row_starts", lambda rows, size: range(0, rows, 9))
    features = np.tile([0.0, -3.0, 1e-300, 1e30], (60, 1))
    write_store(with_feature_dtype(given(paper=features), "int8"), tmp_path / "store")
    read = Store(tmp_path / "store").feature_rows("paper", 0, 60)
    np.testing.assert_allclose(read, np.tile([0.0, -3.0, 0.0, 1e30], (60, 1)), rtol=1e-6)


def test_float16_is_a_plain_array(tmp_path: Path) -> None:
    write_store(with_feature_dtype(given(), "float16"), tmp_path / "store")
    found = Store(tmp_path / "store").array("paper", "feat")
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, given().node_arrays["paper"]["feat"].astype(np.float16))


@pytest.mark.parametrize(("dtype", "value", "words"), [
    ("int8", np.nan, "not finite (NaN or infinity), first in row 8"),
    ("int8", np.inf, "not finite"), ("float16", -np.inf, "not finite"),
    ("float16", 1e5, "numbers too large for float16"), ("int8", 1e300, "too large for int8")])
def test_what_cannot_be_kept_is_refused(
        dtype: str, value: float, words: str, tmp_path: Path) -> None:
    features = np.zeros((60, 3))
    features[8, 1] = value
    with pytest.raises(InputError) as error:
        write_store(with_feature_dtype(given(paper=features), dtype), tmp_path / "store")
    assert words in str(error.value)
    assert "paper" in str(error.value)
    assert not (tmp_path / "store").exists()


def test_learnable_rows_and_other_dtypes_are_refused() -> None:
    none = replace(given(), node_arrays={"paper": {"label": np.zeros(60, np.int64)}})
    with pytest.raises(InputError, match="no node type has features; learnable ones are kept"):
        with_feature_dtype(none, "int8")
    with pytest.raises(InputError, match="must be float16 or int8"):
        with_feature_dtype(given(), "int4")


def test_who_cannot_decode_them_says_what_to_do(store: Store) -> None:
    for read in (store.array, store.held_array):  # DistDGL scripts, DGL's partition methods
        with pytest.raises(InputError, match="without --feature-dtype int8"):
            read("paper", "feat")
    # Scripts, whose part may have no rows of that type; other methods, which read all rows.
    for whole in (store.check_unscaled, store.source):
        with pytest.raises(InputError, match="without --feature-dtype int8"):
            whole()


def decoded(store: Store, path: Path) -> None:
    """The same graph with features as they are read."""
    write_store(given(**{t: store.feature_rows(t, 0, store.schema.node_counts[t])
                         for t in store.schema.feature_bytes}), path)


def exact(told: dict[str, Any], out: Path) -> dict[str, list[dict[str, np.ndarray]]]:
    out.mkdir()
    return run({**told, "out": str(out)}, out)


@pytest.mark.parametrize("parts", [2, 3])
def test_workers_compute_what_one_process_computes_of_the_decoded_rows(
        store: Store, tmp_path: Path, parts: int) -> None:
    names = ["sum-self_loop", "sampled", "hgt-self_loop"]
    decoded(store, tmp_path / "decoded")
    alone = exact(job(tmp_path / "decoded", tmp_path, 1, names), tmp_path / "alone")
    for cut in (None, True):
        together = exact(job(store.directory, tmp_path, parts, names, cut=cut),
                         tmp_path / f"{parts}-{cut}")
        for name, workers in together.items():
            worst = differences(alone[name][0], workers)
            assert all(value < 1e-10 for value in worst.values()), (name, cut, worst)


def test_commands_plan_partition_train_and_predict(tmp_path: Path) -> None:
    """From files, by the command, with a cache: as a graph with the features that are read."""
    for name, rows in given().node_arrays["paper"].items():
        np.save(tmp_path / f"{name}.npy", rows)
    source = given()
    for i, edges in enumerate(source.edges.values()):
        np.save(tmp_path / f"edges-{i}.npy", np.stack(next(iter(edges.chunks(10**6)))))
    (tmp_path / "metadata.json").write_text(json.dumps({
        "name": "files", "nodes": {
            **{t: {"count": n} for t, n in source.node_counts.items()},
            "paper": {"count": 60, "arrays": {
                k: f"{k}.npy" for k in ("feat", "label", "train_mask", "val_mask", "test_mask")}}},
        "edges": [{"src": r.src, "etype": r.etype, "dst": r.dst, "files": [f"edges-{i}.npy"]}
                  for i, r in enumerate(source.edges)],
        "task": {"target": "paper", "num_classes": 4, "label": "label"}}))

    def command(*arguments: str, status: int = 0) -> str:
        done = subprocess.run([warm.python(), "-m", "dgl_heta", *arguments], capture_output=True,
                              text=True, timeout=PATIENCE, cwd=tmp_path)
        assert done.returncode == status, done.stderr
        return done.stdout + " ".join(done.stderr.split())

    planned = json.loads(command("plan", ".", "--feature-dtype", "int8", "--json"))
    assert planned["prediction"]["partitions"][0]["feature_bytes"] == 60 * 7
    command("partition", ".", "--feature-dtype", "int8", "--out", "parts", "--parts", "2")
    assert "is a store already" in command(
        "plan", "parts", "--feature-dtype", "int8", status=2)
    told = command("partition", ".", "--feature-dtype", "int8", "--out", "dgl", "--method", "metis",
                   status=2)
    assert "leave --feature-dtype out, or use method meta" in told
    kept = Store(tmp_path / "parts/store")
    source.node_arrays["paper"]["feat"] = kept.feature_rows("paper", 0, 60)
    write_store(replace(source, node_arrays={"paper": source.node_arrays["paper"]}),
                tmp_path / "decoded")
    scores = []
    for graph in ("parts", "decoded"):
        command("train", graph, "--run-dir", f"run-{graph}", *(part for text in (
            "train.epochs=1", "cache.policy=hotness", "cache.capacity_mb=1", "model.hidden=8",
            "train.fanouts=-1,-1", "partition.parts=2") for part in ("--set", text)))
        command("predict", f"run-{graph}", "--out", f"{graph}.npy", "--what", "scores")
        scores.append(np.load(tmp_path / f"{graph}.npy"))
    np.testing.assert_allclose(*scores, rtol=1e-4, atol=1e-5)
