"""Columns of a table become features and splits, and what is said of values that cannot."""

from __future__ import annotations

import datetime
import json
import zlib
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from dgl_heta.errors import InputError
from dgl_heta.graph.changes import columns_text, features_text, labels_text
from dgl_heta.graph.readers import read_edge_files
from dgl_heta.graph.readers.table_features import table_features
from dgl_heta.graph.readers.table_reader import ColumnTable
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
    (["", "nan"], "number", r"column 'c' of .*papers\.csv has no number in any row"),
    (["1,5", "2"], "number", r"row 1: column 'c' is '1,5'; .*a decimal comma is said by \"decimal"),
    (["1", "2"], "number:mean", "as number, number:indicator, vector"),
    (["1", "1e999"], "number", r"row 2: column 'c' is '1e999'; it must be a finite number"),
    (["1", "2"], "numbers", "column 'c' of .* is to be 'numbers'; columns become features as"),
    (["1", "2"], "text:0", "column 'c' of .* is to be 'text:0'"),
    (["", ""], "category", "column 'c' of .* has 0 categories; there must be between 1 and 1,024"),
])
def test_values_that_cannot_be_features_are_named(
        tmp_path: Path, values: list, kind: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        make(tmp_path, {"c": values}, {"c": kind}, ending="csv")


@pytest.mark.parametrize("as_text", [False, True])
def test_times_become_numbers_and_hands_of_clocks(tmp_path: Path, as_text: bool) -> None:
    times = [datetime.datetime(2024, 1, 1, 6), datetime.datetime(2024, 7, 2, 18), None]
    values = [None if t is None else t.isoformat() for t in times] if as_text else times
    feat = make(tmp_path, {"when": values}, {"when": "date"}).node_arrays["paper"]["feat"]
    np.testing.assert_allclose(feat[:, 0], [-1, 1, 0], atol=1e-6)
    assert feat.shape == (3, 7)
    np.testing.assert_allclose(feat[:2, 5:], [[1, 0], [-1, 0]], atol=1e-6)  # of the day
    week = 2 * np.pi * np.array([0.25, 1.75]) / 7  # a Monday, a Tuesday
    np.testing.assert_allclose(feat[:2, 3:5], np.stack([np.sin(week), np.cos(week)], 1), atol=1e-5)
    assert not feat[2].any()
    days = make(tmp_path, {"when": [datetime.date(2024, 1, 1), datetime.date(2024, 7, 1)]},
                {"when": "date:parts"})
    assert days.node_arrays["paper"]["feat"].shape == (2, 4)
    assert days.info["columns"]["paper"][0] == {
        "column": "when", "kind": "date", "missing": 0, "parts": ["year", "week"]}


def test_features_of_a_table_in_pieces_are_those_of_the_whole(tmp_path: Path) -> None:
    count = 2**17 + 1000
    times = datetime.datetime(2024, 1, 1)
    numbers = np.random.default_rng(0).standard_normal(count) * 3 + 1e6
    pq.write_table(pa.table({"n": numbers, "c": ["x"] * (count - 1) + ["y"]}),
                   tmp_path / "t.parquet")
    table = ColumnTable(tmp_path / "t.parquet")
    feat, (number, category) = table_features(table, {"n": "number", "c": "category"})
    assert (number["mean"], number["deviation"]) == (
        pytest.approx(numbers.mean(), rel=1e-14), pytest.approx(numbers.std(), rel=1e-9))
    np.testing.assert_allclose(feat[:, 0], (numbers - numbers.mean()) / numbers.std(), atol=1e-5)
    assert category["values"] == ["x", "y"]
    rows = np.arange(count) < 70_000
    feat, (number, category) = table_features(table, {"n": "number", "c": "category"}, rows,
                                              tmp_path / "feat.npy")
    assert number["mean"] == pytest.approx(numbers[:70_000].mean(), rel=1e-14)
    assert category["values"] == ["x"]
    assert feat[-1, 1] == 0  # a category that was not seen
    late = pa.table({"n": numbers, "late": [None] * (count - 1) + [1.0],
                     "c": [None] * (count - 1) + ["y"], "when": [None] * (count - 1) + [times]})
    pq.write_table(late, tmp_path / "late.parquet")
    part, records = table_features(ColumnTable(tmp_path / "late.parquet"), {
        "late": "number:indicator", "c": "category", "n": "number", "when": "date"}, rows)
    assert [record["column"] for record in records] == ["n"]
    assert np.array_equal(part[:, 0], feat[:, 0])
    assert np.array_equal(np.load(tmp_path / "feat.npy"), feat)


def test_numbers_that_are_missing_have_the_mean_and_may_be_marked(tmp_path: Path) -> None:
    columns = {"a": [1.0, None, 3.0, float("nan")], "b": pa.array([None, 2, 4, 6], pa.int8())}
    source = make(tmp_path, columns, {"a": "number:indicator", "b": "number"})
    np.testing.assert_allclose(source.node_arrays["paper"]["feat"], [
        [-1, 0, 0], [0, 1, -(1.5 ** 0.5)], [1, 0, 0], [0, 1, 1.5 ** 0.5]], rtol=1e-6)
    assert source.info["columns"]["paper"] == [
        {"column": "a", "kind": "number", "mean": 2.0, "deviation": 1.0, "missing": 2,
         "indicator": True},
        {"column": "b", "kind": "number", "mean": 4.0, "missing": 1,
         "deviation": pytest.approx((8 / 3) ** 0.5)}]
    assert columns_text(source) == [
        f"features of paper: {count} of 4 rows lack a number in '{name}', the mean stands in its "
        "place" for name, count in (("a", 2), ("b", 1))]


@pytest.mark.parametrize("words", [
    ["1,5", "", "-2,5"], ["1,5", "NA", "-2,5"], ["+1,5", r"\N", "-2,5"]])
def test_numbers_in_text_may_have_a_decimal_comma_and_words_where_there_is_none(
        tmp_path: Path, words: list) -> None:
    make(tmp_path, {"c": ["0"] * 3})
    (tmp_path / "papers.csv").write_text("id;label;train_mask;c\n" + "".join(
        f"p{i};a;1;{word}\n" for i, word in enumerate(words)))
    metadata = json.loads((tmp_path / "metadata.json").read_text())
    metadata["nodes"]["paper"] = {"table": "papers.csv", "decimal": ",", "features": {
        "c": "vector"}}
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    feat = read_edge_files(tmp_path).node_arrays["paper"]["feat"]
    assert feat.ravel().tolist() == [1.5, -0.5, -2.5]


@pytest.mark.parametrize("kind", [
    pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.float16(), 2),
    pa.list_(pa.int8()), pa.list_(pa.decimal128(5, 1)), pa.fixed_shape_tensor(pa.float32(), [2])])
