"""The proof of PyG models (`run.prove`): a call once more, on the edges that one worker would have.

What a row below the seeds is computed from follows from its node and its hop alone
(:mod:`dgl_heta_pyg.hops`). So the batch of one worker is those of the group's workers beside each
other, with the seeds in common. The model is run on it as it was given, without dropout; outputs of
own seeds and gradients must be those of the merged model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from dgl_heta import HetaError, Partition
from dgl_heta.tools import Comm, NotProvedError, Place, Proofs, items_of
from dgl_heta_pyg.hops import Hops, Joint
from dgl_heta_pyg.relation_edges import RelationEdges

_CAUSE = "proof"
Call = Callable[[Any, Any], Any]
Leaf = tuple[str, Tensor]


class HopProof(Proofs):
    """Proves steps of a model on several workers; all make it and call it alike."""

    def __init__(self, part: Partition) -> None:
        super().__init__(part, None)
        self._group = part.group

    def due(self, place: Place | None) -> bool:
        """Return whether to prove a step: the first call in any case."""
        first = not self._schedule.off and not self.proved and not self.told
        return first or super().due(place)

    def prove(self, module: nn.Module, merged: Call, hops: Hops, given: Any) -> None:
        """Compare a call of the merged model, `(args, kwargs)`, with one of the model by itself.

        Raises
        ------
        HetaError
            They differ: on all workers.
        """
        with evaluating(module), torch.enable_grad():
            differs = self.compared(partial(self._compared, module, merged, hops, given),
                                    time.perf_counter())
        if differs:
            raise HetaError(
                f"{type(module).__name__} does not compute on several workers what it computes on "
                f"one: {differs}. Usual causes: nodes of a batch that are taken together (a mean, "
                "a softmax or a normalisation over rows), of which no worker has all; edges that "
                "are read outside of a convolution. Compute each row from its own edges, or use "
                "one worker (--parts 1); run.prove=off trains without the proof")

    def _compared(self, module: nn.Module, merged: Call, hops: Hops, given: Any) -> str:
        """What differs, "" if nothing does; the same on all workers."""
        group, name = self._group, type(module).__name__
        graph, given = _Graph(group, hops), _copied(given)
        found = _leaves(merged(*_copied(given)))
        kinds = _seeds(group, found, hops)
        if not kinds:
            raise NotProvedError(f"{name} returns no rows of seeds")
        ours = _Result(group, module, found, kinds, hops)
        args, kwargs = graph.joined(given)
        # Outside of a merged model its modules compute what they did before.
        try:
            plain, text = _leaves(module(*args, **kwargs)), ""
            if any(key not in plain or len(plain[key][1]) < hops.seeds[t].own
                   for key, t in kinds.items()):
                text = "it returns something else by itself"
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        if texts := [one for one in group.all_gather_json(text, _CAUSE) if one]:
            raise NotProvedError(f"{name} does not run on the edges of all workers ({texts[0]})")
        differs = self._differs(module, ours, _Result(group, module, plain, kinds, hops))
        if differs:
            again = _Result(group, module, _leaves(merged(*_copied(given))), kinds, hops)
            if any(group.all_gather_json(bool(ours.differs(again)), _CAUSE)):
                raise NotProvedError(f"{name} returns other rows each time, in evaluation, too")
        return differs

    def _differs(self, module: nn.Module, ours: _Result, plain: _Result) -> str:
        found = ours.differs(plain)
        if ours.grads is not None and plain.grads is not None:  # on all workers, or on none
            sums = self._group.all_reduce(torch.stack([ours.grads, plain.grads]), "sum", _CAUSE)
            names = [(key, p.numel()) for key, p in module.named_parameters() if p.requires_grad]
            most = float(sums[1].abs().max()) if sums.numel() else 0.0
            for (key, _), (one, other) in zip(names, zip(*(
                    each.split([n for _, n in names]) for each in sums))):
                if _apart(one, other, ours.exact, 1e-3 * most):
                    found = found or f"the gradient of '{key}' differs"
        said = [text for text in self._group.all_gather_json(found, _CAUSE) if text]
        return said[0] if said else ""


class _Result:
    """What a model returns for the own seeds, and the gradients of numbers that follow from it."""

    def __init__(self, group: Comm, module: nn.Module, leaves: Mapping[str, Leaf],
                 kinds: Mapping[str, str], hops: Hops) -> None:
        self.rows = {key: leaves[key][1][:hops.seeds[t].own] for key, t in kinds.items()}
        self.exact = all(rows.dtype == torch.float64 for rows in self.rows.values())
        # Of all outputs, so that a backward pass comes to the same exchanges on all workers.
        loss = sum([(rows.double() * _weights(rows)).sum() for rows in self.rows.values()]
                   + [0 * x.double().nan_to_num(0, 0, 0).sum() for _, x in leaves.values()])
        parameters = [p for p in module.parameters() if p.requires_grad]
        self.grads = None
        if all(group.all_gather_json(bool(
                parameters and isinstance(loss, Tensor) and loss.requires_grad), _CAUSE)):
            assert isinstance(loss, Tensor)
            grads = torch.autograd.grad(loss, parameters, allow_unused=True)
            self.grads = torch.cat([(torch.zeros_like(p) if g is None else g).double().flatten()
                                    for p, g in zip(parameters, grads)]).cpu()

    def differs(self, other: _Result) -> str:
        for key, rows in self.rows.items():
            there = other.rows[key]
            if there.shape != rows.shape or _apart(rows, there, self.exact):
                return f"output {key} of own seeds differs" if key else "its output differs"
        return ""


def _agreed(group: Comm, found: Mapping[Any, list[Any]]) -> dict[Any, list[Any]]:
    """What each thing can be on all workers, from what it can be here."""
    every = [dict(enumerate(of)) for of in group.all_gather_json([*found.values()], _CAUSE)]
    return {key: [x for x in here if all(x in of.get(i, ()) for of in every)]
            for i, (key, here) in enumerate(found.items())}


def _seeds(group: Comm, leaves: Mapping[str, Leaf], hops: Hops) -> dict[str, str]:
    """Output → the type of seeds whose rows it has, for those of which that is sure."""
    fits = {key: [named] if named in hops.nodes else [
        t for t, nodes in hops.nodes.items() if len(x) == len(nodes)
        or (t in hops.seeds and len(x) in (hops.seeds[t].own, hops.seeds[t].total))]
        for key, (named, x) in leaves.items()}
    return {key: of[0] for key, of in _agreed(group, fits).items()
            if len(of) == 1 and of[0] in hops.seeds and hops.seeds[of[0]].total}


def _leaves(value: Any) -> dict[str, Leaf]:
    """The rows in what a model returns, by their places, with the last name on the way."""
    return {"".join(f"[{key!r}]" for key in path): (
                next((key for key in reversed(path) if isinstance(key, str)), ""), x)
            for path, x in items_of(Tensor, value) if x.dim() and x.is_floating_point()}


class _Graph:
    """The graph of one worker in place of the group's: :class:`Joint` rows, relation by relation
    the edges into them, hop by hop."""

    def __init__(self, group: Comm, hops: Hops) -> None:
        self._group, self._hops, self._rows = group, hops, Joint(group, hops, _CAUSE)
        self._lengths = {t: len(ids) for t, ids in hops.nodes.items()}
        self._of_type = self._rows.counts.reshape(len(hops.nodes), -1)
        ends = np.cumsum([0, *self._of_type.sum(1)])
        self._ranges = {t: range(*bounds) for t, bounds in zip(hops.nodes, pairwise(ends))}
        gives = dict(zip(hops.nodes, self._rows.once.split([*self._lengths.values()])))
        for ntype, share in hops.seeds.items():
            # In-edges of a seed by a relation are on one worker; of seeds that two workers have in
            # common those of the first count. Rows below have all of theirs.
            ids = share.canonical(torch.from_numpy(hops.nodes[ntype][:share.total])).numpy()
            first = torch.zeros(share.total, dtype=torch.bool)
            first[np.unique(ids, return_index=True)[1]] = True
            gives[ntype] = torch.cat([share.local(first), gives[ntype][share.total:]])
        first_row = dict(zip(hops.nodes, np.cumsum([0, *self._lengths.values()])))
        self._kept = {tuple(r): gives[r.dst][edges[1].cpu()] for r, edges in hops.edges.items()}
        self._order, self._ends, self._of_relation = {}, {}, {}
        for relation, edges in hops.edges.items():
            counts = hops.num_edges[relation]
            hop = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
            ours = torch.stack([hop, *(int(first_row[t]) + ends.cpu() for t, ends in zip(
                (relation.src, relation.dst), edges))], 1)[self._kept[tuple(relation)]]
            every = torch.cat([torch.cat([table[:, :1], at[table[:, 1:]]], 1) for at, table in zip(
                self._rows.at, self._gathered(ours))])
            self._order[tuple(relation)] = torch.argsort(every[:, 0], stable=True)
            self._of_relation[tuple(relation)] = torch.bincount(
                every[:, 0], minlength=len(counts)).tolist()
            self._ends[tuple(relation)] = every[self._order[tuple(relation)], 1:].T

    def joined(self, given: Any) -> Any:
        """Arguments for this graph in place of those for this worker's."""
        sizes = {**self._lengths, **{r: len(mask) for r, mask in self._kept.items()}}
        alone = [*self._lengths, *[_NODES] * (len(self._lengths) > 1),
                 *[_EDGES] * (len(self._kept) > 1)]
        sizes.update({_NODES: sum(self._lengths.values()),
                      _EDGES: sum(map(len, self._kept.values()))})
        names = [*sizes]
        found: dict[tuple[Any, ...], list[int]] = {}

        def look(path: tuple[Any, ...], value: Any) -> Any:
            # An argument by itself is known by its length: rows of a type, or rows or edges of one
            # graph, where a type stands after the other.
            keys = [key for key in path if key in sizes][-1:] or alone
            if isinstance(value, Tensor) and value.dim() and not isinstance(value, RelationEdges):
                found[path] = [names.index(k) for k in keys if sizes[k] == len(value)]
            return value

        _mapped(look, given)
        kinds = _agreed(self._group, found)

        def whole(path: tuple[Any, ...], value: Any) -> Any:
            if isinstance(value, RelationEdges):
                return self._ends_of(value)
            if isinstance(value, list):  # numbers of each hop
                key = next((key for key in reversed(path) if key in sizes), None)
                return (self._of_relation[key] if key in self._of_relation else
                        self._of_type[names.index(key)].tolist() if key in self._lengths else value)
            fits = kinds.get(path, ())
            if len(fits) > 1:
                raise NotProvedError(f"an argument of {len(value)} rows may be of "
                                     f"{' or '.join(str(names[i]) for i in fits)}")
            return self._whole(names[fits[0]], value) if fits else value

        return _mapped(whole, given)

    def _whole(self, kind: Any, value: Tensor) -> Tensor:
        """Rows or edges of a kind, of this worker's, as those of this graph."""
        if kind in (_NODES, _EDGES):
            sizes = self._lengths if kind == _NODES else {r: len(k) for r, k in self._kept.items()}
            return torch.cat([self._whole(each, x) for each, x in zip(
                sizes, value.split([*sizes.values()]))])
        if kind in self._kept:
            pieces = self._gathered(value[self._kept[kind].to(value.device)])
            return torch.cat(pieces)[self._order[kind].to(value.device)]
        rows = self._ranges[kind]
        out = value.new_zeros((len(rows), *value.shape[1:]))
        for at, piece in zip(self._rows.at, self._gathered(value)):
            out[at[(at >= rows.start) & (at < rows.stop)] - rows.start] = piece
        return out

    def _ends_of(self, edges: RelationEdges) -> Tensor:
        relations = [*self._ends] if edges.relation is None else [tuple(edges.relation)]
        if edges.size(1) != sum(len(self._kept[r]) for r in relations):
            raise NotProvedError("edges are cut before the model is called")
        ends = torch.cat([self._ends[r] for r in relations], 1)
        if edges.relation is not None:
            src, dst = (self._ranges[t].start for t in (edges.relation.src, edges.relation.dst))
            ends = ends - torch.tensor([[src], [dst]])
        return ends.to(edges.device)

    def _gathered(self, rows: Tensor) -> list[Tensor]:
        sizes = self._group.all_gather_json(len(rows), _CAUSE)
        flat = rows.reshape(len(rows), math.prod(rows.shape[1:])).contiguous()
        every = self._group.all_gather_rows(flat, sizes, _CAUSE)
        return [piece.reshape(-1, *rows.shape[1:]) for piece in every.split(sizes)]


