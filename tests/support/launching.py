"""`dgl-heta launch` in a directory of its own, on hosts of several kinds."""

from __future__ import annotations

import json
import os
import shlex
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.ssh_hosts import ADDRESSES, SshHosts
from tests.support.waiting import until

emulated = pytest.mark.needs("hosts")
over_ssh = pytest.mark.needs("sshd")
ELSEWHERE = [pytest.param("ssh", marks=over_ssh), pytest.param("emulated", marks=emulated)]
EVERYWHERE = ["direct", *ELSEWHERE]
NOWHERE = ("203.0.113.1", "203.0.113.2")  # addresses that no host has (RFC 5737)
PRINT = """
import json, os
print(json.dumps(dict(os.environ)))
"""

@dataclass
class Result:
    status: int
    out: str
    err: str
    seconds: float

    @property
    def json(self) -> Any:
        return json.loads(self.out.splitlines()[-1])

    def lines(self, label: str) -> list[str]:
        """What a process wrote on standard output."""
        return [line.removeprefix(f"[{label}] ") for line in self.out.splitlines()
                if line.startswith(f"[{label}] ")]

    @property
    def error(self) -> str:
        """The last line, which is the error."""
        last = self.err.splitlines()[-1]
        assert last.startswith("error: "), self.err
        return last.removeprefix("error: ")


@dataclass
class Place:
    """A directory to launch in; whatever is started there can be found by its path."""

    directory: Path
    run: Callable[..., Result]
    ssh_hosts: Callable[[], SshHosts]

    def script(self, text: str, name: str = "script.py") -> Path:
        path = self.directory / name
        path.write_text(text)
        return path

    def parts(self, count: int) -> Path:
        path = self.directory / f"parts{count}.json"
        path.write_text(json.dumps({"num_parts": count}))
        return path

    def ip_config(self, *addresses: str) -> Path:
        path = self.directory / "ip_config.txt"
        path.write_text("".join(f"{a} {free_port(a)}\n" for a in addresses))
        return path

    def where(self, kind: str, hosts: int = 2) -> list[Any]:
        """The options for a kind of hosts: this machine, over ssh, emulated, or out of reach."""
        if kind == "emulated":
            return ["--hosts", hosts, "--part-config", self.parts(hosts)]
        if kind == "direct":
            return ["--ip-config", self.ip_config("127.0.0.1"), "--part-config", self.parts(1),
                    "--num-trainers", hosts]
        if kind == "nowhere":
            return ["--no-local", *self.listed(*NOWHERE[:hosts])]
        return ["--ssh-config", self.ssh_hosts().config, *self.listed(*ADDRESSES[:hosts])]

    def listed(self, *hosts: str) -> list[Any]:
        """The options for these hosts, addresses or names."""
        path = self.script("".join(f"{host}\n" for host in hosts), "ip_config.txt")
        return ["--ip-config", path, "--part-config", self.parts(len(hosts))]

    def living(self) -> list[str]:
        """Command lines of processes that belong to this directory."""
        return living(self.directory)

    def assert_nothing_left(self, within: float = 0) -> None:
        until(lambda: not self.living() and not self._temporary(), within)
        assert self.living() == []
        assert self._temporary() == []

    def _temporary(self) -> list[Path]:
        return list((self.directory / "tmp").iterdir())

def free_port(address: str) -> int:
    """A port that nothing listens at."""
    with socket.socket() as listener:
        listener.bind((address, 0))
        return listener.getsockname()[1]

@contextmanager
def command_lines_of_ssh(seen: Path) -> Iterator[list[str]]:
    """Those of two connections of this process, found beside it; a file says that they are."""
    lines: list[str] = []

    def look() -> None:
        def running() -> list[str]:
            return [shlex.join(child.cmdline()) for child in psutil.Process().children()
                    if child.name() == "ssh"]

        until(lambda: len(running()) == 2)
        lines.extend(running())
        seen.touch()

    with ThreadPoolExecutor(1) as beside:
        looked = beside.submit(look)
        yield lines
        looked.result()
    assert len(lines) == 2


def living(directory: Path) -> list[str]:
    """Command lines of processes, other than this one, that name a directory."""
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if str(directory) in line and state != "Z":
                lines.append(line)
    return lines
