"""The training that a prediction is for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dgl_heta.errors import several
from dgl_heta.graph.schema import Schema
from dgl_heta.planning.extremes import EXTREMES
from dgl_heta.settings import (
    ModelSettings,
    Settings,
    TrainSettings,
    check_layers,
    default_fanouts,
)

MODELS = ("rgcn", "rgat", "hgt")
"""Models whose parameters and operations are counted (:mod:`dgl_heta.planning.compute`)."""

_MODEL, _TRAIN = ModelSettings(), TrainSettings()

_OWN_MERGE = ("hgt", "han")
"""Models that merge relations by attention, whatever `model.reduce` is."""

DEFAULT_HOPS = _MODEL.layers
"""Hops of a plan where neither they nor metapaths are given."""


def wire_itemsize(train: TrainSettings) -> int | None:
    """The `wire_itemsize` of :class:`Workload` by `train.exchange_dtype`."""
    return 2 if train.exchange_dtype == "bfloat16" else None


@dataclass(frozen=True)
class Workload:
    """The numbers that decide a training's rows, bytes and operations, by default the settings'.

    Attributes
    ----------
    batch_size : seeds per worker and step.
    hidden : width of hidden states and learnable features.
    itemsize : bytes per element of states and parameters.
    parameters : number of dense parameters, whose gradients are averaged; 0 if unknown.
    seed_states : whether the model reads the destination's state (self-loop, attention), so
        that the seeds' states are completed below the last layer.
    reduce : cross-relation reducer; max and min exchange the extremes and who attains them.
    fanouts : neighbours per relation and layer, input layer first, -1 for all; empty: the default.
    model : one of :data:`MODELS` where operations and parameters are counted, else any.
    seeds : training nodes per epoch; 0: all target nodes.
    classes : of the output layer; 0 if unknown, then its weights are left out.
    feature_itemsize : bytes per element of static features.
    in_script : whether a DistDGL script trains: destinations' states that attention reads are sent
        to the partition that aggregates for them, which else reads static features itself; DGL's
        servers send learnable rows as they are.
    wire_itemsize : bytes per element of states and learnable rows when they are sent
        (`train.exchange_dtype`); None: `itemsize`.
    heads : attention heads, of models that have some.
    links : whether links are predicted, so that a batch is of more seeds than `batch_size`.
    """

    batch_size: int = _TRAIN.batch_size
    hidden: int = _MODEL.hidden
    itemsize: int = 4
    parameters: int = 0
    seed_states: bool = _TRAIN.seed_states
    reduce: str = _MODEL.reduce
    fanouts: tuple[int, ...] = ()
    model: str = _MODEL.name
    seeds: int = 0
    classes: int = 0
    feature_itemsize: int = 4
    in_script: bool = False
    wire_itemsize: int | None = None
    heads: int = _MODEL.heads
    links: bool = False

    @classmethod
    def of(cls, settings: Settings, parameters: int = 0, parts: int | None = None) -> Workload:
        """The workload of a run of `dgl-heta train`; `parts` where a plan has others than the
        settings."""
        train, model = settings.train, settings.model
        workers = (parts or settings.partition.parts) * train.trainers
        return cls(-(-train.step_size(workers) // workers), model.hidden,
                   8 if train.dtype == "float64" else 4, parameters, train.seed_states,
                   "sum" if model.name in _OWN_MERGE else model.reduce, tuple(train.fanouts),
                   model.name,
                   wire_itemsize=wire_itemsize(train), heads=model.heads,
                   links=settings.task.of_links)

    @property
    def takes_extremes(self) -> bool:
        """Return whether AGG_all is max or min."""
        return self.reduce in EXTREMES

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of hidden states or learnable features."""
        return self.hidden * self.itemsize

    @property
    def sent_row_bytes(self) -> int:
        """Bytes of such a row when it is sent."""
        return self.hidden * (self.itemsize if self.wire_itemsize is None else self.wire_itemsize)

    def fanouts_of(self, hops: int) -> tuple[int, ...]:
        """One fanout per layer, input layer first.

        Raises
        ------
        InputError
            There are not as many as layers.
        """
        fanouts = self.fanouts or default_fanouts(hops)
        check_layers(fanouts, hops, "the workload's fanouts",
                     f"the plan has {several(hops, 'hop')}")
        return tuple(fanouts)

    def epoch(self, schema: Schema, targets: Sequence[str], workers: int) -> tuple[int, float]:
        """Steps of an epoch and seeds per worker in each, the last batch spread over all."""
        seeds = self.seeds or sum(schema.node_counts[t] for t in targets)
        steps = -(-seeds // (self.batch_size * workers))
        return steps, seeds / (steps * workers)
