"""What runs on every host of a launch: it starts processes, passes on their output, ends them.

Requests are lines of JSON on standard input, events lines of JSON on standard output. When the
input ends, because the launcher ended however it ended, all processes are ended. This file uses
the standard library alone: another host gets its text over the connection.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import re
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

KILL_AFTER_S = 3.0  # between the request to end and the kill
MOST_LINE = 65536  # longer lines are passed on in pieces
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
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SIOCGIFADDR = 0x8915
LIBC = ctypes.CDLL(None)


class Stream:
    """An output of a process, cut into lines."""

    def __init__(self, label: str, name: str, fd: int) -> None:
        self.label, self.name, self.fd, self.rest = label, name, fd, b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that are complete now; a carriage return ends one too (progress bars)."""
        *lines, rest = (self.rest + data).split(b"\n")
        for line in lines:
            pieces = [p for p in line.split(b"\r") if p]
            yield from pieces or [b""]
        *pieces, self.rest = re.split(rb"\r(?!$)", rest)
        yield from (p for p in pieces if p)
        if len(self.rest) > MOST_LINE:
            yield self.flush()

    def flush(self) -> bytes:
        """What is there of a line that has no end yet."""
        line, self.rest = self.rest, b""
        return line


class Agent:
    """The processes of a host."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.requests = Stream("", "", 0)
        self.children: dict[int, tuple[str, subprocess.Popen, list[Stream]]] = {}  # by pid
        self.directory: str | None = None
        self.interface: str | None = None
        self.bytes_before = (0, 0)
        self.ending = False
        self.kill_at = float("inf")

    def run(self) -> None:
        """Serve requests until the end is asked for and all processes are gone."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans of the processes become children of this one
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self.end(signal.SIGTERM, KILL_AFTER_S))
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.selector.register(0, selectors.EVENT_READ, None)
        self.selector.register(reader, selectors.EVENT_READ, reader)
        self.emit(event="hello")
        try:
            while not (self.ending and self.all_gone()):
                for key, _ in self.selector.select(0.05 if self.ending else 1.0):
                    if key.fd == 0:
                        self.receive()
                    elif key.data == reader:
                        with contextlib.suppress(BlockingIOError):
                            os.read(reader, 4096)
                    else:
                        self.pass_on(key.data)
                self.reap()
            self.reap()
            self.emit(event="ended", bytes=self.traffic())
        finally:
            if self.directory:
                shutil.rmtree(self.directory, ignore_errors=True)

    def emit(self, **event: object) -> None:
        """Tell the launcher."""
        try:
            sys.stdout.buffer.write(json.dumps(event).encode() + b"\n")
            sys.stdout.buffer.flush()
        except OSError:  # the launcher is gone
            self.end(signal.SIGTERM, KILL_AFTER_S)

    def receive(self) -> None:
        """Do what the launcher asks for; the end of its requests asks for the end."""
        data = os.read(0, MOST_LINE)
        if not data:
            self.selector.unregister(0)
            self.end(signal.SIGTERM, KILL_AFTER_S)
        self.requests.rest += data
        *lines, self.requests.rest = self.requests.rest.split(b"\n")
        for line in lines:
            request = json.loads(line)
            getattr(self, request.pop("do"))(**request)  # prepare, start or end

    # --- before the start --------------------------------------------------------------------

    def prepare(self, address: str, ports: list[int], workdir: str, environment: dict[str, str],
                executable: str, exists: list[str], write: dict[str, str],
                cores: list[int] | None, versions: bool) -> None:
        """Check what a start needs, and write the files that the processes read."""
        problems = []
        if cores:
            os.sched_setaffinity(0, cores)
        full = {**os.environ, **environment}
        try:
            os.chdir(workdir)
        except OSError as error:
            problems.append(f"no working directory {workdir}: {error.strerror}")
        for path in exists:
            if not os.path.exists(path):
                problems.append(f"no file {path}")
        found = shutil.which(executable, path=full.get("PATH", os.defpath))
        if not found:
            problems.append(f"no command '{executable}'")
        for port in ports:
            problem = cannot_listen(address, port)
            if problem:
                problems.append(problem)
        self.directory = tempfile.mkdtemp(prefix="dgl-heta-launch-")
        for name, text in write.items():
            with open(os.path.join(self.directory, name), "w", encoding="utf-8") as file:
                file.write(text)
        self.interface = interface_of(address)
        self.emit(event="ready", problems=problems, cores=len(os.sched_getaffinity(0)),
                  directory=self.directory, free_port=free_port(address, ports),
                  versions=versions_of(found, full) if versions and found else None)

    # --- processes ---------------------------------------------------------------------------

    def start(self, processes: list[dict]) -> None:
        """Start processes: label, command and environment of each."""
        if self.ending:
            return
        self.bytes_before = self.traffic() or (0, 0)
        for process in processes:
            label = process["label"]
            try:
                child = subprocess.Popen(
                    process["command"], env={**os.environ, **process["environment"]},
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                    start_new_session=True, preexec_fn=die_with_parent)
            except OSError as error:
                self.emit(event="exit", label=label, status=127, reason=str(error))
                continue
            streams = [Stream(label, name, pipe.fileno())
                       for name, pipe in (("out", child.stdout), ("err", child.stderr)) if pipe]
            for stream in streams:
                os.set_blocking(stream.fd, False)
                self.selector.register(stream.fd, selectors.EVENT_READ, stream)
            self.children[child.pid] = (label, child, streams)

    def pass_on(self, stream: Stream) -> bool:
        """Send what there is to read; returns whether there may be more."""
        try:
            data = os.read(stream.fd, MOST_LINE)
        except BlockingIOError:
            return False
        for line in stream.feed(data):
            self.line(stream, line)
        if not data:
            self.selector.unregister(stream.fd)
            self.last_line(stream)
        return bool(data)

    def last_line(self, stream: Stream) -> None:
        """Send what has no end of line."""
        if stream.rest:
            self.line(stream, stream.flush())

    def line(self, stream: Stream, line: bytes) -> None:
        """Send a line."""
        self.emit(event="line", label=stream.label, stream=stream.name,
                  text=line.rstrip(b"\r").decode("utf-8", "replace"))

    def reap(self) -> None:
        """Report who has ended, after the last that it wrote."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            label, child, streams = self.children.pop(pid, (None, None, ()))
            if child is None:
                continue
            child.returncode = (-os.WTERMSIG(status) if os.WIFSIGNALED(status)
                                else os.WEXITSTATUS(status))
            for stream in streams:
                while stream.fd in self.selector.get_map() and self.pass_on(stream):
                    pass
                self.last_line(stream)
            self.emit(event="exit", label=label, status=child.returncode)

    # --- the end -----------------------------------------------------------------------------

    def end(self, number: int, kill_after: float) -> None:
        """Ask all to end; the kill follows unless they do."""
        first, self.ending = not self.ending, True
        self.kill_at = min(time.monotonic() + kill_after, self.kill_at)
        if first:
            for pid in descendants():
                with contextlib.suppress(OSError):
                    os.kill(pid, number)

    def all_gone(self) -> bool:
        """Whether no process is left; kills those whose time is over."""
        left = descendants()
        if left and time.monotonic() >= self.kill_at:
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        return not left and not self.children

    def traffic(self) -> tuple[int, int] | None:
        """Bytes (sent, received) by the host's interface since the start."""
        try:
            with open("/proc/net/dev") as table:
                for row in table:
                    name, _, counts = row.partition(":")
                    if self.interface and name.strip() == self.interface:
                        numbers = [int(x) for x in counts.split()]
                        return (numbers[8] - self.bytes_before[0],
                                numbers[0] - self.bytes_before[1])
        except OSError:
            pass
        return None


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
    found, queue = [], [os.getpid()]
    while queue:
        below = parents.get(queue.pop(), [])
        found += below
        queue += below
    return found


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
    done = subprocess.run([python, "-c", VERSIONS], env=environment, capture_output=True,
                          stdin=subprocess.DEVNULL, check=False)
    try:
        return json.loads(done.stdout)
    except ValueError:
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


if __name__ == "__main__":
    Agent().run()
