"""One fails and all end: who is blamed, and that nothing is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading

import psutil
import pytest

from dgl_heta.errors import EXIT_PEER
from dgl_heta.launch import blame, hosts
from tests.support.launching import EVERYWHERE, emulated, over_ssh
from tests.support.waiting import PROMPT, until

DIES = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", __file__],
                 start_new_session=True)
print("up")
if os.environ.get("RANK") == "1":
    for i in range(100):
        print("line", i)
    time.sleep(0.3)
    {end}
time.sleep(600)
"""


@pytest.mark.parametrize("kind", EVERYWHERE)
def test_when_one_dies_all_end_and_nothing_is_left(place, kind):
    script = place.script(DIES.format(end="os.kill(os.getpid(), signal.SIGKILL)"))
    result = place.run(*place.where(kind), "--json", "--", "python", script)
    assert result.status == 1
    assert result.seconds < PROMPT
    host = "host0 (127.0.0.1)" if kind == "direct" else "host1 (10.99.0.2)"
    assert result.error == (f"trainer 1 on {host} (rank 1) was killed by signal 9 (SIGKILL); "
                            "all processes were ended")
    assert result.json["status"] == 1
    assert result.json["error"] == result.error
    details = [x for x in result.err.splitlines() if x.startswith("line ")]
    assert details == [f"line {i}" for i in range(40, 100)]
    place.assert_nothing_left()


@pytest.mark.parametrize("kind", EVERYWHERE)
def test_a_failed_server_is_named(place, kind):
    script = place.script("""
import os, sys, time
if os.environ.get("DGL_SERVER_ID") == "0":
    sys.exit("no shared memory")
time.sleep(600)
""")
    result = place.run(*place.where(kind), "--", "python", script)
    assert result.status == 1
    assert result.error.startswith("server 0 on host0 (")
    assert result.error.endswith("(server id 0) failed with exit status 1; all processes were "
                                 "ended")
    assert "\nno shared memory\n" in result.err
    place.assert_nothing_left()


@pytest.mark.parametrize(("first", "second", "blamed", "how"), [
    ("os._exit(3)", "os._exit(1)", 1, "failed with exit status 1"),
    ("raise ConnectionResetError('Connection reset by peer')", "os._exit(5)", 1,
     "failed with exit status 5"),
    ("raise ConnectionResetError('Connection reset by peer')", "os.kill(os.getpid(), 9)", 1,
     "was killed by signal 9 (SIGKILL)"),
    ("os.abort()", "os.kill(os.getpid(), 11)", 1, "was killed by signal 11 (SIGSEGV)"),
    ("os._exit(0)", "raise ConnectionResetError('Connection reset by peer')", 1,
     "failed with exit status 1, after trainer 0 on host0 (127.0.0.1) (rank 0) had ended with exit "
     "status 0; all processes were ended"),
    ("os._exit(0)", f"os.write(2, b'error: lost another worker\\n'); os._exit({EXIT_PEER})", 0,
     "ended with exit status 0 before its work was done"),
    ("os._exit(4)", "os._exit(5)", 0, "failed with exit status 4"),
    ("os._exit(3)", "time.sleep(600)", 0, "failed with exit status 3"),
])
def test_the_cause_is_blamed_not_who_lost_a_peer(
        place, monkeypatch, first, second, blamed, how):
    if blamed == 1:  # who comes later, however much later
        monkeypatch.setattr(blame, "GRACE_S", PROMPT)
        monkeypatch.setattr(hosts.Hosts, "leave_s", 0.5)
    script = place.script(f"""
import os, time
if os.environ.get("RANK") == "0":
    with open(__file__ + ".pid", "w") as file:
        file.write(f"{{os.getpid()}}\\n")
    {first}
if os.environ.get("RANK") == "1":
    while not os.path.exists(__file__ + ".pid") or not (pid := open(__file__ + ".pid").read()):
        time.sleep(0.05)
    while os.path.exists(f"/proc/{{int(pid)}}"):
        time.sleep(0.05)
    {second}
time.sleep(600)
""")
    result = place.run(*place.where("direct"), "--", "python", script)
    assert result.error.startswith(f"trainer {blamed} on host0 (127.0.0.1) (rank {blamed}) {how}")
    assert result.seconds < PROMPT


