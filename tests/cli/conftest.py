"""Fixtures of the tests of commands."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from dgl_heta import cli
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
