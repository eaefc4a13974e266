"""Edges and rows of a group's batch, brought together by node id.

Every worker has the edges of its own relations, for the seeds of all. What a worker would have had
the plain way follows from the edges of all workers: from its own seeds down, by every relation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dgl_heta.comm.collectives import Comm
from dgl_heta.graph.schema import Relation
from dgl_heta.sampling.blocks import Block, MiniBatch
from dgl_heta.sampling.moments import KEYED

CAUSE = "proof"
Pairs = tuple[np.ndarray, np.ndarray]
"""Ids of destinations and sources of edges, (E,) int64 each; in-edges of a node in their order."""
Ids = dict[str, np.ndarray]
_NONE = np.empty(0, np.int64)
_ROUNDING = 1e-2
"""Rows shorter than this, relative to the mean, may be what rounding left of longer ones."""


def gather_arrays(comm: Comm, arrays: Sequence[Tensor]) -> list[list[Tensor]]:
    """Arrays with any number of rows: those of every worker, for each of `arrays`.

    All have the same dtype and width on all workers.
    """
    counts = comm.all_gather_rows(torch.tensor([[len(a) for a in arrays]]).view(1, -1),
                                  [1] * comm.size, CAUSE)
    every = comm.all_gather_rows(torch.cat(list(arrays)), counts.sum(1).tolist(), CAUSE)
    pieces = every.split(counts.flatten().tolist())
    return [list(pieces[i::len(arrays)]) for i in range(len(arrays))]


def levels(batch: MiniBatch, types: Sequence[str]) -> list[Ids]:
    """Node ids of the rows between the layers: of the inputs, of each layer's destinations, and at
    the end of the own seeds. Each is the beginning of the one before, but where seeds have times:
    then they are :func:`row_keys`, and those of the inputs are nodes, some in several rows."""
    ids = row_keys(batch)
    inputs = batch.input_nodes if batch.places is None else {
        t: batch.input_nodes[t][places] for t, places in batch.places.items()}
    sources = [{t: of.get(t, _NONE)[:block.num_src.get(t, 0)] for t in types}
               for block, of in zip(batch.blocks, [inputs, *[ids] * len(batch.blocks)])]
    last = batch.blocks[-1]
    return [*sources, {t: ids.get(t, _NONE)[:last.wanted(t) if t in last.num_dst else 0]
                     for t in types}]


def row_keys(batch: MiniBatch) -> Ids:
    """Ids of the rows that are destinations, the first ones: of nodes, or of nodes at times."""
    return batch.input_nodes if batch.moments is None else {
        t: batch.moments.keys(t, pairs) for t, pairs in batch.pairs.items()}


def fewer_seeds(batch: MiniBatch, most: int) -> list[Ids] | None:
    """Per worker of the group the first `most` of its seeds; None if none has more."""
    shares = batch.blocks[-1].seeds
    if all(size <= most for share in shares.values() for size in share.sizes):
        return None
    every = {t: share.canonical(torch.from_numpy(batch.seeds[t])).split(list(share.sizes))
             for t, share in shares.items()}
    return [{t: ids[:most].numpy() for t, ids in zip(every, of_worker)}
            for of_worker in zip(*every.values())]


def edges_of(block: Block, ids: Ids, keys: Ids, relations: Sequence[Relation]) -> list[Pairs]:
    """Per relation the edges of a block; `ids` are those of its source side, `keys` of its
    destinations (:func:`row_keys`)."""
    pairs_of: list[list[Pairs]] = [[] for _ in relations]
    rows_of: list[list[np.ndarray]] = [[] for _ in relations]
    ends = {t: _destinations(block, keys, t) for t in {e.relation.dst for e in block.edges}}
    several = {t for t, here in ends.items() if len(np.unique(here)) < len(here)}
    for edges in block.edges:
        rows = edges.rows_at(edges.in_edges.rows()).cpu().numpy()
        sources = ids[edges.relation.src][edges.indices.cpu().numpy()]
        pairs_of[edges.place].append((ends[edges.relation.dst][rows], sources))
        if edges.relation.dst in several:
            rows_of[edges.place].append(rows)
    for i, pieces in enumerate(rows_of):
        if pieces:
            pairs_of[i] = [_once(np.concatenate(pieces), pairs_of[i])]
    return [(np.concatenate([d for d, _ in pairs]), np.concatenate([s for _, s in pairs]))
            if pairs else (_NONE, _NONE) for pairs in pairs_of]


def _destinations(block: Block, ids: Ids, ntype: str) -> np.ndarray:
    """Ids of the destination rows of a type, those of other workers among them."""
    if ntype not in block.remote:
        return ids[ntype][:block.num_dst.get(ntype, 0)]
    return np.concatenate([ids[ntype][:block.num_own(ntype)], block.remote[ntype].ids])


def _once(rows: np.ndarray, pieces: Sequence[Pairs]) -> Pairs:
    """Edges of a relation without those of nodes that have an earlier row, too: rows of other
    workers can be this worker's own, and two can have one end of links for a seed."""
    dst, src = (np.concatenate(ends) for ends in zip(*pieces))
    _, inverse = np.unique(dst, return_inverse=True)
    first = np.full(inverse.max(initial=-1) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, inverse, rows)
    kept = rows == first[inverse]
    return dst[kept], src[kept]


