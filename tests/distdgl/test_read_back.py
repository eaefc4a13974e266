"""What a script reads of a graph's data, whatever their form: as in plain DGL."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import dgl.distributed
import numpy as np
import pytest
import torch

import dgl_heta
from dgl_heta.distdgl.graph.loaded_parts import (
    _refused_request,
    _Served,
    load_edge_data,
    load_features,
)
from dgl_heta.distdgl.state import state_of
from dgl_heta.errors import HetaError, InputError
from dgl_heta.partition.directory import write_partition
from dgl_heta.partition.staging import Staging, opened_partition
from dgl_heta.planning.making import make_plan
from dgl_heta.store import Store, write_store
from tests.support import read_back, warm
from tests.support.graphs import academic
from tests.support.waiting import PATIENCE, PROMPT

pytestmark = pytest.mark.needs("dgl")


def meta(made: Any, out: Path, parts: int) -> Path:
    dgl_heta.partition_graph(made, "g", parts, str(out), part_method="meta", target_ntype="movie",
                             replication="full")
    return out / "g.json"


def run(*words: object) -> str:
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.STDOUT, timeout=PATIENCE + PROMPT, errors="replace",
                          check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_script_reads_what_plain_dgl_gives(tmp_path):
    """In one process, where DGL needs no servers and so takes all forms."""
    made = read_back.with_data(read_back.DTYPES)
    dgl.distributed.partition_graph(made, "g", 1, str(tmp_path / "plain"), part_method="random")
    run(warm.with_dgl(), "-m", "dgl_heta", "run", "--set", f"run.record={tmp_path / 'record'}",
        read_back.__file__, 2, tmp_path / "plain/g.json", meta(made, tmp_path / "meta", 1),
        tmp_path / "read")
    plain, ours, said = json.loads((tmp_path / "read").read_text())
    assert len(plain) > 2 * len(read_back.DTYPES) * (len(read_back.SHAPES) - 1)
    assert ours == plain
    assert said == [
        "data 'only matrix' of 'user' are read with other values than they have in plain DGL's "
        "partitions of the graph",
        "data 'feat' of 'movie' are read as torch.float32 [12, 2, 3], but are torch.uint8 "
        "[12, 2, 3] in plain DGL's partitions of the graph",
        "data 'feat' of 'movie' are not there, but in plain DGL's partitions of the graph"]


def test_a_staged_part_serves_what_the_whole_one_does(tmp_path):
    """With one hop, parts have relations and node types of which the others' machines have none."""
    graph = academic()
    data = {r: {"weight": np.arange(e.num_edges)} for r, e in graph.edges.items()
            if r.dst == "paper"}
    write_store(replace(graph, edge_arrays=data), tmp_path / "store", edge_ids=True)
    opened = Store(tmp_path / "store")
    whole = write_partition(opened, make_plan(opened.schema, "paper", 1, 2), tmp_path / "parts")
    lacking = 0
    for part in range(2):
        out = tmp_path / f"staged-{part}"
        with opened_partition(str(whole.parent)) as partition:
            Staging.of(partition, [part]).write(out)
        lacking += len(opened.manifest.entries()) - len([*out.rglob("store/**/*.npy")])
        for load in (load_features, load_edge_data):
            found, wanted = (load(str(config), part) for config in (out / whole.name, whole))
            assert found.keys() == wanted.keys()
            assert all(found[k].dtype == wanted[k].dtype and torch.equal(found[k], wanted[k])
                       for k in found)
    assert lacking


@pytest.mark.needs("hosts")
def test_trainers_on_two_hosts_read_what_was_on_the_graph(tmp_path):
    made = read_back.with_data(read_back.SERVED)
    data = made.edges[read_back.RATES].data
    for name in [name for name in data if not data[name].numel()]:
        data.pop(name)  # which servers do not hold; of nodes they are read from the store
    config = meta(made, tmp_path / "meta", 2)
    run(warm.python(), "-m", "dgl_heta", "launch", "--hosts", 2, "--part-config", config,
        "--set", f"run.record={tmp_path / 'record'}", "--stop-after", PATIENCE, "--",
        warm.with_dgl(), read_back.__file__, 1, "{part_config}", tmp_path / "read", "{ip_config}")
    want = read_back.read(made)
    for rank in (0, 1):
        (found,) = json.loads((tmp_path / f"read{rank}").read_text())
        assert found.keys() == want.keys()
        for name, (dtype, shape, _, _, checksum) in want.items():
            dtype = "torch.uint8" if dtype == "torch.bool" else dtype
            assert found[name] == [dtype, shape, dtype, shape, checksum], name


@pytest.mark.parametrize(("name", "data", "message"), [
    ("x", torch.zeros(12, dtype=torch.bfloat16), "they are bfloat16; convert them before"),
    ("x", torch.zeros(12, dtype=torch.complex64), "they are complex64; .* by torch.view_as_real"),
    ("a/b", torch.zeros(12), "the name has a '/', by which they separate names"),
    ("a~b", torch.zeros(12), "the name has a '~'"),
    ("n" * 250, torch.zeros(12), "the name is too long for shared memory"),
])
def test_what_servers_cannot_hold_is_named_when_they_start(tmp_path, monkeypatch, name, data,
                                                           message):
    made = read_back.graph()
    made.nodes["movie"].data[name] = data
    config = str(meta(made, tmp_path / "meta", 2))
    dgl_heta.enable()
    try:
        assert f"movie/{name}" in dgl.distributed.load_partition_feats(config, 0)[0]
        monkeypatch.setattr(state_of(_Served), "graphs", [config])
        with pytest.raises(InputError, match=rf"node data '.*' of 'movie'.*servers: {message}"):
            dgl.distributed.load_partition_feats(config, 0)
    finally:
        dgl_heta.disable()


def test_a_request_to_a_server_without_edges_is_named(monkeypatch) -> None:
    answered = _refused_request(lambda request, state: "answer")
    assert answered("request", None) == "answer"
    monkeypatch.setattr(state_of(_Served), "graphs", ["meta/g.json"])
    with pytest.raises(HetaError, match=r"str reached the server of .* meta/g.json, which holds"):
        answered("request", None)
