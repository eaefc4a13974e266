"""Ids of a batch know for whose seeds a script reads rows by them, and by selections of them."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("DGLBACKEND", "pytorch")

import numpy as np
import pytest
import torch
from torch import Tensor

from dgl_heta.distdgl.batch_ids import BatchIds, IdRegistry
from dgl_heta.errors import HetaError

IDS, BITS, RANK = [5, 3, 9, 1, 7], [1, 3, 2, 3, 7], 1
"""Ids of a batch, and the bits of trainers 0, 1 and 2 whose batches have them."""


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def registry(said: list[str]) -> IdRegistry:
    made = IdRegistry(said.append)
    made.rank = RANK
    return made


def bits_of(registry: IdRegistry, ntype: str, ids: Tensor) -> list[int] | None:
    readers = registry.readers(ntype, ids)
    return None if readers is None else readers.bits.tolist()


def ids_of(registry: IdRegistry, ntype: str = "a") -> BatchIds:
    return registry.track(ntype, torch.tensor(IDS), torch.tensor(BITS))


SELECTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "all": lambda x: x[:], "some": lambda x: x[1:4], "a mask": lambda x: x[x > 4], "in an order":
    lambda x: x[torch.tensor([4, 0, 2])], "index_select": lambda x: x.index_select(
        0, torch.tensor([3, 1])), "copied": lambda x: x.clone().detach().contiguous(), "moved":
    lambda x: x.to("cpu").to(torch.int64), "half": lambda x: x.split(2)[1], "sorted": lambda x:
    x[torch.argsort(x)], "reshaped": lambda x: x[:4].view(2, 2).flatten(), "unique": lambda x:
    torch.unique(torch.cat([x, x[:2]])), "with places": lambda x: torch.unique(
        x, return_inverse=True)[0], "as a tensor": torch.as_tensor, "the data": lambda x: x.data,
    "deeply": copy.deepcopy, "selected": lambda x: torch.masked_select(x, x != 3),
    "sort": lambda x: x.sort(descending=True)[0], "values": lambda x: torch.sort(
        x, stable=True).values, "by name": lambda x: torch.sort(input=x)[0], "largest":
    lambda x: x.topk(3)[0], "gather": lambda x: x.gather(0, torch.tensor([3, 1])), "rolled":
    lambda x: x.roll(2), "ravel": lambda x: x[None].ravel(), "turned": lambda x:
    x[:4].view(2, 2).T.flatten(), "expanded": lambda x: x.expand(1, 5).flatten(), "along":
    lambda x: x.take_along_dim(torch.tensor([0, 2])), "stacked": lambda x: torch.stack(
        [x[:2], x[2:4]], 1).flatten(), "joined": lambda x: torch.cat(tensors=[x[3:], x[:2]]),
    "bound": lambda x: x.clamp(0, 9), "mirrored": torch.flipud}


@pytest.mark.parametrize("name", SELECTIONS)
def test_selections_know_the_trainers_of_each_id(registry: IdRegistry, name: str) -> None:
    of = dict(zip(IDS, BITS))
    chosen = SELECTIONS[name](ids_of(registry))
    assert bits_of(registry, "a", chosen) == [of[i] for i in chosen.tolist()]


def test_others_are_read_by_this_trainer_for_itself(registry: IdRegistry) -> None:
    ids, labels = ids_of(registry), torch.arange(10)
    for other in (torch.tensor(IDS), torch.tensor([5, 5, 3]), ids + 0, labels[ids], ids * 1 - 1,
                  ids.clamp(4), pickle.loads(pickle.dumps(ids))):  # noqa: S301
        assert not isinstance(other, BatchIds)
        assert registry.readers("a", other) is None
    joined = torch.cat([torch.tensor([2, 4]), ids])
    assert bits_of(registry, "a", joined) == [1 << RANK, 1 << RANK, *BITS]


def test_ids_that_were_taken_out_as_numbers_are_known_again_or_refused(registry: IdRegistry
                                                                       ) -> None:
    ids = ids_of(registry)
    numbers = ids.numpy()
    assert bits_of(registry, "a", torch.from_numpy(numbers.copy())) == BITS
    assert registry.readers("a", torch.tensor([5, 2])) is None  # one was never in the batch
    assert registry.readers("b", torch.tensor([5, 3])) is None  # of another type
    kept = {"an array of them": numbers[1:], "the ids": ids}
    del ids, numbers
    while kept:
        with pytest.raises(HetaError, match="some of those that were taken out of a batch's ids"):
            registry.readers("a", torch.tensor([3, 9]))
        kept.popitem()
    assert registry.readers("a", torch.tensor([3, 9])) is None  # the batch is gone


def test_numbers_that_are_gone_or_single_push_none_out(registry: IdRegistry) -> None:
    ids = ids_of(registry)
    numbers = ids.numpy()
    for _ in range(70):
        ids[0].item()
        ids_of(registry).tolist()
    assert bits_of(registry, "a", torch.from_numpy(numbers)) == BITS
    kept = [ids[:2].numpy() for _ in range(70)]  # the latest that are there are known
    assert bits_of(registry, "a", torch.from_numpy(kept[-1])) == BITS[:2]


def test_others_taken_out_as_numbers_are_said_in_training(registry: IdRegistry,
                                                          said: list[str]) -> None:
    marks = torch.tensor(BITS)
    own, others = (registry.track("a", torch.tensor(IDS), each)
                   for each in (marks, marks | 1 << 62))
    own.numpy(), own.tolist(), others.sum()
    with torch.no_grad():
        others.numpy()
    assert not said
    others.tolist()
    assert "taken out as numbers" in said[0]


def test_an_id_of_a_batch_twice_is_refused_but_of_own_seeds(registry: IdRegistry) -> None:
    ids = ids_of(registry)
    with pytest.raises(HetaError, match="with an id of a batch twice"):
        registry.readers("a", torch.cat([ids, ids[:1]]))
    own = registry.track("a", torch.tensor([4, 8]), registry.own_marks(torch.tensor([4, 8])))
    assert registry.readers("a", own.repeat(2)) is None
    assert bits_of(registry, "a", own) == [1 << RANK] * 2


def test_a_seed_of_several_trainers_is_there_for_each(registry: IdRegistry) -> None:
    ids = registry.track("a", torch.tensor([5, 3, 5, 9]), torch.tensor([1, 1, 2, 3]))
    assert bits_of(registry, "a", ids) == [1, 1, 2, 3]
    assert bits_of(registry, "a", ids[torch.tensor([2, 3, 0])]) == [2, 3, 1]
    for more in (ids[torch.tensor([3, 3])], torch.cat([ids, ids[:1]])):
        with pytest.raises(HetaError, match="with an id of a batch twice"):
            registry.readers("a", more)


def test_each_run_of_an_id_knows_its_own_trainers(registry: IdRegistry) -> None:
    ids = registry.track("a", torch.tensor([5, 5, 3, 5]), torch.tensor([1, 4, 1, 2]))
    assert bits_of(registry, "a", torch.unique_consecutive(ids)) == [5, 1, 2]
    assert bits_of(registry, "a", torch.unique(ids)) == [1, 7]


def test_ids_from_before_there_was_an_embedding_are_refused(registry: IdRegistry) -> None:
    early = registry.track("a", torch.tensor(IDS), torch.zeros(5, dtype=torch.int64), asked=False)
    for ids in (early, early[1:], torch.cat([early, early]), torch.unique(early)):
        with pytest.raises(HetaError, match="was made after the batch"):
            registry.readers("a", ids)


def test_ids_know_which_are_no_own_seeds(registry: IdRegistry) -> None:
    batch: Any = SimpleNamespace(
        blocks=[SimpleNamespace(num_src={"a": 5})], input_nodes={"a": np.asarray(IDS)},
        own_seeds={"a": np.asarray(IDS[:2])})
    (level, seeds) = registry.hand_out(batch, [{"a": np.asarray(BITS)}], RANK)
    for ids, others in ((level["a"], [False, False, True, True, True]),
                        (level["a"][torch.tensor([4, 1])], [True, False]),
                        (torch.unique(torch.cat([level["a"], seeds["a"]])),
                         [True, False, False, True, True]), (seeds["a"], [False, False])):
        readers = registry.readers("a", ids)
        assert readers is not None
        assert readers.others.tolist() == others
    assert bits_of(registry, "a", level["a"]) == BITS


def test_ids_are_tensors_to_all_else(registry: IdRegistry) -> None:
    ids = ids_of(registry)
    assert repr(ids) == repr(torch.tensor(IDS))
    assert len(ids) == 5
    assert ids.shape == (5,)
    assert torch.nn.functional.embedding(ids, torch.ones(10, 2)).shape == (5, 2)
    np.testing.assert_array_equal(np.asarray(ids), IDS)
    assert torch.isin(torch.tensor([3, 4]), ids).tolist() == [True, False]
