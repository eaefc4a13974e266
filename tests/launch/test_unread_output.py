"""Output that nobody reads waits in the processes; all else is told and obeyed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.support.waiting import PROMPT, until

MOST_GROWTH = 64 << 20  # bytes; without a limit it is as much in a second
WRITES = """
import os, sys, time
if os.environ["DGL_ROLE"] == "server":
    time.sleep(600)
{first}
while True:
    print("x" * 1000)
"""


def launch(place, script: str, *options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "dgl_heta", "launch", *map(str, place.where("direct")),
         *map(str, options), "--", "python", str(place.script(script))],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_reader_that_stops_makes_the_processes_wait_and_limits_are_obeyed(place) -> None:
    with launch(place, WRITES.format(first=""), "--stop-after", 12) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline().endswith(b"x\n")
        started, memory = time.monotonic(), psutil.Process(launcher.pid).memory_info
        time.sleep(2)
        before = memory().rss
        time.sleep(2)
        assert memory().rss - before < MOST_GROWTH / 4
        assert launcher.wait(PROMPT) == 1  # though nobody has read
        assert time.monotonic() - started < PROMPT
        assert launcher.stderr is not None
        error = launcher.stderr.read().decode().splitlines()[-1]
        assert error.startswith("error: the run was ended after 12 s (--stop-after)")
    place.assert_nothing_left(within=PROMPT)


@pytest.mark.parametrize(("number", "status"), [
    (signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.thorough)])
def test_a_signal_is_obeyed_while_nobody_reads(place, number, status) -> None:
    with launch(place, WRITES.format(first="")) as launcher:
        assert launcher.stdout is not None
        launcher.stdout.readline()
        time.sleep(1)
        launcher.send_signal(number)
        assert launcher.wait(PROMPT) == status
    place.assert_nothing_left(within=PROMPT)


def test_a_process_that_dies_is_named_while_nobody_reads(place) -> None:
    dies = """
if os.environ["RANK"] == "1":
    time.sleep(2)
    os.kill(os.getpid(), 9)
"""
    with launch(place, WRITES.format(first=dies)) as launcher:
        assert launcher.wait(PROMPT) == 1
        assert launcher.stderr is not None
        assert "trainer 1 on host0 (127.0.0.1) (rank 1) was killed by signal 9" in (
            launcher.stderr.read().decode().splitlines()[-1])
    place.assert_nothing_left(within=PROMPT)


def test_a_reader_that_comes_back_gets_every_line(place) -> None:
    count = 20_000
    script = f"""
import os, sys
if os.environ["DGL_ROLE"] == "client":
    for i in range({count}):
        print(i, "y" * 200)
"""
    with launch(place, script) as launcher:
        assert launcher.stdout is not None
        time.sleep(3)
        lines = launcher.stdout.read().decode().splitlines()
        assert launcher.wait(PROMPT) == 0
    for trainer in ("trainer0", "trainer1"):
        numbers = [int(x.split()[2]) for x in lines if x.startswith(f"[host0 {trainer}]")]
        assert numbers == list(range(count))


def test_last_lines_that_cannot_be_written_are_an_error(place, monkeypatch) -> None:
    def full(*line: str) -> None:
        time.sleep(1)  # the processes have ended then
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("dgl_heta.cli.launch_output.line_printer", lambda job: full)
    result = place.run(*place.where("direct", 1), "--", "sh", "-c", "echo result 0.9")
    assert result.status == 1
    assert result.error.startswith("no space left on the disk")


def test_a_reader_that_goes_away_ends_the_run(place) -> None:
    with launch(place, WRITES.format(first="")) as launcher:
        assert launcher.stdout is not None
        launcher.stdout.readline()
        launcher.stdout.close()
        assert launcher.wait(PROMPT) == 1
    assert until(lambda: not place.living())
