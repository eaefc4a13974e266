"""Batches of a partition are those that PyG's NeighborLoader gives: one graph, hop by hop."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch_geometric.transforms as T
from dgl_heta_pyg import (
    LinkNeighborLoader,
    NeighborLoader,
    distribute,
    open_partition,
    read_hetero_data,
)
from torch_geometric.data import HeteroData
from torch_geometric.sampler import NegativeSampling

import dgl_heta
from dgl_heta.errors import InputError
from dgl_heta.graph.source import Task
from dgl_heta.partition.directory import write_partition
from dgl_heta.planning.making import make_plan, plan_without_replication
from dgl_heta.store import Store, write_store
from tests.support.cuts import deal_pieces
from tests.support.graphs import RELATIONS, academic

SETTINGS = ["model.hidden=8", "train.threads=1"]
CITES = ("paper", "cites", "paper")
LINKS = torch.tensor([[5, 7, 9, 5], [1, 2, 3, 4]])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    place = tmp_path_factory.mktemp("store")
    source = academic(papers=120)
    source.edge_arrays = {RELATIONS[0]: {"edge_attr": np.random.default_rng(0).random((360, 2))}}
    write_store(source, place / "store", edge_ids=True)
    return Store(place / "store")


@pytest.fixture(scope="module")
def part(store: Store, tmp_path_factory: pytest.TempPathFactory) -> dgl_heta.Partition:
    place = tmp_path_factory.mktemp("part") / "part"
    write_partition(store, make_plan(store.schema, ["paper"], 2, 1), place, edge_ids=True)
    return dgl_heta.open_partition(place, SETTINGS)


def test_a_batch_is_a_neighbourhood_of_the_graph(part: dgl_heta.Partition, store: Store) -> None:
    loader = NeighborLoader(part, num_neighbors=[3, 2], input_nodes="train", batch_size=10)
    batches = list(loader)
    assert len(loader) == len(batches) == 8
    for batch in batches:
        assert isinstance(batch, HeteroData)
        assert batch.validate()
        for relation in RELATIONS:
            csc, edges = store.relation(relation), batch[tuple(relation)]
            src, dst = (batch[t].n_id.numpy()[end] for t, end in zip(
                (relation.src, relation.dst), edges.edge_index.numpy()))
            for u, v in zip(src, dst):
                assert u in csc.indices[csc.indptr[v]:csc.indptr[v + 1]]
            # Every row of the first two hops has its sample, of its hop's size, and no other row.
            rows = batch.num_sampled_nodes_dict[relation.dst]
            degree = np.bincount(edges.edge_index[1].numpy(), minlength=sum(rows))
            whole = np.diff(csc.indptr)[batch[relation.dst].n_id.numpy()]
            at_most = np.repeat([3, 2, 0], rows)
            assert (degree == np.minimum(whole, at_most)).all()
            assert sum(edges.num_sampled_edges) == edges.edge_index.size(1)
    seen = torch.cat([batch["paper"].n_id[:batch["paper"].batch_size] for batch in batches])
    assert sorted(seen.tolist()) == np.flatnonzero(store.array("paper", "train_mask")).tolist()


def test_rows_labels_and_edges_have_their_own(part: dgl_heta.Partition, store: Store) -> None:
    nodes = torch.tensor([5, 99, 3, 40])
    (batch,) = NeighborLoader(part, [-1, 2], ("paper", nodes), batch_size=4)
    paper = batch["paper"]
    assert paper.n_id[:4].tolist() == nodes.tolist()
    assert paper.input_id.tolist() == [0, 1, 2, 3]
    assert paper.y.tolist() == store.array("paper", "label")[nodes.numpy()].tolist()
    assert np.allclose(paper.x, store.array("paper", "feat")[paper.n_id.numpy()])
    writes = batch["author", "writes", "paper"]
    given = store.edge_arrays(RELATIONS[0])["edge_attr"]
    assert np.array_equal(writes.edge_attr, given[writes.e_id.numpy()])
    ends = store.relation(RELATIONS[0])
    place = {int(edge): p for p, edge in enumerate(store.edge_ids(RELATIONS[0]))}
    for edge, u in zip(writes.e_id.tolist(), writes.edge_index[0].tolist()):
        assert ends.indices[place[edge]] == batch["author"].n_id[u]


@pytest.mark.parametrize("columns", [(), (1,), (2,)])
def test_numbers_to_predict_are_of_the_shape_and_dtype_of_the_data(
        tmp_path: Path, columns: tuple[int, ...]) -> None:
    """Else a loss of (n,) and (n, 1) is one of (n, n)."""
    source = academic(papers=120)
    label = np.random.default_rng(0).random((120, *columns), np.float32)
    source.node_arrays["paper"]["label"] = label
    source.task = Task("paper", math.prod(columns), kind="regression")
    write_store(source, tmp_path / "store")
    store = Store(tmp_path / "store")
    write_partition(store, make_plan(store.schema, ["paper"], 2, 1), tmp_path / "part")
    for nodes in ("train", ("paper", [5, 99, 3])):
        paper = next(iter(NeighborLoader(dgl_heta.open_partition(tmp_path / "part", SETTINGS),
                                         [2, 2], nodes, batch_size=3)))["paper"]
        assert paper.y.dtype == torch.float32
        assert np.array_equal(paper.y, label[paper.n_id[:3].numpy()])


def test_batches_are_the_same_again_or_of_each_epoch(part: dgl_heta.Partition) -> None:
    def seeds(loader: NeighborLoader) -> list[list[int]]:
        return [batch["paper"].n_id.tolist() for batch in loader]

    for shuffle in (False, True):
        loader = NeighborLoader(part, [2, 2], "val", batch_size=7, shuffle=shuffle)
        assert (seeds(loader) == seeds(loader)) is not shuffle
    assert [len(s) for s in map(seeds, (
        NeighborLoader(part, [2, 2], "val", batch_size=7, drop_last=drop)
        for drop in (True, False)))] == [3, 4]


def test_batches_that_are_made_ahead_are_the_same(
        part: dgl_heta.Partition, store: Store, tmp_path: Path) -> None:
    write_partition(store, part.plan, tmp_path / "part")
    ahead = dgl_heta.open_partition(tmp_path / "part", [*SETTINGS, "train.batches=pipeline"])
    for one, other in zip(*(NeighborLoader(p, [3, 2], "train", batch_size=20)
                            for p in (part, ahead)), strict=True):
        assert torch.equal(one["paper"].x, other["paper"].x)
        for relation, edges in one.edge_index_dict.items():
            assert torch.equal(edges, other[relation].edge_index)


def test_learnable_rows_collect_gradients(part: dgl_heta.Partition) -> None:
    """Of a node that stands in several hops, in one row of the table."""
    (batch,) = NeighborLoader(part, [-1, -1], ("paper", [0, 1, 2]), batch_size=3)
    author, number = batch["author"], len(batch["author"].n_id)
    assert len(author.n_id.unique()) < number
    author.x.sum().backward()
    before = part.learnable.local["author"].value.clone()
    part.row_optimizer(lr=0.5).step()
    changed = (part.learnable.local["author"].value != before).all(1)
    assert torch.equal(torch.nonzero(changed).flatten(), author.n_id.unique())


@pytest.mark.parametrize(("arguments", "said"), [
    ({"num_neighbors": [3]}, "1 fanout for a partition of 2 hops"),
    ({"num_neighbors": {("author", "writes", "paper"): [3, 2]}}, "num_neighbors has None for"),
    ({"num_neighbors": {"writes": [3, 2], "rites": [3, 2]}}, "relation 'rites' is not in the"),
    ({"num_neighbors": {tuple(r): [3] for r in RELATIONS}}, "for each of 2 hops"),
    ({"num_neighbors": {tuple(r): [3, -2] for r in RELATIONS}}, "must be a number of edges"),
    ({"input_nodes": "authors"}, "'authors' is no split"),
    ({"input_nodes": "author"}, "made for target paper, not"),
    ({"input_nodes": ("paper", torch.ones(7, dtype=torch.bool))}, "mask of 'paper' has 7 rows"),
    ({"input_nodes": ("paper", [120])}, "but its nodes are 0 to 119"),
    ({"replace": True}, "replace is not known"),
])
def test_what_a_loader_cannot_be_is_refused(part: dgl_heta.Partition, arguments: dict,
                                            said: str) -> None:
    with pytest.raises(InputError, match=said):
        NeighborLoader(part, **{"num_neighbors": [3, 2], "batch_size": 4, **arguments})


@pytest.mark.parametrize(("arguments", "said"), [
    ({"edge_label_index": (CITES, torch.tensor([[0, 1], [2, 120]]))}, "its nodes are 0 to 119"),
    ({"edge_label_index": (CITES, torch.rand(2, 5))}, "is float32.2, 5.; give the ends of links"),
    ({"edge_label_index": ("author", "writes", "paper")}, "'author', which is no target"),
    ({"edge_label_index": (("paper", "sites", "paper"), LINKS)}, "'paper sites paper' is not in"),
    ({"edge_label": torch.ones(3)}, "edge_label has 3 rows, and there are 4 links"),
    ({"neg_sampling": NegativeSampling("binary", dst_weight=torch.ones(120))}, "has weights"),
    ({"edge_label_index": CITES, "edge_label": torch.ones(360)}, "give edge_label_index as"),
    ({"edge_label": torch.ones(4), "neg_sampling": "triplet"}, "which has no edge_label"),
    ({"num_neighbors": [3]}, "1 fanout for a partition of 2 hops"),
    ({"disjoint": True}, "LinkNeighborLoader's disjoint is not known"),
])
def test_what_links_cannot_be_is_refused(part: dgl_heta.Partition, arguments: dict,
                                         said: str) -> None:
    with pytest.raises(InputError, match=said):
        LinkNeighborLoader(part, **{"num_neighbors": [3, 2], "batch_size": 2,
                                    "edge_label_index": (CITES, LINKS), **arguments})


def test_batches_of_links_have_their_own(part: dgl_heta.Partition, store: Store) -> None:
    """And random pairs, drawn anew in each epoch; without ids, the links are all edges."""
    def of(batch: HeteroData) -> np.ndarray:
        return batch["paper"].n_id.numpy()[batch[CITES].edge_label_index.numpy()]

    loader = LinkNeighborLoader(part, [3, 2], (CITES, LINKS), neg_sampling_ratio=1.5, batch_size=2,
                                shuffle=True)
    first, second = list(loader), list(loader)
    assert len(loader) == len(first) == 2
    for batch in first:
        assert np.array_equal(of(batch)[:, :2], LINKS[:, batch[CITES].input_id])
        assert batch[CITES].edge_label.tolist() == [1, 1, 0, 0, 0]
        mean = batch.mean(torch.arange(5.0))
        assert mean == 2
    assert {*of(first[0])[:, 2:].ravel()} != {*of(second[0])[:, 2:].ravel()}
    for classes, labels in (([0, 1, 2, 0], [1, 2, 3, 1]), ([1, 2, 3, 1], [1, 2, 3, 1])):
        (batch,) = LinkNeighborLoader(  # as in PyG: 0 is of negative links
            part, [1, 1], (CITES, LINKS), torch.tensor(classes), "binary", batch_size=4)
        assert batch[CITES].edge_label.tolist() == [*labels, 0, 0, 0, 0]
    (batch,) = LinkNeighborLoader(part, [1, 1], CITES, batch_size=10**6)
    csc = store.relation(dgl_heta.Relation(*CITES))
    assert np.array_equal(of(batch)[0], csc.indices)
    assert np.array_equal(np.bincount(of(batch)[1], minlength=120), np.diff(csc.indptr))


def test_labels_of_links_are_not_those_that_a_split_puts_on_edges(tmp_path: Path) -> None:
    data, rates = HeteroData(), ("user", "rates", "movie")
    data["user"].x, data["movie"].x = torch.randn(30, 4), torch.randn(20, 4)
    data[rates].edge_index = torch.stack([torch.arange(200) % 30, torch.arange(200) % 20])
    data, _, _ = T.RandomLinkSplit(
        num_val=0.1, num_test=0.1, add_negative_train_samples=False, edge_types=[rates],
        rev_edge_types=[("movie", "rev_rates", "user")])(T.ToUndirected()(data))
    write_store(read_hetero_data(data, "ratings"), tmp_path / "store", edge_ids=True)
    store = Store(tmp_path / "store")
    write_partition(store, make_plan(store.schema, ["user", "movie"], 2, 1), tmp_path / "part",
                    edge_ids=True)
    batch = next(iter(LinkNeighborLoader(
        open_partition(tmp_path / "part", SETTINGS), [3, 3], (rates, data[rates].edge_label_index),
        neg_sampling_ratio=1.0, batch_size=32)))
    assert batch[rates].edge_label_index.shape == (2, 64)
    assert batch[rates].edge_label.tolist() == [1] * 32 + [0] * 32


def test_a_relation_may_have_neighbours_of_its_own_number(part: dgl_heta.Partition) -> None:
    numbers = {tuple(r): [-1, 1] for r in RELATIONS}
    numbers[CITES] = [0, 2]
    for batch in NeighborLoader(part, numbers, "val", batch_size=10):
        assert batch[CITES].num_sampled_edges[0] == 0
        for relation in RELATIONS:
            rows = batch[relation.dst].num_sampled_nodes
            degree = np.bincount(batch[tuple(relation)].edge_index[1].numpy(), minlength=sum(rows))
            assert degree[rows[0]:].max(initial=0) <= numbers[tuple(relation)][1]


def test_one_graph_has_types_of_nodes_and_edges(part: dgl_heta.Partition) -> None:
    batch = next(iter(NeighborLoader(part, [3, 2], "val", batch_size=10)))
    one = batch.to_homogeneous(node_attrs=["n_id"])
    for number, relation in enumerate(RELATIONS):
        ends, of = one.edge_index[:, one.edge_type == number], batch[tuple(relation)].edge_index
        for place, ntype in enumerate((relation.src, relation.dst)):
            assert torch.equal(one.n_id[ends[place]], batch[ntype].n_id[of[place]])
            assert {*one.node_type[ends[place]].tolist()} <= {batch.node_types.index(ntype)}


def test_data_in_memory_is_no_partition(part: dgl_heta.Partition) -> None:
    with pytest.raises(InputError, match="not HeteroData"):
        NeighborLoader(HeteroData(), [3, 2])
    for made in (distribute, dgl_heta.distribute):
        with pytest.raises(InputError, match="a partition is needed, not HeteroData"):
            made(torch.nn.Linear(1, 1), HeteroData())
    for opened in (open_partition, dgl_heta.open_partition):
        with pytest.raises(InputError, match="a partition is a directory, not HeteroData"):
            opened(HeteroData())


def test_without_other_workers_nothing_of_several_is_opened(store: Store, tmp_path: Path) -> None:
    write_partition(store, make_plan(store.schema, ["paper"], 2, 2), tmp_path / "part")
    for opened in (open_partition, dgl_heta.open_partition):
        with pytest.raises(InputError, match="1 workers were started for 2 partitions"):
            opened(tmp_path / "part")
    with pytest.raises(InputError, match="a partition is needed, not PosixPath"):
        NeighborLoader(tmp_path / "part", [3, 2])  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["metapaths", "cut"])
def test_partitions_without_whole_rows_are_refused(store: Store, tmp_path: Path, what: str) -> None:
    plan = (plan_without_replication(store.schema, ["paper"], 2, 1, deal_pieces(True), "test")
            if what == "cut" else
            make_plan(store.schema, ["paper"], None, 1, [(RELATIONS[1], RELATIONS[0])]))
    write_partition(store, plan, tmp_path / "part")
    opened = dgl_heta.open_partition(tmp_path / "part", SETTINGS)
    with pytest.raises(InputError, match="not whole|metapaths"):
        NeighborLoader(opened, [3, 2])
