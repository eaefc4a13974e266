"""Files of a graph that change after they were opened: one error, and no memory of others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.planning.making import make_plan
from dgl_heta.sampling import relation_samples
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.store import Store, write_store
from dgl_heta.store.structure import copied, in_edges
from tests.support.graphs import academic

CITES = Relation("paper", "cites", "paper")
LARGE = 2**31 - 1
EDITS = [("indices", -1), ("indices", LARGE), ("indices", 60), ("indptr", -5), ("indptr", 2**62),
         ("indptr", 181)]


def wrong(store: Store, name: str, value: int) -> Path:
    """Write a number into the middle of a relation's file, as something else would."""
    entry = next(each for each in store.manifest.relations if each.relation == CITES)
    path = store.directory / getattr(entry, name).file
    array = np.lib.format.open_memmap(path, "r+")
    array[len(array) // 4:] = value
    array.flush()
    return path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    write_store(academic(), tmp_path / "store")
    return Store(tmp_path / "store")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("fanouts", [[-1, -1], [2, 3]], ids=["all", "some"])
@pytest.mark.parametrize(("name", "value"), EDITS)
def test_a_sampler_notices(store: Store, monkeypatch: pytest.MonkeyPatch, name: str, value: int,
                           fanouts: list[int], threads: int) -> None:
    monkeypatch.setattr(relation_samples, "FEW", 0)  # threads, however little there is
    scope = SamplingScope.of(make_plan(store.schema, "paper", 2, 1), 0)
    sampler = NeighborSampler(store, scope, fanouts, threads=threads)
    sampler.sample({"paper": np.arange(60)})
    path = wrong(store, name, value)

    def sample() -> None:
        for step in range(20):  # a draw of some need not meet it at once
            sampler.sample({"paper": np.arange(60)}, step=step)

    with pytest.raises(InputError, match=rf"'paper cites paper': .*{path}.* lead out of the"):
        sample()


@pytest.mark.parametrize(("name", "value"), EDITS)
def test_readers_of_all_neighbours_notice(store: Store, tmp_path: Path, name: str, value: int
                                          ) -> None:
    csc = store.relation(CITES)
    indptr, sources = in_edges(CITES, csc, np.array([7, 3]), 60)
    want = [csc.indices[csc.indptr[v]:csc.indptr[v + 1]] for v in (7, 3)]
    assert indptr.tolist() == [0, len(want[0]), len(want[0]) + len(want[1])]
    np.testing.assert_array_equal(sources, np.concatenate(want))
    path = wrong(store, name, value)
    for read in (lambda: in_edges(CITES, csc, np.arange(60), 60),
                 lambda: copied(CITES, csc, 60)):
        with pytest.raises(InputError, match=str(path)):
            read()
