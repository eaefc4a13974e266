"""The drop-in without a network: partitions, what is loaded of them, DistDGL's standalone mode."""

from __future__ import annotations

import json
from pathlib import Path

import dgl
import dgl.distributed
import numpy as np
import pytest
import torch

import dgl_heta
from dgl_heta.distdgl.state import FOR_SCRIPTS, without_effect
from dgl_heta.errors import InputError
from dgl_heta.partition.directory import open_partition
from dgl_heta.settings import Settings, TrainSettings
from tests.support.dist_access import CHOSEN, SEEDS
from tests.support.dist_reference import compare_all, parts, read, whole_graph
from tests.support.dist_script import cases
from tests.support.standalone import run

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture(scope="module")
def graph():
    return whole_graph()


@pytest.fixture(scope="module")
def two(graph, tmp_path_factory) -> Path:
    """The part_config of two meta-partitions."""
    return parts(graph, 2, tmp_path_factory.mktemp("two") / "parts")


# --- making partitions -----------------------------------------------------------------------


def test_a_script_names_the_method_and_the_target_is_found(on, graph, tmp_path):
    out = str(tmp_path / "out")
    dgl.distributed.partition_graph(graph, "academic", 3, out, part_method="meta")
    _, plan = open_partition(out)
    assert (plan.num_parts, plan.method, plan.targets, plan.hops) == (3, "meta", ("paper",), 2)
    dgl.distributed.partition.partition_graph(graph, "academic", 2, out, part_method="meta")
    assert open_partition(out)[1].num_parts == 2  # a script can be run again


def test_methods_of_dgl_stay_with_dgl(on, graph, tmp_path):
    dgl.distributed.partition_graph(graph, "academic", 2, str(tmp_path / "out"),
                                    part_method="random", balance_edges=True)
    assert (tmp_path / "out/part0/graph.dgl").is_file()


def test_the_method_in_the_settings_wins(off, graph, tmp_path):
    dgl_heta.enable(settings=["partition.method=meta", "model.layers=3"])
    dgl.distributed.partition_graph(graph, "academic", 2, str(tmp_path / "one"), 1, "metis")
    assert open_partition(tmp_path / "one")[1].hops == 3
    dgl_heta.enable(settings=["partition.method=random"])
    dgl.distributed.partition_graph(graph, "academic", 2, str(tmp_path / "two"),
                                    part_method="meta")
    assert (tmp_path / "two/part1/graph.dgl").is_file()


@pytest.mark.parametrize("replication", ["full", "none"])
def test_replication_in_the_settings_reaches_the_plan(off, graph, tmp_path, replication):
    dgl_heta.enable(settings=["partition.method=relation-random",
                              f"partition.replication={replication}"])
    dgl.distributed.partition_graph(graph, "g", 2, str(tmp_path / "out"))
    assert open_partition(tmp_path / "out")[1].replication == replication


def test_without_one_type_with_a_train_mask_the_target_must_be_set(off, tmp_path):
    graph = whole_graph()
    graph.nodes["author"].data["train_mask"] = torch.ones(graph.num_nodes("author"),
                                                          dtype=torch.bool)
    dgl_heta.enable()
    with pytest.raises(InputError, match=r"set partition\.target"):
        dgl.distributed.partition_graph(graph, "academic", 2, str(tmp_path), part_method="meta")
    dgl_heta.enable(settings=["partition.target=paper"])
    dgl.distributed.partition_graph(graph, "academic", 2, str(tmp_path / "out"),
                                    part_method="meta")
    assert open_partition(tmp_path / "out")[1].targets == ("paper",)


# --- loading partitions ----------------------------------------------------------------------


@pytest.mark.parametrize("part", [0, 1])
def test_a_part_has_its_relations_of_the_graph(on, graph, two, part):
    found, feats, edge_feats, book, name, ntypes, etypes = dgl.distributed.load_partition(
        str(two), part)
    _, plan = open_partition(two.parent)
    assert (name, ntypes, etypes) == ("academic", graph.ntypes, graph.canonical_etypes)
    assert edge_feats == {}
    relations = {tuple(r) for r in plan.partitions[part].relations}
    kinds, ids = book.map_to_per_etype(found.edata[dgl.EID])
    node_kinds, node_ids = book.map_to_per_ntype(found.ndata[dgl.NID])
    assert torch.equal(kinds.int(), found.edata[dgl.ETYPE].int())
    assert torch.equal(node_kinds.int(), found.ndata[dgl.NTYPE].int())
    assert {etypes[k] for k in kinds.unique()} == relations
    src, dst = found.edges()
    for kind, etype in enumerate(etypes):
        mine = kinds == kind
        if etype in relations:
            assert torch.equal(ids[mine].sort()[0], torch.arange(graph.num_edges(etype)))
            wanted = graph.find_edges(ids[mine], etype)
            assert torch.equal(node_ids[src[mine]], wanted[0])
            assert torch.equal(node_ids[dst[mine]], wanted[1])
            assert (node_kinds[src[mine]] == ntypes.index(etype[0])).all()
            assert (node_kinds[dst[mine]] == ntypes.index(etype[2])).all()
    assert torch.equal(found.ndata["inner_node"].bool(),
                       book.nid2partid(found.ndata[dgl.NID]) == part)
    assert torch.equal(found.edata["inner_edge"].bool(),
                       book.eid2partid(found.edata[dgl.EID]) == part)
    assert sorted(feats) == ["field/feat", "paper/feat", "paper/labels", "paper/test_mask",
                             "paper/train_mask", "paper/val_mask"]
    for key, rows in feats.items():
        ntype, array = key.split("/")
        owned = book.partid2nids(part, ntype)
        assert torch.equal(rows, graph.nodes[ntype].data[array][owned].to(rows.dtype))
    alone = dgl.distributed.load_partition_feats(str(two), part, load_edges=False)
    assert alone[1] is None
    assert all(torch.equal(alone[0][key], rows) for key, rows in feats.items())
    assert dgl.distributed.load_partition(str(two), part, load_feats=False)[1] == {}


