"""What a user gets from a partition directory, and what is said when it is broken."""

from __future__ import annotations

import json
import os
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgl_heta.errors import HetaError, InputError
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.graph.source import EdgeArrays, GraphSource
from dgl_heta.partition.directory import (
    is_partition,
    open_partition,
    store_of_config,
    write_partition,
)
from dgl_heta.partition.part_config import part_config
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.plan import Plan
from dgl_heta.store import Store, write_store
from dgl_heta.system.atomic_files import new_directory
from tests.support.graphs import academic

PARTS = (1, 2, 3, 5)


def plan_of(source: GraphSource, parts: int = 2) -> Plan:
    return make_plan(source.schema(), "paper", 2, parts)


@pytest.fixture
def partition(tmp_path) -> Path:
    source = academic()
    write_partition(source, plan_of(source), tmp_path / "part")
    return tmp_path / "part"


def edit(path: Path, change) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def tree(directory: Path) -> list[str]:
    return sorted(str(p.relative_to(directory)) for p in directory.rglob("*"))


def same_csc(store: Store, source: GraphSource) -> None:
    for relation, edges in source.edges.items():
        csc = store.relation(relation)
        order = np.argsort(edges.dst, kind="stable")
        np.testing.assert_array_equal(csc.indices, edges.src[order])


# Writing and opening


@pytest.mark.parametrize("parts", PARTS)
def test_a_graph_and_its_plan_come_back(tmp_path, parts):
    source = academic()
    plan = plan_of(source, parts)
    config = write_partition(source, plan, tmp_path / "part", edge_ids=True)
    assert config == tmp_path / "part" / "academic.json"
    assert is_partition(tmp_path / "part")
    store, back = open_partition(tmp_path / "part")
    assert back == plan
    store.verify()
    same_csc(store, source)
    assert len(store.edge_ids(Relation("paper", "cites", "paper"))) == 180
    assert sorted(os.listdir(tmp_path / "part")) == ["academic.json", "plan.json", "store"]
    assert os.listdir(tmp_path) == ["part"]


def test_a_store_is_referred_to_and_both_can_be_moved_together(tmp_path, monkeypatch):
    source = academic()
    write_store(source, tmp_path / "data" / "store")
    monkeypatch.chdir(tmp_path)
    for parts in (2, 3):
        config = write_partition(Store("data/store"), plan_of(source, parts),
                                 Path("data/parts") / str(parts))
        assert str(tmp_path) not in config.read_text()
        assert tree(Path("data/parts") / str(parts)) == ["academic.json", "plan.json"]
    shutil.move("data", "elsewhere")
    monkeypatch.chdir("/")
    for parts in (2, 3):
        store, plan = open_partition(tmp_path / "elsewhere" / "parts" / str(parts))
        assert plan.num_parts == parts
        same_csc(store, source)
    shutil.move(tmp_path / "elsewhere" / "store", tmp_path / "away")
    with pytest.raises(InputError, match="store is not a relation store"):
        open_partition(tmp_path / "elsewhere" / "parts" / "2")
    config = tmp_path / "elsewhere/parts/2/academic.json"
    assert store_of_config(config).resolve() == tmp_path / "elsewhere/store"
    config.write_text('{"part-0": {}}')  # as DistDGL's own
    assert store_of_config(config) is None
    assert store_of_config(tmp_path / "none.json") is None


def test_a_partition_reached_through_a_link_finds_its_store(tmp_path):
    source = academic()
    write_store(source, tmp_path / "disk" / "store")
    (tmp_path / "link").symlink_to("disk/deep/er")
    (tmp_path / "disk" / "deep" / "er").mkdir(parents=True)
    write_partition(Store(tmp_path / "disk" / "store"), plan_of(source), tmp_path / "link" / "p")
    same_csc(open_partition(tmp_path / "link" / "p")[0], source)
    same_csc(open_partition(tmp_path / "disk" / "deep" / "er" / "p")[0], source)


@pytest.mark.parametrize("name", ["../x", "a/b", "/abs", "plan", "PLAN", "store", "", "日本",
                                  "x" * 300, "..", "a\0b"])
