"""The launcher's end of the connection to the agent of a host."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from typing import Any

from dgl_heta.launch.blame import LAST_LINES
from dgl_heta.launch.cluster import Host
from dgl_heta.launch.supervisor import Events

HERE = Path(__file__).parent
# The agent's text comes first on its standard input, after its length.
RECEIVE = ("import sys; i = sys.stdin.buffer; "
           "exec(compile(i.read(int(i.readline())), 'agent', 'exec'))")
THIS_PYTHON = (sys.executable, "-I", "-S", "-c", RECEIVE)
"""The command of an agent on this machine."""


def agent_text() -> bytes:
    """The agent with its length, and with the modules that it imports: a host may have none."""
    text = "import sys, types\n"
    for name in ("dgl_heta.system.shared_memory", "dgl_heta.launch.agent_host"):
        path = HERE.parent.joinpath(*name.split(".")[1:]).with_suffix(".py")
        text += (f"module = sys.modules[{name!r}] = types.ModuleType({name!r})\n"
                 f"exec(compile({path.read_text('utf-8')!r}, {path.name!r}, 'exec'), "
                 "module.__dict__)\n")
    agent = (HERE / "agent.py").read_text("utf-8")
    text += f"exec(compile({agent!r}, 'agent.py', 'exec'))\n"
    return b"%d\n%s" % (len(text.encode()), text.encode())


class Connection:
    """A host's agent: requests go to its input, its events to a queue as (host index, event)."""

    def __init__(self, host: Host, command: list[str], events: Events) -> None:
        self.host = host
        self._writing = threading.Lock()  # who prints says so, too
        self.answering = False  # between its first event and its last
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True)  # Ctrl-C in a terminal reaches the launcher alone
        self._complaints: deque[str] = deque(maxlen=LAST_LINES)
        self._greeting = ""
        self._errors = threading.Thread(target=self._read_errors, daemon=True)
        self._errors.start()
        threading.Thread(target=self._read_events, args=(events,), daemon=True).start()
        self._write(agent_text())

    def send(self, **request: Any) -> None:
        """Ask for something; without effect once the agent is gone, which is an event."""
        self._write(json.dumps(request).encode() + b"\n")

    def complaints(self) -> list[str]:
        """Return the last lines of it, or of ssh, on standard error; else its last that is no
        event."""
        self._errors.join(0.5)
        return list(self._complaints) or [self._greeting] * bool(self._greeting)

    def close(self) -> None:
        """End the agent however it is; that ends the processes of an emulated host too."""
        with contextlib.suppress(OSError):
            self._stdin.close()
        try:
            self.process.wait(0.5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @property
    def _stdin(self) -> Any:
        assert self.process.stdin is not None
        return self.process.stdin

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError, ValueError), self._writing:
            self._stdin.write(data)
            self._stdin.flush()

    def _read_events(self, events: Events) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                event = None
            if isinstance(event, dict) and "event" in event:
                events.put((self.host.index, event))
            else:  # what a login shell says
                self._greeting = _text(line) or self._greeting
        self.process.wait()
        events.put((self.host.index, {"event": "gone", "status": self.process.returncode}))

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if text := _text(line):
                self._complaints.append(text)


def _text(line: bytes) -> str:
    return line.decode(errors="replace").strip()
