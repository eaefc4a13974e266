"""A graph with times is refused where scripts of DistDGL and GraphBolt would sample whatever is."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("DGLBACKEND", "pytorch")

import dgl
import pytest

import dgl_heta
from dgl_heta.distdgl.session import Session
from dgl_heta.errors import InputError
from dgl_heta.graphbolt.raf_graph import GraphBoltSession
from dgl_heta.hooks.manager import Plugins
from dgl_heta.partition.directory import write_partition
from dgl_heta.planning.making import make_plan
from dgl_heta.settings import load_settings
from dgl_heta.store import Store, write_store
from tests.support.graphs import academic, with_times

REFUSED = "scripts of DistDGL and GraphBolt go by no times, but the graph in .* has some"


def test_whoever_loads_a_part_is_refused(tmp_path: Path) -> None:
    write_store(with_times(academic()), tmp_path / "store")
    store = Store(tmp_path / "store")
    config = str(write_partition(store, make_plan(store.schema, "paper", 2, 1), tmp_path / "parts",
                                 graph_name="g"))
    with pytest.raises(InputError, match=REFUSED):
        Session(config, 0, load_settings(None, []), Plugins(guests=False))
    with pytest.raises(InputError, match=REFUSED):
        GraphBoltSession(config, 1, load_settings(None, []), Plugins(guests=False))
    dgl_heta.enable()
    try:
        with pytest.raises(InputError, match=REFUSED):
            dgl.distributed.load_partition(config, 0)
    finally:
        dgl_heta.disable()
