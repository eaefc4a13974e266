"""What a script puts on a graph comes back as from plain DGL's partitions; training converts it."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import dgl_heta
from dgl_heta.cli import main
from dgl_heta.errors import InputError
from dgl_heta.features import StaticFeatures
from dgl_heta.graph.readers import read_dgl_graph, read_parts
from dgl_heta.graph.readers.arrays import class_labels, node_array
from dgl_heta.graph.source import MASKS, EdgeArrays, GraphSource, Task
from dgl_heta.hooks.manager import plugins
from dgl_heta.partition.backends.dgl_methods import to_dgl_graph
from dgl_heta.partition.directory import open_partition, write_partition
from dgl_heta.planning.making import make_plan
from dgl_heta.settings import load_settings
from dgl_heta.store import Store, write_store
from dgl_heta.training.setup import check
from tests.support.signing import edit_array, edit_json

dgl = pytest.importorskip("dgl")
torch = pytest.importorskip("torch")
distributed = pytest.importorskip("dgl.distributed")
from tests.support.read_back import (  # noqa: E402
    BACK,
    DTYPES,
    EDGES,
    NODES,
    RATES,
    SERVED,
    graph,
    values,
)

NAMES = ("feat", "label", "labels", *MASKS, "x", "feat_1", "a b", "Ünï", "x/y", "a:b", "a~b", "..",
         "_x", "\n", "_ID", "_TYPE", "inner_node", "inner_edge", "orig_id", "n" * 200)


@st.composite
def data(draw: st.DrawFn, rows: int) -> dict[str, Any]:
    """Data of nodes or edges, of any form that DGL's frames take."""
    found = {}
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=5, unique=True)):
        dtype = draw(st.sampled_from(DTYPES))
        least = 0 if dtype in SERVED else 1  # DGL writes rows without numbers, and cannot read all
        shape = (rows, *draw(st.lists(st.integers(least, 3), max_size=4)))
        tensor = values(dtype, shape, draw(st.integers(0, 99)), draw(st.booleans()))
        way = draw(st.sampled_from(("plain", "transposed", "expanded", "leaf")))
        if way == "transposed" and tensor.dim() > 2:
            tensor = tensor.transpose(1, 2)
        if way == "expanded":
            tensor = tensor[:1].expand_as(tensor)
        if way == "leaf" and tensor.is_floating_point():
            tensor.requires_grad_()
        found[name] = tensor
    return found


def partitioned(made: Any, out: Path, method: str, parts: int) -> tuple[dict[str, Any], ...]:
    """Data of nodes and edges that a partition has, those of all parts together."""
    dgl_heta.enable()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            more = {} if method == "random" else {"target_ntype": "movie"}
            distributed.partition_graph(made, "g", parts, str(out), part_method=method, **more)
        found = [distributed.load_partition_feats(str(out / "g.json"), part)
                 for part in range(parts)]
    finally:
        dgl_heta.disable()
    return tuple({name: torch.cat([part[name] for part in kind]) for name in kind[0]}
                 for kind in zip(*found, strict=True))


def same(one: Any, other: Any) -> bool:
    return (one.dtype == other.dtype and one.shape == other.shape
            and torch.equal(bits(one), bits(other)))