def test_a_list_of_numbers_in_each_row_becomes_as_many_features(tmp_path: Path, kind: object
                                                                ) -> None:
    values = [[1, 2], [3, 6], [5, 4]]
    if kind == pa.list_(pa.float16(), 2):
        numbers: object = pa.array(np.ravel(values).astype(np.float16))
        column = pa.FixedSizeListArray.from_arrays(numbers, 2)
    else:
        column = pa.array(values, getattr(kind, "storage_type", kind)).cast(kind)
    source = make(tmp_path, {"v": column, "same": column}, {"v": "vector", "same": "number"})
    feat = source.node_arrays["paper"]["feat"]
    assert feat[:, :2].tolist() == values
    np.testing.assert_allclose(feat[:, 2:], (np.array(values) - [3, 4]) / (8 / 3) ** 0.5, rtol=1e-6)
    assert source.info["columns"]["paper"] == [
        {"column": "v", "kind": "vector", "width": 2},
        {"column": "same", "kind": "number", "mean": [3.0, 4.0], "width": 2,
         "deviation": pytest.approx([(8 / 3) ** 0.5] * 2)}]


def test_a_list_that_is_missing_has_the_means(tmp_path: Path) -> None:
    source = make(tmp_path, {"v": [[1.0, 2.0], None, [3.0, None]]}, {"v": "vector:indicator"})
    assert source.node_arrays["paper"]["feat"].tolist() == [[1, 2, 0], [2, 2, 1], [3, 2, 1]]
    assert source.info["columns"]["paper"] == [
        {"column": "v", "kind": "vector", "mean": [2.0, 2.0], "width": 2, "missing": 2,
         "indicator": True}]