def test_every_node_and_edge_has_one_owner(on, graph, two):
    nodes = [dgl.distributed.load_partition(str(two), part)[0].ndata for part in range(2)]
    owned = torch.cat([data[dgl.NID][data["inner_node"].bool()] for data in nodes])
    assert torch.equal(owned.sort()[0], torch.arange(graph.num_nodes()))


def test_a_part_that_does_not_exist_is_named(on, two):
    with pytest.raises(InputError, match="has the parts 0 … 1, and no 2"):
        dgl.distributed.load_partition(str(two), 2)


def test_without_dgl_heta_a_part_is_refused(two):
    with pytest.raises(Exception, match="part_graph|node_feats|relation graph path"):
        dgl.distributed.load_partition(str(two), 0)


@pytest.mark.parametrize("change", ["parts", "owner"])
def test_a_part_config_that_was_edited_is_refused(on, graph, tmp_path, change):
    config = parts(graph, 2, tmp_path / "parts")
    content = json.loads(config.read_text())
    if change == "parts":
        content["num_parts"] = 1
    else:
        content["node_map"]["paper"][0][1] -= 1
        content["node_map"]["paper"][1][0] -= 1
    config.write_text(json.dumps(content))
    with pytest.raises(InputError, match="was edited"):
        dgl.distributed.load_partition(str(config), 0)


# --- standalone mode -------------------------------------------------------------------------


@pytest.mark.parametrize("more", [
    ["sage-max", "gat-mean", "multi-stack", "udf", "own ops", "wide", "rgcn", "sparse table"],
    pytest.param([*cases()], marks=pytest.mark.thorough)], ids=["some", "all"])
def test_a_standalone_script_computes_what_plain_dgl_does(graph, tmp_path, more):
    """And has the same batches in the same order as by DistDGL, on a part of DGL. These are the
    same with any layers."""
    names = ["graph-sum", "one layer", "uneven", "drop last"]
    ours = [*dict.fromkeys([*names, *more, "SparseAdam", "SparseAdagrad"])]
    config = parts(graph, 1, tmp_path / "meta")
    (tmp_path / "out").mkdir()
    run(SUPPORT / "dist_script.py", "--part-config", config, "--out", tmp_path / "out", "--cases",
        ",".join(ours), heta=True)
    assert compare_all(graph, ours, tmp_path / "out", 1) == []

    config = parts(graph, 1, tmp_path / "random", "random")
    for place, heta in (("plain", False), ("nothing", True)):
        (tmp_path / place).mkdir()
        run(SUPPORT / "dist_script.py", "--part-config", config, "--out", tmp_path / place,
            "--cases", ",".join(names), heta=heta)
    for name in names:
        meta, plain, nothing = (read(tmp_path / place, name, 0)
                                for place in ("out", "plain", "nothing"))
        assert set(plain) == set(nothing)
        for key, array in plain.items():
            if "grad" not in key and "logits" not in key:
                np.testing.assert_array_equal(nothing[key], array, f"{name} {key}")
            if key.endswith("/own"):
                np.testing.assert_array_equal(meta[key], array, f"{name} {key}")
            elif "/ids/" in key:
                np.testing.assert_array_equal(np.sort(meta[key]), np.sort(array), f"{name} {key}")


def edges_of(graph, seeds: np.ndarray, sampler) -> dict[str, np.ndarray]:
    """Per layer and relation the edges that plain DGL samples, sorted."""
    _, _, blocks = sampler.sample_blocks(graph, {"paper": torch.from_numpy(seeds)})
    found = {}
    for layer, block in enumerate(blocks):
        for src, etype, dst in block.canonical_etypes:
            rows, columns = block.edges(etype=(src, etype, dst))
            found[f"{layer}/{etype}"] = torch.stack([
                block.srcnodes[src].data[dgl.NID][rows],
                block.dstnodes[dst].data[dgl.NID][columns]]).numpy()
    return found


def as_pairs(edges: np.ndarray) -> list[tuple[int, ...]]:
    return sorted(map(tuple, edges.T.tolist()))