def gather_edges(comm: Comm, layers: Sequence[Sequence[Pairs]]) -> list[list[Pairs]]:
    """Per layer and relation the edges of all workers, ascending by destination.

    A destination that several workers have has the same edges on each; it keeps those of the first.
    """
    flat = [pairs for layer in layers for pairs in layer]
    every = gather_arrays(comm, [torch.from_numpy(np.stack(pairs, 1).astype(np.int64))
                                 for pairs in flat])
    joined = [merged([piece.numpy() for piece in pieces]) for pieces in every]
    width = len(layers[0])
    return [joined[i:i + width] for i in range(0, len(joined), width)]


def merged(pieces: Sequence[np.ndarray]) -> Pairs:
    """The edges of one relation from those of every worker, (E, 2) destinations and sources."""
    workers = np.repeat(np.arange(len(pieces)), [len(piece) for piece in pieces])
    ends = np.concatenate(pieces)
    order = np.lexsort((workers, ends[:, 0]))
    dst, src, workers = ends[order, 0], ends[order, 1], workers[order]
    _, first, inverse = np.unique(dst, return_index=True, return_inverse=True)
    kept = workers == workers[first][inverse]
    return dst[kept], src[kept]


PlainLayer = list[tuple[np.ndarray, np.ndarray]]
"""One layer as a worker would have it the plain way: per relation CSC over all destination rows,
`indptr` and `indices` (int64)."""


def plain_layers(relations: Sequence[Relation], types: Sequence[str],
                 layers: Sequence[Sequence[Pairs]], seeds: Ids, timed: bool = False
                 ) -> tuple[list[PlainLayer], list[Ids]]:
    """Return the layers and levels that a worker needs for its own seeds, input side first.

    Parameters
    ----------
    layers : as :func:`gather_edges` returns them.
    timed : whether seeds have times; the input rows are then of nodes.
    """
    below = {t: np.asarray(seeds.get(t, _NONE), np.int64) for t in types}
    plain, ids = [], [below]
    for number in reversed(range(len(layers))):
        layer, pieces = layers[number], []
        for relation, (dst, src) in zip(relations, layer):
            rows = below[relation.dst]
            start = np.searchsorted(dst, rows)
            count = np.searchsorted(dst, rows, side="right") - start
            indptr = np.concatenate([[0], np.cumsum(count)])
            at = np.repeat(start - indptr[:-1], count) + np.arange(indptr[-1])
            pieces.append((indptr, src[at.astype(np.int64)]))
        above, below, places = below, {}, {}
        for t in types:
            rows = above[t] % KEYED if timed and not number else above[t]
            needed = np.concatenate([rows, *(src for relation, (_, src) in zip(
                relations, pieces) if relation.src == t)])
            _, first, inverse = np.unique(needed, return_index=True, return_inverse=True)
            kept = np.concatenate([np.arange(len(rows)), np.sort(first[first >= len(rows)])])
            below[t] = needed[kept]
            places[t] = np.asarray(np.searchsorted(kept, first))[inverse][len(rows):]
        edges, reached = [], dict.fromkeys(types, 0)
        for relation, (indptr, src) in zip(relations, pieces):
            low = reached[relation.src]
            reached[relation.src] += len(src)
            edges.append((indptr, places[relation.src][low:low + len(src)]))
        plain.append(edges)
        ids.append(below)
    return plain[::-1], ids[::-1]


class Places:
    """Where ids are among others."""

    def __init__(self, ids: np.ndarray) -> None:
        self._order = np.argsort(ids, kind="stable")
        self._sorted = ids[self._order]

    def of(self, ids: np.ndarray) -> np.ndarray:
        """For each id its place, or -1."""
        if not len(self._sorted):
            return np.full(len(ids), -1)
        at = np.minimum(np.searchsorted(self._sorted, ids), len(self._sorted) - 1)
        return np.where(self._sorted[at] == ids, self._order[at], -1)


