"""The arguments of `partition_graph`, by both doors: dgl_heta's own function, and DGL's name."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import dgl
import dgl.distributed
import pytest
import torch

import dgl_heta
from dgl_heta.distdgl.versions import homes
from dgl_heta.errors import InputError
from dgl_heta.partition import arguments
from dgl_heta.partition import dgl as partition
from dgl_heta.partition.backends.dgl_methods import to_dgl_graph
from dgl_heta.partition.directory import open_partition
from tests.support import warm
from tests.support.graphs import academic
from tests.support.partition_doors import CITES, DOORS, MASK, direct, graph
from tests.support.waiting import PATIENCE

DOCS = Path(__file__).parents[2] / "docs"
both = pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)


@pytest.fixture(autouse=True)
def off() -> Iterator[None]:
    arguments.forget_warnings()
    yield
    dgl_heta.disable()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The warnings so far."""
    return lambda: [record.getMessage() for record in caplog.records
                    if record.name == "dgl_heta"]


# --- each argument ---------------------------------------------------------------------------


@both
def test_a_relation_without_edges_is_refused_and_can_be_left_out(door, tmp_path):
    """As docs/switching.md says."""
    g = graph()
    g.remove_edges(torch.arange(g.num_edges(CITES)), etype=CITES)
    with pytest.raises(InputError, match="relation 'paper cites paper' has 0 edges.*leave an emp"):
        door(g, "academic", 2, str(tmp_path / "parts"), part_method="meta")
    whole = dgl.edge_type_subgraph(g, [e for e in g.canonical_etypes if g.num_edges(e)])
    assert whole.ntypes == g.ntypes
    assert set(whole.nodes["paper"].data) == set(g.nodes["paper"].data)
    door(whole, "academic", 2, str(tmp_path / "parts"), part_method="meta")
    assert len(open_partition(tmp_path / "parts")[0].schema.relations) == len(g.etypes) - 1


