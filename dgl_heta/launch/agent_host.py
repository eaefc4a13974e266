"""Questions of an agent to its machine: ports, interfaces, versions, processes below it.

This file uses the standard library alone: another host gets its text with the agent's.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import glob
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time

from dgl_heta.system.shared_memory import remove_unused

VERSIONS = """
import importlib.metadata, json, platform
found = {"python": platform.python_version()}
for name in ("dgl", "torch", "dgl-heta"):
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found[name] = None
print(json.dumps(found))
"""
VERSIONS_S = 25.0  # for an interpreter to tell them
PREFIX = "dgl-heta-launch-"
SHARED = "shared-memory"  # in the directory of an agent: names in /dev/shm that its processes made
LOCKED_BY_S = 10.0  # a directory that is older and has no lock is a dead process's
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SIOCGIFADDR = 0x8915
LIBC = ctypes.CDLL(None)


def own_directory() -> str:
    """A new directory for temporary files, locked as long as this process lives.

    Those that dead ones left are removed, for nobody has their lock, and with them what their
    processes left in shared memory.
    """
    for path in glob.glob(os.path.join(tempfile.gettempdir(), PREFIX + "*")):
        with contextlib.suppress(OSError):
            status = os.lstat(path)
            if status.st_uid == os.getuid() and time.time() - status.st_mtime > LOCKED_BY_S:
                handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    with contextlib.suppress(OSError), open(os.path.join(path, SHARED)) as lines:
                        remove_unused(set(lines.read().splitlines()))
                    shutil.rmtree(path, ignore_errors=True)
                finally:
                    os.close(handle)
    path = tempfile.mkdtemp(prefix=PREFIX)
    with contextlib.suppress(OSError):
        fcntl.flock(os.open(path, os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_SH | fcntl.LOCK_NB)
    return path


def guarded() -> None:
    """Go on in a child; this process ends all that comes of it when it dies, however that is.

    The first process of a namespace needs none: the kernel ends the namespace with it.
    """
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    agent = os.fork()
    if agent == 0:
        die_with_parent()
        return
    os.close(0)
    os.close(1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(agent, number))
    status = None
    while status is None:
        pid, ended = os.wait()
        status = ended if pid == agent else None
    while left := descendants():
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.waitpid(-1, os.WNOHANG)
        time.sleep(0.01)
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))


def descendants() -> list[int]:
    """All living processes below this one, also those in sessions of their own."""
    parents: dict[int, list[int]] = {}
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except OSError:
            continue
        if state != b"Z":
            parents.setdefault(int(parent), []).append(pid)
    pids, queue = [], [os.getpid()]
    while queue:
        below = parents.get(queue.pop(), [])
        pids += below
        queue += below
    return pids


def cannot_listen(address: str, port: int) -> str | None:
    """Why a server cannot listen there, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
            listener.listen(1)
        except OSError as error:
            return f"port {port} at {address} cannot be used: {error.strerror or error}"
    return None


def versions_of(python: str, environment: dict[str, str]) -> dict[str, str | None] | None:
    """The versions of the packages that an interpreter finds."""
    try:
        done = subprocess.run([python, "-c", VERSIONS], env=environment, capture_output=True,
                              stdin=subprocess.DEVNULL, check=False, timeout=VERSIONS_S)
        return json.loads(done.stdout)
    except (ValueError, OSError, subprocess.TimeoutExpired):
        return None


def free_port(address: str, taken: list[int]) -> int | None:
    """A port that nothing uses, other than those taken."""
    for _ in range(100):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            try:
                listener.bind((address, 0))
            except OSError:
                return None
            port = listener.getsockname()[1]
        if port not in taken:
            return port
    return None


def interface_of(address: str) -> str | None:
    """The interface that has an address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR,
                                     struct.pack("256s", name[:15].encode()))
            except OSError:
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process (see prctl(2))."""
    LIBC.prctl(option, value, 0, 0, 0)


def die_with_parent() -> None:
    """Have the kernel end this process when its parent ends, however it ends."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
