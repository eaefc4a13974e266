"""Hosts emulated on one machine: network namespaces, joined by links of a given speed.

Every host has network, mount and process namespaces of its own, so also a /dev/shm of its own:
DistDGL names its shared memory after the graph, and two hosts would use the same. The namespaces
have no names; the kernel removes them, with their links and whatever still runs in them, when
the agent of the host ends, and the agent ends when the launcher does, however that ended.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass
from types import TracebackType

from dgl_heta.errors import HetaError, InputError
from dgl_heta.launch.cluster import Host
from dgl_heta.launch.connection import THIS_PYTHON, Connection
from dgl_heta.launch.supervisor import Events

MOST_HOSTS = 250
MASTER_PORT = 29500
INTERFACE = "eth0"
TOOLS = ("ip", "tc", "unshare", "nsenter", "mount")
CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
NAMESPACES = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
AS_ROOT_OF_ITS_OWN = ("--user", "--map-root-user")
PRIVATE_SHM = "mount -t tmpfs tmpfs /dev/shm"
BURST_S, QUEUE_S = 0.002, 0.03  # of a link at its full rate
LEAST_BURST, LEAST_QUEUE = 32 << 10, 256 << 10
VARIABLES = {"GLOO_SOCKET_IFNAME": INTERFACE, "NCCL_SOCKET_IFNAME": INTERFACE,
             "TP_SOCKET_IFNAME": INTERFACE}


@dataclass(frozen=True)
class Link:
    """The link that joins a host to the others."""

    rate: str | None = None  # as tc writes it: 1gbit
    latency_ms: float = 0

    def __post_init__(self) -> None:
        if self.rate is not None and not re.fullmatch(r"\d+(\.\d+)?[kmg]?bit", self.rate.lower()):
            raise InputError(f"--rate {self.rate}: write a number with kbit, mbit or gbit, for "
                             "example 1gbit")
        if self.rate is not None and not self.bits_per_second():
            raise InputError(f"--rate {self.rate}: the rate must be more than 0")

    def bits_per_second(self) -> float:
        """The rate as a number."""
        assert self.rate is not None
        number, unit = re.split(r"(?=[kmg]?bit)", self.rate.lower(), maxsplit=1)
        return float(number) * {"bit": 1, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}[unit]

    def limits(self, device: str, delay: bool) -> list[str]:
        """The tc commands for what a device sends."""
        lines, parent = [], "root"
        if delay and self.latency_ms:
            lines.append(f"qdisc add dev {device} root handle 1: netem delay {self.latency_ms}ms "
                         "limit 100000")
            parent = "parent 1:"
        if self.rate is not None:
            per_second = self.bits_per_second() / 8
            burst = max(LEAST_BURST, round(per_second * BURST_S))
            queue = max(LEAST_QUEUE, round(per_second * QUEUE_S))
            lines.append(f"qdisc add dev {device} {parent} handle 2: tbf "
                         f"rate {self.bits_per_second():.0f}bit burst {burst} limit {queue}")
        return lines


def emulated_hosts(count: int) -> list[Host]:
    """`count` hosts; the addresses exist in their namespaces alone."""
    if count > MOST_HOSTS:
        raise InputError(f"--hosts is {count}; {MOST_HOSTS} hosts can be emulated at most")
    return [Host(i, f"10.99.0.{i + 1}") for i in range(count)]


class Network:
    """The links between emulated hosts; a context that removes them.

    Raises
    ------
    HetaError
        Hosts cannot be emulated here.
    """

    def __init__(self, link: Link, events: Events) -> None:
        self.link, self.events = link, events
        reason = emulation_refused()
        if reason is not None:
            raise HetaError(f"hosts cannot be emulated here: {reason}; or name real hosts with "
                            "--ip-config")

    def __enter__(self) -> Network:
        user = [] if _privileged() else AS_ROOT_OF_ITS_OWN
        # The bridge has a namespace of its own, which lives as long as this process.
        self._bridge = subprocess.Popen(
            ["unshare", *user, "--net", "sh", "-c", "echo; exec cat"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
        assert self._bridge.stdout is not None
        self._bridge.stdout.readline()
        self._enter = ["nsenter", "--target", str(self._bridge.pid),
                       *(["--user", "--preserve-credentials"] if user else [])]
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def _watch(self) -> None:
        """Tell when the bridge's process ends: the hosts are cut off from each other."""
        self._bridge.wait()
        self.events.put((-1, {"event": "bridge", "reason": (
            f"the process that keeps the bridge of the emulated hosts (pid {self._bridge.pid}) "
            f"ended (status {self._bridge.returncode}); all processes were ended")}))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._bridge.kill()
        self._bridge.wait()

    def connect(self, host: Host) -> Connection:
        """Start the agent of a host, in namespaces of its own."""
        enter = [] if _privileged() else self._enter
        return Connection(host, [
            *enter, "unshare", *NAMESPACES, "sh", "-c", f'{PRIVATE_SHM} && exec "$@"', "sh",
            *THIS_PYTHON], self.events)

    def join(self, connections: list[Connection]) -> None:
        """Lay the links, once the agents run."""
        wires = ["link add bridge type bridge mcast_snooping 0",
                 "link set bridge addrgenmode none", "link set bridge up"]
        limits: list[str] = []
        for one in connections:
            port = f"port{one.host.index}"
            wires += [f"link add {port} type veth peer name {INTERFACE} netns {one.process.pid}",
                      f"link set {port} addrgenmode none", f"link set {port} master bridge",
                      f"link set {port} up"]
            limits += self.link.limits(port, delay=False)
        self._batch("ip", wires, self._bridge.pid)
        self._batch("tc", limits, self._bridge.pid)
        for one in connections:
            pid = one.process.pid
            self._batch("ip", [
                "link set lo up", f"link set {INTERFACE} addrgenmode none",
                f"addr add {one.host.address}/24 dev {INTERFACE}",
                f"link set {INTERFACE} up"], pid)
            self._batch("tc", self.link.limits(INTERFACE, delay=True), pid)

    def _batch(self, tool: str, lines: list[str], pid: int) -> None:
        if not lines:
            return
        user = self._enter[3:]
        done = subprocess.run(
            ["nsenter", "--target", str(pid), *user, "--net", tool, "-batch", "-"],
            input="\n".join(lines) + "\n", text=True, capture_output=True)
        if done.returncode:
            reason = " ".join(done.stderr.split())
            if "netem" in "".join(lines) and "kind is unknown" in reason:
                raise InputError("--latency needs the kernel's 'netem' queue, which is not there; "
                                 "load the module sch_netem, or leave --latency out")
            raise HetaError(f"the links of emulated hosts could not be made: {tool}: {reason}")


