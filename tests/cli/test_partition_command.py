"""`dgl-heta partition`: what is written from which input, and what is overwritten."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeArrays, GraphSource
from dgl_heta.planning.limit import largest
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.workload import Workload
from dgl_heta.store import Store, write_store
from tests.support.command_line import edge_files, graphbolt, refused, tree
from tests.support.graphs import academic
from tests.support.needs import lacking


def test_partition_of_edge_files_is_whole_and_planned(heta, tmp_path):
    result = heta("partition", edge_files(tmp_path / "files"), "--out", tmp_path / "out",
                  "--target", "paper", "--parts", 3, "--json")
    assert result.json["part_config"] == str(tmp_path / "out/academic.json")
    assert result.json["bytes"] == sum(len(d) for d in tree(tmp_path / "out").values()
                                       if d != b"/")
    shown = heta("inspect", tmp_path / "out", "--json").json
    assert shown["verified"] is True
    assert shown["plan"]["parts"] == 3
    assert Store(tmp_path / "out/store").schema == academic().schema()


def test_partition_of_a_store_writes_a_plan_that_refers_to_it(heta, store, tmp_path):
    before = tree(store)
    assert heta("partition", store, "--out", tmp_path / "p4", "--parts", 4).status == 0
    assert set(tree(tmp_path / "p4")) == {"plan.json", "academic.json"}
    assert tree(store) == before
    assert heta("partition", tmp_path / "p4", "--out", tmp_path / "p2", "--parts", 2).status == 0
    config = json.loads((tmp_path / "p2/academic.json").read_text())
    assert config["part-1"]["dgl_heta_store"] == "../store"
    (tmp_path / "elsewhere").mkdir()
    for name in ("store", "p2"):  # what refers to each other moves together
        shutil.move(tmp_path / name, tmp_path / "elsewhere" / name)
    assert heta("inspect", tmp_path / "elsewhere/p2").status == 0


@pytest.mark.parametrize("more", [[], ["--dry-run"], ["--method", "meta-shared"]])
def test_copies_of_the_whole_graph_are_refused(heta, tmp_path, more):
    edges = {Relation("paper", "cites", "paper"): EdgeArrays(np.arange(4), np.arange(4)[::-1])}
    write_store(GraphSource("papers", {"paper": 4}, edges), tmp_path / "store")
    result = heta("partition", tmp_path / "store", "--out", tmp_path / "out", "--target", "paper",
                  *more)
    assert result.status == 2
    assert "each hold the whole graph" in result.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["data set", "graphbolt", "absolute"])
def test_partition_of_other_inputs(heta, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    graph = {"data set": lambda: "synthetic-mag:scale=0.0005,seed=3",
             "graphbolt": lambda: graphbolt(Path("bolt")),
             "absolute": lambda: edge_files(tmp_path / "files")}[kind]()
    result = heta("partition", graph, "--out", "deep/er/out")
    assert result.status == 0, result.err
    assert re.fullmatch(r"deep/er/out/\S+\.json: 2 partitions by meta, [\d.]+ kB written in .*",
                        result.out.splitlines()[0])
    assert heta("inspect", "deep/er/out").status == 0


def test_metis_and_random_give_what_dgl_loads(heta, tmp_path):
    dgl = pytest.importorskip("dgl")
    pytest.importorskip("dgl.distributed")
    # Large enough that DGL finds nodes of every type for both parts, which it needs.
    source = academic(papers=240)
    files, store = edge_files(tmp_path / "files", source), tmp_path / "store"
    write_store(source, store)
    wanted = {tuple(r): e.num_edges for r, e in source.edges.items()}
    for graph, method in ((files, "metis"), (store, "random")):
        out = tmp_path / method
        result = heta("partition", graph, "--out", out, "--method", method, "--json")
        assert len(result.out.splitlines()) == 1
        edges = dict.fromkeys(wanted, 0)
        for part in (0, 1):
            local, nodes, _, book, *_ = dgl.distributed.load_partition(
                result.json["part_config"], part)
            inner = local.edata[dgl.ETYPE][local.edata["inner_edge"].bool()]
            for etype in edges:
                edges[etype] += int((inner == book.canonical_etypes.index(etype)).sum())
            assert set(nodes) >= {"paper/feat", "paper/label", "field/feat"}
        assert edges == wanted
    refused(heta("inspect", tmp_path / "metis"), "metis is neither a relation store nor a part")
    drawn = []
    for seed in (1, 1, 2):
        heta("partition", store, "--out", tmp_path / "random", "--method", "random",
             "--seed", seed, "--overwrite")
        nodes = dgl.distributed.load_partition(str(tmp_path / "random/academic.json"), 0)[1]
        drawn.append(nodes["paper/feat"].tolist())
    assert drawn[0] == drawn[1] != drawn[2]


def test_dry_run_shows_the_plan_and_writes_nothing(heta, tmp_path):
    files = edge_files(tmp_path / "files")
    before = tree(tmp_path)
    result = heta("partition", files, "--out", tmp_path / "out", "--dry-run", "--json")
    assert result.json["parts"] == 2
    refused(heta("partition", files, "--out", tmp_path / "out", "--dry-run", "--method", "metis"),
            "no plan to show")
    refused(heta("partition", files, "--out", files, "--dry-run"), "files.*would be overwritten")
    assert tree(tmp_path) == before


def test_settings_of_the_model_are_those_of_the_plan(heta, store, tmp_path):
    """What is written can be trained with the settings that it was written with."""
    settings = "--set", "model.layers=3", "--set", "model.hidden=8"
    partition = "partition", store, "--out", tmp_path / "p", *settings
    shown = heta(*partition, "--dry-run", "--json").json
    assert (shown["hops"], shown["prediction"]["workload"]["hidden"]) == (3, 8)
    assert heta(*partition).status == 0
    assert Plan.load(tmp_path / "p/plan.json").hops == 3
    assert heta("train", tmp_path / "p", "--dry-run", *settings).status == 0
    assert heta(*partition, "--hops", 1, "--overwrite").status == 0
    assert Plan.load(tmp_path / "p/plan.json").hops == 1


def test_overwrite_replaces_a_partition_and_nothing_else(heta, store, tmp_path):
    out = tmp_path / "out"
    assert heta("partition", store, "--out", out).status == 0
    before = tree(out)
    refused(heta("partition", store, "--out", out, "--parts", 3), "out exists.*--overwrite")
    refused(heta("partition", store, "--out", out, "--parts", 3, "--dry-run"), "out exists")
    assert tree(out) == before
    assert heta("partition", store, "--out", out, "--parts", 3, "--overwrite").status == 0
    assert Plan.load(out / "plan.json").num_parts == 3
    other = tmp_path / "other"
    other.mkdir()
    (other / "plan.json").write_text('{"precious": true}')
    for method in ("meta", "metis") if lacking("dgl") is None else ("meta",):
        refused(heta("partition", store, "--out", other, "--method", method, "--overwrite"),
                "other exists and was not written by dgl-heta")
    assert tree(other) == {"plan.json": b'{"precious": true}'}


def test_overwriting_by_dgls_methods_leaves_what_is_somebody_elses(heta, tmp_path):
    pytest.importorskip("dgl")
    for name in ("store", "other"):
        write_store(academic(papers=240), tmp_path / name)
    write = ("--method", "random", "--target", "paper", "--overwrite", "--out")
    assert heta("partition", tmp_path / "store", "--out", tmp_path / "meta").status == 0
    for _ in range(2):
        assert heta("partition", tmp_path / "store", *write, tmp_path / "parts").status == 0
    for name in ("parts/thesis.txt", "parts/notes.json", "parts/part0/model.pt", "meta/thesis.txt"):
        file = tmp_path / name
        file.write_text("{}")
        out = tmp_path / name.partition("/")[0]
        refused(heta("partition", tmp_path / "store", *write, out),
                rf"{out.name} holds {file.relative_to(out)}, which dgl-heta did not write there")
        file.unlink()
    refused(heta("partition", tmp_path / "store", *write, tmp_path / "other"),
            "other is a relation store, which partitions may refer to")
    refused(heta("partition", tmp_path / "parts/academic.json:ids=parts", *write,
                 tmp_path / "parts"), "ids=parts' lies in .*parts, which would be overwritten")
    assert heta("partition", tmp_path / "store", *write, tmp_path / "meta").status == 0


def test_a_target_whose_labels_are_all_the_same_is_named(heta, tmp_path):
    files = edge_files(tmp_path / "files")
    done = heta("partition", files, "--out", tmp_path / "before")
    assert "nothing to learn" not in done.err
    task = json.loads((files / "metadata.json").read_text())["nodes"]["paper"]["arrays"]
    labels = np.load(files / task["label"])
    np.save(files / task["label"], np.where(labels >= 0, 0, labels))
    done = heta("partition", files, "--out", tmp_path / "out")
    assert done.status == 0
    assert "all labels of target 'paper' are class 0, so there is nothing to learn" in " ".join(
        done.err.split())


def test_a_split_by_time_is_said_with_its_boundaries(heta, tmp_path):
    pytest.importorskip("pyarrow")
    times = ["2024-03-01 10:00", "2024-03-01T9:00", "2024-03-02", "2024-03-01"]
    (tmp_path / "papers.csv").write_text("id,label,when\n" + "".join(
        f"p{i},{'ab'[i % 2]},{when}\n" for i, when in enumerate(times)))
    (tmp_path / "by.tsv").write_text("src\tdst\nann\tp0\nbob\tp1\n")
    (tmp_path / "metadata.json").write_text(json.dumps({
        "name": "g", "nodes": {"paper": {"table": "papers.csv"}, "author": {}},
        "edges": [{"src": "author", "etype": "by", "dst": "paper", "files": ["by.tsv"]}],
        "task": {"target": "paper", "split": {"ratios": [0.5, 0.25, 0.25], "time": "when"}}}))
    done = heta("partition", tmp_path, "--out", tmp_path / "out", "--parts", 1)
    assert done.status == 0
    assert ("note: split by time ('when'): train 2024-03-01T00:00:00 to 2024-03-01T09:00:00, val "
            "2024-03-01T10:00:00 to 2024-03-01T10:00:00, test 2024-03-02T00:00:00 to "
            "2024-03-02T00:00:00\n") in done.err
    shown = heta("inspect", tmp_path / "out")
    assert "times: {'time': 'when', 'train': ['2024-03-01T00:00:00'" in shown.out


def test_a_target_without_labels_is_named(heta, store, tmp_path):
    """It may be partitioned for links, and is refused where a task needs labels."""
    out, files = tmp_path / "out", edge_files(tmp_path / "files")
    for graph in (store, files):
        done = heta("partition", graph, "--out", out, "--target", "author", "--overwrite")
        assert done.status == 0
        assert "target 'author' has no array 'label' with labels" in " ".join(done.err.split())
        assert "task.relation" in done.err
        assert Plan.load(out / "plan.json").targets == ("author",)
        shutil.rmtree(out)
    for setting in ("task.kind=multilabel", "task.label=topic"):
        refused(heta("partition", store, "--out", out, "--target", "author", "--set", setting),
                "target 'author' has no array.*needs as the settings ask.*--target")
    assert not out.exists()
    for options in (("--target", "author", "--set", "task.relation=writes"), ("--target", "paper"),
                    ("--method", "metis") if lacking("dgl") is None else ()):
        done = heta("partition", store, "--out", out, "--overwrite", *options)
        assert done.status == 0, done.err
        assert "with labels" not in done.err
        shutil.rmtree(out)


@pytest.mark.parametrize("graph", ["out", "out/store"])
def test_overwriting_what_is_being_read_is_refused(heta, tmp_path, monkeypatch, graph):
    monkeypatch.chdir(tmp_path)
    assert heta("partition", edge_files(Path("files")), "--out", "out").status == 0
    before = tree(tmp_path)
    refused(heta("partition", graph, "--out", "out", "--overwrite"), "would be overwritten")
    assert tree(tmp_path) == before


def test_plan_of_a_partition_is_the_one_it_has(heta, store, tmp_path):
    assert heta("partition", store, "--out", tmp_path / "p", "--parts", 3, "--hops", 1,
                "--target", "paper,author").status == 0
    plan = heta("plan", tmp_path / "p", "--json").json
    assert (plan["parts"], plan["hops"], plan["target"]) == (3, 1, ["paper", "author"])
    other = heta("plan", tmp_path / "p", "--hops", 2, "--json").json
    assert (other["parts"], other["hops"], other["target"]) == (3, 2, ["paper", "author"])


def test_a_limit_of_memory_holds_for_what_is_written(heta, lopsided, tmp_path, caplog):
    """An owner partition gets relations and features that the plan alone did not give it."""
    def most():
        return largest(Plan.load(tmp_path / "p/plan.json"), Workload())

    partition = "partition", lopsided, "--out", tmp_path / "p", "--overwrite"
    assert heta(*partition).status == 0
    assert most() > 1.7e6
    for more in ([], ["--dry-run"]):
        caplog.clear()
        heta(*partition, "--memory-mb", 1.05, *more)
        assert "partition.shared = auto: rows move" in caplog.text
    assert most() < 1.05e6
    refused(heta(*partition, "--memory-mb", 1.05, "--set", "partition.shared=delegate"),
            "would hold 1.8 MB, more than partition.memory_mb = 1.1")
    train = "train", lopsided, "--dry-run", "--set", "partition.memory_mb=1.05"
    caplog.clear()
    heta(*train)
    assert "partition.shared = auto: rows move" in caplog.text


def test_a_partition_that_is_too_large_is_not_trained(heta, lopsided, tmp_path):
    heta("partition", lopsided, "--out", tmp_path / "p")
    train = "train", tmp_path / "p", "--dry-run", "--set"
    refused(heta(*train, "partition.memory_mb=1.05"), "holds 1.8 MB, 0.8 MB more than")
    assert heta(*train, "partition.memory_mb=1.9").status == 0


def test_a_partition_that_delegates_is_predicted_on_a_cluster(heta, store, tmp_path):
    heta("partition", store, "--out", tmp_path / "p", "--set", "partition.shared=delegate")
    heta("partition", store, "--out", tmp_path / "rows", "--set", "partition.shared=rows")
    assert Plan.load(tmp_path / "p/plan.json").offloaded
    (tmp_path / "c.toml").write_text("machines = 2\nlink_gbit = 1\nmetis_cut = 0.5\n")
    shown, rows = (heta("plan", tmp_path / name, "--cluster", tmp_path / "c.toml", "--json").json
                   for name in ("p", "rows"))
    assert shown["systems"][:2] == rows["systems"][:2]  # those of dgl-heta


def test_another_plan_of_a_partition_keeps_what_nobody_names(heta, store, tmp_path):
    """Its depth, method and number of parts."""
    one, of_three = tmp_path / "p", ("--parts", 3)
    heta("partition", store, "--out", one, "--hops", 3, "--method", "meta-whole")
    assert heta("partition", one, "--out", tmp_path / "p3", *of_three).status == 0
    assert heta("partition", one, "--out", tmp_path / "again").status == 0
    assert Plan.load(tmp_path / "again/plan.json") == Plan.load(one / "plan.json")
    for command in (("plan", tmp_path / "p3"), ("plan", one, *of_three),
                    ("train", one, *of_three, "--dry-run")):
        plan = heta(*command, "--json").json
        assert (plan["hops"], plan["method"], plan["parts"]) == (3, "meta-whole", 3)


def test_what_no_plan_has_by_default_is_to_be_said_for_another_one(heta, store, tmp_path):
    file = tmp_path / "metapaths.json"
    file.write_text(json.dumps([[["author", "writes", "paper"]], [["paper", "cites", "paper"]]]))
    for name, option, value in (("apart", "--replication", "none"), ("paths", "--metapaths", file)):
        assert heta("partition", store, "--out", tmp_path / name, option, value).status == 0
        for command in (("plan", tmp_path / name, "--seed", 1),
                        ("partition", tmp_path / name, "--out", tmp_path / f"new {name}")):
            refused(heta(*command), f"give {option}")
            assert heta(*command, option, value).status == 0


@pytest.mark.needs("dgl")
def test_what_has_no_metapaths_by_nature_is_not_asked_for_those_of_a_partition(
        heta, store, tmp_path):
    (tmp_path / "metapaths.json").write_text(json.dumps(
        [[["author", "writes", "paper"]], [["paper", "cites", "paper"]]]))
    (tmp_path / "c.toml").write_text("machines = 3\nlink_gbit = 1\nmetis_cut = 0.5\n")
    paths = tmp_path / "paths"
    heta("partition", store, "--out", paths, "--metapaths", tmp_path / "metapaths.json")
    for command in (("plan", paths, "--compare"),
                    ("plan", paths, "--cluster", tmp_path / "c.toml"),
                    ("plan", paths, "--seed", 1, "--set", "model.layers=2"),
                    ("partition", paths, "--out", tmp_path / "parts", "--method", "random")):
        result = heta(*command)
        assert result.status == 0, result.err


def test_another_number_of_parts_is_for_the_targets_of_a_partition(heta, store, tmp_path):
    """Those of the graph's task were trained without a word."""
    assert heta("partition", store, "--out", tmp_path / "p", "--target", "author").status == 0
    refused(heta("plan", tmp_path / "p", "--set", "partition.parts=3"), "made for parts 2")
    refused(heta("train", tmp_path / "p", "--parts", 3, "--dry-run"),
            "made for target author, but the task is about paper")


@pytest.mark.parametrize(("asked", "why"), [
    ("partition.parts=3", None),
    ("partition.memory_mb=0.001", "a part of the partition holds"),
    ("partition.replication=none", "made with replication = full"),
    ("partition.method=meta-whole", "made for method meta,"),
    ("model.layers=3", "made for layers 2"),
    ("task.targets=author", "made for target paper")])
def test_settings_are_for_a_partitions_plan_what_they_are_for_its_training(
        heta, store, tmp_path, asked, why):
    assert heta("partition", store, "--out", tmp_path / "p").status == 0
    shown, trained = (heta(*command, "--json", "--set", asked) for command in (
        ("plan", tmp_path / "p"), ("train", tmp_path / "p", "--dry-run")))
    assert shown.err == trained.err
    if why is not None:
        refused(shown, why)
        refused(trained, why)
    else:
        assert shown.json["parts"] == trained.json["parts"] == 3