def test_any_graph_name_stays_inside_the_directory(tmp_path, name):
    source = academic()
    source.name = name
    config = write_partition(source, plan_of(source), tmp_path / "part")
    assert config.parent == tmp_path / "part"
    assert json.loads(config.read_text())["graph_name"] == name
    assert len(os.listdir(tmp_path / "part")) == 3
    assert os.listdir(tmp_path) == ["part"]
    open_partition(tmp_path / "part")


def test_a_name_with_a_colon_is_refused_since_distdgl_cannot_hold_it(tmp_path):
    relation = Relation("paper", "rdf:type", "paper")
    source = GraphSource("g", {"paper": 2}, {
        relation: EdgeArrays(np.array([0]), np.array([1]))})
    with pytest.raises(InputError, match="'rdf:type' has a colon"):
        write_partition(source, plan_of(source), tmp_path / "part")
    assert os.listdir(tmp_path) == []


def test_a_plan_for_another_graph_is_refused(tmp_path):
    source, other = academic(), academic(papers=61)
    write_store(source, tmp_path / "store")
    for given_source in (source, Store(tmp_path / "store")):
        with pytest.raises(InputError, match="made for another graph"):
            write_partition(given_source, plan_of(other), tmp_path / "part")
    # The same types and relations in another order are numbered differently by DistDGL.
    turned = academic()
    turned.edges = dict(reversed(turned.edges.items()))
    with pytest.raises(InputError, match="made for another graph"):
        write_partition(source, plan_of(turned), tmp_path / "part")
    assert os.listdir(tmp_path) == ["store"]


def test_a_bad_graph_leaves_no_partition(tmp_path):
    source = academic()
    plan = plan_of(source)
    source.edges[Relation("paper", "cites", "paper")].src[7] = 60
    with pytest.raises(InputError, match="edge 7 has source id 60"):
        write_partition(source, plan, tmp_path / "new" / "part")
    source.node_arrays["paper"]["feat"][3, 2] = np.nan
    with pytest.raises(InputError, match="row 3"):
        write_partition(source, plan, tmp_path / "new" / "part")
    assert os.listdir(tmp_path) == []


def test_errors_name_the_directory_that_was_asked_for(tmp_path):
    class Broken(EdgeArrays):
        def chunks(self, size):
            raise OSError(5, "Input/output error")

    source = academic()
    relation = Relation("paper", "cites", "paper")
    source.edges[relation] = Broken(source.edges[relation].src, source.edges[relation].dst)
    with pytest.raises(HetaError) as caught:
        write_partition(source, plan_of(source), tmp_path / "part")
    assert str(caught.value) == (
        f"writing {tmp_path}/part failed: Input/output error; nothing was kept")
    assert os.listdir(tmp_path) == []


# Overwriting


def test_an_existing_partition_is_replaced_only_when_asked(partition):
    source = academic(seed=1)
    before = tree(partition)
    with pytest.raises(InputError, match="exists"):
        write_partition(source, plan_of(source, 3), partition)
    assert tree(partition) == before
    write_partition(source, plan_of(source, 3), partition, graph_name="new", overwrite=True)
    store, plan = open_partition(partition)
    assert plan.num_parts == 3
    same_csc(store, source)
    assert sorted(os.listdir(partition)) == ["new.json", "plan.json", "store"]
    assert os.listdir(partition.parent) == ["part"]


def test_the_store_that_a_new_plan_refers_to_is_not_overwritten(partition):
    source = academic()
    store, _ = open_partition(partition)
    for out in (partition, partition / "store"):
        with pytest.raises(InputError, match="would be overwritten"):
            write_partition(store, plan_of(source, 3), out, overwrite=True)
    same_csc(open_partition(partition)[0], source)
    write_partition(store, plan_of(source, 3), partition.parent / "three")
    same_csc(open_partition(partition.parent / "three")[0], source)


def test_what_is_no_partition_is_never_overwritten(tmp_path):
    source = academic()
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "plan.json").write_text('{"plan": "of a house"}')
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("site")
    write_store(source, tmp_path / "store")
    before = tree(tmp_path)
    for name in ("site", "file", "link", "store"):
        with pytest.raises(InputError, match="not written by|symbolic link"):
            write_partition(source, plan_of(source), tmp_path / name, overwrite=True)
    assert tree(tmp_path) == before


