"""What cannot be merged is refused by name, on all workers alike, before a number is wrong."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from dgl_heta_pyg.relation_edges import RelationEdges

from dgl_heta import InputError, Relation
from dgl_heta.partition.directory import write_partition
from dgl_heta.planning.making import make_plan
from dgl_heta.store import Store, write_store
from tests.support import warm
from tests.support.graphs import academic

SAID = {
    "batch norm": "BatchNorm1d 'modules_.1.module' takes all nodes of a batch together",
    "torch's batch norm": "BatchNorm1d 'modules_.1' takes all nodes of a batch together",
    "layer norm of the graph": "LayerNorm 'modules_.1' of mode graph takes all nodes",
    "pooling": "MeanAggregation 'modules_.1' takes all nodes of a batch together",
    "batch norm in a convolution": "BatchNorm1d 'modules_.0.nn.1' takes all nodes of a batch",
    "batch norm of another type": "what averages nodes of 'author' was given other rows",
    "one graph": "SAGEConv was given the edges of all relations and cannot be merged",
    "one graph, another aggr": "RGCNConv of aggr='median' cannot be merged",
    "one graph, attention weights": "RGATConv returned a tuple; only rows can be merged",
    "edges put together": "edge_index of 'author writes paper' is read by torch's cat, outside",
    "edges by hand": "edge_index of 'paper cites paper' is read by torch's unbind, outside",
    "a mean over rows": "Model does not compute with RAF what it computes the plain way",
    "attention weights": "GATConv returned a tuple",
    "workers that differ": "workers do not merge alike",
    "no edges": "called without the edges of a batch of dgl_heta_pyg.NeighborLoader",
    "the model itself": "SAGEConv was called outside of the distributed model",
    "an older batch": "a backward pass through another batch than the last one",
    "a batch before backward": "a backward pass through another batch than the last one",
    "gradients of one worker": "torch.autograd.grad returns gradients of one worker",
    "other fanouts": "worker 1 made a loader with fanouts = [3, 3], worker 0 with [2, 3]; all",
    "other seeds": "worker 1 made a loader with seeds = other ids, worker 0 with its own; all",
    "a last step too small": "of 13 seeds in steps of 12 the last has 1 for 2 workers",
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """What each of two workers says of each case."""
    place = tmp_path_factory.mktemp("part")
    write_store(academic(), place / "store")
    store = Store(place / "store")
    write_partition(store, make_plan(store.schema, ["paper"], 2, 2), place / "part")
    done = subprocess.run(
        [warm.python("torch_geometric.nn"), "-m", "torch.distributed.run", "--standalone",
         "--nproc-per-node", "2", str(Path(__file__).with_name("refused_worker.py")),
         str(place / "part")],
        capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert not done.returncode, done.stderr[:6000]
    decoder, text, every = json.JSONDecoder(), done.stdout, []
    while text := text.lstrip():
        one, end = decoder.raw_decode(text)
        every.append(one)
        text = text[end:]
    return every


@pytest.mark.parametrize("case", SAID)
def test_what_cannot_be_merged_is_refused(said: list[dict[str, str]], case: str) -> None:
    first, second = said
    assert SAID[case] in first[case]
    assert first[case] == second[case]


def test_all_cases_are_looked_at(said: list[dict[str, str]]) -> None:
    assert said[0].keys() == SAID.keys()


@pytest.mark.parametrize("name", ["T", "mT", "H", "data", "real"])
def test_no_property_gives_the_edges_of_one_worker(name: str) -> None:
    no_origin: Any = None
    edges = RelationEdges.of(torch.arange(6).view(2, 3), Relation("a", "b", "c"), no_origin)
    assert (edges.shape, edges.dtype, edges.device.type) == ((2, 3), torch.int64, "cpu")
    with pytest.raises(InputError, match=f"edge_index of 'a b c' is read by torch's {name}, outs"):
        getattr(edges, name)
