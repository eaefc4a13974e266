"""The work of a step: the order of aggregation and projection, work in bytes, units of work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from dgl_heta.graph.schema import Schema
from dgl_heta.planning.partition_shares import Partition
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.receptive_field import ReceptiveField, receptive_field
from dgl_heta.planning.workload import Workload
from dgl_heta.settings import ModelSettings

EDGE, GATHER, PRODUCT = 0.5, 1.0, 2 / 25
"""Nanoseconds per number of a row: to add it to a destination, to gather it (forward and
backward), and to multiply it by one column of a weight (the same). Rough, not fitted; what decides
is their ratio."""
MARGIN = 0.8
"""Aggregation comes first if that is expected to take at most so much of the time."""


def aggregated_first(rows: float, edges: float, destinations: float, own: float, width: float,
                     out: int) -> bool:
    """Return whether feature rows are aggregated before they are multiplied by a weight.

    Parameters
    ----------
    rows : source rows, (rows, width), and `edges` of all relations from them.
    destinations : rows of all these relations.
    own : rows that are multiplied besides, for the destinations' own states.
    out : width of the product.
    """
    per_row = GATHER + PRODUCT * out
    return edges * EDGE + (destinations + own) * per_row < MARGIN * (
        rows * per_row + 2 * edges * EDGE * out / width)


STEP, FILL, READ, SCORE, SUM = 0.18, 4.0, 2.2, 0.375, 0.5
"""Nanoseconds, forward and backward with what autograd adds, as scripts/bench/kernels.py measures
them in whole: to multiply a number by a column of a weight; per number of a product, which is
written with its gradient; per number of an edge's feature row, which is read twice; that, per head;
and per number of an edge's row of a product."""


def attended_first(rows: float, relations: int, edges: float, destinations: float, width: float,
                   inner: float | None, heads: int, out: int) -> bool:
    """Return whether attention takes products of queries and of sums, not of feature rows.

    Parameters
    ----------
    rows : source rows, (rows, width), and `edges` of all `relations` from them.
    destinations : rows of all these relations.
    inner : width of the product that is multiplied again, or None. Keys and values share it.
    heads, out : the product is (rows, heads, out).
    """
    columns = heads * out
    products = width * columns if inner is None else inner * (width / 2 + columns)
    composed = relations * width * columns * (inner or 0)  # the weights, to one
    return (edges * width * (READ + SCORE * heads)
            + STEP * (destinations * width * columns + composed)
            < MARGIN * (rows * (STEP * products + FILL * columns) + edges * SUM * columns))


HEAD, SLOT, PASS = 1.5, 0.7, 1.7
"""For models' own attention on a CPU, forward and backward (nn/graph_attention.py): a product per
head takes so many times what one of all heads takes; nanoseconds per number of an edge's state and
head; and per number of an edge's product."""


def attended_before(products: float, edges: float, rows: float, width: int, heads: int, out: int
                    ) -> bool:
    """Return whether attention takes products of source states, not of queries and of sums.

    Parameters
    ----------
    products : source rows to multiply, and `edges` from them to `rows` of all their relations.
    width : of a state; the product is (rows, heads, out).
    """
    columns = heads * out
    return (products * columns * (PRODUCT * width + GATHER) + edges * columns * PASS
            < rows * width * (HEAD * PRODUCT * columns + heads) + edges * width * heads * SLOT)


KEYS, BOTH, WEIGHTS = 0.16, 1.3, 0.32
"""For HGT's compiled attention (nn/attention_across.py), nanoseconds forward and backward: per
product of a source's state for keys and values; per number of an edge's key and value, which take
more to read than the state; and per product that queries and sums take more with their weights."""


def keys_first(sources: float, edges: float, rows: float, width: int, heads: int, out: int) -> bool:
    """Return whether HGT takes keys and values of source states, not their weights times queries
    and sums.

    Parameters
    ----------
    sources : source rows, and `edges` from them to `rows` of all relations of a block.
    width : of a state; keys, values and queries are (rows, heads, out).
    """
    columns = heads * out
    return (sources * columns * width * KEYS + edges * columns * BOTH
            < rows * columns * (width - out) * WEIGHTS)


CALL = 10_000_000
"""Work of running one relation at one layer apart from its rows and edges, in bytes moved: about
two milliseconds of calls."""


def step_work(plan: Plan, partition: Partition, work: Workload) -> float:
    """Expected work of a partition in a step of `work.batch_size` seeds, as :func:`bytes_moved`.

    What several sub-metatrees reach counts once.
    """
    step = receptive_field(plan, partition.index, work.fanouts_of(plan.hops), work.batch_size, 0)
    return bytes_moved(plan, partition, sum(layer.edges for layer in step.layers), step.inputs,
                       work)


def bytes_moved(plan: Plan, partition: Partition, edges: float, inputs: Mapping[str, float],
                work: Workload) -> float:
    """Work of a partition that samples so many edges and reads these input rows, in bytes moved.

    The rows of its input nodes, static or learnable with two moments, four times (gathered,
    projected, and both again backward), two rows of hidden states for every sampled edge, and
    :data:`CALL` per relation and layer. It needs no measurements, as it decides which plan is made
    (:mod:`dgl_heta.planning.sharing`).
    """
    calls = sum(len(relations) for relations in partition.layers.values())
    return CALL * calls + 2 * edges * work.row_bytes + sum(
        4 * rows * (plan.schema.feature_bytes.get(t) or 3 * work.row_bytes)
        for t, rows in inputs.items())


