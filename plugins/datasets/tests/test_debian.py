"""The dataset `debian`: its parser, its build, the snapshot in the package."""

from __future__ import annotations

import json

import numpy as np
import pytest
from dgl_heta_datasets import debian
from dgl_heta_datasets.debian.building import DROPPED_FACETS
from dgl_heta_datasets.debian.snapshot import WORD_BUCKETS, write

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import MASKS, GraphSource
from tests.support.debian import tiny_arrays


@pytest.fixture(scope="module")
def snapshot() -> GraphSource:
    return debian.load()


# -- the snapshot in the package ---------------------------------------------------------


def test_snapshot_is_small_and_holds_no_names_of_packages_or_people():
    assert debian.SNAPSHOT.stat().st_size < 7_000_000
    with np.load(debian.SNAPSHOT, allow_pickle=False) as file:
        assert all(file[name].dtype.kind in "iuf" for name in file.files)
        meta = json.loads(file["meta"].tobytes())
    assert set(meta) == {"format", "date", "release", "classes", "tags", "node_counts",
                         "relations"}
    assert "@" not in json.dumps(meta)


def test_snapshot_has_the_node_types_and_relations_of_the_archive(snapshot):
    assert snapshot.name == "debian"
    assert set(snapshot.node_counts) == {"package", "source", "maintainer", "tag", "virtual",
                                         "site"}
    forward = {"depends": "package", "recommends": "package", "suggests": "package",
               "enhances": "package", "conflicts": "package", "provides": "virtual",
               "depends-virtual": "virtual", "built-from": "source",
               "maintained-by": "maintainer", "tagged": "tag", "homepage-at": "site"}
    expected = {Relation("package", etype, dst) for etype, dst in forward.items()}
    expected |= {Relation(dst, f"rev-{etype}", "package") for etype, dst in forward.items()}
    assert set(snapshot.edges) == expected
    assert snapshot.node_counts["package"] > 50_000
    assert snapshot.info["packages"] == snapshot.node_counts["package"]


def test_snapshot_reverses_are_exact_transposes(snapshot):
    for relation, edges in snapshot.edges.items():
        assert edges.num_edges > 0
        if relation.etype.startswith("rev-"):
            continue
        back = snapshot.edges[Relation(relation.dst, f"rev-{relation.etype}", relation.src)]
        assert np.array_equal(edges.src, back.dst)
        assert np.array_equal(edges.dst, back.src)
        keys = edges.src.astype(np.int64) * snapshot.node_counts[relation.dst] + edges.dst
        assert len(np.unique(keys)) == edges.num_edges, f"{relation} has parallel edges"
        if relation.dst == "package":
            assert not (edges.src == edges.dst).any(), f"{relation} has self-loops"


def test_snapshot_ids_are_in_range_and_every_node_beside_packages_has_an_edge(snapshot):
    for relation, edges in snapshot.edges.items():
        for ntype, nodes in ((relation.src, edges.src), (relation.dst, edges.dst)):
            assert nodes.min() >= 0
            assert nodes.max() < snapshot.node_counts[ntype]
            if ntype not in ("package", "virtual"):
                assert len(np.unique(nodes)) == snapshot.node_counts[ntype]


def test_snapshot_labels_features_and_task_fit_together(snapshot):
    package = snapshot.node_arrays["package"]
    classes = snapshot.info["classes"]
    assert snapshot.task.target == "package"
    assert snapshot.task.num_classes == len(classes) == len(set(classes))
    label, feat = package["label"], package["feat"]
    assert label.dtype == np.int64
    assert label.min() >= -1
    assert np.bincount(label[label >= 0], minlength=len(classes)).min() >= 100
    assert feat.shape == (snapshot.node_counts["package"], WORD_BUCKETS + 8)
    assert feat.dtype == np.float32
    assert np.isfinite(feat).all()
    assert np.linalg.norm(feat[:, :WORD_BUCKETS], axis=1).max() < 1.001
    assert set(snapshot.node_arrays) == {"package"}, "all other types need learnable features"


def test_snapshot_splits_are_disjoint_and_cover_the_labelled_packages(snapshot):
    package = snapshot.node_arrays["package"]
    masks = np.stack([package[name] for name in MASKS])
    assert masks.dtype == bool
    assert np.array_equal(masks.sum(axis=0), package["label"] >= 0)
    shares = masks.sum(axis=1) / masks.sum()
    assert np.allclose(shares, [0.6, 0.2, 0.2], atol=0.05)
    for mask in masks:
        assert len(np.unique(package["label"][mask])) == snapshot.task.num_classes


