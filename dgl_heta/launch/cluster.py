"""The hosts of a launch, and the processes that run there with their environment."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from dgl_heta.errors import InputError, quoted
from dgl_heta.launch.activation import Command
from dgl_heta.system.limited import read_limited

MOST_BYTES = 64 << 20  # of ip_config and part_config
DGL_PORT = 30050  # of a line of ip_config without a port
HOSTNAME = re.compile(r"[a-zA-Z][a-zA-Z0-9._-]*")  # what begins with a dash is an option of ssh


@dataclass(frozen=True)
class Host:
    """A machine of the job, a line of ip_config; with its host name if that is what it says."""

    index: int
    address: str
    port: int = DGL_PORT
    hostname: str | None = None

    @property
    def name(self) -> str:
        """As output lines and messages call it: `host0`."""
        return f"host{self.index}"

    @property
    def destination(self) -> str:
        """Return the name, else the address: ssh compares its configuration with it."""
        return self.hostname or self.address

    def __str__(self) -> str:
        return f"{self.name} ({self.destination})"


@dataclass(frozen=True)
class Roles:
    """How many processes a host runs, and what all of them are told."""

    trainers: int = 1
    samplers: int = 0
    servers: int = 1
    server_threads: int = 1
    omp_threads: int | None = None
    graph_format: str = "csc"
    variables: dict[str, str] = field(default_factory=dict)

    def ports(self, host: Host) -> list[int]:
        """Where the servers of the host listen."""
        return [host.port + i for i in range(self.servers)]


@dataclass(frozen=True)
class Files:
    """Where the processes of a host find their files."""

    ip_config: str
    part_config: str
    config: str | None = None


@dataclass(frozen=True)
class Process:
    """A server or a trainer; `number` counts its kind over all hosts."""

    host: Host
    role: str
    number: int
    command: list[str]
    environment: dict[str, str]

    @property
    def label(self) -> str:
        """As its output lines are marked: `host1 trainer3`."""
        return f"{self.host.name} {self.role}{self.number}"

    def __str__(self) -> str:
        what = f"rank {self.number}" if self.role == "trainer" else f"server id {self.number}"
        return f"{self.role} {self.number} on {self.host} ({what})"


def read_ip_config(path: Path) -> list[Host]:
    """The hosts of an ip_config file: a line `address [port]`, or `name [port]`, per host.

    Raises
    ------
    InputError
        An unreadable file, a line of another form, a name without an address, or with one that
        means every machine itself, an address that two hosts share.
    """
    try:
        lines = read_limited(path, MOST_BYTES).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path} (--ip-config): "
                         f"{getattr(error, 'strerror', None) or error}") from None
    hosts: list[Host] = []
    taken: set[str] = set()
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words:
            continue
        if len(words) > 2:
            raise InputError(f"{path}, line {number}: '{line.strip()}'; write 'address [port]'")
        address = _address(words[0], path, number)
        host = Host(len(hosts), address,
                    _port(words[1], path, number) if len(words) == 2 else DGL_PORT,
                    None if words[0] == address else words[0])
        if host.address in taken:
            raise InputError(f"{path}, line {number}: {host.address} is the address of two "
                             "hosts; DistDGL tells hosts apart by their address")
        hosts.append(host)
        taken.add(host.address)
    if not hosts:
        raise InputError(f"{path} names no host; write 'address [port]', a line per host")
    for host in hosts:
        if host.hostname and len(hosts) > 1 and ipaddress.IPv4Address(host.address).is_loopback:
            raise InputError(f"{path}: '{host.hostname}' is {host.address} here, by which other "
                             "hosts do not reach it; write the address of its interface")
    return hosts


def _address(text: str, path: Path, number: int) -> str:
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError:
        reason = "it cannot be a name either"
    if HOSTNAME.fullmatch(text):
        try:
            return str(socket.getaddrinfo(text, None, socket.AF_INET)[0][4][0])
        except (OSError, UnicodeError) as error:
            reason = f"as a name this machine does not know it: {error.args[-1]}"
    raise InputError(f"{path}, line {number}: '{text}' is no IPv4 address ({reason}); write the "
                     "address: DistDGL looks for it among those of the host's interfaces")


def _port(text: str, path: Path, number: int) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise InputError(f"{path}, line {number}: '{text}' is no port; give a number from 1 to "
                         "65535, or leave it out")
    return int(text)


def write_ip_config(hosts: Iterable[Host]) -> str:
    """The text of an ip_config file."""
    return "".join(f"{host.address} {host.port}\n" for host in hosts)


@dataclass(frozen=True)
class Parts:
    """The maker of the partitions of a part_config, and the files of each partition."""

    ours: bool
    files: tuple[tuple[str, ...], ...]


def check_part_config(path: Path, hosts: int) -> Parts:
    """Check that there is one partition per host, and return where their files are.

    Raises
    ------
    InputError
        An unreadable file, one without `num_parts`, another number of partitions.
    """
    try:
        content = json.loads(read_limited(path, MOST_BYTES).decode("utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path} (--part-config): "
                         f"{error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path} (--part-config) is not JSON; give the file that "
                         "partition_graph wrote, such as data/mag.json") from None
    parts = content.get("num_parts") if isinstance(content, dict) else None
    if not isinstance(parts, int) or isinstance(parts, bool):
        raise InputError(f"{path} (--part-config) has no 'num_parts'; give the file that "
                         "partition_graph wrote, such as data/mag.json")
    if parts != hosts:
        raise InputError(f"{path} has {quoted(parts)} partition{'s' * (parts != 1)}, but there "
                         f"{'is 1 host' if hosts == 1 else f'are {hosts} hosts'}; DistDGL needs "
                         "one host per partition")
    named = [part if isinstance(part := content.get(f"part-{i}"), dict) else {}
             for i in range(parts)]
    return Parts("dgl_heta_plan" in named[0], tuple(
        tuple(str(path.absolute().parent / file) for file in part.values() if isinstance(file, str))
        for part in named))


def processes_of(host: Host, hosts: int, roles: Roles, files: Files, command: Command,
                 master: tuple[str, int], cores: int,
                 variables: dict[str, str], meeting: dict[str, str]) -> list[Process]:
    """The servers and trainers of a host, with what DistDGL and torch.distributed ask for.

    `variables` are further ones that the host needs, `meeting` those by which trainers meet;
    those of `roles` win over all.
    """
    shared = {
        **variables,
        "DGL_NUM_SERVER": str(roles.servers),
        "DGL_NUM_CLIENT": str(roles.trainers * (1 + roles.samplers) * hosts),
        "DGL_NUM_SAMPLER": str(roles.samplers),
        "DGL_CONF_PATH": files.part_config,
        "DGL_IP_CONFIG": files.ip_config,
        "DGL_GRAPH_FORMAT": roles.graph_format,
        # OpenMP threads that spin while they wait take the cores from all others.
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
        # Tensors of megabytes on huge pages: PyTorch returns them to the system at every step.
        "THP_MEM_ALLOC_ENABLE": os.environ.get("THP_MEM_ALLOC_ENABLE", "1"),
        "PYTHONUNBUFFERED": os.environ.get("PYTHONUNBUFFERED", "1"),
    }
    words = command.on(files.ip_config, files.part_config, files.config)
    processes = []
    for i in range(roles.servers):
        number = host.index * roles.servers + i
        processes.append(Process(host, "server", number, words, {
            **shared, "DGL_ROLE": "server", "DGL_SERVER_ID": str(number),
            "OMP_NUM_THREADS": str(roles.server_threads), **roles.variables}))
    threads = roles.omp_threads or max(1, cores // roles.trainers)
    for i in range(roles.trainers):
        rank = host.index * roles.trainers + i
        processes.append(Process(host, "trainer", rank, words, {
            **shared, **meeting, "DGL_ROLE": "client", "DGL_DIST_MODE": "distributed",
            "DGL_GROUP_ID": "0", "OMP_NUM_THREADS": str(threads),
            "RANK": str(rank), "WORLD_SIZE": str(roles.trainers * hosts), "LOCAL_RANK": str(i),
            "LOCAL_WORLD_SIZE": str(roles.trainers), "MASTER_ADDR": master[0],
            "MASTER_PORT": str(master[1]), **roles.variables}))
    return processes
