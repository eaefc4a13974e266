"""The proof of PyG models (`run.prove`): a call once more, on the edges that one worker would have.

What a row below the seeds is computed from follows from its node and its hop alone
(:mod:`dgl_heta_pyg.hops`). So the batch of one worker is those of the group's workers beside each
other, with the seeds in common. The model is run on it as it was given, without dropout; outputs of
own seeds and gradients must be those of the merged model.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from dgl_heta import HetaError, Partition
from dgl_heta.tools import Comm, Place, Proofs
from dgl_heta_pyg.hops import Hops
from dgl_heta_pyg.relation_edges import RelationEdges

_CAUSE = "proof"
Call = Callable[[Any, Any], Any]


class HopProof(Proofs):
    """Proves steps of a model on several workers; all make it and call it alike.

    Parameters
    ----------
    module : the model before anything of it is merged; a copy is kept.
    """

    def __init__(self, part: Partition, module: nn.Module) -> None:
        super().__init__(part, None)
        self._plain, self._group = copy.deepcopy(module), part.group

    def due(self, place: Place | None) -> bool:
        """Return whether to prove a step: the first call in any case."""
        first = not self._schedule.off and not self.proved and not self.told
        return first or super().due(place)

    def prove(self, module: nn.Module, merged: Call, hops: Hops, given: Any) -> None:
        """Compare a call of the merged model, `(args, kwargs)`, with one of the plain model.

        Raises
        ------
        HetaError
            They differ: on all workers.
        """
        started, name = time.perf_counter(), type(module).__name__
        graph, given = _Joined(self._group, hops), _copied(given)
        with _evaluating(module), torch.enable_grad():
            ours = _Result(module, hops, lambda: merged(*_copied(given)))
            state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            plain_args, plain_kwargs = graph.joined(given)
            self._plain.eval()
            plain = _Result(module, hops, lambda: torch.func.functional_call(
                self._plain, state, plain_args, plain_kwargs))
            differs = self._differs(module, ours, plain)
            if differs and self._any(ours.differs(_Result(
                    module, hops, lambda: merged(*_copied(given))))):
                differs, self.told = "", f"{name} returns other rows each time, in evaluation, too"
        self.seconds += time.perf_counter() - started
        if differs:
            raise HetaError(
                f"{name} does not compute on several workers what it computes on one: {differs}. "
                "Usual causes: nodes of a batch that are taken together (a mean, a softmax or a "
                "normalisation over rows), of which no worker has all; edges that are read outside "
                "of a convolution. Compute each row from its own edges, or use one worker (--parts "
                "1); run.prove=off trains without the proof")
        self.proved += not self.told

    def _differs(self, module: nn.Module, ours: _Result, plain: _Result) -> str:
        """What differs; the same on all workers."""
        found = ours.differs(plain)
        if not found and ours.grads is not None and plain.grads is not None:
            sums = self._group.all_reduce(torch.stack([ours.grads, plain.grads]), "sum", _CAUSE)
            names = [(key, p.numel()) for key, p in module.named_parameters() if p.requires_grad]
            most = float(sums[1].abs().max()) if sums.numel() else 0.0
            for (key, _), (one, other) in zip(names, zip(*(
                    each.split([n for _, n in names]) for each in sums))):
                if _apart(one, other, ours.exact, 1e-3 * most):
                    found = found or f"the gradient of '{key}' differs"
        said = [text for text in self._group.all_gather_json(found, _CAUSE) if text]
        return said[0] if said else ""

    def _any(self, found: str) -> bool:
        return any(self._group.all_gather_json(bool(found), _CAUSE))


class _Result:
    """What a model returns for the own seeds, and the gradients of numbers that follow from it."""

    def __init__(self, module: nn.Module, hops: Hops, call: Callable[[], Any]) -> None:
        self.rows = {key: rows[:hops.seeds[t].own] for key, t, rows in _rows_of(call(), hops)}
        parameters = [p for p in module.parameters() if p.requires_grad]
        self.exact = all(rows.dtype == torch.float64 for rows in self.rows.values())
        loss = sum(((rows.double() * _weights(rows)).sum() for rows in self.rows.values()),
                   torch.zeros((), dtype=torch.float64))
        self.grads = None
        if parameters and isinstance(loss, Tensor) and loss.requires_grad:
            grads = torch.autograd.grad(loss, parameters, allow_unused=True)
            self.grads = torch.cat([(torch.zeros_like(p) if g is None else g).double().flatten()
                                    for p, g in zip(parameters, grads)]).cpu()

    def differs(self, other: _Result) -> str:
        for key, rows in self.rows.items():
            there = other.rows.get(key)
            if there is None or there.shape != rows.shape or _apart(rows, there, self.exact):
                return f"output {key} of own seeds differs" if key else "its output differs"
        return ""


class _Joined:
    """The graphs of a group's workers as one, hop by hop; seeds are in this worker's order.

    Attributes
    ----------
    to : node type → of each worker, the rows here of its rows.
    """

    def __init__(self, group: Comm, hops: Hops) -> None:
        self._group, self._hops = group, hops
        # All list the schema's types and relations, in its order.
        nodes, edges = ([*zip(*of)] for of in zip(*group.all_gather_json(
            [[*hops.num_nodes.values()], [*hops.num_edges.values()]], _CAUSE)))
        self._nodes = dict(zip(hops.num_nodes, nodes))
        self._edges = {tuple(r): of for r, of in zip(hops.num_edges, edges)}
        self.to = {t: self._rows(t) for t in hops.num_nodes}

    def _rows(self, ntype: str) -> list[Tensor]:
        counts, share = self._nodes[ntype], self._hops.seeds.get(ntype)
        rows, first = [], counts[0][0]
        for rank in range(len(counts)):
            seeds = torch.arange(first)
            if share is not None:  # from that worker's order to this one's
                here = share.canonical(seeds)
                seeds = replace(share, rank=rank).local(here)
            rows.append([seeds])
        for hop in range(1, len(counts[0])):
            for rank, of in enumerate(counts):
                rows[rank].append(torch.arange(first, first + of[hop]))
                first += of[hop]
        return [torch.cat(of) for of in rows]

    def joined(self, value: Any, key: Any = None) -> Any:
        """Arguments for the one graph in place of those for this worker's."""
        hops = self._hops
        if isinstance(value, RelationEdges):
            return self._edge_rows(tuple(value.relation), value.open().T, ends=True).T
        if type(value) in (list, tuple) and value and all(type(x) is int for x in value):
            counts = self._nodes.get(key) if isinstance(key, str) else self._edges.get(key)
            return value if counts is None else [sum(of) for of in zip(*counts)]
        if type(value) in (list, tuple):
            return type(value)(self.joined(x, key) for x in value)
        if isinstance(value, dict):
            return {k: self.joined(x, tuple(k) if isinstance(k, tuple) else k)
                    for k, x in value.items()}
        if not isinstance(value, Tensor) or not value.dim():
            return value
        if key in self._edges:
            return self._edge_rows(key, value)
        if key not in self._nodes:  # an argument by itself: the rows of the type that has as many
            fits = [t for t, nodes in hops.nodes.items() if len(nodes) == len(value)]
            key = fits[0] if len(fits) == 1 else None
        return value if key is None else self._node_rows(key, value)

    def _node_rows(self, ntype: str, rows: Tensor) -> Tensor:
        pieces = self._gathered(rows)
        out = rows.new_zeros((sum(sum(of) for of in self._nodes[ntype]) - (
            len(pieces) - 1) * self._nodes[ntype][0][0], *rows.shape[1:]))
        for to, piece in zip(self.to[ntype], pieces):
            if len(piece) == len(to):
                out[to.to(out.device)] = piece
        return out

    def _edge_rows(self, relation: Any, rows: Tensor, ends: bool = False) -> Tensor:
        pieces, counts = self._gathered(rows), self._edges[relation]
        if ends:
            src, dst = self.to[relation[0]], self.to[relation[2]]
            pieces = [torch.stack([src[rank].to(e.device)[e[:, 0]],
                                   dst[rank].to(e.device)[e[:, 1]]], 1)
                      for rank, e in enumerate(pieces)]
        hops = [piece.split(of) if len(piece) else () for piece, of in zip(pieces, counts)]
        return torch.cat([of[hop] for hop in range(len(counts[0])) for of in hops if of]
                         or [rows[:0]])

    def _gathered(self, rows: Tensor) -> list[Tensor]:
        sizes = self._group.all_gather_json(len(rows), _CAUSE)
        flat = rows.reshape(len(rows), -1) if len(rows) else rows.new_zeros(
            (0, rows[:0].numel() or max(1, int(torch.tensor(rows.shape[1:]).prod()))))
        every = self._group.all_gather_rows(flat.contiguous(), sizes, _CAUSE)
        return [piece.reshape(-1, *rows.shape[1:]) for piece in every.split(sizes)]


def _rows_of(value: Any, hops: Hops, key: str = "", ntype: str | None = None
             ) -> Iterator[tuple[str, str, Tensor]]:
    """The rows of target types in what a model returns: a name, the type, the rows."""
    seeds = [t for t, share in hops.seeds.items() if share.total]
    ntype = ntype or (seeds[0] if len(seeds) == 1 else None)
    if isinstance(value, Tensor):
        if ntype and value.dim() and value.is_floating_point() and (
                len(value) >= hops.seeds[ntype].own):
            yield key, ntype, value
    elif isinstance(value, Mapping):
        for name, x in value.items():
            if name in seeds or name not in hops.nodes:
                yield from _rows_of(x, hops, f"{key}['{name}']", name if name in seeds else ntype)
    elif isinstance(value, list | tuple):
        for place, x in enumerate(value):
            yield from _rows_of(x, hops, f"{key}[{place}]", ntype)


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
    if isinstance(value, RelationEdges):
        return value
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    return {key: _copied(x) for key, x in value.items()} if isinstance(value, dict) else value


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode
