"""Tables of seeds with times: what is read, and what is refused by one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dgl_heta.errors import InputError
from dgl_heta.graph.node_ids import NodeIds
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import ALWAYS, EdgeArrays, GraphSource, Task
from dgl_heta.settings import load_settings
from dgl_heta.store import Store, write_store
from dgl_heta.training.tasks import NodePrediction, NodeStep, make_task

OF, HAS = Relation("order", "of", "user"), Relation("user", "has", "order")
SPLIT = ["task.val_time=1970-01-02", "task.test_time=1970-01-03T00:00:00Z"]
DAY = 86400


def shop(**changes: object) -> GraphSource:
    """Three users with ids and times, and six orders with times."""
    users, orders = np.array([0, 1, 2, 0, 1, 2]), np.arange(6)
    source = GraphSource(
        "shop", {"user": 3, "order": 6},
        {OF: EdgeArrays(orders, users), HAS: EdgeArrays(users, orders)},
        {"user": {"label": np.array([0, 1, 1]), "train_mask": np.ones(3, bool)}}, Task("user", 2),
        node_ids={"user": NodeIds.of(["ann", "bob", "eve"])},
        times={"order": orders * DAY // 2, "user": np.array([0, 10, ALWAYS])})
    for name, value in changes.items():
        setattr(source, name, value)
    return source


@pytest.fixture
def task(tmp_path: Path) -> Callable[..., NodePrediction]:
    """A task of a table with these lines."""
    def made(*lines: str, settings: list[str] = SPLIT, header: str = "id,time,label",
             source: GraphSource | None = None) -> NodePrediction:
        write_store(source or shop(), tmp_path / "store", overwrite=True)
        table = tmp_path / "seeds.csv"
        table.write_text("\n".join([header, *lines]) + "\n")
        task = make_task(Store(tmp_path / "store"), load_settings(
            None, [f"task.table={table}", *settings], {}))
        assert isinstance(task, NodePrediction)
        return task
    return made


def pairs(task: NodePrediction, split: str) -> list[list[int]]:
    (step,) = task.steps(split, 0, 100) or [NodeStep({"user": np.empty((0, 2), int)})]
    assert isinstance(step, NodeStep)
    return sorted(step.nodes["user"].tolist())


LINES = ["bob,1970-01-01 12:00,1", "ann,1970-01-02,0", "bob,1970-01-02T23:59:59.9,0",
         "eve,1970-01-03,1", "ann,1970-01-05,"]


def test_the_same_id_is_a_seed_at_many_times_and_a_split_goes_by_them(task) -> None:
    """A row without a label is of no split; fractions of a second are cut off."""
    read = task(*LINES)
    assert read.outputs == {"user": 2}
    assert pairs(read, "train") == [[1, DAY // 2]]
    assert pairs(read, "val") == [[0, DAY], [1, 2 * DAY - 1]]
    assert pairs(read, "test") == [[2, 2 * DAY]]


def test_a_seed_may_be_at_the_time_of_its_row_to_a_part_of_a_second(task) -> None:
    """A row of 9.5 s is there from second 10 on, and what is seen of it at 9.5 s is of second 9."""
    assert pairs(task("bob,1970-01-01T00:00:09.5,1"), "train") == [[1, 9]]


def test_a_column_or_three_files_say_the_split(task, tmp_path: Path) -> None:
    read = task("bob,50000,1,test", "ann,40000,0,train", "eve,1,0,", settings=[],
                header="id,time,label,split")
    assert (pairs(read, "train"), pairs(read, "val"), pairs(read, "test")) == (
        [[0, 40000]], [], [[1, 50000]])
    place = tmp_path / "tables"
    place.mkdir()
    for word, line in (("train", "ann,40000,1.5"), ("val", "bob,50000,2"), ("test", "eve,9,-1")):
        (place / f"{word}.csv").write_text(f"who,day,amount\n{line}\n")
    read = task(settings=[f"task.table={place}", "task.columns=who,day,amount",
                          "task.kind=regression"])
    assert (pairs(read, "train"), pairs(read, "val"), pairs(read, "test")) == (
        [[0, 40000]], [[1, 50000]], [[2, 9]])
    assert read.metric == "R²"


@pytest.mark.parametrize(("lines", "message"), [
    (["ann,1970-01-01,1", "tom,1970-01-02,0"], "row 2: column 'id' is 'tom', which is the id of"),
    (["ann,1970-01-02,1", "ann,1970-01-02,0"], "row 2: it is of the same node at the same time "
                                               "as .*row 1"),
    (["ann,1969-12-31,1", "bob,1970-01-02,0"], "row 1: the seed is at 1969-12-31T00:00:00Z, before "
                                               "all data, which begin at 1970-01-01T00:00:00Z; 1 "
                                               "seed of 2"),
    (["bob,1970-01-01T00:00:09,1"], "seed 1 of 'user' is at 1970-01-01T00:00:09Z, before its row"),
    (["ann,40000,1", "bob,1735689600000,1"], "row 2: the seed is at 1735689600000, which is after "
                                             "the year 9999; times are whole seconds .* 1 time of"),
    (["ann,soon,1"], "row 1: column 'time' is 'soon'; a time is a number or written"),
    (["ann,,1"], "row 1: column 'time' is empty"),
    (["ann,1970-01-01T10:00+02:00,1", "bob,1970-01-02T10:00,1"],
     "row 2: column 'time' is '1970-01-02T10:00', a time without a zone, but others have one"),
    (["ann,40000.5,1"], "numbers that are times are whole seconds since 1970"),
    (["ann,1970-01-02,0.5"], "if these are numbers to predict, name the kind regression"),
    (["ann,1970-01-02,-1", "bob,1970-01-02,-2"], "holds -2 and -1; one value below 0 may stand"),
])
def test_rows_that_are_no_seeds_are_named(task, lines: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        task(*lines)


@pytest.mark.parametrize(("settings", "message"), [
    ([], "nothing says which rows of .*seeds.csv are for training: give task.val_time"),
    (["task.val_time=1970-01-03", "task.test_time=1970-01-02"], "must be before task.test_time"),
    (["task.val_time=soon"], "task.val_time is 'soon'; a time is written 2026-11-23"),
    (["task.columns=id,when,label", *SPLIT], "has no column 'when'"),
    (["task.columns=id,time"], "task.columns"),
    (["task.table=none.parquet", *SPLIT], "task.table: there is no file none.parquet"),
    (["task.targets=user,order", *SPLIT], "task.table has seeds of one type"),
    (["task.relation=of"], "has no column 'dst' for the destinations of task.table")])
def test_settings_that_fit_no_table_are_named(task, settings: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        task(*LINES, settings=settings)


def test_a_label_that_is_a_feature_a_graph_without_times_and_rows_without_are_refused(
        task, tmp_path: Path) -> None:
    source = shop(info={"columns": {"user": [{"column": "label", "kind": "number"}]}})
    with pytest.raises(InputError, match="column 'label' of .* is the label, and a feature of"):
        task(*LINES, source=source)
    with pytest.raises(InputError, match=r"task\.table has seeds with times, but the graph has no"):
        task(*LINES, source=shop(times={}))
    for times, message in (
            ({"order": np.arange(6)}, "rows of 'user' have none, so nothing says when to predict"),
            (shop().times, "node 2 of 'user': the seed has no time")):
        write_store(shop(times=times), tmp_path / "store", overwrite=True)
        with pytest.raises(InputError, match=message):
            make_task(Store(tmp_path / "store"), load_settings(None, [], {}))
