"""Fixtures of the tests of commands."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from dgl_heta import cli
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeArrays, EdgeSource, GraphSource, Task
from dgl_heta.store import write_store
from tests.support.command_line import MAG, Result
from tests.support.graphs import academic


@pytest.fixture
def heta(capsys, monkeypatch):
    """Run a command in this process, through the entry point."""

    def run(*args: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["dgl-heta", *map(str, args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        code = end.value.code
        return Result(0 if code is None else int(code), *capsys.readouterr())

    return run


@pytest.fixture
def mag(tmp_path) -> Path:
    path = tmp_path / "mag.json"
    path.write_text(json.dumps(MAG))
    return path


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("store") / "academic"
    write_store(academic(), path)
    return path


@pytest.fixture
def store(shared_store, tmp_path) -> Path:
    return Path(shutil.copytree(shared_store, tmp_path / "store"))


@pytest.fixture
def lopsided(tmp_path) -> Path:
    """A store whose two partitions hold 1 MB each, but an owner of `t3` 1.8 MB: t3 is read into t1,
    which has the features of half the graph."""
    rng, counts = np.random.default_rng(0), {"t0": 40, "t1": 2000, "t2": 2000, "t3": 200}
    edges: dict[Relation, EdgeSource] = {
        Relation(src, etype, dst): EdgeArrays(rng.integers(0, counts[src], size),
                                              rng.integers(0, counts[dst], size))
        for src, etype, dst, size in [
            ("t1", "e0", "t0", 50), ("t3", "e1", "t0", 1000), ("t3", "e2", "t0", 50),
            ("t3", "e3", "t1", 1000), ("t2", "e4", "t0", 500)]}
    features = {t: {"feat": np.ones((counts[t], 100), np.float32)} for t in ("t1", "t2")}
    labels = {"label": rng.integers(0, 3, 40), "train_mask": np.ones(40, bool)}
    write_store(GraphSource("lopsided", counts, edges, {**features, "t0": labels}, Task("t0", 3)),
                tmp_path / "lopsided")
    return tmp_path / "lopsided"
