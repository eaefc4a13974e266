"""Batches of links, as `torch_geometric.loader.LinkNeighborLoader` gives them of a HeteroData."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler import NegativeSampling

from dgl_heta import InputError, Partition
from dgl_heta.tools import LinkStep, share_of
from dgl_heta_pyg.data import PartitionData, part_of
from dgl_heta_pyg.loader import Batch, NeighborLoader
from dgl_heta_pyg.times import NodesByTime, check_times, keys, with_times


class LinkNeighborLoader(NeighborLoader):
    """Batches of links with the sampled neighbourhoods of their ends.

    The ends of a step's links, and of the negative ones, are the seeds, so the node types of both
    ends are targets of the partition. A batch has of its own links what PyG's has. As in PyG, links
    are not taken out of the graph: write a partition without those that are to be predicted.

    Parameters
    ----------
    data, num_neighbors, batch_size, shuffle, drop_last, seed, others : as of
        :class:`NeighborLoader`; batch_size counts links, shuffle is by default False.
    edge_label_index : `(edge_type, (2, links) ids)`, or an edge type, for all of its edges.
    edge_label : (links, …) numbers.
    neg_sampling : "binary" for random pairs, "triplet" for random destinations, or PyG's
        `NegativeSampling` without weights; negatives are drawn from `seed`, the epoch and the step.
    neg_sampling_ratio : random pairs for each link.
    edge_label_time : where the graph has times, that of each link, whole numbers. Its ends see what
        is there up to then, so give one before the link, or open with `train.strictly_before`.
        Negative ones have their link's time, and are there then.
    time_attr, temporal_strategy : as of :class:`NeighborLoader`.

    Raises
    ------
    InputError : as :class:`NeighborLoader`; an end that is no node, types that are no targets.
    """

    def __init__(self, data: PartitionData | Partition, num_neighbors: Any, edge_label_index: Any,
                 edge_label: Tensor | None = None, neg_sampling: Any = None,
                 neg_sampling_ratio: float | None = None, batch_size: int = 1,
                 shuffle: bool | None = None, drop_last: bool = False, seed: int | None = None,
                 edge_label_time: Any = None, time_attr: str | None = None, **others: Any) -> None:
        part = part_of(data)
        check_times(part, edge_label_time, time_attr)
        if neg_sampling_ratio:
            neg_sampling = NegativeSampling("binary", neg_sampling_ratio)
        self._negative = None if neg_sampling is None else NegativeSampling.cast(neg_sampling)
        weights = {getattr(self._negative, f"{end}_weight", None) is None for end in ("src", "dst")}
        if weights != {True}:
            raise InputError("neg_sampling has weights, unknown on a partition; leave them out")
        self._type, self._links = _links(part, edge_label_index)
        every = len(edge_label_index) != 2 or edge_label_index[1] is None
        if every and not (edge_label is None is edge_label_time):
            raise InputError("edge_label and edge_label_time are in the order of the links, which "
                             "a partition has in another; give edge_label_index as (edge type, "
                             "ids of the ends)")
        if edge_label is not None and self._negative is not None:
            if self._negative.is_triplet():
                raise InputError("neg_sampling is 'triplet', which has no edge_label; leave it out")
            if edge_label.numel() and edge_label.min() == 0:  # as in PyG: 0 is of negative links
                edge_label = edge_label + 1
        self._label = edge_label
        if edge_label is not None and len(edge_label) != self._links.shape[1]:
            raise InputError(f"edge_label has {len(edge_label)} rows, and there are "
                             f"{self._links.shape[1]} links")
        if part.store.manifest.timed:
            if edge_label_time is None:
                raise InputError("the graph has times; give that of each link, edge_label_time")
            self._links = np.stack([with_times(part, t, ends, edge_label_time) for t, ends in zip(
                (self._type.src, self._type.dst), self._links)])
            self._by_time = {t: NodesByTime(part, t) for t in (self._type.src, self._type.dst)}
        super().__init__(part, num_neighbors, {}, batch_size, shuffle, drop_last, seed, **others)

    def asked(self) -> dict[str, np.ndarray]:
        return {str(self._type): self._links.swapaxes(0, 1)}

    def ordered(self, shuffle: tuple[int, int] | None) -> Sequence[LinkStep]:
        order = np.arange(self._links.shape[1])
        if shuffle is not None:
            np.random.default_rng(shuffle).shuffle(order)
        return [LinkStep(order[low:low + self._size], (*(shuffle or (self._seed,)), low), "train")
                for low in range(0, len(order), self._size)]

    def _share(self, step: LinkStep, worker: int, workers: int) -> tuple[np.ndarray, ...]:
        """A worker's links, and the ends of its pairs: first the links', then the negative ones'.
        """
        own = share_of(step.positions, worker, workers)
        ends, negative, draws = self._links[:, own], self._negative, np.random.default_rng(step.key)
        if negative is None:
            return own, *ends
        shape = ((step.size, int(negative.amount)) if negative.is_triplet() else
                 (self._pairs(step) - step.size, 1))
        counts, drawn = self.part.schema.node_counts, []
        for ntype in [self._type.src] * negative.is_binary() + [self._type.dst]:
            every = draws.integers(0, counts[ntype], shape) if ends.ndim == 2 else (
                self._by_time[ntype].drawn(draws, np.repeat(np.resize(
                    self._links[0, step.positions, 1], shape[0]), shape[1])).reshape(*shape, 2))
            drawn.append(share_of(every, worker, workers).reshape(-1, *ends.shape[2:]))
        return own, np.concatenate([ends[0], *drawn[:-1]]), np.concatenate([ends[1], drawn[-1]])

    def _pairs(self, step: LinkStep) -> int:
        """How many losses a step has, over all workers."""
        if self._negative is None or self._negative.is_triplet():
            return step.size
        return step.size + math.ceil(step.size * self._negative.amount)

    def seeds(self, step: LinkStep, worker: int, workers: int) -> dict[str, np.ndarray]:
        _, *ends = self._share(step, worker, workers)
        return {t: np.unique(np.concatenate([ends[0][:0], *(
            each for of, each in zip((self._type.src, self._type.dst), ends) if of == t)]), axis=0)
            for t in self.part.targets}

    def _of_seeds(self, data: Batch, step: Any, ids: Mapping[str, np.ndarray]) -> None:
        part, negative, (src, _, dst) = self.part, self._negative, self._type
        own, *both = self._share(step.step, *part.share(step.step))
        count = len(own)
        source, target = (torch.from_numpy(np.searchsorted(keys(ids[t]), keys(x))).to(part.device)
                          for t, x in zip((src, dst), both))
        links = data[tuple(self._type)]
        links.input_id = torch.from_numpy(own)
        if negative is not None and negative.is_triplet():
            data[src].src_index, data[dst].dst_pos_index = source, target[:count]
            data[dst].dst_neg_index = target[count:].view(count, -1).squeeze(-1)
        else:
            label = None if self._label is None else self._label[own].to(part.device)
            if negative is not None:
                label = torch.ones(count, device=part.device) if label is None else label
                label = torch.cat([label, label.new_zeros(len(source) - count, *label.shape[1:])])
            links.edge_label_index, links.edge_label = torch.stack([source, target]), label

        data.__dict__["_mean"] = lambda losses, ntype: step.mean_of(
            losses, len(source), self._pairs(step.step), "links of the batch")


def _links(part: Partition, given: Any) -> tuple[Any, np.ndarray]:
    """An edge type, and ends of links of it, (2, links) int64."""
    name, given = given if len(given) == 2 else (given, None)
    relation = part.schema.find_relation(name)
    for ntype in (relation.src, relation.dst):
        if ntype not in part.targets:
            raise InputError(f"links of '{relation}' have ends of '{ntype}', which is no target of "
                             f"the partition; make it with --target {relation.src} --target "
                             f"{relation.dst}")
    if given is None:
        csc = part.store.relation(relation)
        given = np.stack([np.asarray(csc.indices, np.int64), np.repeat(
            np.arange(len(csc.indptr) - 1), np.diff(csc.indptr))])
    ends = np.asarray(torch.as_tensor(given).cpu())
    if ends.ndim != 2 or len(ends) != 2 or ends.dtype.kind not in "iu":
        raise InputError(f"edge_label_index of '{relation}' is {ends.dtype}{list(ends.shape)}; "
                         "give the ends of links, whole numbers (2, links)")
    for ntype, ids in zip((relation.src, relation.dst), ends):
        count = part.schema.node_counts[ntype]
        if len(ids) and not 0 <= ids.min() <= ids.max() < count:
            raise InputError(f"ends of links of '{relation}' are '{ntype}' {ids.min()} to "
                             f"{ids.max()}, but its nodes are 0 to {count - 1}")
    return relation, ends.astype(np.int64)
