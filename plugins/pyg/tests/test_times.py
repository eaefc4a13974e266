"""Batches of a graph with times have nothing later than their seeds, and models see the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dgl_heta_pyg import (
    LinkNeighborLoader,
    NeighborLoader,
    distribute,
    open_partition,
    read_hetero_data,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import HeteroData
from torch_geometric.nn import to_hetero

import dgl_heta
from dgl_heta.errors import InputError
from dgl_heta.partition.directory import write_partition
from dgl_heta.planning.making import make_plan
from dgl_heta.store import Store, write_store
from tests.support import warm

sys.path.insert(0, str(Path(__file__).parent))
from times_worker import Sage

VIEWS = ("user", "views", "item")


def shop(seed: int = 0) -> HeteroData:
    """Users who view items, at times of edges, and place orders, which have times of their own."""
    rng, data = np.random.default_rng(seed), HeteroData()
    counts = {"user": 25, "item": 12, "order": 60}
    for ntype, count in counts.items():
        data[ntype].x = torch.from_numpy(rng.standard_normal((count, 4)))
    data["user"].y = torch.from_numpy(rng.integers(0, 3, counts["user"]))
    data["user"].train_mask = torch.ones(counts["user"], dtype=torch.bool)
    data["order"].time = torch.from_numpy(rng.integers(100, 200, counts["order"]))

    def ends(src: str, dst: str, count: int) -> torch.Tensor:
        return torch.from_numpy(np.stack([rng.integers(0, counts[t], count) for t in (src, dst)]))

    for src, name, dst, count, back in (("user", "views", "item", 150, "seen"),
                                        ("order", "by", "user", 60, "places"),
                                        ("order", "of", "item", 90, "in")):
        edges = ends(src, dst, count)
        data[src, name, dst].edge_index, data[dst, back, src].edge_index = edges, edges.flip(0)
    when = torch.from_numpy(rng.integers(100, 200, 150))
    data[VIEWS].time = data["item", "seen", "user"].time = when
    return data


def partitioned(data: HeteroData, place: Path, parts: int = 1,
                targets: Sequence[str] = ("user", "item")) -> Path:
    source = read_hetero_data(data, "shop", target="user", time_attr="time")
    write_store(source, place / "store", edge_ids=True)
    store = Store(place / "store")
    write_partition(store, make_plan(store.schema, [*targets], 2, parts),
                    place / f"part{parts}", edge_ids=True)
    return place / f"part{parts}"


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> dgl_heta.Partition:
    return dgl_heta.open_partition(
        partitioned(shop(), tmp_path_factory.mktemp("shop")),
        ["train.threads=1", "train.dtype=float64", "partition.shared=rows"])


def present(data: HeteroData, edge_type: tuple[str, str, str], time: int) -> torch.Tensor:
    """Which edges of a type are there at a time."""
    edges = data[edge_type]
    there = edges.time <= time if "time" in edges else torch.ones(
        edges.edge_index.size(1), dtype=torch.bool)
    if "time" in data[edge_type[0]]:
        there &= data[edge_type[0]].time[edges.edge_index[0]] <= time
    return there


@settings(max_examples=12, deadline=None)
@given(fanouts=st.lists(st.sampled_from([-1, 1, 3]), min_size=2, max_size=2),
       seeds=st.lists(st.tuples(st.integers(0, 24), st.integers(103, 205)), min_size=1, max_size=9,
                      unique=True))
def test_rows_see_what_is_there_at_their_time(part: dgl_heta.Partition, fanouts: list[int],
                                              seeds: list[tuple[int, int]]) -> None:
    data, (ids, times) = shop(), torch.tensor(seeds).T
    (batch,) = NeighborLoader(part, fanouts, ("user", ids), input_time=times, batch_size=9)
    user = batch["user"]
    assert user.n_id[:len(ids)].tolist() == ids.tolist()
    assert user.seed_time[:len(ids)].tolist() == times.tolist()
    assert user.y.tolist() == data["user"].y[ids].tolist()
    for edge_type in data.edge_types:
        (src, _, dst), of, found = edge_type, batch[edge_type], batch[edge_type].edge_index
        whole = data[edge_type].edge_index
        assert torch.equal(whole[:, of.e_id], torch.stack(
            [batch[t].n_id[end] for t, end in zip((src, dst), found)]))
        assert torch.equal(batch[src].seed_time[found[0]], batch[dst].seed_time[found[1]])
        rows = np.repeat([*range(3)], batch[dst].num_sampled_nodes)
        for row, (node, time) in enumerate(zip(batch[dst].n_id, batch[dst].seed_time)):
            there = present(data, edge_type, int(time))
            assert there[of.e_id[found[1] == row]].all()
            most = [*fanouts, 0][rows[row]]
            every = int((there & (whole[1] == node)).sum())
            assert (found[1] == row).sum() == (every if most < 0 else min(every, most))
    assert torch.equal(batch["order"].time, data["order"].time[batch["order"].n_id])


def test_a_model_gives_what_plain_pyg_gives_of_the_graph_until_then(part: dgl_heta.Partition
                                                                    ) -> None:
    data = shop()
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(0)
        model = to_hetero(Sage(), data.metadata())
        ids, times = torch.tensor([3, 3, 24, 11]), torch.tensor([120, 180, 150, 104])
        (batch,) = NeighborLoader(part, [-1, -1], ("user", ids), input_time=times, batch_size=4)
        found = distribute(model, part)(batch.x_dict, batch.edge_index_dict)["user"]
        for row, (node, time) in enumerate(zip(ids, times)):
            until = {e: data[e].edge_index[:, present(data, e, int(time))]
                     for e in data.edge_types}
            expected = model(data.x_dict, until)["user"][node]
            torch.testing.assert_close(found[row], expected, rtol=1e-10, atol=1e-10)
    finally:
        torch.set_default_dtype(torch.float32)


def test_negative_ends_are_there_at_their_links_time(tmp_path: Path) -> None:
    data = shop()
    data["item"].time = torch.arange(12) * 10 + 50
    part = dgl_heta.open_partition(partitioned(data, tmp_path),
                                   ["train.threads=1", "partition.shared=rows"])
    links = data[VIEWS].edge_index
    with pytest.raises(InputError, match="before its row"):
        LinkNeighborLoader(part, [2, 2], (VIEWS, links), edge_label_time=links[0] * 0 + 105)
    links = links[:, links[1] < 6]
    for mode in ("binary", "triplet"):
        (batch,) = LinkNeighborLoader(
            part, [2, 2], (VIEWS, links), neg_sampling=mode, batch_size=200,
            edge_label_time=torch.full((len(links.T),), 105))
        item = batch["item"]
        assert (item.seed_time == 105).all()
        drawn = (batch[VIEWS].edge_label_index[1][len(links.T):] if mode == "binary" else
                 item.dst_neg_index)
        assert set((item.n_id[drawn]).tolist()) == set(range(6))  # of times 50 to 100
    with pytest.raises(InputError, match="links have edge_label_time"):
        LinkNeighborLoader(part, [2, 2], (VIEWS, links), edge_label_time=links[0] * 0 + 105,
                           input_time=links[0])


def test_masks_and_labels_are_of_the_nodes_of_seeds(tmp_path: Path) -> None:
    """Where a table has seeds at times of its own no mask has them."""
    data = shop()
    data["user"].time, data["user"].y = torch.arange(25) % 5, torch.rand(25)
    data["user"].train_mask = torch.arange(25) >= 10
    place, table = partitioned(data, tmp_path, targets=["user"]), tmp_path / "seeds.csv"
    table.write_text("id,time,label,split\n3,1970-01-01 00:02:30,0.5,train\n")
    rows, seeds = (open_partition(place, ["train.threads=1", *more])
                   for more in ([], [f"task.table={table}"]))
    assert torch.equal(rows["user"].train_mask, data["user"].train_mask)
    with pytest.raises(InputError, match="train_mask has no times; input_nodes='train' keeps them"):
        _ = seeds["user"].train_mask
    (batch,) = NeighborLoader(rows, [2, 2], "train", batch_size=15)
    assert torch.equal(batch["user"].y, data["user"].y[batch["user"].n_id[:15]])
    (batch,) = NeighborLoader(seeds, [2, 2], "train", batch_size=15)
    assert batch["user"].y.tolist() == [0.5]


@pytest.mark.parametrize(("what", "why"), [
    ({"input_nodes": "train", "input_time": torch.zeros(3)}, "a split has the times"),
    ({"input_nodes": ("user", [1, 2])}, "'user' have none of their own; give the time of each"),
    ({"input_nodes": ("user", [1, 2]), "input_time": torch.tensor([150])}, "for each of 2 seeds"),
    ({"input_nodes": ("user", [1]), "input_time": torch.tensor([150.0])}, "give a whole number"),
    ({"input_nodes": ("user", [1]), "input_time": torch.tensor([150]),
      "temporal_strategy": "last"}, r"\['train.latest=True'\]"),
    ({"input_nodes": ("user", [1]), "input_time": torch.tensor([150]),
      "temporal_strategy": "newest"}, "known are 'uniform' and 'last'"),
])
def test_what_is_wrong_is_one_line(part: dgl_heta.Partition, what: dict[str, Any], why: str
                                   ) -> None:
    with pytest.raises(InputError, match=why):
        NeighborLoader(part, [2, 2], **what)


def test_times_of_a_file_are_those_of_its_arrays(tmp_path: Path) -> None:
    torch.save(shop().to_dict(), tmp_path / "shop.pt")
    done = subprocess.run(
        [warm.python(), "-m", "dgl_heta", "partition", f"{tmp_path}/shop.pt:time_attr=time",
         "--out", str(tmp_path / "part"), "--target", "user", "--hops", "2", "--parts", "1"],
        capture_output=True, text=True)
    assert not done.returncode, done.stderr
    times = dgl_heta.open_partition(tmp_path / "part").store.row_times("order")
    assert np.array_equal([] if times is None else times, shop()["order"].time)
    with pytest.raises(InputError, match="no node or edge type has 'when'"):
        read_hetero_data(shop(), "shop", time_attr="when")
    with pytest.raises(InputError, match="x of 'user' must be whole numbers"):
        read_hetero_data(shop(), "shop", time_attr="x")


@pytest.mark.slow
def test_two_workers_compute_what_one_does(tmp_path: Path) -> None:
    data, results = shop(), []
    rng = np.random.default_rng(5)
    pairs = np.unique(np.stack([rng.integers(0, 25, 48), rng.integers(110, 200, 48)], 1), axis=0)
    pairs = pairs[:36]
    torch.save({"ids": torch.from_numpy(pairs[:, 0]), "times": torch.from_numpy(pairs[:, 1]),
                "views": data[VIEWS].edge_index[:, :36], "when": data[VIEWS].time[:36]},
               tmp_path / "seeds.pt")
    for workers in (1, 2):
        (tmp_path / str(workers)).mkdir()
        part, out = partitioned(data, tmp_path / str(workers), workers), tmp_path / f"{workers}.pt"
        done = subprocess.run(
            [warm.python("torch_geometric.nn"), "-m", "torch.distributed.run", "--standalone",
             "--nproc-per-node", str(workers), str(Path(__file__).with_name("times_worker.py")),
             str(part), str(out), str(tmp_path / "seeds.pt")],
            capture_output=True, text=True, timeout=300,
            env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert not done.returncode, done.stderr[-4000:]
        results.append(torch.load(out))
    assert len(results[0]["losses"]) == len(results[0]["of links"]) == 3
    for name, value in results[0].items():
        assert (results[1][name] - value).abs().max() < 1e-10, name
