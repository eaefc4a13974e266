"""HeteroData of PyG: in memory, as its dict, and saved, of which nothing is run."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.transforms as T
from dgl_heta_pyg import read_hetero_data
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_geometric import EdgeIndex
from torch_geometric.data import HeteroData

from dgl_heta.errors import InputError
from dgl_heta.graph.readers import open_source
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import GraphSource
from dgl_heta.hooks.manager import Plugins
from dgl_heta.partition.graph_input import open_input
from dgl_heta.store import Store, write_store
from tests.support.pyg import AUTHORS, PAPERS, WRITES, hetero_data
from tests.support.reading import Bomb, collect

FORMS = ("memory", "dict", "saved", "saved dict")


def read(data: HeteroData, form: str, directory: Path, **options: Any) -> GraphSource:
    """The graph, given in a form."""
    if form in ("memory", "dict"):
        return read_hetero_data(data if form == "memory" else data.to_dict(), "mag", **options)
    file = directory / "mag.pt"
    torch.save(data if form == "saved" else data.to_dict(), file)
    return open_source(file, **options)


@pytest.mark.parametrize("form", [*FORMS, "data set"])
def test_all_forms_give_the_same_graph(tmp_path: Path, form: str) -> None:
    data = hetero_data()
    if form == "data set":
        torch.save((data.to_dict(), None, HeteroData), tmp_path / "mag.pt")
        source = open_source(tmp_path / "mag.pt")
    else:
        source = read(data, form, tmp_path)
    assert source.name == "mag"
    assert source.node_counts == {"paper": PAPERS, "author": AUTHORS}
    paper = source.node_arrays["paper"]
    assert np.array_equal(paper["feat"], data["paper"].x.numpy())
    assert np.array_equal(paper["label"], data["paper"].y.numpy())
    assert paper["train_mask"].dtype == np.bool_
    assert np.array_equal(collect(source.edges[Relation(*WRITES)]), data[WRITES].edge_index)
    assert source.edge_arrays[Relation(*WRITES)]["edge_attr"].shape == (200, 2)
    assert source.task is not None
    assert (source.task.target, source.task.num_classes) == ("paper", 3)
    assert source.info["not kept"] == ["title of paper"]


def test_nothing_in_a_saved_one_runs(tmp_path: Path) -> None:
    data = hetero_data()
    data["paper"].evil = Bomb(tmp_path / "ran")
    torch.save(data, tmp_path / "mag.pt")
    assert "evil of paper" in open_source(tmp_path / "mag.pt").info["not kept"]
    torch.save(Bomb(tmp_path / "ran"), tmp_path / "other.pt")
    with pytest.raises(InputError, match=r"holds '.*open', no HeteroData; save one by torch\.save"):
        open_source(tmp_path / "other.pt")
    assert not (tmp_path / "ran").exists()


def test_without_the_plugin_a_line_names_it(tmp_path: Path) -> None:
    torch.save(hetero_data(), tmp_path / "mag.pt")
    for read in (lambda: open_input(str(tmp_path / "mag.pt"), Plugins(guests=False)),
                 lambda: open_source(tmp_path / "mag.pt", Plugins(guests=False))):
        with pytest.raises(InputError, match=r"mag\.pt; .* HeteroData; .*: pip install dgl-"):
            read()


COUNTS: list[Callable[[int], dict[str, Any]]] = [
    *(lambda n, of=of: {"num_nodes": of(n)} for of in (
        int, float, np.int64, np.int32, np.float32, np.array, torch.tensor,
        lambda n: torch.tensor([n]))),
    *(lambda n, key=key: {key: torch.zeros(n)} for key in (
        "x", "feat", "pos", "batch", "n_id", "node_id", "node_type", "my_nodes")),
    *(lambda n, key=key: {key: np.zeros((n, 2))} for key in ("x", "pos")),
    *(lambda n, key=key: {key: torch.zeros(n)} for key in ("time", "y")),  # PyG does not count them
]


@settings(max_examples=40, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(said=st.sampled_from(COUNTS), count=st.integers(1, 40), form=st.sampled_from(FORMS))
def test_nodes_are_counted_as_pyg_counts_them(
        tmp_path: Path, said: Callable[[int], dict[str, Any]], count: int, form: str) -> None:
    data = HeteroData()
    for key, value in said(count).items():
        data["user"][key] = value
    data["item"].x = torch.zeros(3, 2)
    data["user", "likes", "item"].edge_index = torch.zeros(2, 1, dtype=torch.long)
    assert read(data, form, tmp_path).node_counts["user"] == count
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it does not know
        known = data["user"].num_nodes
    assert known is None or int(known) == count


def sparse(layout: torch.layout, attr: str | None = None) -> Callable[[HeteroData], HeteroData]:
    def changed(data: HeteroData) -> HeteroData:
        data[WRITES].edge_weight = torch.arange(200.0)
        return T.ToSparseTensor(attr=attr, layout=layout)(data)
    return changed


def indexed(data: HeteroData) -> HeteroData:
    data[WRITES].edge_index = EdgeIndex(data[WRITES].edge_index, sparse_size=(AUTHORS, PAPERS))
    return data


def compressed(data: HeteroData) -> HeteroData:
    """By columns, as PyG's transform does not, but users do."""
    rows = torch.sparse_coo_tensor(data[WRITES].edge_index.flip(0), torch.ones(200),
                                   (PAPERS, AUTHORS))
    del data[WRITES].edge_index
    data[WRITES].adj_t = rows.to_sparse_csc()
    return data


