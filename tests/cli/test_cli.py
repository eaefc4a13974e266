"""What a user of the command line sees: outputs, exit statuses, one clear line per error."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dgl_heta
from dgl_heta import cli
from dgl_heta.graph.source import GraphSource
from dgl_heta.planning.plan import Plan
from dgl_heta.store import Store, write_store
from tests.support.graphs import RELATIONS, academic
from tests.support.needs import lacking
from tests.support.waiting import PATIENCE

MAG = {
    "node_counts": {"author": 1_134_649, "field": 59_965, "institution": 8_740, "paper": 736_389},
    "relations": [
        {"src": src, "etype": etype, "dst": dst, "edges": edges} for src, etype, dst, edges in (
            ("author", "affiliated", "institution", 1_043_998),
            ("institution", "rev-affiliated", "author", 1_043_998),
            ("author", "writes", "paper", 7_145_660),
            ("paper", "rev-writes", "author", 7_145_660),
            ("paper", "has_topic", "field", 7_505_078),
            ("field", "rev-has_topic", "paper", 7_505_078),
            ("paper", "cites", "paper", 10_832_542))],
    "feature_bytes": {"paper": 512},
}
COMMANDS = sorted(typer.main.get_command(cli.app).commands)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out.splitlines()[-1])


@pytest.fixture
def heta(capsys, monkeypatch):
    """Run a command in this process, through the entry point."""

    def run(*args: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["dgl-heta", *map(str, args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        code = end.value.code
        return Result(0 if code is None else int(code), *capsys.readouterr())

    return run


@pytest.fixture
def mag(tmp_path) -> Path:
    path = tmp_path / "mag.json"
    path.write_text(json.dumps(MAG))
    return path


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("store") / "academic"
    write_store(academic(), path)
    return path


@pytest.fixture
def store(shared_store, tmp_path) -> Path:
    return Path(shutil.copytree(shared_store, tmp_path / "store"))


def edge_files(directory: Path, source: GraphSource | None = None, **changes: Any) -> Path:
    """A graph as edge files; `changes` are called with the metadata or replace its entries."""
    source = source or academic()
    directory.mkdir(exist_ok=True)
    nodes: dict[str, Any] = {}
    for ntype, count in source.node_counts.items():
        nodes[ntype] = {"count": count, "arrays": {}}
        for name, array in source.node_arrays.get(ntype, {}).items():
            np.save(directory / f"{ntype}-{name}.npy", array)
            nodes[ntype]["arrays"][name] = f"{ntype}-{name}.npy"
    edges = []
    for relation, arrays in source.edges.items():
        ((src, dst),) = arrays.chunks(2**30)
        for side, ids in (("src", src), ("dst", dst)):
            np.save(directory / f"{relation.etype}-{side}.npy", ids)
        edges.append({**relation._asdict(), "files": [
            {f"{side}_file": f"{relation.etype}-{side}.npy" for side in ("src", "dst")}]})
    task = {"target": source.task.target, "num_classes": source.task.num_classes}
    metadata = {"name": source.name, "nodes": nodes, "edges": edges, "task": task, **changes}
    (directory / "metadata.json").write_text(json.dumps(metadata))
    return directory


def graphbolt(directory: Path) -> Path:
    """Papers and authors as a GraphBolt data set."""
    (directory / "data").mkdir(parents=True)
    np.save(directory / "data/ids.npy", np.arange(20))
    np.save(directory / "data/labels.npy", np.arange(20) % 3)
    for name in ("writes", "rev-writes"):
        np.save(directory / f"data/{name}.npy", np.stack([np.arange(20), np.arange(20)[::-1]]))
    (directory / "metadata.yaml").write_text("""
dataset_name: bolt
graph:
  nodes: [{type: author, num: 20}, {type: paper, num: 20}]
  edges:
  - {type: "author:writes:paper", format: numpy, path: data/writes.npy}
  - {type: "paper:rev-writes:author", format: numpy, path: data/rev-writes.npy}
feature_data: []
tasks:
- name: node_classification
  num_classes: 3
  train_set:
  - type: paper
    data:
    - {name: seed_nodes, format: numpy, path: data/ids.npy}
    - {name: labels, format: numpy, path: data/labels.npy}
