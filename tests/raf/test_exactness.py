"""RAF on P workers computes what one process computes (design: exact), in fp64.

Graph: parallel relations between the same two types, a target that is also a neighbour,
types with and without features; full and sampled neighbourhoods; uneven last batches.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dgl_heta.store import write_store
from tests.support.exactness import LIMIT, differences, job, run
from tests.support.graphs import academic, with_tasks

Results = dict[str, list[dict[str, np.ndarray]]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exact") / "store"
    write_store(with_tasks(academic()), path)
    return path


@pytest.fixture(scope="module")
def alone(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What one process computes, for every case."""
    out = tmp_path_factory.mktemp("alone")
    return run(job(store, out, 1), out)


def check(alone: Results, together: Results) -> None:
    for name, workers in together.items():
        worst = differences(alone[name][0], workers)
        assert all(value < LIMIT for value in worst.values()), (name, worst)


thorough = pytest.mark.thorough  # other numbers of workers than what stands beside it


@pytest.mark.parametrize("parts", [2, *(pytest.param(n, marks=thorough) for n in (3, 4))])
def test_workers_compute_what_one_process_computes(
        store: Path, alone: Results, tmp_path: Path, parts: int) -> None:
    """All cases on 2 workers; on more, those that differ.

    `python -m tests.support.exactness` runs all cases on more workers.
    """
    names = [*WIDE, "max-self_loop", "min-bases", "metapaths",
             "multi-label, some unknown", "regression, some unknown", "classes, some unknown",
             ] if parts > 2 else None
    check(alone, run(job(store, tmp_path, parts, names), tmp_path))


def test_workers_that_share_a_sub_metatree_compute_the_same(
        store: Path, alone: Results, tmp_path: Path) -> None:
    """The first has most of the work; 3 workers run it, two of them others beside it."""
    names = ["sum-self_loop", "max-self_loop-bases", "mean", "sampled", "three layers",
             "metapaths", "hgt-self_loop", "rgat-self_loop", "han", "links"]
    check(alone, run(job(store, tmp_path, 3, names, shared=True), tmp_path))


DELEGATED = ["sum-self_loop", "sum-bases", "mean-self_loop", "mean", "max-self_loop", "min",
             "min over neighbours", "sampled", "three layers",
             "without seed states", "max over neighbours", "torch kernel", "rgat", "rgat-self_loop",
             "rgat sampled, three layers", "rgat-mean", "hgt", "hgt-self_loop",
             "hgt sampled, three layers", "han", "han-self_loop", "han sampled, three layers",
             "two targets", "two targets, hgt", "two targets, han, sampled", "links",
             "links inside a type", "links, sampled, hgt", "links, without seed states"]


@pytest.mark.parametrize(("parts", "first"), [
    (3, 0), *(pytest.param(*which, marks=thorough) for which in ((2, 0), (2, 1), (4, 2)))])
def test_workers_that_aggregate_for_each_other_compute_the_same(
        store: Path, alone: Results, tmp_path: Path, parts: int, first: int) -> None:
    """Learnable types that several partitions use are delegated, whoever has most use for them."""
    check(alone, run(job(store, tmp_path, parts, DELEGATED, delegate=first), tmp_path))


def test_trainers_and_shares_that_delegate_compute_the_same(
        store: Path, alone: Results, tmp_path: Path) -> None:
    names = ["sum-self_loop", "mean", "han", "hgt-self_loop", "rgat-mean", "links", "two targets"]
    (tmp_path / "trainers").mkdir()
    check(alone, run(job(store, tmp_path / "trainers", 4, names, delegate=1,
                         **{"train.trainers": 2}), tmp_path / "trainers"))
    check(alone, run(job(store, tmp_path, 3, names, delegate=0, shared=True), tmp_path))


@pytest.mark.thorough  # uneven groups: below
def test_more_workers_than_sub_metatrees_compute_the_same(
        store: Path, alone: Results, tmp_path: Path) -> None:
    """4 sub-metatrees: 8 workers are two groups."""
    names = ["sum-self_loop", "max-self_loop-bases", "mean", "sampled", "three layers",
             "metapaths", "hgt-self_loop", "han", "links"]
    check(alone, run(job(store, tmp_path, 8, names), tmp_path))


def test_uneven_groups_compute_the_same(store: Path, tmp_path: Path) -> None:
    """9 workers for 4 sub-metatrees: a group of 5 and one of 4; some have no edge to predict."""
    names = ["sum-self_loop", "mean", "sampled", "han", "hgt-self_loop", "links", "two targets"]
    (tmp_path / "one").mkdir()
    alone = run(job(store, tmp_path / "one", 1, names, **{"train.batch_size": 27}),
                tmp_path / "one")
    check(alone, run(job(store, tmp_path, 9, names, **{"train.batch_size": 3}), tmp_path))


@pytest.mark.thorough
@pytest.mark.parametrize("shared", [False, True])
def test_sixteen_workers_compute_the_same(store: Path, tmp_path: Path, shared: bool) -> None:
    """4 sub-metatrees: four groups of four workers, or one group whose workers share them."""
    names = ["sum-self_loop", "sampled", "hgt-self_loop"]
    (tmp_path / "one").mkdir()
    alone = run(job(store, tmp_path / "one", 1, names, **{"train.batch_size": 32}),
                tmp_path / "one")
    check(alone, run(job(store, tmp_path, 16, names, shared=shared, **{"train.batch_size": 2}),
                     tmp_path))


WIDE = ["sum-self_loop", "max-bases", "mean", "sampled", "without seed states", "rgat-self_loop",
        "hgt-self_loop", "han", "hgt sampled, three layers", "two targets", "links"]


