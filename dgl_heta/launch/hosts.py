"""Start the processes of all hosts, watch them, and end all when one fails."""

from __future__ import annotations

import collections
import contextlib
import math
import queue
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from dgl_heta.errors import HetaError, InputError
from dgl_heta.launch.activation import is_python
from dgl_heta.launch.cluster import Process, write_ip_config
from dgl_heta.launch.connection import Connection, Events
from dgl_heta.launch.emulated import Network
from dgl_heta.launch.remote import connect_directly, connect_over_ssh
from dgl_heta.launch.script_job import Ended, Outcome, ScriptJob
from dgl_heta.launch.worker import EXIT_INPUT, EXIT_PEER

GRACE_S = 2.0  # how long to wait for a better cause than a process that lost another one
KILL_AFTER_S = 3.0  # between the request to end and the kill
LEAVE_S = 10.0  # for servers to be gone once all trainers have ended
SILENT_S = 30.0  # for trainers that write nothing once a server has ended
LAST_LINES = 60
TICK_S = 0.2
LOST_PEER = re.compile(  # how a process says that another one is gone
    r"(closed|reset) by peer|broken pipe|connection refused|PeerLostError|DistConnectError", re.I)
SECONDARY = (signal.SIGABRT, signal.SIGPIPE)  # signals that a lost peer can bring about


class Interrupted(Exception):
    """A signal asked this process to end."""


def run_on_hosts(job: ScriptJob, show: Callable[[str, str, str], None]) -> Outcome:
    """Run a job to its end; `show` gets every line as (label, stream, text).

    A failure is in the outcome, whose processes are all ended.
    """
    return _Supervisor(job, show).run()


