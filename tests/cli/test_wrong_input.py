"""Wrong input is one line on standard error, with the right exit status."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dgl_heta
from dgl_heta.graph.source import GraphSource
from tests.support.command_line import edge_files, refused, tree
from tests.support.graphs import academic
from tests.support.needs import lacking
from tests.support.waiting import PATIENCE


@pytest.mark.parametrize(("args", "message"), [
    (("frobnicate",), "No such command 'frobnicate'; see `dgl-heta --help`"),
    (("plan",), "Missing argument 'graph'; see `dgl-heta plan --help`"),
    (("plan", "debian", "--pats", "2"), "No such option.*--pats"),
    (("plan", "debian", "--parts", "two"), "'--parts'"),
    (("partition", "debian"), "Missing option '--out'"),
    (("plan", "debain"), "'debain' is no file, directory or data set.*did you mean 'debian'"),
    (("plan", "debian:scale=2"), "'debian' has no option 'scale'"),
    (("plan", "synthetic-mag:scael=1"), "did you mean 'scale'"),
    (("plan", "synthetic-mag:scale"), "write synthetic-mag:key=value"),
    (("plan", "synthetic-mag:scale=much"), "scale=much is not a number"),
    (("plan", "synthetic-mag:scale=nan"), "scale=nan is not a number"),
    (("plan", "synthetic-mag:seed=1.5"), "seed=1.5 is not a whole number"),
    (("plan", "synthetic-mag:scale=-1"), "scale is -1"),
    (("plan", "."), "no graph can be read from '.'"),
    (("inspect", "nowhere"), "nowhere is neither a relation store nor a partition"),
    (("plan", "debian", "--batch-size", "0"), "--batch-size is 0; it must be 1 or more"),
    (("plan", "debian", "--method", "mta"), "unknown partition backend 'mta'.*did you mean 'meta'"),
    (("plan", "debian", "--method", "metis"), "no plan to show"),
    (("plan", "debian", "--metapaths", "nowhere.json"), "cannot read metapaths nowhere.json"),
    (("plan", "de\x1b[31mbian\n\nx"), "is no file, directory or data set"),
])
def test_wrong_commands_are_one_line_and_status_2(heta, tmp_path, monkeypatch, args, message):
    monkeypatch.chdir(tmp_path)
    result = heta(*args)
    refused(result, message)
    assert "\x1b" not in result.err
    assert tree(tmp_path) == {}


def no_edges_into(target: str) -> GraphSource:
    source = academic()
    source.edges = {r: e for r, e in source.edges.items() if r.dst != target}
    return source


def changed(**arrays: np.ndarray) -> GraphSource:
    source = academic()
    source.node_arrays["paper"].update(arrays)
    return source


def with_nan() -> np.ndarray:
    feat = np.zeros((60, 7))
    feat[13, 2] = np.nan
    return feat


def overwrite(name: str, array: np.ndarray):
    return lambda files: np.save(files / name, array)


IDS = np.arange(180) % 12

BAD_GRAPHS = {
    "unknown target": (academic, None, ("--target", "papr"),
                       "'papr' is not in the graph.*did you mean 'paper'"),
    "no relation into the target": (lambda: no_edges_into("institution"), None,
                                    ("--target", "institution"),
                                    "no relation ends at target node type 'institution'"),
    "no parts": (academic, None, ("--parts", "0"), "number of partitions is 0; .*1 to 4,096"),
    "negative parts": (academic, None, ("--parts", "-3"), "number of partitions is -3"),
    "no hops": (academic, None, ("--hops", "0"), "number of hops is 0"),
    "empty relation": (academic, lambda files: [np.save(files / f"cites-{side}.npy", IDS[:0])
                                                for side in ("src", "dst")], (),
                       "relation 'paper cites paper' has 0 edges; it must have at least 1"),
    "source id too large": (academic, overwrite("cites-src.npy", IDS + 60), (),
                            "'paper cites paper'.*source id 60.*'paper' has 60 nodes"),
    "negative destination id": (academic, overwrite("cites-dst.npy", IDS - 1), (),
                                "'paper cites paper'.*destination id -1"),
    "unequal lengths": (academic, overwrite("cites-src.npy", IDS[:-1]), (),
                        "cites-src.npy.* 179 .*180"),
    "wrong rows of features": (academic, overwrite("paper-feat.npy", np.zeros((59, 7))), (),
                               "'feat' of node type 'paper'.*59 rows.* 60 "),
    "NaN in features": (lambda: changed(feat=with_nan()), None, (),
                        "'feat' of node type 'paper'.*not finite"),
    "label out of range": (lambda: changed(label=np.full(60, 9)), None, (),
                           "class 9.*classes go from 0 to 3"),
}


ONLY_META = ("no relation into the target", "no hops")  # DGL's methods have no metatree


@pytest.mark.parametrize(("method", "case"), [
    (method, case) for method in ("meta", "random") for case in BAD_GRAPHS
    if method == "meta" or case not in ONLY_META])
def test_wrong_graphs_are_one_line_and_leave_nothing(heta, tmp_path, case, method):
    make, change, args, message = BAD_GRAPHS[case]
    if method == "random":
        pytest.importorskip("dgl")
    files = edge_files(tmp_path / "files", make())
    if change:
        change(files)
    before = tree(tmp_path)
    refused(heta("partition", files, "--out", tmp_path / "new/out", "--method", method, *args),
            message)
    assert tree(tmp_path) == before


def test_a_node_type_without_edges_is_named(heta, tmp_path):
    source = academic()
    source.node_counts["venue"] = 5
    files = edge_files(tmp_path / "files", source)
    for method in ("meta",) if lacking("dgl") else ("meta", "metis"):
        refused(heta("partition", files, "--out", tmp_path / "out", "--method", method),
                "node type 'venue' has no edges")


@pytest.mark.parametrize(("metapaths", "message"), [
    ([["topic"]], "ends at 'field', not at the target 'paper'"),
    ([["sites"]], "relation 'sites' is not in the graph.*did you mean 'cites'"),
    ([["writes", "cites"], ["at", "writes"]], "is broken: 'author at institution' ends at"),
    ([[]], "metapath is empty"),
    ([], "must be a list of metapaths"),
    ({"writes": 1}, "must be a list of metapaths"),
    ([[7]], "a relation is 7"),
])
def test_wrong_metapaths_are_named(heta, store, tmp_path, metapaths, message):
    file = tmp_path / "metapaths.json"
    file.write_text(json.dumps(metapaths))
    before = tree(tmp_path)
    for command in (("plan",), ("partition", "--out", tmp_path / "out")):
        refused(heta(*command, store, "--metapaths", file), message)
    assert tree(tmp_path) == before


def test_metapaths_with_a_method_of_dgl_are_refused(heta, store, tmp_path):
    pytest.importorskip("dgl")
    file = tmp_path / "metapaths.json"
    file.write_text('[["writes"]]')
    refused(heta("partition", store, "--out", tmp_path / "out", "--metapaths", file,
                 "--method", "metis"), "metapaths go with meta-partitioning, not with .*'metis'")


def test_a_graph_without_a_task_needs_a_target(heta, mag, tmp_path):
    refused(heta("plan", mag), "needs --target.*author, field, institution, paper")
    refused(heta("partition", mag, "--out", tmp_path / "out", "--target", "paper"),
            "is a schema without edges")


def test_a_truncated_store_is_not_partitioned(heta, store, tmp_path):
    file = max(store.rglob("*.npy"), key=lambda f: f.stat().st_size)
    file.write_bytes(file.read_bytes()[:-8])
    before = tree(tmp_path)
    refused(heta("partition", store, "--out", tmp_path / "out"), f"{file} has .* bytes")
    assert tree(tmp_path) == before


def test_an_output_that_cannot_be_made_is_named(heta, store, tmp_path):
    (tmp_path / "file").write_text("")
    before = tree(tmp_path)
    for out in (tmp_path / "file/out", tmp_path / ("x" * 300)):
        result = heta("partition", store, "--out", out)
        refused(result, re.escape(str(out)), result.status)
        assert result.status
    assert tree(tmp_path) == before


FULL_DISK = """
mount -t tmpfs -o size=64k tmpfs "$DISK" || exit 99
for method in meta random; do
    "$PYTHON" -m dgl_heta partition "$FILES" --out "$DISK/out" --method $method; echo "status $?"
    ls -A "$DISK"
