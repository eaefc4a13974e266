"""Workers of this machine, played by a script: what they tell, how they fail, and that all end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dgl_heta.errors import HetaError, InputError
from dgl_heta.launch import local
from dgl_heta.store import write_store
from tests.support.graphs import academic
from tests.support.launching import living
from tests.support.waiting import PROMPT, until


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run a script as the worker of every rank; returns the summary and the events."""
    class Workers(local.LocalWorkers):
        def _environment(self) -> dict[str, str]:
            return {**os.environ, "PLACE": str(tmp_path)}  # no rendezvous, so no torch

    def run(script: str, workers: int = 2, **job: str
            ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        file = tmp_path / "worker.py"
        file.write_text("import json, os, pathlib, sys, time\n"
                        "rank, place = int(os.environ['RANK']), pathlib.Path(os.environ['PLACE'])\n"
                        "def tell(**event):\n"
                        "    line = json.dumps(event).encode() + b'\\n'\n"
                        "    os.write(int(os.environ['DGL_HETA_EVENTS']), line)\n" + script)
        monkeypatch.setattr(local.sys, "executable", str(_interpreter(tmp_path, file)))
        events: list[dict[str, Any]] = []
        return Workers(job, workers, tmp_path, events.append).run(), events

    return run


def _interpreter(directory: Path, script: Path) -> Path:
    """An interpreter that runs the script, whatever it is asked to run."""
    path = directory / "python"
    path.write_text(f"#!/bin/sh\nexec {sys.executable} {script}\n")
    path.chmod(0o755)
    return path


def test_events_and_the_summary_are_taken_and_the_rest_is_in_the_logs(run, tmp_path) -> None:
    summary, events = run("""
print("not JSON", file=sys.stderr, flush=True)
print("nor this", flush=True)
tell(event="step", rank=rank)
if rank == 0:
    tell(event="summary", loss=0.5)
tell(event="done")
""")
    assert summary == {"loss": 0.5}
    assert sorted(e["rank"] for e in events) == [0, 1]
    for rank in (0, 1):
        assert (tmp_path / f"worker-{rank}.log").read_text().split("\n")[:2] == [
            "not JSON", "nor this"]


@pytest.mark.parametrize(("end", "how"), [
    ("raise KeyError('x')", "failed with exit status 1"),
    ("os.kill(os.getpid(), 9)", r"was killed by signal 9 \(SIGKILL\)"),
])
def test_a_worker_that_fails_is_named_and_the_others_are_ended(run, tmp_path, end, how) -> None:
    with pytest.raises(HetaError, match=f"^worker 1 {how}; all workers were ended") as caught:
        run(f"""
if rank == 1:
    print("the last words", file=sys.stderr, flush=True)
    {end}
time.sleep(600)
""")
    assert "the last words" in caught.value.details
    assert living(tmp_path) == []


def test_a_store_that_was_cut_is_named_where_a_worker_ends_by_sigbus(run, tmp_path) -> None:
    write_store(academic(), tmp_path / "store")
    file = next((tmp_path / "store/relations").glob("**/*.npy"))
    os.truncate(file, 7)
    with pytest.raises(HetaError, match=r"worker 0 was killed by signal 7 \(SIGBUS\), for files "
                                        rf"that it had open were cut: {file} \(7 of \d+ bytes\)"):
        run("os.kill(os.getpid(), 7)", workers=1, store=str(tmp_path / "store"))


def test_the_cause_is_blamed_not_who_lost_a_peer(run) -> None:
    with pytest.raises(HetaError, match="worker 0 failed with exit status 1"):
        run("""
if rank == 1:
    (place / "lost").touch()
    sys.exit(3)
while not (place / "lost").exists():
    time.sleep(0.05)
sys.exit(1)
""")


def test_a_worker_that_is_stopped_is_blamed_not_who_waited_for_it(run, tmp_path) -> None:
    with pytest.raises(HetaError, match=r"^worker 1 was stopped \(SIGSTOP or a debugger\), and the "
                       "others waited for it in vain; all workers were ended$"):
        run("""
import signal
if rank == 1:
    (place / "pid").write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)
while True:
    try:
        pid = int((place / "pid").read_text())
    except (OSError, ValueError):
        continue
    if pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
        sys.exit(3)
    time.sleep(0.05)
""")
    assert living(tmp_path) == []


def test_wrong_input_that_a_worker_finds_is_the_error(run) -> None:
    with pytest.raises(InputError, match=r"^train\.lr is too much$"):
        run("print('error: train.lr is too much', file=sys.stderr); sys.exit(2)")


def test_it_is_found_before_what_else_the_worker_printed(run) -> None:
    with pytest.raises(InputError, match=r"^train\.lr is too much$"):
        run("print('error: train.lr is too much', file=sys.stderr, flush=True)\n"
            "print('not an event', flush=True); sys.exit(2)")


FORGED = [{"event": "epoch"}, {"event": "error"}, {"event": "error", "message": "of nobody"},
          {"event": "exit", "status": 0}, {"event": "exit", "status": -9}, {"event": "signal"},
          {"event": "summary", "loss": 3}, {"event": "done"}, {"event": 1}]


def test_what_a_worker_prints_is_for_the_log_whatever_it_looks_like(run, tmp_path) -> None:
    lines = [*map(json.dumps, FORGED), "[" * 5000]
    summary, events = run(f"""
for line in {lines!r}:
    print(line, flush=True)
    print(line, file=sys.stderr, flush=True)
tell(event="note", text="of its own")
if rank == 0:
    tell(event="summary", loss=0.5)
tell(event="done")
""")
    assert summary == {"loss": 0.5}
    assert events == [{"event": "note", "text": "of its own"}] * 2
    for rank in (0, 1):
        assert (tmp_path / f"worker-{rank}.log").read_text().splitlines() == [
            line for each in lines for line in (each, each)]


@pytest.mark.parametrize("said", [
    b"no JSON", b"[1]", b"{}", b'{"event": 1}', b'{"event": "error"}', b'{"event": "exit"}',
    b'{"event": "signal", "number": 2}', b'{"event": "malformed"}', b"[" * 100_000, b"\xff"])
def test_what_is_told_and_is_no_event_ends_the_job_and_is_named(run, tmp_path, said) -> None:
    with pytest.raises(HetaError, match=r"^worker 0 told what is no event: b[\'\"]"):
        run(f"os.write(int(os.environ['DGL_HETA_EVENTS']), {said!r} + b'\\n'); time.sleep(600)", 1)
    assert living(tmp_path) == []


def test_a_worker_that_ends_well_without_its_work_is_blamed_not_who_lost_it(run) -> None:
    with pytest.raises(HetaError, match=r"^worker 1 ended with exit status 0 before its work was "
                       r"done, as by os\._exit\(0\); all workers were ended"):
        run("""
if rank == 1:
    os._exit(0)
time.sleep(0.5)
sys.exit(3)
""")


def test_the_way_to_the_launcher_is_the_workers_own(run) -> None:
    """Neither a child that it starts nor one that it forks can tell anything or keep it open."""
    summary, events = run("""
import subprocess
from dgl_heta.launch.worker import Events
pipe = int(os.environ["DGL_HETA_EVENTS"])
events = Events()
assert "DGL_HETA_EVENTS" not in os.environ
find = f"import os, sys; sys.exit({pipe} in map(int, os.listdir('/proc/self/fd')))"
assert subprocess.run([sys.executable, "-c", find], close_fds=False).returncode == 0
if os.fork() == 0:
    events.tell({"event": "note", "text": "of a child"})
    status = os.path.exists(f"/proc/self/fd/{pipe}")
    os._exit(status)
assert os.wait()[1] == 0
events.tell({"event": "note", "text": "x" * 1_000_000})
events.tell({"event": "summary", "loss": 1})
events.tell({"event": "done"})
""", 1)
    assert summary == {"loss": 1}
    assert [len(event["text"]) for event in events] == [1_000_000]


@pytest.mark.parametrize(("end", "written"), [
    ("report({'event': 'summary'})", "seen, and the end"),
    ("raise HetaError('it failed')", "seen")])
def test_what_a_model_has_not_written_yet_at_the_end_of_a_worker_is_written(run, tmp_path, end,
                                                                            written) -> None:
    with contextlib.suppress(HetaError):
        run(f"""
import atexit
from dgl_heta.errors import HetaError
from dgl_heta.launch.worker import worker_main
log = open(place / "log", "w")

def work(job, report):
    log.write("seen")
    atexit.register(log.write, ", and the end")
    {end}

sys.argv[1:] = [str(place / "job.json")]
worker_main(work)
""", 1)
    assert (tmp_path / "log").read_text() == written


@pytest.mark.parametrize("fails", [False, True])
def test_standard_output_that_a_model_has_replaced_and_cannot_be_written_is_no_failure(
        run, tmp_path, fails) -> None:
    with pytest.raises(HetaError, match="failed") if fails else contextlib.nullcontext():
        run(f"""
from dgl_heta.launch.worker import worker_main

class Tee:
    def write(self, text): pass
    def flush(self): raise OSError(28, "No space left on device")

def work(job, report):
    sys.stdout = Tee()
    if {fails}:
        raise KeyError("of the model")
    report({{"event": "summary", "loss": 1}})

sys.argv[1:] = [str(place / "job.json")]
worker_main(work)
""", 1)
    log = (tmp_path / "worker-0.log").read_text()
    assert ("KeyError: 'of the model'" in log) == fails
    grade = "warning" if fails else "error"
    assert f"{grade}: cannot write standard output: No space left on device" in log
    assert log.count("Traceback") == fails


def test_a_thread_of_a_model_that_never_ends_is_not_waited_for_long(run, tmp_path) -> None:
    summary, _ = run("""
import threading
from dgl_heta.launch import worker
log = open(place / "log", "w")

def work(job, report):
    log.write("seen")
    threading.Thread(target=time.sleep, args=(600,)).start()
    report({"event": "summary", "loss": 1})

worker.FINISH_S = 0.5
sys.argv[1:] = [str(place / "job.json")]
worker.worker_main(work)
""", 1)
    assert summary == {"loss": 1}
    assert (tmp_path / "log").read_text() == "seen"


def test_workers_without_a_result_are_an_error(run) -> None:
    with pytest.raises(HetaError, match="ended without a result$"):
        run("tell(event='done')")


def test_who_stays_after_the_result_is_ended(run, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(local.LocalWorkers, "leave_s", 0.2)
    summary, _ = run("""
if rank == 0:
    tell(event="summary", loss=1)
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
""")
    assert summary == {"loss": 1}
    assert living(tmp_path) == []


@pytest.mark.parametrize(("number", "error"), [
    (signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_ends_all_workers(run, tmp_path, number, error) -> None:
    def send() -> None:
        until(lambda: (tmp_path / "up0").exists() and (tmp_path / "up1").exists(), PROMPT)
        os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()
    before = signal.getsignal(number)
    started = time.monotonic()
    with pytest.raises(error):
        run("(place / f'up{rank}').touch(); time.sleep(600)")
    assert time.monotonic() - started < PROMPT
    assert living(tmp_path) == []
    assert signal.getsignal(number) == before


def test_a_signal_that_is_ignored_stays_ignored(run) -> None:
    """As SIGHUP is under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        summary, _ = run("""
if rank == 0:
    import signal
    os.kill(os.getppid(), signal.SIGHUP)
    tell(event="summary", loss=1)
tell(event="done")
""")
        assert summary == {"loss": 1}
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
