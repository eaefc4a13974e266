"""Predictions name nodes and classes as whoever made the graph does."""

from __future__ import annotations

import csv
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from dgl_heta.errors import InputError
from dgl_heta.graph.node_ids import NodeIds
from dgl_heta.hooks.manager import Plugins
from dgl_heta.launch.jobs.prediction import PredictionJob
from dgl_heta.prediction.output import Output
from dgl_heta.store import Store, write_store
from dgl_heta.training import checkpoint, table_files
from tests.support import warm
from tests.support.graphs import academic
from tests.support.waiting import PATIENCE

CLASSES = ["a", "b, c", "é", "d"]
SCORES = np.array([[1.0, 3.0, 0.0, -1.0], [800.0, 0.0, -800.0, 0.0]])


def read(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


@pytest.mark.releases
@pytest.mark.usefixtures("warm_workers")
def test_a_run_of_a_graph_with_ids_predicts_in_its_own_terms(tmp_path: Path) -> None:
    source = academic()
    names = [f"paper {i}, é" for i in range(source.node_counts["paper"])]
    source.node_ids["paper"] = NodeIds.of(names)
    source.info["classes"] = CLASSES
    write_store(source, tmp_path / "store")
    settings = ["model.hidden=4", "train.epochs=1", "train.fanouts=2,2", "train.threads=1",
                "train.dtype=float64", "partition.parts=1"]
    sets = [part for text in settings for part in ("--set", text)]
    done = subprocess.run([warm.python(), "-m", "dgl_heta", "train", str(tmp_path / "store"),
                           "--run-dir", str(tmp_path / "run"), "--json", *sets],
                          capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr

    def predict(name: str, **wishes: str) -> Path:
        PredictionJob(tmp_path / "run", tmp_path / name, **wishes).run(Plugins())  # type: ignore
        return tmp_path / name

    sure = np.load(predict("sure.npy", what="probabilities"))
    head, *rows = read(predict("classes.csv"))
    assert head == ["id", "class", "probability"]
    assert [row[0] for row in rows] == names
    assert [row[1] for row in rows] == [CLASSES[i] for i in sure.argmax(1)]
    np.testing.assert_allclose([float(row[2]) for row in rows], sure.max(1), rtol=1e-5)
    np.testing.assert_allclose(sure.sum(1), 1, rtol=1e-12)
    assert Store(tmp_path / "store").manifest.info["classes"] == CLASSES


@pytest.mark.parametrize(("what", "best", "dtype", "head", "body"), [
    ("predictions", True, "f8", ["id", "class", "probability"],
     [["x", "b, c", "0.830953"], ["y", "a", "1.0"]]),
    ("scores", False, "f4", ["id", *(f"score_{name}" for name in CLASSES)],
     [["x", "1.0", "3.0", "0.0", "-1.0"], ["y", "800.0", "0.0", "-800.0", "0.0"]]),
])
def test_rows_of_a_csv(tmp_path: Path, what: str, best: bool, dtype: str, head: list,
                       body: list) -> None:
    np.save(tmp_path / "rows.npy", SCORES.astype(dtype))
    Output(what, NodeIds.of(["x", "y"]), CLASSES, best).write_csv(
        tmp_path / "rows.npy", tmp_path / "out.csv")
    assert read(tmp_path / "out.csv") == [head, *body]


def test_nodes_without_ids_are_their_numbers(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.array([[0.1], [2.5]], np.float32))
    Output("predictions").write_csv(tmp_path / "rows.npy", tmp_path / "out.csv")
    assert read(tmp_path / "out.csv") == [["node", "prediction"], ["0", "0.1"], ["1", "2.5"]]
    np.save(tmp_path / "rows.npy", SCORES)
    Output("predictions", best=True).write_csv(tmp_path / "rows.npy", tmp_path / "out.csv")
    assert [row[:2] for row in read(tmp_path / "out.csv")[1:]] == [["0", "1"], ["1", "0"]]


def test_parquet_has_the_same_columns(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    np.save(tmp_path / "rows.npy", SCORES)
    ids = NodeIds.of(["x", "y"])
    Output("predictions", ids, CLASSES, True).write_parquet(
        tmp_path / "rows.npy", tmp_path / "out.parquet")
    assert parquet.read_table(tmp_path / "out.parquet").to_pydict() == {
        "id": ["x", "y"], "class": ["b, c", "a"], "probability": [0.830953, 1.0]}
    Output("scores", ids, CLASSES).write_parquet(tmp_path / "rows.npy", tmp_path / "o.parquet")
    assert parquet.read_table(tmp_path / "o.parquet").to_pydict() == {
        "id": ["x", "y"], "scores": SCORES.tolist()}


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"must end in \.npy, \.csv or \.parquet"):
        PredictionJob(tmp_path, tmp_path / "out.txt").run(Plugins())


def test_a_name_that_is_none_of_utf8_is_one_like_others(tmp_path: Path) -> None:
    place = tmp_path / os.fsdecode(b"r\xffun")
    place.mkdir()
    np.save(place / "rows.npy", np.arange(6.0).reshape(3, 2))
    Output("scores").write_parquet(place / "rows.npy", place / "rows.parquet")
    with (place / "rows.parquet").open("rb") as file:
        assert pytest.importorskip("pyarrow.parquet").read_table(file).num_rows == 3
    checkpoint._save(place / "model.safetensors", {"weight": torch.arange(3)})
    tensors, _ = table_files.mapped_tensors(place / "model.safetensors")
    assert tensors["weight"].tolist() == [0, 1, 2]
    table_files.write_tables(place / "rows.safetensors", {})
    assert table_files.mapped_tensors(place / "rows.safetensors") == ({}, {})
    (place / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"cannot read .*un/model\.safetensors: "):
        table_files.mapped_tensors(place / "model.safetensors")
