"""`parts = auto`: the fewest parts that a limit of bytes lets be, or the smallest limit."""

from __future__ import annotations

import re

import numpy as np
import pytest
from dgl_heta_catgnn import Communities, Dbh, EdgeStream, Spring
from dgl_heta_catgnn.memory import Footprint, choose_parts

from dgl_heta import AUTO, InputError
from dgl_heta.partition.request import make_request


@pytest.fixture(scope="module")
def graph():
    return Communities().load(nodes=2000, mixed=0.02)


@pytest.mark.parametrize("hops", [1, 2])
def test_the_estimate_counts_a_parts_nodes_edges_and_rows(graph, hops):
    method = Spring()
    estimate = method.fitting(graph, 2_000_000, hops)
    assert 1 < estimate.parts < 16
    assert estimate.largest <= 2_000_000
    stream = EdgeStream.of_graph(graph)
    owner = method.assign(stream, estimate.parts).owner
    src, dst = (np.concatenate(side) for side in zip(*((c.src, c.dst) for c in stream.chunks())))
    for part in range(estimate.parts):
        near = owner == part
        for _ in range(hops):
            inner, near = near, near.copy()
            near[src[inner[dst]]] = True
        rows, edges = near.sum(), inner[dst].sum()
        row = 32 * 4 + 8 + 3  # features, label, masks
        assert estimate.bytes[part] == 3 * (rows * (row + 9) + edges * 25)


def test_a_limit_that_cannot_be_met_names_the_smallest_that_can(graph):
    with pytest.raises(InputError, match="the smallest limit that one of them can meet") as refused:
        Dbh().fitting(graph, 10_000, 1)
    (number,) = re.findall(r"meet is ([\d,]+) bytes", str(refused.value))
    smallest = int(number.replace(",", ""))
    assert Dbh().fitting(graph, smallest, 1).largest <= smallest
    with pytest.raises(InputError, match="that one of them can meet"):
        Dbh().fitting(graph, smallest - 1, 1)
    with pytest.raises(InputError, match=r"give --memory-mb, or plugins\.dbh\.memory"):
        Dbh().fitting(graph, None, 1)


def test_no_more_parts_are_tried_than_there_may_be():
    tried = []

    def measure(count):
        tried.append(count)
        return Footprint(count, np.full(count, 10))

    with pytest.raises(InputError, match="meet is 10 bytes"):
        choose_parts(measure, 18, 9, most=6)
    assert tried == [2, 4, 6]


@pytest.mark.parametrize(("limit", "parts"), [(100, 1), (50, 2), (34, 3), (20, 5), (11, 10)])
def test_the_fewest_parts_are_found(limit, parts):
    tried = []

    def measure(count):
        tried.append(count)
        return Footprint(count, np.full(count, -(-100 // count)))

    assert choose_parts(measure, 100, limit).parts == parts
    assert len(tried) == len(set(tried)) <= 6


@pytest.mark.needs("dgl")
def test_parts_are_written_as_many_as_the_limit_asks_for(graph, tmp_path):
    method = Spring()
    request = make_request(method, graph.schema(), "auto", memory_mb=2)
    assert request.parts == AUTO
    written = method.partition(graph, request, tmp_path / "parts")
    assert written.parts == method.fitting(graph, 2_000_000, 1).parts == len(
        written.statistics["nodes"])
    assert max(written.statistics["estimated_bytes"]) <= 2_000_000
    with pytest.raises(InputError, match="a memory limit goes with --parts auto, too"):
        method.partition(graph, make_request(method, graph.schema(), 2, memory_mb=2),
                         tmp_path / "other")
