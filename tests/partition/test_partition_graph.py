"""What a DistDGL script sees that calls `dgl_heta.partition_graph` instead of DGL's."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import numpy as np
import pytest

import dgl_heta
from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.partition.arguments import forget_warnings
from dgl_heta.partition.backends.dgl_methods import to_dgl_graph
from dgl_heta.partition.directory import open_partition
from tests.support.graphs import academic

dgl = pytest.importorskip("dgl")
pytest.importorskip("dgl.distributed")
torch = pytest.importorskip("torch")


@pytest.fixture
def graph():
    """Large enough that DGL finds nodes of every type for both parts, which it needs."""
    return to_dgl_graph(academic(papers=240))


@pytest.fixture
def homogeneous():
    made = dgl.rand_graph(30, 90)
    made.ndata["feat"] = torch.rand(30, 4)
    made.ndata["label"] = torch.arange(30) % 3
    made.ndata["train_mask"] = torch.arange(30) < 20
    return made


def edges_of(store: dgl_heta.Store, relation: Relation) -> np.ndarray:
    """Edges of a store in the order of their ids: (2, edges)."""
    csc, ids = store.relation(relation), store.edge_ids(relation)
    dst = np.repeat(np.arange(len(csc.indptr) - 1), np.diff(csc.indptr))
    edges = np.empty((2, len(ids)), np.int64)
    edges[:, ids] = csc.indices, dst
    return edges


def check_store(graph, store: dgl_heta.Store) -> None:
    """All nodes, edges with their ids and node data of a DGLGraph."""
    assert store.manifest.node_counts == {t: graph.num_nodes(t) for t in graph.ntypes}
    assert [tuple(r) for r in store.schema.relations] == list(graph.canonical_etypes)
    for etype in graph.canonical_etypes:
        wanted = torch.stack(graph.edges(etype=etype, order="eid")).numpy()
        np.testing.assert_array_equal(edges_of(store, Relation(*etype)), wanted)
    for ntype in graph.ntypes:
        for name, data in graph.nodes[ntype].data.items():
            np.testing.assert_array_equal(store.array(ntype, name), data.numpy())


def test_positional_arguments_are_those_of_dgl():
    ours = inspect.signature(dgl_heta.partition_graph).parameters
    theirs = inspect.signature(dgl.distributed.partition_graph).parameters
    positional = [n for n, p in theirs.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert list(ours)[:len(positional)] == positional
    for name in positional:
        if name != "num_hops":  # whose default depends on the method
            assert ours[name].default == theirs[name].default
    assert all(p.kind is not p.POSITIONAL_OR_KEYWORD for p in list(ours.values())[len(positional):])


def test_meta_writes_the_graph_and_the_plan(graph, tmp_path):
    out = str(tmp_path / "out")
    assert dgl_heta.partition_graph(graph, "mag", 3, out, 2, "meta", target_ntype="paper") is None
    store, plan = open_partition(out)
    check_store(graph, store)
    assert (plan.num_parts, plan.hops, plan.targets, plan.method) == (3, 2, ("paper",), "meta")
    assert (store.manifest.name, store.manifest.task.target) == ("mag", "paper")
    config = json.loads((tmp_path / "out/mag.json").read_text())
    assert config["num_parts"] == 3
    theirs = tmp_path / "theirs"
    dgl.distributed.partition_graph(graph, "mag", 2, str(theirs), part_method="random")
    known = json.loads((theirs / "mag.json").read_text())
    assert set(known) <= {*config, "node_feats", "edge_feats"} | {f"part-{i}" for i in range(3)}
    for field in ("graph_name", "ntypes", "etypes", "num_nodes", "num_edges"):
        assert config[field] == known[field]


def test_plain_dgl_refuses_a_partition_by_relations(graph, tmp_path):
    dgl_heta.partition_graph(graph, "mag", 2, str(tmp_path / "out"), part_method="meta",
                             target_ntype="paper")
    with pytest.raises(Exception, match="part_graph|node_feats|relation graph path"):
        dgl.distributed.load_partition(str(tmp_path / "out/mag.json"), 0)
    book = dgl.distributed.load_partition_book(str(tmp_path / "out/mag.json"), 0)[0]
    assert book.num_partitions() == 2


def test_hops_default_to_two_or_the_longest_metapath(graph, tmp_path):
    def plan(**arguments):
        dgl_heta.partition_graph(graph, "mag", 2, str(tmp_path / "out"), part_method="meta",
                                 target_ntype="paper", overwrite=True, **arguments)
        return open_partition(tmp_path / "out")[1]

    assert plan().hops == 2
    assert plan(metapaths=[["writes"], ["cites"]]).hops == 1
    longer = plan(metapaths=[["rev-at", "writes"], [("paper", "cites", "paper")]], num_hops=3)
    assert longer.hops == 3
    assert {t.root.etype for t in longer.sub_metatrees} == {"writes", "cites"}
    with pytest.raises(InputError, match="a metapath has 2 relations, but the number of hops is 1"):
        plan(metapaths=[["rev-at", "writes"]], hops=1)


def test_several_targets(graph, tmp_path):
    dgl_heta.partition_graph(graph, "mag", 2, str(tmp_path / "out"), part_method="meta",
                             target_ntype=["paper", "author"])
    store, plan = open_partition(tmp_path / "out")
    assert plan.targets == ("paper", "author")
    check_store(graph, store)


def test_mapping_is_the_identity_per_type(graph, homogeneous, tmp_path):
    nodes, edges = dgl_heta.partition_graph(
        graph, "mag", 2, str(tmp_path / "hetero"), part_method="meta", target_ntype="paper",
        return_mapping=True)
    assert set(nodes) == set(graph.ntypes)
    assert all(torch.equal(ids, graph.nodes(t)) for t, ids in nodes.items())
    assert {e: len(ids) for e, ids in edges.items()} == {
        e: graph.num_edges(e) for e in graph.canonical_etypes}
    nodes, edges = dgl_heta.partition_graph(homogeneous, "one", 1, str(tmp_path / "homo"),
                                            part_method="meta", return_mapping=True)
    assert torch.equal(nodes, torch.arange(30))
    assert torch.equal(edges, torch.arange(90))


def test_mapping_has_the_form_of_dgl(graph, homogeneous, tmp_path):
    for name, g, target in (("hetero", graph, "paper"), ("homo", homogeneous, None)):
        ours = dgl_heta.partition_graph(
            g, "g", 2, str(tmp_path / f"{name}-meta"), return_mapping=True, part_method="meta",
            target_ntype=target, replication="full")
        theirs = dgl.distributed.partition_graph(
            g, "g", 2, str(tmp_path / name), return_mapping=True, part_method="random")
        for mine, other in zip(ours, theirs):
            assert type(mine) is type(other)
            if isinstance(mine, dict):
                assert set(mine) == set(other)
                assert all(mine[k].dtype == other[k].dtype for k in mine)


def test_a_homogeneous_graph_needs_no_target(homogeneous, tmp_path):
    dgl_heta.partition_graph(homogeneous, "one", 1, str(tmp_path / "out"), part_method="meta")
    store, plan = open_partition(tmp_path / "out")
    check_store(homogeneous, store)
    assert plan.targets == ("_N",)


@pytest.mark.parametrize("method", ["meta", "meta-shared"])
@pytest.mark.parametrize("kind", ["homogeneous", "its types named", "a relation and its reverse",
                                  "a knowledge graph"])
def test_parts_that_would_all_hold_the_whole_graph_are_named(homogeneous, tmp_path, method, kind,
                                                             caplog):
    made, target = homogeneous, None
    ends = homogeneous.edges()
    if kind == "its types named":
        made = dgl.heterograph({("paper", "cites", "paper"): ends})
    elif kind == "a knowledge graph":
        made = dgl.heterograph({("entity", name, "entity"): ends[::step]
                                for name, step in (("born/in", 1), ("knows", -1))})
        target = "entity"
    elif kind != "homogeneous":
        made = dgl.heterograph({("user", "buys", "item"): ends, ("item", "of", "user"): ends[::-1]})
        target = "item"
    forget_warnings()
    out, text = tmp_path / "out", (r'hold the whole graph.*partition\.method = "metis".*'
                                   r'partition\.replication = "full"')

    def partition(**more):
        dgl_heta.partition_graph(made, "one", 2, str(out), part_method=method, target_ntype=target,
                                 **more)

    if target:  # it can be meant: what the machines share is the target
        partition()
        assert re.search(text, caplog.text)
    else:
        with pytest.raises(InputError, match=text):
            partition()
        assert not out.exists()
    forget_warnings()
    caplog.clear()
    partition(replication="full")  # copies, asked for by name
    assert not caplog.text
    assert [p.num_edges for p in open_partition(out)[1].partitions] == [made.num_edges()] * 2


def test_a_homogeneous_graph_that_is_cut_in_pieces_is_divided(tmp_path):
    dgl_heta.partition_graph(dgl.rand_graph(100, 5000), "one", 2, str(tmp_path / "out"),
                             part_method="meta", replication="none", memory_mb=0.092)
    plan = open_partition(tmp_path / "out")[1]
    assert max(p.num_edges for p in plan.partitions) < 4000


def test_several_relations_between_nodes_of_one_type_are_divided(homogeneous, tmp_path):
    ends = homogeneous.edges()
    made = dgl.heterograph({("n", "a", "n"): ends, ("n", "b", "n"): ends[::-1]})
    dgl_heta.partition_graph(made, "two", 2, str(tmp_path / "out"), part_method="meta")
    plan = open_partition(tmp_path / "out")[1]
    assert [[r.etype for r in plan.roots(part)] for part in (0, 1)] == [["a"], ["b"]]


@pytest.mark.parametrize("method", [
    pytest.param("metis", marks=pytest.mark.needs("metis")), "random"])
def test_methods_of_dgl_give_what_dgl_gives(graph, tmp_path, method):
    arguments = (1, method, None, True, True)  # up to return_mapping
    mappings = []
    for call, name in ((dgl.distributed.partition_graph, "theirs"),
                       (dgl_heta.partition_graph, "ours")):
        dgl.seed(3)
        mappings.append(call(graph, "mag", 2, str(tmp_path / name), *arguments))
    assert ({str(p.relative_to(tmp_path / "ours")) for p in (tmp_path / "ours").rglob("*")}
            == {str(p.relative_to(tmp_path / "theirs")) for p in (tmp_path / "theirs").rglob("*")})
    for mine, other in zip(*mappings):
        assert all(torch.equal(mine[key].sort().values, other[key].sort().values) for key in other)
    for part in (0, 1):
        one, other = (dgl.distributed.load_partition(str(tmp_path / name / "mag.json"), part)
                      for name in ("ours", "theirs"))
        assert set(one[1]) == set(other[1])
        if method == "random":  # METIS draws anew in every call of a process, whatever the seed
            assert all(map(torch.equal, one[0].edges(), other[0].edges()))
            assert all(torch.equal(one[1][key], other[1][key]) for key in one[1])


@pytest.mark.needs("metis")
def test_metis_is_the_default_as_in_dgl(graph, tmp_path):
    dgl_heta.partition_graph(graph, "mag", 2, str(tmp_path / "out"))
    assert json.loads((tmp_path / "out/mag.json").read_text())["part_method"] == "metis"


@pytest.mark.parametrize(("arguments", "message"), [
    ({"target_ntype": "papr"}, "'papr' is not in the graph.*did you mean 'paper'"),
    ({"target_ntype": "paper", "part_method": "metis"}, "target_ntype goes with.*not with 'metis'"),
    ({"metapaths": [["cites"]], "part_method": "random"}, "metapaths goes with.*not with 'random'"),
    ({"target_ntype": "paper", "part_method": "metta"},
     "unknown partition backend 'metta'.*did you mean 'meta'"),
    ({"target_ntype": "paper", "out_path": "s3://bucket/mag"}, "out_path is s3://bucket/mag, a"),
    ({"target_ntype": "paper", "num_parts": 0}, "num_parts is 0; it must be a whole"),
    ({"target_ntype": "paper", "num_hops": 0}, "num_hops is 0; it must be a whole"),
    ({"target_ntype": "paper", "metapaths": [["topic"]]}, "ends at 'field', not at the target"),
    ({"target_ntype": "paper", "metapaths": [["sites"]]}, "did you mean 'cites'"),
    ({"target_ntype": "paper", "metapaths": []}, "must be a list of metapaths"),
    ({"target_ntpye": "paper", "target_ntype": "paper"},
     "takes no argument 'target_ntpye'; did you mean 'target_ntype'"),
])
def test_wrong_arguments_are_named_and_nothing_is_written(graph, tmp_path, arguments, message):
    call = {"g": graph, "graph_name": "mag", "num_parts": 2, "out_path": str(tmp_path / "out"),
            "part_method": "meta", **arguments}
    with pytest.raises(InputError, match=message):
        dgl_heta.partition_graph(**call)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../outside", "/absolute", "plan", "a name: with ünicode"])
def test_any_graph_name_stays_in_the_directory(graph, tmp_path, name):
    inside = tmp_path / "deep"
    dgl_heta.partition_graph(graph, name, 2, str(inside / "out"), part_method="meta",
                             target_ntype="paper")
    assert open_partition(inside / "out")[0].manifest.name == name
    assert [p.name for p in tmp_path.iterdir()] == ["deep"]
    assert [p.name for p in inside.iterdir()] == ["out"]
    assert not Path("/absolute.json").exists()
