"""Two hosts with OpenSSH's server, each in network, mount and process namespaces of its own.

The hosts and the launcher's side share a bridge, 10.99.0.0/24, in a network namespace that tests
enter. The hosts alone share a second network, 10.98.0.0/24: who wants to reach host 1 there needs
host 0 to jump. File systems are shared but for /dev/shm, /run and what a test mounts on one host.
Keys, known hosts and the configuration of ssh are made here.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

import psutil

from dgl_heta.launch.emulated import NAMESPACES, PRIVATE_SHM
from tests.support.waiting import until

SSHD = shutil.which("sshd", path=os.pathsep.join([os.defpath, "/usr/sbin", "/usr/local/sbin"]))
ADDRESSES = ("10.99.0.1", "10.99.0.2")
BEHIND = ("10.98.0.1", "10.98.0.2")  # by which the hosts alone reach each other
MANY = tuple(f"10.99.0.{number}" for number in range(11, 23))  # further ones of host 0
LAUNCHER = "10.99.0.254"
USER = "trainer"  # of both hosts, who is root by another name
OTHER_PORT = 2222  # where the hosts' sshd asks after its clients and gives them up in seconds
CLONE_NEWNET = 0x40000000

SERVER = """
Port 22
Port {port}
HostKey {directory}/host{index}
AuthorizedKeysFile {directory}/key.pub
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PidFile none
MaxStartups 8:100:8
AcceptEnv TMPDIR
SetEnv PATH={path}
LogLevel QUIET
Match LocalPort {port}
    ClientAliveInterval 1
    ClientAliveCountMax 3
"""
CLIENT = """
Host *
    IdentityFile {key}
    IdentitiesOnly yes
    IdentityAgent none
    UserKnownHostsFile {known}
    GlobalKnownHostsFile /dev/null
    SendEnv TMPDIR
"""


class SshHosts:
    """The hosts, as long as the context lasts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = directory / "ssh_config"
        self._servers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> SshHosts:
        self._make_keys()
        with ExitStack() as stack:
            self._bridge = stack.enter_context(_namespaces(["--net", "cat"]))
            for index in range(len(ADDRESSES)):
                self._servers.append(stack.enter_context(_namespaces([
                    *NAMESPACES, "sh", "-c",
                    f"{PRIVATE_SHM} && mount -t tmpfs tmpfs /run && mkdir /run/sshd && "
                    f"mount --bind {self.directory}/passwd /etc/passwd && "
                    f"{{ {SSHD} -D -e -f {self.directory}/sshd{index} & cat; }}"])))
            self._lay_links()
            with self.inside():
                assert all(until(lambda at=at: _listens(at)) for at in ADDRESSES)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._stack.close()

    def _make_keys(self) -> None:
        for name in ("key", "other_key", "host0", "host1"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
                            self.directory / name], check=True)
        self.configure(self.config)
        for index in range(len(ADDRESSES)):
            (self.directory / f"sshd{index}").write_text(
                SERVER.format(directory=self.directory, index=index, port=OTHER_PORT, path=(
                    f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")))
        (self.directory / "home").mkdir()  # this machine's may have a .bashrc
        (self.directory / "passwd").write_text("".join(
            f"{user}:x:0:0::{self.directory}/home:/bin/sh\n" for user in ("root", USER))
            + re.sub("^root:.*\n", "", Path("/etc/passwd").read_text(), flags=re.MULTILINE))

    def configure(self, file: Path, first: str = "", key: str = "key",
                  known: tuple[str, ...] = ("host0", "host1")) -> Path:
        """Write a configuration of ssh: what comes first, with which key, and the keys that are
        known of the hosts, which may be fewer or others."""
        lines = []
        for index, name in enumerate(known):
            addresses = (ADDRESSES[index], BEHIND[index])
            names = [f"node{index}", *addresses, *(MANY if index == 0 else ())]
            names += [f"[{at}]:{OTHER_PORT}" for at in names]
            lines.append(f"{','.join(names)} {(self.directory / f'{name}.pub').read_text()}")
        file.with_suffix(".known").write_text("".join(lines))
        file.write_text(f"{first}\n" + CLIENT.format(
            key=self.directory / key, known=file.with_suffix(".known")))
        return file

    def _lay_links(self) -> None:
        servers = [server.pid for server in self._servers]
        self._ip(self._bridge.pid, "link set lo up", "link add bridge type bridge",
                 f"addr add {LAUNCHER}/24 dev bridge", "link set bridge up",
                 "ntable change name arp_cache dev bridge mcast_probes 1",  # soon, there is no host
                 *(line for i, pid in enumerate(servers) for line in (
                     f"link add port{i} type veth peer name eth0 netns {pid}",
                     f"link set port{i} master bridge", f"link set port{i} up")))
        self._ip(servers[0], f"link add eth1 type veth peer name eth1 netns {servers[1]}")
        for pid, address, behind in zip(servers, ADDRESSES, BEHIND, strict=True):
            self._ip(pid, "link set lo up", f"addr add {address}/24 dev eth0",
                     f"addr add {behind}/24 dev eth1", "link set eth0 up", "link set eth1 up")
        self._ip(servers[0], *(f"addr add {address}/24 dev eth0" for address in MANY))

    def _ip(self, pid: int, *lines: str) -> None:
        subprocess.run(["nsenter", "--target", str(pid), "--net", "ip", "-batch", "-"],
                       input="\n".join(lines), text=True, check=True)

    def link(self, index: int, state: str) -> None:
        """Plug a host's cable to the launcher's side in (`up`) or pull it (`down`)."""
        self._ip(self._bridge.pid, f"link set port{index} {state}")

    @contextmanager
    def inside(self) -> Iterator[None]:
        """The launcher's network, for this thread and the processes that it starts."""
        with (open("/proc/thread-self/ns/net") as before,
              open(f"/proc/{self._bridge.pid}/ns/net") as there):
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(before.fileno())

    @contextmanager
    def mounted(self, index: int, target: Path, source: Path | None = None, size: str = "50%"
                ) -> Iterator[None]:
        """One host has something else there: an empty disk of that size, or another file."""
        what = (["-t", "tmpfs", "-o", f"size={size}", "tmpfs"] if source is None
                else ["--bind", str(source)])
        (first,) = psutil.Process(self._servers[index].pid).children()
        enter = ["nsenter", "--target", str(first.pid), "--mount", "--pid"]  # whose /proc it is
        subprocess.run([*enter, "mount", *what, str(target)], check=True)
        try:
            yield
        finally:
            subprocess.run([*enter, "umount", "--lazy", str(target)], check=True)

    def sessions(self, index: int) -> list[psutil.Process]:
        """The processes of sshd on a host that serve a connection."""
        found = psutil.Process(self._servers[index].pid).children(recursive=True)
        return [process for process in found
                if process.name() == process.parent().name() == "sshd"]  # not who listens


@contextmanager
def _namespaces(words: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["unshare", *words], stdin=subprocess.PIPE,  # for cat: as long as
                               stdout=subprocess.DEVNULL)  # this process lives
    own = os.readlink("/proc/self/ns/net")
    try:
        assert until(lambda: os.readlink(f"/proc/{process.pid}/ns/net") != own)
        yield process
    finally:
        process.kill()
        process.wait()


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _listens(address: str) -> bool:
    try:
        socket.create_connection((address, 22), 1).close()
    except OSError:
        return False
    return True
