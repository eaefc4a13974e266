"""Links with times: what a seed sees is before its link, and what cannot be is said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dgl_heta
from dgl_heta.errors import InputError
from dgl_heta.graph.node_ids import NodeIds
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import ALWAYS, EdgeArrays, GraphSource
from dgl_heta.hooks.manager import Plugins
from dgl_heta.launch.jobs.prediction import PredictionJob
from dgl_heta.planning.making import make_plan
from dgl_heta.sampling.blocks import MiniBatch
from dgl_heta.sampling.moments import TimeDraws
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.settings import load_settings
from dgl_heta.store import Store, write_store
from dgl_heta.system.checksums import read_signed, write_signed
from dgl_heta.training.tasks import LinkPrediction, make_task

BUYS, BOUGHT = Relation("user", "buys", "item"), Relation("item", "bought", "user")
OF, PLACES = Relation("order", "of", "user"), Relation("user", "places", "order")
AT = ["task.val_time=1970-01-01T00:00:07", "task.test_time=1970-01-01T00:00:09"]


def shop(seed: int, **changes: Any) -> GraphSource:
    """Users who buy items, at times of edges, and orders, at times of their rows."""
    rng = np.random.default_rng(seed)
    users, items, orders = rng.integers(4, 9, 3).tolist()
    size = int(rng.integers(20, 60))
    buyers, goods = rng.integers(0, users, size), rng.integers(0, items, size)
    when, of = rng.integers(1, 12, size), rng.integers(0, users, orders)
    source = GraphSource(
        "shop", {"user": users, "item": items, "order": orders},
        {BUYS: EdgeArrays(buyers, goods), BOUGHT: EdgeArrays(goods, buyers),
         OF: EdgeArrays(np.arange(orders), of), PLACES: EdgeArrays(of, np.arange(orders))},
        node_ids={"user": NodeIds.of(f"user {i}" for i in range(users))},
        times={BUYS: when, BOUGHT: when, "order": rng.integers(1, 12, orders),
               "item": np.where(rng.random(items) < 0.3, ALWAYS, rng.integers(0, 6, items))})
    for name, value in changes.items():
        getattr(source, name).update(value)
    return source


def task_of(source: GraphSource, place: Path, *wishes: str) -> LinkPrediction:
    write_store(source, place / "store", overwrite=True)
    task = make_task(Store(place / "store"), load_settings(
        None, [f"task.{w}" for w in wishes if w] + AT * ("" not in wishes), {}))
    assert isinstance(task, LinkPrediction)
    return task


def drawn(batch: MiniBatch, ntype: str, row: int, layer: int
          ) -> Iterator[tuple[Relation, int, int]]:
    """All edges below a row, as relation, source node and destination node."""
    def node(of: str, at: int) -> int:
        return int(batch.input_nodes[of][at if batch.places is None else batch.places[of][at]])

    for edges in batch.blocks[layer - 1].edges if layer else ():
        if edges.relation.dst != ntype:
            continue
        rows = (np.arange(edges.start, edges.stop) if edges.rows is None else edges.rows.numpy())
        for at in np.flatnonzero(rows == row).tolist():
            for source in edges.indices[edges.indptr[at]:edges.indptr[at + 1]].tolist():
                yield edges.relation, node(edges.relation.src, source), node(ntype, row)
                yield from drawn(batch, edges.relation.src, source, layer - 1)


@given(seed=st.integers(0, 1 << 20), predicts=st.sampled_from(["buys", "of", "places", "buys,of"]),
       latest=st.booleans(), fanout=st.sampled_from([-1, 1, 3]))
@settings(max_examples=40, deadline=None)
def test_a_link_sees_only_links_before_it(
        tmp_path_factory: pytest.TempPathFactory, seed: int, predicts: str, latest: bool,
        fanout: int) -> None:
    """Whatever is drawn below any end or negative of a step, on all layers; negatives are of nodes
    that are there."""
    source = shop(seed)
    place = tmp_path_factory.mktemp("links")
    task = task_of(source, place, f"relation={predicts}", "negatives=3")
    first: dict[tuple[Relation, int, int], int] = {}
    for relation, edges in source.edges.items():
        times = np.max([source.times[key] if of is None else source.times[key][of] for key, of in (
            (relation, None), (relation.src, edges.src), (relation.dst, edges.dst))
            if key in source.times], 0)
        for u, v, at in zip(edges.src.tolist(), edges.dst.tolist(), times.tolist()):
            first[relation, u, v] = min(at, first.get((relation, u, v), at))
    store = Store(place / "store")
    sampler = NeighborSampler(
        store, SamplingScope.of(make_plan(store.schema, task.targets, 2, 1), 0), [fanout, fanout],
        held_out=task.held_out, time=TimeDraws(latest, strict=True))
    of_links = {"buys": (BUYS, BOUGHT), "of": (OF, PLACES), "places": (OF, PLACES)}
    hidden = {r for name in predicts.split(",") for r in of_links[name]}
    count = 0
    for split in ("train", "val", "test"):
        for number, step in enumerate(task.steps(split, 0, 16)):
            links = task.links(step, step.positions)
            assert ((links.times < 7) == (split == "train")).all()
            seeds = task.seeds(step, 0, 1)
            batch = sampler.sample(seeds, step=number, without=task.without(step))
            count += step.size
            for ntype, pairs in seeds.items():
                if ntype in source.times:
                    assert (source.times[ntype][pairs[:, 0]] <= pairs[:, 1]).all()
                for row, (_, time) in enumerate(pairs.tolist()):
                    seen = [edge for edge in drawn(batch, ntype, row, 2) if edge[0] in hidden]
                    assert all(first[edge] < time for edge in seen), (ntype, row, time)
    relations = [r for r in (BUYS, OF, PLACES) if r.etype in predicts.split(",")]
    assert count == sum(source.edges[r].num_edges for r in relations)


def test_a_table_has_links_at_times_of_ids(tmp_path: Path) -> None:
    """By its own split or by times; also of a relation that the graph has not."""
    source = shop(3)
    for name in ("buys", "user likes item"):
        table = tmp_path / "links.csv"
        table.write_text("who,what,day,split\nuser 1,2,6,train\nuser 1,2,8,val\n"
                         "user 0,1,9,\nuser 3,0,11,test\n")
        task = task_of(source, tmp_path, "", f"relation={name}", f"table={table}",
                       "columns=who,what,day")
        found = {split: [list(map(int, row)) for step in task.steps(split, 0, 9)
                         for row in zip(*task.links(step, step.positions)[1:])]
                 for split in ("train", "val", "test")}
        assert found == {"train": [[1, 2, 6]], "val": [[1, 2, 8]], "test": [[3, 0, 11]]}


def test_a_row_may_have_several_destinations(tmp_path: Path) -> None:
    """As RelBench's tables of recommendations have them, one file a split."""
    source, place = shop(3), tmp_path / "tables"
    place.mkdir()
    for word, rows in {"train": {"user 1": [2, 0], "user 0": []}, "val": {"user 2": [1]},
                       "test": {"user 0": [3, 1, 0]}}.items():
        pq.write_table(pa.table({"user": [*rows], "items": [*rows.values()], "day": pa.array(
            [8] * len(rows), pa.timestamp("s"))}, pa.schema({
                "user": pa.string(), "items": pa.list_(pa.int64()), "day": pa.timestamp("s")})),
            place / f"{word}.parquet")
    task = task_of(source, tmp_path, "", "relation=user wants item", f"table={place}",
                   "columns=user,items,day")
    found = {split: sorted(tuple(map(int, row)) for step in task.steps(split, 0, 9)
                           for row in zip(*task.links(step, step.positions)[1:]))
             for split in ("train", "val", "test")}
    assert found == {"train": [(1, 0, 8), (1, 2, 8)], "val": [(2, 1, 8)],
                     "test": [(0, 0, 8), (0, 1, 8), (0, 3, 8)]}


