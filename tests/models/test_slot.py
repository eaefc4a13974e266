"""Keys of weights: what is different in the graph has weights of its own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dgl_heta import Relation, slot
from dgl_heta.graph.schema import Schema
from dgl_heta.hooks.manager import plugins
from dgl_heta.models import ModelSpec, find_model

NAMES = st.text(st.sampled_from("ab:.% /_\u00e93"), max_size=5) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)
THINGS = NAMES | st.builds(Relation, NAMES, NAMES, NAMES)


@given(THINGS, THINGS)
def test_different_names_and_relations_have_different_keys(one, other):
    assert (slot(one) == slot(other)) == (one == other)
    assert "." not in slot(one)
    nn.ModuleDict({slot(one): nn.Identity()})


def test_ordinary_names_keep_their_keys():
    """Models that were saved once can be loaded."""
    assert slot("paper") == "of paper"
    assert slot(Relation("author", "writes-1", "paper")) == "of author:writes-1:paper"
    assert slot(Relation("a.b", "50%", "c")) == "of a%2Eb:50%25:c"


def test_relations_whose_joined_names_agree_have_weights_of_their_own():
    one, other = Relation("a:b", "c", "t"), Relation("a", "b:c", "t")
    schema = Schema({"a:b": 3, "a": 3, "t": 3}, {one: 3, other: 3})
    spec = ModelSpec(schema, {t: 4 for t in schema.node_types}, frozenset(), {"t": 2}, layers=1,
                     hidden=4)
    for name in ("rgcn", "rgat", "hgt", "han"):
        state = find_model(plugins(), name).build(spec).state_dict()
        for relation in (one, other):
            assert any(f"{slot(relation)}" in key for key in state), (name, relation)
