"""Fixtures of the tests of launches."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dgl_heta import cli
from tests.support.launching import Place, Result
from tests.support.ssh_hosts import SshHosts


@pytest.fixture(scope="session")
def all_ssh_hosts(tmp_path_factory) -> Iterator[SshHosts]:
    with SshHosts(tmp_path_factory.mktemp("ssh")) as hosts:
        yield hosts


@pytest.fixture
def place(tmp_path, capfd, monkeypatch, request) -> Iterator[Place]:
    """Run `dgl-heta launch` in this process, through the entry point; in the network of the hosts
    with sshd once a test asks for these."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent),
                                                os.environ["PATH"]]))
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

    with ExitStack() as network:
        def ssh_hosts() -> SshHosts:
            hosts: SshHosts = request.getfixturevalue("all_ssh_hosts")
            network.enter_context(hosts.inside())
            return hosts

        yield Place(tmp_path, run, ssh_hosts)