""")
    return directory


def tree(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() if p.is_file() else b"/"
            for p in directory.rglob("*")}


def refused(result: Result, message: str, status: int = 2) -> None:
    """One line on standard error that matches `message`, nothing else, and the exit status."""
    assert result.out == ""
    (line,) = result.err.splitlines()
    assert line.startswith("error: ")
    assert re.search(message, line), line
    assert result.status == status


# --- help ------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help_describes_the_command_with_an_example(heta, command):
    result = heta(command, "--help")
    assert (result.status, result.err) == (0, "")
    assert f"Example: dgl-heta {command}" in result.out
    for option, help_text in re.findall(r"^│ [* ]*(--\S+) .*<.+> +(.*)│", result.out, re.M):
        assert re.search(r"[a-z]{3}", help_text), f"{option} is not explained"


@pytest.mark.parametrize("args", [(), ("--help",)])
def test_help_without_a_command_lists_all(heta, args):
    result = heta(*args)
    assert (result.status, result.err) == (0, "")
    assert all(re.search(rf"^│ {name} +[A-Z]", result.out, re.M) for name in COMMANDS)


def test_version(heta):
    assert heta("--version").out == f"dgl-heta {cli.__version__}\n"


# --- plan ------------------------------------------------------------------------------------


def test_worked_example_of_the_paper_to_the_digit(heta, mag):
    plan = heta("plan", mag, "--target", "paper", "--hops", 2, "--parts", 2, "--json").json
    weights = {tuple(t["root_relation"]): t["weight"] for t in plan["sub_metatrees"]}
    assert weights == {("paper", "cites", "paper"): 27_414_283,
                       ("author", "writes", "paper"): 17_215_096,
                       ("field", "rev-has_topic", "paper"): 15_806_510}
    a, b = plan["partitions"]
    figures = [(len(p["relations"]), p["num_edges"], p["num_nodes"]) for p in (a, b)]
    assert figures == [(3, 25_483_280, 1_931_003), (5, 30_345_474, 1_939_743)]
    assert (plan["target"], plan["hops"], plan["parts"], plan["method"]) == ("paper", 2, 2, "meta")
    assert len(plan["prediction"]["partitions"]) == 2


@pytest.mark.parametrize("columns", [80, 120])
def test_plan_in_the_terminal_fits_and_shows_the_figures(heta, mag, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    result = heta("plan", mag, "--target", "paper")
    assert max(map(len, result.out.splitlines())) <= columns
    for figure in ("27,414,283", "1,931,003", "30,345,474", "rev-has_topic"):
        assert figure in result.out


def test_plan_writes_a_picture(heta, mag, tmp_path):
    result = heta("plan", mag, "--target", "paper", "--svg", tmp_path / "plan.svg")
    assert result.status == 0
    assert str(tmp_path / "plan.svg") in result.out
    assert ET.parse(tmp_path / "plan.svg").getroot().tag.endswith("svg")


def test_plan_with_metapaths_takes_hops_from_the_longest(heta, mag, tmp_path):
    file = tmp_path / "metapaths.json"
    file.write_text(json.dumps([["cites"], [["institution", "rev-affiliated", "author"],
                                            ["author", "writes", "paper"]]]))
    plan = heta("plan", mag, "--target", "paper", "--metapaths", file, "--json").json
    assert plan["hops"] == 2
    assert {t["root_relation"][1] for t in plan["sub_metatrees"]} == {"cites", "writes"}
    refused(heta("plan", mag, "--target", "paper", "--metapaths", file, "--hops", 1),
            "2 relations, but the number of hops is 1")


def test_several_targets_by_repetition_or_commas(heta, mag):
    repeated = heta("plan", mag, "--target", "paper", "--target", "author", "--json").json
    assert repeated["target"] == ["paper", "author"]
    assert heta("plan", mag, "--target", "paper,author", "--json").json == repeated


def test_a_node_type_with_a_comma_is_one_target(heta, tmp_path):
    file = tmp_path / "comma.json"
    file.write_text(json.dumps({"node_counts": {"a,b": 3}, "relations": [
        {"src": "a,b", "etype": "to", "dst": "a,b", "edges": 4}]}))
    assert heta("plan", file, "--target", "a,b", "--json").json["target"] == "a,b"


@settings(max_examples=25, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(counts=st.lists(st.integers(-2, 9), min_size=1, max_size=4), data=st.data())
def test_any_schema_is_planned_or_refused_in_one_line(heta, tmp_path, counts, data):
    types = [f"t{i}" for i in range(len(counts))]
    ends = st.sampled_from([*types, "elsewhere"])
    relations = data.draw(st.lists(st.fixed_dictionaries(
        {"src": ends, "etype": st.sampled_from("ab"), "dst": ends, "edges": st.integers(-1, 9)}),
        max_size=6))
    file = tmp_path / "any.json"
    file.write_text(json.dumps({"node_counts": dict(zip(types, counts)), "relations": relations}))
    parts = data.draw(st.integers(-1, 9))
    result = heta("plan", file, "--target", "t0", "--parts", parts, "--json")
    if result.status == 0:
        assert len(result.json["partitions"]) == parts
        assert result.err == ""
    else:
        refused(result, "")


# --- partition -------------------------------------------------------------------------------


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
    assert heta("partition", tmp_path / "p4", "--out", tmp_path / "p2").status == 0
    config = json.loads((tmp_path / "p2/academic.json").read_text())
    assert config["part-1"]["dgl_heta_store"] == "../store"
    (tmp_path / "elsewhere").mkdir()
    for name in ("store", "p2"):  # what refers to each other moves together
        shutil.move(tmp_path / name, tmp_path / "elsewhere" / name)
    assert heta("inspect", tmp_path / "elsewhere/p2").status == 0


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
    for method in ("meta",) if lacking("dgl") else ("meta", "metis"):
        refused(heta("partition", store, "--out", other, "--method", method, "--overwrite"),
                "other exists and was not written by dgl-heta")
    assert tree(other) == {"plan.json": b'{"precious": true}'}


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


# --- inspect and the lists -------------------------------------------------------------------


def test_inspect_shows_what_a_store_holds(heta, store):
    result = heta("inspect", store)
    assert "all checksums agree" in result.out
    assert "classify paper in 4 classes" in result.out
    for text in ("feat float64[7]", "label int64", "train_mask bool", "none: learnable features",
                 *(str(r) for r in RELATIONS)):
        assert text in " ".join(result.out.split())


def test_inspect_names_the_file_in_which_a_byte_was_flipped(heta, store):
    for file in sorted(store.rglob("*.npy")):
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        refused(heta("inspect", store), f"{file} was edited or damaged")
        assert heta("inspect", store, "--no-verify").status == 0
        file.write_bytes(whole[:-1])
        refused(heta("inspect", store, "--no-verify"), f"{file} has .* bytes.*truncated")
        file.write_bytes(whole)
    (store / "manifest.json").write_text(
        (store / "manifest.json").read_text().replace('"count": 60', '"count": 61'))
    refused(heta("inspect", store), "manifest.json was edited or damaged")


def test_inspect_names_an_edited_plan(heta, store, tmp_path):
    assert heta("partition", store, "--out", tmp_path / "p").status == 0
    for name in ("plan.json", "academic.json"):
        file = tmp_path / "p" / name
        whole = file.read_text()
        file.write_text(re.sub(r"\d\d+", lambda n: str(int(n[0]) + 1), whole, count=1))
        refused(heta("inspect", tmp_path / "p"), "edited|damaged|another graph")
        file.write_text(whole[:len(whole) // 2])
        refused(heta("inspect", tmp_path / "p"), f"{name} is (not JSON|damaged)")
        file.write_text(whole)
    shutil.rmtree(store)
    refused(heta("inspect", tmp_path / "p"), "store is not a relation store: cannot read manifest")


@pytest.mark.parametrize("columns", [80, 120])
def test_lists_fit_the_terminal_without_cutting(heta, store, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    for args in (("plugins",), ("datasets",), ("settings",), ("inspect", store)):
        result = heta(*args)
        assert max(map(len, result.out.splitlines())) <= columns
        assert "…" not in result.out.replace(" …", "")


def test_data_sets_are_listed_with_their_options(heta):
    listed = {d["name"]: d for d in heta("datasets", "--json").json}
    assert listed["debian"]["source"] == "built in"
    assert set(listed["synthetic-mag"]["options"]) == {"scale", "seed"}
    assert "synthetic-mag" in heta("datasets").out


def test_plugins_as_json_have_kind_name_source_version(heta):
    listed = heta("plugins", "--json").json
    assert {"kind": "partition backend", "name": "meta", "source": "built in",
            "version": cli.__version__} in listed


def test_settings_show_what_is_in_effect(heta, tmp_path, monkeypatch):
    (tmp_path / "heta.toml").write_text("[train]\nlr = 0.5\nepochs = 3\n")
    monkeypatch.setenv("DGL_HETA_TRAIN__SEED", "7")
    values = heta("settings", "-c", tmp_path / "heta.toml", "--set", "train.lr=0.25",
                  "--json").json
    assert (values["train"]["lr"], values["train"]["epochs"], values["train"]["seed"]) == (
        0.25, 3, 7)
    assert re.search(r"train\.seed +7 ", heta("settings").out)
    refused(heta("settings", "--set", "train.lrr=1"), r"train\.lrr.*did you mean 'train\.lr'")


# --- wrong input -----------------------------------------------------------------------------


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
    "no parts": (academic, None, ("--parts", "0"), "number of partitions is 0; .*1 to 65536"),
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
    for method in ("meta", "metis"):
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
