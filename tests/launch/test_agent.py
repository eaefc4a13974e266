"""The agent of a host: what it leaves when it is killed, which is nothing."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from dgl_heta.launch.connection import THIS_PYTHON, agent_text
from tests.support.waiting import PATIENCE, until

PREPARE = {"do": "prepare", "address": "127.0.0.1", "ports": [], "workdir": ".", "environment": {},
           "executable": "sh", "exists": [], "write": {"note": "text"}, "cores": None,
           "versions": False}


@contextmanager
def agent(directory: Path) -> Iterator[subprocess.Popen[str]]:
    running = subprocess.Popen(
        THIS_PYTHON, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=directory,
        env={**os.environ, "TMPDIR": str(directory)})
    assert running.stdin is not None
    running.stdin.write(agent_text().decode())
    running.stdin.flush()
    try:
        assert event(running)["event"] == "hello"
        yield running
    finally:
        running.terminate()
        running.communicate()


def event(running: subprocess.Popen[str]) -> dict[str, object]:
    assert running.stdout is not None
    found: dict[str, object] = json.loads(running.stdout.readline())
    return found


def ask(running: subprocess.Popen[str], **request: object) -> None:
    assert running.stdin is not None
    running.stdin.write(json.dumps(request) + "\n")
    running.stdin.flush()


def test_a_killed_agent_leaves_no_process_and_the_next_one_no_directory(tmp_path: Path) -> None:
    with agent(tmp_path) as running:
        ask(running, **PREPARE)
        directory = Path(str(event(running)["directory"]))
        # A grandchild in a session of its own, as daemons are.
        ask(running, do="start", processes=[{
            "label": "trainer", "environment": {},
            "command": ["sh", "-c", "setsid sh -c 'echo $$; exec sleep 600' & exec sleep 600"]}])
        daemon = psutil.Process(int(str(event(running)["text"])))
        (inner,) = psutil.Process(running.pid).children()
        with agent(tmp_path) as other:  # while the first one lives
            os.utime(directory, (0, 0))
            ask(other, **PREPARE)
            assert event(other)["event"] == "ready"
        assert directory.exists()
        inner.send_signal(signal.SIGKILL)
        assert until(lambda: not daemon.is_running())
        assert running.wait(10) == 128 + signal.SIGKILL
    os.utime(directory, (0, 0))
    with agent(tmp_path) as running:
        ask(running, **PREPARE)
        assert event(running)["event"] == "ready"
        assert not directory.exists()


def test_what_a_process_left_behind_writes_after_its_end_is_passed_on(tmp_path: Path) -> None:
    """Much of it, too: the agent then leaves it in its pipe until the launcher has printed."""
    with agent(tmp_path) as running:
        ask(running, **PREPARE)
        event(running)
        late = f"while [ ! -e go ]; do sleep 0.1; done; head -c {3 << 20} /dev/zero | tr '\\0' x"
        ask(running, do="start", processes=[{"label": "trainer", "environment": {}, "command": [
            "sh", "-c", f"(cd {tmp_path}; {late}) & echo first"]}])
        assert [event(running).get(key) for key in ("text", "event")] == ["first", "exit"]
        (tmp_path / "go").touch()
        size = 0
        while size < 3 << 20:
            text = str(event(running)["text"])
            size += len(text)
            ask(running, do="shown", size=len(text) + 1)


HOLDS = """
import mmap, os, sys, time
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 4096)
memory = mmap.mmap(file, 4096)
print("made", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("guard_too", [False, True])
def test_shared_memory_of_killed_processes_is_removed(tmp_path: Path, guard_too: bool) -> None:
    made, before = (Path(f"/dev/shm/{tmp_path.name}-{secrets.token_hex(4)}") for _ in range(2))
    before.write_bytes(bytes(4096))
    try:
        with agent(tmp_path) as running:
            ask(running, **PREPARE)
            directory = Path(str(event(running)["directory"]))
            ask(running, do="start", processes=[
                {"label": str(path), "environment": {}, "command": [
                    sys.executable, "-c", HOLDS, str(path)]} for path in (made, before)])
            assert [event(running)["text"] for _ in range(2)] == ["made", "made"]
            assert until(lambda: str(made.name) in (directory / "shared-memory").read_text()
                         if (directory / "shared-memory").exists() else False)
            for child in psutil.Process(running.pid).children(recursive=True):
                child.kill()
            if guard_too:
                running.kill()
            assert running.wait(PATIENCE)
        os.utime(directory, (0, 0))
        with agent(tmp_path) as running:
            ask(running, **PREPARE)
            assert event(running)["event"] == "ready"
        assert not made.exists()
        assert before.exists()  # it was not made by these processes
    finally:
        made.unlink(missing_ok=True)
        before.unlink(missing_ok=True)
