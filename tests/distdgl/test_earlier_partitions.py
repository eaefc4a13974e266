"""`dgl-heta run` replaces a partition of before only if it is asked to."""

from __future__ import annotations

import subprocess

import dgl
import dgl.distributed
import pytest

import dgl_heta
from dgl_heta.distdgl.graph.partitions import keep_earlier
from dgl_heta.errors import InputError
from dgl_heta.partition.directory import open_partition
from tests.support import warm
from tests.support.partition_doors import direct, graph
from tests.support.waiting import PATIENCE

SCRIPT = """
import sys
import dgl
import torch
graph = dgl.heterograph({("a", "r", "b"): (torch.arange(40) % 10, torch.arange(40) % 20),
                         ("b", "q", "a"): (torch.arange(20), torch.arange(20) % 10)})
graph.nodes["a"].data["train_mask"] = torch.ones(10) > 0
for _ in range(2):
    dgl.distributed.partition_graph(graph, "g", 2, sys.argv[1], num_hops=2)
"""


@pytest.fixture(autouse=True)
def off():
    yield
    dgl_heta.disable()


def test_the_command_replaces_an_earlier_partition_only_if_it_is_asked_to(tmp_path):
    """What the script made itself it may make again, as SCRIPT does."""
    (tmp_path / "script.py").write_text(SCRIPT)
    direct(graph(), "g", 3, str(tmp_path / "out"), part_method="meta")
    for options, status, parts in (([], 2, 3), (["--overwrite"], 0, 2)):
        done = subprocess.run(
            [warm.with_dgl(), "-m", "dgl_heta", "run", "--set", "partition.method=meta", *options,
             str(tmp_path / "script.py"), str(tmp_path / "out")],
            capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == status, done.stderr
        assert open_partition(tmp_path / "out")[1].num_parts == parts
        if status:
            assert "out exists and holds a partition" in " ".join(done.stderr.split())
            assert "dgl-heta run --overwrite" in " ".join(done.stderr.split())


def test_overwrite_in_the_script_counts_and_the_function_itself_replaces(tmp_path):
    out = str(tmp_path / "out")
    direct(graph(), "g", 3, out, part_method="meta")
    dgl_heta.enable()
    keep_earlier(True)
    with pytest.raises(InputError, match="out exists and holds a partition"):
        dgl.distributed.partition_graph(graph(), "g", 2, out, part_method="meta")
    dgl.distributed.partition_graph(graph(), "g", 2, out, part_method="meta", overwrite=True)
    dgl_heta.disable()
    dgl_heta.enable()
    dgl.distributed.partition_graph(graph(), "g", 3, out, part_method="meta")
    assert open_partition(out)[1].num_parts == 3
