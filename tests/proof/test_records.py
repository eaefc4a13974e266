"""What trainers record, in files, and two recorded runs compared."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgl_heta.errors import HetaError
from dgl_heta.proof import recorded_run
from dgl_heta.proof.recorded_run import Key, Record, fewest, load
from dgl_heta.proof.runs import compare_runs

IDS = np.arange(10, 16)
HEAD, BIAS = Key("gradient", "Net.head"), Key("gradient", "Net.bias")


def record(rank: int = 0, reference: bool = False) -> Record:
    """A training step and an evaluation."""
    made = Record(reference, rank, group=[0, 1], precision="float32", steps=1, evaluations=1)
    values = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    made.add(Key("seeds", "batch 1", "paper"), IDS)
    made.add(Key("start", "Net.head"), values[:2])
    made.add(Key("input", "Net", "argument 1, node type 'paper'"), values, IDS)
    made.add(Key("layer", "Net.layers.0", "layer 1, node type 'paper'"), values * 2, IDS)
    made.add(Key("output", "Net", "node type 'paper'"), values * 3, IDS)
    made.add(Key("loss", ""), np.array([0.7], np.float32))
    made.add(HEAD, values[:2] * 5)
    made.add(BIAS, None)
    made.add(Key("parameter", "Net.head"), values[:2] + 1)
    made.add(Key("row", "table"), values, IDS)
    made.add(Key("output", "Net", "node type 'paper'", "evaluation"), values * 4, IDS)
    return made


def runs() -> tuple[list[Record], list[Record]]:
    return [record(0), record(1)], [record(0, True), record(1, True)]


def test_records_are_read_as_they_were_written(tmp_path):
    for rank in (11, 2):
        record(rank).save(tmp_path)
    found = load(tmp_path)
    assert [r.rank for r in found] == [2, 11]
    assert list(found[0].entries) == list(record().entries)
    for key, entry in record().entries.items():
        read = found[0].entries[key]
        assert read.dtype == entry.dtype
        for got, want in ((read.values, entry.values), (read.ids, entry.ids)):
            assert (got is None) == (want is None)
            assert got is None or np.array_equal(got, want)
    assert vars(found[0]).keys() == vars(record()).keys()


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"version": 1}', b'{"version": 99}'])
def test_a_damaged_record_is_refused(tmp_path, damage):
    record().save(tmp_path)
    (tmp_path / "trainer-0.json").write_bytes(damage)
    with pytest.raises(HetaError, match=r"trainer-0\.json"):
        load(tmp_path)


def test_nothing_pickled_is_read(tmp_path):
    record().save(tmp_path)
    np.savez(tmp_path / "trainer-0.npz", **{"0.values": np.array([Path()], object)})
    with pytest.raises(HetaError, match="damaged"):
        load(tmp_path)


@given(st.sets(st.integers(0, 2**40), min_size=40, max_size=120), st.data())
def test_of_many_rows_both_runs_keep_the_same(everything, data):
    ids = np.array(sorted(everything))
    one, other = (ids[sorted(data.draw(st.sets(st.integers(0, len(ids) - 1),
                                               min_size=len(ids) // 2)))] for _ in range(2))
    count = len(ids) // 4
    kept = [set(part[fewest(part, min(count, len(part)))].tolist()) for part in (one, other)]
    both = set(one.tolist()) & set(other.tolist())
    # Whatever a run keeps of the common nodes, the other keeps, up to where one of them is full.
    assert len(kept[0] & both - kept[1]) == 0 or len(kept[1] & both - kept[0]) == 0 or (
        kept[0] & kept[1])
    assert all(len(k) == min(count, len(part)) for k, part in zip(kept, (one, other)))


def test_large_arrays_are_cut(monkeypatch):
    monkeypatch.setattr(recorded_run, "ROWS", 4)
    made = Record(False, 0)
    made.add(Key("output", "Net"), IDS.astype(float), IDS)
    entry = made.entries[Key("output", "Net")]
    assert len(entry.ids) == len(entry.values) == 4
    assert np.array_equal(entry.ids, entry.values)


def test_runs_that_agree_are_proved():
    found = compare_runs(*runs())
    assert found.proved, found.message
    assert {m.place.kind for m in found.measures} >= {"input", "layer", "output", "loss",
                                                      "gradient", "parameter", "row"}
    assert "2 trainers" in found.message


@pytest.mark.parametrize("kind", ["input", "layer", "output", "loss", "gradient", "parameter",
                                  "row"])
def test_a_difference_of_each_kind_is_found(kind):
    got, want = runs()
    for key, entry in got[1].entries.items():
        if key.kind == kind and entry.values is not None:
            entry.values = entry.values + 1
    found = compare_runs(got, want)
    assert found.status == "differs"
    assert {m.place.kind for m in found.measures if m.differs} == {kind}
    assert "trainer 1" in found.message


def test_a_gradient_of_zeros_is_not_none():
    got, want = runs()
    got[0].entries[BIAS].values = np.zeros(3, np.float32)
    found = compare_runs(got, want)
    assert found.status == "differs"
    assert found.message.startswith("gradient Net.bias is there, but None in the reference: it "
                                    "has zeros (trainer 0)")


def test_adams_step_of_a_gradient_that_is_rounding_is_no_difference():
    got, want = runs()
    for run in (got, want):
        gradient = run[0].entries[HEAD].values = run[0].entries[HEAD].values.copy()
        gradient[0, 0] = 1e-9 if run is got else -1e-9
    parameter = got[0].entries[Key("parameter", "Net.head")]
    parameter.values = parameter.values.copy()
    parameter.values[0, 0] += 0.02
    assert compare_runs(got, want).proved
    parameter.values[1, 1] += 0.02
    assert not compare_runs(got, want).proved


def test_replicas_may_part_after_the_step():
    got, want = runs()
    for one in got:
        one.learnable = "replica"
        one.entries[Key("row", "table")].values = np.full((6, 3), 9, np.float32)
    found = compare_runs(got, want)
    assert found.proved
    assert any("replica" in note for note in found.notes)


def test_a_node_is_read_alike_on_all_machines_of_a_group():
    """Also if each agrees with its own reference: labels masked by a trainer's own seeds."""
    got, want = runs()
    key = Key("input", "Net", "argument 1, node type 'paper'")
    for run in (got, want):
        run[1].entries[key].values = run[1].entries[key].values + 1
    found = compare_runs(got, want)
    assert found.status == "differs"
    assert "the same node on trainer 0" in found.message
    for one in got:
        one.group = [one.rank]
    assert compare_runs(got, want).proved