def bits(tensor: Any) -> Any:
    """Numbers as they are in memory, but that all NaN are alike."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.to(torch.complex128))
    return tensor.double().nan_to_num(nan=0.25) if tensor.is_floating_point() else tensor


@settings(max_examples=40, deadline=None, suppress_health_check=[*HealthCheck],
          phases=[Phase.explicit, Phase.generate])
@given(data(NODES), data(NODES), data(EDGES))
def test_data_of_any_form_come_back_as_by_plain_dgl(of_users, of_movies, of_ratings):
    made = graph()
    for frame, found in ((made.nodes["user"], of_users), (made.nodes["movie"], of_movies),
                         (made.edges[RATES], of_ratings)):
        frame.data.update(found)
    with tempfile.TemporaryDirectory() as where:
        plain = partitioned(made, Path(where) / "plain", "random", 1)
        ours = partitioned(made, Path(where) / "meta", "meta", 2)
        for want, got in zip(plain, ours, strict=True):
            assert sorted(want) == sorted(got)
            for name, rows in want.items():
                assert same(rows, got[name]), name
        store, _ = open_partition(Path(where) / "meta", verify=True)
        store.verify()
        check_training(store, made)


def check_training(store: Store, made: Any) -> None:
    """Training reads what the reader for training makes of the graph, or refuses what it refuses.
    """
    for ntype, arrays in store.manifest.arrays.items():
        for name, known in store.manifest.given.get(ntype, {}).items():
            held = store.held_array(ntype, name)
            task = store.manifest.task
            try:
                want = node_array(name, held, ntype, NODES)
                if name == "feat" and held.dtype.kind == "f" and not np.isfinite(held).all():
                    raise InputError("not finite")
            except InputError:
                want = None
            if task and (task.target, task.label) == (ntype, name):
                want = class_labels(held, name) if task.kind == "classification" else held
            if want is None:
                assert known.unfit
                with pytest.raises(InputError, match="training cannot"):
                    store.array(ntype, name)
            else:
                got = store.array(ntype, name)
                assert got.shape == want.shape
                np.testing.assert_array_equal(got, want)
        assert arrays.keys() >= store.manifest.given.get(ntype, {}).keys()


def shop(**movie: Any) -> Any:
    """A graph that can be trained on, with other data of movies."""
    made = graph()
    made.nodes["user"].data["feat"] = torch.rand(NODES)
    made.nodes["movie"].data.update({
        "feat": torch.rand(NODES, 3), "label": torch.arange(NODES) % 3,
        "train_mask": torch.arange(NODES) < 6, "val_mask": torch.arange(NODES) >= 6, **movie})
    return made


def meta(made: Any, out: Path) -> Store:
    dgl_heta.partition_graph(made, "g", 2, str(out), part_method="meta", target_ntype="movie")
    return open_partition(out)[0]


def checked(out: Path, *overrides: str) -> None:
    """What `dgl-heta train` checks before workers start."""
    store, plan = open_partition(out)
    check(store, plan, load_settings(None, overrides), plugins())


FORMS = {
    "token ids": {"feat": torch.arange(3 * NODES).view(NODES, 3)},
    "truth values": {"feat": torch.rand(NODES, 4) > 0.5},
    "one number": {"feat": torch.arange(NODES, dtype=torch.int16)},
    "bfloat16": {"feat": torch.rand(NODES, 2).bfloat16()},
    "labels that are floating": {"label": torch.tensor([0.0, 1, 2] * 3 + [float("nan")] * 3),
                                 "val_mask": torch.zeros(NODES)},
    "a column of labels": {"label": torch.arange(NODES, dtype=torch.uint8)[:, None] % 3,
                           "train_mask": (torch.arange(NODES) < 6).byte()[:, None]},
}


@pytest.mark.parametrize("movie", FORMS.values(), ids=FORMS)
def test_training_converts_what_it_reads(tmp_path, movie):
    made = shop(**movie)
    store = meta(made, tmp_path / "out")
    common = read_dgl_graph(made, "g", "movie")
    assert store.manifest.task == common.task == Task("movie", 3)
    for ntype, arrays in common.node_arrays.items():
        for name, want in arrays.items():
            got = store.array(ntype, name)
            np.testing.assert_array_equal(got, want)
            assert name == "feat" or got.dtype == want.dtype
    features = StaticFeatures(store, ("user", "movie"), torch.float64, torch.device("cpu"))
    ids = np.array([3, 0, 11])
    for ntype, rows in features.read({"user": ids, "movie": ids}).items():
        np.testing.assert_array_equal(rows, common.node_arrays[ntype]["feat"][ids])
    checked(tmp_path / "out")


@pytest.mark.parametrize(("movie", "overrides", "message"), [
    ({"feat": torch.rand(NODES, 2, 3)}, (), r"'feat' of node type 'movie' has shape \(12, 2, 3\); "
     r"features must have one or two dimensions: flatten each row \(scripts read it as it is"),
    ({"feat": torch.full((NODES, 1), 2**24 + 1)}, (), "'feat' of node type 'movie' holds int64"),
    ({"feat": torch.rand(NODES, 0)}, (), "'feat'.*must have a column"),
    ({"feat": torch.rand(NODES).to(torch.complex64)}, (), "'feat'.*complex64"),
    ({"feat": torch.tensor([1.0] * 9 + [float("nan"), 0, 1])}, (),
     "'feat' of node type 'movie'.*not finite.*row 9; replace"),
    ({"train_mask": torch.rand(NODES, 5) > 0.5}, ("task.targets=movie",),
     r"'train_mask' of node type 'movie' has shape \(12, 5\); a mask must be one-dimensional"),
    ({"label": (torch.rand(NODES, 4) > 0.5).float()}, ("task.kind=classification",),
     r"'label' of node type 'movie'.*has shape \(12, 4\); labels must be one class per node"),
    ({"label": torch.full((NODES,), -1)}, ("task.targets=movie",), "'label'.*labels no node"),
    ({"label": torch.arange(NODES).clamp(max=9) * torch.tensor([1] * 9 + [-1] * 3)}, (),
     "the graph has no task.*node 9 is in val_mask and has label -9"),
    ({"label": torch.tensor([1.0, float("inf")] * 6)}, (
        "task.targets=movie", "task.kind=regression"), "'label'.*node 1 .*inf"),
])
def test_what_training_cannot_read_is_partitioned_and_named_by_it(
        tmp_path, movie, overrides, message):
    made = shop(**movie)
    meta(made, tmp_path / "out")
    with pytest.raises(InputError, match=message):
        checked(tmp_path / "out", *overrides)


@pytest.mark.parametrize("label", [torch.rand(NODES), (torch.rand(NODES, 4) > 0.5).to(torch.int8)])
def test_labels_that_are_no_classes_are_trained_by_their_kind(tmp_path, label):
    meta(shop(label=label), tmp_path / "out")
    store, _ = open_partition(tmp_path / "out")
    assert store.manifest.task.kind == ("regression" if label.dim() == 1 else "multilabel")
    checked(tmp_path / "out")


def test_features_of_another_name_keep_it(tmp_path):
    made = shop()
    made.nodes["movie"].data["emb"] = made.nodes["movie"].data.pop("feat")
    made.nodes["movie"].data["labels"] = made.nodes["movie"].data.pop("label")
    made.nodes["movie"].data["price"] = torch.rand(NODES, 0)
    store = meta(made, tmp_path / "out")
    np.testing.assert_array_equal(store.array("movie", "feat"), made.nodes["movie"].data["emb"])
    checked(tmp_path / "out")
    found, _ = partitioned(made, tmp_path / "again", "meta", 2)
    assert {key.partition("/")[2] for key in found if key.startswith("movie/")} == {
        "emb", "labels", "price", "train_mask", "val_mask"}
    again = to_dgl_graph(store)
    for name, want in made.nodes["movie"].data.items():
        assert same(again.nodes["movie"].data[name], want)


def test_partitions_of_dgls_parts_have_data_as_they_are_there(tmp_path):
    """`dgl-heta partition PARTS`, and a store that is partitioned again."""
    made = shop(feat=torch.arange(NODES)[:, None] - 2, fold=torch.rand(NODES, 5) > 0.5)
    plain = partitioned(made, tmp_path / "plain", "random", 1)
    source = read_parts(tmp_path / "plain")
    write_partition(source, make_plan(source.schema(), "movie", 2, 2), tmp_path / "out",
                    edge_ids=True)
    store, plan = open_partition(tmp_path / "out", verify=True)
    write_partition(store.source(), plan, tmp_path / "again")
    dgl_heta.enable()
    try:
        for name in ("out", "again"):
            found = [distributed.load_partition_feats(str(tmp_path / name / "g.json"), part)[0]
                     for part in (0, 1)]
            for key, want in plain[0].items():
                assert same(torch.cat([part[key] for part in found]), want), key
    finally:
        dgl_heta.disable()


def test_edge_data_of_a_store_come_with_its_edges(tmp_path):
    """By destination, as in the store; also when its graph is written again."""
    made = shop()
    made.edges[RATES].data["stars"] = torch.arange(EDGES).bfloat16()
    store = meta(made, tmp_path / "out")
    write_store(store.source(), tmp_path / "again", edge_ids=True)
    again = Store(tmp_path / "again", verify=True)
    again.verify()

    def rated(graph):
        stars = graph.edges[RATES].data["stars"]
        assert stars.dtype == torch.bfloat16
        return sorted(zip(*(ends.tolist() for ends in graph.edges(etype=RATES, order="eid")),
                          stars.tolist()))

    assert rated(to_dgl_graph(store)) == rated(to_dgl_graph(again)) == rated(made)


def test_stores_of_before_mean_what_they_meant(tmp_path):
    """Their arrays were converted, and `info` has the graph's names."""
    ids = np.arange(NODES)
    write_store(GraphSource(
        "g", {"user": NODES, "movie": NODES},
        {r: EdgeArrays(ids, ids) for r in (RATES, BACK)},
        {"movie": {"feat": np.ones((NODES, 1), np.float32), "label": ids % 3,
                   "train_mask": ids < 6}},
        Task("movie", 3), {"renamed": {"movie": {"feat": "emb", "label": "labels"}}}),
        tmp_path / "store")
    text = json.loads((tmp_path / "store/manifest.json").read_text())
    assert "given" not in json.dumps(text)
    store = Store(tmp_path / "store", verify=True)
    write_partition(store, make_plan(store.schema, "movie", 2, 2), tmp_path / "out")
    dgl_heta.enable()
    try:
        found, _ = distributed.load_partition_feats(str(tmp_path / "out/g.json"), 0)
    finally:
        dgl_heta.disable()
    assert {k: v.dtype for k, v in found.items()} == {
        "movie/emb": torch.float32, "movie/labels": torch.int64, "movie/train_mask": torch.uint8}