@both
@pytest.mark.parametrize(("given", "message"), [
    ({"num_parts": 2.0}, "num_parts is 2.0; it must be a whole number, 1 or more"),
    ({"num_parts": True}, "num_parts is True; it must be a whole number"),
    ({"num_parts": "two"}, "num_parts is 'two'; it must be a number, or auto"),
    ({"num_parts": "auto"}, "num_parts is auto, but part_method='meta' does not decide"),
    ({"num_hops": 0}, "num_hops is 0; it must be a whole number, 1 or more"),
    ({"num_hops": "2"}, "num_hops is '2'; it must be a whole number"),
    ({"hops": -1}, "hops is -1; it must be a whole number, 1 or more"),
    ({"part_method": None}, "part_method is None; it must be a text"),
    ({"part_method": "mteis"}, "unknown partition backend 'mteis'.*did you mean 'metis'"),
    ({"balance_ntypes": "garbage"}, "balance_ntypes is 'garbage'; .* vector of 119 whole"),
    ({"balance_ntypes": MASK}, "balance_ntypes is tensor.*; it must be a vector of 119 whole"),
    ({"balance_ntypes": {"papr": MASK}}, "'papr' is not in the graph.*did you mean 'paper'"),
    ({"balance_ntypes": {"paper": MASK[:-1]}}, r"balance_ntypes\['paper'\] is .* vector of 60"),
    ({"balance_ntypes": {"paper": MASK * 0.5}}, r"balance_ntypes\['paper'\] is .* whole numbers"),
    ({"balance_ntypes": {"paper": MASK * 2}}, r"has the values \[0, 2\]; they must be 0 … k - 1"),
    ({"balance_edges": "garbage"}, "balance_edges is 'garbage'; it must be True or False"),
    ({"balance_edges": -3}, "balance_edges is -3; it must be True or False"),
    ({"return_mapping": "no"}, "return_mapping is 'no'; it must be True or False"),
    ({"num_trainers_per_machine": -3}, "num_trainers_per_machine is -3; it must be a whole number"),
    ({"num_trainers_per_machine": 1.5}, "num_trainers_per_machine is 1.5; it must be"),
    ({"objtype": "garbage"}, "objtype is 'garbage'; it must be 'cut' or 'vol'"),
    ({"objtype": None}, "objtype is None; it must be 'cut' or 'vol'"),
    ({"graph_formats": "garbage"}, "graph_formats is 'garbage'; it must be 'coo', 'csr' or 'csc'"),
    ({"graph_formats": ["coo", -3]}, r"graph_formats is \['coo', -3\]; it must be 'coo'"),
    ({"graph_formats": -3}, "graph_formats is -3; it must be 'coo'"),
    ({"use_graphbolt": "garbage"}, "use_graphbolt is 'garbage'; it must be True or False"),
    ({"use_graphbolt": True}, "use_graphbolt=True cannot be used with part_method='meta'.*leave"),
    ({"store_eids": 7}, "store_eids is 7; it must be True or False"),
    ({"n_jobs": 0}, "n_jobs is 0; it must be a whole number, 1 or more"),
    ({"balance_ntype": None}, "takes no argument 'balance_ntype'; did you mean 'balance_ntypes'"),
    ({"objtypes": "cut"}, "takes no argument 'objtypes'; did you mean 'objtype'"),
    ({"shuffle_seed": 5}, "takes no argument 'shuffle_seed'"),
    ({"target_ntype": 5}, "target_ntype is 5; it must be a node type"),
    ({"target_ntype": "papers"}, "'papers' is not in the graph.*did you mean 'paper'"),
    ({"metapaths": [["sites"]]}, "did you mean 'cites'"),
    ({"seed": "x"}, "seed is 'x'; it must be a whole number, 0 or more"),
    ({"replication": "half"}, "replication is 'half'; it must be full or none"),
    ({"memory_mb": "much"}, "memory_mb is 'much'; it must be a number above 0"),
    ({"hubs": -1}, "hubs is -1; it must be a number, 0 or more"),
    ({"memory_mb": -1}, "memory_mb is -1.0; it must be a number above 0"),
    ({"overwrite": "yes"}, "overwrite is 'yes'; it must be True or False"),
    ({"settings": ["partition.seed=3"]}, "settings has 'partition.seed=3', which has no effect"),
    ({"settings": "plugins.nothing.a=1"}, "plugins.nothing"),
    ({"graph_name": None}, "graph_name is None; it must be a text"),
    ({"out_path": None}, "out_path is None; it must be the path of a directory"),
    ({"g": "graph"}, "expected a dgl.DGLGraph, got builtins.str"),
    ({"part_method": "metis", "target_ntype": "paper"}, "target_ntype goes with.*not with 'metis'"),
    ({"part_method": "metis", "hops": 2}, "hops goes with.*not with 'metis'"),
    ({"part_method": "metis", "seed": 0}, "seed goes with.*not with 'metis'"),
    ({"part_method": "random", "settings": ["a"]}, "settings goes with.*not with 'random'"),
    ({"part_method": "random", "overwrite": False}, "overwrite=False goes with.*not with 'random'"),
    ({"part_method": "metis", "use_graphbolt": True, "store_eid": True},
     "'metis' takes no argument 'store_eid'; did you mean 'store_eids'"),
])
def test_wrong_values_are_refused_and_nothing_is_written(door, given, message, tmp_path):
    call = {"g": graph(), "graph_name": "g", "num_parts": 2, "out_path": str(tmp_path / "out"),
            "part_method": "meta", **given}
    with pytest.raises(InputError, match=message):
        door(**call)
    assert list(tmp_path.iterdir()) == []


@both
def test_what_has_no_effect_is_said_once_in_one_line(door, tmp_path, said):
    given = {"balance_ntypes": {"paper": MASK}, "balance_edges": True,
             "num_trainers_per_machine": 2, "objtype": "vol", "graph_formats": ["csc", "coo"],
             "store_eids": True, "reshuffle": True}
    for number in (2, 3):
        door(graph(), "g", number, str(tmp_path / "out"), part_method="meta", **given)
    (line,) = said()
    assert line.startswith("part_method='meta' has no use for what a script says by ")
    assert [name for name in given if f"{name} (" not in line] == []
    assert "\n" not in line


@both
def test_what_asks_for_nothing_is_not_spoken_of(door, tmp_path, said):
    door(graph(), "g", 2, str(tmp_path / "out"), 2, "meta", None, False, False, 1, "cut", None,
         False, store_inner_node=False, reshuffle=False)
    assert said() == []


