"""What a run's files say is checked, although their checksums may agree."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dgl_heta.errors import InputError
from dgl_heta.report.epoch_records import EpochRecord
from dgl_heta.report.metrics_log import log_line
from dgl_heta.settings import Settings
from dgl_heta.training.loop import _history
from dgl_heta.training.recorded import best_epoch, check_model, recorded_settings

RELATION = {"src": "paper", "etype": "cites", "dst": "paper", "edges": 4}
MODEL = {
    "provider": "rgcn", "plugins": {}, "input_dims": {"paper": 3}, "static": ["paper"],
    "schema": {"node_counts": {"paper": 3}, "relations": [RELATION]}, "num_classes": {"paper": 2},
    "features": {}, "paths": {"paper": [[[["paper", "cites", "paper"]], 3]]}, "layers": 2,
    "hidden": 4, "heads": 4, "bases": 0, "self_loop": True, "layer_norm": False, "dropout": 0.0,
    "aggregate": "mean", "reduce": "sum", "subsets": 8}
RECORD = EpochRecord(1, 0.5, 0.5, None, {"total": 1.0}, {"total": 0}, 100.0)


def test_what_training_writes_is_right():
    check_model(json.loads(json.dumps(MODEL)))
    assert best_epoch({"best": {}}, 2, Path("run")) == {}
    best = {"epoch": 2, "val_acc": 0.5}
    assert best_epoch({"best": best}, 2, Path("run")) == best
    assert recorded_settings(Settings().model_dump(), Path("job.json")) == Settings()


@pytest.mark.parametrize("changed", [
    {"hidden": 10**12}, {"hidden": "4"}, {"layers": True}, {"input_dims": {"paper": -1}},
    {"input_dims": {}}, {"input_dims": {"papr": 3}}, {"num_classes": {"paper": 10**15}},
    {"num_classes": {"nobody": 2}}, {"features": {"paper": [3]}}, {"features": {"paper": [1e3, 2]}},
    {"static": "paper"}, {"paths": {"paper": [[["a"], 3]]}}, {"paths": [1]}, {"plugins": []},
    {"provider": ["rgcn"]}, {"aggregate": "evil"}, {"dropout": float("nan")}, {"schema": 5},
    {"input_dims": {"x" * 100_000: 1, "paper": 3}},
])
def test_a_model_of_other_types_is_refused(changed):
    with pytest.raises(ValueError, match=next(iter(changed)) + "|lacks|node type") as caught:
        check_model({**MODEL, **changed})
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("best", [
    None, 5, [], {"epoch": "1"}, {"epoch": 0}, {"epoch": 9}, {"epoch": 1, "val_acc": "x"},
    {"val_acc": 0.5}, {"epoch": 10**400}])
def test_a_best_epoch_of_other_types_is_refused(best):
    with pytest.raises(InputError, match="checkpoint of epoch 2 in run is damaged"):
        best_epoch({"best": best}, 2, Path("run"))


def test_settings_of_other_types_are_refused():
    with pytest.raises(InputError, match=r"job\.json is damaged: settings: train\.lr"):
        recorded_settings({"train": {"lr": "x" * 10_000}}, Path("job.json"))


@pytest.mark.parametrize("changed", [{"epoch": "x"}, {"seconds": 5}, {"loss": None}])
def test_a_line_of_the_log_of_other_types_is_named(tmp_path, changed):
    log = tmp_path / "metrics.jsonl"
    lines = log_line(RECORD.to_json())
    log.write_text(lines + log_line({**RECORD.to_json(), **changed}))
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 2, is damaged: it is no epoch"):
        _history(log, 1)


@pytest.mark.parametrize("other", [
    "5", "[" * 100_000, "9" * 5000, '{"event": "epoch", ', json.dumps(RECORD.to_json())])
def test_a_line_that_training_did_not_write_is_named(tmp_path, other):
    log = tmp_path / "metrics.jsonl"
    log.write_text(other + "\n" + log_line(RECORD.to_json()))
    with pytest.raises(InputError, match=r"line 1, is damaged: it is not what was written"):
        _history(log, 1)


RECORDS = [replace(RECORD, epoch=epoch, loss=1 / epoch) for epoch in (1, 2, 3)]


@pytest.fixture
def log(tmp_path):
    """The log of three epochs, as training writes it."""
    log = tmp_path / "metrics.jsonl"
    log.write_text("".join(log_line(record.to_json()) for record in RECORDS))
    assert _history(log, 3) == RECORDS
    assert _history(log, 2) == RECORDS[:2]
    return log


def test_no_flipped_bit_of_the_log_changes_a_resumed_run(log):
    data, named = log.read_bytes(), 0
    for at in range(len(data)):
        log.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1:])
        try:
            records, said = _history(log, 3), ""
        except InputError as error:
            records, said = [], str(error)
        if said:
            number = data[:at].count(b"\n") + 1
            assert f"metrics.jsonl, line {number}, is damaged" in said
            named += 1
        else:
            assert records == RECORDS  # the same number in other letters: 1e-05, 1E-05
    assert named > 0.99 * len(data)


def test_a_log_that_was_cut_is_read_up_to_its_last_checkpoint(log, caplog):
    data, start = log.read_bytes(), len("".join(log_line(r.to_json()) for r in RECORDS[:2]))
    for size in range(start, len(data) - 1, 7):
        log.write_bytes(data[:size])
        assert _history(log, 2) == RECORDS[:2]  # the run was killed in the third epoch
        if size > start:
            with pytest.raises(InputError, match=r"line 3, is damaged: it is cut off"):
                _history(log, 3)  # which has a checkpoint, so its line was there
    assert not caplog.messages
    log.write_bytes(data[:start])
    assert _history(log, 3) == RECORDS[:2]
    assert "has lines of 2 epochs of the 3" in caplog.text
