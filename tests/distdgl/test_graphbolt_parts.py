"""`use_graphbolt=True`: refused by name wherever a meta-partition comes to it, DGL's own elsewhere.

What `load_partition`, `partition_graph` and `dgl_partition_to_graphbolt` say is in
test_partition_arguments.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dgl
import pytest

import dgl_heta
from dgl_heta.errors import InputError
from tests.support import dist_graphbolt, warm
from tests.support.partition_doors import direct, graph
from tests.support.waiting import PATIENCE, PROMPT

REFUSED = "use_graphbolt=True) cannot be used with"


@pytest.fixture
def on() -> Iterator[None]:
    dgl_heta.enable()
    yield
    dgl_heta.disable()


@pytest.fixture
def config(tmp_path: Path) -> str:
    """The part_config of a meta-partition of one part, as a process by itself takes it."""
    direct(graph(), "g", 1, str(tmp_path / "meta"), part_method="meta")
    return str(tmp_path / "meta/g.json")


ALONE = """
import sys
import dgl
import dgl_heta
dgl_heta.enable()
dgl.distributed.initialize("", use_graphbolt=True)
try:
    dgl.distributed.DistGraph("g", part_config=sys.argv[1])
except dgl_heta.InputError as error:
    print(error)
dgl.distributed.initialize("")
print(dgl.distributed.DistGraph("g", part_config=sys.argv[1]).num_nodes("paper"), "papers")
"""


def test_a_process_by_itself_gets_no_dgl_graph_in_silence(config):
    done = subprocess.run([sys.executable, "-c", ALONE, config], stdout=subprocess.PIPE, text=True,
                          timeout=PATIENCE, stderr=subprocess.STDOUT, check=False)
    assert done.returncode == 0, done.stdout
    assert f"dgl.distributed.initialize(use_graphbolt=True) cannot be used with {config}" in (
        done.stdout)
    assert f"{graph().num_nodes('paper')} papers" in done.stdout


@pytest.mark.parametrize("call", [
    lambda: dgl.distributed.initialize("ip", use_graphbolt=True),
    lambda: dgl.distributed.dist_context.initialize("ip", 1 << 20, None, 1, True)])
def test_whoever_knows_the_partition_is_refused_at_the_first_call(on, config, call, monkeypatch):
    monkeypatch.setenv("DGL_CONF_PATH", config)
    with pytest.raises(InputError, match=r"initialize\(use_graphbolt=True\) cannot be used with"):
        call()


@pytest.mark.parametrize("server", [0, 1])
def test_every_server_refuses(on, config, tmp_path, server):
    """Number 1 is a backup, which loads no part."""
    (tmp_path / "ip").write_text("127.0.0.1 30070\n")
    with pytest.raises(InputError, match=r"DistGraphServer\(use_graphbolt=True\) cannot be used"):
        dgl.distributed.dist_graph.DistGraphServer(
            server, str(tmp_path / "ip"), 2, 1, config, use_graphbolt=True)


@pytest.mark.needs("hosts")
@pytest.mark.parametrize(("method", "wrapper"), [
    ("meta", "raf"), ("random", "raf"),
    pytest.param("random", "model_average", marks=pytest.mark.thorough)])
def test_a_launched_script_is_refused_or_runs_as_in_plain_dgl(tmp_path, method, wrapper):
    if wrapper == "model_average":
        pytest.importorskip("dgl_heta_catgnn")
    options = {"use_graphbolt": True} if method == "random" else {}
    direct(graph(), "g", 2, str(tmp_path / "parts"), part_method=method, **options)
    config = tmp_path / "parts/g.json"
    command = [warm.python(), "-m", "dgl_heta", "launch", "--hosts", 2, "--part-config", config,
               "--num-omp-threads", 1, "--stop-after", PATIENCE, "--set",
               f"train.wrapper={wrapper}", "--", warm.with_dgl(), dist_graphbolt.__file__,
               "--ip-config", "{ip_config}", "--part-config", "{part_config}"]
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE,
                          timeout=PATIENCE + PROMPT, stderr=subprocess.STDOUT, text=True,
                          errors="replace", check=False, env=os.environ)
    assert json.loads(config.read_text())["num_parts"] == 2
    assert "(--stop-after)" not in done.stdout
    if method == "meta":
        assert done.returncode != 0
        assert REFUSED in done.stdout
        assert "AttributeError" not in done.stdout
    elif wrapper == "model_average":
        assert done.returncode != 0
        assert "use_graphbolt=True cannot be used with a module wrapper that stays" in done.stdout
    else:
        assert done.returncode == 0, done.stdout
        assert done.stdout.count("FusedCSCSamplingGraph gave True") == 2