@pytest.mark.parametrize(("values", "kind", "said"), [
    ([None, [1.0], [1.0, 2.0]], "vector",
     r"row 3: column 'v' has a list of 2, but one of 1 in .*row 2; all rows must have as many"),
    ([["a"], ["b"]], "number", "each row must have a list of numbers, as many as the others"),
    ([[], []], "number", "as many as the others"),
    ([[1.0], [float("inf")]], "vector", r"papers\.parquet, row 2: column 'v' has an infinite"),
    ([[1e300], [0.0]], "vector", "has numbers too large for features, which are float32"),
    ([1e300, -1e300], "number", "has numbers too large"),
    ([[1.0], [2.0]], "category", "holds list<.*; categories and texts are text, numbers or truth"),
    ([datetime.date(2020, 1, 1)] * 2, "category", "holds date32"),
])
def test_lists_and_numbers_that_cannot_be_features_are_named(
        tmp_path: Path, values: list, kind: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        make(tmp_path, {"v": values}, {"v": kind})


@pytest.mark.parametrize(("values", "names"), [
    (pa.array([0.0, 10.0, None, 2.5, float("nan")]), ["0", "10", "2.5"]),
    (pa.array([0.1, 1, 0.1, 2, 3], pa.float32()), ["0.1", "1", "2", "3"]),
    (pa.array([True, None, False, True, True]), ["false", "true"]),
    (pa.array([Decimal("1.50"), Decimal("2.00"), None, None, None]), ["1.50", "2"]),
    (pa.array([b"\xff\0", b"a", b"a", b"a", b"a"]), ["61", "ff00"]),
])
def test_categories_may_be_numbers_and_bytes(tmp_path: Path, values: object, names: list) -> None:
    source = make(tmp_path, {"c": values}, {"c": "category"})
    assert source.info["columns"]["paper"][0]["values"] == names
    assert source.node_arrays["paper"]["feat"].sum() == 5 - values.null_count - sum(
        value != value for value in values.to_pylist())


def test_nodes_without_a_number_to_predict_are_left_out_of_a_split(tmp_path: Path) -> None:
    columns = {"label": [1.0, None, 2.0, float("nan"), 3.0],
               "part": ["train", "train", "val", "test", "test"]}
    source = make(tmp_path, columns, task={"split": "part", "kind": "regression"})
    masks = [np.flatnonzero(source.node_arrays["paper"][name]).tolist() for name in MASKS]
    assert masks == [[0], [2], [4]]
    write_store(source, tmp_path / "store")
    store = Store(tmp_path / "store")
    store.verify()
    np.testing.assert_array_equal(store.array("paper", "label"), [1, np.nan, 2, np.nan, 3])


def test_labels_may_be_lists_of_numbers(tmp_path: Path) -> None:
    source = make(tmp_path, {"label": [[0, 1], [1, 0], None], "part": ["train", "val", "test"]},
                  task={"kind": "multilabel", "split": "part"})
    assert source.task is not None
    assert source.task.num_classes == 2
    np.testing.assert_array_equal(source.node_arrays["paper"]["label"],
                                  [[0, 1], [1, 0], [np.nan, np.nan]])
    assert [int(source.node_arrays["paper"][name].sum()) for name in MASKS] == [1, 1, 0]


@pytest.mark.parametrize(("labels", "task", "names", "classes"), [
    (["-1.0", "0.0", "1.0", "", "2.0"], {}, ["0", "1", "2"], [-1, 0, 1, -1, 2]),  # as pandas does
    (["1.0", "1.5", "2.0", "", "1.0"], {}, ["1.0", "1.5", "2.0"], [0, 1, 2, -1, 0]),
    (["7", "2", f"{10**15}", f"{10**12}", f"{2**64}"], {},
     ["2", "7", f"{10**12}", f"{10**15}", f"{2**64}"], [1, 0, 3, 2, 4]),
    (["0", "1", "2", "9", "1"], {"unlabelled": 9}, ["0", "1", "2"], [0, 1, 2, -1, 1]),
])
def test_labels_that_are_numbers_are_classes_in_their_order(
        tmp_path: Path, labels: list, task: dict, names: list, classes: list) -> None:
    source = make(tmp_path, {"label": labels, "part": ["train" if c >= 0 else "" for c in classes]},
                  task={"split": "part", **task}, ending="csv")
    assert source.info["classes"] == names
    assert source.node_arrays["paper"]["label"].tolist() == classes


def test_a_class_that_may_mean_that_there_is_none_is_said(tmp_path: Path) -> None:
    """NA may be a country's code."""
    source = make(tmp_path, {"label": ["DE", "NA", "FR", "DE", ""], "part": ["train"] * 5},
                  task={"split": "part"}, ending="csv")
    assert source.info["classes"] == ["DE", "FR", "NA"]
    assert source.task is not None
    assert "'NA' is a class: leave cells empty where there is none" in labels_text(
        source, source.task)


def test_a_column_of_features_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no column 'yaer' for features; .*did you mean 'year'"):
        make(tmp_path, {"year": [1, 2]}, {"yaer": "number"})


def test_a_label_among_the_features_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="column 'kind' of 'paper' is the label, and is to be "
                                         "a feature, too, which would give the answer away"):
        make(tmp_path, {"kind": ["a", "b"]}, {"kind": "category"}, {"label": "kind"})


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


def test_the_boundaries_of_a_split_are_kept_and_said(tmp_path: Path) -> None:
    source = make(tmp_path, {"when": ["2024-03-01T10:00+01:00", "2024-03-01 9:30Z", "2024-03-01",
                                      "2024-03-02 0:00:00.5"]},
                  task={"split": {"ratios": [0.5, 0.25, 0.25], "time": "when"}})
    assert source.info["times"] == {
        "time": "when", "train": ["2024-03-01T00:00:00Z", "2024-03-01T09:00:00Z"],
        "val": ["2024-03-01T09:30:00Z"] * 2, "test": ["2024-03-02T00:00:00.5Z"] * 2}
    assert columns_text(source) == [
        "split by time ('when'): train 2024-03-01T00:00:00Z to 2024-03-01T09:00:00Z, val "
        "2024-03-01T09:30:00Z to 2024-03-01T09:30:00Z, test 2024-03-02T00:00:00.5Z to "
        "2024-03-02T00:00:00.5Z"]
    assert json.dumps(source.info)


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
     r"row 2: column 'when' is 'May'; a time is a number or written 2026-11"),
    ({"train_mask": [True, True]}, {"ratios": [1, 0, 0]}, "but there is train_mask already"),
])
def test_a_split_that_is_wrong_is_named(
        tmp_path: Path, columns: dict, how: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        split(tmp_path, columns, how)
