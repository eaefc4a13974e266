"""Ids of a batch know for whose seeds a script reads rows by them, and by selections of them."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable

os.environ.setdefault("DGLBACKEND", "pytorch")

import numpy as np
import pytest
import torch
from torch import Tensor

from dgl_heta.distdgl.handed import BatchIds, Handed
from dgl_heta.errors import HetaError

IDS, BITS, RANK = [5, 3, 9, 1, 7], [1, 3, 2, 3, 7], 1
"""Ids of a batch, and the bits of trainers 0, 1 and 2 whose batches have them."""


@pytest.fixture
def handed() -> Handed:
    made = Handed()
    made.rank = RANK
    return made


def ids_of(handed: Handed, ntype: str = "a") -> BatchIds:
    return handed.ids(ntype, torch.tensor(IDS), torch.tensor(BITS))


SELECTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "all": lambda x: x[:], "some": lambda x: x[1:4], "a mask": lambda x: x[x > 4], "in an order":
    lambda x: x[torch.tensor([4, 0, 2])], "index_select": lambda x: x.index_select(
        0, torch.tensor([3, 1])), "copied": lambda x: x.clone().detach().contiguous(), "moved":
    lambda x: x.to("cpu").to(torch.int64), "half": lambda x: x.split(2)[1], "sorted": lambda x:
    x[torch.argsort(x)], "reshaped": lambda x: x[:4].view(2, 2).flatten(), "unique": lambda x:
    torch.unique(torch.cat([x, x[:2]])), "with places": lambda x: torch.unique(
        x, return_inverse=True)[0], "as a tensor": torch.as_tensor, "the data": lambda x: x.data,
    "deeply": copy.deepcopy, "selected": lambda x: torch.masked_select(x, x != 3)}


@pytest.mark.parametrize("name", SELECTIONS)
def test_selections_know_the_trainers_of_each_id(handed: Handed, name: str) -> None:
    of = dict(zip(IDS, BITS))
    chosen = SELECTIONS[name](ids_of(handed))
    bits = handed.bits("a", chosen)
    assert bits is not None
    assert bits.tolist() == [of[i] for i in chosen.tolist()]


def test_others_are_read_by_this_trainer_for_itself(handed: Handed) -> None:
    ids, labels = ids_of(handed), torch.arange(10)
    for other in (torch.tensor(IDS), torch.tensor([5, 5, 3]), ids + 0, labels[ids], ids * 1 - 1,
                  pickle.loads(pickle.dumps(ids))):  # noqa: S301
        assert not isinstance(other, BatchIds)
        assert handed.bits("a", other) is None
    joined = torch.cat([torch.tensor([2, 4]), ids])
    bits = handed.bits("a", joined)
    assert bits is not None
    assert bits.tolist() == [1 << RANK, 1 << RANK, *BITS]


def test_ids_that_were_taken_out_as_numbers_are_known_again_or_refused(handed: Handed) -> None:
    ids = ids_of(handed)
    numbers = ids.numpy()
    again = handed.bits("a", torch.from_numpy(numbers.copy()))
    assert again is not None
    assert again.tolist() == BITS
    assert handed.bits("a", torch.tensor([5, 2])) is None  # one was never in the batch
    assert handed.bits("b", torch.tensor([5, 3])) is None  # of another type
    with pytest.raises(HetaError, match="some of those that were taken out of a batch's ids"):
        handed.bits("a", torch.from_numpy(numbers[1:3]))


def test_an_id_of_a_batch_twice_is_refused_but_of_own_seeds(handed: Handed) -> None:
    ids = ids_of(handed)
    with pytest.raises(HetaError, match="with an id of a batch twice"):
        handed.bits("a", torch.cat([ids, ids[:1]]))
    own = handed.ids("a", torch.tensor([4, 8]), handed.own(torch.tensor([4, 8])))
    assert handed.bits("a", own.repeat(2)) is None
    found = handed.bits("a", own)
    assert found is not None
    assert found.tolist() == [1 << RANK] * 2


def test_ids_from_before_there_was_an_embedding_are_refused(handed: Handed) -> None:
    early = handed.ids("a", torch.tensor(IDS), None)
    for ids in (early, early[1:], torch.cat([early, early]), torch.unique(early)):
        with pytest.raises(HetaError, match="was made after the batch"):
            handed.bits("a", ids)


def test_ids_are_tensors_to_all_else(handed: Handed) -> None:
    ids = ids_of(handed)
    assert repr(ids) == repr(torch.tensor(IDS))
    assert len(ids) == 5
    assert ids.shape == (5,)
    assert torch.nn.functional.embedding(ids, torch.ones(10, 2)).shape == (5, 2)
    np.testing.assert_array_equal(np.asarray(ids), IDS)
    assert torch.isin(torch.tensor([3, 4]), ids).tolist() == [True, False]
