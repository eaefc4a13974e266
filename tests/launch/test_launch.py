"""`dgl-heta launch`: what runs where with which environment, and that nothing is left of it.

Over ssh is tested with a shell script named `ssh` that runs the command here, in place of the
shell of another machine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgl_heta import cli
from dgl_heta.errors import InputError
from dgl_heta.launch import blame, hosts
from dgl_heta.launch.activation import activate
from dgl_heta.launch.agent import Stream
from dgl_heta.launch.cluster import Host, read_ip_config
from dgl_heta.launch.emulated import Link
from tests.support.waiting import PATIENCE, PROMPT, until

emulated = pytest.mark.needs("hosts")
EVERYWHERE = ["direct", "ssh", pytest.param("emulated", marks=emulated)]
FAKE_SSH = """#!/bin/sh
echo "$@" >> {log}
while [ "$1" != "${{1#-}}" ]; do shift 2; done
export FAKE_HOST=$1
shift
if [ "$FAKE_HOST" = "{unreachable}" ]; then
    echo "ssh: connect to host $FAKE_HOST port 22: Connection refused" >&2
    exit 255
fi
echo "Welcome to $FAKE_HOST"
exec sh -c "$*"
"""
PRINT = """
import json, os
print(json.dumps(dict(os.environ)))
"""


@dataclass
class Result:
    status: int
    out: str
    err: str
    seconds: float

    @property
    def json(self) -> Any:
        return json.loads(self.out.splitlines()[-1])

    def lines(self, label: str) -> list[str]:
        """What a process wrote on standard output."""
        return [line.removeprefix(f"[{label}] ") for line in self.out.splitlines()
                if line.startswith(f"[{label}] ")]

    @property
    def error(self) -> str:
        """The last line, which is the error."""
        last = self.err.splitlines()[-1]
        assert last.startswith("error: "), self.err
        return last.removeprefix("error: ")


@dataclass
class Place:
    """A directory to launch in; whatever is started there can be found by its path."""

    directory: Path
    run: Callable[..., Result]

    def script(self, text: str, name: str = "script.py") -> Path:
        path = self.directory / name
        path.write_text(text)
        return path

    def parts(self, count: int) -> Path:
        path = self.directory / f"parts{count}.json"
        path.write_text(json.dumps({"num_parts": count}))
        return path

    def ip_config(self, *addresses: str) -> Path:
        path = self.directory / "ip_config.txt"
        path.write_text("".join(f"{a} {_free_port(a)}\n" for a in addresses))
        return path

    def where(self, kind: str, hosts: int = 2) -> list[Any]:
        """The options for a kind of hosts: this machine, over ssh or emulated."""
        if kind == "emulated":
            return ["--hosts", hosts, "--part-config", self.parts(hosts)]
        if kind == "direct":
            return ["--ip-config", self.ip_config("127.0.0.1"), "--part-config", self.parts(1),
                    "--num-trainers", hosts]
        addresses = [f"127.0.0.{i + 1}" for i in range(hosts)]
        return ["--ip-config", self.ip_config(*addresses), "--part-config", self.parts(hosts),
                "--no-local"]

    def living(self) -> list[str]:
        """Command lines of processes that belong to this directory."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                except OSError:
                    continue
                if str(self.directory) in line and state != "Z":
                    found.append(line)
        return found

    def assert_nothing_left(self, within: float = 0) -> None:
        until(lambda: not self.living() and not self._temporary(), within)
        assert self.living() == []
        assert self._temporary() == []

    def _temporary(self) -> list[Path]:
        return list((self.directory / "tmp").iterdir())


@pytest.fixture
def place(tmp_path, capfd, monkeypatch) -> Place:
    """Run `dgl-heta launch` in this process, through the entry point."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "bin").mkdir()
    ssh = tmp_path / "bin" / "ssh"
    ssh.write_text(FAKE_SSH.format(log=tmp_path / "ssh.log", unreachable="127.0.0.9"))
    ssh.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("PATH", os.pathsep.join([
        str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]))
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "DGL_HETA_CONFIG", "PYTHONUNBUFFERED"):
        monkeypatch.delenv(name, raising=False)

    def run(*args: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["dgl-heta", "launch", *map(str, args)])
        capfd.readouterr()
        started = time.monotonic()
        with pytest.raises(SystemExit) as end:
            cli.main()
        seconds = time.monotonic() - started
        code = end.value.code
        return Result(0 if code is None else int(code), *capfd.readouterr(), seconds)

    return Place(tmp_path, run)


def _free_port(address: str) -> int:
    with socket.socket() as listener:
        listener.bind((address, 0))
        return listener.getsockname()[1]


# --- what runs where ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ssh", pytest.param("emulated", marks=emulated)])
def test_every_process_has_the_environment_of_its_role(place, kind):
    script = place.script(PRINT)
    result = place.run(*place.where(kind), "--num-trainers", 2, "--num-servers", 2,
                       "--num-samplers", 1, "--num-server-threads", 3, "--num-omp-threads", 5,
                       "--env", "COLOUR=blue", "--", "python", script)
    assert result.status == 0
    environment = {label: json.loads(result.lines(label)[0])
                   for host in (0, 1) for number in (2 * host, 2 * host + 1)
                   for label in (f"host{host} server{number}", f"host{host} trainer{number}")}
    assert len(environment) == 8
    for label, variables in environment.items():
        host, role = int(label[4]), label.split()[1].rstrip("0123")
        number = int(label[-1])
        expected = {"DGL_NUM_SERVER": "2", "DGL_NUM_CLIENT": "8", "DGL_NUM_SAMPLER": "1",
                    "DGL_CONF_PATH": str(place.parts(2)), "DGL_GRAPH_FORMAT": "csc",
                    "OMP_WAIT_POLICY": "PASSIVE", "COLOUR": "blue"}
        if role == "server":
            expected |= {"DGL_ROLE": "server", "DGL_SERVER_ID": str(number),
                         "OMP_NUM_THREADS": "3"}
            assert not {"RANK", "MASTER_ADDR", "DGL_DIST_MODE"} & variables.keys()
        else:
            expected |= {"DGL_ROLE": "client", "DGL_DIST_MODE": "distributed",
                         "DGL_GROUP_ID": "0", "OMP_NUM_THREADS": "5", "RANK": str(number),
                         "WORLD_SIZE": "4", "LOCAL_RANK": str(number - 2 * host),
                         "LOCAL_WORLD_SIZE": "2",
                         "MASTER_ADDR": "10.99.0.1" if kind == "emulated" else "127.0.0.1"}
            assert "DGL_SERVER_ID" not in variables
        assert {name: variables.get(name) for name in expected} == expected
        assert (variables.get("GLOO_SOCKET_IFNAME") == "eth0") == (kind == "emulated")
    ports = {v["MASTER_PORT"] for v in environment.values() if "MASTER_PORT" in v}
    assert len(ports) == 1
    assert ports.pop().isdecimal()
    place.assert_nothing_left()


def test_the_files_of_a_run_are_named_to_the_script(place):
    script = place.script("""
import os, sys
assert sys.argv[1] == os.environ["DGL_IP_CONFIG"] and sys.argv[2] == "--conf=" + os.environ[
    "DGL_CONF_PATH"], sys.argv
