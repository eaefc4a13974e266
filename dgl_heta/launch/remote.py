"""Hosts of an ip_config file: this machine directly, others over ssh."""

from __future__ import annotations

import os
import shlex
import socket
from dataclasses import dataclass
from pathlib import Path

from dgl_heta.launch.activation import is_python
from dgl_heta.launch.cluster import Host
from dgl_heta.launch.connection import RECEIVE, THIS_PYTHON, Connection
from dgl_heta.launch.supervisor import Events


@dataclass(frozen=True)
class Ssh:
    """How to reach another host."""

    port: int | None = None
    user: str | None = None
    timeout: float = 30

    def command(self, host: Host, remote: str) -> list[str]:
        """The ssh command line that runs a shell command there."""
        return ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, round(self.timeout))}",
                "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4",
                *(["-p", str(self.port)] if self.port else []),
                *(["-l", self.user] if self.user else []), host.address, remote]


def connect_directly(host: Host, events: Events) -> Connection:
    """Start the agent on this machine."""
    return Connection(host, list(THIS_PYTHON), events)


def connect_over_ssh(host: Host, events: Events, ssh: Ssh, workdir: Path,
                     executable: str) -> Connection:
    """Start the agent on another machine, with the interpreter of the user's command."""
    python = executable if is_python(executable) else "python3"
    remote = (f"cd {shlex.quote(str(workdir))} && exec {shlex.quote(python)} -u -c "
              f"{shlex.quote(RECEIVE)}")
    return Connection(host, ssh.command(host, remote), events)


def is_this_machine(address: str) -> bool:
    """Return whether an address belongs to one of this machine's interfaces."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            any_socket.bind((address, 0))
        except OSError:
            return False
    return True


def carried_variables() -> dict[str, str]:
    """Return the variables of this environment that processes of another machine get."""
    return {name: value for name, value in os.environ.items()
            if name == "PYTHONPATH" or (name.startswith("DGL_HETA_")
                                        and name != "DGL_HETA_CONFIG")}
