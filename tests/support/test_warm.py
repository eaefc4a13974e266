"""Copies of a warm process do what Python does with the same words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import warm
from tests.support.waiting import PATIENCE

TELL = """
import json, os, sys, torch
print(json.dumps([sys.argv, os.getcwd(), sys.path[0], __name__, os.environ.get("SAID"),
                  os.environ.get("PYTHONPATH"), sys.stdin.read(), torch.__version__]))
print("and an error", file=sys.stderr)
"""
pytestmark = pytest.mark.skipif(warm.COLD, reason="there is no warm process")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "a script.py").write_text(TELL)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/module.py").write_text(TELL)
    return tmp_path / "a script.py"


def both(*words: object, **options: object) -> list[tuple[int, str, str]]:
    """Exit status and outputs, by the copy and by Python."""
    found = []
    for python in (warm.python(), sys.executable):
        done = subprocess.run([python, *map(str, words)], capture_output=True, text=True,
                              timeout=PATIENCE, **options)
        found.append((done.returncode, done.stdout, done.stderr))
    return found


def test_words_files_directory_and_environment_are_those_given(script: Path) -> None:
    environment = {**os.environ, "SAID": "so", "PYTHONPATH": str(script.parent / "other")}
    for words in ([script, "-x", "a b"], ["-m", "module", "--to", ""], ["-c", "print(1 + 1)"]):
        copy, python = both(*words, cwd=script.parent, env=environment, input="what is read")
        assert copy == python
        assert copy[0] == 0


@pytest.mark.parametrize("code", [
    "import sys; sys.exit(3)", "import sys; sys.exit('no')", "import os; os.kill(os.getpid(), 9)",
    "raise SystemExit", "import os; os._exit(255)"])
def test_it_ends_in_the_same_way(script: Path, code: str) -> None:
    script.write_text(code)
    copy, python = both(script)
    assert copy == python


def test_an_error_ends_with_the_same_lines(script: Path) -> None:
    script.write_text("def fail():\n    raise ValueError('so')\n\n\nfail()\n")
    copy, python = both(script)
    assert copy[0] == python[0] == 1
    assert copy[2].startswith("Traceback (most recent call last):\n")
    assert copy[2].splitlines()[-4:] == python[2].splitlines()[-4:]


@pytest.mark.parametrize(("ends_by", "status"), [(signal.SIGTERM, 7), (signal.SIGKILL, -9)])
def test_a_signal_reaches_the_copy_and_nothing_outlives_a_kill(
        script: Path, ends_by: int, status: int) -> None:
    script.write_text(
        "import os, signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: os._exit(7))\n"
        "print(os.getpid(), flush=True)\ntime.sleep(600)\n")
    with subprocess.Popen([warm.python(), str(script)], stdout=subprocess.PIPE,
                          text=True) as running:
        assert running.stdout is not None
        pid = int(running.stdout.readline())
        running.send_signal(ends_by)
        assert running.wait(PATIENCE) == status
    end = time.monotonic() + PATIENCE
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{pid}")


def test_a_copy_starts_copies(script: Path) -> None:
    script.write_text(
        "import os, subprocess, sys\nprint(os.getppid())\n"
        "if len(sys.argv) < 2:\n    sys.stdout.flush()\n    read, write = os.pipe()\n"
        "    child = subprocess.Popen([sys.executable, __file__, str(write)], pass_fds=[write])\n"
        "    os.close(write)\n    print(os.getpid(), os.read(read, 9), child.wait())\n"
        "else:\n    os.write(int(sys.argv[1]), b'by a pipe')\n    sys.exit(5)\n")
    done = subprocess.run([warm.python(), str(script)], capture_output=True, text=True)
    first, second, third = done.stdout.splitlines()
    assert int(first) == os.getpid()
    assert third == f"{second} b'by a pipe' 5"
