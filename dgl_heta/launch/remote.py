"""Hosts of an ip_config file: this machine directly, others over ssh."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dgl_heta.errors import InputError
from dgl_heta.launch.activation import is_python
from dgl_heta.launch.cluster import Host
from dgl_heta.launch.connection import RECEIVE, THIS_PYTHON, Connection
from dgl_heta.launch.supervisor import Events

ALIVE_S = 15  # between two questions to a host that says nothing; after four it is given up
REMEDIES = (  # what ssh writes, the cause before what it brings about; what to do about it
    (r"^host key for .* has changed",
     "if the host was set up anew, remove its old key (ssh-keygen -R {host}) and connect by hand"),
    (r"host key verification failed",
     "connect by hand and compare its key's fingerprint, or put its key into known_hosts"),
    (r"permission denied \(|too many authentication failures",
     "let it accept a key of yours (ssh-copy-id {host}), or name key and user in ssh's config"),
    (r"could not resolve|name or service not known", "write an address, or give it HostName in "
     "ssh's config"),
    (r"connection refused|timed out|no route to host|network is unreachable",
     "is it up, and is this the port of its sshd (--ssh-port)?"),
    (r"kex_exchange_identification|reset by peer", "does the host, or a jump host on the way, turn "
     "this machine away (MaxStartups and PerSourceMaxStartups of its sshd, a firewall)?"),
    (r"python.*(not found|no such file)",
     "give the path of the host's Python in the command"),
)


@dataclass(frozen=True)
class Ssh:
    """How to reach other hosts: by the user's own ssh, which must not have to ask anything."""

    port: int | None = None
    user: str | None = None
    timeout: float = 30
    config: Path | None = None  # of ssh, in the place of ~/.ssh/config

    @property
    def by_hand(self) -> list[str]:
        """Return ssh with what the user has said of it."""
        return ["ssh", *(["-F", str(self.config)] if self.config else []),
                *(["-p", str(self.port)] if self.port else []),
                *(["-l", self.user] if self.user else [])]

    @property
    def program(self) -> list[str]:
        """Return ssh with all options; joined by shlex, as `rsync -e` takes it."""
        # The launcher's own limit, which names all hosts that are late, comes first.
        return [*self.by_hand, "-T", "-o", "BatchMode=yes",
                "-o", f"ConnectTimeout={round(self.timeout) + 1}",
                "-o", f"ServerAliveInterval={ALIVE_S}", "-o", "ServerAliveCountMax=4"]

    def command(self, host: Host, remote: str) -> list[str]:
        """The ssh command line that runs a shell command there."""
        return [*self.program, host.destination, remote]

    def explained(self, host: Host, complaints: Sequence[str]) -> str:
        """Return the line of ssh that tells why it failed, and what to do about that."""
        for pattern, remedy in REMEDIES:
            for line in complaints:
                if re.search(pattern, line, re.I):
                    return f"{line}; {remedy.format(host=host.destination)}"
        by_hand = shlex.join([*self.by_hand, host.destination])
        return f"{complaints[-1] if complaints else 'no reason'}; try by hand: {by_hand}"


def connect_directly(host: Host, events: Events) -> Connection:
    """Start the agent on this machine."""
    return Connection(host, list(THIS_PYTHON), events)


def connect_over_ssh(host: Host, events: Events, ssh: Ssh, workdir: Path,
                     executable: str) -> Connection:
    """Start the agent on another machine, with the interpreter of the user's command.

    Raises
    ------
    InputError
        There is no ssh.
    """
    if shutil.which("ssh") is None:
        raise InputError(f"{host} cannot be reached: there is no ssh here; install it (on Debian, "
                         "openssh-client)")
    python = executable if is_python(executable) else "python3"
    # Without the directory the agent says so, unless the path of Python is relative to it.
    remote = (f"cd {shlex.quote(str(workdir))}; exec {shlex.quote(python)} -u -c "
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