@pytest.mark.parametrize(("lines", "wishes", "message"), [
    (["user 9,0,6"], [], "is 'user 9', which is the id of no node of type 'user'"),
    (["user 0,0,-4"], [], "row 1: the seed is at 1969-12-31T23:59:56Z, before all data"),
    (["user 0,0,1735689600000"], [], "row 1: the seed is at 1735689600000, which is after the ye"),
    (["user 0,0,6"], [""], "nothing says which rows of .*links.csv are for training: give task"),
    (["user 0,0,6"], ["held_out=0.2"], r"task\.table says which links are held out, so task")])
def test_tables_of_links_are_refused_by_a_line(
        tmp_path: Path, lines: list[str], wishes: list[str], message: str) -> None:
    table = tmp_path / "links.csv"
    table.write_text("\n".join(["src,dst,time", *lines]) + "\n")
    with pytest.raises(InputError, match=message):
        task_of(shop(3), tmp_path, "relation=buys", f"table={table}", *wishes)


def test_a_relation_that_shows_links_too_early_is_refused(tmp_path: Path) -> None:
    source = shop(5)
    del source.times[BOUGHT]  # the item's rows remain
    with pytest.raises(InputError, match="relation 'item bought user' has the links of 'user buys "
                                         "item', but not their times .0% of its edges have one,"):
        task_of(source, tmp_path, "relation=buys").held_out  # noqa: B018
    source = shop(5)
    for key in (BUYS, BOUGHT, "item"):
        del source.times[key]
    with pytest.raises(InputError, match="edges of .user buys item. have no times, so links w"):
        task_of(source, tmp_path, "relation=buys").held_out  # noqa: B018
    with pytest.raises(InputError, match=r"give task\.val_time and task\.test_time, the tim"):
        task_of(shop(5), tmp_path, "", "relation=buys").steps("train", 0, 9)
    with pytest.raises(InputError, match=r"task\.links .* goes by no times, but the graph"):
        task_of(shop(5), tmp_path, "relation=buys", "links=some.csv")