def test_a_standalone_script_samples_by_fanouts_and_is_told_what_it_cannot_do(graph, tmp_path):
    config = parts(graph, 1, tmp_path / "parts")
    text = run("--set", "train.optimizer=SGD", SUPPORT / "dist_access.py", config,
               tmp_path / "found.npz", tmp_path / "messages.json", heta=True)
    assert text.count("no effect on a script, which trains by itself: train.optimizer (of") == 1
    found = dict(np.load(tmp_path / "found.npz"))
    chosen = {etype: CHOSEN[etype[1]] for etype in graph.canonical_etypes}
    for name, sampler in (
            ("full", dgl.dataloading.MultiLayerFullNeighborSampler(2)),
            ("chosen", dgl.dataloading.NeighborSampler([chosen, chosen]))):
        np.testing.assert_array_equal(found[f"{name}/seeds"], SEEDS.numpy())
        for key, edges in edges_of(graph, SEEDS.numpy(), sampler).items():
            got = found.get(f"{name}/{key}", np.empty((2, 0), np.int64))
            assert as_pairs(got) == as_pairs(edges), (name, key)
    for layer, fanout in enumerate((2, 3)):
        for etype in graph.canonical_etypes:
            edges = found.get(f"few/{layer}/{etype[1]}")
            if edges is None or (layer == 1 and etype[2] != "paper"):
                continue
            there, counts = np.unique(edges[1], return_counts=True)
            degrees = graph.in_degrees(torch.from_numpy(there), etype).numpy()
            np.testing.assert_array_equal(counts, np.minimum(degrees, fanout))
            assert graph.has_edges_between(*torch.from_numpy(edges), etype=etype).all()

    messages = json.loads((tmp_path / "messages.json").read_text())
    expected = {
        "another sampler": "InputError: sampler ShaDowKHopSampler cannot be used",
        "prob": "InputError: NeighborSampler with prob=",
        "replace": "InputError: NeighborSampler with replace=True",
        "layers": "InputError: NeighborSampler samples 3 layers, but the graph was partitioned "
                  "for 2 hops",
        "type": "InputError: the data loader is for nodes of type 'author'",
        "range": "InputError: the data loader's nodes of type 'paper' reach from 0 to 240, but",
        "device": "InputError: DistNodeDataLoader with device='cuda'",
        "argument": "InputError: DistNodeDataLoader has no argument 'nonsense'",
        "edges": "InputError: edges of the data loader end at nodes of type author, but",
        **dict.fromkeys(("edge_dir", "prefetch", "weights", "sample_neighbors", "find_edges",
                         "in_degrees", "out_degrees", "in_subgraph"), "nothing"),
        "out-edges": "HetaError: sampling with edge_dir='out' cannot be used",
        "graphbolt": "HetaError: sampling with use_graphbolt=True cannot be used",
        "update_all": "nothing",  # a trainer by itself has all edges
        "write": "HetaError: 'node~paper~feat' belongs to the meta-partitioned graph",
    }
    assert set(messages) == set(expected)
    assert {name: text for name, text in messages.items()
            if not text.startswith(expected[name])} == {}


def test_settings_that_scripts_decide_themselves_are_said_to_have_no_effect():
    assert {*FOR_SCRIPTS} < {*TrainSettings.model_fields}
    given = Settings.model_validate({"train": {"seed": 7, "wrapper": "raf", "batch_size": 9}})
    assert ": train.batch_size, train.seed (of" in str(without_effect(given))
    assert without_effect(Settings()) is None
    logged = Settings.model_validate({"run": {"loggers": ["tensorboard"]}})
    assert "run.loggers" in str(without_effect(logged))


def test_more_parts_than_one_need_more_machines_than_one(two, tmp_path):
    text = run(SUPPORT / "dist_script.py", "--part-config", two, "--out", tmp_path, "--cases",
               "graph-sum", heta=True, status=1)
    assert "one partition" in text


def test_seed_states_must_be_there(graph, tmp_path):
    config = parts(graph, 1, tmp_path / "parts")
    (tmp_path / "heta.toml").write_text(
        "[train]\nseed_states = false\n[model]\nself_loop = false\n")
    text = run("-c", tmp_path / "heta.toml", SUPPORT / "dist_script.py", "--part-config", config,
               "--out", tmp_path, "--cases", "graph-sum", heta=True, status=2)
    assert "error: train.seed_states = false cannot be used with DistDGL scripts" in text


@pytest.mark.parametrize(("script", "status", "text"), [
    ("import sys; print(sys.argv[1:], __name__); sys.exit(0)", 0, "['a', '--b'] __main__"),
    ("import sys; sys.exit(3)", 1, "ended with exit status 3"),
    ("import sys; sys.exit('no data')", 1, "no data\n"),
    ("1 / 0", 1, "ZeroDivisionError"),
    ("from dgl_heta.errors import InputError; raise InputError('bad input')", 2,
     "error: bad input"),
])
def test_a_script_runs_as_by_python(tmp_path, script, status, text):
    (tmp_path / "script.py").write_text(script)
    assert text in run(tmp_path / "script.py", "a", "--b", heta=True, status=status)


def test_a_script_that_does_not_exist_is_named(tmp_path):
    assert "error: there is no script" in run(tmp_path / "none.py", heta=True, status=2)