def test_wrong_input_that_a_process_finds_is_the_error(place):
    script = place.script("""
import os, sys, time
if os.environ.get("RANK") == "1":
    print("Traceback of another kind", file=sys.stderr)
    print("error: setting train.lr: too much", file=sys.stderr)
    sys.exit(2)
time.sleep(600)
""")
    result = place.run(*place.where("direct"), "--", "python", script)
    assert (result.status, result.error) == (2, "setting train.lr: too much")


def test_a_failure_of_the_last_process_is_a_failure(place):
    result = place.run(*place.where("direct"), "--", "python", place.script("raise KeyError('x')"))
    assert result.status == 1
    assert "KeyError: 'x'" in result.err
    assert "failed with exit status 1" in result.error


def test_servers_that_stay_are_ended_with_a_note(place, monkeypatch):
    monkeypatch.setattr(hosts.Hosts, "leave_s", 0.5)
    script = place.script("""
import os, time
if os.environ["DGL_ROLE"] == "server":
    time.sleep(600)
""")
    result = place.run(*place.where("direct"), "--json", "--", "python", script)
    assert result.status == 0
    assert "note: ended host0 server0, still there 0.5 s after the last trainer" in result.err
    assert result.json["notes"] == ["ended host0 server0, still there 0.5 s after the last "
                                    "trainer"]
    place.assert_nothing_left()


def test_trainers_that_hang_without_their_server_are_ended(place, monkeypatch):
    monkeypatch.setattr(hosts.Hosts, "silent_s", 0.5)
    script = place.script("""
import os, pathlib, time
here = pathlib.Path(__file__).parent
if os.environ["DGL_ROLE"] == "client":
    print("waiting for the server")
    (here / f"up{os.environ['RANK']}").touch()
    time.sleep(600)
while not ((here / "up0").exists() and (here / "up1").exists()):
    time.sleep(0.05)
""")
    result = place.run(*place.where("direct"), "--", "python", script)
    assert result.status == 1
    assert "server 0 on host0 (127.0.0.1) (server id 0) ended with exit status 0" in result.error
    assert "there still are host0 trainer0, host0 trainer1" in result.error
    assert result.error.endswith("; a trainer that still works then must write a line now and then")
    assert "[host0 trainer1] waiting for the server\n" in result.err
    place.assert_nothing_left()


@over_ssh
def test_a_lost_host_ends_the_run(place):
    script = place.script("""
import os, signal, time
if os.environ.get("RANK") == "1":
    time.sleep(0.3)
    os.kill(os.getppid(), signal.SIGKILL)
time.sleep(600)
""")
    result = place.run(*place.where("ssh"), "--", "python", script)
    assert result.status == 1
    assert result.error.startswith("the connection to host1 (10.99.0.2) ended (status 137)")
    assert until(lambda: not place.living())


def test_a_run_can_be_limited(place):
    script = place.script("import time; print('epoch 1'); time.sleep(600)")
    result = place.run(*place.where("direct"), "--stop-after", 1, "--", "python", script)
    assert result.status == 1
    assert result.error == ("the run was ended after 1 s (--stop-after); still running: "
                            "host0 server0, host0 trainer0, host0 trainer1")
    assert re.search(r"^\[host0 trainer0\] (epoch 1|\(it wrote nothing\))$", result.err, re.M)
    place.assert_nothing_left()


def test_what_outlives_a_successful_process_is_ended(place):
    script = place.script("""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", __file__],
                 start_new_session=True)
""")
    result = place.run(*place.where("direct"), "--", "python", script)
    assert result.status == 0
    place.assert_nothing_left()