def test_a_relation_with_few_of_the_links_times_is_refused(tmp_path: Path) -> None:
    source = shop(5)
    source.times[BOUGHT] = source.times[BOUGHT].copy()
    source.times[BOUGHT][source.times[BOUGHT] > 4] = ALWAYS
    with pytest.raises(InputError, match=r"'item bought user' has the links of 'user buys item', "
                                         r"but not their times \([0-9]+% of its edges have one, "):
        task_of(source, tmp_path, "relation=buys").splits  # noqa: B018


def planted(timed: bool) -> GraphSource:
    """Items, each bought once by a user who is drawn evenly; a receipt, there from then on, is of
    both, so that nothing but the receipt says who it was."""
    rng = np.random.default_rng(3)
    size = 600
    buyers, numbers = rng.integers(0, size, size), np.arange(size)
    edges: dict[Relation, Any] = {BOUGHT: EdgeArrays(numbers, buyers)}
    for name, ntype, ends in (("by", "user", buyers), ("for", "item", numbers)):
        edges[Relation("receipt", name, ntype)] = EdgeArrays(numbers, ends)
    when = rng.integers(1, 1000, size)
    ones = {t: {"feat": np.ones((size, 1), np.float32)} for t in ("user", "item")}
    receipts = {"feat": rng.standard_normal((size, 16)).astype(np.float32)}
    return GraphSource("planted", dict.fromkeys(("user", "item", "receipt"), size), edges,
                       {**ones, "receipt": receipts},
                       times={BOUGHT: when, "receipt": when} if timed else {})