def test_runs_that_begin_apart_prove_nothing():
    for key in (Key("start", "Net.head"), Key("seeds", "batch 1", "paper")):
        got, want = runs()
        got[0].entries[key].values = got[0].entries[key].values + 1
        found = compare_runs(got, want)
        assert found.status == "not proved"
        assert "do not begin alike" in found.message


def test_runs_of_the_same_mode_prove_nothing():
    got, want = runs()
    for pair in ((got, copy.deepcopy(got)), (want, copy.deepcopy(want)), (want, got)):
        assert compare_runs(*pair).status == "not proved"
    assert compare_runs(got, want[:1]).status == "not proved"
    assert "did not open" in compare_runs([], []).message


def test_what_was_not_seen_is_said():
    got, want = runs()
    for one in (*got, *want):
        one.evaluations, one.norms = 0, ["Net.norm"]
    notes = " ".join(compare_runs(got, want).notes)
    assert "no evaluation seen" in notes
    assert "Net.norm" in notes


def test_what_one_run_alone_did_is_no_proof():
    for forgets in range(2):
        for kind in ("loss", "parameter", "step"):
            both = runs()
            for one in both[forgets]:
                one.steps -= kind == "step"
                one.entries = {k: v for k, v in one.entries.items() if k.kind != kind}
            found = compare_runs(*both)
            assert (found.status, kind in found.message) == ("not proved", True), found.message


def test_nan_in_both_runs_is_no_proof():
    got, want = runs()
    for one in (*got, *want):
        one.entries[Key("loss", "")].values = np.array([np.nan], np.float32)
    found = compare_runs(got, want)
    assert found.status == "not proved"
    assert "loss has NaN in both runs" in found.message


def test_random_numbers_are_named():
    got, want = runs()
    for place, run in enumerate((got, want)):
        run[0].add(Key("draws", "Net"), np.array([place]))
        for entry in run[0].entries.values():
            if place and entry.values is not None and entry.values.dtype == np.float32 and (
                    entry.ids is not None):
                entry.values = entry.values + 1
    found = compare_runs(got, want)
    assert found.status == "not proved"
    assert "the script before it calls Net" in found.message


def test_halves_are_compared_as_halves():
    got, want = runs()
    for one in got:
        entry = one.entries[Key("output", "Net", "node type 'paper'")]
        entry.values = entry.values * np.float32(1.01)
    assert compare_runs(got, want).status == "differs"
    for one in got:
        one.precision = "bfloat16"
    assert compare_runs(got, want).proved


def test_files_are_json_and_arrays(tmp_path):
    record().save(tmp_path)
    assert {f.name for f in tmp_path.iterdir()} == {"trainer-0.json", "trainer-0.npz"}
    assert json.loads((tmp_path / "trainer-0.json").read_text())["rank"] == 0


def test_doubles_are_compared_as_doubles_but_for_what_embeddings_make():
    got, want = runs()
    for run in (got, want):
        for one in run:
            one.precision = "float64"
    assert compare_runs(got, want).proved
    late = got[0].entries[Key("output", "Net", "node type 'paper'", "evaluation")]
    late.values = late.values * np.float32(1 + 1e-6)
    assert compare_runs(got, want).proved
    early = got[0].entries[Key("output", "Net", "node type 'paper'")]
    early.values = early.values * np.float32(1 + 1e-6)
    assert compare_runs(got, want).status == "differs"


def test_causes_are_those_of_what_differs_first():
    got, want = runs()
    got[0].entries[Key("row", "table")].values = np.ones((6, 3), np.float32)
    assert "another batch was drawn" in compare_runs(got, want).message
    got[0].entries[HEAD].values = got[0].entries[HEAD].values * 2
    assert "before they are averaged" in compare_runs(got, want).message


def test_a_number_of_an_embedding_may_go_the_other_way_but_not_a_whole_row():
    """Adam makes a whole step of a gradient that is rounding."""
    got, want = runs()
    late = Key("input", "Net", "argument 1, node type 'author'", "evaluation")
    for run in (got, want):
        run[0].add(late, np.ones((2000, 3), np.float32), np.arange(2000))
    entry = got[0].entries[late]
    entry.values = entry.values.copy()
    entry.values[0, 0] = 2
    assert compare_runs(got, want).proved
    entry.values[:10] = 2
    assert not compare_runs(got, want).proved
