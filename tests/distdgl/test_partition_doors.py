"""Whatever is drawn for the arguments of `partition_graph`: both doors agree, nothing is silent."""

from __future__ import annotations

import inspect
import itertools
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dgl
import dgl.distributed
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dgl_heta
from dgl_heta.partition import arguments
from tests.support.partition_doors import DOORS, GRAPH, MASK, direct, graph

ALL = torch.arange(GRAPH.num_nodes()) % 3
RIGHT: dict[str, list[Any]] = {
    "num_parts": [1, 2, 3],
    "num_hops": [None, 1, 2, 3],
    "balance_ntypes": [None, {"paper": MASK}, {}, ALL],
    "balance_edges": [False, True, 1],
    "return_mapping": [False, True],
    "num_trainers_per_machine": [1, 2],
    "objtype": ["cut", "vol"],
    "graph_formats": [None, "csc", ["coo", "csr"], []],
    "use_graphbolt": [False, 0],
    "target_ntype": [None, "paper", ["paper", "author"]],
    "metapaths": [None, [["cites"], ["writes"], ["rev-at", "writes"]]],
    "hops": [None, 1, 2, 3],
    "seed": [None, 0, 5],
    "replication": [None, "full", "none"],
    "memory_mb": [None, 100],
    "cut": [None],
    "overwrite": [True],
    "settings": [(), []],
    "store_eids": [False, True],
    "reshuffle": [True],
}
WRONG: dict[str, list[Any]] = {
    "num_parts": [0, 2.5, "auto", None],
    "num_hops": [0, "1", 1.5],
    "balance_ntypes": ["garbage", -3, {"paper": MASK[1:]}, {"papr": MASK}],
    "balance_edges": ["garbage", -3, None],
    "return_mapping": ["garbage"],
    "num_trainers_per_machine": [-3, 0, "2"],
    "objtype": ["garbage", None],
    "graph_formats": ["garbage", -3, ["csc", "x"]],
    "use_graphbolt": [True, "garbage"],
    "target_ntype": ["papr", 3, ["paper", None]],
    "metapaths": [[], [["sites"]], 3],
    "hops": [0, "two"],
    "seed": [-1, "x"],
    "replication": ["half"],
    "memory_mb": [0, "much"],
    "cut": ["evn-edges"],
    "overwrite": ["garbage"],
    "settings": [["model.layers=3"], ["plugins.none.x=1"]],
    "store_eids": ["garbage"],
    "objtypes": ["cut"],
    "num_hop": [2],
}
IDLE = ("balance_ntypes", "balance_edges", "num_trainers_per_machine", "objtype", "graph_formats",
        "store_eids", "reshuffle")
POSITIONS = list(inspect.signature(dgl.distributed.partition_graph).parameters)[4:-1]


@st.composite
def calls(draw: st.DrawFn) -> tuple[dict[str, Any], bool, int]:
    """Arguments of a call, whether one is wrong, and how many are given by position."""
    method = draw(st.sampled_from(["meta", "meta-shared", "relation-random"]))
    names = draw(st.lists(st.sampled_from(sorted({*RIGHT, *WRONG})), max_size=5, unique=True))
    wrong = draw(st.sampled_from([False, False, True]))
    chosen: dict[str, Any] = {}
    bad = False
    for name in names:
        there = RIGHT.get(name, []) + (WRONG.get(name, []) if wrong else [])
        if there:
            place = draw(st.integers(0, len(there) - 1))
            chosen[name] = there[place]
            bad |= place >= len(RIGHT.get(name, []))
    given = {"num_parts": 2, "part_method": method, **chosen}
    return given, bad, draw(st.integers(0, 4))


@dataclass
class Outcome:
    error: str
    warnings: list[str]
    result: Any
    files: dict[str, Any]


def outcome(door: Callable[..., Any], given: dict[str, Any], by_position: int, there: str,
            edge_data: bool, caplog: pytest.LogCaptureFixture) -> Outcome:
    """What a call does: its error, warnings and answer, and what is in the directory after it."""
    arguments.forget_warnings()
    caplog.clear()
    call = dict(given)
    # DGL's arguments from the first on can be given by their position, defaults in between.
    defaults = {name: parameter.default for name, parameter in
                inspect.signature(dgl_heta.partition_graph).parameters.items()}
    positional = [call.pop(name, defaults[name]) for name in POSITIONS[:by_position]]
    with tempfile.TemporaryDirectory() as where:
        out = Path(where) / "out"
        if there != "nothing":
            out.mkdir()
        if there == "partition":
            out.rmdir()
            direct(graph(), "old", 2, str(out), part_method="meta")
        if there == "stranger":
            (out / "thesis.tex").write_text("years of work")
        error, result = "", None
        try:
            result = door(graph(edge_data), "g", call.pop("num_parts"), str(out), *positional,
                          **call)
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}".replace(where, "")
        lines = [r.getMessage().replace(where, "") for r in caplog.records if r.name == "dgl_heta"]
        files = {str(p.relative_to(where)): p.read_bytes() for p in sorted(out.rglob("*"))
                 if p.is_file() and p.name != "manifest.json"}  # which has the time
    return Outcome(error, lines, result, files)


@settings(max_examples=60, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls(), st.sampled_from(["nothing", "empty", "partition", "stranger"]), st.booleans())
def test_both_doors_agree_and_nothing_is_silent(caplog, call, there, edge_data):
    given, bad, by_position = call
    one, other = (outcome(door, given, by_position, there, edge_data, caplog) for door in DOORS)
    assert (one.error, one.warnings, one.files) == (other.error, other.warnings, other.files)
    assert same(one.result, other.result)
    if there == "stranger":
        assert one.files == {"out/thesis.tex": b"years of work"}
    if bad or there == "stranger":
        assert one.error.startswith("InputError: ")
    if one.error:
        assert one.error.startswith("InputError: ")
        assert "out/g.json" not in one.files
        return
    plan = json.loads(one.files["out/plan.json"])["plan"]
    text = "\n".join(one.warnings)
    for name, value in given.items():
        if name in IDLE and asks(name, value):
            assert f"{name} (" in text, (name, value)
    depth = given.get("hops") or max(given.get("num_hops") or 1, 1)
    if depth > 1 or given.get("hops"):
        assert plan["hops"] == depth
    elif not given.get("metapaths"):
        assert plan["hops"] == 2
    if given.get("num_hops") not in (None, plan["hops"]):
        assert f"num_hops={given['num_hops']} has no effect" in text
    assert "edge data" not in text
    assert (one.result is not None) == given.get("return_mapping", False)


def asks(name: str, value: Any) -> bool:
    """Whether a value is another than DGL's default, or what means the same."""
    theirs = inspect.signature(dgl.distributed.partition_graph).parameters
    usual = theirs[name].default if name in theirs else False
    return value is not usual and not (isinstance(value, list) and not value)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple):
        return all(itertools.starmap(same, zip(one, other, strict=True)))
    if isinstance(one, dict):
        return set(one) == set(other) and all(torch.equal(one[key], other[key]) for key in one)
    return one is other
