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
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from dgl_heta import HetaError, Partition
from dgl_heta.tools import Comm, NotProvedError, Place, Proofs, items_of
from dgl_heta_pyg.hops import Hops
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
        graph, given = _Joined(group, hops), _copied(given)
        found = _leaves(merged(*_copied(given)))
        kinds = _agreed(group, found, hops)
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


def _agreed(group: Comm, leaves: Mapping[str, Leaf], hops: Hops) -> dict[str, str]:
    """Output → the type of seeds whose rows it has on all workers, for those of which that is
    sure."""
    fits = {key: [named] if named in hops.nodes else [
        t for t, nodes in hops.nodes.items() if len(x) == len(nodes)
        or (t in hops.seeds and len(x) in (hops.seeds[t].own, hops.seeds[t].total))]
        for key, (named, x) in leaves.items()}
    every = group.all_gather_json(fits, _CAUSE)
    sure = {key: set.intersection(*(set(of.get(key, ())) for of in every)) for key in every[0]}
    return {key: t for key, (t,) in ((k, v) for k, v in sure.items() if len(v) == 1)
            if t in hops.seeds and hops.seeds[t].total}


def _leaves(value: Any) -> dict[str, Leaf]:
    """The rows in what a model returns, by their places, with the last name on the way."""
    return {"".join(f"[{key!r}]" for key in path): (
                next((key for key in reversed(path) if isinstance(key, str)), ""), x)
            for path, x in items_of(Tensor, value) if x.dim() and x.is_floating_point()}


class _Joined:
    """The graphs of a group's workers as one, hop by hop; seeds are in this worker's order.

    Attributes
    ----------
    at : node type → of each worker, where its rows are in an order that all have.
    order : node type → where the rows of that order are here.
    """

    def __init__(self, group: Comm, hops: Hops) -> None:
        self._group, self._hops = group, hops
        self._totals = [sum(map(sum, of.values())) for of in (hops.num_nodes, hops.num_edges)]
        self._nodes: dict[str, list[int]] = {}
        self.at, self.order, owned = {}, {}, {}
        for ntype, nodes in hops.nodes.items():
            self.at[ntype], self.order[ntype], owned[ntype] = self._rows(
                ntype, torch.from_numpy(nodes))
        self._kept, self._edges = {}, {}
        for relation, edges in hops.edges.items():
            kept = owned[relation.dst][edges[1].cpu()]
            of_hops = kept.split(hops.num_edges[relation])
            self._kept[tuple(relation)] = kept
            self._edges[tuple(relation)] = group.all_gather_json(
                [int(mask.sum()) for mask in of_hops], _CAUSE)

    def _rows(self, ntype: str, nodes: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
        """`at` and `order` of a type, and the rows whose in-edges this worker gives."""
        counts = self._group.all_gather_json(self._hops.num_nodes[ntype], _CAUSE)
        share, seeds = self._hops.seeds.get(ntype), counts[0][0]
        if share is not None:  # several workers can have a node for a seed, each a row of its own
            nodes = torch.cat([share.local(torch.arange(seeds)), nodes[seeds:]])
        every = self._group.all_gather_rows(nodes, [sum(of) for of in counts], _CAUSE)
        hop = torch.cat([torch.repeat_interleave(torch.arange(len(of)), torch.tensor(of))
                         for of in counts])
        keys = hop * (int(every.max()) + 1 if len(every) else 1) + every
        unique, at = torch.unique(keys, return_inverse=True)
        worker = torch.repeat_interleave(torch.arange(len(counts)),
                                         torch.tensor([sum(of) for of in counts]))
        first = torch.full((len(unique),), len(counts)).scatter_reduce(0, at, worker, "amin")
        own = at[worker == self._group.rank]
        # In-edges of a seed by a relation are on one worker; rows below have all of theirs.
        gives = (first[own] == self._group.rank) | (hop[worker == self._group.rank] == 0)
        order = torch.arange(len(unique))
        order[own[:seeds]] = torch.arange(seeds)
        of_unique = torch.empty_like(unique)
        of_unique[at] = hop
        self._nodes[ntype] = torch.bincount(of_unique, minlength=len(counts[0])).tolist()
        return list(at.split([sum(of) for of in counts])), order, gives

    def joined(self, value: Any, key: Any = None) -> Any:
        """Arguments for the one graph in place of those for this worker's."""
        if isinstance(value, RelationEdges):
            return (self._all_ends(value.open()) if value.relation is None else
                    self._ends(tuple(value.relation), value.open()))
        if type(value) in (list, tuple) and value and all(type(x) is int for x in value):
            if isinstance(key, str):
                return self._nodes.get(key, value)
            every = self._edges.get(key)
            return value if every is None else [sum(of) for of in zip(*every)]
        if type(value) in (list, tuple):
            return type(value)(self.joined(x, key) for x in value)
        if isinstance(value, dict):
            return {k: self.joined(x, tuple(k) if isinstance(k, tuple) else k)
                    for k, x in value.items()}
        if not isinstance(value, Tensor) or not value.dim():
            return value
        if key in self._edges:
            fits = self._everywhere(len(value) == len(self._kept[key]))
            return self._of_edges(key, value) if fits else value
        if key in self.at:  # of a type that this worker does not read it has no rows
            fits = self._everywhere(len(value) in (0, len(self.at[key][self._group.rank])))
            return self._of_nodes(key, value) if fits else value
        return self._by_length(value)

    def _everywhere(self, here: bool) -> bool:
        return all(self._group.all_gather_json(here, _CAUSE))

    def _by_length(self, value: Tensor) -> Tensor:
        # An argument by itself is known by its length: rows or edges of one graph, where a type
        # stands after the other, or the rows of a type.
        sizes: dict[str, int] = {t: len(ids) for t, ids in self._hops.nodes.items()}
        if len(sizes) > 1:
            sizes["all nodes"] = self._totals[0]
        if len(self._edges) > 1:
            sizes["all edges"] = self._totals[1]
        fits = [kind for kind, size in sizes.items() if size == len(value)]
        kind, *others = sorted(set.intersection(*map(set, self._group.all_gather_json(
            fits, _CAUSE)))) or [None]
        if others:
            raise NotProvedError(f"an argument of {len(value)} rows may be of {kind} or "
                                  f"{others[0]}")
        if kind is None:
            return value
        if kind == "all nodes":
            return torch.cat([self._of_nodes(t, x) for t, x in zip(
                self.at, value.split([sum(n) for n in self._hops.num_nodes.values()]))])
        if kind == "all edges":
            return torch.cat([self._of_edges(r, x) for r, x in zip(
                self._edges, value.split([sum(n) for n in self._hops.num_edges.values()]))])
        return self._of_nodes(kind, value)

    def _of_nodes(self, ntype: str, rows: Tensor) -> Tensor:
        out = rows.new_zeros((sum(self._nodes[ntype]), *rows.shape[1:]))
        for at, piece in zip(self.at[ntype], self._gathered(rows)):
            if len(piece) == len(at):
                out[self.order[ntype][at].to(out.device)] = piece
        return out

    def _of_edges(self, relation: Any, rows: Tensor, kept: bool = False) -> Tensor:
        counts = self._edges[relation]
        pieces = self._gathered(rows if kept else rows[self._kept[relation].to(rows.device)])
        hops = [piece.split(of) for piece, of in zip(pieces, counts)]
        return torch.cat([of[hop] for hop in range(len(counts[0])) for of in hops])

    def _ends(self, relation: Any, edges: Tensor) -> Tensor:
        edges, rank = edges[:, self._kept[relation].to(edges.device)], self._group.rank
        types = relation[0], relation[2]
        there = torch.stack([self.at[t][rank].to(edges.device)[ends]
                             for t, ends in zip(types, edges)], 1)
        ours = self._of_edges(relation, there, kept=True).T
        return torch.stack([self.order[t].to(ours.device)[ends] for t, ends in zip(types, ours)])

    def _all_ends(self, edges: Tensor) -> Tensor:
        """The ends in one graph, where node types and relations stand one after the other."""
        here, there, out = 0, 0, []
        first: dict[str, tuple[int, int]] = {}
        for ntype, counts in self._hops.num_nodes.items():
            first[ntype] = here, there
            here, there = here + sum(counts), there + sum(self._nodes[ntype])
        for relation, piece in zip(self._edges, edges.split(
                [sum(n) for n in self._hops.num_edges.values()], 1)):
            ends = [first[relation[0]], first[relation[2]]]
            own, one = (torch.tensor(x, device=edges.device)[:, None] for x in zip(*ends))
            out.append(self._ends(relation, piece - own) + one)
        return torch.cat(out, 1)

    def _gathered(self, rows: Tensor) -> list[Tensor]:
        sizes = self._group.all_gather_json(len(rows), _CAUSE)
        flat = rows.reshape(len(rows), math.prod(rows.shape[1:])).contiguous()
        every = self._group.all_gather_rows(flat, sizes, _CAUSE)
        return [piece.reshape(-1, *rows.shape[1:]) for piece in every.split(sizes)]


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
