"""The agent on every host of a launch: it starts processes, passes on their output, ends them.

Requests are lines of JSON on standard input, events lines of JSON on standard output. When the
input ends, because the launcher ended however it ended, all processes are ended. Output goes no
further ahead of the launcher's printing than `AHEAD`; then it waits in the pipes of the processes,
while all else is told and served as ever. This file and those that it imports use the standard
library alone: a host gets their text over the connection.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import IO

from dgl_heta.launch.agent_host import (
    PR_SET_CHILD_SUBREAPER,
    SHARED,
    cannot_listen,
    descendants,
    die_with_parent,
    free_port,
    guarded,
    interface_of,
    own_directory,
    prctl,
    versions_of,
)
from dgl_heta.system.shared_memory import mapped, names, remove_unused

KILL_AFTER_S = 3.0  # between the request to end and the kill
SAVE_S = 25.0  # the same for SIGTERM, on which scripts save what they have
MOST_LINE = 65536  # longer lines are passed on in pieces
AHEAD = 1 << 20  # characters of output that the launcher has not printed yet
LOOK_S = 2.0  # between two looks at the shared memory of the processes
LAST_READS = 16  # of an output of a process that has ended


class Stream:
    """An output of a process, cut into lines.

    It keeps the pipe open: what the process left behind may write to it after its end.
    """

    def __init__(self, label: str, name: str, pipe: IO) -> None:
        self.label, self.name, self.pipe, self.rest = label, name, pipe, b""
        self.fd = pipe.fileno()

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
        """Return, and forget, the beginning of a line that has no end yet."""
        line, self.rest = self.rest, b""
        return line


class Agent:
    """The processes of a host."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.requests = Stream("", "", sys.stdin)
        self.children: dict[int, tuple[str, subprocess.Popen, list[Stream]]] = {}  # by pid
        self.streams: set[Stream] = set()  # that have not ended
        self.ahead, self.paused = 0, False
        self.directory: str | None = None
        self.memory_before = names()
        self.memory: set[str] = set()  # names of shared memory that the processes made
        self.look_at = 0.0
        self.interface: str | None = None
        self.bytes_before = (0, 0)
        self.ending = False
        self.end_later: tuple[float, int, float] | None = None  # when, by which signal, which kill
        self.kill_at = float("inf")

    def run(self) -> None:
        """Serve requests until the end is asked for and all processes are gone."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans of the processes become children of this one
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _: self.end(
                signal.SIGTERM, SAVE_S if number == signal.SIGTERM else KILL_AFTER_S))
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.selector.register(0, selectors.EVENT_READ, None)
        self.selector.register(reader, selectors.EVENT_READ, reader)
        self.emit(event="hello")
        try:
            while not (self.ending and self.all_gone()):
                self.end_in_time()
                soon = self.ending or self.end_later
                for key, _ in self.selector.select(0.05 if soon else 1.0):
                    if key.fd == 0:
                        self.receive()
                    elif key.data == reader:
                        with contextlib.suppress(BlockingIOError):
                            os.read(reader, 4096)
                    else:
                        self.pass_on(key.data)
                self.reap()
                self.look()
            self.reap()
            self.emit(event="ended", bytes=self.traffic())
        finally:
            remove_unused(self.memory)
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
            getattr(self, request.pop("do"))(**request)  # prepare, start, shown or end

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
            problems.append(f"no working directory {workdir} (--workdir): {error.strerror}")
        for path in exists:
            if not os.path.exists(path):
                problems.append(f"no file {path}: copy it there, or share its directory")
        program = shutil.which(executable, path=full.get("PATH", os.defpath))
        told = versions_of(program, full) if versions and program else None
        if not program:
            problems.append(f"no command '{executable}'")
        elif versions and told is None:
            problems.append(f"'{program}' does not tell versions of packages")
        for port in ports:
            problem = cannot_listen(address, port)
            if problem:
                problems.append(problem)
        self.directory = own_directory()
        for name, text in write.items():
            with open(os.path.join(self.directory, name), "w", encoding="utf-8") as file:
                file.write(text)
        self.interface = interface_of(address)
        self.emit(event="ready", problems=problems, cores=len(os.sched_getaffinity(0)),
                  directory=self.directory, free_port=free_port(address, ports),
                  interface=None if "GLOO_SOCKET_IFNAME" in full else (
                      "lo" if address.startswith("127.") else self.interface),
                  versions=told)

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
            streams = [Stream(label, name, pipe)
                       for name, pipe in (("out", child.stdout), ("err", child.stderr)) if pipe]
            for stream in streams:
                os.set_blocking(stream.fd, False)
                self.streams.add(stream)
                if not self.paused:
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
            self.streams.discard(stream)
            if not self.paused:
                self.selector.unregister(stream.fd)
            stream.pipe.close()
            self.last_line(stream)
        self.pause()
        return bool(data)

    def last_line(self, stream: Stream) -> None:
        """Send what has no end of line."""
        if stream.rest:
            self.line(stream, stream.flush())

    def line(self, stream: Stream, line: bytes) -> None:
        """Send a line."""
        text = line.rstrip(b"\r").decode("utf-8", "replace")
        self.ahead += len(text) + 1
        self.emit(event="line", label=stream.label, stream=stream.name, text=text)

    def pause(self) -> None:
        """Leave output in its pipes as long as too much is ahead, and go on after that."""
        paused = self.ahead > (AHEAD // 2 if self.paused else AHEAD)
        if paused == self.paused:
            return
        self.paused = paused
        for stream in self.streams:
            if paused:
                self.selector.unregister(stream.fd)
            else:
                self.selector.register(stream.fd, selectors.EVENT_READ, stream)

    def shown(self, size: int) -> None:
        """The launcher has printed lines of so many characters, with their ends."""
        self.ahead -= size
        self.pause()

    def reap(self) -> None:
        """Report who has ended, after the last that it wrote, and who is stopped or goes on."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
                if pid in self.children:
                    self.emit(event="stopped", label=self.children[pid][0],
                              stopped=os.WIFSTOPPED(status))
                continue
            label, child, streams = self.children.pop(pid, (None, None, ()))
            if child is None:
                continue
            child.returncode = (-os.WTERMSIG(status) if os.WIFSIGNALED(status)
                                else os.WEXITSTATUS(status))
            for stream in streams:
                for _ in range(LAST_READS):  # what it left behind may write on
                    if stream not in self.streams or not self.pass_on(stream):
                        break
                self.last_line(stream)
            self.emit(event="exit", label=label, status=child.returncode)

    # --- the end -----------------------------------------------------------------------------

    def end(self, number: int, kill_after: float, last_words: float = 0.0) -> None:
        """Ask all to end; the kill follows unless they do.

        Where all processes have ended, what they left behind, such as a filter of their output, has
        so many seconds for its last words before.
        """
        if last_words and self.streams and not (self.children or self.ending):
            self.end_later = (time.monotonic() + last_words, number, kill_after)
            return
        self.look(now=True)
        first, self.ending = not self.ending, True
        self.kill_at = min(time.monotonic() + kill_after, self.kill_at)
        if first:
            for pid in descendants():
                with contextlib.suppress(OSError):
                    os.kill(pid, number)

    def end_in_time(self) -> None:
        """Ask all to end once nothing has its output open, or the time for last words is over."""
        if self.end_later is None or self.ending:
            return
        at, number, kill_after = self.end_later
        if not self.streams or time.monotonic() >= at:
            self.end(number, kill_after)

    def look(self, now: bool = False) -> None:
        """Note what the processes have made in shared memory: one that is killed leaves it."""
        if not (self.children and (now or time.monotonic() >= self.look_at)):
            return
        self.look_at = time.monotonic() + LOOK_S
        segments = set().union(*map(mapped, descendants())) - self.memory_before
        if not segments <= self.memory and self.directory:
            self.memory |= segments
            with contextlib.suppress(OSError), open(os.path.join(self.directory, SHARED),
                                                    "w") as file:
                file.write("\n".join(self.memory))

    def all_gone(self) -> bool:
        """Return whether no process is left, after killing those whose time is over."""
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


if __name__ == "__main__":
    if os.getpid() != 1:
        guarded()
    Agent().run()
