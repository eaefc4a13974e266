"""Batches of a partition, as `torch_geometric.loader.NeighborLoader` gives them of a HeteroData."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from dgl_heta import HetaError, InputError, Partition, Plan, Store
from dgl_heta.tools import Loader, listing
from dgl_heta_pyg.data import PartitionData, part_of
from dgl_heta_pyg.hops import HopBatch, Hops, HopSampler
from dgl_heta_pyg.relation_edges import RelationEdges

_HOW = ("num_workers", "persistent_workers", "pin_memory", "prefetch_factor", "is_sorted",
        "filter_per_worker", "pin_memory_device")
"""Arguments of PyG's loader that say how, not what, batches are made; the partition's settings say
that here."""


class Batch(HeteroData):
    """A sampled neighbourhood; what PyG's loaders give, of this worker.

    Its seeds are those of the worker's group, this worker's own first: `batch_size` counts the
    latter, of which alone `y` and `input_id` are.
    """

    def mean(self, losses: Tensor, ntype: str | None = None) -> Tensor:
        """This worker's part of the mean of a step's losses over the seeds of all workers, one loss
        for each own seed: exact where workers have different numbers of seeds, too."""
        mean: Tensor = self.__dict__["_step"].mean(losses, ntype)
        return mean


class NeighborLoader(Loader):
    """Batches of nodes with their sampled neighbourhoods; iterate over it, once for each epoch.

    All workers make the same loaders, in the same order, and take their batches alike.

    Parameters
    ----------
    data : from :func:`dgl_heta_pyg.open_partition` or :func:`dgl_heta.open_partition`.
    num_neighbors : in-edges sampled of a node by each relation, per hop, the seeds' first; -1: all.
    input_nodes : "train", "val" or "test", for the nodes of a mask; a target type, for all its
        nodes; or `(type, ids or mask)`.
    batch_size : seeds of each worker in a step.
    shuffle : whether each epoch has an order and samples of its own; default: for "train".
    drop_last : whether to leave out a last step with fewer seeds than the others.
    seed : of the order and of the samples; default: `train.seed`.
    others : of PyG's loader; those that say how batches are made are without effect, others are
        refused.

    Raises
    ------
    InputError
        Another number of hops than the partition has, seeds of another type than its targets, a
        partition whose rows below the seeds are not whole, another loader on another worker, a last
        step that leaves a worker without a seed.
    """

    def __init__(self, data: PartitionData | Partition, num_neighbors: Sequence[int],
                 input_nodes: Any = "train", batch_size: int = 1, shuffle: bool | None = None,
                 drop_last: bool = False, seed: int | None = None, **others: Any) -> None:
        part = part_of(data)
        if unknown := [name for name in others if name not in _HOW]:
            raise InputError(f"NeighborLoader's {listing(unknown)} is not known on a partition; "
                             "leave it out")
        self._data = part
        _check_plan(part)
        part.store.check_untimed("dgl_heta_pyg.NeighborLoader goes")
        if isinstance(num_neighbors, Mapping):
            raise InputError("num_neighbors is given per edge type; a partition samples all of "
                             "them alike: give a list, with a number for each hop")
        super().__init__(part, _seeds(part, input_nodes), [*num_neighbors][::-1], batch_size,
                         input_nodes == "train" if shuffle is None else shuffle, seed)
        self._drop, self._widths = drop_last, dict(part.spec(1).input_dims)
        self._places = {t: np.argsort(ids) for t, ids in self._ids.items()}
        known = part.store.manifest.task
        label = part.settings.task.label or (known.label if known else "label")
        self._labelled = [t for t in part.targets if part.store.has_array(t, label)]
        self._learnable = part.learnable.counts.keys()
        total = sum(map(len, self._ids.values()))
        if not drop_last and 0 < total % self._size < part.world.size:
            raise InputError(
                f"of {total} seeds in steps of {self._size} the last has {total % self._size} for "
                f"{part.world.size} workers, so that the loss of one of them would be of nothing; "
                "give drop_last=True, or another batch_size")

    def sampler(self, fanouts: Sequence[int], seed: int, apart: Any) -> Any:
        part = self.part
        sampler = part.sampler(fanouts, seed=seed, apart=apart, seed_states=False)
        return HopSampler(sampler, part.store.schema, _edge_ids(part.store, part.plan, part.rank))

    def __len__(self) -> int:
        total = sum(map(len, self._ids.values()))
        return total // self._size if self._drop else super().__len__()

    def __iter__(self) -> Iterator[Any]:
        return super().__iter__()

    def _pass(self, steps: Any, first: int, epoch: int) -> Iterator[Any]:
        if self._drop:
            steps = steps[:len(self)]
        passing: Any = super()._pass(steps, first, epoch)
        with contextlib.closing(passing) as batches:
            for step in batches:
                yield self._batch(step)

    def _batch(self, step: Any) -> Batch:
        part, mini = self._data, step.mini_batch()
        assert isinstance(mini, HopBatch)
        assert mini.hops is not None
        hops = mini.hops
        train = torch.is_grad_enabled()
        if train and self._learnable:
            rows_of(part).read(hops)
        rows, data = step.inputs(train), Batch()
        data.__dict__["_step"] = step
        for ntype, nodes in hops.nodes.items():
            store = data[ntype]
            store.x = (rows[ntype][hops.at[ntype]] if ntype in rows else torch.empty(
                (0, self._widths[ntype]), dtype=_dtype(part, rows), device=part.device))
            store.n_id = torch.from_numpy(nodes)
            store.num_sampled_nodes = hops.num_nodes[ntype]
        for ntype, ids in mini.own_seeds.items():
            store = data[ntype]
            store.batch_size, store.input_id = len(ids), self._input_id(ntype, ids)
            if ntype in self._labelled:
                store.y = step.labels[ntype]
        several = part.group.size > 1
        for relation, edges in hops.edges.items():
            of = data[tuple(relation)]
            of.edge_index = RelationEdges.of(edges, relation, hops) if several else edges
            of.num_sampled_edges = hops.num_edges[relation]
            if relation in hops.edge_ids:
                of.e_id = torch.from_numpy(hops.edge_ids[relation])
                for name, array in part.store.edge_arrays(relation).items():
                    of[name] = torch.from_numpy(array[hops.edge_ids[relation]]).to(part.device)
        return data

    def _input_id(self, ntype: str, ids: np.ndarray) -> Tensor:
        order = self._places[ntype]
        return torch.from_numpy(order[np.searchsorted(self._ids[ntype], ids, sorter=order)])


@dataclass
class LearnableRows:
    """Which batch's learnable rows collect gradients.

    Attributes
    ----------
    last : the graph of the batch that was read last to train.
    waits : whether its backward pass is to come.
    """

    last: Hops | None = None
    waits: bool = False

    def read(self, hops: Hops) -> None:
        """
        Raises
        ------
        HetaError
            The gradients of another batch's rows would be lost.
        """
        if self.waits:
            raise HetaError("a batch was read before the backward pass of the one before it, whose "
                            "learnable rows would get no gradients; iterate over batches that are "
                            "not trained on under torch.no_grad()")
        self.last = hops


def rows_of(part: Partition) -> LearnableRows:
    """The state of a partition's learnable rows."""
    return _ROWS.setdefault(part, LearnableRows())


_ROWS: weakref.WeakKeyDictionary[Partition, LearnableRows] = weakref.WeakKeyDictionary()


def _check_plan(part: Partition) -> None:
    """Refuse partitions where a worker's rows below the seeds lack relations."""
    plan = part.plan
    if plan.metapaths:
        raise InputError("the partition follows metapaths, by which PyG's models do not; make it "
                         "by --hops")
    if plan.replication != "full":
        raise InputError("the partition replicates no relation, so that rows below the seeds are "
                         "not whole on a worker, as PyG's models need them; make it again with "
                         "partition.replication = full")
    if plan.offloaded:
        raise InputError(f"the partition delegates relations ('{next(iter(plan.offloaded))}'), so "
                         "that rows below the seeds are not whole on a worker, as PyG's models "
                         "need them; open it by dgl_heta_pyg.open_partition, or with "
                         "partition.shared=rows among its settings")


def _seeds(part: Partition, input_nodes: Any) -> Any:
    """The seeds as :class:`dgl_heta.tools.Loader` takes them."""
    if isinstance(input_nodes, str) and input_nodes not in part.schema.node_counts:
        return input_nodes
    ntype, nodes = (input_nodes, None) if isinstance(input_nodes, str) else input_nodes
    if nodes is None:
        nodes = np.arange(part.schema.node_counts.get(ntype, 0))
    nodes = nodes.cpu().numpy() if isinstance(nodes, Tensor) else np.asarray(nodes)
    if nodes.dtype == np.bool_:
        if len(nodes) != part.schema.node_counts.get(ntype, len(nodes)):
            raise InputError(f"the mask of '{ntype}' has {len(nodes)} rows for "
                             f"{part.schema.node_counts[ntype]} nodes")
        nodes = np.flatnonzero(nodes)
    return {ntype: nodes}


def _edge_ids(store: Store, plan: Plan, rank: int) -> dict[Any, Any]:
    """Of relations whose edges' ids a worker has: how to read them."""
    own = {r for layer in plan.partitions[rank].layers.values() for r in layer}
    return {r: partial(store.edge_ids, r) for r in store.schema.relations
            if r in own and store.has_edge_ids(r)}


def _dtype(part: Partition, rows: Mapping[str, Tensor]) -> torch.dtype:
    return next((x.dtype for x in rows.values() if x.is_floating_point()), part.learnable.dtype)
