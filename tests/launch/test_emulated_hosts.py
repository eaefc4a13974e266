"""Hosts emulated on this machine: links, memory and cores of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from dgl_heta.launch.emulated import Link
from tests.support.launching import PRINT, emulated
from tests.support.waiting import PATIENCE

TALK = """
import os, socket, time
host = int(os.environ.get("RANK", -1))
payload = b"x" * {size}
if host == 0:
    with socket.create_server((os.environ["MASTER_ADDR"], 5000)) as listener:
        other, address = listener.accept()
    assert address[0] == "10.99.0.2", address
    started, got = None, 0
    while data := other.recv(1 << 16):
        started = started or time.perf_counter()
        got += len(data)
    assert got == len(payload)
    print(time.perf_counter() - started)
elif host == 1:
    while True:
        try:
            other = socket.create_connection((os.environ["MASTER_ADDR"], 5000))
            break
        except OSError:
            time.sleep(0.05)
    other.sendall(payload)
    other.close()
"""


@emulated
def test_hosts_talk_to_each_other_and_their_bytes_are_counted(place):
    size = 3_000_000
    result = place.run(*place.where("emulated"), "--json", "--", "python",
                       place.script(TALK.format(size=size)))
    assert result.status == 0
    receiver, sender = result.json["hosts"]
    assert size < sender["bytes_sent"] < 1.1 * size
    assert size < receiver["bytes_received"] < 1.1 * size
    assert receiver["bytes_sent"] < 0.1 * size
    assert "host1  10.99.0.2  3.0" in result.err


@emulated
def test_the_rate_of_a_link_holds(place):
    result = place.run(*place.where("emulated"), "--rate", "20mbit", "--", "python",
                       place.script(TALK.format(size=2_500_000)))
    assert result.status == 0
    assert float(result.lines("host0 trainer0")[0]) > 0.8  # 1 s at 20 Mbit/s


@emulated
def test_the_latency_of_a_link_holds_or_the_missing_module_is_named(place):
    script = place.script("""
import os, socket, time
rank = int(os.environ.get("RANK", -1))
if rank == 0:
    with socket.create_server((os.environ["MASTER_ADDR"], 5000)) as listener:
        other, _ = listener.accept()
    other.sendall(other.recv(1))
elif rank == 1:
    while True:
        try:
            other = socket.create_connection((os.environ["MASTER_ADDR"], 5000))
            break
        except OSError:
            time.sleep(0.05)
    started = time.perf_counter()
    other.sendall(b"x")
    assert other.recv(1) == b"x"
    print(time.perf_counter() - started)
""")
    result = place.run(*place.where("emulated"), "--latency", 20, "--rate", "1gbit", "--",
                       "python", script)
    if result.status == 2:
        assert "--latency needs the kernel's 'netem' queue" in result.error
    else:
        assert float(result.lines("host1 trainer1")[0]) >= 0.04
    place.assert_nothing_left()


def test_the_queues_of_a_link():
    assert Link().limits("eth0", delay=True) == []
    assert Link("1gbit").limits("eth0", delay=True) == [
        "qdisc add dev eth0 root handle 2: tbf rate 1000000000bit burst 250000 limit 3750000"]
    assert Link("10Mbit", 1.5).limits("eth0", delay=True) == [
        "qdisc add dev eth0 root handle 1: netem delay 1.5ms limit 100000",
        "qdisc add dev eth0 parent 1: handle 2: tbf rate 10000000bit burst 32768 limit 262144"]


@emulated
def test_every_host_has_a_shared_memory_of_its_own(place):
    script = place.script("""
import os, time
name = "/dev/shm/dgl-heta-test"
if "RANK" in os.environ:
    with open(name, "x") as file:
        file.write(os.environ["RANK"])
else:
    while not os.path.exists(name) or not open(name).read():
        time.sleep(0.05)
    print(open(name).read())
""")
    result = place.run(*place.where("emulated"), "--", "python", script)
    assert result.status == 0
    assert result.lines("host0 server0") == ["0"]
    assert result.lines("host1 server1") == ["1"]
    assert not Path("/dev/shm/dgl-heta-test").exists()


@emulated
def test_hosts_have_the_cores_that_they_are_given(place):
    script = place.script("""
import os
print(sorted(os.sched_getaffinity(0)), os.environ["OMP_NUM_THREADS"])
""")
    there = sorted(os.sched_getaffinity(0))
    result = place.run(*place.where("emulated"), "--cores", 1, "--", "python", script)
    assert result.lines("host0 trainer0") == [f"[{there[0]}] 1"]
    assert result.lines("host1 trainer1") == [f"[{there[1 % len(there)]}] 1"]
    assert ("note: 2 hosts with 1 cores each share" in result.err) == (len(there) < 2)
    assert len(os.sched_getaffinity(0)) == len(there)


@emulated
def test_one_host_alone(place):
    result = place.run(*place.where("emulated", 1), "--", "python", place.script(PRINT))
    assert result.status == 0
    assert json.loads(result.lines("host0 trainer0")[0])["WORLD_SIZE"] == "1"


@emulated
def test_nothing_appears_outside_of_the_hosts(place):
    def seen() -> tuple[str, ...]:
        return tuple(subprocess.run(command.split(), capture_output=True, text=True).stdout
                     for command in ("ip netns list", "ip -o link", "ip -4 -o addr"))

    before = seen()
    mounts = Path("/proc/self/mounts").read_text()
    script = place.script("""
import os, time
print("up")
while not os.path.exists(__file__ + ".seen"):
    time.sleep(0.05)
""")
    args = [*place.where("emulated"), "--rate", "1gbit", "--", "python", script]
    command = [sys.executable, "-m", "dgl_heta", "launch", *map(str, args)]
    two = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
           for _ in range(2)]  # beside each other, with the same addresses
    for launcher in two:
        assert launcher.stdout is not None
        launcher.stdout.readline()
    assert seen() == before
    assert Path("/proc/self/mounts").read_text() == mounts
    Path(f"{script}.seen").touch()
    for launcher in two:
        _, err = launcher.communicate(timeout=PATIENCE)
        assert launcher.returncode == 0, err
    assert seen() == before
    place.assert_nothing_left()
