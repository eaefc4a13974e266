"""Classes of samplers that scripts derive from DGL's compute under RAF what they do in plain DGL.

Samplers that are derived from none are in test_distdgl_hosts.py.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("DGLBACKEND", "pytorch")

import dgl
import pytest
import torch

import dgl_heta
from dgl_heta.distdgl.loading.collated_loader import CollatedNodeLoader
from dgl_heta.distdgl.loading.epochs import Epochs
from dgl_heta.distdgl.loading.loader_arguments import LoaderOptions
from dgl_heta.distdgl.loading.script_sampler import Fanouts, way_of
from dgl_heta.distdgl.loading.seed_loader import SeedLoader
from dgl_heta.distdgl.loading.step_plan import step_sizes
from tests.support import standalone
from tests.support.dist_reference import parts, whole_graph
from tests.support.programs import differences

SUPPORT = Path(__file__).parents[1] / "support"
HERE = "tests.distdgl.programs.samplers"
DERIVED = [f'{HERE}:derived "{name}"' for name in ("Adding", "More", "Twice")]


@pytest.mark.parametrize(("machines", "trainers"), [
    pytest.param(3, 1, marks=pytest.mark.thorough), (2, 2)])
def test_a_class_derived_from_dgls_sampler_is_exact(machines: int, trainers: int,
                                                    tmp_path: Path) -> None:
    assert differences(DERIVED, machines, trainers, tmp_path, settings=["run.prove=auto"]) == {}


class Named(dgl.dataloading.NeighborSampler):
    """Is made another way, and samples as DGL's."""

    def __init__(self) -> None:
        super().__init__([2, 2])


class Derived(Named):
    def sample_blocks(self, g, seed_nodes, exclude_eids=None):
        return super().sample_blocks(g, seed_nodes, exclude_eids)


class Own:
    def sample_blocks(self, g, seed_nodes, exclude_eids=None):
        return seed_nodes, seed_nodes, []


def test_batches_are_made_ahead_where_a_class_adds_nothing() -> None:
    by_hand = dgl.dataloading.NeighborSampler([1])
    by_hand.sample_blocks = Own().sample_blocks
    ways = {"known": [dgl.dataloading.MultiLayerFullNeighborSampler(1), Named(),
                      dgl.dataloading.MultiLayerNeighborSampler([1])],
            "derived": [Derived(), by_hand], "own": [Own()]}
    for way, samplers in ways.items():
        assert [way_of(sampler) for sampler in samplers] == [way] * len(samplers)
    with pytest.raises(dgl_heta.InputError, match="sampler LaborSampler cannot be used"):
        way_of(dgl.dataloading.LaborSampler([1]))


def collated_loader() -> Any:
    """A loader of papers, two layers deep, without anything that it would sample from."""
    loader = CollatedNodeLoader.__new__(CollatedNodeLoader)
    schema = SimpleNamespace(relations=())
    loader._session = SimpleNamespace(  # type: ignore[assignment]
        store=SimpleNamespace(schema=schema), plan=SimpleNamespace(targets=("paper",), hops=2),
        say=lambda text: None)
    loader._scope = SimpleNamespace(targets=("paper",))  # type: ignore[assignment]
    loader._fanouts = Fanouts([2, 2])
    return loader


def test_fanouts_do_not_change() -> None:
    for sampler, text in ((dgl.dataloading.NeighborSampler([2, 3]), r"fanouts .*\[2, 2\] then"),
                          (dgl.dataloading.NeighborSampler([2, 2], mask="m"), "None then, 'm'")):
        with pytest.raises(dgl_heta.HetaError, match=text):
            collated_loader().sample_blocks(sampler, torch.tensor([0]), None)


def test_what_changes_after_a_loader_was_made_is_refused(tmp_path: Path) -> None:
    config = parts(whole_graph(), 1, tmp_path / "parts")
    standalone.run(SUPPORT / "dist_again.py", config, tmp_path / "found.json", "loaders",
                   heta=True)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found.pop("nothing") == found.pop("derived") == ""
    assert {name: text for name, text in found.items() if not text.startswith(
        f"HetaError: {name.partition(' ')[0]} has changed since the data loader was made")} == {}
    assert "[2] then, [-1] now" in found["fanouts"] == found["fanouts inside an epoch"]


def test_seeds_are_of_the_loaders_types() -> None:
    with pytest.raises(dgl_heta.InputError, match="are of type author, but it was made for nodes"):
        collated_loader()._check(["paper", "author"])


def test_exclude_eids_of_a_node_loader_is_refused() -> None:
    assert collated_loader()._excluded(None) is None
    with pytest.raises(dgl_heta.InputError, match="exclude_eids cannot be used"):
        collated_loader()._excluded({("paper", "cites", "paper"): torch.tensor([0])})


def test_seeds_of_no_layer_are_shuffled_as_dgl_shuffles_them() -> None:
    loader = SeedLoader({"paper": torch.arange(9)}, LoaderOptions(9, shuffle=True))
    torch.manual_seed(3)
    found = []
    for _ in range(3):
        loader.start()
        found.append(loader.next()[1]["paper"].tolist())
    torch.manual_seed(3)
    order = torch.arange(9)
    for each in found:
        order = dgl.backend.rand_shuffle(order)
        assert each == order.tolist()


class Loader:
    """Is iterated over."""


@pytest.mark.parametrize("kept", [False, True])
def test_a_pass_that_is_left_early_ends_when_its_loader_is_gone(kept: bool) -> None:
    epochs, told, alive = Epochs(), [], []
    epochs.add(torch.nn.Linear(1, 1), told.append)
    for _ in range(4):  # a new loader each time, maybe with the id of the last one
        loader = Loader()
        epochs.started(loader, 5)
        epochs.trained()
        alive += [loader] * kept
        del loader
    evaluated = Loader()
    epochs.started(evaluated, 2)
    assert told == ([] if kept else [1, 2, 3, 4])
    with torch.no_grad():
        epochs.ended(evaluated, 2)
    epochs.started(evaluated, 2)
    epochs.started(evaluated, 2)  # left early, and not trained
    assert len(told) == 4 * (not kept)


@pytest.mark.parametrize(("count", "end"), [(1, "or use larger batches"),
                                            (0, "as there are trainers at least")])
def test_every_trainer_has_a_seed_in_each_step(count: int, end: str) -> None:
    assert step_sizes([7, 3], 3, False) == [[3, 3, 1], [1, 1, 1]]
    assert step_sizes([7, 3], 3, True) == [[3], [3]]
    with pytest.raises(dgl_heta.InputError, match=f"trainer 1 has .* steps are needed.*{end}$"):
        step_sizes([7, count], 3, False)
