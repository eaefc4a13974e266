"""Planted communities with power-law degrees, as a data set: `communities`.

A node belongs to one of many small communities, and its class is that of its community. Features
are so noisy that they alone tell little of the class; a community's mean tells it well, so that
neighbours matter. Some labels are wrong, so that nothing tells all.
"""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, Field

from dgl_heta import Dataset, EdgeArrays, GraphSource, Relation, Task
from dgl_heta_catgnn.streams import ONLY


class CommunityOptions(BaseModel):
    """Options of the graph; the probabilities are shares, from 0 to 1."""

    nodes: int = Field(10_000, ge=200, description="nodes")
    mixed: float = Field(0.1, ge=0, le=1, description="share of the edges that go anywhere")
    classes: int = Field(8, ge=2, description="classes")
    width: int = Field(32, ge=2, description="width of the features")
    noise: float = Field(4.0, ge=0, description="standard deviation of the features, whose classes "
                         "are about 1.4 apart")
    wrong: float = Field(0.05, ge=0, le=1, description="share of labels that are drawn at random")
    train: float = Field(0.3, gt=0, le=0.8, description="share of the nodes that are for training")
    seed: int = Field(0, ge=0, description="seed")


class Communities(Dataset):
    """The data set `communities`; both directions of an edge are there."""

    name = "communities"
    description = "planted communities, power-law degrees, noisy features: tell a node's class"
    options = CommunityOptions()

    def load(self, **options: object) -> GraphSource:
        given = CommunityOptions.model_validate(options)
        src, dst, own = planted(given.nodes, given.mixed, given.seed)
        src, dst = simple(src, dst, given.nodes)
        rng = np.random.default_rng([given.seed, 1])
        # Communities to classes at random, but evenly.
        communities = int(own.max()) + 1
        label = rng.permutation(np.arange(communities) % given.classes)[own]
        means = rng.standard_normal((given.classes, given.width)) / np.sqrt(given.width)
        feat = means[label] + given.noise * rng.standard_normal(
            (given.nodes, given.width)) / np.sqrt(given.width)
        lost = rng.random(given.nodes) < given.wrong
        label = np.where(lost, rng.integers(0, given.classes, given.nodes), label)
        draw = rng.random(given.nodes)
        val = given.train + (1 - given.train) / 4
        return GraphSource(
            self.name, {ONLY.src: given.nodes},
            {Relation(*ONLY): EdgeArrays(np.concatenate([src, dst]), np.concatenate([dst, src]))},
            {ONLY.src: {"feat": feat.astype(np.float32), "label": label.astype(np.int64),
                        "train_mask": draw < given.train,
                        "val_mask": (draw >= given.train) & (draw < val),
                        "test_mask": draw >= val}},
            Task(ONLY.src, given.classes))


def planted(size: int, mixed: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both ends of 8 edges per node, and each node's community; duplicates and loops are there.

    Communities have about 100 nodes; ends are drawn by weights with a power law (exponent 1.5).
    An edge stays in its source's community, but for a share `mixed`.
    """
    rng = np.random.default_rng(seed)
    weight = np.minimum(rng.pareto(1.5, size) + 1, 200)
    own = np.sort(rng.integers(0, max(size // 100, 1), size))
    ends = np.cumsum(weight)
    src = np.searchsorted(ends, rng.random(size * 8) * ends[-1])
    first, last = np.searchsorted(own, own[src]), np.searchsorted(own, own[src], "right")
    inside = rng.random(len(src)) >= mixed
    low = np.where(inside, np.concatenate([[0], ends])[first], 0)
    high = np.where(inside, ends[last - 1], ends[-1])
    dst = np.searchsorted(ends, low + rng.random(len(src)) * (high - low))
    shuffled = rng.permutation(size)  # neighbours in id say nothing
    community = np.empty(size, np.int64)
    community[shuffled] = own
    return shuffled[src], shuffled[dst], community


def simple(src: np.ndarray, dst: np.ndarray, nodes: int, seed: int = 0
           ) -> tuple[np.ndarray, np.ndarray]:
    """Each pair of ends once, in one direction and random order, without loops."""
    low, high = np.minimum(src, dst), np.maximum(src, dst)
    pairs = np.unique(low[low != high] * nodes + high[low != high])
    np.random.default_rng(seed).shuffle(pairs)
    return pairs // nodes, pairs % nodes