_NODES, _EDGES = "all nodes", "all edges"


def _mapped(function: Callable[[tuple[Any, ...], Any], Any], value: Any,
            path: tuple[Any, ...] = ()) -> Any:
    """Nested arguments with other leaves: tensors, lists of numbers and all else."""
    if isinstance(value, dict):
        return {k: _mapped(function, x, (*path, tuple(k) if isinstance(k, tuple) else k))
                for k, x in value.items()}
    if type(value) in (list, tuple) and not (value and all(type(x) is int for x in value)):
        return type(value)(_mapped(function, x, (*path, i)) for i, x in enumerate(value))
    return function(path, list(value) if type(value) in (list, tuple) else value)


def _weights(rows: Tensor) -> Tensor:
    """Other numbers for each row and column."""
    flat = torch.arange(rows.numel(), dtype=torch.float64, device=rows.device)
    return torch.cos(1.7 * flat).view(rows.shape)


def _apart(one: Tensor, other: Tensor, exact: bool, least: float = 1e-6) -> bool:
    """Whether numbers differ by more than rounding."""
    one, other = one.detach().double().nan_to_num(0), other.detach().double().nan_to_num(0)
    if not one.numel():
        return False
    size = max(float(other.abs().max()), least)
    return float((one - other).abs().max()) > (1e-8 if exact else 1e-3) * size


def _copied(value: Any) -> Any:
    """Arguments that a model may change."""
    return tree_map(lambda x: x.detach().clone() if isinstance(x, Tensor) and not isinstance(
        x, RelationEdges) else x, value)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluate in the body."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode
