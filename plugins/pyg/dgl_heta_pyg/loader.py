"""Batches of a partition, as `torch_geometric.loader.NeighborLoader` gives them of a HeteroData."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from dgl_heta import InputError, Partition
from dgl_heta.tools import Loader, listing
from dgl_heta_pyg.data import PartitionData, part_of
from dgl_heta_pyg.hops import Hops, HopSampler, Origin
from dgl_heta_pyg.relation_edges import RelationEdges, edges_in, opened
from dgl_heta_pyg.times import check_times, keys, with_times

# Arguments of PyG's loader that say how, not what, batches are made; settings say that here.
_HOW = ("num_workers", "persistent_workers", "pin_memory", "prefetch_factor", "is_sorted",
        "filter_per_worker", "pin_memory_device")


class Batch(HeteroData):
    """A sampled neighbourhood. Its seeds are those of the worker's group, this worker's own first:
    `batch_size` counts the latter, of which alone `y` and `input_id` are."""

    def mean(self, losses: Tensor, ntype: str | None = None) -> Tensor:
        """This worker's part of the mean of a step's losses over the seeds of all workers, one loss
        for each own seed: exact where workers have different numbers of seeds, too. Of links there
        is one for each own link and each negative one, or each of the triplets."""
        return self.__dict__["_mean"](losses, ntype)  # type: ignore[no-any-return]

    def to_homogeneous(self, *args: Any, **kwargs: Any) -> Data:
        """The batch as one graph: `x`, `n_id`, `edge_index`, `node_type` and `edge_type`, types in
        the order of `node_types` and `edge_types`. What it has of seeds alone stays in the batch.
        """
        whole, guarded = HeteroData(), edges_in(self.collect("edge_index"))
        for store in self.stores[1:]:
            whole[store._key].update({
                name: opened(value) for name, value in store.items()
                if name not in ("y", "input_id", "batch_size") and "label" not in name})
        data = whole.to_homogeneous(*args, **kwargs)
        if guarded:
            origin = guarded[0].origin
            data.edge_index = RelationEdges.of(data.edge_index, None, origin)
            origin.note(data.stores, len(origin.ones))
            origin.ones.append((args, kwargs))
        return data

    @classmethod
    def of(cls, hops: Hops, x: Mapping[str, Tensor], origin: Origin | None = None) -> Batch:
        """The batch of a graph and the input rows of its nodes; with an origin its edges are for
        convolutions alone."""
        data = cls()
        for ntype, counts in hops.num_nodes.items():
            of_rows = {name: torch.from_numpy(of) for name, of in hops.of_rows(ntype).items()}
            data[ntype].update({"x": x[ntype], **of_rows, "num_sampled_nodes": counts})
        for relation, edges in hops.edges.items():
            data[tuple(relation)].update({
                "edge_index": RelationEdges.of(edges, relation, origin) if origin else edges,
                "num_sampled_edges": hops.num_edges[relation]})
        return data


class NeighborLoader(Loader):
    """Batches of nodes with their sampled neighbourhoods. All workers make the same loaders, in the
    same order, and take their batches alike.

    Parameters
    ----------
    data : from :func:`dgl_heta_pyg.open_partition` or :func:`dgl_heta.open_partition`.
    num_neighbors : in-edges sampled of a node by each relation, per hop, the seeds' first; -1: all.
        A list of them, or one for each edge type: `{("author", "writes", "paper"): [10, 5], …}`.
    input_nodes : "train", "val" or "test", for the nodes of a mask; a target type, for all its
        nodes; or `(type, ids or mask)`.
    batch_size : seeds of each worker in a step.
    shuffle : whether each epoch has an order and samples of its own; default: for "train".
    drop_last : whether to leave out a last step with fewer seeds than the others.
    seed : of the order and of the samples; default: `train.seed`.
    input_time : where the graph has times, that of each of `input_nodes`, whole numbers; default:
        those of the task's seeds, or of the nodes' rows.
    time_attr, temporal_strategy : as of PyG's loader. Times are those of the partition; "last" goes
        with `train.latest`.
    others : of PyG's loader; those that say how batches are made are without effect, others are
        refused.

    Raises
    ------
    InputError : another number of hops than the partition has, seeds of another type than its
        targets, a partition whose rows below the seeds are not whole, another loader on another
        worker, a last step that leaves a worker without a seed.
    """

    part: Partition

    def __init__(self, data: PartitionData | Partition, num_neighbors: Any,
                 input_nodes: Any = "train", batch_size: int = 1, shuffle: bool | None = None,
                 drop_last: bool = False, seed: int | None = None, input_time: Any = None,
                 time_attr: str | None = None, temporal_strategy: str | None = None,
                 **others: Any) -> None:
        part = part_of(data)
        if unknown := [name for name in others if name not in _HOW]:
            raise InputError(f"{type(self).__name__}'s {listing(unknown)} is not known on a "
                             "partition; leave it out")
        _check_plan(part)
        check_times(part, input_time, time_attr, temporal_strategy)
        named = isinstance(input_nodes, str) and input_nodes == "train"
        super().__init__(part, _seeds(part, input_nodes, input_time), _fanouts(part, num_neighbors),
                         batch_size, named if shuffle is None else shuffle, seed, drop_last)
        self._widths = dict(part.spec(1).input_dims)
        self._places = {t: np.argsort(keys(ids)) for t, ids in self._ids.items()}
        # Seeds of a task have its labels, those of other times what the node has.
        self._of_nodes = part.store.manifest.timed and not _is_split(part, input_nodes)
        self._array = str(part.task.label)
        self._labelled = [t for t in part.targets if part.store.has_array(t, self._array)
                          or (part.store.manifest.timed and not self._of_nodes)]
        total = sum(map(len, self.asked().values()))
        if not drop_last and 0 < total % self._size < part.world.size:
            raise InputError(f"of {total} seeds in steps of {self._size} the last has "
                             f"{total % self._size} for {part.world.size} workers, so that one's "
                             "loss would be of nothing; give drop_last=True, or another batch_size")

    def sampler(self, fanouts: Sequence[Any], seed: int, apart: Any) -> Any:
        part = self.part
        sampler = part.sampler(fanouts, seed=seed, apart=apart)
        own = {r for layer in part.plan.partitions[part.rank].layers.values() for r in layer}
        times = {t: part.store.row_times(t) for t in part.schema.node_types}
        return HopSampler(
            sampler, part.schema, {t: of for t, of in times.items() if of is not None},
            {r: partial(part.store.edge_ids, r) for r in part.schema.relations
             if r in own and part.store.has_edge_ids(r)})

    def __iter__(self) -> Iterator[Any]:
        return super().__iter__()

    def _pass(self, steps: Any, first: int, epoch: int) -> Iterator[Any]:
        return map(self._batch, super()._pass(steps, first, epoch))

    def _batch(self, step: Any) -> Batch:
        part, mini = self.part, step.mini_batch()
        hops: Hops = mini.hops
        rows = step.inputs(torch.is_grad_enabled())
        origin = Origin(hops, step) if part.group.size > 1 else None
        data = Batch.of(hops, {t: rows[t][at] if t in rows else torch.empty(
            (0, self._widths[t]), dtype=part.learnable.dtype, device=part.device)
            for t, at in hops.at.items()}, origin)
        data.__dict__["_mean"] = step.mean
        for relation, ids in hops.edge_ids.items():
            of = data[tuple(relation)]
            of.e_id = torch.from_numpy(ids)
            for name, array in part.store.edge_arrays(relation).items():
                of[name] = torch.from_numpy(array[ids]).to(part.device)
        # After the arrays of edges, of which one may be called edge_label, too.
        self._of_seeds(data, step, mini.own_seeds)
        if origin is not None:
            origin.note(data.stores[1:])
        return data

    def _of_seeds(self, data: Batch, step: Any, ids: Mapping[str, np.ndarray]) -> None:
        """What a batch has of its own seeds, whose ids are given per target type."""
        for ntype, seeds in ids.items():
            order, store = self._places[ntype], data[ntype]
            store.batch_size = len(seeds)
            store.input_id = torch.from_numpy(
                order[np.searchsorted(keys(self._ids[ntype]), keys(seeds), sorter=order)])
            if ntype in self._labelled:
                store.y = torch.from_numpy(self._labels_of(ntype, seeds)).to(self.part.device)

    def _labels_of(self, ntype: str, seeds: np.ndarray) -> np.ndarray:
        """The labels of seeds: classes, int64, or numbers in the shape and dtype of the data's `y`;
        whole ones are float64 where a value stands for none, which is NaN."""
        if self._of_nodes:
            return self.part.store.array(ntype, self._array)[seeds[:, 0]]
        labels = self.part.labels(ntype)
        rows, stored = labels.rows(seeds), labels.array
        if labels.kind == "classification":
            return rows
        kept = stored.dtype.kind == "f" or labels.unlabelled is None
        return rows.reshape(len(seeds), *stored.shape[1:]).astype(
            stored.dtype if kept else rows.dtype, copy=False)


def _check_plan(part: Partition) -> None:
    """Refuse partitions where a worker's rows below the seeds lack relations."""
    plan = part.plan
    so = "so that rows below the seeds are not whole on a worker, as PyG's models need them; "
    if plan.metapaths:
        raise InputError("the partition follows metapaths, by which PyG's models do not; make it "
                         "by --hops")
    if plan.replication != "full":
        raise InputError(f"the partition replicates no relation, {so}make it again with "
                         "partition.replication = full")
    if plan.offloaded:
        raise InputError(f"the partition delegates relations ('{next(iter(plan.offloaded))}'), {so}"
                         "open it by dgl_heta_pyg.open_partition, or with partition.shared=rows")


def _is_split(part: Partition, input_nodes: Any) -> bool:
    return isinstance(input_nodes, str) and input_nodes not in part.schema.node_counts


def _seeds(part: Partition, input_nodes: Any, input_time: Any) -> Any:
    """The seeds as :class:`dgl_heta.tools.Loader` takes them."""
    if _is_split(part, input_nodes) or isinstance(input_nodes, Mapping):
        if input_time is not None:
            raise InputError("input_time is of input_nodes=(type, ids); a split has the times of "
                             "the task's seeds, links have edge_label_time")
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
    return {ntype: with_times(part, ntype, nodes, input_time) if part.store.manifest.timed
            else nodes}


def _fanouts(part: Partition, num_neighbors: Any) -> list[Any]:
    """What is sampled for each layer, input side first: a number, or one for each relation."""
    if not isinstance(num_neighbors, Mapping):
        return [*num_neighbors][::-1]
    hops = range(part.plan.hops)
    given = {part.schema.find_relation(name): [*of] for name, of in num_neighbors.items()}
    if wrong := [r for r in part.schema.relations if len(given.get(r, ())) != len(hops)]:
        raise InputError(f"num_neighbors has {given.get(wrong[0])} for '{wrong[0]}'; give a number "
                         f"for each of {len(hops)} hops, for each edge type")
    return [{r: of[hop] for r, of in given.items()} for hop in reversed(hops)]
