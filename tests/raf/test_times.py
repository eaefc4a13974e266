"""Training in a graph with times: P workers compute what one does, each seed at its own time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dgl_heta.store import write_store
from tests.support.exactness import LIMIT, cases, differences, job, run
from tests.support.graphs import (
    academic,
    later_changed,
    link_rows,
    seed_rows,
    with_tasks,
    with_times,
)

Results = dict[str, list[dict[str, np.ndarray]]]

NAMES = ["sampled", "three layers", "without seed states", "max-self_loop", "hgt-self_loop",
         "rgat sampled, three layers", "han", "metapaths", "latest, strictly before"]
OTHERS = {"latest, strictly before": {
    "train.fanouts": [2, 3], "train.latest": True, "train.strictly_before": True}}
OF_LINKS = {
    "links at edges' times": {**cases()["links, sampled, hgt"], "train.latest": True},
    "links inside a type at edges' times": {"task.relation": "cites", "task.negatives": 2,
                                            "train.fanouts": [2, 3]},
    "links without seed states": cases()["links, without seed states"]}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stores that are alike up to the test's first seed, and a table of seeds."""
    path = tmp_path_factory.mktemp("timed")
    source = with_times(with_tasks(academic()))
    write_store(source, path / "store")
    write_store(later_changed(source, 85), path / "other")
    rows = "".join(f"{node},{time},{label}\n" for node, time, label in seed_rows(source))
    (path / "seeds.csv").write_text(f"id,time,label\n{rows}")
    rows = "".join(f"{src},{dst},{time}\n" for src, dst, time in link_rows(source, "cites"))
    (path / "links.csv").write_text(f"src,dst,time\n{rows}")
    return path


TIMES = {"task.val_time": "1970-01-01T00:01:10", "task.test_time": "1970-01-01T00:01:25"}


def told(store: Path, out: Path, parts: int, names: list[str] = NAMES, **how: Any
         ) -> dict[str, Any]:
    """A job of cases, with the table of seeds beside the store."""
    settings = {"task.table": str(store.with_name("seeds.csv")), **TIMES}
    return job(store, out, parts, names, others=OTHERS, **settings, **how)


@pytest.fixture(scope="module")
def alone(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    out = tmp_path_factory.mktemp("alone")
    return run(told(place / "store", out, 1), out)


def check(alone: Results, together: Results) -> None:
    for name, workers in together.items():
        worst = differences(alone[name][0], workers)
        assert all(value < LIMIT for value in worst.values()), (name, worst)


@pytest.mark.parametrize("parts", [2, pytest.param(3, marks=pytest.mark.thorough)])
def test_workers_compute_what_one_computes(
        place: Path, alone: Results, tmp_path: Path, parts: int) -> None:
    check(alone, run(told(place / "store", tmp_path, parts), tmp_path))


@pytest.mark.parametrize("how", [
    {}, {"shared": True}, {"delegate": 1}, {"cut": False}, {"cut": True}, {"cut": "permuted"},
    {"cut": "hubs"}], ids=str)
def test_nothing_later_than_a_seed_reaches_it_in_any_kind_of_plan(
        place: Path, alone: Results, tmp_path: Path, how: dict[str, Any]) -> None:
    """Workers of a graph that is another later on compute what one computed of this one."""
    names = ["sampled", "hgt-self_loop", "latest, strictly before"]
    if how.get("cut") != "hubs":
        names.append("rgat sampled, three layers")
    check(alone, run(told(place / "other", tmp_path, 3, names, **how), tmp_path))


def test_rows_are_seeds_at_their_own_times_where_there_is_no_table(
        place: Path, tmp_path: Path) -> None:
    names = ["sampled", "two targets"]
    found = {}
    for parts in (1, 3):
        (tmp_path / f"{parts}").mkdir()
        found[parts] = run(job(place / "store", tmp_path / f"{parts}", parts, names),
                           tmp_path / f"{parts}")
    check(found[1], found[3])


@pytest.mark.parametrize("parts", [2, 3])
def test_links_at_their_times_are_predicted_alike_by_any_number_of_workers(
        place: Path, tmp_path: Path, parts: int) -> None:
    found = {}
    for workers in (1, parts):
        (tmp_path / f"{workers}").mkdir()
        found[workers] = run(job(place / "store", tmp_path / f"{workers}", workers, [*OF_LINKS],
                                 others=OF_LINKS, **TIMES), tmp_path / f"{workers}")
    check(found[1], found[parts])
    for name, (one,) in found[1].items():
        np.testing.assert_allclose(found[parts][name][0]["val"], one["val"], err_msg=name)


@pytest.mark.parametrize("how", [{}, {"delegate": 1}, {"cut": True}, {"cut": "hubs"}], ids=str)
def test_nothing_later_than_a_link_of_a_table_reaches_it(
        place: Path, tmp_path: Path, how: dict[str, Any]) -> None:
    """Workers of a graph that is another later on compute what one computes of this one; the
    relation is one of the table alone, too."""
    found, others = [], {name: {"task.relation": name, "task.reverse": "none", "task.negatives": 2,
                                "train.fanouts": [2, 3]}
                         for name in ("cites", "paper sees paper")}
    for store, parts, planned in (("store", 1, {}), ("other", 3, how)):
        (tmp_path / store).mkdir()
        found.append(run(job(
            place / store, tmp_path / store, parts, [*others], others=others, **planned, **TIMES,
            **{"task.table": str(place / "links.csv")}), tmp_path / store))
    check(*found)
    for name, (one,) in found[0].items():
        np.testing.assert_allclose(found[1][name][0]["val"], one["val"], err_msg=name)
