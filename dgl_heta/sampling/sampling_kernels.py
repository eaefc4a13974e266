"""The compiled draws: which neighbours a node has in a sample, as a hash of what is asked.

Nothing is kept between draws. The neighbours of a node are a function of a key, made of (seed,
step, layer, relation), and of the node's id; whoever draws them, on whatever worker, draws the
same. A sample without replacement is Floyd's (Bentley and Floyd 1987,
https://doi.org/10.1145/30401.315746).

Where edges have times, a node sees those in-edges that are there at a time of its own. They are its
first ones, as in-edges ascend by time. `until` has their numbers, keys of the draws, and whether
the latest are drawn (:mod:`dgl_heta.sampling.moment_kernels`).

`indptr` and `indices` are mapped files, which can change at any time, so kernels check each number
that they read from them and use as an index. Each is read once: what was checked is what is used.
"""

from __future__ import annotations

import numpy as np

from dgl_heta.system.hashing import GOLDEN, mix
from dgl_heta.system.jit import kernel
from dgl_heta.system.prefetch import AHEAD, prefetch, prefetch_row

BATCH = 32
"""How many drawn edges are read before their sources are looked up."""
BAD = -1
"""The number of edges that kernels return where a number in a file leads out of an array."""


@kernel
def count_sampled(indptr, nodes, fanout, edges, out, until=None):  # type: ignore[no-untyped-def]
    """Fill `out` with the CSC pointers of the sample; return the number of its edges, or BAD.

    `edges` is how many the relation has.
    """
    total = 0
    out[0] = 0
    for i in range(len(nodes)):
        prefetch(indptr, nodes, i)
        node = nodes[i]
        if node < 0 or node >= len(indptr) - 1:
            return BAD
        begin = indptr[node]
        end = indptr[node + 1]
        if begin < 0 or end < begin or end > edges:
            return BAD
        degree = end - begin
        degree = degree if until is None else min(degree, until[0][i])
        if fanout >= 0 and degree > fanout:
            degree = fanout
        total += degree
        out[i + 1] = total
    return total


@kernel
def _choose(key, node, drawn, degree, positions):  # type: ignore[no-untyped-def]
    """Fill `positions` with `drawn` of `degree` numbers, without replacement (Floyd)."""
    state = mix(key ^ (np.uint64(node) * GOLDEN))
    for k in range(drawn):
        top = degree - drawn + k
        state += GOLDEN
        position = np.int64(mix(state) % np.uint64(top + 1))
        for j in range(k):
            if positions[j] == position:
                position = top
                break
        positions[k] = position


@kernel
def _choose_weighted(key, node, drawn, weights, positions, keys):  # type: ignore[no-untyped-def]
    """As :func:`_choose`, of as many numbers as there are `weights`, one after the other with a
    chance proportional to a number's weight among those that are left.

    The smallest of the keys -log(u) / w (Efraimidis and Spirakis 2006,
    https://doi.org/10.1016/j.ipl.2005.11.003), compared by their logarithms, which are finite for
    every w. `keys` is as long as `positions`, for the ones chosen so far.
    """
    if drawn == 0:
        return
    state = mix(key ^ (np.uint64(node) * GOLDEN))
    for position in range(len(weights)):
        state += GOLDEN
        chance = (np.float64(mix(state) >> np.uint64(12)) + 0.5) / 4503599627370496.0
        own = np.log(-np.log(chance)) - np.log(weights[position])
        k = position
        if position >= drawn:
            k = drawn - 1
            if own >= keys[k]:
                continue
        while k > 0 and keys[k - 1] > own:
            keys[k] = keys[k - 1]
            positions[k] = positions[k - 1]
            k -= 1
        keys[k] = own
        positions[k] = position


@kernel
def _choose_left(  # type: ignore[no-untyped-def]
        key, node, drawn, begin, end, indices, left_out, positions):
    """Fill `positions` with `drawn` different numbers below `end - begin`, of edges that are not
    left out; fewer where no more are. Returns how many.

    Drawing of all edges and then dropping some would tell a model who has a link that is held out:
    it would have fewer neighbours than others. Numbers are tried at random first, where nodes have
    many edges; what is missing then is drawn from a list of all that are left (a reservoir).
    """
    if drawn == 0:
        return 0
    state = mix(key ^ (np.uint64(node) * GOLDEN))
    degree = end - begin
    accepted = 0
    for _ in range(4 * drawn if degree > 2 * drawn else 0):
        state += GOLDEN
        position = int(mix(state) % np.uint64(degree))
        if not _is_among(positions, accepted, position) and not _is_left_out(
                left_out, np.int64(indices[begin + position]), node):
            positions[accepted] = position
            accepted += 1
            if accepted == drawn:
                return accepted
    tried, seen = accepted, 0
    for position in range(degree):
        if _is_among(positions, tried, position) or _is_left_out(
                left_out, np.int64(indices[begin + position]), node):
            continue
        at = tried + seen
        seen += 1
        if at >= drawn:
            state += GOLDEN
            at = tried + int(mix(state) % np.uint64(seen))
        if at < drawn:
            positions[at] = position
    return min(tried + seen, drawn)