@both
@pytest.mark.parametrize("method", ["meta", "meta-shared", "relation-random"])
@pytest.mark.parametrize(("given", "depth", "warned"), [
    ({}, 2, False), ({"num_hops": None}, 2, False), ({"num_hops": 1}, 2, True),
    ({"num_hops": 2}, 2, False), ({"num_hops": 3}, 3, False), ({"hops": 1}, 1, False),
    ({"hops": 1, "num_hops": 1}, 1, False), ({"hops": 3, "num_hops": 2}, 3, True),
])
def test_the_depth_is_the_same_by_both_doors(door, method, given, depth, warned, tmp_path, said):
    door(graph(), "g", 2, str(tmp_path / "out"), part_method=method, **given)
    assert open_partition(tmp_path / "out")[1].hops == depth
    assert [f"num_hops={given['num_hops']} has no effect" in line for line in said()] == (
        [True] if warned else [])


@pytest.mark.parametrize(("options", "given", "depth", "warned"), [
    (["model.layers=3"], {}, 3, ""), (["model.layers=3"], {"num_hops": 1}, 3, "num_hops=1"),
    (["model.layers=1"], {"num_hops": 2}, 1, "num_hops=2"),
    (["model.layers=3"], {"num_hops": 3}, 3, ""),
    (["model.layers=3"], {"hops": 2}, 3, "the settings say otherwise: hops=2"),
    (["partition.seed=3"], {"num_hops": 3}, 3, ""),
])
def test_model_layers_in_the_settings_are_the_depth(options, given, depth, warned, tmp_path, said):
    dgl_heta.enable(settings=["partition.method=meta", *options])
    dgl.distributed.partition_graph(graph(), "g", 2, str(tmp_path / "out"), **given)
    assert open_partition(tmp_path / "out")[1].hops == depth
    assert [warned in line for line in said()] == ([True] if warned else [])


def test_hubs_in_the_settings_reach_the_request(monkeypatch, tmp_path):
    asked = []
    made = partition.make_request
    monkeypatch.setattr(partition, "make_request", lambda *args, **more: (
        asked.append(more["hubs"]), made(*args, **more))[1])
    dgl_heta.enable(settings=["partition.method=meta", "partition.hubs=0"])
    dgl.distributed.partition_graph(graph(), "g", 2, str(tmp_path / "out"))
    assert asked == [0]


def test_metapaths_in_the_settings_are_the_depth(tmp_path, said):
    (tmp_path / "paths.json").write_text('[["cites"], ["rev-at", "writes"]]')
    dgl_heta.enable(settings=["partition.method=meta", "model.layers=3",
                              f"partition.metapaths={tmp_path / 'paths.json'}"])
    for hops in ({}, {"num_hops": 1}, {"num_hops": 3}):
        dgl.distributed.partition_graph(graph(), "g", 2, str(tmp_path / "out"), **hops)
        assert open_partition(tmp_path / "out")[1].hops == 2
    assert [re.search(r"num_hops=\d", line)[0] for line in said()] == ["num_hops=1", "num_hops=3"]


def test_what_settings_overrule_is_said(tmp_path, said):
    dgl_heta.enable(settings=["partition.method=meta", "partition.target=paper",
                              "partition.parts=4", "partition.seed=3"])
    dgl.distributed.partition_graph(graph(), "g", 2, str(tmp_path / "out"), part_method="metis",
                                    target_ntype="author", seed=3)
    assert open_partition(tmp_path / "out")[1].targets == ("paper",)
    assert said() == [
        "no effect on partition_graph, since the settings say otherwise: target_ntype='author'",
        "partition.parts = 4 in the settings has no effect on a script: num_parts=2 counts"]
    dgl_heta.enable(settings=["partition.method=random"])
    dgl.distributed.partition_graph(graph(), "g", 2, str(tmp_path / "dgl"), part_method="meta",
                                    target_ntype="author", overwrite=False)
    assert said()[3:] == ["no effect on partition_graph, since partition.method = random says "
                          "otherwise: target_ntype='author', overwrite=False"]
    assert (tmp_path / "dgl/part1/graph.dgl").is_file()


@both
def test_the_target_is_the_only_type_with_a_train_mask(door, tmp_path):
    one = graph()
    door(one, "g", 2, str(tmp_path / "out"), part_method="meta")
    assert open_partition(tmp_path / "out")[1].targets == ("paper",)
    one.nodes["author"].data["train_mask"] = torch.ones(one.num_nodes("author")) > 0
    with pytest.raises(InputError, match=r"needs target_ntype.*author, field, institution, paper"):
        door(one, "g", 2, str(tmp_path / "out"), part_method="meta")
    door(one, "g", 2, str(tmp_path / "out"), part_method="meta", target_ntype=["author", "paper"])
    assert open_partition(tmp_path / "out")[1].targets == ("author", "paper")


