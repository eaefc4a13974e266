"""The proof of PyG models (`run.prove`): the core's, for which a row of a hop is a node.

A row is computed from its node and its hop alone (:mod:`dgl_heta_pyg.hops`). So pairs of both are
the ids of nodes in what the core compares: it finds from the edges of all workers of the group
what one worker by itself would have, for the seeds of all, and runs a copy of the model on either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map
from torch_geometric.nn import HANConv, HeteroBatchNorm

from dgl_heta.tools import (
    Block,
    LinkStep,
    MiniBatch,
    NotProvedError,
    Place,
    RelationBlock,
    StepProof,
    TrainingSetting,
)
from dgl_heta_pyg.hops import Hops, Origin
from dgl_heta_pyg.loader import Batch
from dgl_heta_pyg.merging import Merging
from dgl_heta_pyg.relation_edges import RelationEdges

_HOP = 1 << 48
"""What the ids of a hop are more by than those of the hop above."""
_OF_LINKS = ("edge_label_index", "edge_label", "input_id")
Run = Callable[[nn.Module, Any, Any], Any]


class HopProof(StepProof):
    """Proves steps of a PyG model on several workers; all make it and call it alike."""

    def due(self, place: Place | None) -> bool:
        """Return whether to prove a step: the first call that is trained on, in any case."""
        first = not (self._schedule.off or self.proved or self.told)
        return first or super().due(place)

    def setting(self, batch: Any) -> HopSetting:
        return HopSetting(self._part, batch)

    def compare(self, model: nn.Module, origin: Origin, given: Any, outputs: Iterable[Tensor]
                ) -> None:
        """Compare a call of the model, with `(args, kwargs)` of a batch, where a proof is due."""
        named, marked = type(type(model).__name__, (_Call,), {}), _marked(given, origin)
        self.prove(named(model), origin.step, {"given": marked, "x": {
            key: value for value, key, name, one in origin.own if (name, one) == ("x", None)},
            "ones": _Own(origin.ones), "numbers of the script": [
                torch.tensor(x, dtype=torch.float64) for x in tree_flatten(marked)[0]
                if isinstance(x, int | float)]}, outputs)


class _Call(nn.Module):
    """A model on a batch; `run` is how, merged or by itself."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, run: Run, inputs: Mapping[str, Any]) -> Any:
        return run(self.model.eval(), *inputs["given"])


class _Own:
    """Stands for what a batch has, among arguments. `one` is the number of the graph of one type
    that was made of the batch and has it, None for the batch itself."""

    def __init__(self, value: Any, key: Any = None, name: str = "", one: int | None = None) -> None:
        self.value, self.key, self.name, self.one = value, key, name, one

    def of(self, batch: Batch, ones: Sequence[Any]) -> Any:
        """What another batch has in its place; of the seeds' what this one has."""
        store = batch[self.key] if self.one is None else ones[self.one]
        if self.name in store:
            return store[self.name]
        if self.one is not None or (isinstance(self.key, tuple) and self.name not in _OF_LINKS):
            of = " ".join(self.key or ["all edges"])
            raise NotProvedError(f"the model is given {self.name} of '{of}', which one worker has "
                                 "for the others")
        return self.value


def _marked(value: Any, origin: Origin, key: Any = None) -> Any:
    """Arguments with an :class:`_Own` for all that is the batch's."""
    if isinstance(value, dict):
        return {k: _marked(x, origin, k) for k, x in value.items()}
    hops, many = origin.hops, type(value) in (list, tuple)
    if isinstance(value, RelationEdges):
        of = [hops.edges[value.relation]] if value.relation else hops.edges.values()
        whole = value.size(1) == sum(len(edges.T) for edges in of)
        return _Own(value, value.relation and tuple(value.relation),
                    "edge_index" if whole else "a part of edge_index",
                    None if value.relation else len(origin.ones) - 1)
    for there, at, name, one in origin.own:
        # Numbers of hops are in another list where a batch was moved to a device.
        if there is value if isinstance(there, Tensor) else (
                many and key == at and [*value] == there):
            return _Own(value, at, name, one)
    for ntype, share in hops.seeds.items():
        if type(value) is int and value == share.own:
            return _Own(value, ntype, "batch_size")
    return type(value)(_marked(x, origin, key) for x in value) if many else value