def test_snapshot_has_no_source_in_two_splits(snapshot):
    built = snapshot.edges[Relation("package", "built-from", "source")]
    package = snapshot.node_arrays["package"]
    seen = [np.unique(built.dst[package[name][built.src]]) for name in MASKS]
    everything = np.concatenate(seen)
    assert len(np.unique(everything)) == len(everything)


def test_no_tag_restates_the_section(snapshot):
    sections = set(snapshot.info["classes"])
    facets = {tag.split("::")[0] for tag in snapshot.info["tags"]}
    assert not facets & (sections | DROPPED_FACETS | {"game"})
    tagged = snapshot.edges[Relation("package", "tagged", "tag")]
    label = snapshot.node_arrays["package"]["label"]
    known = label[tagged.src] >= 0
    table = np.zeros((len(snapshot.info["tags"]), len(sections)), dtype=np.int64)
    np.add.at(table, (tagged.dst[known], label[tagged.src[known]]), 1)
    largest, total = table.max(axis=1), table.sum(axis=1)
    assert (largest < 0.8 * total)[total >= 10].all()
    assert largest.sum() / total.sum() < 0.5, "a vote of each tag for its largest section"


def test_features_alone_tell_something_but_not_the_section(snapshot):
    """The nearest class mean, on standardised features; the majority class has 10 %."""
    package = snapshot.node_arrays["package"]
    feat, label, train, test = (package[name] for name in
                                ("feat", "label", "train_mask", "test_mask"))
    feat = (feat - feat[train].mean(axis=0)) / (feat[train].std(axis=0) + 1e-6)
    means = np.stack([feat[train & (label == c)].mean(axis=0)
                      for c in range(snapshot.task.num_classes)])
    scores = feat[test] @ means.T - (means ** 2).sum(axis=1) / 2
    accuracy = (scores.argmax(axis=1) == label[test]).mean()
    assert 0.1 < accuracy < 0.5
    for column in feat.T[:WORD_BUCKETS]:
        used = label[(np.abs(column - np.median(column)) > 1e-3) & (label >= 0)]
        assert np.bincount(used).max() / len(used) < 0.8


# -- damaged files -----------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_a_truncated_snapshot_is_refused_by_name(tmp_path, share):
    path = tmp_path / "cut.npz"
    content = debian.SNAPSHOT.read_bytes()
    path.write_bytes(content[:int(len(content) * share)])
    with pytest.raises(InputError, match=r"cut\.npz"):
        debian.load(path)


def test_a_flipped_byte_is_noticed(tmp_path):
    path = tmp_path / "flipped.npz"
    content = bytearray(debian.SNAPSHOT.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"flipped\.npz"):
        debian.load(path)


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match=r"none\.npz does not exist"):
        debian.load(tmp_path / "none.npz")


def test_other_files_are_refused(tmp_path):
    single = tmp_path / "single.npy"
    np.save(single, np.arange(3))
    with pytest.raises(InputError, match="single array"):
        debian.load(single)
    other = tmp_path / "other.npz"
    np.savez(other, x=np.arange(3))
    with pytest.raises(InputError, match=r"other\.npz: its format is None"):
        debian.load(other)


def test_pickled_content_is_never_run(tmp_path):
    path = tmp_path / "pickled.npz"
    arrays = dict(tiny_arrays(), label=np.array([{"a": 1}] * 5, dtype=object))
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=r"pickled\.npz"):
        debian.load(path)


@pytest.mark.parametrize(("name", "value", "message"), [
    ("label", np.array([0, 7, 0, 0, 0]), "label has values"),
    ("label", np.zeros(4, int), "'label' has 4 rows"),
    ("dst_0", np.array([1, 2, 99]), "relation 'depends' has values"),
    ("dst_0", np.array([1, 2]), "relation 'depends' has 2 edges"),
    ("degree_0", np.array([3]), "degrees has shape"),
    ("degree_0", np.array([3, 0, 0, 0, 2**30]), "degrees does not add up to 3"),
    ("word_column", np.array([200], np.uint8), "word_column has values"),
    ("split", None, "split"),
    ("meta", np.frombuffer(b"[]", np.uint8), "damaged"),
])
def test_a_snapshot_with_wrong_content_is_refused(tmp_path, name, value, message):
    arrays = tiny_arrays()
    if value is None:
        del arrays[name]
    else:
        arrays[name] = value
    path = tmp_path / "wrong.npz"
    write(path, arrays)
    with pytest.raises(InputError, match=message) as caught:
        debian.load(path)
    assert "wrong.npz" in str(caught.value)
