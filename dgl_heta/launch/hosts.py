"""The processes of several hosts: started by an agent on each, watched and ended from here."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dgl_heta.errors import HetaError, InputError
from dgl_heta.launch.activation import is_python
from dgl_heta.launch.agent_host import versions_of
from dgl_heta.launch.blame import Ended, Watched
from dgl_heta.launch.cluster import Host, Process, write_ip_config
from dgl_heta.launch.connection import Connection
from dgl_heta.launch.emulated import Network
from dgl_heta.launch.printer import Printer
from dgl_heta.launch.remote import connect_directly, connect_over_ssh
from dgl_heta.launch.script_job import Outcome, ScriptJob
from dgl_heta.launch.supervisor import KILL_AFTER_S, SAVE_S, TICK_S, Interrupted, Supervisor

AT_ONCE = 8  # hosts to connect to: a jump host's sshd drops who comes tenth before others logged in
LAST_WORDS_S = 3.0  # at a good end, for what still prints for a process that has ended


def run_on_hosts(job: ScriptJob, show: Callable[[str, str, str], None]) -> Outcome:
    """Run a job to its end; `show` gets every line as (label, stream, text).

    A failure is in the outcome, whose processes are all ended.
    """
    return Hosts(job, show).run()


class Hosts(Supervisor):
    """The servers and trainers of a script on all hosts, through the hosts' agents."""

    silent_s = 30.0
    """For trainers that write nothing once a server has ended."""

    unread_s = 5.0
    """For output that nobody reads, at the end of a run that failed."""

    def __init__(self, job: ScriptJob, show: Callable[[str, str, str], None]) -> None:
        super().__init__()
        self.job = job
        self.printer = Printer(show, self._printed)
        self.connections: dict[int, Connection] = {}
        self.roles: dict[str, Process] = {}  # by label, as `processes`
        self.outcome = Outcome(0, [], {}, {})
        self.unreachable: dict[int, str] = {}
        self.stop_at = self.leave_by = math.inf
        self.last_word = time.monotonic()  # of a trainer

    def run(self) -> Outcome:
        """Run the job to its end."""
        started, outcome = time.monotonic(), self.outcome
        self.stop_at = started + self.job.stop_after
        wait: float | None = self.unread_s
        try:
            with contextlib.ExitStack() as self._network:
                self.supervise()
            wait = None
        except Interrupted:
            pass
        except HetaError as error:
            outcome.error = error
        finally:
            try:
                outcome.unprinted = not self.printer.close(wait)
            except KeyboardInterrupt:
                outcome.unprinted, self.signalled = True, signal.SIGINT
        if wait is None and self.printer.error is not None:  # of the last lines
            raise self.printer.error
        outcome.signal = self.signalled
        outcome.seconds = time.monotonic() - started
        outcome.processes = list(self.roles.values())
        outcome.ended = {label: p.ended for label, p in self.processes.items() if p.ended}
        return outcome

    def short_files(self) -> list[str]:
        """Those that this machine sees: of a partition that lies on hosts alone there are none."""
        from dgl_heta.partition.directory import store_of_config
        from dgl_heta.store.store_files import short_files

        store = store_of_config(self.job.part_config)
        return [] if store is None else short_files(store)

    # --- start -------------------------------------------------------------------------------

    def start(self) -> None:
        network = (None if self.job.emulated is None else
                   self._network.enter_context(Network(self.job.emulated, self.events)))
        self._connect(network)
        answers = self._prepare()
        if not self.job.only_ask:
            self._start(answers)

    def _connect(self, network: Network | None) -> None:
        job = self.job
        for at in range(0, len(job.hosts), AT_ONCE):
            some = job.hosts[at:at + AT_ONCE]
            for host in some:
                if network is not None:
                    opened = network.connect(host)
                elif host.index in job.direct:
                    opened = connect_directly(host, self.events)
                else:
                    opened = connect_over_ssh(host, self.events, job.ssh, job.workdir,
                                              job.command.words[0])
                self.connections[host.index] = opened
            self._answers("hello", some)
        if network is not None:
            network.join(list(self.connections.values()))

    def _prepare(self) -> dict[int, dict[str, Any]]:
        job = self.job
        asked = job.only_ask or any(map(job.over_ssh, job.hosts))
        file = job.command.config  # read once: it may be edited for the next run
        config = None if file is None else file.read_text(encoding="utf-8")
        for host in job.hosts:
            write = {"ip_config.txt": write_ip_config(job.hosts)}
            if config is not None:
                write["heta.toml"] = config
            self.connections[host.index].send(
                do="prepare", environment={**job.variables(host), **job.roles.variables},
                address=host.address, ports=job.roles.ports(host), workdir=str(job.workdir),
                executable=job.command.words[0], exists=job.needed(host), write=write,
                cores=list(job.cores[host.index]) if job.cores else None,
                versions=asked and is_python(job.command.words[0]))
        answers = self._answers("ready", job.hosts)
        self.outcome.answers = answers | {
            i: {"problems": [reason]} for i, reason in self.unreachable.items()}
        if self.unreachable:
            raise HetaError(_first_of(self.unreachable[i] for i in sorted(self.unreachable)))
        problems = [f"{job.hosts[i]}: {problem}" for i in sorted(answers)
                    for problem in answers[i]["problems"]]
        if problems:
            raise InputError(_first_of(problems))
        self._same_versions({str(job.hosts[i]): answers[i]["versions"] for i in sorted(answers)
                             if answers[i]["versions"]})
        return answers

    def _same_versions(self, versions: dict[str, dict[str, str | None]]) -> None:
        needed = self.job.command.needs_package
        if needed and versions:
            ours = versions_of(sys.executable, dict(os.environ)) or {}
            versions["this machine"] = {"dgl-heta": ours.get("dgl-heta")}
        for package in ("dgl", "torch", "dgl-heta"):
            installed = {host: each[package] for host, each in versions.items() if package in each}
            if len({*installed.values()}) > 1 and (needed or package != "dgl-heta"):
                text = ", ".join(f"{host} has {version or 'none'}"
                                 for host, version in installed.items())
                raise InputError(f"all hosts need the same version of {package}: {text}")

    def _start(self, answers: dict[int, dict[str, Any]]) -> None:
        self.roles = {process.label: process for process in self.job.processes(
            answers, secret=secrets.token_hex(32))}
        self.processes = {label: Watched(str(p)) for label, p in self.roles.items()}
        self.last_word = time.monotonic()
        for host in self.job.hosts:
            self.connections[host.index].send(do="start", processes=[
                {"label": p.label, "command": p.command, "environment": p.environment}
                for p in self.roles.values() if p.host == host])

    def _answers(self, kind: str, hosts: Sequence[Host]) -> dict[int, dict[str, Any]]:
        """Wait until these hosts have answered, or it is known that some cannot be reached."""
        answers: dict[int, dict[str, Any]] = {}
        deadline = time.monotonic() + self.job.timeout
        while late := [h for h in hosts if h.index not in {*answers, *self.unreachable}]:
            item = self.next_event(min(TICK_S, max(0.01, deadline - time.monotonic())))
            if item is not None:
                index, event = item
                if event["event"] == "bridge":
                    raise HetaError(event["reason"])
                if event["event"] == "gone":
                    self._lost({index: self._unreachable(index, event["status"])})
                elif event["event"] == kind:
                    answers[index] = event
            elif time.monotonic() >= deadline:
                reason = (f"no answer from {', '.join(map(str, late))} within "
                          f"{self.job.timeout:g} s (--timeout)")
                self._lost({h.index: reason for h in late})
        return answers

    def _lost(self, reasons: dict[int, str]) -> None:
        """Note hosts that cannot be reached, which ends a launch but no question to all hosts."""
        self.unreachable |= reasons
        if not self.job.only_ask:
            raise HetaError(_first_of(reasons.values()))

    def _unreachable(self, index: int, status: int) -> str:
        host, complaints = self.job.hosts[index], self.connections[index].complaints()
        if not self.job.over_ssh(host):
            return (f"cannot start processes on {host} (status {status}): "
                    f"{complaints[-1] if complaints else 'no reason'}")
        return (f"cannot start processes on {host} over ssh (status {status}): "
                f"{self.job.ssh.explained(host, complaints)}")

    # --- watch -------------------------------------------------------------------------------

    def next_event(self, timeout: float) -> tuple[int, dict[str, Any]] | None:
        item = super().next_event(timeout)
        if item is not None:
            index, event = item
            if index >= 0:
                self.connections[index].answering = event["event"] != "gone"
        return item

    def note(self, source: int, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "line":
            label, text = event["label"], event["text"]
            process = self.processes[label]
            process.lines.append(text)
            if event["stream"] == "err" and text.strip():
                process.last_error = text
            if self.roles[label].role == "trainer":
                self.last_word = time.monotonic()
            self.printer.put(source, label, event["stream"], text)
        elif kind == "stopped":
            self.processes[event["label"]].stopped = event["stopped"]
        elif kind == "bridge":
            raise HetaError(event["reason"])
        elif kind == "unprinted":
            raise event["error"]
        elif kind == "exit":
            self.processes[event["label"]].ended = Ended(
                event["status"], time.monotonic(), event.get("reason", ""))
        elif kind == "gone":
            complaints = self.connections[source].complaints()
            raise HetaError(f"the connection to {self.job.hosts[source]} ended (status "
                            f"{event['status']}); all processes were ended"
                            + (f": {complaints[-1]}" if complaints else ""))

    def is_over(self, running: dict[str, Watched], now: float) -> bool:
        if now > self.stop_at:
            raise HetaError(f"the run was ended after {self.job.stop_after:g} s "
                            f"(--stop-after); still running: {_listed(running)}",
                            details=_last_words(running))
        trainers = {label: p for label, p in running.items()
                    if self.roles[label].role == "trainer"}
        if trainers:
            self._raise_hang(trainers, now)
            return False
        self.leave_by = min(self.leave_by, now + self.leave_s)
        if now < self.leave_by:
            return False
        self.outcome.notes.append(
            f"ended {_listed(running)}, still there {self.leave_s:g} s after the last trainer")
        return True

    def _raise_hang(self, trainers: dict[str, Watched], now: float) -> None:
        """Raise if a server has gone, by itself, and the trainers seem to wait for it."""
        gone = [(p.ended.at, p.title) for label, p in self.processes.items()
                if p.ended and self.roles[label].role == "server"]
        if gone and now - max(self.last_word, min(gone)[0]) > self.silent_s:
            raise HetaError(
                f"{min(gone)[1]} ended with exit status 0, but after {self.silent_s:g} s without "
                f"a line of output there still are {_listed(trainers)}; all processes were ended; "
                "a trainer that still works then must write a line now and then",
                details=_last_words(trainers))

    def _printed(self, host: int, size: int, error: OSError | None) -> None:
        """Lines of so many characters are printed, or cannot be; called by the printer."""
        self.connections[host].send(do="shown", size=size)
        if error is not None:
            self.events.put((-1, {"event": "unprinted", "error": error}))

    # --- the end -----------------------------------------------------------------------------

    def end(self) -> None:
        """End everything on all hosts, and take the byte counts on the way."""
        number = self.signalled or signal.SIGTERM
        kill_after = SAVE_S if self.signalled == signal.SIGTERM else KILL_AFTER_S
        last_words = LAST_WORDS_S if self.ended_well else 0.0
        for connection in self.connections.values():
            connection.send(do="end", number=number, kill_after=kill_after, last_words=last_words)
        waiting = {index for index, c in self.connections.items() if c.answering}
        deadline = time.monotonic() + last_words + kill_after + KILL_AFTER_S
        while waiting and time.monotonic() < deadline:
            try:
                item = self.next_event(TICK_S)
            except Interrupted:
                for connection in self.connections.values():
                    connection.send(do="end", number=signal.SIGKILL, kill_after=0)
                continue
            if item is None:
                continue
            index, event = item
            if event["event"] == "ended" and event["bytes"]:
                self.outcome.traffic[index] = tuple(event["bytes"])
            elif event["event"] in ("line", "exit"):
                self.note(index, event)
            elif event["event"] == "gone":
                waiting.discard(index)
        for connection in self.connections.values():
            connection.close()


def _first_of(texts: Iterable[str]) -> str:
    first, *more = dict.fromkeys(texts)
    return first + (f" (and {len(more)} more: {'; '.join(more)})" if more else "")


def _last_words(processes: dict[str, Watched]) -> str:
    return "\n".join(f"[{label}] {p.lines[-1] if p.lines else '(it wrote nothing)'}"
                     for label, p in processes.items())


def _listed(processes: dict[str, Watched]) -> str:
    names = [f"{label} (stopped)" if p.is_stopped else label for label, p in processes.items()]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
