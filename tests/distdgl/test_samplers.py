"""Classes of samplers that scripts derive from DGL's compute under RAF what they do in plain DGL.

Samplers that are derived from none are in test_distdgl_hosts.py.
"""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("DGLBACKEND", "pytorch")

import dgl
import pytest

import dgl_heta
from dgl_heta.distdgl.loading.loader_scope import way_of
from tests.support.programs import differences

HERE = "tests.distdgl.programs.samplers"
DERIVED = [f'{HERE}:derived "{name}"' for name in ("Adding", "More", "Twice")]


@pytest.mark.parametrize(("machines", "trainers"), [(3, 1), (2, 2)])
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
