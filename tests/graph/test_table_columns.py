"""Columns of a table become features and splits, and what is said of values that cannot."""

from __future__ import annotations

import datetime
import json
import zlib
from pathlib import Path

import numpy as np
import pytest

from dgl_heta.errors import InputError
from dgl_heta.graph.changes import features_text
from dgl_heta.graph.readers import read_edge_files
from dgl_heta.graph.source import MASKS, GraphSource
from dgl_heta.store import Store, write_store

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS = 60


def make(directory: Path, columns: dict, features: dict | None = None, task: dict | None = None,
         ending: str = "parquet") -> GraphSource:
    """Papers of these columns, beside an id and a label; two thirds `a`, one third `b`."""
    rows = max([len(values) for values in columns.values()], default=ROWS)
    labels = ["b" if i % 3 == 0 else "a" for i in range(rows)]
    table = pa.table({"id": [f"p{i}" for i in range(rows)], "label": labels,
                      **({} if "split" in (task or {}) else {"train_mask": [True] * rows}),
                      **columns})
    if ending == "parquet":
        pq.write_table(table, directory / "papers.parquet")
    else:
        from pyarrow import csv

        csv.write_csv(table, directory / "papers.csv")
    (directory / "cites.csv").write_text("src,dst\np0,p1\n")
    node = {"table": f"papers.{ending}", **({"features": features} if features else {})}
    (directory / "metadata.json").write_text(json.dumps({
        "name": "g", "nodes": {"paper": node},
        "edges": [{"src": "paper", "etype": "cites", "dst": "paper", "files": ["cites.csv"]}],
        "task": {"target": "paper", **(task or {})}}))
    return read_edge_files(directory)


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_columns_become_features_in_the_order_that_is_written(tmp_path: Path, ending: str) -> None:
    source = make(tmp_path, {"text": ["Graph graph!", "é", ""], "year": [2000, 2010, 2020],
                             "venue": ["x", "", "w"], "spare": [1, 2, 3]},
                  {"year": "number", "venue": "category", "text": "text:8"}, ending=ending)
    feat = source.node_arrays["paper"]["feat"]
    assert (feat.dtype, feat.shape) == (np.float32, (3, 11))
    np.testing.assert_allclose(feat[:, 0], [-np.sqrt(1.5), 0, np.sqrt(1.5)], rtol=1e-6)
    assert feat[:, 1:3].tolist() == [[0, 1], [0, 0], [1, 0]]
    for row, word in ((0, "graph"), (1, "é")):
        code = zlib.crc32(word.encode())
        expected = np.zeros(8)
        expected[(code >> 1) % 8] = -1 if code & 1 else 1
        np.testing.assert_allclose(feat[row, 3:], expected)
    assert not feat[2, 3:].any()
    records = source.info["columns"]["paper"]
    assert records[0] == {"column": "year", "kind": "number", "mean": 2010.0,
                          "deviation": pytest.approx(8.16496580927726)}
    assert records[1:] == [{"column": "venue", "kind": "category", "values": ["w", "x"]},
                           {"column": "text", "kind": "text", "width": 8, "hash": "crc32"}]
    assert features_text(source) == ("features: paper (11 wide); learned: (none); columns that are "
                                     "not used: spare of paper")
    write_store(source, tmp_path / "store")
    assert Store(tmp_path / "store").manifest.info["columns"] == source.info["columns"]


