"""`dgl-heta plan`: figures, pictures, targets and metapaths."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.command_line import refused


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


@pytest.mark.parametrize("asked", [
    [], ["train.dtype=float64"], ["train.global_batch_size=30"], ["model.reduce=max"],
    ["model.layers=3", "train.fanouts=[5,4,3]"], ["model.name=hgt", "train.batch_size=9"],
    ["partition.shared=rows", "train.trainers=2", "train.global_batch_size=30"],
    ["train.learnable=replica"]])
def test_bytes_are_those_of_a_training_with_the_same_settings(heta, store, asked):
    sets = [word for value in asked for word in ("--set", value)]
    plan = heta("plan", store, "--json", *sets).json
    trained = heta("train", store, "--dry-run", "--json", *sets).json
    assert plan["prediction"]["workload"] == trained["prediction"]["workload"]
    assert plan["prediction"] == trained["prediction"]
    assert (plan["hops"], plan["shared"]) == (trained["hops"], trained["shared"])


def test_options_win_over_settings(heta, mag):
    settings = ["--set", "model.layers=3", "--set", "train.batch_size=8"]
    plan = heta("plan", mag, "--target", "paper", "--json", *settings).json
    assert (plan["hops"], plan["prediction"]["workload"]["batch_size"]) == (3, 8)
    plan = heta("plan", mag, "--target", "paper", "--json", *settings, "--hops", 1,
                "--batch-size", 4, "--fanouts", 7).json
    work = plan["prediction"]["workload"]
    assert (plan["hops"], work["batch_size"], work["fanouts"]) == (1, 4, [7])


@pytest.mark.parametrize(("asked", "targets"), [
    ("task.targets=author", "author"), ("task.relation=writes", ["author", "paper"])])
def test_a_task_of_the_settings_names_the_targets(heta, store, asked, targets):
    assert heta("plan", store, "--json", "--set", asked).json["target"] == targets
    plan = heta("plan", store, "--json", "--set", asked, "--target", "field").json
    assert plan["target"] == "field"


def test_the_plan_of_a_module_wrapper_is_shown_and_held_to_the_limit(heta, store):
    def held(*words):
        """What is shown, and the bytes that a worker holds at most."""
        shown = heta(*words, "--json").json
        return shown, max(p["topology_bytes"] + p["feature_bytes"] + p["learnable_bytes"]
                          for p in shown["prediction"]["partitions"])

    train, ddp = ("train", store, "--dry-run"), ("--set", "train.wrapper=ddp")
    (_, part), (shown, whole) = held("plan", store), held("plan", store, *ddp)
    assert held(*train, *ddp)[0] == shown
    assert shown["method"] == "ddp"
    limit = ("--set", f"partition.memory_mb={(part + whole) / 2e6:.6f}")
    for command in (train, ("plan", store)):
        assert heta(*command, *limit).status == 0
        refused(heta(*command, *limit, *ddp), "with train.wrapper = ddp a worker holds")
