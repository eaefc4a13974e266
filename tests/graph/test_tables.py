"""What a user gets from tables with ids of their own, and what is said of rows that are wrong."""

from __future__ import annotations

import csv
import gzip
import json
import uuid
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from dgl_heta.errors import InputError
from dgl_heta.graph.node_ids import NodeIds
from dgl_heta.graph.readers import read_edge_files, whole_numbers
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import Task
from dgl_heta.store import Store, write_store
from tests.support.graphs import academic
from tests.support.tables import described, pairs, relation, table

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

PAPERS = {"doi": ["p/3", "p/1", "é, \"q\"", "p/10"], "topic": ["ml", None, "db", "ml"],
          "train_mask": [True, False, False, True], "val_mask": [False, False, True, False]}
WRITES = Relation("author", "writes", "paper")
CITES = Relation("paper", "cites", "paper")


def make(directory: Path, nodes: dict | None = None, edges: list | None = None,
         task: dict | None = None) -> Path:
    """Papers in Parquet, authors that edges name, edges in CSV and Parquet."""
    directory.mkdir(exist_ok=True)
    pq.write_table(pa.table(PAPERS), directory / "papers.parquet")
    with gzip.open(directory / "writes-0.csv.gz", "wt", encoding="utf-8", newline="") as file:
        file.write('weight,src,dst\r\n1,Zoë,p/10\r\n2,"Ann, B.",p/3\r\n')
    pq.write_table(pa.table({"who": ["Zoë", "10"], "what": ["é, \"q\"", "p/1"]}),
                   directory / "writes-1.parquet")
    with pa.OSFile(str(directory / "cites.arrow"), "wb") as sink:
        cites = pa.table({"src": pa.array(["p/1", "p/3"]).dictionary_encode(), "dst": ["p/3"] * 2})
        with pa.ipc.new_file(sink, cites.schema) as writer:
            writer.write_table(cites)
    metadata = {
        "name": "tables",
        "nodes": nodes or {"author": {}, "paper": {"table": "papers.parquet", "id": "doi"}},
        "edges": edges or [
            {"src": "author", "etype": "writes", "dst": "paper",
             "files": ["writes-0.csv.gz", "writes-1.parquet"]},
            {"src": "paper", "etype": "cites", "dst": "paper", "files": ["cites.arrow"]}],
        "task": task or {"target": "paper", "label": "topic"}}
    (directory / "metadata.json").write_text(json.dumps(metadata))
    return directory


def test_ids_labels_and_masks_of_tables_are_those_that_are_written(tmp_path: Path) -> None:
    source = read_edge_files(make(tmp_path))
    assert source.node_counts == {"author": 3, "paper": 4}
    assert source.node_ids["author"].names(0, 3) == ["10", "Ann, B.", "Zoë"]  # sorted
    assert source.node_ids["paper"].names(0, 4) == PAPERS["doi"]  # as the rows are
    assert pairs(source, WRITES) == [("Zoë", "p/10"), ("Ann, B.", "p/3"), ("Zoë", 'é, "q"'),
                                     ("10", "p/1")]
    assert pairs(source, CITES) == [("p/1", "p/3"), ("p/3", "p/3")]
    arrays = source.node_arrays["paper"]
    assert arrays["topic"].tolist() == [1, -1, 0, 1]
    assert arrays["train_mask"].tolist() == PAPERS["train_mask"]
    assert source.task == Task("paper", 2, "topic")
    assert source.info["classes"] == ["db", "ml"]
    assert list(source.edges) == [WRITES, CITES]


def test_a_store_keeps_ids_and_compares_them(tmp_path: Path) -> None:
    source = read_edge_files(make(tmp_path / "in"))
    write_store(source, tmp_path / "store")
    write_store(Store(tmp_path / "store").source(), tmp_path / "again")
    for name in ("store", "again"):
        store = Store(tmp_path / name)
        store.verify()
        for ntype, ids in source.node_ids.items():
            assert store.ids(ntype).names(1, len(ids)) == ids.names(1, len(ids))
    file = next((tmp_path / "store").rglob("ids-text.npy"))
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with pytest.raises(InputError, match=r"ids-text\.npy was edited or damaged"):
        Store(tmp_path / "store").verify()
    write_store(academic(), tmp_path / "plain")
    assert Store(tmp_path / "plain").ids("paper") is None