SLEEPS = """
import os, signal, subprocess, sys, time
def note(number, frame):
    print("got", signal.Signals(number).name)
    sys.exit(7)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, note)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", __file__],
                 start_new_session=True)
print("up")
time.sleep(600)
"""


@pytest.mark.parametrize("kind", EVERYWHERE)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_everything(place, kind, number):
    script = place.script(SLEEPS)
    args = [*place.where(kind), "--", "python", script]
    launcher = subprocess.Popen([sys.executable, "-m", "dgl_heta", "launch", *map(str, args)],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    processes = 3 if kind == "direct" else 4
    for _ in range(processes):
        assert launcher.stdout.readline().endswith("] up\n")
    launcher.send_signal(number)
    out, err = launcher.communicate(timeout=PROMPT)
    if number == signal.SIGKILL:
        assert launcher.returncode == -9
        place.assert_nothing_left(within=PROMPT)
        return
    assert launcher.returncode == 128 + number
    assert out.count(f"got {number.name}") == processes
    assert err.splitlines()[-1] == f"error: ended by {number.name}"
    place.assert_nothing_left()


def test_what_scripts_save_on_sigterm_has_time(place, monkeypatch):
    monkeypatch.setattr(hosts, "KILL_AFTER_S", 0.5)
    script = place.script("""
import os, signal, sys, time
def save(number, frame):
    time.sleep(2)
    print("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open(os.path.join(os.path.dirname(__file__), "up-" + os.environ["DGL_ROLE"]), "w").close()
time.sleep(600)
""")

    def send():
        until(lambda: len(list(place.directory.glob("up-*"))) == 2)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=send, daemon=True).start()
    result = place.run(*place.where("direct", 1), "--", "python", script)
    assert (result.status, result.error) == (143, "ended by SIGTERM")
    assert result.lines("host0 trainer0") == ["saved"]
    place.assert_nothing_left()


@pytest.mark.parametrize("kind", ["direct", pytest.param("emulated", marks=emulated)])
def test_one_that_is_stopped_is_named_not_who_waited_for_it(place, kind):
    script = place.script("""
import os, signal, sys, time
if os.environ.get("RANK") == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
if os.environ.get("RANK") == "0":
    time.sleep(2)
    raise RuntimeError("Timed out waiting 2000ms for recv operation to complete")
time.sleep(600)
""")
    result = place.run(*place.where(kind), "--", "python", script)
    assert result.status == 1
    assert result.error.startswith("trainer 1 on host")
    assert result.error.endswith("(rank 1) was stopped (SIGSTOP or a debugger), and the others "
                                 "waited for it in vain; all processes were ended")
    place.assert_nothing_left()


def test_one_that_fails_for_a_reason_of_its_own_is_named_beside_one_that_is_stopped(place):
    script = place.script("""
import os, signal, sys, time
if os.environ.get("RANK") == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
if os.environ.get("RANK") == "0":
    time.sleep(1)
    raise KeyError("of its own")
time.sleep(600)
""")
    result = place.run(*place.where("direct"), "--", "python", script)
    assert result.error.startswith("trainer 0 on host0 (127.0.0.1) (rank 0) failed")


@emulated
def test_the_end_of_the_bridge_between_emulated_hosts_is_named(place):
    script = place.script("print('up'); import time; time.sleep(600)")
    args = [*place.where("emulated"), "--", "python", script]
    launcher = subprocess.Popen([sys.executable, "-m", "dgl_heta", "launch", *map(str, args)],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    assert launcher.stdout.readline().endswith("] up\n")
    (bridge,) = [p for p in psutil.Process(launcher.pid).children() if p.cmdline() == ["cat"]]
    bridge.kill()
    _, err = launcher.communicate(timeout=PROMPT)
    assert launcher.returncode == 1
    assert err.splitlines()[-1] == (
        f"error: the process that keeps the bridge of the emulated hosts (pid {bridge.pid}) ended "
        "(status -9); all processes were ended")
    place.assert_nothing_left()
