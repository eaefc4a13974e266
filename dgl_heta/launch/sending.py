"""Staging to other machines: rsync over ssh sends what they lack, and they compare it; what is in
object storage they read there themselves.

rsync goes on with a file that was interrupted, and sends nothing that is there. What it brings lies
in a working directory until all checksums agree (:mod:`dgl_heta.partition.staging`).
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dgl_heta._version import __version__
from dgl_heta.errors import HetaError, InputError, several
from dgl_heta.launch.cluster import Host
from dgl_heta.launch.remote import Ssh
from dgl_heta.partition.staged_directory import working_directory
from dgl_heta.partition.staging import Staging
from dgl_heta.system.leftovers import scratch_directory
from dgl_heta.system.remote_files import is_remote
from dgl_heta.system.signals import leave_on_signals

AT_ONCE = 8  # hosts
ANSWER_S = 120.0  # for a host that was reached to say what it has
RECEIVER = "dgl_heta.launch.receiving"
SILENT_S = 600  # without a byte from or to a host


def parts_of_hosts(parts: int, hosts: Sequence[Host]) -> list[list[int]]:
    """Which partitions each host runs, equally many, as torchrun numbers its ranks.

    Raises
    ------
    InputError
        They cannot have equally many.
    """
    each, rest = divmod(parts, len(hosts))
    if rest or not each:
        raise InputError(f"{several(parts, 'partition')} cannot be shared evenly by "
                         f"{several(len(hosts), 'host')}; list as many hosts as there are "
                         "partitions, or a number that divides it")
    return [list(range(each * i, each * (i + 1))) for i in range(len(hosts))]


@dataclass(frozen=True)
class Sender:
    """Stages into the same directory on other machines.

    Attributes
    ----------
    out : absolute, as it is called there.
    python : the interpreter there, which has dgl-heta.
    """

    ssh: Ssh
    out: Path
    python: str = sys.executable
    overwrite: bool = False
    _running: set[subprocess.Popen[str]] = field(default_factory=set)
    _ended: threading.Event = field(default_factory=threading.Event)

    def send(self, stagings: Sequence[tuple[Host, Staging]],
             report: Callable[[Host, str], None] = lambda host, what: None) -> list[bool]:
        """Stage to all hosts, several at a time; returns of each whether anything was sent.

        Raises
        ------
        InputError
            There is no ssh or rsync here.
        HetaError
            It failed for some hosts, all of which are named; the others have theirs.
        """
        for program in ("ssh", "rsync"):
            if shutil.which(program) is None:
                raise InputError(f"hosts cannot be staged to: there is no {program} here; install "
                                 "it, on them too")
        with leave_on_signals(), ThreadPoolExecutor(AT_ONCE) as pool:
            try:
                running = [pool.submit(self._send, host, staging, report)
                           for host, staging in stagings]
                wait(running)
            except BaseException:  # Ctrl-C, SIGTERM: the pool would wait until all is sent
                pool.shutdown(wait=False, cancel_futures=True)
                self._ended.set()
                for child in [*self._running]:
                    child.terminate()
                raise
        failures = [error for future in running if (error := future.exception()) is not None]
        for error in failures:
            if len(failures) == 1 or not isinstance(error, HetaError):
                raise error
        if failures:
            raise HetaError(f"{len(failures)} of {several(len(stagings), 'host')} could not be "
                            f"staged to: {'; '.join(map(str, failures))}")
        return [future.result() for future in running]

    def _send(self, host: Host, staging: Staging, report: Callable[[Host, str], None]) -> bool:
        report(host, "asking")
        told = {"overwrite": self.overwrite, "staged": staging.staged.to_json(sums=False)}
        # With overwrite it compares the files that it has, however many these are.
        answer = self._call(host, "ask", told,
                            None if self.overwrite else self.ssh.timeout + ANSWER_S)
        if answer["version"] != __version__:
            raise InputError(f"{host} has dgl-heta {answer['version']}, this machine "
                             f"{__version__}; install the same version on both")
        if answer["staged"]:
            return False
        if answer["exists"] and not self.overwrite:
            raise InputError(f"{host}: {self.out} exists and is another staging, or none; choose "
                             "another directory or ask to overwrite it (--overwrite)")
        if answer["room"] < staging.bytes:
            raise HetaError(f"{host} has room for {answer['room']:,} bytes where {self.out} is to "
                            f"be, but {staging.staged} need {staging.bytes:,}; nothing was sent")
        if is_remote(staging.source):
            report(host, "reading")
            self._call(host, "stage", {**told, "source": staging.source, "also": [*staging.also],
                                       "parts": [*staging.staged.parts]})
            return True
        with scratch_directory(None, "dgl-heta-stage") as scratch:
            try:
                staging.link(scratch)
            except OSError as error:
                raise HetaError(f"{host}: what to send could not be laid out in {scratch.parent} "
                                f"(TMPDIR): {error.strerror or error}") from None
            report(host, "sending")
            self._rsync(host, scratch)
        report(host, "comparing")
        self._call(host, "finish", told)
        return True

    def _rsync(self, host: Host, directory: Path) -> None:
        work = working_directory(self.out)
        # The lock is the one that a staging there takes; rsync itself would let two write at once.
        receiver = (f"mkdir -p {shlex.quote(str(work))} && flock -n "
                    f"{shlex.quote(str(work / '.lock'))} rsync")
        done = self._run(
            ["rsync", "-rtL", "-s", "--partial", "--sparse", f"--timeout={SILENT_S}",
             "-e", shlex.join(self.ssh.program), "--rsync-path", receiver,
             f"{directory}/", f"{host.destination}:{work}/"])
        complaints = done.stderr.splitlines()
        if done.returncode == 255:
            raise HetaError(f"{host}: {self.ssh.explained(host, complaints)}")
        if done.returncode:
            first = next((line for line in complaints if line.strip()), "no reason")
            raise HetaError(f"{host}: rsync ended with status {done.returncode}: {first}; what "
                            f"arrived stays in {work} there, and the same command goes on with it")

    def _call(self, host: Host, what: str, told: dict[str, Any], limit: float | None = None
              ) -> dict[str, Any]:
        """Let the receiver there do something, for so many seconds at most; returns its answer."""
        command = shlex.join([self.python, "-m", RECEIVER, what, str(self.out)])
        try:
            # Another version may wait for the end of what it is told before it says that it is one.
            done = self._run(self.ssh.command(host, command), json.dumps(told) + "\n", limit,
                             keep=what != "ask")
        except subprocess.TimeoutExpired:
            raise HetaError(f"{host} did not answer within {limit:g} s; is its disk slow, or does "
                            "its login wait for something? nothing was sent") from None
        complaints = [line for line in done.stderr.splitlines() if line.strip()]
        if done.returncode == 0 and done.stdout.strip():
            answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
            return answer
        said = next((line for line in complaints if line.startswith("error: ")), None)
        if said is not None:
            raise HetaError(f"{host}: {said.removeprefix('error: ')}")
        if any("No module named" in line for line in complaints):
            raise InputError(f"{host}: {self.python} has no dgl-heta of this version "
                             f"({complaints[-1]}); install it there, or name another Python "
                             "(--python)")
        raise HetaError(f"{host}: {self.ssh.explained(host, complaints)}")

    def _run(self, words: list[str], told: str = "", limit: float | None = None,
             keep: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a program that is told something; it ends with this process, or after the limit.

        Parameters
        ----------
        keep : its input stays open until it has ended, or this process has.
        """
        child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True, errors="replace")
        self._running.add(child)
        if self._ended.is_set():  # meanwhile
            child.terminate()
        told_by = child.stdin
        try:
            if keep and told_by is not None:
                with contextlib.suppress(BrokenPipeError):  # ssh has ended, and says why
                    told_by.write(told)
                    told_by.flush()
                child.stdin = None  # which is not communicate's to close
            out, complaints = child.communicate(None if keep else told, limit)
        finally:
            self._running.discard(child)
            child.kill()  # if it has not ended
            child.wait()
            if keep and told_by is not None:
                with contextlib.suppress(BrokenPipeError):
                    told_by.close()
        return subprocess.CompletedProcess(words, child.returncode, out, complaints)