def projections(rows: Tensor, limit: float = 1e30) -> Tensor:
    """(n, 3) float64: two products of each row with fixed vectors, and its length.

    Rows that differ have other products, but for a chance of nothing; they are compared by these.
    The products of a difference are about as large as it is long.
    """
    flat = rows.detach().reshape(len(rows), rows.shape[1:].numel()).to("cpu", torch.float64)
    flat = flat.nan_to_num(limit, limit, -limit)
    fixed = torch.randn(flat.shape[1], 2, generator=torch.Generator().manual_seed(7),
                        dtype=torch.float64)
    return torch.cat([flat @ fixed, flat.norm(dim=1, keepdim=True)], 1)


@dataclass
class Difference:
    """Rows of one node that are not the same on two workers."""

    name: str
    node: int
    workers: tuple[int, int]
    size: float


@dataclass
class Rows:
    """Rows of one argument on this worker.

    Attributes
    ----------
    domain : what they are rows of; arguments of one domain have the same ids on a worker.
    """

    name: str
    domain: str
    rows: Tensor


class RowExchange:
    """Rows of a group by node id; all workers call it alike.

    Parameters
    ----------
    ids : domain → ids of the rows that this worker has (int64, unique).
    given : rows of these ids, one or more for each domain.

    Attributes
    ----------
    differences : for each of `given` the largest between workers, relative to the row.
    """

    def __init__(self, comm: Comm, ids: Mapping[str, np.ndarray], given: Sequence[Rows]) -> None:
        self._comm, self._own, self._given = comm, dict(ids), list(given)
        every = gather_arrays(comm, [_by_id(ids[rows.domain], rows.rows) for rows in given]
                              ) if given else []
        self._ids: dict[str, list[np.ndarray]] = {}
        self.differences = []
        for argument, pieces in zip(given, every):
            both = [_apart(piece) for piece in pieces]
            self._ids[argument.domain] = [i for i, _ in both]
            self.differences.append(_largest(argument.name, self._ids[argument.domain],
                                             np.concatenate([values for _, values in both])))

    def first_holders(self, domain: str, ids: np.ndarray) -> np.ndarray:
        """For each id the first worker that has it, or -1."""
        holder = np.full(len(ids), -1)
        for worker in reversed(range(self._comm.size)):
            holder[Places(self._ids[domain][worker]).of(ids) >= 0] = worker
        return holder

    def fetch(self, wanted: Mapping[str, np.ndarray]) -> Callable[[Rows, np.ndarray], Tensor]:
        """Bring rows from the first worker that has each; returns what gives them by id.

        Parameters
        ----------
        wanted : domain → ids that this worker asks others for; those that it holds first are left
            out, and of the others what is brought counts, not what it has itself.
        """
        comm, domains = self._comm, list(self._own)
        holders = {d: self.first_holders(d, wanted[d]) for d in domains}
        asked = {d: [wanted[d][holders[d] == w] if w != comm.rank else _NONE
                     for w in range(comm.size)] for d in domains}
        ones = [1] * comm.size
        sent = torch.tensor([[len(asked[d][w]) for d in domains] for w in range(comm.size)]
                            ).view(comm.size, -1)
        got = comm.all_to_all_rows(sent, ones, ones, CAUSE) if comm.size > 1 else sent * 0
        flat = torch.from_numpy(np.concatenate(
            [_NONE, *(asked[d][w] for w in range(comm.size) for d in domains)]))
        requests = comm.all_to_all_rows(flat, sent.sum(1).tolist(), got.sum(1).tolist(), CAUSE
                                        ) if comm.size > 1 else flat
        pieces = requests.split(got.flatten().tolist())
        chosen = [[rows.rows[torch.from_numpy(Places(self._own[rows.domain]).of(
            pieces[w * len(domains) + domains.index(rows.domain)].numpy())).to(rows.rows.device)]
            for rows in self._given] for w in range(comm.size)]
        arrived = dict(zip(map(id, self._given), self._sent(chosen, [
            [int(sent[w, domains.index(rows.domain)]) for rows in self._given]
            for w in range(comm.size)])))

        def by_id(argument: Rows, ids: np.ndarray) -> Tensor:
            d = argument.domain
            out = argument.rows.new_zeros((len(ids), *argument.rows.shape[1:]))
            for rows, known in ((argument.rows, self._own[d]),
                                (arrived[id(argument)], np.concatenate([_NONE, *asked[d]]))):
                at = torch.from_numpy(Places(known).of(ids)).to(out.device)
                if (at >= 0).any():
                    out[at >= 0] = rows[at[at >= 0]]
            return out

        return by_id

    def _sent(self, chosen: Sequence[Sequence[Tensor]], counts: Sequence[Sequence[int]]
              ) -> list[Tensor]:
        """Rows of each argument from all workers, who have `chosen` rows per worker and argument;
        `counts` are those that come. They go as bytes, whatever their dtypes."""
        bytes_of = [rows.rows.shape[1:].numel() * rows.rows.element_size() for rows in self._given]
        flat = [torch.cat([torch.empty(0, dtype=torch.uint8), *(
            rows.detach().contiguous().view(torch.uint8).flatten().cpu() if rows.numel() else
            torch.empty(0, dtype=torch.uint8) for rows in of_worker)]) for of_worker in chosen]
        sizes = [[count * width for count, width in zip(of_worker, bytes_of)]
                 for of_worker in counts]
        moved = self._comm.all_to_all_rows(torch.cat(flat), [*map(len, flat)], [*map(sum, sizes)],
                                           CAUSE) if self._comm.size > 1 else torch.cat(flat)
        pieces = iter(moved.split([size for of_worker in sizes for size in of_worker]))
        of_argument: list[list[Tensor]] = [[] for _ in self._given]
        for _ in counts:
            for i in range(len(self._given)):
                of_argument[i].append(next(pieces))
        return [torch.cat(parts).clone().view(rows.rows.dtype).view(-1, *rows.rows.shape[1:]).to(
            rows.rows.device) if width else rows.rows[:0]
            for parts, rows, width in zip(of_argument, self._given, bytes_of)]


