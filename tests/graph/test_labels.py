"""Labels: whatever they hold, a store that is written opens and trains, or nothing is written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dgl_heta.errors import InputError
from dgl_heta.graph.readers import open_source, read_edge_files
from dgl_heta.graph.source import MOST_CLASSES, GraphSource, Task
from dgl_heta.settings import load_settings
from dgl_heta.store import Store, write_store
from dgl_heta.training.tasks import make_task
from tests.support.reading import LABEL, PAPERS, write_edge_files, write_graphbolt
from tests.support.signing import edit_json

DTYPES = ("bool", "int8", "uint8", "int32", *["int64"] * 4, "uint64", "float16", "float32",
          *["float64"] * 2)
NAN = float("nan")
NUMBERS = [*range(-2, 4), -100, 255, 2**16 - 1, 2**16, 70_000, 2**24 + 1, 2**31, 2**53 + 1, 10**12,
           2**63 - 1, 2**63, 2**64 - 1, 0.5, -1.5, NAN, float("inf"), float("-inf"), 1e38]
POOLS = [[0, 1], [0, 1, 2], [0, 1, -1], [0, 1, NAN], [0, 3, 255], [0, 2**16 - 1], [0, 2**16],
         [10**6, 10**6 + 1], [2**31, 2**53 + 1, 10**12], [2**63 - 1, 5], [2**63, 2**64 - 1],
         [0.5, 1, NAN], [NAN], NUMBERS]


@st.composite
def labels(draw: st.DrawFn) -> np.ndarray:
    shape = draw(st.sampled_from([*[(PAPERS,), (PAPERS, 2)] * 4, (PAPERS, 1), (PAPERS, 0)]))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    pool = draw(st.sampled_from(POOLS))
    values = [draw(st.sampled_from(pool)) for _ in range(int(np.prod(shape)))]
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        values = [v if isinstance(v, int) and low <= v <= high else 0 for v in values]
    with np.errstate(over="ignore"):
        return np.array(values, dtype).reshape(shape)


@settings(max_examples=80, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(array=labels(), fitting=st.sampled_from([True, True, False]),
       kind=st.sampled_from(["classification", "regression"]),
       classes=st.sampled_from([None] * 5 + [2, 4, 300, MOST_CLASSES, MOST_CLASSES + 1]),
       unlabelled=st.sampled_from([None, None, -1, 0, 255, 0.5]),
       reading=st.sampled_from([True, True, True, False]))
def test_every_store_that_is_written_opens_and_gives_the_labels_back(
        tmp_path: Path, array: np.ndarray, fitting: bool, kind: str, classes: int | None,
        unlabelled: float | None, reading: bool) -> None:
    out = tmp_path / "store"
    if fitting:
        classes = None
        kind = kind if array.ndim == 1 else "regression" if array.dtype == np.float16 else (
            "multilabel")
    shutil.rmtree(out, ignore_errors=True)
    try:
        if reading:
            said = {"kind": kind, "num_classes": classes, "unlabelled": unlabelled}
            write_edge_files(tmp_path / "files", task={"target": "paper", **{
                key: value for key, value in said.items() if value is not None}})
            np.save(tmp_path / "files/nodes/label.npy", array)
            source = read_edge_files(tmp_path / "files")
        else:  # as a plugin makes it
            source = read_edge_files(write_edge_files(tmp_path / "files"))
            source.node_arrays["paper"]["label"] = array
            source.task = Task("paper", classes or (4 if array.ndim == 1 else array.shape[1]),
                               "label", kind, unlabelled)
        write_store(source, out)
    except InputError:
        assert not out.exists()
        return
    store = Store(out)
    store.verify()
    task = store.manifest.task
    assert task == source.task
    assert task is not None
    made = make_task(store, load_settings(environ={}))
    nodes = made.seeds(made.steps("train", 0, 10)[0], 0, 1)["paper"] if made.steps(
        "train", 0, 10) else np.empty(0, np.int64)
    assert {*nodes} <= {0, 1}
    rows = np.asarray(store.array("paper", "label"))[nodes]
    given = array.reshape(PAPERS, -1)[nodes]
    if task.kind == "classification":
        names = store.manifest.info.get("classes")
        found = [int(names[row]) if names else int(row) for row in rows]
        assert found == [int(value) for value, in given.tolist()]
    elif task.kind == "multilabel":
        there = ~np.isnan(given.astype(float)) & (given != unlabelled)
        assert {*given[there].tolist()} <= {0, 1}
    for node in {0, 1} - {*nodes.tolist()}:  # nodes in train_mask that have no label
        none = np.isnan(array.reshape(PAPERS, -1)[node].astype(float))
        assert (none | (array.reshape(PAPERS, -1)[node] == unlabelled)).all()


def test_codes_are_numbered_up_to_the_most_classes(tmp_path: Path) -> None:
    """One limit for whoever reads, writes and opens."""
    count = MOST_CLASSES + 1
    for number, message in ((MOST_CLASSES, None), (count, "65,537 different labels; there may be")):
        codes = np.arange(count) % number * 1000 + 10**9
        write_edge_files(tmp_path / "files", task={"target": "paper"}, nodes={
            "author": {"count": 7}, "paper": {"count": count, "arrays": {
                "label": "label.npy", "train_mask": "mask.npy"}}})
        np.save(tmp_path / "files/label.npy", codes)
        np.save(tmp_path / "files/mask.npy", np.arange(count) < 3)
        if message is not None:
            with pytest.raises(InputError, match=message):
                read_edge_files(tmp_path / "files")
            continue
        source = read_edge_files(tmp_path / "files")
        assert source.task == Task("paper", MOST_CLASSES)
        write_store(source, tmp_path / "store")
        names = Store(tmp_path / "store").manifest.info["classes"]
        assert [names[0], names[-1]] == ["1000000000", "1065535000"]
    with pytest.raises(InputError, match=r"has 65,537 classes; there must be from 1 to 65,536"):
        write_store(GraphSource(source.name, source.node_counts, source.edges, source.node_arrays,
                                Task("paper", count)), tmp_path / "more")
    edit_json(tmp_path / "store/manifest.json", lambda data: data["task"].update(num_classes=count))
    with pytest.raises(InputError, match=r"has a task of 65,537 classes; there may be 65,536: .*"
                                         "write the store again"):
        Store(tmp_path / "store")


def without_classes(tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in task.items() if key != "num_classes"} for task in tasks]


BAD = np.array([[1.0, -1.0]] * PAPERS)


def test_labels_other_than_0_and_1_are_refused_at_every_door(tmp_path: Path) -> None:
    """Where one says what -1 means they are taken, and the store keeps what was said."""
    message = r"node 0 is in train_mask and has -1\.0 for label 1; a label is 0 or 1"
    files = write_edge_files(tmp_path / "files", task={"target": "paper", "kind": "multilabel"})
    np.save(files / "nodes/label.npy", BAD)
    bolt = write_graphbolt(tmp_path / "bolt", tasks=without_classes)
    for file in bolt.rglob("*label*.npy"):
        np.save(file, BAD[:len(np.load(file))])
    for name, path in (("files", files), ("bolt", bolt)):
        with pytest.raises(InputError, match=message):
            open_source(path)
        if name == "files":
            data = json.loads((files / "metadata.json").read_text())
            data["task"]["unlabelled"] = -1
            (files / "metadata.json").write_text(json.dumps(data))
            source = open_source(path)
        else:
            source = open_source(path, unlabelled=-1)
        write_store(source, tmp_path / name / "store")
        store = Store(tmp_path / name / "store")
        assert store.manifest.task == Task("paper", 2, "label", "multilabel", -1)
    source.task = Task("paper", 2, "label", "multilabel")
    with pytest.raises(InputError, match=message):
        write_store(source, tmp_path / "refused")
    # A store that came about otherwise, as with an earlier version, is refused by training.
    edit_json(tmp_path / "bolt/store/manifest.json", lambda data: data["task"].pop("unlabelled"))
    old = Store(tmp_path / "bolt/store")
    with pytest.raises(InputError, match=message + ".*task.unlabelled of a store"):
        make_task(old, load_settings(environ={}))
    made = make_task(old, load_settings(overrides=["task.unlabelled=-1"], environ={}))
    assert [step.size for step in made.steps("train", 0, 10)] == [2]


def test_codes_of_graphbolt_are_those_of_all_its_sets(tmp_path: Path) -> None:
    bolt = write_graphbolt(tmp_path / "bolt", tasks=without_classes)
    for name in bolt.rglob("*label*.npy"):
        np.save(name, np.load(name).astype(np.int64) * 10**6 + 10**9)
    source = open_source(bolt)
    names = [int(name) for name in source.info["classes"]]
    found = [names[c] for c in source.node_arrays["paper"]["label"]]
    assert found == (LABEL * 10**6 + 10**9).tolist()
