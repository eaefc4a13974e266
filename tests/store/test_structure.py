"""A store that somebody edited and signed again holds a graph, or is refused by its file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.settings import TaskSettings
from dgl_heta.store import Store, write_store
from dgl_heta.training.tasks.node import NodePrediction
from tests.support.graphs import academic
from tests.support.signing import edit_array, edit_json

CITES = Relation("paper", "cites", "paper")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_store(academic(), tmp_path / "store", edge_ids=True)
    return tmp_path / "store"


def file_of(place: Path, name: str) -> str:
    manifest = Store(place).manifest
    arrays = manifest.arrays["paper"]
    entry = next(each for each in manifest.relations if each.relation == CITES)
    return arrays[name].file if name in arrays else getattr(entry, name).file


def put(at: int, value: int):
    def edit(array: np.ndarray) -> None:
        (array.view(np.uint8) if array.dtype == np.bool_ else array)[at] = value
    return edit


@pytest.mark.parametrize(("name", "edit", "words"), [
    ("indptr", put(0, 1), "begins with 1 instead of 0"),
    ("indptr", put(-1, 181), "ends with 181 instead of 180"),
    ("indptr", put(-1, 179), "do not ascend|ends with 179"),
    ("indptr", put(20, -7), "do not ascend"),
    ("indptr", put(20, 2**62), "do not ascend"),
    ("indices", put(9, 60), "holds 60, but its numbers go from 0 to 59"),
    ("indices", put(179, -1), "holds -1"),
    ("edge_ids", put(3, 180), "go from 0 to 179"),
    ("train_mask", put(5, 7), "holds 7, but its numbers go from 0 to 1"),
])
def test_what_no_graph_has_is_refused_with_its_file(place, name, edit, words):
    file = file_of(place, name)
    edit_array(place, file, edit)
    for check in (lambda: Store(place).verify(), lambda: open_all(Store(place, verify=True))):
        with pytest.raises(InputError, match=f"{file} cannot be of a graph: .*({words})"):
            check()
    if name == "indptr":  # which is checked without being asked for
        with pytest.raises(InputError, match=words):
            Store(place).relation(CITES)


def open_all(store: Store) -> None:
    for relation in store.schema.relations:
        store.relation(relation)
        store.edge_ids(relation)
    for name in store.manifest.arrays["paper"]:
        store.array("paper", name)


def test_a_change_that_keeps_a_graph_is_a_graph(place):
    edit_array(place, file_of(place, "indices"), lambda array: array.sort())
    Store(place).verify()
    open_all(Store(place, verify=True))


def test_a_store_that_verifies_compares_what_is_opened_and_nothing_else(place):
    path = place / file_of(place, "feat")
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    store = Store(place, verify=True)
    store.relation(CITES)
    store.array("paper", "label")
    with pytest.raises(InputError, match=f"{path} was edited or damaged"):
        store.array("paper", "feat")
    assert Store(place).array("paper", "feat") is not None


def test_a_relation_of_other_numbers_is_refused(place):
    def to_floats(manifest: dict) -> None:
        for relation in manifest["relations"]:
            relation["indptr"]["dtype"] = "<f8"
    edit_json(place / "manifest.json", to_floats)
    with pytest.raises(InputError, match="files of other numbers"):
        Store(place)


@pytest.mark.parametrize(("value", "words"), [(-1, "label -1"), (9, "label 9; labels go from 0")])
def test_labels_in_a_mask_are_classes(place, value, words):
    mask = np.flatnonzero(Store(place).array("paper", "train_mask"))
    file = file_of(place, "label")
    edit_array(place, file, put(int(mask[2]), value))
    with pytest.raises(InputError, match=f"{file} cannot be of a graph: node {mask[2]} is in"):
        Store(place).verify()
    task = TaskSettings(kind="classification", targets=["paper"], label="label")
    with pytest.raises(InputError, match=rf"{file}.*node {mask[2]} is in train.*{words}"):
        NodePrediction(Store(place), task, 0)


def test_truth_values_are_zero_or_one_without_verifying_too(place):
    file = file_of(place, "train_mask")
    edit_array(place, file, put(5, 7))
    task = TaskSettings(kind="classification", targets=["paper"], label="label")
    with pytest.raises(InputError, match=f"{file} .* truth values"):
        NodePrediction(Store(place), task, 0)