@pytest.mark.filterwarnings("ignore:Sparse CS")
@pytest.mark.parametrize("change", [
    HeteroData.sort, HeteroData.coalesce, HeteroData.generate_ids, T.ToUndirected(), indexed,
    lambda data: T.RandomLinkSplit(edge_types=[WRITES])(data)[0],
    sparse(torch.sparse_csr), sparse(torch.sparse_coo), compressed,
    sparse(torch.sparse_csr, "edge_weight"), sparse(torch.sparse_coo, "edge_weight"),
], ids=["sort", "coalesce", "ids", "undirected", "EdgeIndex", "links", "csr", "coo", "csc",
        "csr weights", "coo weights"])
def test_graphs_that_were_transformed_are_read_in_all_forms(
        tmp_path: Path, change: Callable[[HeteroData], Any]) -> None:
    data = hetero_data()
    data = change(data) or data
    for form in FORMS:
        source = read(data, form, tmp_path)
        for kind in data.edge_types:
            edges = collect(source.edges[Relation(*kind)])
            store = data[kind]
            if "edge_index" in store:
                assert np.array_equal(edges, np.asarray(store.edge_index))
                continue
            dense = np.zeros((PAPERS, AUTHORS))
            weights = source.edge_arrays.get(Relation(*kind), {}).get("edge_weight")
            np.add.at(dense, (edges[1], edges[0]), 1.0 if weights is None else weights)
            assert np.array_equal(dense, store.adj_t.to_dense())


KINDS: list[tuple[Callable[[Any], Any], dict[str, Any], tuple[str, int]]] = [
    (lambda y: y, {}, ("classification", 3)),
    (lambda y: y[:, None], {}, ("classification", 3)),
    (lambda y: y.float().where(y > 0, torch.nan), {"unlabelled": "1"}, ("classification", 3)),
    (lambda y: y.where(y > 0, 255).byte(), {"unlabelled": 255}, ("classification", 3)),
    (lambda y: y + 900_000_000, {}, ("classification", 3)),
    (lambda y: y * 10**12, {}, ("classification", 3)),
    (lambda y: y.float() + 0.5, {}, ("regression", 1)),
    (lambda y: y, {"kind": "regression"}, ("regression", 1)),
    (lambda y: torch.randn(PAPERS, 4), {}, ("regression", 4)),
    (lambda y: torch.stack([y, y], 1), {"kind": "regression"}, ("regression", 2)),
    (lambda y: torch.stack([y > 0, y > 1], 1), {}, ("multilabel", 2)),
    (lambda y: torch.stack([y > 0, y > 1], 1).float().where(y[:, None] > 0, torch.nan), {},
     ("multilabel", 2)),
    (lambda y: torch.stack([y, y - 1], 1).clamp(max=1), {"unlabelled": "-1"}, ("multilabel", 2)),
]


