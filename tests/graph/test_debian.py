"""The dataset `debian`: its parser, its build, the snapshot in the package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dgl_heta.errors import InputError
from dgl_heta.graph.datasets import debian
from dgl_heta.graph.datasets.debian.building import DROPPED_FACETS, Rules, _hashed_order, build
from dgl_heta.graph.datasets.debian.records import (
    named_packages,
    parse_records,
    section_words,
    words,
)
from dgl_heta.graph.datasets.debian.snapshot import WORD_BUCKETS, write
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import MASKS, GraphSource

SCRIPT = Path(__file__).parents[2] / "scripts" / "build_debian_snapshot.py"
TINY = Rules(class_packages=3, class_sources=2, word_packages=1, judged_packages=1,
             restating_share=1.1)

ARCHIVE = """\
Package: alpha
Version: 1.0-1
Installed-Size: 120
Maintainer: First Person <First@example.org>
Architecture: amd64
Pre-Depends: beta
Depends: beta:any (>= 1.0) | gamma [amd64], mail-agent, nowhere (<< 2),
 delta
Provides: shell-thing (= 1)
Description: fast alpha viewer for pictures
 The longer text is about perl and is not read.
Homepage: https://www.example.org/alpha
Tag: role::program, use::viewing, culture::TODO,
 interface::commandline
Section: net
Size: 1000

# a comment between paragraphs

Package: beta
Source: alpha (1.0)
Maintainer: The same person <first@EXAMPLE.org>
Recommends: alpha
Suggests: alpha, alpha
Provides: mail-agent
Tag: use::viewing
Homepage: http://example.org
Description: viewer plugin
Section: contrib/net

Package: gamma
Source: gamma-source
Maintainer: Second Person
Provides: mail-agent, shell-thing
Conflicts: mail-agent, beta
Breaks: beta (<< 1), gamma
Description: pictures in a terminal
Section: net
Size: none

Package: delta
Description: a collection of things
Section: doc

Package: lonely
Maintainer: Second Person
Section: misc