@pytest.mark.parametrize(("values", "kind", "said"), [
    (["1", "x"], "number", r"papers\.csv, row 2: column 'c' is 'x'; it must be a finite number"),
    (["1", ""], "number", r"papers\.csv, row 2: column 'c' is empty; it must be a finite number"),
    (["1", "1e999"], "number", r"row 2: column 'c' is '1e999'; it must be a finite number"),
    (["1", "2"], "numbers", "column 'c' of .* is to be 'numbers'; columns become features as"),
    (["1", "2"], "text:0", "column 'c' of .* is to be 'text:0'"),
    (["", ""], "category", "column 'c' of .* has 0 categories; there must be between 1 and 1,024"),
])
def test_values_that_cannot_be_features_are_named(
        tmp_path: Path, values: list, kind: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        make(tmp_path, {"c": values}, {"c": kind}, ending="csv")


def test_a_column_of_features_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no column 'yaer' for features; .*did you mean 'year'"):
        make(tmp_path, {"year": [1, 2]}, {"yaer": "number"})


def split(tmp_path: Path, columns: dict, how: object) -> list[np.ndarray]:
    source = make(tmp_path, columns, task={"split": how})
    masks = [source.node_arrays["paper"][name] for name in MASKS]
    assert (np.sum(masks, 0) <= 1).all()
    return masks


def test_a_split_by_ratio_has_each_class_in_proportion_and_follows_its_seed(tmp_path: Path) -> None:
    columns = {"none": [""] * ROWS}
    masks = split(tmp_path, columns, {"ratios": [0.6, 0.2, 0.1]})
    b = np.arange(ROWS) % 3 == 0
    assert [int((m & b).sum()) for m in masks] == [12, 4, 2]
    assert [int((m & ~b).sum()) for m in masks] == [24, 8, 4]
    again = split(tmp_path, columns, {"ratios": [0.6, 0.2, 0.1], "seed": 0})
    other = split(tmp_path, columns, {"ratios": [0.6, 0.2, 0.1], "seed": 1})
    assert all((m == n).all() for m, n in zip(masks, again))
    assert any((m != n).any() for m, n in zip(masks, other))


@pytest.mark.parametrize("when", [
    [30, 10, 20, 40], [3.5, -1.0, 2.0, 9.0],
    ["2021-03-01", "2020-12-31", "2021-01-01 08:00", "2022-01-01"],
    [datetime.datetime(2021, m, 1) for m in (6, 2, 4, 8)],
    [datetime.date(2021, m, 1) for m in (6, 2, 4, 8)],
])
def test_a_split_by_time_trains_on_what_came_first(tmp_path: Path, when: list) -> None:
    masks = split(tmp_path, {"when": when}, {"ratios": [0.5, 0.25, 0.25], "time": "when"})
    assert [np.flatnonzero(m).tolist() for m in masks] == [[1, 2], [0], [3]]


def test_a_split_by_a_column_leaves_out_who_has_no_label(tmp_path: Path) -> None:
    columns = {"part": ["train", "test", "", "val", "train"], "label": ["a", "b", "a", "a", ""]}
    masks = split(tmp_path, columns, "part")
    assert [np.flatnonzero(m).tolist() for m in masks] == [[0], [3], [1]]


@pytest.mark.parametrize(("columns", "how", "said"), [
    ({"part": ["train", "dev"]}, "part", r"row 2: column 'part' is 'dev'; a split is train, val"),
    ({"part": ["test", "test"]}, "part", "leaves no labelled node of .* for training"),
    ({}, "part", "no column 'part' that says which split a node is in"),
    ({}, [0.8, 0.1, 0.1], "it must be the name of a column, or an object with ratios"),
    ({}, {"ratios": [0.8, 0.3, 0.1]}, r"'ratios' is .* three numbers from 0 to 1, for train"),
    ({}, {"ratios": [0.8, 0.1, 0.1], "seed": -1}, "'seed' is -1; it must be a whole number"),
    ({"when": ["2021-01-01", "May"]}, {"ratios": [1, 0, 0], "time": "when"},
     r"row 2: column 'when' is 'May'; a date is written"),
    ({"train_mask": [True, True]}, {"ratios": [1, 0, 0]}, "but there is train_mask already"),
])
def test_a_split_that_is_wrong_is_named(
        tmp_path: Path, columns: dict, how: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        split(tmp_path, columns, how)
