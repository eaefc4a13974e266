"""Mini-batches of GraphBolt on a meta-partition: their seeds, and their blocks in place of
subgraphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from dgl import graphbolt as gb
from dgl.utils import recursive_apply
from torch import Tensor

from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.session import Session
from dgl_heta.errors import HetaError, InputError
from dgl_heta.graphbolt.raf_graph import check_targets

_SEEDS = ("seed_nodes", "seeds")
_OF_EDGES = ("node_pairs", "negative_srcs", "negative_dsts", "compacted_node_pairs",
             "compacted_negative_srcs", "compacted_negative_dsts")


class RafMiniBatch(gb.MiniBatch):  # type: ignore[misc]
    """A mini-batch with blocks of a meta-partition; what reads sampled edges is refused.

    `blocks` and `input_nodes` (int64, every node type a key) are those of this rank's relations,
    for the seeds of all ranks of its group.
    """

    heta_blocks: Any = ()

    @property
    def blocks(self) -> list[Any]:
        return list(self.heta_blocks)

    @property
    def sampled_subgraphs(self) -> Any:
        _refuse_edges("sampled_subgraphs")

    @sampled_subgraphs.setter
    def sampled_subgraphs(self, value: Any) -> None:
        _refuse_edges("sampled_subgraphs")

    def num_layers(self) -> int:
        return len(self.heta_blocks)

    def edge_ids(self, layer_id: int) -> Any:
        _refuse_edges("edge_ids (and so fetch_feature with edge_feature_keys)")

    def to_pyg_data(self) -> Any:
        _refuse_edges("to_pyg_data")

    def to(self, device: Any) -> RafMiniBatch:
        names = ["labels", "node_features", "edge_features", "heta_blocks"]
        for name in names if self.labels is not None else [*names, *_SEEDS]:
            setattr(self, name, recursive_apply(getattr(self, name), _moved, device))
        return self

    def __repr__(self) -> str:
        inputs = {t: len(ids) for t, ids in self.input_nodes.items()}
        return f"RafMiniBatch({seeds_of(self)}, input_nodes={inputs}, blocks={self.blocks})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise HetaError("a mini-batch of a meta-partition cannot be copied or pickled; keep it in "
                        "the process that samples it")


def _moved(value: Any, device: Any) -> Any:
    return value.to(device) if hasattr(value, "to") else value


def _refuse_edges(name: str) -> NoReturn:
    refuse("edges of a mini-batch", reads=name)


def seeds_of(minibatch: Any) -> Any:
    """Return what the item sampler gave for seeds; its name differs by release of DGL."""
    return next((seeds for name in _SEEDS
                 if (seeds := getattr(minibatch, name, None)) is not None), None)


def own_seeds(session: Session, minibatch: Any) -> dict[str, Tensor]:
    """Return target type → ids (int64, on the CPU) of this rank's seeds of a mini-batch.

    Raises
    ------
    InputError
        They are no nodes of the plan's targets, each once, with nothing else to sample for.
    """
    if type(minibatch) is not gb.MiniBatch:
        refuse("another mini-batch", kind=type(minibatch).__name__)
    if any(getattr(minibatch, name, None) is not None for name in _OF_EDGES):
        refuse("links in a pipeline")
    if hasattr(minibatch, "timestamp"):
        refuse("sampling by time")
    seeds = seeds_of(minibatch)
    if not isinstance(seeds, Mapping):
        raise InputError("a batch's seeds have no node types; give the item sampler a "
                         "gb.ItemSetDict, node type → gb.ItemSet with names=('seed_nodes', …)")
    if any(":" in t or ids.dim() != 1 for t, ids in seeds.items()):
        refuse("links in a pipeline")
    check_targets(session, seeds)
    own = {t: ids.detach().to("cpu", torch.int64) for t, ids in seeds.items()}
    for ntype, ids in own.items():
        count = session.store.schema.node_counts[ntype]
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < count:
            raise InputError(f"a batch's seeds of type '{ntype}' reach from {int(ids.min())} to "
                             f"{int(ids.max())}, but the graph has {count}")
        if len(ids.unique()) < len(ids):
            raise InputError(f"a batch has a seed of type '{ntype}' twice; let the item set have "
                             "each node once")
    return own


def halves(minibatch: Any) -> tuple[Any, Any]:
    """Return a mini-batch of seeds and what belongs to them as two.

    Raises
    ------
    InputError
        It has something that is not by seed.
    """
    seeds = seeds_of(minibatch)
    sizes = {t: len(ids) for t, ids in seeds.items()}
    left = max(sum(sizes.values()) // 2, 1)
    cuts = {}
    for ntype, size in sizes.items():
        cuts[ntype] = min(left, size)
        left -= cuts[ntype]
    pair = gb.MiniBatch(), gb.MiniBatch()
    for name, value in vars(minibatch).items():
        if value is None:
            continue
        if not isinstance(value, Mapping) or any(
                len(rows) != sizes.get(t) for t, rows in value.items()):
            raise InputError(f"'{name}' of a mini-batch is not by seed, so the batch cannot be "
                             "divided for ranks with unequal numbers of batches; use "
                             "gb.DistributedItemSampler with drop_uneven_inputs=True")
        for batch in pair:
            setattr(batch, name, {})
        for ntype, rows in value.items():
            for batch, half in zip(pair, (rows[:cuts[ntype]], rows[cuts[ntype]:])):
                if len(half):
                    getattr(batch, name)[ntype] = half
    return pair