done
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare for a small disk")
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    pytest.importorskip("dgl")
    (tmp_path / "disk").mkdir()
    # All of the data fits, the blocks that its many files take do not.
    run = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "bash", "-c", FULL_DISK], capture_output=True,
        text=True, timeout=PATIENCE, check=False, cwd=Path(dgl_heta.__file__).parents[1],
        env={**os.environ, "PYTHON": sys.executable, "DISK": str(tmp_path / "disk"),
             "FILES": str(edge_files(tmp_path / "files"))})
    if run.returncode == 99 or "unshare" in run.stderr:
        pytest.skip(f"no small disk can be mounted here: {run.stderr.strip()}")
    assert run.stdout.splitlines() == ["status 1", "status 1"]
    errors = run.stderr.splitlines()
    assert len(errors) == 2
    for line in errors:
        assert re.match(r"error: .*(no space left on the disk|the disk has)", line)


def test_the_process_ends_with_the_same_status(tmp_path):
    for args, status in ((("plan", "debain"), 2), (("plan", "debian", "--svg", "no/where.svg"), 1)):
        run = subprocess.run([sys.executable, "-m", "dgl_heta", *args], capture_output=True,
                             text=True, timeout=PATIENCE, check=False, cwd=tmp_path)
        assert run.returncode == status
        (line,) = run.stderr.splitlines()
        assert line.startswith("error: ")


def test_a_failure_of_dgl_itself_is_one_line(heta, store, tmp_path):
    pytest.importorskip("dgl")
    refused(heta("partition", store, "--out", tmp_path / "out", "--method", "random",
                 "--parts", 60), r"partition_graph \(part_method='random'\) failed for 60", 1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("args", [
    ("plan", "x" * 100_000), ("plan", "debian", "--method", "x" * 100_000),
    ("plan", "debian", "--target", "paper " * 20_000), ("settings", "--set", "x" * 100_000),
    ("plan", "debian", "--parts", "9" * 4000), ("x" * 100_000,),
    ("plan", "debian", "--hops", "1000000"), ("plan", "debian", "--parts", "65536"),
])
def test_messages_are_short_whatever_they_quote(heta, args):
    result = heta(*args)
    refused(result, "error: ")
    assert len(result.err) < 1000
