"""Fixtures of the tests of launches."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from dgl_heta import cli
from tests.support.launching import FAKE_SSH, Place, Result


@pytest.fixture
def place(tmp_path, capfd, monkeypatch) -> Place:
    """Run `dgl-heta launch` in this process, through the entry point."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "bin").mkdir()
    ssh = tmp_path / "bin" / "ssh"
    ssh.write_text(FAKE_SSH.format(log=tmp_path / "ssh.log", unreachable="127.0.0.9"))
    ssh.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("PATH", os.pathsep.join([
        str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]))
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "DGL_HETA_CONFIG", "PYTHONUNBUFFERED"):
        monkeypatch.delenv(name, raising=False)

    def run(*args: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["dgl-heta", "launch", *map(str, args)])
        capfd.readouterr()
        started = time.monotonic()
        with pytest.raises(SystemExit) as end:
            cli.main()
        seconds = time.monotonic() - started
        code = end.value.code
        return Result(0 if code is None else int(code), *capfd.readouterr(), seconds)

    return Place(tmp_path, run)