def test_what_shows_a_link_from_its_time_on_is_not_seen(tmp_path: Path) -> None:
    """Without times it gives links away."""
    found = {}
    for timed in (True, False):
        write_store(planted(timed), tmp_path / f"store-{timed}")
        found[timed] = dgl_heta.train(
            tmp_path / f"store-{timed}", tmp_path / f"run-{timed}", parts=1, settings=[
                "task.relation=bought", "task.reverse=none", "model.hidden=32", "model.layers=1",
                "train.fanouts=-1", "train.batch_size=64", "train.epochs=8", "train.threads=1",
                "train.lr=0.01", "task.eval_negatives=20", "task.negatives=5",
                *(["task.val_time=1970-01-01T00:10:00", "task.test_time=1970-01-01T00:13:20"]
                  * timed)]).summary["test_acc"]
    assert found[False] > 0.6
    assert found[True] == pytest.approx(0.17, abs=0.06)  # mean reciprocal rank by chance, of 21


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize(("relation", "decoder"), [("buys", "dot"), ("user sees item", "distmult")])
def test_a_run_on_a_table_of_links_predicts_at_a_time(
        tmp_path: Path, relation: str, decoder: str) -> None:
    """Embeddings of what is there then, whatever comes later; the table may be gone by then."""
    source, other = shop(3), shop(3)
    later = source.times[BUYS] > 6
    ends = other.edges[BUYS]
    assert isinstance(ends, EdgeArrays)
    goods = np.where(later, (ends.dst + 1) % source.node_counts["item"], ends.dst)
    other.edges |= {BUYS: EdgeArrays(ends.src, goods), BOUGHT: EdgeArrays(goods, ends.src)}
    for name, graph in (("store", source), ("other", other)):
        write_store(graph, tmp_path / name)
    table = tmp_path / "links.csv"
    table.write_text("src,dst,time\n" + "".join(
        f"user {user},{item},{time}\n" for time in (6, 8, 10) for user in (0, 1, 2)
        for item in (0, 1)))
    dgl_heta.train(tmp_path / "store", tmp_path / "run", parts=2, settings=[
        f"task.relation={relation}", f"task.decoder={decoder}", f"task.table={table}", *AT,
        "model.hidden=8", "train.fanouts=4,4", "train.batch_size=9", "train.epochs=1",
        "train.threads=1", "train.dtype=float64"])
    table.unlink()
    job = read_signed(tmp_path / "run" / "job.json", "")
    rows = []
    for name in ("store", "other"):
        write_signed(tmp_path / "run" / "job.json",  # else another graph is refused
                     job | {"graph": Store(tmp_path / name).manifest.checksum})
        PredictionJob(tmp_path / "run", tmp_path / f"{name}.npy", ntype="item", what="embeddings",
                      store=tmp_path / name, time="1970-01-01T00:00:06").run(Plugins())
        rows.append(np.load(tmp_path / f"{name}.npy"))
    np.testing.assert_array_equal(*rows)
    assert np.isfinite(rows[0]).all()


def test_what_gives_links_away_is_said(tmp_path: Path) -> None:
    """Relations with links but not their times, and destinations that are new with their link."""
    source = shop(5)
    del source.times[BOUGHT]
    for name in ("reverse=none", ""):  # a whole copy that is left in; a part, which is not found
        wishes = [name] if name else []
        if not name:
            keep = np.arange(source.edges[BOUGHT].num_edges) % 4 == 0
            source.edges[BOUGHT] = EdgeArrays(*(ends[keep] for ends in (
                source.edges[BOUGHT].src, source.edges[BOUGHT].dst)))
        (said,) = task_of(source, tmp_path, "relation=buys", *wishes).notes
        assert "links are shown before they are there: " in said
        assert "of 'user buys item' in 'item bought user'" in said
    assert not task_of(shop(5), tmp_path, "relation=buys", "reverse=none").notes
    table = tmp_path / "links.csv"
    source = shop(5)
    of = source.edges[PLACES]
    table.write_text("\n".join(["src,dst,time", *(
        f"user {user},{order},{source.times['order'][order]}"
        for user, order in zip(of.src, of.dst))]))
    for wishes in ([], [f"table={table}"]):
        (said,) = task_of(source, tmp_path, "relation=places", *wishes).notes
        assert "many destinations of 'user places order' begin with their links, which" in said
    assert not task_of(source, tmp_path, "relation=of").notes
    source = shop(5)
    del source.times[BOUGHT], source.times[BUYS]
    ends = source.edges[BUYS]
    assert isinstance(ends, EdgeArrays)
    table = tmp_path / "shown.csv"
    table.write_text("src,dst,time\n" + "".join(
        f"user {user},{item},{time}\n" for user, item in zip(ends.src, ends.dst)
        for time in (6, 8, 10)))
    (said, *_) = task_of(source, tmp_path, "relation=user sees item", f"table={table}").notes
    assert "links are shown before they are there: 100% of 'user sees item' in 'user buys" in said