@both
def test_data_that_dgl_cannot_partition_are_named_and_nothing_is_written(door, tmp_path):
    for kind, name in (("nodes", "paper"), ("edges", "cites")):
        one = graph()
        count = getattr(one, f"num_{kind}")(name)
        getattr(one, kind)[name].data["x"] = torch.zeros(count, dtype=torch.float8_e5m2)
        with pytest.raises(InputError, match=f"{kind[:-1]} data 'x' of 'paper.*float8_e5m2"):
            door(one, "g", 2, str(tmp_path / "out"), part_method="meta")
    assert not (tmp_path / "out").exists()


@pytest.mark.needs("metis")
@both
def test_what_dgl_ignores_is_said_of_its_methods(door, tmp_path, said):
    door(graph(), "g", 2, str(tmp_path / "out"), part_method="metis", balance_edge=True,
         store_eids=True)
    assert said() == ["'balance_edge': no argument of dgl.distributed.partition_graph, which "
                      "ignores it; did you mean 'balance_edges'?"]
    assert (tmp_path / "out/part0/graph.dgl").is_file()


# --- what is at out_path ---------------------------------------------------------------------


@both
def test_a_script_can_be_run_again(door, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    for name, parts in (("one", 2), ("one", 3), ("another", 2)):
        door(graph(), name, parts, str(out), part_method="meta")
        assert open_partition(out)[1].num_parts == parts
        assert sorted(p.name for p in out.iterdir()) == [f"{name}.json", "plan.json", "store"]
    with pytest.raises(InputError, match="out exists"):
        door(graph(), "one", 3, str(out), part_method="meta", overwrite=False)
    assert open_partition(out)[1].num_parts == 2


@both
@pytest.mark.parametrize("stranger", ["notes.txt", "other.json", "model/weights.bin", ".git/HEAD",
                                      "store/notes.txt", "store/nodes/mine.csv", "part0/graph.dgl"])
def test_what_is_not_of_a_partition_is_never_deleted(door, stranger, tmp_path):
    out = tmp_path / "out"
    door(graph(), "g", 2, str(out), part_method="meta")
    (out / stranger).parent.mkdir(exist_ok=True)
    (out / stranger).write_text('{"mine": true}')
    with pytest.raises(InputError, match=f"out holds {stranger.split('/')[0]}.*did not write"):
        door(graph(), "g", 3, str(out), part_method="meta")
    assert open_partition_of(out) == 2
    assert (out / stranger).read_text() == '{"mine": true}'


def open_partition_of(out: Path) -> int:
    return len(json.loads((out / "plan.json").read_text())["plan"]["partitions"])


@both
def test_parts_of_dgl_and_a_directory_of_something_else_are_left(door, tmp_path):
    large = to_dgl_graph(academic(papers=240))  # DGL needs a node of each type in each part
    dgl.distributed.partition_graph(large, "g", 2, str(tmp_path / "dgl"), part_method="random")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("years of work")
    before = sorted(tmp_path.rglob("*"))
    for name in ("dgl", "mine"):
        with pytest.raises(InputError, match=f"{name} exists and was not written by dgl-heta"):
            door(graph(), "g", 2, str(tmp_path / name), part_method="meta")
    assert sorted(tmp_path.rglob("*")) == before


SCRIPT = """
import sys
import dgl
import torch
graph = dgl.heterograph({("a", "r", "b"): (torch.arange(40) % 10, torch.arange(40) % 20),
                         ("b", "q", "a"): (torch.arange(20), torch.arange(20) % 10)})
graph.nodes["a"].data["train_mask"] = torch.ones(10) > 0
graph.edges["r"].data["w"] = torch.arange(40)
for _ in range(2):
    dgl.distributed.partition_graph(graph, "g", 2, sys.argv[1], num_hops=1, **eval(sys.argv[2]))
"""


@pytest.mark.parametrize(("given", "status", "message"), [
    ("{'balance_edges': True}", 0, "has no use for what a script says by balance_edges ("),
    ("{'balance_edgse': True}", 2, "did you mean 'balance_edges'?"),
])
def test_an_unmodified_script_is_told_by_the_command(given, status, message, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [warm.with_dgl(), "-m", "dgl_heta", "run", "--set", "partition.method=meta",
         str(tmp_path / "script.py"), str(tmp_path / "out"), given], capture_output=True, text=True,
        timeout=PATIENCE, check=False)
    assert done.returncode == status, done.stderr
    assert done.stderr.count(message) == 1
    assert (tmp_path / "out/g.json").exists() == (status == 0)
    if status == 0:
        assert open_partition(tmp_path / "out")[1].hops == 2
        assert "edge data" not in done.stderr
        assert done.stderr.count("num_hops=1 has no effect") == 1


# --- loading ---------------------------------------------------------------------------------


def test_graphbolt_is_refused_by_name_on_a_meta_partition_and_works_on_dgls(tmp_path):
    direct(graph(), "g", 2, str(tmp_path / "meta"), part_method="meta")
    config = str(tmp_path / "meta/g.json")
    dgl_heta.enable()
    for load in (dgl.distributed.load_partition, dgl.distributed.partition.load_partition,
                 dgl.distributed.dist_graph.load_partition):
        with pytest.raises(InputError, match=r"use_graphbolt=True cannot be used with .*g\.json"):
            load(config, 0, use_graphbolt=True)
        with pytest.raises(InputError, match="use_graphbolt=True cannot be used"):
            load(config, 0, False, True)
        with pytest.raises(TypeError, match="use_grpahbolt"):
            load(config, 0, use_grpahbolt=True)
        assert len(load(part_config=config, part_id=1, load_feats=False, use_graphbolt=False)) == 7
    with pytest.raises(TypeError, match="load_edgs"):
        dgl.distributed.load_partition_feats(config, 0, load_edgs=True)
    for convert in (dgl.distributed.dgl_partition_to_graphbolt,
                    dgl.distributed.partition.dgl_partition_to_graphbolt):
        with pytest.raises(InputError, match="dgl_partition_to_graphbolt cannot be used with .*g"):
            convert(config, store_eids=True)
    for place in homes("part to GraphBolt"):
        module, _, name = place.partition(":")
        with pytest.raises(InputError, match=f"{name} cannot be used with .*g"):
            getattr(importlib.import_module(module), name)(0, None, config, True, False, False)
    with pytest.raises(InputError, match="part_id is '0'; it must be a whole number"):
        dgl.distributed.load_partition(config, "0")
    dgl.distributed.partition_graph(graph(), "g", 1, str(tmp_path / "dgl"), part_method="random",
                                    use_graphbolt=True, store_eids=True)
    loaded = dgl.distributed.load_partition(str(tmp_path / "dgl/g.json"), 0, use_graphbolt=True)
    assert type(loaded[0]).__name__ == "FusedCSCSamplingGraph"


def test_data_that_a_program_adds_to_the_parts_later_are_named(tmp_path):
    """As GraphStorm does, whose parts are there when it writes features."""
    direct(graph(), "g", 2, str(tmp_path), part_method="meta")
    dgl_heta.enable()
    config = str(tmp_path / "g.json")
    assert dgl.distributed.load_partition(config, 1)[0].num_nodes() > 0
    (tmp_path / "part0").mkdir()
    dgl.data.utils.save_tensors(str(tmp_path / "part0/node_feat.dgl"), {"paper/x": MASK})
    for load in (dgl.distributed.load_partition, dgl.distributed.load_partition_feats):
        with pytest.raises(InputError, match=r"part0/node_feat\.dgl was not written by dgl-heta"):
            load(config, 1)


# --- documentation ---------------------------------------------------------------------------


def test_the_table_names_every_argument() -> None:
    text = (DOCS / "switching.md").read_text(encoding="utf-8")
    table = text.partition("## Arguments of partition_graph")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| ")]
    named = [name for row in rows[1:] for name in re.findall(r"`(\w+)`", row[1])]
    assert all(len(row) == 5 and row[2].strip() and row[3].strip() for row in rows)
    theirs = list(inspect.signature(dgl.distributed.partition_graph).parameters)
    ours = [name for name, parameter in inspect.signature(dgl_heta.partition_graph).parameters
            .items() if parameter.kind is not parameter.VAR_KEYWORD]
    converted = inspect.signature(dgl.distributed.dgl_partition_to_graphbolt).parameters
    assert set(theirs) | set(ours) | set(converted) - {"part_config"} <= set(named)
    assert [name for name in named if name in theirs and name != "kwargs"] == [
        *theirs[:-1], "g"]  # edge data of `g` come last
    for function in (dgl.distributed.load_partition, dgl.distributed.load_partition_feats):
        assert f"`{function.__name__}`" in text