def test_dgl_parts_are_replaced_but_not_any_directory_with_json_in_it(tmp_path):
    for name, text in (("site", "{}"), ("parts", '{"graph_name": "g", "num_parts": 1, '
                                                 '"part-0": {}}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "some.json").write_text(text)
    with (pytest.raises(InputError, match="not written by"),
          new_directory(tmp_path / "site", overwrite=True, kind="*.json")):
        pass
    with new_directory(tmp_path / "parts", overwrite=True, kind="*.json") as directory:
        (directory / "new").touch()
    assert tree(tmp_path) == ["parts", "parts/new", "site", "site/some.json"]


def test_profiles_of_the_cache_go_with_their_partition_what_a_user_keeps_there_does_not(tmp_path):
    source, out = academic(), tmp_path / "parts"
    write_partition(source, plan_of(source), out)
    (out / "profiles").mkdir()
    (out / "profiles" / "visits-0a-0.safetensors").touch()
    (out / "profiles" / "notes.txt").touch()
    with pytest.raises(InputError, match="holds profiles/notes.txt, which dgl-heta did not write"):
        write_partition(source, plan_of(source), out, overwrite=True)
    (out / "profiles" / "notes.txt").unlink()
    write_partition(source, plan_of(source), out, overwrite=True)
    assert not (out / "profiles").exists()


def test_what_comes_while_a_partition_is_written_anew_stays(partition):
    class Late(EdgeArrays):
        def chunks(self, size):
            (partition / "thesis.txt").write_text("years of work")
            return super().chunks(size)

    late = academic(seed=1)
    relation, edges = next(iter(late.edges.items()))
    late.edges[relation] = Late(edges.src, edges.dst)
    with pytest.raises(InputError, match=r"holds thesis\.txt, which dgl-heta did not write there"):
        write_partition(late, plan_of(late), partition, overwrite=True)
    assert (partition / "thesis.txt").read_text() == "years of work"
    assert os.listdir(partition.parent) == ["part"]


# Damaged partitions


@pytest.mark.parametrize("change", [
    lambda c: c["node_map"]["paper"][0].__setitem__(1, 59),
    lambda c: c.update(num_parts=3), lambda c: c.pop("etypes"), lambda c: c.update(extra=1),
    lambda c: c["part-1"].update(part_graph="part1/graph.dgl"),
    lambda c: c["part-1"].update(dgl_heta_store="../other"),
    lambda c: c["part-0"].pop("dgl_heta_store"), lambda c: c["part-0"].update(dgl_heta_store=5),
    lambda c: c.update(graph_name=None), lambda c: c.clear(),
])
def test_an_edited_part_config_is_refused(partition, change):
    edit(partition / "academic.json", change)
    with pytest.raises(InputError, match=r"part_config .*academic\.json (was edited|is damaged)"):
        open_partition(partition)


@pytest.mark.parametrize("name", ["academic.json", "plan.json"])
@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"5", b"\xff", b"[" * 100_000,
                                  b'{"format": "dgl-heta-plan"}'])
def test_files_that_are_something_else_are_refused(partition, name, data):
    (partition / name).write_bytes(data)
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        open_partition(partition)


def test_an_edited_plan_is_refused(partition):
    edit(partition / "plan.json", lambda d: d["plan"].update(boundary_nodes=1))
    with pytest.raises(InputError, match=r"plan .* was edited"):
        open_partition(partition)


def test_a_plan_and_config_of_another_graph_are_refused(partition):
    other = academic(papers=61)
    plan = plan_of(other)
    plan.save(partition / "plan.json")
    with pytest.raises(InputError, match="was edited"):
        open_partition(partition)
    (partition / "academic.json").write_text(json.dumps(part_config(plan, "academic", "store")))
    with pytest.raises(InputError, match="made for another graph than the store"):
        open_partition(partition)