print(open(sys.argv[1]).read().strip(), sys.argv[3])
""")
    result = place.run(*place.where("direct", 1), "--", "python", script, "{ip_config}",
                       "--conf={part_config}", "{other}")
    text = (place.directory / "ip_config.txt").read_text().strip()
    assert result.lines("host0 trainer0") == [f"{text} {{other}}"]


def test_threads_default_to_the_cores_of_the_host_evenly(place):
    script = place.script("import os; print(os.environ['OMP_NUM_THREADS'])")
    result = place.run(*place.where("direct", 2), "--", "python", script)
    cores = len(os.sched_getaffinity(0))
    assert result.lines("host0 trainer1") == [str(max(1, cores // 2))]


def test_the_number_of_threads_in_the_environment_counts(place, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    script = place.script("import os; print(os.environ['OMP_NUM_THREADS'])")
    result = place.run(*place.where("direct", 2), "--", "python", script)
    assert (result.lines("host0 trainer1"), result.lines("host0 server0")) == (["7"], ["1"])


def test_a_dry_run_starts_nothing_and_shows_everything(place):
    script = place.script("raise SystemExit('started')")
    where = [*place.where("ssh"), "--num-trainers", 2, "--dry-run"]
    shown = place.run(*where, "--json", "--", "python", "-u", script, "a b").json
    assert [(p["host"], p["role"], p["number"]) for p in shown] == [
        (0, "server", 0), (0, "trainer", 0), (0, "trainer", 1),
        (1, "server", 1), (1, "trainer", 2), (1, "trainer", 3)]
    assert shown[-1]["environment"]["RANK"] == "3"
    assert shown[-1]["command"] == ["python", "-u", "-m", "dgl_heta.launch.plain", str(script),
                                    "a b"]
    result = place.run(*where, "--", "python", "-u", script, "a b")
    assert result.status == 0
    assert "[host1 trainer3] at 127.0.0.2 over ssh\n" in result.out
    assert f"  python -u -m dgl_heta.launch.plain {script} 'a b'\n" in result.out
    assert "  RANK=3\n" in result.out
    assert not (place.directory / "ssh.log").exists()


def test_lines_carry_their_origin_and_keep_their_stream(place):
    script = place.script("""
import os, sys
print("to out", os.environ["DGL_ROLE"])
print("to err", file=sys.stderr)
print("no end", end="")
""")
    result = place.run(*place.where("direct", 2), "--", "python", script)
    assert result.lines("host0 trainer1") == ["to out client", "no end"]
    assert result.lines("host0 server0") == ["to out server", "no end"]
    assert [x for x in result.err.splitlines() if x.startswith("[")].count(
        "[host0 trainer1] to err") == 1


def test_bytes_that_are_no_text_do_no_harm(place):
    script = place.script("""
