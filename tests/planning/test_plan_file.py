"""A plan comes back from its file as it was; one that was edited or damaged is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgl_heta.errors import InputError
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.plan import Plan
from dgl_heta.system.checksums import KEY, signed
from tests.support.plans import (
    CITES,
    MAG,
    REV_AFFILIATED,
    WRITES,
    cases,
)


@pytest.mark.parametrize("arguments", [
    {"target": "paper", "hops": 2},
    {"target": ["paper", "author"], "hops": 3, "parts": 4},
    {"target": "paper", "hops": 2, "parts": 7},
    {"target": "paper", "metapaths": [(REV_AFFILIATED, WRITES), (CITES,)], "method": "own"},
], ids=["plain", "targets", "groups", "metapaths"])
def test_a_plan_survives_a_file(arguments, tmp_path):
    plan, path = make_plan(MAG, **arguments), tmp_path / "plan.json"
    plan.save(path)
    loaded = Plan.load(path)
    assert loaded == plan
    assert loaded.to_json() == plan.to_json()
    assert loaded.schema.feature_bytes == {"paper": 512}


@settings(max_examples=50, deadline=None)
@given(cases(), st.integers(1, 9))
def test_any_plan_survives_json(case, parts):
    schema, targets, hops, paths = case
    plan = make_plan(schema, targets, hops, parts, list(dict.fromkeys(paths)) if paths else None)
    data = json.loads(json.dumps(plan.to_json()))
    assert Plan.from_json(data, schema, "here") == plan


def refused(data, tmp_path) -> str:
    path = tmp_path / "plan.json"
    if isinstance(data, dict):
        data = signed({key: value for key, value in data.items() if key != KEY})
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        Plan.load(path)
    message = str(caught.value)
    assert str(path) in message or "is not in the graph" in message
    assert "Error(" not in message
    assert "Traceback" not in message
    assert "\n" not in message
    return message


def saved(tmp_path, parts: int = 2) -> dict:
    make_plan(MAG, "paper", 2, parts).save(tmp_path / "saved.json")
    return json.loads((tmp_path / "saved.json").read_text(encoding="utf-8"))


def a_relation_less(plan):
    plan["partitions"][0]["layers"]["1"].pop()


def a_sub_metatree_moved(plan):
    plan["partitions"][0]["sub_metatrees"] = [0, 1]


def a_sub_metatree_lost(plan):
    plan["partitions"][1]["sub_metatrees"] = [1]
    plan["partitions"][1]["shares"] = [[0, 1]]


def a_sub_metatree_that_is_not_there(plan):
    plan["partitions"][0]["sub_metatrees"] = [3]


def a_sub_metatree_counted_from_the_end(plan):
    plan["partitions"][0]["sub_metatrees"] = [-3]


def a_share_of_nothing(plan):
    plan["partitions"][0]["shares"] = [[0, 0]]


def half_a_share(plan):
    plan["partitions"][0]["shares"] = [[0, 2]]


def a_group_of_its_own(plan):
    plan["partitions"][1]["group"] = 1


def a_group_number_left_out(plan):
    for partition in plan["partitions"]:
        partition["group"] = 3


def a_weight(plan):
    plan["sub_metatrees"][0]["weight"] += 1


def a_partition_less(plan):
    plan["partitions"].pop()


def no_partitions(plan):
    plan["partitions"] = []
    plan["hops"] = 10**9


def many_hops(plan):
    plan["hops"] = 10**9


def another_field(plan):
    plan["note"] = "ours"


@pytest.mark.parametrize("edit", [
    a_relation_less, a_sub_metatree_moved, a_sub_metatree_lost, a_sub_metatree_that_is_not_there,
    a_sub_metatree_counted_from_the_end, a_share_of_nothing, half_a_share, a_group_of_its_own,
    a_group_number_left_out, a_weight, a_partition_less, no_partitions, many_hops,
    another_field])
def test_an_edited_plan_is_refused(edit, tmp_path):
    data = saved(tmp_path)
    edit(data["plan"])
    assert "was edited" in refused(data, tmp_path)


def test_a_change_that_nothing_contradicts_is_seen_by_the_checksum(tmp_path):
    data, path = saved(tmp_path), tmp_path / "plan.json"
    data["plan"]["method"] = "mete"
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(InputError, match=r"plan\.json was edited or damaged"):
        Plan.load(path)
    del data[KEY]
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(InputError, match=r"plan\.json was edited or damaged"):
        Plan.load(path)


def test_a_plan_of_a_graph_that_has_changed_since_is_refused(tmp_path):
    data = saved(tmp_path)
    data["schema"]["relations"][2]["edges"] += 1
    assert "was edited" in refused(data, tmp_path)
    data["schema"]["relations"].pop(2)
    refused(data, tmp_path)


@pytest.mark.parametrize(("change", "words"), [
    ({"format": "other"}, "not a dgl-heta plan"),
    ({"version": 4}, "format version 4; this dgl-heta reads versions 1 to 3"),
    ({"plan": None}, "damaged"),
    ({"plan": []}, "damaged"),
    ({"plan": {}}, "lacks the field 'target'"),
    ({"schema": []}, "node_counts"),
])
def test_a_damaged_plan_is_refused(change, words, tmp_path):
    assert words in refused({**saved(tmp_path), **change}, tmp_path)


@pytest.mark.parametrize("name", ["format", "version", "schema", "plan"])
def test_a_plan_file_without_a_field_is_refused(name, tmp_path):
    data = saved(tmp_path)
    del data[name]
    refused(data, tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b"[]", b"null"])
def test_what_is_no_plan_file_is_refused(content, tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match="is not") as caught:
        Plan.load(path)
    assert str(path) in str(caught.value)


def test_a_missing_plan_is_named(tmp_path):
    with pytest.raises(InputError, match=r"cannot read plan .*absent\.json"):
        Plan.load(tmp_path / "absent.json")


JUNK = st.sampled_from([None, True, -1, 0, 1, 2, 10**9, 1.5, "", "paper", [], {}, [[]], [None]])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_plan_with_any_value_replaced_is_refused_or_means_the_same(data):
    plan = make_plan(MAG, "paper", 2, 4)
    tree = json.loads(json.dumps(plan.to_json()))
    place, key = None, None
    inside = tree
    while isinstance(inside, dict | list) and inside and (
            place is None or data.draw(st.booleans())):
        place = inside
        keys = list(place) if isinstance(place, dict) else range(len(place))
        key = data.draw(st.sampled_from(keys))
        inside = place[key]
    if data.draw(st.booleans()):
        place[key] = data.draw(JUNK)
    else:
        del place[key]
    message, loaded = "", plan
    try:
        loaded = Plan.from_json(tree, MAG, "here")
    except InputError as error:
        message = str(error)
    assert "Error(" not in message
    assert loaded.partitions == plan.partitions
    assert loaded.sub_metatrees == plan.sub_metatrees


@pytest.mark.parametrize("ownership", [1, [1], [{}], [{"file": 1}], {"file": "x"}, None])
def test_damaged_entries_of_arrays_are_refused(ownership, tmp_path):
    data = saved(tmp_path)
    data["plan"]["ownership"] = ownership
    message = refused(data, tmp_path)
    assert "damaged" in message or "edited" in message