@pytest.mark.parametrize(("parts", "cut"), [
    (2, False), (3, True), (3, "permuted"),
    *(pytest.param(parts, cut, marks=thorough) for parts, cut in (
        (4, True), (4, False), (2, "permuted"), (4, "permuted")))])
def test_without_replication_workers_compute_the_same(
        store: Path, alone: Results, tmp_path: Path, parts: int, cut: bool | str) -> None:
    """Every relation on one partition, or cut by destination in uneven pieces, at random too."""
    check(alone, run(job(store, tmp_path, parts, WIDE, cut=cut), tmp_path))


@pytest.mark.parametrize("parts", [pytest.param(2, marks=thorough), 3])
def test_in_edges_of_one_node_on_several_partitions_compute_the_same(
        store: Path, alone: Results, tmp_path: Path, parts: int) -> None:
    """Hubs: each in-edge somewhere, at random; AGG_r of every kind is merged before it goes on."""
    names = ["sum-self_loop", "max-bases", "sampled", "max over neighbours", "min over neighbours",
             "rgat-mean", "hgt-self_loop", "han", "rgat sampled, three layers", "links"]
    check(alone, run(job(store, tmp_path, parts, names, cut="hubs"), tmp_path))


@pytest.mark.parametrize("parts", [pytest.param(2, marks=thorough), 3])
def test_a_cut_by_edges_computes_the_same(
        store: Path, alone: Results, tmp_path: Path, parts: int) -> None:
    names = ["sum-self_loop", "sampled", "rgat-self_loop", "hgt-self_loop"]
    check(alone, run(job(store, tmp_path, parts, names,
                         cut="dgl_heta.partition.cutters:EvenEdges"), tmp_path))


@pytest.mark.parametrize("cut", [
    None, pytest.param(True, marks=thorough), "permuted", "hubs"])
def test_several_trainers_of_a_partition_compute_the_same(
        store: Path, alone: Results, tmp_path: Path, cut: bool | str | None) -> None:
    names = ["sum-self_loop", "han", "hgt-self_loop", "links", "two targets"]
    if cut is None:
        names.append("metapaths")
    check(alone, run(job(store, tmp_path, 4, names, cut=cut, **{"train.trainers": 2}), tmp_path))


def test_workers_of_two_machines_compute_the_same_and_send_fewer_bytes(
        store: Path, alone: Results, tmp_path: Path) -> None:
    """Rows that two workers of a machine read come to it once; two trainers read nearly alike."""
    names = ["sum-self_loop", "sampled", "han", "hgt-self_loop", "links", "two targets"]
    for trainers in (1, 2):
        sent = {}
        for machines in ("aaaa", "aabb"):
            out = tmp_path / f"{machines} {trainers}"
            out.mkdir()
            cases = names if machines == "aabb" else names[:1]  # on one, as elsewhere
            found = run({**job(store, out, 4, cases, **{"train.trainers": trainers}),
                         "machines": machines}, out)
            check(alone, found)
            sent[machines] = [sum(int(worker.get(f"sent/{cause}", 0)) for worker in found[names[0]])
                              for cause in ("learnable", "machine")]
        (plain, none), (crossing, within) = sent["aaaa"], sent["aabb"]
        assert none == 0 < within
        # Of each worker's rows ¾ are others', and ½ the other machine's; of these come half to a
        # machine if both read them.
        assert 0 < crossing < (0.66 if trainers == 1 else 0.5) * plain, trainers


def test_data_parallel_wrapper_computes_the_same(
        store: Path, alone: Results, tmp_path: Path) -> None:
    names = ["sum-self_loop", "sampled", "metapaths"]
    check(alone, run(job(store, tmp_path, 2, names, **{"train.wrapper": "ddp"}), tmp_path))


def test_replicas_of_learnable_features_differ_only_where_types_are_shared(
        store: Path, alone: Results, tmp_path: Path) -> None:
    """With replicas the first step is exact; later the copies of a shared type part ways."""
    name = "sum-self_loop"
    workers = run(job(store, tmp_path, 2, [name], **{"train.learnable": "replica"}),
                  tmp_path)[name]
    first = {k: v for k, v in alone[name][0].items() if k.startswith("0/")}
    worst = differences(first, [{k: v for k, v in w.items() if k.startswith("0/")}
                                for w in workers])
    assert all(value < LIMIT for value in worst.values()), worst
    copies = [w["rows/author/0"] for w in workers if "rows/author/0" in w]
    assert len(copies) == 2
    assert (copies[0] != copies[1]).any(), "two partitions use authors and train them apart"


@pytest.mark.parametrize(("parts", "wrapper"), [(8, "raf"), (3, "ddp")])
def test_fewer_seeds_than_workers_compute_the_same(
        store: Path, tmp_path: Path, parts: int, wrapper: str) -> None:
    """Two seeds a step over all workers: some workers, and some groups, have none."""
    names = ["sum-self_loop", "mean", "metapaths"]
    one, many = job(store, tmp_path, 1, names), job(store, tmp_path, parts, names,
                                                    **{"train.wrapper": wrapper})
    for description in (one, many):
        description["steps_of"] = 2
    check(run(one, tmp_path), run(many, tmp_path))


def test_comparison_sees_nan_and_missing_rows() -> None:
    one = {"0/logits": np.ones((2, 3)), "0/own": np.array([4, 5]), "rows/a/0": np.ones((4, 2))}
    assert max(differences(one, [one]).values()) == 0
    worse = differences(one, [{**one, "0/logits": np.full((2, 3), np.nan),
                               "rows/a/0": np.ones((3, 2))}])
    assert np.isnan(worse["logits"])
    assert np.isnan(worse["features"])