def test_ids_in_a_store_that_was_signed_again_cannot_lead_out_of_their_text(tmp_path: Path) -> None:
    write_store(read_edge_files(make(tmp_path / "in")), tmp_path / "store")
    store = Store(tmp_path / "store")
    entry = store.manifest.ids["author"].offsets
    np.save(tmp_path / "store" / entry.file, np.array([0, 2, 99, 14]))
    ids = Store(tmp_path / "store").ids("author")
    assert isinstance(ids, NodeIds)
    with pytest.raises(InputError, match="lead out of their text"):
        ids.names(0, 2)


@pytest.mark.parametrize(("columns", "said"), [
    ({"id": ["a", "b", "a"]}, r"n\.parquet, row 3: column 'id' is 'a' as in .*n\.parquet, row 1"),
    ({"id": ["a", None]}, r"n\.parquet, row 2: column 'id' is empty"),
    ({"id": ["", "a"]}, r"n\.parquet, row 1: column 'id' is empty"),
    ({"id": [1.0, None]}, r"column 'id' of .*n\.parquet holds double values; .* where one is miss"),
    ({"ID": ["a"]}, r"has no column 'id' of ids; say which it is by \"id\"; its columns: ID"),
    ({"id": []}, r"column 'id' of .*holds null values|n\.parquet has no rows"),
])
def test_a_table_of_nodes_that_is_wrong_is_named_with_row_and_value(
        tmp_path: Path, columns: dict, said: str) -> None:
    make(tmp_path, {"author": {}, "paper": table(tmp_path, "n.parquet", **columns)})
    with pytest.raises(InputError, match=said) as caught:
        read_edge_files(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "said"), [
    ("src,dst\nann,p/1\nbob,p/9\n", r"e\.csv, row 2: column 'dst' is 'p/9', which is in no row of "
                                    r".*papers\.parquet \(node type 'paper'\)"),
    ("src,dst\nann,p/1\n,p/1\n", r"e\.csv, row 2: column 'src' is empty"),
    ("src,dst\nNaN,p/1\n", r"e\.csv, row 1: column 'src' is 'NaN', which is no id"),
    ("src,dst\nann,p/1 \n", r"row 1: column 'dst' is 'p/1 '"),
    ("src,dst\nann\n", r"e\.csv: CSV parse error: Row #2: Expected 2 columns, got 1"),
    ('src,dst\n"ann,p/1\nbob,p/3\n', "odd number of double quotes"),
    ("ann,p/1\nbob,p/3\n", r"first line names columns 'ann', 'p/1'; edges are in columns src and"),
    ("src,src\nann,p/1\n", "column 'src' is there 2 times"),
    ("", r"e\.csv is empty; its first line must name its columns"),
    ("src,dst\n", "no edge names a node of type 'author'"),
])
def test_a_csv_of_edges_that_is_wrong_is_named_with_row_and_value(
        tmp_path: Path, text: str, said: str) -> None:
    make(tmp_path, edges=[{"src": "author", "etype": "writes", "dst": "paper", "files": ["e.csv"]}])
    (tmp_path / "e.csv").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=said):
        read_edge_files(tmp_path)


@pytest.mark.parametrize(("nodes", "edge", "said"), [
    ({"count": 2}, {"files": ["n.csv"]}, r"row 2: column 'src' is '2', but node type 'author' has a"
                                         r" 'count', so its ids are whole numbers from 0 to 1"),
    ({"count": 3}, {"files": ["n.csv"], "columns": ["src"]}, "'columns' is .* must be two names"),
    ({"count": 3, "table": "papers.parquet"}, {"files": ["n.csv"]}, "both 'count' and 'table'"),
    ({}, {"files": ["n.npy"]}, r"such edges are tables: \.csv, \.csv\.gz, \.tsv"),
    ({"arrays": {"feat": "f.npy"}}, {"files": ["n.csv"]}, "has arrays, but its nodes are those"),
    ({"id": "x"}, {"files": ["n.csv"]}, "'id' is of a 'table', which is not there"),
    ({"table": "nodes.txt"}, {"files": ["n.csv"]}, r"names .*nodes\.txt, which is not a file"),
])
def test_a_description_that_contradicts_itself_is_refused(
        tmp_path: Path, nodes: dict, edge: dict, said: str) -> None:
    make(tmp_path, {"author": nodes, "paper": {"table": "papers.parquet", "id": "doi"}},
         [{"src": "author", "etype": "writes", "dst": "paper", **edge}])
    (tmp_path / "n.csv").write_text("src,dst\n0,p/1\n2,p/3\n")
    (tmp_path / "n.npy").touch()
    with pytest.raises(InputError, match=said):
        read_edge_files(tmp_path)


