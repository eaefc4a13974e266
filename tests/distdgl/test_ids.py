"""A script's ids are checked where they come in, before compiled kernels see them."""

from __future__ import annotations

import json
import os
import weakref
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("DGLBACKEND", "pytorch")

import numpy as np
import pytest
import torch

from dgl_heta.distdgl.rows import node_data
from dgl_heta.distdgl.rows.embedding import Table, call
from dgl_heta.errors import HetaError, InputError
from tests.support.dist_reference import parts, whole_graph
from tests.support.standalone import run

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.mark.parametrize("wrong", [-1, 5])
@pytest.mark.parametrize("lazy", [True, False])
def test_an_index_out_of_range_of_node_data_is_an_error(wrong: int, lazy: bool) -> None:
    array = np.ones((5, 2), np.float32)
    train = SimpleNamespace(lazy_features=lazy)
    session: Any = SimpleNamespace(rows=lambda name: array, settings=SimpleNamespace(train=train))
    tensor = SimpleNamespace(_name="node~paper~feat", dtype=torch.float32, shape=(5, 2))
    read = node_data.read(session, tensor, torch.tensor([4, 0]), lambda *_: torch.empty(0))
    assert read is not None
    assert read.shape == (2, 2)
    with pytest.raises(IndexError, match="5 rows"):
        node_data.read(session, tensor, torch.tensor([0, wrong]), lambda *_: torch.empty(0))


@pytest.mark.parametrize("wrong", [-1, 5])
def test_an_index_out_of_range_of_an_embedding_is_an_error(wrong: int) -> None:
    table = Table.__new__(Table)
    table.count, table.low, table.high = 5, 0, 5
    table._tensor = SimpleNamespace(local_partition=torch.ones(5, 2))
    assert table.read(torch.tensor([4, 0])).shape == (2, 2)
    with pytest.raises(IndexError, match="5 rows"):
        table.read(torch.tensor([0, wrong]))


def test_an_embedding_made_again_under_its_name_has_new_rows_and_states(tmp_path: Path) -> None:
    config = parts(whole_graph(), 1, tmp_path / "parts")
    run(SUPPORT / "dist_again.py", config, tmp_path / "found.json", "embedding", heta=True)
    first, second = json.loads((tmp_path / "found.json").read_text())
    assert first[0] == [[1.0, 1.0]] * 4 != first[1]
    assert second == first


def test_what_looks_at_reads_of_an_embedding_does_not_keep_it() -> None:
    table, kept = Table.__new__(Table), []
    table.count, table.low, table.high = 5, 0, 5
    table._tensor = SimpleNamespace(local_partition=torch.ones(5, 2))
    table.session = SimpleNamespace(reading=None, scope=SimpleNamespace(  # type: ignore[assignment]
        aside=nullcontext, read=lambda rows, ids, again: kept.append(again)))
    embedding = SimpleNamespace(heta=table)
    with torch.no_grad():
        call(embedding, torch.tensor([2, 3]), torch.device("cpu"))
    assert kept[0](torch.tensor([1])).tolist() == [[1.0, 1.0]]
    held = weakref.ref(table)
    del table, embedding
    assert held() is None
    with pytest.raises(HetaError, match="let go"):
        kept[0](torch.tensor([1]))


class Rows(SimpleNamespace):
    def __len__(self) -> int:
        return int(self.shape[0])


def replica(trainers: int) -> tuple[Any, Any]:
    """A session that trains copies, and a table of 4 rows that two machines use."""
    session: Any = SimpleNamespace(
        connect=lambda: None, world=SimpleNamespace(size=2 * trainers, rank=0), replicas={},
        users=lambda ntype: [*range(2 * trainers)], scope=SimpleNamespace(
            written=lambda *_: None, aside=nullcontext), groups=SimpleNamespace(trainers=[
                [*range(trainers)]] * 2),
        settings=SimpleNamespace(train=SimpleNamespace(learnable="replica")))
    book = SimpleNamespace(num_partitions=lambda: 2, partid2nids=lambda *_: [0, 1], partid=0)
    tensor = Rows(
        shape=(4, 2), part_policy=SimpleNamespace(partition_book=book), _name="node~a~table",
        tensor_name="table", _attach=True, local_partition=torch.ones(2, 2))
    return session, SimpleNamespace(_tensor=tensor)


def test_replicas_of_several_trainers_of_a_machine_are_refused() -> None:
    for trainers in (1, 2):
        with nullcontext() if trainers == 1 else pytest.raises(InputError, match="2 trainers on a"):
            Table(*replica(trainers), "a", lambda *_: torch.empty(0))


def test_rows_that_trainers_have_copies_of_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    session, embedding = replica(1)
    table = Table(session, embedding, "a", lambda _, ids: torch.zeros(len(ids), 2))
    written: list[Any] = []
    write = node_data._setitem(lambda _, ids, rows: written.append(ids))
    monkeypatch.setattr(node_data, "current", lambda: session)
    write(embedding._tensor, torch.arange(4), torch.ones(4, 2))
    table.read(torch.tensor([1]))  # whoever reads: another trainer may have copies by then
    with pytest.raises(HetaError, match="'table' are written after it was read"):
        write(embedding._tensor, torch.arange(4), torch.ones(4, 2))
    assert len(written) == 1


def test_more_trainers_than_bits_are_refused() -> None:
    session: Any = SimpleNamespace(connect=lambda: None, world=SimpleNamespace(size=63))
    with pytest.raises(HetaError, match="takes at most 62 trainers; there are 63"):
        Table(session, SimpleNamespace(_tensor=None), "paper", lambda *_: torch.empty(0))
