"""`dgl-heta inspect`, `plugins`, `datasets` and `settings`: what they list."""

from __future__ import annotations

import re
import shutil

import pytest

from dgl_heta import cli
from tests.support.command_line import refused
from tests.support.graphs import RELATIONS


def test_inspect_shows_what_a_store_holds(heta, store):
    result = heta("inspect", store)
    assert "all checksums agree" in result.out
    assert "classification of paper by label, 4 classes" in " ".join(result.out.split())
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
    assert listed["debian"]["source"] == "dgl-heta-datasets"
    assert listed["synthetic-mag"]["source"] == "built in"
    assert set(listed["synthetic-mag"]["options"]) == {"scale", "seed", "cohesion", "correlation"}
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
