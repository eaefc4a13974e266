"""A schema is checked when it is read: what is wrong is named, with what would be right."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation, Schema

GOOD = {
    "node_counts": {"author": 5, "paper": 9},
    "relations": [
        {"src": "author", "etype": "writes", "dst": "paper", "edges": 12},
        {"src": "paper", "etype": "cites", "dst": "paper", "edges": 20},
        {"src": "paper", "etype": "rev-writes", "dst": "author", "edges": 12},
    ],
    "feature_bytes": {"paper": 512},
}


def changed(**changes) -> dict:
    data = copy.deepcopy(GOOD)
    data.update(changes)
    return data


def refused(data, *words: str) -> str:
    """The message with which a schema is refused; it contains all the words."""
    with pytest.raises(InputError) as caught:
        Schema.from_json(data, "graph.json")
    message = str(caught.value)
    for word in words:
        assert word in message
    assert "\n" not in message
    assert "Error(" not in message
    return message


def test_schema_keeps_the_order_of_the_file():
    schema = Schema.from_json(GOOD)
    assert schema.node_types == ("author", "paper")
    assert [r.etype for r in schema.relations] == ["writes", "cites", "rev-writes"]
    assert schema.into == {"author": (Relation("paper", "rev-writes", "author"),),
                           "paper": (Relation("author", "writes", "paper"),
                                     Relation("paper", "cites", "paper"))}


def test_schema_survives_a_file(tmp_path):
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(GOOD), encoding="utf-8")
    schema = Schema.load(path)
    assert schema == Schema.from_json(GOOD)
    assert schema.to_json() == GOOD


@pytest.mark.parametrize("count", [-1, True, False, 2.0, 2.5, "7", None, [], float("nan")])
@pytest.mark.parametrize("where", ["nodes", "edges", "features"])
def test_a_count_that_is_no_whole_number_is_refused(where, count):
    data = copy.deepcopy(GOOD)
    if where == "nodes":
        data["node_counts"]["author"] = count
    elif where == "edges":
        data["relations"][1]["edges"] = count
    else:
        data["feature_bytes"]["paper"] = count
    named = {"nodes": "author", "edges": "relations[1]", "features": "paper"}[where]
    refused(data, named, repr(count), "whole number", "graph.json")


@pytest.mark.parametrize("count", [-3, True, 1.5, "7", None])
def test_counts_are_checked_in_schemas_that_programs_make_too(count):
    relation = Relation("a", "r", "b")
    with pytest.raises(InputError, match="nodes of type 'b'"):
        Schema({"a": 1, "b": count}, {relation: 1})
    with pytest.raises(InputError, match="edges of relation 'a r b'"):
        Schema({"a": 1, "b": 1}, {relation: count})


def test_an_empty_relation_is_named():
    data = copy.deepcopy(GOOD)
    data["relations"][0]["edges"] = 0
    refused(data, "'author writes paper'", "0 edges", "leave an empty relation out")


def test_an_empty_node_type_is_named():
    data = copy.deepcopy(GOOD)
    data["node_counts"]["author"] = 0
    refused(data, "'author'", "0 nodes", "at least 1")


def test_a_node_type_without_edges_is_named():
    data = copy.deepcopy(GOOD)
    data["node_counts"]["venue"] = 4
    refused(data, "'venue'", "no edges")


def test_a_relation_of_an_unknown_node_type_is_named_with_the_types():
    data = copy.deepcopy(GOOD)
    data["relations"].append({"src": "venue", "etype": "has", "dst": "paper", "edges": 3})
    refused(data, "'venue has paper'", "node types: author, paper")


def test_a_relation_that_is_listed_twice_is_named():
    refused(changed(relations=[*GOOD["relations"], GOOD["relations"][0]]),
            "relations[3]", "'author writes paper'", "twice")


@pytest.mark.parametrize("data", [None, 3, "text", [], {}, {"node_counts": {}},
                                  {"node_counts": []}, {"relations": []}])
def test_what_is_no_schema_is_refused(data):
    refused(data, "graph.json", "must be")


def test_a_schema_without_node_types_is_refused():
    refused({"node_counts": {}, "relations": GOOD["relations"]}, "no node types", "node_counts")


@pytest.mark.parametrize(("part", "value", "word"), [
    ("node_counts", ["paper"], "node_counts"),
    ("relations", {}, "relations"),
    ("relations", [], "relations"),
    ("relations", ["writes"], "lacks dst, edges, etype, src"),
    ("relations", [["author", "writes", "paper", 3]], "relations[0]"),
    ("relations", [{"src": "author", "dst": "paper"}], "lacks edges, etype"),
    ("feature_bytes", [1], "feature_bytes"),
    ("feature_bytes", {"venue": 4}, "unknown node type 'venue'"),
])
def test_the_wrong_part_of_a_malformed_schema_is_named(part, value, word):
    refused(changed(**{part: value}), word)


@pytest.mark.parametrize(("content", "word"), [
    (b"{", "is not JSON"), (b"", "is not JSON"), (b"\xff\xfe", "is not JSON"),
    (b"[" * 100_000, "is not JSON"), (b'{"node_counts": {"a": 1' + b"0" * 5000, "is not JSON"),
    (b"[]", "node_counts"),
])
def test_a_damaged_file_is_refused_by_name(tmp_path, content, word):
    path = tmp_path / "graph.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        Schema.load(path)
    assert str(path) in str(caught.value)
    assert word in str(caught.value)


def test_a_missing_file_and_a_directory_are_named(tmp_path):
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(InputError, match="cannot read schema") as caught:
            Schema.load(path)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("spec", ["writes", "author writes paper", "author:writes:paper",
                                  ("author", "writes", "paper"), ["author", "writes", "paper"]])
def test_a_relation_is_found_by_every_way_to_write_it(spec):
    assert Schema.from_json(GOOD).find_relation(spec) == Relation("author", "writes", "paper")


def test_a_relation_is_found_when_its_name_holds_colons_or_spaces():
    schema = Schema({"a": 1, "my type": 2}, {Relation("a", "rdf:type", "my type"): 1,
                                             Relation("my type", "is of", "a"): 1})
    assert schema.find_relation("rdf:type") == Relation("a", "rdf:type", "my type")
    assert schema.find_relation("a rdf:type my type") == Relation("a", "rdf:type", "my type")
    assert schema.find_relation("is of") == Relation("my type", "is of", "a")


def test_an_unknown_relation_is_refused_with_the_nearest():
    schema = Schema.from_json(GOOD)
    with pytest.raises(InputError, match=r"'write' is not in the graph.*did you mean 'writes'"):
        schema.find_relation("write")
    with pytest.raises(InputError, match="did you mean 'author writes paper'"):
        schema.find_relation(["author", "write", "paper"])
    for spec in ("", "a b c d", ["author", "writes"], []):
        with pytest.raises(InputError, match="relations: author writes paper"):
            schema.find_relation(spec)


def test_an_ambiguous_relation_is_refused_with_the_choices():
    schema = Schema({"a": 1, "b": 1}, {Relation("a", "to", "b"): 1, Relation("b", "to", "a"): 1})
    with pytest.raises(InputError, match="ambiguous.*a to b, b to a"):
        schema.find_relation("to")


@settings(max_examples=50, deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                        st.sampled_from(["node_counts", "relations", "feature_bytes", "src",
                                         "etype", "dst", "edges", "a"]), inner, max_size=4),
                    max_leaves=12))
def test_any_json_is_read_or_refused_with_a_message(data):
    try:
        schema = Schema.from_json(data)
    except InputError:
        return
    assert Schema.from_json(schema.to_json()) == schema


def test_a_schema_has_a_size_and_names_that_files_can_hold(tmp_path):
    path = tmp_path / "schema.json"
    path.write_text("[" + "[]," * 12_000_000 + "[]]")
    with pytest.raises(InputError, match=r"schema\.json: it has more than 33,554,432 bytes"):
        Schema.load(path)
    with pytest.raises(InputError, match="schema /dev/zero: it has more than"):
        Schema.load("/dev/zero")
    relation = {"src": "a\ud800", "etype": "x", "dst": "a\ud800", "edges": 1}
    path.write_text(json.dumps({"node_counts": {"a\ud800": 3}, "relations": [relation]}))
    with pytest.raises(InputError, match="cannot be the name of a node type"):
        Schema.load(path)