def _largest(name: str, every: Sequence[np.ndarray], values: np.ndarray) -> Difference:
    """The largest difference between rows of one node, from the workers' ids and projections."""
    ids = np.concatenate(every)
    workers = np.repeat(np.arange(len(every)), [len(piece) for piece in every])
    order = np.lexsort((workers, ids))
    ids, values, workers = ids[order], values[order], workers[order]
    if not len(ids):
        return Difference(name, -1, (0, 0), 0.0)
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    first = first[inverse]
    size = np.abs(values - values[first])[:, :2].max(1)
    # What a cancellation left, far below other rows, is rounding.
    least = max(_ROUNDING * float(values[:, 2].mean()), 1e-30)
    relative = size / np.maximum(np.maximum(values[:, 2], values[first, 2]), least)
    worst = int(np.argmax(relative))
    return Difference(name, int(ids[worst]), (int(workers[first[worst]]), int(workers[worst])),
                      float(relative[worst]))


Sums = tuple[np.ndarray, np.ndarray]
"""Ids, ascending, and for each the sums of projections, (n, 3)."""


def sums_by_id(comm: Comm, ways: Sequence[Mapping[str, tuple[np.ndarray, Tensor]]]
               ) -> dict[str, list[Sums]]:
    """Per name, and for each of `ways`, the sums over all workers of rows' projections by node id.

    Parameters
    ----------
    ways : name → ids and rows; workers need not have the same names.
    """
    own = sorted(set().union(*ways))
    names = sorted(set().union(*comm.all_gather_json(own, CAUSE)))
    none = (_NONE, torch.empty(0, 1))
    every = gather_arrays(comm, [_by_id(*way.get(name, none)) for name in names for way in ways]
                          ) if names else []
    sums: dict[str, list[Sums]] = {name: [] for name in names}
    for i, pieces in enumerate(every):
        ids, values = _apart(torch.cat(pieces))
        unique, inverse = np.unique(ids, return_inverse=True)
        total = np.zeros((len(unique), 3))
        np.add.at(total, inverse, values)
        sums[names[i // len(ways)]].append((unique, total))
    return sums


def _by_id(ids: np.ndarray, rows: Tensor) -> Tensor:
    """Ids beside their rows' projections, (n, 4) int64."""
    values = projections(rows) if len(rows) else torch.empty(0, 3, dtype=torch.float64)
    return torch.cat([torch.from_numpy(ids)[:, None], values.view(torch.int64)], 1)


def _apart(pairs: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The ids, and the projections (n, 3) float64."""
    return pairs[:, 0].numpy(), pairs[:, 1:].contiguous().view(torch.float64).numpy()
