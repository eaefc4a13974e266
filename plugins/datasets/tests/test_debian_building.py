"""The snapshot of Debian is built from package lists; what restates a section is left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from dgl_heta_datasets import debian
from dgl_heta_datasets.debian.building import Rules, _hashed_order, build
from dgl_heta_datasets.debian.records import (
    named_packages,
    parse_records,
    section_words,
    words,
)
from dgl_heta_datasets.debian.snapshot import write

from dgl_heta.errors import InputError
from dgl_heta.graph.source import MASKS, GraphSource
from tests.support.debian import ARCHIVE, TINY, tiny_arrays

SCRIPT = Path(__file__).parents[3] / "scripts" / "build_debian_snapshot.py"


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
    words = section_words({"libs", "gnu-r", "libdevel"})
    assert {"lib", "libs", "gnu", "libdevel", "library", "development"} <= words


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
    degrees = dict(zip(order, arrays["word_degree"].tolist(), strict=True))
    assert degrees["p0"] == 1, "only 'telling' of 'zzz telling'"
    assert degrees["p12"] == 2, "'plain' has too few packages to be judged"
    assert degrees["q0"] == 0


@pytest.mark.parametrize(("text", "message"), [
    ("", "no package records"),
    ("Package: a\nSection: net\n", "too small"),
])
def test_build_refuses_an_archive_without_classes(text, message):
    with pytest.raises(InputError, match=message):
        build(parse_records(text.splitlines()))


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