def test_a_missing_part_of_a_partition_is_named(partition):
    shutil.copy(partition / "academic.json", partition / "copy.json")
    with pytest.raises(InputError, match="2 part_config files"):
        open_partition(partition)
    (partition / "copy.json").unlink()
    shutil.rmtree(partition / "store")
    with pytest.raises(InputError, match="store is not a relation store"):
        open_partition(partition)
    (partition / "academic.json").unlink()
    with pytest.raises(InputError, match="0 part_config files"):
        open_partition(partition)
    (partition / "plan.json").unlink()
    assert not is_partition(partition)
    with pytest.raises(InputError, match=r"cannot read plan .*No such file"):
        open_partition(partition)
    with pytest.raises(InputError, match=r"cannot read plan .*No such file"):
        open_partition(partition.parent / "nowhere")


# DistDGL's view


@settings(max_examples=30, deadline=None)
@given(counts=st.lists(st.integers(1, 50), min_size=2, max_size=4), parts=st.integers(1, 9),
       edges=st.lists(st.integers(1, 99), min_size=4, max_size=4))
def test_every_node_and_edge_has_one_owner_and_targets_are_spread_evenly(counts, parts, edges):
    types = [f"t{i}" for i in range(len(counts))]
    relations = {Relation(t, "to", types[0]): n for t, n in zip(types, edges)}
    schema = Schema(dict(zip(types, counts)), relations)
    plan = make_plan(schema, "t0", 1, parts)
    config = part_config(plan, "g", "store")
    for ids, sizes, total in (("node_map", schema.node_counts, config["num_nodes"]),
                              ("edge_map", {":".join(r): n for r, n in relations.items()},
                               config["num_edges"])):
        ranges = config[ids]
        assert list(ranges) == list(sizes)
        for name, size in sizes.items():
            assert len(ranges[name]) == parts
            assert sum(high - low for low, high in ranges[name]) == size
        # DistDGL numbers part by part, and in a part type by type.
        flat = [pair for part in range(parts) for name in ranges for pair in [ranges[name][part]]]
        assert flat[0][0] == 0
        assert flat[-1][1] == total
        assert all(one[1] == other[0] for one, other in pairwise(flat))
    targets = [high - low for low, high in config["node_map"]["t0"]]
    assert max(targets) - min(targets) <= 1
    for part, piece in enumerate(plan.partitions):
        for ntype in types:
            low, high = config["node_map"][ntype][part]
            assert high == low or ntype in piece.node_types
        for relation in relations:
            low, high = config["edge_map"][":".join(relation)][part]
            assert high == low or relation in piece.relations


@pytest.mark.parametrize("parts", PARTS)
def test_distdgl_reads_the_partition_book_but_refuses_the_partition(tmp_path, parts):
    dgl = pytest.importorskip("dgl")
    pytest.importorskip("dgl.distributed")
    source = academic()
    config = write_partition(source, plan_of(source, parts), tmp_path / "part")
    counts = dict.fromkeys(source.node_counts, 0)
    edge_counts = dict.fromkeys(source.edges, 0)
    for part in range(parts):
        book, name, ntypes, etypes = dgl.distributed.load_partition_book(str(config), part)
        assert name == "academic"
        assert book.num_partitions() == parts
        assert list(ntypes) == list(source.node_counts)
        assert list(etypes) == [tuple(r) for r in source.edges]
        for ntype, total in source.node_counts.items():
            assert book._num_nodes(ntype) == total
            own = book.partid2nids(part, ntype)
            # The ids of a type are those of the source, ascending over the parts.
            assert own.tolist() == list(range(counts[ntype], counts[ntype] + len(own)))
            assert set(book.nid2partid(own, ntype).tolist()) <= {part}
            counts[ntype] += len(own)
        for relation in source.edges:
            assert book._num_edges(tuple(relation)) == 180
            edge_counts[relation] += len(book.partid2eids(part, tuple(relation)))
        for graphbolt in (False, True):
            with pytest.raises(AssertionError, match="does not contain graph structure"):
                dgl.distributed.load_partition(str(config), part, use_graphbolt=graphbolt)
        with pytest.raises(AssertionError, match="does not contain node features"):
            dgl.distributed.load_partition_feats(str(config), part)
    assert counts == source.node_counts
    assert set(edge_counts.values()) == {180}