def test_numbered_and_named_nodes_may_be_mixed_and_columns_chosen(tmp_path: Path) -> None:
    make(tmp_path, {"author": {"count": 3}, "paper": {"table": "papers.parquet", "id": "doi"}},
         [{"src": "author", "etype": "writes", "dst": "paper", "files": ["n.csv"],
           "columns": ["person", "work"]}])
    (tmp_path / "n.csv").write_text("work,person\np/1,0\np/10,2\n")
    src, dst = next(read_edge_files(tmp_path).edges[WRITES].chunks(10))
    assert (src.tolist(), dst.tolist()) == ([0, 2], [1, 3])


@pytest.mark.parametrize(("values", "task", "labels", "names"), [
    ([10, 2, None, 10], {}, [1, 0, -1, 1], ["2", "10"]),
    ([1.0, float("nan"), 0.0, 1.0], {}, [1, -1, 0, 1], ["0", "1"]),
    ([-1, 3, 0, 3], {"num_classes": 5}, [-1, 3, 0, 3], None),
    ([0.5, 1.5, 2.0, -3.0], {"kind": "regression"}, [0.5, 1.5, 2.0, -3.0], None),
])
def test_labels_are_names_of_classes_or_numbers(
        tmp_path: Path, values: list, task: dict, labels: list, names: list | None) -> None:
    make(tmp_path, task={"target": "paper", "label": "topic", **task})
    pq.write_table(pa.table({**PAPERS, "topic": values, "train_mask": [False] * 3 + [True]}),
                   tmp_path / "papers.parquet")
    source = read_edge_files(tmp_path)
    assert source.node_arrays["paper"]["topic"].tolist() == labels
    assert source.info.get("classes") == names


@pytest.mark.parametrize(("column", "values", "said"), [
    ("topic", [0.5, 1.0, 2.0, 3.0], r"row 1: column 'topic' is 0\.5; classes are text or whole"),
    ("train_mask", ["yes", "no", "no", "no"], r"row 1: column 'train_mask' is 'yes'; a mask is"),
    ("topic", [None] * 4, "has 0 different labels"),
])
def test_labels_and_masks_that_are_wrong_are_named(
        tmp_path: Path, column: str, values: list, said: str) -> None:
    make(tmp_path)
    kind = pa.string() if values[0] is None else None
    pq.write_table(pa.table({**PAPERS, column: pa.array(values, kind)}),
                   tmp_path / "papers.parquet")
    with pytest.raises(InputError, match=said):
        read_edge_files(tmp_path)


NUMBERED = [Decimal(n) for n in (7, 0, 12)]


@pytest.mark.parametrize(("ids", "others", "names"), [
    (NUMBERED, [7, 0, 12], ["7", "0", "12"]),
    (pa.array(NUMBERED, pa.decimal128(38, 18)), ["7", "0", "12"], ["7", "0", "12"]),
    (pa.array(NUMBERED, pa.decimal256(76, 2)), NUMBERED, ["7", "0", "12"]),
    (pa.array([uuid.UUID(int=n).bytes for n in (3, 1, 2)], pa.binary(16)),
     [uuid.UUID(int=n).bytes for n in (3, 1, 2)], [str(uuid.UUID(int=n)) for n in (3, 1, 2)]),
    (pa.array([b"\xff\0", b"a", b"\x01"]), pa.array([b"\xff\0", b"a", b"\x01"], pa.large_binary()),
     ["ff00", "61", "01"]),
    (pa.array(["x", "long enough for a view", "é"], pa.string_view()),
     pa.array(["x", "long enough for a view", "é"]).dictionary_encode(),
     ["x", "long enough for a view", "é"]),
    (pa.array([2**64 - 1, 0, 1], pa.uint64()), [str(2**64 - 1), "0", "1"],
     [str(2**64 - 1), "0", "1"]),
])
@pytest.mark.parametrize("named", [True, False])
def test_ids_of_other_types_are_compared_by_their_values(
        tmp_path: Path, ids: object, others: object, names: list[str], named: bool) -> None:
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), pa.table({"id": ids}).schema) as writer:
        writer.write_table(pa.table({"id": ids}))
    table(tmp_path, "e.parquet", src=others, dst=["z"] * 3)
    nodes = {"a": {"table": "a.arrow"} if named else {}, "b": {}}
    source = described(tmp_path, nodes, [relation()])
    expected = names if named else sorted(names)
    assert source.node_ids["a"].names(0, 3) == expected
    assert [src for src, _ in pairs(source, Relation("a", "to", "b"))] == names