@functools.cache
def emulation_refused() -> str | None:
    """Why hosts cannot be emulated on this machine, or None when they can."""
    if sys.platform != "linux":
        return "that needs Linux"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return (f"{', '.join(missing)} not found; install it (on Debian, iproute2, util-linux "
                "and mount)")
    tried = _try([] if _privileged() else AS_ROOT_OF_ITS_OWN)
    if tried is None:
        return None
    absent = [name for name in CAPABILITIES if not _capable(name)]
    if absent:
        return (f"this process has no {' and no '.join(absent)}, and a user namespace instead is "
                f"not permitted ({tried}); run as root")
    return f"{tried}; run where that is permitted"


def _privileged() -> bool:
    return all(_capable(name) for name in CAPABILITIES)


def _capable(name: str) -> bool:
    with open("/proc/self/status", encoding="ascii") as file:
        match = re.search(r"^CapEff:\s*([0-9a-f]+)", file.read(), re.MULTILINE)
    return match is not None and bool(int(match[1], 16) >> CAPABILITIES[name] & 1)


def _try(user: tuple[str, ...] | list[str]) -> str | None:
    """Make what an emulated host needs and let it go again; why that failed, or None."""
    done = subprocess.run(
        ["unshare", *user, *NAMESPACES, "sh", "-c",
         f"{PRIVATE_SHM} && ip link add port0 type veth peer name {INTERFACE} && "
         f"ip link add bridge type bridge && tc qdisc add dev {INTERFACE} root tbf "
         f"rate 1gbit burst {LEAST_BURST} limit {LEAST_QUEUE}"],
        text=True, capture_output=True, stdin=subprocess.DEVNULL,
        env={**os.environ, "LC_ALL": "C"})
    if done.returncode == 0:
        return None
    return " ".join(done.stderr.split()) or f"unshare ended with status {done.returncode}"