# --- a store that is wrong --------------------------------------------------------------------


def test_a_store_that_is_not_the_graph_is_found(tmp_path, monkeypatch, capsys):
    """An array that was converted, a row that was changed, with checksums that agree again."""
    made = shop(feat=torch.arange(NODES))
    made.edges[RATES].data["stars"] = torch.arange(EDGES)
    for number, (kind, name, edit, message) in enumerate((
            ("movie", "feat", lambda x: x[:, None].astype(np.float32),
             r"'feat' of 'movie'.*they were int64 \[12\].*they are float32 \[12, 1\]"),
            ("movie", "feat", lambda x: x + (x == 3), "'feat' of 'movie'.*with other values"),
            ("user", "feat", lambda x: x.astype(np.float64), "'feat' of 'user'.*float64"),
            (RATES, "stars", lambda x: -x, "'stars' of 'user rates movie'.*with other values"))):
        out = tmp_path / str(number)
        store = meta(made, out)
        entry = store.manifest.held(kind)[name]
        changed = edit(store.held_array(kind, name) if isinstance(kind, str)
                       else store.edge_arrays(kind)[name])
        change(out / "store", entry.file, np.ascontiguousarray(changed))
        for verify in (lambda store: Store(store, verify=True),
                       lambda store: Store(store).verify([], [])):
            with pytest.raises(InputError, match=message + ".*partition the graph again"):
                verify(out / "store")
        monkeypatch.setattr(sys, "argv", ["dgl-heta", "prove", "--hosts", "2", "--part-config",
                                          str(out / "g.json"), "--", sys.executable, __file__])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 1
        assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize(("edit", "message"), [
    (lambda given: given.update(lost=given["feat"]), "'lost' of 'movie' is given, but not there"),
    (lambda given: given["feat"].update(dtype="load"), "dtype"),
    (lambda given: given["feat"].update(shape=[-1]), "shape"),
    (lambda given: given["feat"].update(more=1), "more"),
])
def test_what_a_manifest_says_of_a_graph_must_make_sense(tmp_path, edit, message):
    meta(shop(), tmp_path / "out")
    edit_json(tmp_path / "out/store/manifest.json",
              lambda data: edit(data["node_types"]["movie"]["given"]))
    with pytest.raises(InputError, match=f"damaged: .*{message}"):
        open_partition(tmp_path / "out")


def change(store: Path, file: str, array: np.ndarray) -> None:
    """Put another array in the place of one, and make all checksums of files right."""
    np.save(store / file, array)

    def note(data: Any) -> None:
        for value in data.values() if isinstance(data, dict) else data:
            if isinstance(value, dict) and value.get("file") == file:
                value.update(dtype=array.dtype.str, shape=list(array.shape),
                             bytes=(store / file).stat().st_size)
            if isinstance(value, dict | list):
                note(value)

    edit_json(store / "manifest.json", note)
    edit_array(store, file, lambda rows: None)