@pytest.mark.parametrize(("nodes", "edges", "said"), [
    ([b"x"], ["x"], r"ids of nodes of type 'a' are bytes in column 'id' of .*a\.parquet, but text "
                    r"or numbers in column 'src' of .*e\.parquet; write them alike"),
    (["x"], [b"x"], r"are bytes in column 'src' of .*e\.parquet, but text"),
    ([1], [1.0], "column 'src' of .* holds double values; ids must be text, whole numbers or"),
    ([Decimal("1.5")], ["x"], r"a\.parquet, row 1: column 'id' is '1\.5'; numbers that are ids"),
    ([b""], [b"x"], "row 1: column 'id' is empty"),
    ([[1]], ["x"], "column 'id' of .* holds list"),
])
def test_ids_of_mixed_kinds_are_refused(
        tmp_path: Path, nodes: list, edges: list, said: str) -> None:
    table(tmp_path, "a.parquet", id=nodes)
    table(tmp_path, "e.parquet", src=edges, dst=["z"])
    with pytest.raises(InputError, match=said):
        described(tmp_path, {"a": {"table": "a.parquet"}, "b": {}}, [relation()])


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_what_the_first_line_has_most_of(tmp_path: Path, delimiter: str) -> None:
    rows = [["src", "dst", "size, kg"], ["x; y", "z", "1"], ["a|b", '"q"', "2"]]
    with (tmp_path / "e.csv").open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    source = described(tmp_path, {"a": {}, "b": {}}, [relation(files=["e.csv"])])
    assert pairs(source, Relation("a", "to", "b")) == [("x; y", "z"), ("a|b", '"q"')]


def test_the_delimiter_may_be_said(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("src,dst,a|list|of|things\nx,y,z\n")
    with pytest.raises(InputError, match="first line names columns 'src,dst,a', 'list'"):
        described(tmp_path, {"a": {}, "b": {}}, [relation(files=["e.csv"])])
    source = described(tmp_path, {"a": {}, "b": {}}, [relation(files=["e.csv"], delimiter=",")])
    assert pairs(source, Relation("a", "to", "b")) == [("x", "y")]
    for wrong in ("", ", ", '"', 5):
        with pytest.raises(InputError, match=r"edges\[0\].*'delimiter' is .*one character"):
            described(tmp_path, {"a": {}, "b": {}}, [relation(files=["e.csv"], delimiter=wrong)])


@pytest.mark.parametrize(("name", "data", "said"), [
    ("e.csv", "src,dst\nx,y\n".encode("utf-16"), r"e\.csv is UTF-16 text, or none; save it as"),
    ("e.csv", "src,dst\nx,y\n".encode("utf-16-le"), r"e\.csv is UTF-16 text"),
    ("e.csv", "src,dst,größe\nx,y,1\n".encode("latin-1"), "the first line of .* is not UTF-8 text"),
    ("e.csv", "src,dst\nx,y\né,y\n".encode("latin-1"), r"Row #3: .*; save it as UTF-8"),
    ("e.tsv", b'src\tdst\n"x\ty\nz\t"w\n', r"e\.tsv, line 2, has an odd number of double quotes"),
    ("e.arrow", b"ARROW1", r"cannot read .*e\.arrow: "),
    ("e.feather", b"", r"cannot read .*e\.feather: "),
])
def test_files_that_are_no_tables_are_named(
        tmp_path: Path, name: str, data: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=said):
        described(tmp_path, {"a": {}, "b": {}}, [relation(files=[name])])


@pytest.mark.parametrize("block", [2, 3, 7, 1 << 22])
def test_a_value_that_goes_on_after_its_quotes_is_named(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """Of two such values a parser makes one, and the rows between are gone; lines in quotes stay.
    """
    monkeypatch.setattr(whole_numbers, "_BLOCK", block)
    right = 'src,dst,title\r\n"x, 1",y,"two\nlines ""quoted"""\r\n"z",y,5" or 6"\nz,y,"6"""'
    edges = [relation(files=["e.csv"])]
    (tmp_path / "e.csv").write_bytes(right.encode())
    source = described(tmp_path, {"a": {}, "b": {}}, edges)
    assert pairs(source, Relation("a", "to", "b")) == [("x, 1", "y"), ("z", "y"), ("z", "y")]
    (tmp_path / "e.csv").write_bytes(f'{right}\nz,y,"Low\nz,y,other\nz,y,12" vinyl\n'.encode())
    with pytest.raises(InputError, match=r"e\.csv, line 8: a value begins with a double quote in "
                                         "line 6, ends with one here, and goes on; write a quote"):
        described(tmp_path, {"a": {}, "b": {}}, edges)
