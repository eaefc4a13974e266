"""`partition.shared`: every door decides the same, and says by whose word and why."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgl_heta import InputError, Relation, Schema, make_plan
from dgl_heta.planning.offloading import SharingDecision
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.shared_rows import (
    share_rows,
    share_rows_as_partitioned,
    share_rows_in_training,
)
from dgl_heta.planning.workload import Workload
from dgl_heta.settings import Origin, Settings, load_settings

SCHEMA = Schema(
    {"author": 1000, "paper": 700}, {
        Relation("author", "writes", "paper"): 7000,
        Relation("paper", "cites", "paper"): 5000,
        Relation("paper", "rev-writes", "author"): 7000}, {"paper": 512})
ROWS = make_plan(SCHEMA, "paper", 2, 2)
OFFLOADED = ROWS.with_owners({"author": 1})
WAYS = (None, "auto", "rows", "delegate")
"""What the user asks for; None: nothing."""


def settings_with(way: str | None, **others: Any) -> Settings:
    asked = [f"partition.shared={way}"] if way else []
    return load_settings(None, asked + [f"{name.replace('__', '.')}={value}"
                                        for name, value in others.items()], {})


@pytest.mark.parametrize(("plan", "way", "learnable", "model", "reduce"), [*itertools.product(
    (ROWS, OFFLOADED), WAYS, ("exact", "replica"), ("rgcn", "mine:Net"), ("sum", "max"))])
def test_training_keeps_what_was_partitioned_unless_it_is_asked_otherwise(
        plan: Plan, way: str | None, learnable: str, model: str, reduce: str) -> None:
    settings = settings_with(way, train__learnable=learnable, model__name=model,
                             model__reduce=reduce, train__batch_size=64)
    chosen, choices = share_rows_in_training(plan, settings)
    never = learnable == "replica" or model != "rgcn" or reduce == "max"
    if way == "rows" or (way in (None, "auto") and never):
        assert (chosen, choices) == (ROWS, [])
    elif way is None and plan.offloaded:
        assert (chosen, choices) == (OFFLOADED, [])
    else:
        work = Workload.of(settings, parts=2)
        assert (chosen, choices) == share_rows(ROWS, work, way or "auto", Origin.FLAG)
        assert way != "delegate" or chosen.offloaded
    assert chosen.shared is not None
    assert chosen.shared.asked == (way or "auto")
    assert chosen.shared.origin is (Origin.DEFAULT if way is None else Origin.FLAG)
    assert chosen.shared.owners.keys() == ({"author"} if chosen.offloaded else set())
    assert chosen.shared.reason


@pytest.mark.parametrize(("plan", "way", "learnable", "reference"), [*itertools.product(
    (ROWS, OFFLOADED), WAYS, ("exact", "replica"), ("false", "true"))])
def test_a_script_keeps_what_was_partitioned_or_leaves_it_out(
        plan: Plan, way: str | None, learnable: str, reference: str) -> None:
    settings = settings_with(way, train__learnable=learnable, run__reference=reference)
    if way == "delegate" and not plan.offloaded:
        with pytest.raises(InputError, match="parts/g.json was made without it"):
            share_rows_as_partitioned(plan, settings, "parts/g.json")
        return
    chosen = share_rows_as_partitioned(plan, settings, "parts/g.json")
    moves = way == "rows" or learnable == "replica" or reference == "true"
    assert chosen == (ROWS if moves else plan)
    assert chosen.shared is not None
    assert chosen.shared.origin.asked == (way is not None)


@given(st.sampled_from(WAYS[1:]), st.sampled_from(Origin), st.sampled_from(["sum", "min"]))
def test_the_decision_is_in_the_plan_s_file(tmp_path_factory: pytest.TempPathFactory, way: str,
                                            origin: Origin, reduce: str) -> None:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    plan, _ = share_rows(ROWS, Workload(batch_size=64, reduce=reduce), way, origin)
    plan.save(path)
    loaded = Plan.load(path)
    assert loaded.shared == plan.shared
    assert loaded == plan
    assert loaded.without_owners().shared is not None


def test_a_plan_without_a_decision_is_as_earlier_versions_wrote_it(tmp_path: Path) -> None:
    ROWS.save(tmp_path / "plan.json")
    assert "shared" not in json.loads((tmp_path / "plan.json").read_text())
    assert Plan.load(tmp_path / "plan.json").shared is None


@pytest.mark.parametrize("value", [
    {}, [], "rows", {"asked": "rows", "origin": "nobody", "owners": {}, "reason": ""},
    {"asked": "rows", "origin": "flag", "owners": 3, "reason": ""}])
def test_a_damaged_decision_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match="partition.shared"):
        SharingDecision.from_json(value, "plan.json")