@kernel
def _is_among(numbers, count, number):  # type: ignore[no-untyped-def]
    """Return whether a number is among the first `count` of `numbers`, in any order."""
    for i in range(count):  # noqa: SIM110 - numba compiles no generator
        if numbers[i] == number:
            return True
    return False


# The two kernels below are in one piece: in a call per node, numba would count references to all
# the arrays, with locked instructions.
@kernel
def sample_neighbors(  # type: ignore[no-untyped-def]  # noqa: C901, PLR0912
        indptr, indices, nodes, fanout, key, weights, out_ptr, out, row_of, rows, size, left_out,
        excluded, until=None):
    """Draw the neighbours of `nodes` and turn them into rows, or without `row_of`, None, into ids.

    `weights` (float64, positive and finite) has a number for each edge, which its chance is
    proportional to; without it, None, all edges of a node are alike. `out_ptr` is as
    :func:`count_sampled` fills it. `row_of` (int32, a row per node id or -1), `rows`
    (int64, the node of each row) and `size` are the rows so far; new nodes are appended. With
    `left_out` (see :meth:`HeldOut.left_out`, not with `weights`) others are drawn in place of those
    edges; `out_ptr` is corrected. Edges at the positions `excluded` (int64, ascending) are drawn
    like others and dropped, as DGL does. `until` is as :func:`visible` fills it, and whether the
    latest are drawn. Without them, None, numba compiles no such branch.

    Returns the number of rows and that of edges, which are the first ones of `out`; or BAD for the
    number of edges.
    """
    positions = np.empty(max(fanout, 0), np.int64)
    keys = np.empty(len(positions) if weights is not None else 0)
    sources = np.empty(BATCH, np.int64)
    total = 0
    low = out_ptr[0]
    for i in range(len(nodes)):
        prefetch(indptr, nodes, i + AHEAD)
        if i + AHEAD < len(nodes) and 0 <= nodes[i + AHEAD] < len(indptr):
            prefetch_row(indices, indptr[nodes[i + AHEAD]])
        node = nodes[i]
        begin = indptr[node]
        end = indptr[node + 1]
        degree = end - begin
        own = key if until is None else until[1][i]
        degree = degree if until is None else min(degree, until[0][i])
        end = begin + degree
        drawn = out_ptr[i + 1] - low
        low = out_ptr[i + 1]
        if begin < 0 or end > len(indices) or drawn != (
                fanout if 0 <= fanout < degree else degree):
            return size, BAD  # not what :func:`count_sampled` has seen
        chosen = drawn < degree
        if chosen:
            if until is not None and until[2]:
                positions[:] = np.arange(degree - drawn, degree)
            elif left_out is not None:
                drawn = _choose_left(own, node, drawn, begin, end, indices, left_out, positions)
            elif weights is None:
                _choose(own, node, drawn, degree, positions)
            else:
                _choose_weighted(own, node, drawn, weights[begin:end], positions, keys)
        for first in range(0, drawn, BATCH):
            last = min(first + BATCH, drawn)
            for k in range(first, last):
                source = np.int64(indices[begin + (positions[k] if chosen else k)])
                sources[k - first] = source
                if row_of is not None:
                    prefetch_row(row_of, source)
            for k in range(first, last):
                if excluded is not None and _is_listed(
                        excluded, begin + (positions[k] if chosen else k)):
                    continue
                source = sources[k - first]
                if left_out is not None and not chosen and _is_left_out(left_out, source, node):
                    continue
                if row_of is None:
                    out[total] = source
                else:
                    row, size = _row(source, row_of, rows, size)
                    if row < 0:
                        return size, BAD
                    out[total] = row
                total += 1
        if left_out is not None:
            out_ptr[i + 1] = total
        if excluded is not None:
            out_ptr[i + 1] = total
    return size, total


@kernel
def sample_pieces(  # type: ignore[no-untyped-def]  # noqa: C901, PLR0912
        indptr, indices, nodes, low, high, fanout, key, weights, out_ptr, out, order, row_of, rows,
        size, left_out, excluded, until=None):
    """As :func:`sample_neighbors`, of nodes of which in-edges `low … high - 1` alone are here.

    The same are drawn as :func:`sample_neighbors` draws of all of a node's in-edges, and those that
    are here kept. `order` (int64, an entry per edge) is filled with the place of each among a
    node's drawn edges, wherever these are.
    """
    positions = np.empty(max(fanout, 0), np.int64)
    keys = np.empty(len(positions) if weights is not None else 0)
    total = 0
    out_ptr[0] = 0
    for i in range(len(nodes)):
        prefetch(indptr, nodes, i + AHEAD)
        if i + AHEAD < len(nodes) and 0 <= nodes[i + AHEAD] < len(indptr):
            prefetch_row(indices, indptr[nodes[i + AHEAD]])
        node = nodes[i]
        if node < 0 or node >= len(indptr) - 1:
            return size, BAD
        begin = indptr[node]
        end = indptr[node + 1]
        degree = end - begin
        if begin < 0 or end > len(indices) or low[i] < 0 or high[i] > degree:
            return size, BAD
        own = key if until is None else until[1][i]
        degree = degree if until is None else min(degree, until[0][i])
        end = begin + degree
        all_drawn = fanout < 0 or degree <= fanout
        first, last = (low[i], min(high[i], degree)) if all_drawn else (0, fanout)
        if not all_drawn:
            if until is not None and until[2]:
                positions[:] = np.arange(degree - fanout, degree)
            elif left_out is not None:
                last = _choose_left(own, node, fanout, begin, end, indices, left_out, positions)
            elif weights is None:
                _choose(own, node, fanout, degree, positions)
            else:
                _choose_weighted(own, node, fanout, weights[begin:end], positions, keys)
        for k in range(first, last):
            position = k if all_drawn else positions[k]
            if position < low[i] or position >= high[i]:
                continue
            if excluded is not None and _is_listed(excluded, begin + position):
                continue
            source = np.int64(indices[begin + position])
            if left_out is not None and all_drawn and _is_left_out(left_out, source, node):
                continue
            if total == len(out):
                return size, BAD
            if row_of is None:
                out[total] = source
            else:
                row, size = _row(source, row_of, rows, size)
                if row < 0:
                    return size, BAD
                out[total] = row
            order[total] = k
            total += 1
        out_ptr[i + 1] = total
    return size, total


@kernel
def sample_positions(  # type: ignore[no-untyped-def]
        indptr, nodes, low, high, fanout, key, weights, edges, out, excluded, until=None):
    """Fill `out` with the CSC positions of what :func:`sample_neighbors` draws, or
    :func:`sample_pieces` where `low` and `high` are not None; return their number, or BAD. `edges`
    is as in :func:`count_sampled`, `excluded` and `until` as in :func:`sample_neighbors`."""
    positions = np.empty(max(fanout, 0), np.int64)
    keys = np.empty(len(positions) if weights is not None else 0)
    total = 0
    for i in range(len(nodes)):
        node = nodes[i]
        if node < 0 or node >= len(indptr) - 1:
            return BAD
        begin = indptr[node]
        end = indptr[node + 1]
        if begin < 0 or end < begin or end > edges:
            return BAD
        degree = end - begin
        own = key if until is None else until[1][i]
        degree = degree if until is None else min(degree, until[0][i])
        end = begin + degree
        drawn = fanout if 0 <= fanout < degree else degree
        if drawn < degree:
            if until is not None and until[2]:
                positions[:] = np.arange(degree - drawn, degree)
            elif weights is None:
                _choose(own, node, drawn, degree, positions)
            else:
                _choose_weighted(own, node, drawn, weights[begin:end], positions, keys)
        for k in range(drawn):
            position = positions[k] if drawn < degree else k
            if low is not None and (position < low[i] or position >= high[i]):
                continue
            if excluded is not None and _is_listed(excluded, begin + position):
                continue
            if total == len(out):
                return BAD
            out[total] = begin + position
            total += 1
    return total


@kernel
def give_rows(ids, out, row_of, rows, size):  # type: ignore[no-untyped-def]
    """Fill `out` with the rows of nodes, new ones for those that have none; return how many rows
    there are then, and the number of ids, or BAD."""
    for i in range(len(ids)):
        prefetch(row_of, ids, i)
        row, size = _row(ids[i], row_of, rows, size)
        if row < 0:
            return size, BAD
        out[i] = row
    return size, len(ids)


@kernel
def _row(source, row_of, rows, size):  # type: ignore[no-untyped-def]
    """The row of a node, a new one if it has none yet, and the number of rows. -1 for the row if
    there is no such node."""
    if source < 0 or source >= len(row_of):
        return -1, size
    row = np.int64(row_of[source])
    if row < 0:
        if size >= len(rows):
            return -1, size
        row = size
        row_of[source] = row
        rows[size] = source
        size += 1
    return row, size


@kernel
def _is_left_out(left_out, source, node):  # type: ignore[no-untyped-def]
    """Return whether the pair of an edge (see :class:`SameLinks`) is held out by its hash, or
    listed in `without` or `pairs` (ascending)."""
    without, pairs, salt, share, tails, swapped, undirected = left_out
    if swapped or (undirected and node < source):
        source, node = node, source
    pair = source * tails + node
    if _chance(salt, pair) < share:
        return True
    return _is_listed(without, pair) or _is_listed(pairs, pair)


@kernel
def _is_listed(numbers, number):  # type: ignore[no-untyped-def]
    """Return whether a number is among `numbers` (ascending)."""
    at = np.searchsorted(numbers, number)
    return at < len(numbers) and numbers[at] == number


@kernel
def _chance(salt, pair):  # type: ignore[no-untyped-def]
    mixed = mix(salt ^ (np.uint64(pair) * GOLDEN))
    return np.float64(mixed >> np.uint64(11)) / 9007199254740992.0


@kernel
def pair_chances(pairs, salt, out):  # type: ignore[no-untyped-def]
    """Fill `out` with a number in [0, 1) for each pair (int64)."""
    for i in range(len(pairs)):
        out[i] = _chance(salt, pairs[i])