@pytest.mark.parametrize(("labels", "options", "task"), KINDS)
def test_the_kind_of_task_follows_from_the_labels_or_is_said(
        tmp_path: Path, labels: Callable[[Any], Any], options: dict[str, Any],
        task: tuple[str, int]) -> None:
    data = hetero_data()
    y = data["paper"].y
    data["paper"].y = labels(y)
    source = read(data, "saved", tmp_path, **options)
    assert source.task is not None
    assert (source.task.kind, source.task.num_classes) == task
    write_store(source, tmp_path / "store")
    store = Store(tmp_path / "store")
    assert store.manifest.task == source.task
    if names := store.manifest.info.get("classes"):
        found = [int(names[c]) for c in store.array("paper", "label")]
        assert found == data["paper"].y.tolist()


def with_ids(data: HeteroData) -> None:
    paper = data["paper"]
    for name, mask in (("train", "train"), ("valid", "val"), ("test", "test")):
        paper[f"{name}_idx"] = paper[f"{mask}_mask"].nonzero().flatten()
        del paper[f"{mask}_mask"]
    paper.test_idx = paper.test_idx.tolist()


def with_own_labels(data: HeteroData) -> None:
    """As PyG's Entities have them."""
    with_ids(data)
    paper = data["paper"]
    for name in ("train", "valid", "test"):
        paper[f"{name}_y"] = paper.y[paper[f"{name}_idx"]]
    del paper.y


def with_folds(data: HeteroData) -> None:
    paper = data["paper"]
    for name in ("train_mask", "val_mask"):  # and one test for all of them
        paper[name] = torch.stack([paper.test_mask, paper[name]], 1)


@pytest.mark.parametrize(("change", "options"), [
    (with_ids, {}), (with_own_labels, {}), (with_folds, {"fold": 1})])
def test_ids_and_folds_become_masks(
        tmp_path: Path, change: Callable[[HeteroData], None], options: dict[str, Any]) -> None:
    data, want = hetero_data(), read_hetero_data(hetero_data(), "mag")
    change(data)
    for form in FORMS:
        paper = read(data, form, tmp_path, **options).node_arrays["paper"]
        for name in ("train_mask", "val_mask", "test_mask", "label"):
            assert np.array_equal(paper[name], want.node_arrays["paper"][name]), name


def test_types_and_relations_with_nothing_in_them_are_left_out_by_name(tmp_path: Path) -> None:
    data = hetero_data()
    data["extra"].x = torch.empty(0, 10)
    data["paper", "has", "extra"].edge_index = torch.empty(2, 0, dtype=torch.long)
    data["tag"].num_nodes = 7
    data["tag", "on", "paper"].edge_index = torch.tensor([])
    source = read(data, "saved", tmp_path)
    assert source.node_counts == {"paper": PAPERS, "author": AUTHORS}
    assert source.info["left out"] == [
        "'paper has extra', which has no edges", "'tag on paper', which has no edges",
        "'extra', which has no nodes", "'tag', which has no edges"]
    write_store(source, tmp_path / "store")
    data["extra"].x = torch.empty(0, 10)
    data["paper", "has", "extra"].edge_index = torch.zeros(2, 1, dtype=torch.long)
    with pytest.raises(InputError, match="'extra' has 0 nodes; it must have at least 1"):
        write_store(read_hetero_data(data, "mag"), tmp_path / "other")


def without(store: Any, key: Any) -> Any:
    return store.pop(key)