class _Supervisor:
    def __init__(self, job: ScriptJob, show: Callable[[str, str, str], None]) -> None:
        self.job, self.show = job, show
        self.events: Events = Events()
        self.connections: dict[int, Connection] = {}
        self.processes: dict[str, Process] = {}
        self.tails: dict[str, dict[str, collections.deque[str]]] = {}
        self.outcome = Outcome(0, [], {}, {})
        self.last_word = time.monotonic()  # of a trainer

    def run(self) -> Outcome:
        started = time.monotonic()
        outcome = self.outcome
        with _signals_as_events(self.events), contextlib.ExitStack() as stack:
            try:
                network = (None if self.job.emulated is None else
                           stack.enter_context(Network(self.job.emulated)))
                try:
                    self._connect(network)
                    self._start(self._prepare())
                    self._watch(started)
                finally:
                    self._end()
            except Interrupted:
                pass
            except HetaError as error:
                outcome.error = error
        outcome.seconds = time.monotonic() - started
        outcome.processes = list(self.processes.values())
        return outcome

    # --- start -------------------------------------------------------------------------------

    def _connect(self, network: Network | None) -> None:
        job = self.job
        for host in job.hosts:
            if network is not None:
                opened = network.connect(host, self.events)
            elif host.index in job.direct:
                opened = connect_directly(host, self.events)
            else:
                opened = connect_over_ssh(host, self.events, job.ssh, job.workdir,
                                          job.command.words[0])
            self.connections[host.index] = opened
        self._answers("hello")
        if network is not None:
            network.join(list(self.connections.values()))

    def _prepare(self) -> dict[int, dict[str, Any]]:
        job = self.job
        for host in job.hosts:
            over_ssh = job.over_ssh(host)
            write = {"ip_config.txt": write_ip_config(job.hosts)}
            if over_ssh and job.command.config is not None:
                write["heta.toml"] = job.command.config.read_text(encoding="utf-8")
            self.connections[host.index].send(
                do="prepare", environment={**job.variables(host), **job.roles.variables},
                address=host.address, ports=job.roles.ports(host), workdir=str(job.workdir),
                executable=job.command.words[0], exists=[str(job.part_config)], write=write,
                cores=list(job.cores[host.index]) if job.cores else None,
                versions=over_ssh and is_python(job.command.words[0]))
        answers = self._answers("ready")
        problems = [f"{job.hosts[i]}: {problem}" for i in sorted(answers)
                    for problem in answers[i]["problems"]]
        if problems:
            raise InputError(problems[0] + (f" (and {len(problems) - 1} more: "
                                            f"{'; '.join(problems[1:])})" if problems[1:] else ""))
        self._same_versions({i: a["versions"] for i, a in answers.items() if a["versions"]})
        return answers

    def _same_versions(self, versions: dict[int, dict[str, str | None]]) -> None:
        needed = {"dgl-heta"} if self.job.command.active else set()
        for package in ("dgl", "torch", "dgl-heta"):
            found = {i: each.get(package) for i, each in sorted(versions.items())}
            if len(set(found.values())) > 1 or (package in needed and None in found.values()):
                text = ", ".join(f"{self.job.hosts[i]} has {version or 'none'}"
                                 for i, version in found.items())
                raise InputError(f"all hosts need the same version of {package}: {text}")

    def _start(self, answers: dict[int, dict[str, Any]]) -> None:
        for process in self.job.processes(answers):
            self.processes[process.label] = process
            self.tails[process.label] = {
                kind: collections.deque(maxlen=LAST_LINES) for kind in ("all", "err")}
        self.last_word = time.monotonic()
        for host in self.job.hosts:
            self.connections[host.index].send(do="start", processes=[
                {"label": p.label, "command": p.command, "environment": p.environment}
                for p in self.processes.values() if p.host == host])

    def _answers(self, kind: str) -> dict[int, dict[str, Any]]:
        """Wait until every host has answered."""
        answers: dict[int, dict[str, Any]] = {}
        deadline = time.monotonic() + self.job.timeout
        while len(answers) < len(self.job.hosts):
            item = self._next(min(TICK_S, max(0.01, deadline - time.monotonic())))
            if item is not None:
                index, event = item
                if event["event"] == "gone":
                    raise HetaError(self._unreachable(index, event["status"]))
                if event["event"] == kind:
                    answers[index] = event
            elif time.monotonic() >= deadline:
                late = [str(h) for h in self.job.hosts if h.index not in answers]
                raise HetaError(f"no answer from {', '.join(late)} within "
                                f"{self.job.timeout:g} s (--timeout)")
        return answers

    def _unreachable(self, index: int, status: int) -> str:
        host, reason = self.job.hosts[index], self.connections[index].complaint()
        how = "over ssh " if self.job.over_ssh(host) else ""
        return f"cannot start processes on {host} {how}(status {status}): {reason or 'no reason'}"

    # --- watch -------------------------------------------------------------------------------

    def _watch(self, started: float) -> None:
        leave_by = math.inf
        while True:
            item = self._next(TICK_S)
            while item is not None:
                self._note(*item)
                item = self._next(0)
            now = time.monotonic()
            running = [p for p in self.processes.values() if p.label not in self.outcome.ended]
            self._raise_failure(now, final=not running)
            if not running:
                return
            trainers = [p for p in running if p.role == "trainer"]
            if now - started > self.job.stop_after:
                raise HetaError(f"the run was ended after {self.job.stop_after:g} s "
                                f"(--stop-after); still running: {_listed(running)}",
                                details=self._last_words(running))
            if not trainers:
                leave_by = min(leave_by, now + LEAVE_S)
                if now >= leave_by:
                    self.outcome.notes.append(
                        f"ended {_listed(running)}, still there {LEAVE_S:g} s after the last "
                        "trainer")
                    return
            else:
                self._raise_hang(trainers, now)

    def _note(self, index: int, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "line":
            label, text = event["label"], event["text"]
            self.tails[label]["all"].append(text)
            if event["stream"] == "err" and text.strip():
                self.tails[label]["err"].append(text)
            if self.processes[label].role == "trainer":
                self.last_word = time.monotonic()
            self.show(label, event["stream"], text)
        elif kind == "exit":
            self.outcome.ended[event["label"]] = Ended(event["status"], time.monotonic(),
                                                       event.get("reason", ""))
        elif kind == "gone":
            complaint = self.connections[index].complaint()
            raise HetaError(f"the connection to {self.job.hosts[index]} ended (status "
                            f"{event['status']}); all processes were ended"
                            + (f": {complaint}" if complaint else ""))

    def _raise_failure(self, now: float, final: bool) -> None:
        """Raise for the process to blame, once one has failed.

        One that merely lost another is not the cause, so wait a moment for the other, unless
        this is the `final` look.
        """
        failed = [(self._blame(label, end), end.at, label)
                  for label, end in self.outcome.ended.items() if end.status != 0]
        if not failed:
            return
        blame, _, label = min(failed)
        if blame > 1 and not final and now - min(at for _, at, _ in failed) < GRACE_S:
            return
        process, end = self.processes[label], self.outcome.ended[label]
        error = self._input_error(label)
        if end.status == EXIT_INPUT and error is not None:
            raise InputError(error)
        if end.reason:
            how = f"could not be started: {end.reason}"
        elif end.status < 0:
            how = f"was killed by signal {-end.status} ({_signal_name(-end.status)})"
        else:
            how = f"failed with exit status {end.status}"
        raise HetaError(f"{process} {how}; all processes were ended",
                        details="\n".join(self.tails[label]["all"]) or "(it wrote nothing)")

    def _blame(self, label: str, end: Ended) -> int:
        """0 and 1 for what is a cause for certain, then what may have lost a peer."""
        if end.status == EXIT_INPUT and self._input_error(label) is not None:
            return 0
        if end.status < 0 and -end.status not in SECONDARY:
            return 1
        lost = end.status == EXIT_PEER or any(
            LOST_PEER.search(line) for line in self.tails[label]["all"])
        return 3 if lost else 2

    def _input_error(self, label: str) -> str | None:
        lines = self.tails[label]["err"]
        if lines and lines[-1].startswith("error: "):
            return lines[-1].removeprefix("error: ")
        return None

    def _raise_hang(self, trainers: list[Process], now: float) -> None:
        left = [(end.at, label) for label, end in self.outcome.ended.items()
                if self.processes[label].role == "server"]
        if left and now - max(self.last_word, min(left)[0]) > SILENT_S:
            raise HetaError(
                f"{self.processes[min(left)[1]]} ended with exit status 0, but after "
                f"{SILENT_S:g} s without a line of output there still are {_listed(trainers)}; "
                "all processes were ended", details=self._last_words(trainers))

    def _last_words(self, processes: list[Process]) -> str:
        words = []
        for process in processes:
            lines = self.tails[process.label]["all"]
            words.append(f"[{process.label}] {lines[-1] if lines else '(it wrote nothing)'}")
        return "\n".join(words)

    # --- the end -----------------------------------------------------------------------------

    def _end(self) -> None:
        """End everything on all hosts, and take the byte counts on the way."""
        number = self.outcome.signal or signal.SIGTERM
        for connection in self.connections.values():
            connection.send(do="end", number=number, kill_after=KILL_AFTER_S)
        waiting = {index for index, c in self.connections.items() if c.answering}
        deadline = time.monotonic() + 2 * KILL_AFTER_S
        while waiting and time.monotonic() < deadline:
            try:
                item = self._next(TICK_S)
            except Interrupted:  # asked a second time
                for connection in self.connections.values():
                    connection.send(do="end", number=signal.SIGKILL, kill_after=0)
                continue
            if item is None:
                continue
            index, event = item
            if event["event"] == "ended" and event["bytes"]:
                self.outcome.traffic[index] = tuple(event["bytes"])
            elif event["event"] in ("line", "exit"):
                self._note(index, event)
            elif event["event"] == "gone":
                waiting.discard(index)
        for connection in self.connections.values():
            connection.close()

    def _next(self, timeout: float) -> tuple[int, dict[str, Any]] | None:
        """The next event of a host, None if there is none in time."""
        try:
            index, event = self.events.get(timeout=timeout) if timeout else (
                self.events.get_nowait())
        except queue.Empty:
            return None
        if event["event"] == "signal":
            self.outcome.signal = self.outcome.signal or event["number"]
            raise Interrupted
        self.connections[index].answering = event["event"] != "gone"
        return index, event


@contextlib.contextmanager
def _signals_as_events(events: Events) -> Iterator[None]:
    """Signals that ask this process to end become events, so that all is ended in order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, frame: Any) -> None:
        events.put((-1, {"event": "signal", "number": number}))

    before = {number: signal.signal(number, note)
              for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "of real time"


def _listed(processes: list[Process]) -> str:
    names = [p.label for p in processes]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