import os
os.write(1, b"\\xff\\xfe caf\\xc3\\xa9 \\x1b[31mred\\n" + b"x" * 200_000 + b"\\n")
""")
    result = place.run(*place.where("direct", 1), "--", "python", script)
    first, *rest = result.lines("host0 trainer0")
    assert "café" in first
    assert sum(map(len, rest)) == 200_000


@given(st.lists(st.sampled_from(["a", "bc", "\n", "\r", "\r\n", "d\r"]), max_size=12),
       st.integers(1, 5))
def test_a_stream_is_cut_into_the_same_lines_however_it_arrives(pieces, size):
    data = "".join(pieces).encode()

    def lines(chunks):
        stream = Stream("", "", 0)
        found = [line for chunk in chunks for line in stream.feed(chunk)]
        return [line.rstrip(b"\r") for line in [*found, stream.flush()] if line.strip(b"\r")]

    cut = [data[i:i + size] for i in range(0, len(data), size)]
    assert lines(cut) == lines([data]) == [p for p in data.replace(b"\r", b"\n").split(b"\n") if p]


# --- settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("command", "expected"), [
    ("python t.py -c x", "python -m dgl_heta run -c h.toml --set a.b=1 t.py -c x"),
    ("/opt/bin/python3.11 -u -W ignore t.py",
     "/opt/bin/python3.11 -u -W ignore -m dgl_heta run -c h.toml --set a.b=1 t.py"),
    ("python3 -uXdev t.py", "python3 -uXdev -m dgl_heta run -c h.toml --set a.b=1 t.py"),
    ("python -X dev -Wcommon t.py",
     "python -X dev -Wcommon -m dgl_heta run -c h.toml --set a.b=1 t.py"),
])
def test_settings_run_the_script_under_dgl_heta(command, expected):
    assert activate(command.split(), "h.toml", ["a.b=1"]) == expected.split()


@pytest.mark.parametrize("command", [
    "torchrun t.py", "./t.py", "python -m package", "python -c pass", "python -uc pass", "python",
    "python -", "python -u", "pythonic t.py"])
def test_settings_need_a_python_script(command):
    with pytest.raises(InputError, match=r"must be 'python SCRIPT.*dgl_heta\.enable\(\)"):
        activate(command.split(), "h.toml", [])


@pytest.mark.parametrize("way", ["option", "set", "variable", "none"])
def test_without_settings_the_command_is_plain(place, monkeypatch, way):
    config = place.script("[train]\nlr = 0.1\n", "heta.toml")
    options: list[Any] = {"option": ["-c", "heta.toml"], "set": ["--set", "train.lr=0.1"]}.get(
        way, [])
    if way == "variable":
        monkeypatch.setenv("DGL_HETA_CONFIG", "heta.toml")
    shown = place.run(*place.where("direct", 1), *options, "--dry-run", "--json", "--", "python",
                      "t.py", "-x").json
    given = {"set": ["--set", "train.lr=0.1"], "none": []}.get(way, ["-c", str(config)])
    expected = ["-m", *(["dgl_heta", "run", *given] if given else ["dgl_heta.launch.plain"])]
    assert {tuple(p["command"]) for p in shown} == {("python", *expected, "t.py", "-x")}


def test_a_bad_setting_is_found_before_anything_starts(place):
    place.script("[train]\nlrr = 0.1\n", "heta.toml")
    result = place.run(*place.where("ssh"), "-c", "heta.toml", "--", "python", "t.py")
    assert result.status == 2
    assert "train.lrr" in result.error
    assert not (place.directory / "ssh.log").exists()


# --- wrong input -------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "message"), [
    ([], "give either --ip-config with the hosts' addresses, or --hosts"),
    (["--hosts", 2, "--ip-config", "ip_config.txt"], "give either --ip-config"),
    (["--hosts", 3], "parts2.json has 2 partitions, but there are 3 hosts"),
    (["--hosts", 1], "parts2.json has 2 partitions, but there is 1 host;"),
    (["--hosts", 0], "Invalid value for '--hosts'"),
    (["--hosts", 251], "250 hosts can be emulated at most"),
    (["--hosts", 2, "--rate", "fast"], "--rate fast: write a number with kbit, mbit or gbit"),
    (["--hosts", 2, "--rate", "0gbit"], "--rate 0gbit: the rate must be more than 0"),
    (["--hosts", 2, "--env", "NAME"], "--env NAME: write NAME=VALUE"),
    (["--hosts", 2, "--workdir", "nowhere"], "nowhere (--workdir)"),
    (["--hosts", 2, "--graph-format", "csc,coi"], "'coi' is none of csc, csr and coo"),
    (["--hosts", 2, "--master-port", 30051, "--num-servers", 2],
     "--master-port 30051 is the port of a server at host0"),
    (["--hosts", 2, "--part-config", "none.json"],
     "cannot read none.json (--part-config): No such file or directory"),
    (["--hosts", 2, "--part-config", "script.py"], "script.py (--part-config) is not JSON"),
    (["--hosts", 2, "--part-config", "empty.json"],
     "empty.json (--part-config) has no 'num_parts'"),
    (["--ip-config", "none.txt"], "cannot read none.txt (--ip-config): No such file"),
    (["--ip-config", "here.txt"], "host0 (127.0.0.1) and host1 (127.0.0.2) are this machine"),
    (["--ip-config", "here.txt", "--rate", "1gbit"], "--rate is for emulated hosts (--hosts)"),
    (["--ip-config", "high.txt", "--num-servers", 2], "go beyond port 65535"),
    (["--hosts", 2, "-c", "none.toml"], "cannot read settings none.toml"),
])
def test_wrong_input_is_named_before_anything_starts(place, options, message):
    place.script("raise SystemExit('started')")
    place.script("{}", "empty.json")
    place.script("127.0.0.1\n127.0.0.2\n", "here.txt")
    place.script("192.0.2.1 65535\n192.0.2.2\n", "high.txt")
    given = [] if "--part-config" in options else ["--part-config", place.parts(2).name]
    result = place.run(*options, *given, "--", "python", "script.py")
    assert result.status == 2
    assert message in result.error
    assert result.out == ""


@pytest.mark.parametrize(("text", "message"), [
    ("", "names no host; write 'address [port]', a line per host"),
    ("10.0.0.1 30050 x\n", "line 1: '10.0.0.1 30050 x'; write 'address [port]'"),
    ("10.0.0.1\n\nnode2\n", "line 3: 'node2' is no IPv4 address"),
    ("10.0.0.1 high\n", "line 1: 'high' is no port"),
    ("10.0.0.1 70000\n", "line 1: '70000' is no port"),
    ("10.0.0.1\n10.0.0.2\n10.0.0.1 30070\n", "line 3: 10.0.0.1 is the address of two hosts"),
])
def test_a_wrong_ip_config_is_named_with_its_line(tmp_path, text, message):
    path = tmp_path / "ip_config.txt"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_ip_config(path)
    assert message in str(error.value)


def test_ip_config_as_distdgl_reads_it(tmp_path):
    path = tmp_path / "ip_config.txt"
    path.write_text("10.0.0.1\n  10.0.0.2   20090  \n\n")
    assert read_ip_config(path) == [Host(0, "10.0.0.1", 30050), Host(1, "10.0.0.2", 20090)]


def test_no_command_and_an_unknown_command(place):
    where = place.where("direct", 1)
    assert "Missing argument 'COMMAND'" in place.run(*where).error
    result = place.run(*where, "--", "pythn", "t.py")
    assert (result.status, result.error[:18]) == (2, "no command 'pythn'")


def test_a_port_in_use_is_named(place):
    where = place.where("direct", 1)
    port = int((place.directory / "ip_config.txt").read_text().split()[1])
    script = place.script("raise SystemExit('started')")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        result = place.run(*where, "--", "python", script)
    assert result.status == 2
    assert result.error == (f"host0 (127.0.0.1): port {port} at 127.0.0.1 cannot be used: "
                            "Address already in use")
    place.assert_nothing_left()


def test_where_hosts_cannot_be_emulated_the_reason_is_named(place, monkeypatch):
    monkeypatch.setattr("dgl_heta.launch.emulated.emulation_refused", lambda: "no permission")
    result = place.run(*place.where("emulated"), "--", "python", place.script(PRINT))
    assert result.status == 1
    assert result.error == ("hosts cannot be emulated here: no permission; or name real hosts "
                            "with --ip-config")


# --- failures ----------------------------------------------------------------------------------

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
    host = "host0 (127.0.0.1)" if kind == "direct" else (
        "host1 (127.0.0.2)" if kind == "ssh" else "host1 (10.99.0.2)")
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
    assert "[host0 trainer1] waiting for the server\n" in result.err
    place.assert_nothing_left()


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
    assert result.error.startswith("the connection to host1 (127.0.0.2) ended (status -9)")
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


# --- summary -----------------------------------------------------------------------------------


def test_the_summary_as_json_and_in_a_file(place):
    result = place.run(*place.where("direct"), "--json", "--json-file", "summary.json", "--",
                       "python", place.script("print('{\"status\": 3}')"))
    summary = result.json
    assert json.loads((place.directory / "summary.json").read_text()) == summary
    assert (summary["status"], summary["error"], summary["notes"]) == (0, None, [])
    assert summary["processes"] == [
        {"host": 0, "role": "server", "number": 0, "status": 0},
        {"host": 0, "role": "trainer", "number": 0, "status": 0},
        {"host": 0, "role": "trainer", "number": 1, "status": 0}]
    assert 0 < summary["seconds"] <= result.seconds
    assert result.err.splitlines()[-1].endswith("s, exit status 0")


# --- over ssh ----------------------------------------------------------------------------------


def test_ssh_gets_its_options_and_never_asks(place):
    result = place.run(*place.where("ssh"), "--ssh-port", 2222, "--ssh-user", "dgl", "--timeout",
                       20, "--", "python", place.script("pass"))
    assert result.status == 0
    for line in (place.directory / "ssh.log").read_text().splitlines():
        assert "-o BatchMode=yes -o ConnectTimeout=20 " in line
        assert " -p 2222 -l dgl 127.0.0." in line


def test_an_unreachable_host_is_named_and_the_others_are_ended(place):
    place.script("127.0.0.1\n127.0.0.9\n", "two.txt")
    result = place.run("--ip-config", "two.txt", "--no-local", "--part-config", place.parts(2),
                       "--", "python", place.script("raise SystemExit('started')"))
    assert result.status == 1
    assert result.error == ("cannot start processes on host1 (127.0.0.9) over ssh (status 255): "
                            "ssh: connect to host 127.0.0.9 port 22: Connection refused")
    place.assert_nothing_left()


def test_a_silent_host_is_given_up(place):
    (place.directory / "bin" / "ssh").write_text("#!/bin/sh\nexec sleep 600\n")
    result = place.run(*place.where("ssh"), "--timeout", 1, "--", "python", "t.py")
    assert result.status == 1
    assert result.error == ("no answer from host0 (127.0.0.1), host1 (127.0.0.2) within 1 s "
                            "(--timeout)")
    assert result.seconds < PROMPT


def test_a_host_without_the_directory_or_the_partitions_is_named(place):
    where = place.where("ssh")
    result = place.run(*where, "--workdir", "/nowhere", "--", "python", "t.py")
    assert result.status == 1
    assert "cannot start processes on host" in result.error
    assert "/nowhere" in result.error
    # The other host's file system lacks the file: it is gone once the launcher has read it.
    ssh = place.directory / "bin" / "ssh"
    ssh.write_text(ssh.read_text().replace("exec sh", "rm -f parts2.json\nexec sh"))
    result = place.run(*where, "--", "python", "t.py")
    assert result.status == 2
    assert f"host0 (127.0.0.1): no file {place.directory}/parts2.json" in result.error


def _fake_python(place: Place, cases: str) -> None:
    """A `python` that answers otherwise in some cases and is the real one in all others."""
    python = place.directory / "bin" / "python"
    python.write_text(f"#!/bin/sh\ncase \"$FAKE_HOST $*\" in\n{cases}\n"
                      f"*) exec {sys.executable} \"$@\";;\nesac\n")
    python.chmod(0o755)


def test_different_versions_are_named_with_their_hosts(place):
    _fake_python(place, "127.0.0.2*importlib.metadata*) "
                 """echo '{"dgl": "1.1.3", "torch": "2.2.1", "dgl-heta": null}';;
*importlib.metadata*) echo '{"dgl": "2.1.0", "torch": "2.2.1", "dgl-heta": "1.0"}';;""")
    result = place.run(*place.where("ssh"), "--", "python", "t.py")
    assert result.status == 2
    assert result.error == ("all hosts need the same version of dgl: host0 (127.0.0.1) has "
                            "2.1.0, host1 (127.0.0.2) has 1.1.3")


def test_settings_reach_other_hosts(place, monkeypatch):
    monkeypatch.setenv("DGL_HETA_TRAIN__LR", "0.25")
    config = place.script("[train]\nbatch_size = 33\n", "heta.toml")
    _fake_python(place, '*dgl_heta?run*) echo "$4 $DGL_HETA_TRAIN__LR"; cat "$5";;')
    result = place.run(*place.where("ssh"), "-c", "heta.toml", "--", "python", "t.py")
    assert result.status == 0
    for label in ("host0 server0", "host1 trainer1"):
        assert result.lines(label) == ["-c 0.25", *config.read_text().splitlines()]


# --- emulated hosts ----------------------------------------------------------------------------

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


# --- imports -----------------------------------------------------------------------------------


def test_neither_torch_nor_dgl_is_imported():
    code = ("import sys, dgl_heta.cli.launch, dgl_heta.cli.launch_output, "
            "dgl_heta.launch.hosts\n"
            "print([m for m in ('torch', 'dgl') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_agent_needs_nothing_but_python():
    text = (Path(hosts.__file__).parent / "agent.py").read_text()
    done = subprocess.run([shutil.which("python3") or sys.executable, "-I", "-S", "-c", text],
                          input="", capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert [json.loads(x)["event"] for x in done.stdout.splitlines()] == ["hello", "ended"]