@pytest.mark.parametrize(("change", "options", "message"), [
    (lambda d: without(d["author"], "num_nodes"), {}, "'author' has no num_nodes and no array"),
    (lambda d: d["author"].update(num_nodes="20"), {}, "num_nodes of node type 'author' is '20'"),
    (lambda d: d["author"].update(num_nodes=2.5), {}, r"'author' is 2\.5; it must be a whole"),
    (lambda d: (without(d["author"], "num_nodes"),
                d["author"].update(a=torch.zeros(3), b=torch.zeros(4))), {},
     r"different numbers of rows \(a 3, b 4\)"),
    (lambda d: without(d[WRITES], "edge_index"), {}, "no edge_index, but edge_attr"),
    (lambda d: d[WRITES].update(edge_index=torch.zeros(3, 2)), {}, r"shape \(3, 2\)"),
    (lambda d: (without(d[WRITES], "edge_index"), d[WRITES].update(adj_t=torch.zeros(3, 2))), {},
     "adj_t of 'author writes paper' is no sparse tensor of PyTorch"),
    (lambda d: d["paper"].update(x=torch.zeros(60, 2).to_sparse()), {}, "x of 'paper' is no dense"),
    (lambda d: d["paper"].update(train_mask=torch.ones(7, dtype=torch.bool)), {},
     "train_mask.*paper"),
    (lambda d: d["paper"].update(train_mask=torch.arange(7)), {},
     "7 rows for 60 nodes; if these are ids of nodes, call it train_idx"),
    (lambda d: d["paper"].update(train_idx=torch.tensor([60])), {}, "train_idx.*names node 60"),
    (lambda d: d["paper"].update(train_idx=torch.tensor([1])), {}, "train_mask and train_idx, wh"),
    (lambda d: d["paper"].update(train_mask=torch.ones(60, 3, dtype=torch.bool)), {},
     r"3 columns, one for each fold; say which to take: fold=0 … 2"),
    (lambda d: d["paper"].update(train_mask=torch.ones(60, 3, dtype=torch.bool)), {"fold": 3},
     "fold 3 is none of them: fold=0 … 2"),
    (lambda d: None, {"fold": 1}, "fold is 1, but no mask has several columns"),
    (lambda d: d["paper"].update(y=torch.full((60, 2), -1.0)), {},
     r"node 0 is in train_mask and has -1\.0 for label 0; a label is 0 or 1: if it stands for no, "
     r"write 0; if -1 stands for no label, say so by unlabelled = -1"),
    (lambda d: d["paper"].update(y=torch.full((60, 2), 7)), {},
     "has 7 for label 0; a label is 0 or 1: if these are numbers to predict, name the kind regr"),
    (lambda d: d["paper"].update(y=torch.full((60,), torch.inf)), {"kind": "regression"},
     "node 0 is in train_mask and has inf; numbers must be finite"),
    (lambda d: d["paper"].update(y=torch.arange(60) - 5), {}, "holds -5 and -4; one value below 0"),
    (lambda d: d["paper"].update(y=torch.full((60,), 9e8)), {}, "as float32, which rounds whole"),
    (lambda d: d["paper"].update(y=torch.zeros(60)), {"kind": "multilabel"},
     r"is float32\[60\], but a task of kind 'multilabel' needs zeros and ones"),
    (lambda d: d["paper"].update(label=torch.ones(60)), {}, "y and label; leave one out"),
    (lambda d: d.update({3: {}}), {}, "3 is neither a node type nor an edge type"),
    (lambda d: without(d, WRITES), {}, "no edge types"),
])
def test_what_does_not_fit_is_named(
        change: Callable[[Any], Any], options: dict[str, Any], message: str) -> None:
    data = hetero_data().to_dict()
    change(data)
    with pytest.raises(InputError, match=message):
        read_hetero_data(data, "mag", **options)


def test_what_is_no_hetero_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no HeteroData of torch_geometric"):
        read_hetero_data(ModuleType("x"), "mag")
    every: list[Any] = [({"a": {}}, {"a": {"x": torch.arange(3)}}), (hetero_data(), hetero_data())]
    for several in every:
        torch.save(several, tmp_path / "two.pt")
        with pytest.raises(InputError, match="several graphs"):
            open_source(tmp_path / "two.pt")
