"""Plugins that bring graphs and partition them, each a small guest with public names alone."""

from __future__ import annotations

import json
import pickle
import zipfile

import numpy as np
import pytest

import dgl_heta
from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.hooks.manager import Plugins
from dgl_heta.partition.directory import open_partition
from dgl_heta.partition.graph_input import open_input
from dgl_heta.partition.request import make_request
from dgl_heta.settings import load_settings
from dgl_heta.store import Store, write_store
from tests.support.graphs import academic
from tests.support.plugins import ROOT, distribution, guest, heta

SAVED = ROOT / "tests/support/data/hetero_data.saved"
"""`torch.save` of a HeteroData of PyG 2.8, by torch 2.2."""

# --- readers and data sets --------------------------------------------------------------------


def test_a_reader_of_a_plugin_reads_its_files_without_running_them(install, tmp_path):
    install("hetero-data", guest("hetero_data"))
    opened = open_input(f"{SAVED}:title=from PyG", Plugins())
    assert (opened.name, opened.task.target, opened.task.num_classes) == ("from PyG", "paper", 3)
    assert opened.schema.node_counts == {"paper": 30, "author": 12}
    assert {r.etype: n for r, n in opened.schema.edge_counts.items()} == {
        "writes": 60, "rev_writes": 60, "cites": 40}
    source = opened.source
    np.testing.assert_array_equal(source.node_arrays["paper"]["label"], np.arange(30) % 3)
    (src, dst), = source.edges[Relation("author", "writes", "paper")].chunks(1000)
    np.testing.assert_array_equal(src, np.arange(60) % 12)
    np.testing.assert_array_equal(dst, np.arange(60) // 2)
    assert source.edge_arrays[Relation("paper", "cites", "paper")]["weight"].shape == (40, 2)
    write_store(source, tmp_path / "store")
    assert Store(tmp_path / "store").schema == opened.schema


class Bomb:
    def __init__(self, path) -> None:
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_saved_object_is_described_and_not_made(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w") as archive:
        archive.writestr("bomb/data.pkl", pickle.dumps({"a": [1, Bomb(tmp_path / "ran")]}, 2))
    described = dgl_heta.read_saved(tmp_path / "bomb.pt")
    assert described["a"][0] == 1
    assert described["a"][1].kind.endswith("io.open")
    assert described["a"][1].arguments == (str(tmp_path / "ran"), "w")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [
    b"", b"\x80\x02", b"\x80\x02]q\x00h\x00a", pickle.dumps([1, {2: 3}], 0),
    pickle.dumps(frozenset({1}), 4),
    b"\x80\x02(K\x01s.", b"\x80\x02}(]K\x01u.", b"\x80\x02K\x01K\x02\x85b."])
def test_a_damaged_saved_file_is_one_error(tmp_path, content):
    with zipfile.ZipFile(tmp_path / "bad.pt", "w") as archive:
        archive.writestr("bad/data.pkl", content)
    with pytest.raises(InputError, match=r"cannot read \S+bad\.pt as a file saved by") as error:
        dgl_heta.read_saved(tmp_path / "bad.pt")
    assert "\n" not in str(error.value)


def test_two_plugins_that_read_a_path_are_named(install):
    install("one-reader", guest("hetero_data"))
    install("other-reader", guest("hetero_data").replace('"hetero-data"', '"other-pyg"', 1))
    with pytest.raises(InputError, match=r"several plugins read .*hetero-data of one-reader, "
                                         r"other-pyg of other-reader; uninstall one"):
        open_input(str(SAVED), Plugins())


def test_an_unknown_option_of_a_reader_is_named(install):
    install("hetero-data", guest("hetero_data"))
    with pytest.raises(InputError, match=r"reader 'hetero-data' has no option 'targt'; options: "
                                         r"target, title; did you mean 'target'\?"):
        open_input(f"{SAVED}:targt=paper", Plugins())


def test_a_data_set_with_options_is_meant_beside_a_directory_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_store(academic(), tmp_path / "synthetic-mag")
    assert open_input("synthetic-mag", Plugins()).name == "academic"
    assert "mag" in open_input("synthetic-mag:scale=0.01", Plugins()).name


@pytest.fixture
def words(install, tmp_path, monkeypatch):
    """Opens the data set `words` with options."""
    install("words-plugin", guest("table_graph"))
    directory = tmp_path / "a-1=b:c, d"
    directory.mkdir()
    (directory / "said.txt").write_text("ann hi there\nben hi\ncid no no\ndan there hi no\n")
    (tmp_path / "plain.txt").write_text("ann-hi-there\nben-hi\ncid-no\ndan-hi\n")
    monkeypatch.chdir(tmp_path)
    return lambda text: open_input(text, Plugins())


@pytest.mark.parametrize(("text", "counts", "relations"), [
    ('words:path="a-1=b:c, d/said.txt"', {"person": 4, "word": 3}, 2),
    ('words:"a-1=b:c, d/said.txt",least=3,reverse=false', {"person": 4, "word": 2}, 1),
    ("words:plain.txt,separator=-", {"person": 4, "word": 3}, 2),
    ("words:plain.txt,separator=-,label=length,least=2", {"person": 4, "word": 1}, 2),
])
def test_options_may_be_paths_texts_numbers_and_switches(words, text, counts, relations):
    opened = words(text)
    assert opened.schema.node_counts == counts
    assert len(opened.schema.relations) == relations


@pytest.mark.parametrize(("text", "message"), [
    ("words:pth=x", r"dataset 'words' has no option 'pth'; options: .*did you mean 'path'"),
    ("words:least=0", r"setting dataset words\.least: .*greater than or equal to 1; got 0"),
    ("words:least=few", r"dataset words\.least: .*valid integer"),
    ("words:label=colour", r"dataset words\.label: .*'length' or 'parity'"),
    ("words:path=nowhere.txt", r"there is no file nowhere\.txt"),
    ("words:plain.txt,other.txt", r"option 'other\.txt' of 'words' is wrong; write words:key="),
    ('words:path="plain.txt', r"have a quote without an end"),
    ("debian:sid", r"option 'sid' of 'debian' is wrong; write debian:key=value"),
])
def test_what_is_wrong_with_options_is_one_line(words, text, message):
    with pytest.raises(InputError, match=message) as error:
        words(text)
    assert "\n" not in str(error.value)


def test_data_sets_show_their_options(tmp_path):
    run = heta("datasets", "--json", path=distribution(tmp_path, "words-plugin",
                                                       guest("table_graph")))
    assert run.returncode == 0, run.stderr
    (own,) = [d for d in json.loads(run.stdout) if d["name"] == "words"]
    assert own["options"] == {"path": "words.txt", "separator": " ", "least": 1, "label": "parity",
                              "reverse": True}
    run = heta("datasets", path=tmp_path)
    assert "scale=0.05,seed=0" in run.stdout


# --- partition backends -----------------------------------------------------------------------


def sorted_edges(src: np.ndarray, dst: np.ndarray) -> list[tuple[int, int]]:
    return sorted(zip(src.tolist(), dst.tolist()))


@pytest.mark.parametrize("kind", ["source", "store", "files"])
def test_a_stream_partitioner_sees_the_edges_in_chunks_whatever_the_graph_is(
        install, tmp_path, kind):
    install("edge-stream", guest("edge_stream"))
    registry = Plugins().configured(load_settings(
        None, ["plugins.edge-stream.chunk=7", "plugins.edge-stream.most_edges=300"], {}))
    graph = academic()
    if kind != "source":
        write_store(graph, tmp_path / "store")
        graph = Store(tmp_path / "store")
    if kind == "files":
        graph = graph.source()
    backend = registry.get("partition backend", "edge-stream")
    schema = graph.schema if isinstance(graph, Store) else graph.schema()
    result = backend.partition(graph, make_request(backend, schema, "auto"), tmp_path / "out")
    total = sum(schema.edge_counts.values())
    assert result.parts == -(-total // 300)
    assert sum(result.statistics["edges"]) == total
    for number, (relation, edges) in enumerate(dgl_heta.as_source(graph).edges.items()):
        (src, dst), = edges.chunks(10**9)
        pieces = [np.load(tmp_path / f"out/part{part}-{number}.npz")["edges"]
                  for part in range(result.parts)]
        written = np.concatenate(pieces, axis=1)
        np.testing.assert_array_equal(written, np.stack([src, dst])[:, result.edges[relation]])
    assert {t: sorted(ids.tolist()) for t, ids in result.nodes.items()} == {
        t: list(range(n)) for t, n in schema.node_counts.items()}


def test_chunks_of_a_store_are_its_edges_by_destination(tmp_path):
    write_store(academic(), tmp_path / "store")
    store = Store(tmp_path / "store")
    for relation, edges in store.source().edges.items():
        csc = store.relation(relation)
        want = np.repeat(np.arange(len(csc.indptr) - 1), np.diff(csc.indptr))
        for size in (1, 5, 10**6):
            chunks = list(edges.chunks(size))
            assert all(len(src) == len(dst) <= size for src, dst in chunks)
            np.testing.assert_array_equal(np.concatenate([c[0] for c in chunks]), csc.indices)
            np.testing.assert_array_equal(np.concatenate([c[1] for c in chunks]), want)


def test_statistics_and_the_number_of_parts_are_shown(tmp_path):
    site = distribution(tmp_path / "site", "edge-stream", guest("edge_stream"))
    args = ("partition", "synthetic-mag:scale=0.001", "--method", "edge-stream", "--parts", "auto",
            "--set", "plugins.edge-stream.most_edges=20000")
    run = heta(*args, "--out", tmp_path / "a", "--json", path=site)
    assert run.returncode == 0, run.stderr
    shown = json.loads(run.stdout)
    assert shown["parts"] == len(shown["statistics"]["edges"]) > 1
    assert shown["statistics"]["source"] == "hash"
    run = heta(*args, "--out", tmp_path / "b", path=site)
    assert f"{shown['parts']} partitions by edge-stream" in run.stdout
    assert "balance" in run.stdout
    run = heta("partition", "debian", "--parts", "auto", "--out", tmp_path / "c", path=site)
    assert run.returncode == 2
    assert "--parts is auto, but --method='meta' does not decide the number" in run.stderr
    run = heta("plan", "debian", "--method", "edge-stream", path=site)
    assert "method 'edge-stream' does not partition by relations" in run.stderr


def test_a_script_gets_true_maps_and_its_arguments_reach_the_backend(
        install, tmp_path, monkeypatch):
    dgl, torch = pytest.importorskip("dgl"), pytest.importorskip("torch")
    install("edge-stream", guest("edge_stream"))
    monkeypatch.setattr("dgl_heta.partition.dgl.plugins", Plugins)
    graph = dgl.heterograph({("a", "r", "b"): (torch.arange(40) % 10, torch.arange(40) % 20),
                             ("b", "q", "a"): (torch.arange(20), torch.arange(20) % 10)})
    graph.edges["r"].data["w"] = torch.arange(40)
    nodes, edges = dgl_heta.partition_graph(
        graph, "g", 3, str(tmp_path / "out"), num_hops=2, part_method="edge-stream",
        return_mapping=True, graph_formats="csc", objtype="vol", shuffle_seed=5,
        settings=["plugins.edge-stream.chunk=3"])
    config = json.loads((tmp_path / "out/g.json").read_text())
    assert (config["halo_hops"], config["formats"], config["further"]) == (
        2, "csc", {"shuffle_seed": 5})
    assert sorted(nodes["a"].tolist()) == list(range(10))
    assert nodes["a"].tolist() != list(range(10))
    weights = np.concatenate([np.load(tmp_path / f"out/part{part}-0.npz")["w"]
                              for part in range(3)])
    np.testing.assert_array_equal(graph.edges["r"].data["w"][edges["a", "r", "b"]], weights)
    with pytest.raises(InputError, match="takes no argument 'shufle_seed'"):
        dgl_heta.partition_graph(graph, "g", 3, str(tmp_path / "no"), part_method="edge-stream",
                                 shufle_seed=5)


# --- cuts -------------------------------------------------------------------------------------


def test_a_relation_is_cut_by_a_plugin_that_sees_its_edges(tmp_path):
    """A hub has most of the edges of one relation: ranges of destinations are far from even."""
    site = distribution(tmp_path / "site", "hub-cut", guest("hub_cut"))
    source = academic(papers=120)
    cites = Relation("paper", "cites", "paper")
    dst = np.arange(600) ** 3 // 600**2 // 5
    source.edges[cites] = dgl_heta.EdgeArrays(np.arange(600) % 120, np.minimum(dst, 119))
    write_store(source, tmp_path / "store")
    common = ("--parts", 2, "--target", "paper", "--method", "hub-cut", "--replication", "none")
    run = heta("partition", tmp_path / "store", "--out", tmp_path / "out", *common, "--json",
               "--set", "plugins.hub-cut.chunk=9", path=site)
    assert run.returncode == 0, run.stderr
    _, plan = open_partition(tmp_path / "out")
    counts = [p.owned[cites][1] for p in plan.partitions]
    assert sum(counts) == 600
    assert max(counts) - min(counts) <= 10
    owner = plan.ownership[cites].owner
    assert np.abs(np.diff(owner.astype(int))).sum() > 0
    run = heta("inspect", tmp_path / "out", path=site)
    assert "120 nodes" in run.stdout or "edges)" in run.stdout
    run = heta("train", tmp_path / "out", "--run-dir", tmp_path / "run", "--json", "--set",
               "train.epochs=1", "--set", "train.batch_size=32", path=site)
    assert run.returncode == 0, run.stderr
    assert json.loads((tmp_path / "run/job.json").read_text())["plan"]["ownership"]
    (file,) = [f for f in (tmp_path / "out").glob("owner-*.npy")
               if np.load(f).tobytes() == owner.tobytes()]
    flipped = 1 - np.load(file)
    np.save(file, flipped)
    run = heta("inspect", tmp_path / "out", path=site)
    assert run.returncode == 2
    assert f"{file.name} was edited or damaged" in run.stderr
    file.unlink()
    run = heta("train", tmp_path / "out", "--run-dir", tmp_path / "again", path=site)
    assert run.returncode == 2
    assert f"cannot read {tmp_path}/out/{file.name}, by which a relation is cut" in run.stderr


@pytest.mark.parametrize(("answer", "message"), [
    ("np.zeros(3, int)", r"'hub-cut' cut relation '.*' by an array <i8\[3\]; it must be \["),
    ("np.full(len(degrees), 2)", r"cut relation '.*' in pieces 0 … 2; there are 0 … 1"),
    ("np.full(len(degrees), .5)", r"by an array <f8"),
])
def test_a_wrong_cut_names_the_method_and_nothing_is_written(install, tmp_path, answer, message):
    install("hub-cut", guest("hub_cut").replace("return pieces", f"return {answer}"))
    backend = Plugins().get("partition backend", "hub-cut")
    source = academic()
    request = make_request(backend, source.schema(), 2, ["paper"], replication="none")
    with pytest.raises(InputError, match=message):
        backend.partition(source, request, tmp_path / "out")
    assert not (tmp_path / "out").exists()