class HopSetting(TrainingSetting):
    """Both ways of a call on the hops of a batch.

    Attributes
    ----------
    hops : the graph of the blocks that were asked for last, which both ways are of.
    """

    hops: Hops

    def whole(self) -> MiniBatch:
        return self._blocks(self.batch.mini_batch())

    def sample(self, most: int) -> MiniBatch:
        if isinstance(self.batch.step, LinkStep):  # links are told by the places of these seeds
            return self.whole()
        sampled: Any = super().sample(most)
        if not hasattr(sampled, "hops"):  # the whole batch
            return sampled
        mini: Any = self.batch.mini_batch()
        return self._blocks(replace(sampled, hops=sampled.hops.as_of(mini.hops.moments)))

    def known(self, value: Any) -> bool:
        return isinstance(value, MiniBatch | _Own)

    def _blocks(self, batch: Any) -> MiniBatch:
        """The hops as blocks, whose ids are pairs of a hop and a node, for seeds of all workers."""
        self.hops = hops = batch.hops
        ids: dict[str, np.ndarray] = {}
        for ntype, nodes in hops.nodes.items():
            counts = hops.num_nodes[ntype]
            ids[ntype] = nodes + _HOP * np.repeat(np.arange(len(counts)), counts)
            if len(np.unique(nodes[:counts[0]])) < counts[0]:
                # Ends of links of several workers: each has a row, which its place tells apart.
                places = hops.seeds[ntype].local(torch.arange(counts[0]))
                ids[ntype][:counts[0]] = places.numpy()
        depth = len(next(iter(hops.num_nodes.values()))) - 1
        blocks = [self._block(hops, depth - hop, hop) for hop in reversed(range(depth))]
        return MiniBatch(blocks, ids, batch.seeds)

    def _block(self, hops: Hops, layer: int, hop: int) -> Block:
        above, below = ({t: sum(of[:count]) for t, of in hops.num_nodes.items()}
                        for count in (hop + 1, hop + 2))
        edges = []
        for place, (relation, every) in enumerate(hops.edges.items()):
            source, row = every.split(hops.num_edges[relation], 1)[hop].cpu()
            ends = torch.bincount(row, minlength=above[relation.dst]).cumsum(0)
            edges.append(RelationBlock(relation, 0, torch.cat([ends.new_zeros(1), ends]), source,
                                       place))
        return Block(layer, below, above, edges, hops.seeds, False, {}, {})

    def ours(self, batch: MiniBatch) -> Any:
        hops, exchange = replace(self.hops), self.exchange
        uneven = any(len(np.unique(hops.nodes[t][:share.total])) < share.total
                     for t, share in hops.seeds.items())

        def run(model: nn.Module, args: Any, kwargs: Any) -> Any:
            if uneven and any(isinstance(m, HANConv | HeteroBatchNorm) for m in model.modules()):
                raise NotProvedError("averages over nodes are of each once, and two workers have a "
                                     "node for a seed")
            return Merging(model, self.group, exchange)(hops, args, kwargs)

        return lambda given: _instead(hops, given, run, hops.seeds, Origin(hops))

    def plain(self, layers: Sequence[Any], ids: Sequence[Mapping[str, np.ndarray]]) -> Any:
        hops = self.hops
        plain = Hops({}, moments=hops.moments, row_times=hops.row_times)
        for ntype, pairs in ids[0].items():
            seeds = hops.num_nodes[ntype][0]
            plain.nodes[ntype] = np.concatenate([hops.nodes[ntype][:seeds], pairs[seeds:] % _HOP])
            below = np.bincount(pairs[seeds:] // _HOP, minlength=len(layers) + 1)
            plain.num_nodes[ntype] = [seeds, *below[1:].tolist()]
        for place, relation in enumerate(hops.edges):
            csc = [layer[place] for layer in reversed(layers)]
            plain.num_edges[relation] = [len(indices) for _, indices in csc]
            plain.edges[relation] = torch.from_numpy(np.concatenate([np.stack([
                indices, np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))])
                for indptr, indices in csc], 1)).to(self.part.device)
        return lambda given: _instead(
            plain, given, lambda model, args, kwargs: model(*args, **kwargs), hops.seeds)


def _instead(hops: Hops, given: Any, run: Run, seeds: Mapping[str, Any],
             origin: Origin | None = None) -> Callable[[Any], Any]:
    """What replaces marks among arguments, by those of the graph's own batch."""
    inputs = given["args"][1]
    batch = Batch.of(hops, inputs["x"], origin)
    for ntype, share in seeds.items():
        batch[ntype].batch_size = share.own
    ones = [batch.to_homogeneous(*args, **kwargs) for args, kwargs in inputs.pop("ones").value]
    rows = [sum(of) for of in hops.num_nodes.values()]

    def by_type(output: Any) -> Any:
        """The rows of one graph, where a type stands after the other."""
        whole = ones and isinstance(output, Tensor) and output.dim() and len(output) == sum(rows)
        return dict(zip(hops.num_nodes, output.split(rows))) if whole else output

    def typed(model: nn.Module, args: Any, kwargs: Any) -> Any:
        return tree_map(by_type, run(model, args, kwargs))

    return lambda item: typed if isinstance(item, MiniBatch) else (
        item.of(batch, ones) if isinstance(item, _Own) else item)
