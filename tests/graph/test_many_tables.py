"""Tables of several files, and files with the nodes or the edges of several types."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import GraphSource
from dgl_heta.store import Store, write_store
from tests.support.tables import described, pairs, relation, table

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.mark.parametrize("files", [
    ["parts"], ["parts/*.parquet"], ["parts/part-0*", "parts/part-1*"], ["p*s/part-[01]*.parquet"],
    ["by-day"]])
def test_directories_and_wildcards_are_tables_in_the_order_of_names(
        tmp_path: Path, files: list) -> None:
    for folder in ("parts", "by-day/day=1", "by-day/day=2", "parts/_temporary", "by-day/.old"):
        (tmp_path / folder).mkdir(parents=True)
    for number, places in enumerate((("parts/part-00.parquet", "by-day/day=1/x.parquet"),
                                     ("parts/part-10.parquet", "by-day/day=2/a.parquet"))):
        rows = pa.table({"src": [f"a{number}{i}" for i in range(3)], "dst": [f"b{number}"] * 3})
        for place in places:
            pq.write_table(rows, tmp_path / place)
    for hidden in ("parts/_SUCCESS", "parts/.part-00.parquet.crc", "parts/_temporary/x.parquet",
                   "by-day/.old/x.parquet"):
        (tmp_path / hidden).write_bytes(b"not a table")
    source = described(tmp_path, {"a": {}, "b": {}}, [relation(files=files)])
    assert pairs(source, Relation("a", "to", "b")) == [
        (f"a{number}{i}", f"b{number}") for number in (0, 1) for i in range(3)]
    table = files[0] if len(files) == 1 else "parts"
    rows = described(tmp_path, {"a": {"table": table, "id": "src"}, "b": {}},
                     [relation(files=files)]).node_ids["a"].names(0, 6)
    assert rows == [f"a{number}{i}" for number in (0, 1) for i in range(3)]
    with pytest.raises(InputError, match=r"files\[\d\] is '.*', which names .*\.parquet again"):
        described(tmp_path, {"a": {}, "b": {}}, [relation(files=[*files, "[pb]*/*"])])
    with pytest.raises(InputError, match=r"(00|x)\.parquet, row 2: column 'dst' is 'b0' as in"):
        described(tmp_path, {"a": {}, "b": {"table": table, "id": "dst"}}, [relation(files=files)])


def test_directories_named_by_a_column_and_its_value_give_the_column(tmp_path: Path) -> None:
    for number, folder in enumerate(("year=2020/kind=a%20b", "year=2021/kind=c",
                                     "year=__HIVE_DEFAULT_PARTITION__/kind=c")):
        (tmp_path / "nodes" / folder).mkdir(parents=True)
        table(tmp_path / "nodes" / folder, "part.parquet", id=[f"n{number}"], own=[number])
    for etype in ("to", "from"):
        (tmp_path / f"edges/etype={etype}/own=9").mkdir(parents=True)
        table(tmp_path / f"edges/etype={etype}/own=9", "part.parquet", src=["n0"], dst=["n1"],
              own=["its"])
        (tmp_path / f"edges/etype={etype}/last.csv").write_text("src,dst\nn1,n2\n")
        table(tmp_path / f"edges/etype={etype}", "two.parquet", head=["n2"], tail=["n0"])
    source = described(tmp_path, {"n": {"table": "nodes", "features": {
        "year": "number:indicator", "kind": "category", "own": "vector"}}},
        [relation(src="n", etype={"column": "etype"}, dst="n", files=["edges"])])
    assert source.node_arrays["n"]["feat"].tolist() == [
        [-1, 0, 1, 0, 0], [1, 0, 0, 1, 1], [0, 1, 0, 1, 2]]
    assert source.info["columns"]["n"][1]["values"] == ["a b", "c"]
    for etype in ("from", "to"):
        assert pairs(source, Relation("n", etype, "n")) == [
            ("n1", "n2"), ("n0", "n1"), ("n2", "n0")]
    with pytest.raises(InputError, match=r"no column 'x'.*; its columns: dst, etype, own, src"):
        described(tmp_path, {"n": {}}, [relation(
            src="n", etype={"column": "x"}, dst="n", files=["edges/*/*/*.parquet"])])


def test_any_number_of_files_is_read_with_few_of_them_open(tmp_path: Path) -> None:
    for number in range(200):
        table(tmp_path, f"e-{number:03}.parquet", src=[number], dst=[0])
        table(tmp_path, f"n-{number:03}.parquet", id=[f"n{number}"])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 60, limits[1]))
    try:
        source = described(tmp_path, {"a": {"count": 200}, "b": {"count": 1},
                                      "n": {"table": "n-*"}},
                           [relation(files=["e-*"])])
        ids = [int(u) for edges in source.edges.values()
               for chunk, _ in edges.chunks(1000) for u in chunk]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert ids == [*range(200)]
    assert source.node_counts["n"] == 200


@pytest.mark.parametrize(("columns", "said"), [
    ([{"id": ["x"], "v": [1]}, {"id": ["y"], "v": [2.5]}], ""),
    ([{"id": ["x"], "v": pa.nulls(1)}, {"id": ["y"], "v": [2]}], ""),
    ([{"id": ["x"], "v": [1]}, {"id": ["y"], "v": ["2"]}],
     r"column 'v' holds int64 values in .*0\.parquet and text values in .*1\.parquet"),
    ([{"id": ["x"], "v": [1]}, {"id": ["y"]}], r"1\.parquet has no column 'v' for features"),
    ([{"id": ["x"], "v": [1]}, {"id": ["x"], "v": [1]}],
     r"1\.parquet, row 1: column 'id' is 'x' as in .*0\.parquet, row 1"),
])
def test_files_of_a_table_have_the_same_columns(
        tmp_path: Path, columns: list[dict], said: str) -> None:
    for number, each in enumerate(columns):
        table(tmp_path, f"{number}.parquet", **each)
    table(tmp_path, "e.parquet", src=["x"], dst=["z"])
    nodes = {"a": {"table": "[01].parquet", "features": {"v": "vector"}}, "b": {}}
    if said:
        with pytest.raises(InputError, match=said):
            described(tmp_path, nodes, [relation()])
    else:
        feat = described(tmp_path, nodes, [relation()]).node_arrays["a"]["feat"]
        assert feat[1, 0] == columns[1]["v"][0]


TRIPLES = [("ann", "likes", "tea"), ("tea", "made by", "ann"), ("bob", "likes", "jam"),
           ("bob", "knows", "ann"), ("ann", "knows", "bob")]
KINDS = {"ann": "person", "tea": "thing", "jam": "thing", "bob": "person"}


def triples(directory: Path, header: bool = True) -> None:
    lines = ["\t".join(triple) for triple in TRIPLES]
    (directory / "kg.txt").write_text("\n".join(["head\trel\ttail"] * header + lines) + "\n")
    (directory / "nodes.tsv").write_text("name\tkind\tyear\n" + "".join(
        f"{name}\t{kind}\t{2000 + i}\n" for i, (name, kind) in enumerate(KINDS.items())))
    table(directory, "typed.parquet", **{
        "relation": [rel for _, rel, _ in TRIPLES],
        "x": [head for head, _, _ in TRIPLES], "x_type": [KINDS[head] for head, _, _ in TRIPLES],
        "y": [tail for _, _, tail in TRIPLES], "y_type": [KINDS[tail] for _, _, tail in TRIPLES]})


def all_edges(source: GraphSource) -> set[tuple[str, str, str, str, str]]:
    return {(relation.src, relation.etype, relation.dst, *pair) for relation in source.edges
            for pair in pairs(source, relation)}


IN_ONE = {"etype": {"column": "rel"}, "files": ["kg.txt"], "columns": ["head", "tail"]}


@pytest.mark.parametrize("header", [True, False])
def test_one_file_may_have_the_edges_of_all_relations(tmp_path: Path, header: bool) -> None:
    triples(tmp_path, header)
    source = described(tmp_path, {"entity": {}}, [{
        "src": "entity", "dst": "entity", **IN_ONE,
        **({} if header else {"header": ["head", "rel", "tail"]})}])
    assert [relation.etype for relation in source.edges] == ["knows", "likes", "made by"]
    assert all_edges(source) == {("entity", rel, "entity", head, tail)
                                 for head, rel, tail in TRIPLES}


@pytest.mark.parametrize(("nodes", "edge"), [
    ({"*": {"table": "nodes.tsv", "id": "name", "type": "kind"}},
     {"src": "*", "dst": "*", **IN_ONE}),
    ({"person": {"table": "nodes.tsv", "id": "name", "type": "kind",
                 "features": {"year": "vector"}},
      "*": {"table": "nodes.tsv", "id": "name", "type": "kind"}},
     {"src": "*", "dst": "*", **IN_ONE}),
    ({"*": {}}, {"src": {"column": "x_type"}, "etype": {"column": "relation"},
                 "dst": {"column": "y_type"}, "files": ["typed.parquet"], "columns": ["x", "y"]}),
])
def test_one_file_may_have_the_nodes_of_all_types(tmp_path: Path, nodes: dict, edge: dict) -> None:
    triples(tmp_path)
    source = described(tmp_path, nodes, [edge])
    assert source.node_counts == {"person": 2, "thing": 2}
    assert all_edges(source) == {(KINDS[head], rel, KINDS[tail], head, tail)
                                 for head, rel, tail in TRIPLES}
    if "person" in nodes:
        assert source.node_arrays["person"]["feat"].tolist() == [[2000], [2003]]
        assert source.node_ids["person"].names(0, 2) == ["ann", "bob"]
    write_store(source, tmp_path / "store")
    Store(tmp_path / "store").verify()


@pytest.mark.parametrize(("nodes", "edge", "said"), [
    ({"thing": {"table": "nodes.tsv", "id": "name", "type": "kind"}}, {"src": "*", "dst": "*"},
     r"kg\.txt, row 1: column 'head' is 'ann', which is in no table of nodes \(types thing\)"),
    ({"plant": {"table": "nodes.tsv", "id": "name", "type": "kind"}}, {"src": "plant", "dst": "*"},
     "no row of .* has 'plant' in column 'kind'; there are person, thing"),
    ({"*": {"table": "nodes.tsv", "id": "name"}}, {"src": "*", "dst": "*"},
     r"node type '\*' lacks type"),
    ({"person": {}}, {"src": "*", "dst": "*"}, "no edge names a node of type 'person'"),
    ({"person": {"count": 2}}, {"src": "*", "dst": "*"}, "need tables of nodes, which say"),
    ({"thing": {}}, {"src": {"column": "rel"}, "dst": "thing"},
     r"kg\.txt, row 4: column 'rel' is 'knows', which is no node type; node types: thing"),
    ({"a": {"table": "nodes.tsv", "id": "name"}, "b": {"table": "nodes.tsv", "id": "name"}},
     {"src": "*", "dst": "*"}, "'ann' is the id of a node of type 'a' and of one of type 'b'"),
    ({"person": {}}, {"src": "person", "dst": "person", "header": ["a"]},
     r"kg\.txt has 3 columns in its first line, but \"header\" is .* it must name them all"),
    ({"person": {}}, {"src": "person", "dst": "person", "etype": {"colum": "rel"}},
     "unknown key 'colum'; keys: column; did you mean 'column'"),
])
def test_a_file_of_everything_that_is_wrong_is_named(
        tmp_path: Path, nodes: dict, edge: dict, said: str) -> None:
    triples(tmp_path)
    with pytest.raises(InputError, match=said):
        described(tmp_path, nodes, [{**IN_ONE, **edge}])


def test_a_relation_comes_from_one_entry(tmp_path: Path) -> None:
    triples(tmp_path)
    with pytest.raises(InputError, match=r"edges\[1\].*'e likes e' is in an entry before, too"):
        described(tmp_path, {"e": {}}, [{"src": "e", "dst": "e", **IN_ONE, "etype": "likes"},
                                        {"src": "e", "dst": "e", **IN_ONE}])
