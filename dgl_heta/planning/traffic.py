"""Bytes that workers send in a step, by cause: the one model of traffic, rows in, bytes out.

Rows are counted (:mod:`dgl_heta.partition.counting`), expected
(:mod:`dgl_heta.planning.receptive_field`) or follow from the batch size. Sizes are payloads as the
algorithms send them, as :class:`dgl_heta.comm.collectives.Traffic` counts them: an all-reduce is a
ring. With n workers, r rows of each, h the hidden width, e bytes per element, and s bytes per
element that is sent (`train.exchange_dtype`; else s = e):

partials
    Partial aggregations of rows that n workers have in common, and their gradients (Heta §4,
    Algorithm 1, lines 6-8): (n - 1) r b, b the bytes of :func:`last_layer` and :func:`lower_layer`:
    h s a crossing. The exchanges themselves are in dgl_heta/raf/maps.py.
gradients
    Of dense parameters: (n - 1) / n e (p1 + 2 p), p parameters of several workers in an all-reduce,
    p1 that one worker alone has and sends to the others (Heta §4: under RAF most are a relation's).
learnable
    Of rows owned by others: r (i + 2 h s): an id there, the value back, a gradient there; i is
    :func:`id_bytes`, a byte or two. In DistDGL scripts r (8 + i + h e + h s): their values come by
    DGL's servers, and gradients with ids of their own. In DistDGL itself r (8 + 2 h e).
offloaded
    Of rows that another partition aggregates: r 2 h s, a partial aggregation back and its gradient;
    the id that went there counts as sampling: :func:`unsorted_id_bytes`, three for most types.
features
    Of rows of width w owned by others (DistDGL): r (8 + w), an id there and the row back.
sampling
    Of rows sampled elsewhere (DistDGL): 8 bytes each and 24 per edge: its ends and its id. Without
    replication: :func:`common_ids`.

Left out are counts that go before rows, eight bytes per worker, and headers. Where a machine has
several workers, rows that several of them read are counted for each, though fewer are sent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np

from dgl_heta.planning.workload import Workload

Number = TypeVar("Number", float, np.ndarray)
"""A number, or an array of them."""
ID_BYTES = 8
"""Of ids that DGL's own servers and samplers send."""
PLACE_BYTES = 4
"""Who attained a maximum: int32 for each number, whatever the numbers are sent as."""
_DIGIT, _DIGITS = 128, 5
SAMPLED_EDGE_BYTES = 24
"""DistDGL returns source, destination and id of a remotely sampled edge."""


def last_layer(work: Workload) -> int:
    """Bytes of a seed row at the last layer, where only its own worker wants it.

    Forward a reduce-scatter, backward an all-gather: it crosses 1 + 1 times. Max and min need who
    attained the extreme, too: two all-reduces forward, of which one has places, 2 + 2 + 1.
    A softmax over all in-edges (HGT, in `dgl-heta train`) has a column more for each head, of sums
    of weights, and an all-reduce of maxima forward.
    """
    if work.takes_extremes:
        return 3 * work.sent_row_bytes + _places(work)
    return 2 * (work.sent_row_bytes + _of_heads(work)) + 2 * _of_heads(work)


def lower_layer(work: Workload) -> int:
    """Bytes of a row at a layer below the last, where all workers want it.

    An all-reduce forward and one backward, 2 + 2 crossings; for max and min 2 + 2 + 2.
    """
    if work.takes_extremes:
        return 4 * work.sent_row_bytes + _places(work)
    return 4 * (work.sent_row_bytes + _of_heads(work)) + 2 * _of_heads(work)


def hub(work: Workload) -> int:
    """Bytes of a row of a node whose in-edges are cut, which all workers with the relation want: as
    at a lower layer, and the number of its edges, of 8 bytes, in an all-reduce.

    That is of a mean, R-GCN's. A softmax needs maxima and sums, which are left out.
    """
    return lower_layer(replace(work, reduce="sum", model="rgcn")) + 2 * ID_BYTES


def delegated_row(work: Workload) -> int:
    """Bytes of a row that another partition aggregates, in either direction: a partial aggregation
    there, its gradient back; of a softmax sums of weights and maxima, too."""
    return work.sent_row_bytes + 2 * _of_heads(work)


def _of_heads(work: Workload) -> int:
    """Bytes of a number for each head of a row, where a softmax over all in-edges is merged."""
    if work.model != "hgt" or work.in_script:
        return 0
    return work.heads * (work.itemsize if work.wire_itemsize is None else work.wire_itemsize)


def _places(work: Workload) -> int:
    """Bytes of a row in the all-reduce of who attained its extremes."""
    return 2 * work.hidden * PLACE_BYTES


def seed_bytes(hops: int, work: Workload) -> int:
    """Bytes of a seed row in a step of `dgl-heta train` with full replication.

    Below the last layer seeds' rows are completed only for models that read them.
    """
    return last_layer(work) + (hops - 1) * lower_layer(work) * work.seed_states


def script_bytes(hops: int, work: Workload) -> int:
    """Bytes of a seed row in a step of a DistDGL script, with `sum` as reducer.

    As in :func:`seed_bytes`, but at the layer below the last a row goes to its own worker and
    to those whose edges read it: 1 + 1 with the latter left out. Modules that read destinations
    (attention) have the seeds' states sent at the last layer, 1 + 1.
    """
    lower = 2 + 4 * (hops - 2) if hops > 1 else 0
    return (2 + lower + 2 * (work.model != "rgcn" and hops > 1)) * work.sent_row_bytes


def partials(workers: int, rows: float, row_bytes: int) -> float:
    """Bytes that each of `workers` sends, for `rows` rows per worker; `row_bytes` as from
    :func:`last_layer`."""
    return row_bytes * (workers - 1) * rows


def gradients(workers: int, several: float, alone: float, work: Workload) -> float:
    """Bytes that each worker sends on average to average gradients of dense parameters.

    Parameters
    ----------
    several, alone : parameters that several workers have, and that one alone has.
    """
    return (alone + 2 * several) * work.itemsize * (workers - 1) / workers


def id_bytes(share: Number) -> Number:
    """Expected bytes of an id among sorted ones that are drawn evenly, `share` of all (0 … 1).

    Differences are sent, seven bits a byte (:mod:`dgl_heta.comm.packed_ids`): one is 128^k or more
    with probability (1 - share)^(128^k - 1).
    """
    return sum((1 - np.minimum(share, 1.0)) ** (_DIGIT**k - 1) for k in range(_DIGITS))


def unsorted_id_bytes(nodes: Number) -> Number:
    """Expected bytes of an id, one of `nodes`, where their order is kept and any.

    With its sign a difference has k + 1 bytes or more if it is x = 128^k / 2 or more: with
    probability (1 - x / nodes)².
    """
    return 1.0 + sum(np.maximum(0.0, 1 - _DIGIT**k / 2 / np.maximum(nodes, 1)) ** 2
                     for k in range(1, _DIGITS))


def learnable(rows: Number, work: Workload, share: Number) -> Number:
    """Bytes, of all workers together, for `rows` learnable rows that have another owner.

    Parameters
    ----------
    share : of the type's nodes that a worker reads.
    """
    if work.in_script:
        return rows * (ID_BYTES + work.row_bytes + id_bytes(share) + work.sent_row_bytes)
    return rows * (id_bytes(share) + 2 * work.sent_row_bytes)


def pulled(rows: float, work: Workload) -> float:
    """Bytes, of all workers together, for `rows` learnable rows of other owners in DistDGL."""
    return rows * (ID_BYTES + 2 * work.row_bytes)


def offloaded(rows: Number, work: Workload, nodes: Number) -> Number:
    """Bytes, of all workers together, for `rows` destination rows that another one aggregates,
    of a type of `nodes` nodes.

    Attention over all relations also sends maxima and sums of weights, which are left out.
    """
    return rows * (unsorted_id_bytes(nodes) + 2 * work.sent_row_bytes)


def offloaded_states(rows: Number, work: Workload) -> Number:
    """Bytes for the states of such rows, where attention has them sent, and their gradients."""
    return rows * 2 * work.sent_row_bytes


def features(rows: float, width: int) -> float:
    """Bytes, of all workers together, for `rows` static rows of `width` bytes of other owners."""
    return rows * (ID_BYTES + width)


def remote_sampling(rows: float, edges: float) -> float:
    """Bytes, of all workers together, to draw `edges` in-edges of `rows` rows of other owners."""
    return rows * ID_BYTES + edges * SAMPLED_EDGE_BYTES


def common_ids(workers: int, rows: float, nodes: int) -> float:
    """Bytes that a worker sends to tell the other holders of a type of `nodes` nodes the rows that
    it reached."""
    return (workers - 1) * rows * id_bytes(rows / max(nodes, 1))


def owned_elsewhere(users: int) -> float:
    """Share of a learnable type's rows that another of its users owns: ranges are even."""
    return (users - 1) / users