UNITS = {
    "step": "steps", "call": "relations run, over all layers", "edge": "edges sampled",
    "gathered": "bytes of features read, once decoded",
    "flop": "operations of dense layers, both ways",
    "product": "bytes of rows that dense layers make", "message": "bytes of messages along edges",
    "aggregated": "bytes of the rows that relations aggregate to",
    "parameter": "dense parameters updated",
    "table": "node types whose learnable rows are read and updated",
    "updated": "bytes of learnable rows read and updated", "remote": "bytes sent to other machines",
    "exchange": "exchanges with other machines"}
"""The amounts of work that seconds of a step are made of, and what one is."""
OF_MODELS = ("call", "message", "aggregated")
"""Those of which one takes each model, other operators, another time."""
HEADS = ModelSettings().heads
"""Attention heads of the models that are predicted."""
EDGES_PER_SOURCE = 2
"""Up to so many edges per source row R-GAT in scripts is taken to sum rows before it multiplies
them: about what :func:`attended_before` decides there. The coefficients are fitted to this."""


def step_units(schema: Schema, step: ReceptiveField, work: Workload, exchanges: float,
               ours: bool = False) -> dict[str, float]:
    """:data:`UNITS` of work of a trainer's step, with `parameter` and `remote` left at 0.

    Parameters
    ----------
    ours : whether rows may be aggregated before they are multiplied, as dgl-heta does where that
        is less: features of R-GCN (:func:`aggregated_first`), states of R-GAT.
    """
    # A product is taken once forward and twice backward, of features, without a gradient, once.
    hidden, square, row = work.hidden, 3 * 2.0 * work.hidden**2, work.row_bytes
    units = dict.fromkeys(UNITS, 0.0) | {"step": 1.0, "exchange": float(exchanges)}
    first, widths = step.layers[-1], {}  # of messages at the first layer, where they are features
    for ntype, rows in step.inputs.items():
        width = schema.feature_bytes.get(ntype, 0)
        wide, multiplied, read = width / work.feature_itemsize, rows, rows
        if width and ours and work.model == "rgcn":
            edges = sum(n for r, n in first.sampled.items() if r.src == ntype)
            into = sum(n for r, n in first.rows.items() if r.src == ntype)
            own = first.inner.get(ntype, 0.0) + step.own.get(ntype, 0.0)
            if aggregated_first(rows, edges, into, own, wide, hidden):
                widths[ntype], multiplied, read = width, into + own, own
        units["gathered"] += read * wide * work.itemsize  # however few bytes they have in files
        units["updated"] += 0 if width else rows * row
        units["table"] += not width and rows > 0
        units["flop"] += 2 * 2 * multiplied * wide * hidden
        units["product"] += multiplied * row if width else 0
    for layer in step.layers:
        states = {t: layer.inner.get(t, 0.0) + step.own.get(t, 0.0)
                  for t in {*layer.inner, *step.own}}
        sources = {t: n + step.own.get(t, 0.0) for t, n in layer.sources.items()}
        units["call"] += len(layer.rows)
        units["edge"] += layer.edges
        products = sum(states.values())  # rows of hidden width that are multiplied
        if work.model == "hgt":
            products += 2 * sum(sources.values()) + sum(states.values())
            units["flop"] += square * 2 / HEADS * sum(layer.rows.values())
        for relation, rows in layer.rows.items():
            edges, reached = layer.sampled[relation], sources.get(relation.src, 0.0)
            summed = ours and work.model == "rgat" and edges <= EDGES_PER_SOURCE * reached
            units["message"] += edges * (widths.get(relation.src, row) if layer is first else row)
            if work.model != "rgcn":  # whose are among the rows that dense layers make
                units["aggregated"] += rows * row * (HEADS if summed else 1)
            if work.model == "rgcn" or summed:
                products += rows
            elif work.model == "rgat":
                products += reached + rows * (not ours)
        units["flop"] += square * products
        units["product"] += products * row
    return units


def parameter_groups(plan: Plan, work: Workload) -> list[tuple[float, int]]:
    """Size of every group of dense parameters, with the number of partitions that have it."""
    hidden, square = work.hidden, float(work.hidden**2)
    schema, parts = plan.schema, plan.num_parts
    per_relation = {"rgcn": square, "rgat": square + 2 * hidden,
                    "hgt": 2 * square / HEADS + HEADS}[work.model]
    groups = [(float((hidden + 1) * work.classes), parts)]
    groups += [((width / work.feature_itemsize + 1) * hidden, len(plan.users(t)))
               for t, width in schema.feature_bytes.items() if width]
    for layer in range(1, plan.hops + 1):
        owners = Counter(r for p in plan.partitions for r in p.layers[layer])
        groups += [(per_relation, owners[r]) for r in schema.relations]
        groups += ([(4 * (square + hidden) + 1, len(plan.users(t))) for t in schema.node_types]
                   if work.model == "hgt" else [(square + hidden, parts)])
    return groups