Package: without-a-section
Maintainer: Second Person
"""


def tiny_arrays() -> dict[str, np.ndarray]:
    return build(parse_records(ARCHIVE.splitlines()), TINY, date="2026-01-02",
                 release="a tiny archive")


def tiny(tmp_path: Path) -> GraphSource:
    path = tmp_path / "tiny.npz"
    write(path, tiny_arrays())
    return debian.load(path)


def edge_set(source: GraphSource, etype: str) -> set[tuple[int, int]]:
    relation = source.schema().find_relation(etype)
    pairs = [(int(a), int(b)) for src, dst in source.edges[relation].chunks(1000)
             for a, b in zip(src, dst, strict=True)]
    assert len(set(pairs)) == len(pairs), f"{etype} has parallel edges"
    return set(pairs)


def ids(names: str) -> dict[str, int]:
    return {name: i for i, name in enumerate(_hashed_order(names.split()))}


@pytest.fixture(scope="module")
def snapshot() -> GraphSource:
    return debian.load()


# -- reading records ---------------------------------------------------------------------


def test_parser_joins_folded_lines_and_skips_comments():
    records = list(parse_records(ARCHIVE.splitlines(keepends=True)))
    assert [r["Package"] for r in records] == [
        "alpha", "beta", "gamma", "delta", "lonely", "without-a-section"]
    assert records[0]["Depends"].endswith("nowhere (<< 2),\ndelta")
    assert records[0]["Description"].split("\n")[0] == "fast alpha viewer for pictures"
    assert "Source" not in records[0]


@pytest.mark.parametrize("text", ["", "\n\n\n", " a continuation of nothing\n", "no colon here\n"])
def test_parser_finds_no_records_in_nothing(text):
    assert list(parse_records(text.splitlines())) == []


def test_parser_reads_carriage_returns_and_a_last_record_without_blank_line():
    text = ["Package: a\r\n", "Section: net\r\n", "\r\n", "Package: b\r\n"]
    assert list(parse_records(text)) == [
        {"Package": "a", "Section": "net"}, {"Package": "b"}]


@pytest.mark.parametrize(("value", "expected"), [
    ("a", ["a"]),
    ("a (>= 1:2.0~rc1), b", ["a", "b"]),
    ("a | b | c (= 1) [amd64] <!nocheck>", ["a", "b", "c"]),
    ("python3:any, libstdc++6, a", ["python3", "libstdc++6", "a"]),
    ("a, a (<< 3),\na", ["a"]),
    ("${shlibs:Depends}, , a,", ["a"]),
    ("", []),
])
def test_dependency_fields_give_names_without_versions_and_architectures(value, expected):
    assert named_packages({"Depends": value}, ["Pre-Depends", "Depends"]) == expected


def test_words_leave_out_the_package_name_the_source_and_the_sections():
    record = {"Package": "libfoo-bar2-dev", "Source": "quux (1.0)",
              "Description": "Foo bar: Quux headers, perl 5 and 3D x (dev)\n long text"}
    assert words(record, frozenset({"perl"})) == ["and", "headers"]


def test_words_of_section_names_cover_plurals_and_what_they_abbreviate():
    found = section_words({"libs", "gnu-r", "libdevel"})
    assert {"lib", "libs", "gnu", "libdevel", "library", "development"} <= found


# -- building ----------------------------------------------------------------------------


def test_tiny_archive_becomes_the_expected_graph(tmp_path):
    source = tiny(tmp_path)
    package = ids("alpha beta gamma delta lonely")
    a, b, g, d = (package[name] for name in ("alpha", "beta", "gamma", "delta"))
    assert source.node_counts == {"package": 5, "virtual": 2, "source": 4, "maintainer": 2,
                                  "tag": 2, "site": 1}
    assert edge_set(source, "depends") == {(a, b), (a, g), (a, d)}
    assert edge_set(source, "recommends") == {(b, a)}
    assert edge_set(source, "suggests") == {(b, a)}
    assert edge_set(source, "conflicts") == {(g, b)}
    virtual = ids("mail-agent shell-thing")
    mail, shell = virtual["mail-agent"], virtual["shell-thing"]
    assert edge_set(source, "provides") == {(a, shell), (b, mail), (g, mail), (g, shell)}
    assert edge_set(source, "depends-virtual") == {(a, mail)}
    origin = ids("alpha gamma-source delta lonely")
    assert edge_set(source, "built-from") == {
        (a, origin["alpha"]), (b, origin["alpha"]), (g, origin["gamma-source"]),
        (d, origin["delta"]), (package["lonely"], origin["lonely"])}
    first, second = (_hashed_order(["first@example.org", "second person"]).index(name)
                     for name in ("first@example.org", "second person"))
    assert edge_set(source, "maintained-by") == {
        (a, first), (b, first), (g, second), (package["lonely"], second)}
    assert source.info["tags"] == ["interface::commandline", "use::viewing"]
    assert edge_set(source, "tagged") == {(a, 0), (a, 1), (b, 1)}
    assert edge_set(source, "homepage-at") == {(a, 0), (b, 0)}
    assert not any("enhances" in relation.etype for relation in source.edges)


def test_tiny_archive_labels_only_large_sections(tmp_path):
    source = tiny(tmp_path)
    package = ids("alpha beta gamma delta lonely")
    label = source.node_arrays["package"]["label"]
    assert source.info["classes"] == ["net"]
    assert {name for name, i in package.items() if label[i] == 0} == {"alpha", "beta", "gamma"}
    masks = np.stack([source.node_arrays["package"][name] for name in MASKS])
    assert masks.sum(axis=0).tolist() == (label >= 0).astype(int).tolist()
    assert source.info["date"] == "2026-01-02"
    assert source.info["release"] == "a tiny archive"


def test_build_does_not_depend_on_the_order_of_records():
    records = list(parse_records(ARCHIVE.splitlines()))
    forward = build(records, TINY)
    backward = build(reversed(records), TINY)
    assert forward.keys() == backward.keys()
    assert all(np.array_equal(forward[name], backward[name]) for name in forward)


def test_build_leaves_out_words_tags_and_sites_that_restate_a_section():
    """Ten packages of one section with a word, tag and site that no other section has."""
    records = [
        {"Package": f"p{i}", "Section": "games" if i < 10 else "net",
         "Description": "zzz telling" if i < 10 else "plain telling",
         "Tag": ("suite::zzz, " if i < 10 else "") + "scope::utility, game::arcade",
         "Homepage": f"https://{'zzz' if i < 10 else 'host'}.example.org/"}
        for i in range(15)] + [{"Package": f"q{i}", "Section": "games",
                                "Homepage": "https://host.example.org"} for i in range(9)]
    rules = Rules(class_packages=5, class_sources=5, word_packages=1)
    arrays = build(records, rules)
    meta = json.loads(arrays["meta"].tobytes())
    assert meta["tags"] == ["scope::utility"]
    assert meta["node_counts"]["site"] == 1
    order = _hashed_order(r["Package"] for r in records)
    found = dict(zip(order, arrays["word_degree"].tolist(), strict=True))
    assert found["p0"] == 1, "only 'telling' of 'zzz telling'"
    assert found["p12"] == 2, "'plain' has too few packages to be judged"
    assert found["q0"] == 0


@pytest.mark.parametrize(("text", "message"), [
    ("", "no package records"),
    ("Package: a\nSection: net\n", "too small"),
])
def test_build_refuses_an_archive_without_classes(text, message):
    with pytest.raises(InputError, match=message):
        build(parse_records(text.splitlines()))


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


# -- the script --------------------------------------------------------------------------


def large_archive() -> str:
    return "\n".join(f"Package: p{i}\nSource: s{i // 2}\nSection: {'net' if i % 4 < 2 else 'doc'}\n"
                     f"Depends: p{i // 3}\nMaintainer: someone\nDescription: thing {i % 7}\n"
                     for i in range(480))


def run_script(*arguments: object, **environment: str) -> tuple[int, str, str]:
    """Exit status, output and messages of the script."""
    done = subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True,
                          text=True, check=False, env={**os.environ, **environment})
    return done.returncode, done.stdout, done.stderr


def test_script_builds_a_snapshot_from_a_file(tmp_path):
    records, output = tmp_path / "records.txt", tmp_path / "out.npz"
    records.write_text(large_archive(), encoding="utf-8")
    arguments = ["--input", records, "--output", output, "--date", "2026-01-02"]
    status, out, messages = run_script(*arguments)
    assert status == 0
    assert f"{output.stat().st_size:,} bytes" in out
    assert "classes: 2" in out
    assert "read 480 records" in messages
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.npz", "records.txt"]
    first = output.read_bytes()
    assert run_script(*arguments)[0] == 0
    assert output.read_bytes() == first
    assert zipfile.is_zipfile(output)


def test_script_says_what_to_do_without_records(tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_text("", encoding="utf-8")
    output = tmp_path / "out.npz"
    status, _, messages = run_script("--input", empty, "--output", output)
    assert status == 2
    assert "no package records" in messages
    assert not output.exists()
    status, _, messages = run_script("--input", tmp_path / "none.txt", "--output", output)
    assert status == 2
    assert "cannot read" in messages


def test_script_says_what_to_do_without_apt(tmp_path):
    status, _, messages = run_script("--output", tmp_path / "out.npz", PATH=str(tmp_path))
    assert status == 2
    assert "--input FILE" in messages


def test_script_asks_for_package_lists_when_apt_has_none(tmp_path):
    (tmp_path / "apt-cache").symlink_to("/bin/true")
    status, _, messages = run_script("--output", tmp_path / "out.npz", PATH=str(tmp_path))
    assert status == 2
    assert "apt-get update" in messages


def test_script_keeps_the_old_snapshot_when_it_cannot_write(tmp_path):
    records = tmp_path / "records.txt"
    records.write_text(large_archive(), encoding="utf-8")
    output = tmp_path / "no-such-folder" / "out.npz"
    status, _, messages = run_script("--input", records, "--output", output)
    assert status == 2
    assert "cannot write" in messages
