"""Hosts over ssh: OpenSSH's server on hosts that have networks and mounts of their own."""

from __future__ import annotations

import importlib.metadata
import json
import re
import socket
import subprocess
import sys
import sysconfig
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from dgl_heta.launch import remote
from tests.support.launching import over_ssh
from tests.support.ssh_hosts import ADDRESSES, BEHIND, LAUNCHER, MANY, OTHER_PORT, USER
from tests.support.waiting import PROMPT, until

TELL = ("-c", "import json, os; print(json.dumps([os.environ[x] for x in ('USER', "
        "'SSH_CONNECTION')] + [open(os.environ['DGL_IP_CONFIG']).read()]))")
SLEEP = "import time; print('up'); time.sleep(600)"


@over_ssh
def test_hosts_are_reached_by_name_as_a_user_at_a_port(place):
    names = place.script(f"{ADDRESSES[0]} node0\n{ADDRESSES[1]} node1.rack\n", "hosts")
    hosts = place.ssh_hosts()
    config = hosts.configure(place.directory / "config", "Host node1.rack\nHostKeyAlias node1\n")
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', names,
         sys.executable, "-m", "dgl_heta", "launch", *map(str, place.listed(
             "node0", "node1.rack 30070")), "--ssh-config", config, "--ssh-user", USER,
         "--ssh-port", str(OTHER_PORT), "--", "python", *TELL],
        capture_output=True, text=True, timeout=PROMPT)
    assert done.returncode == 0, done.stderr
    lines = [line.partition("] ") for line in done.stdout.splitlines()]
    for label, _, told in lines:
        user, connection, ip_config = json.loads(told)
        assert user == USER
        address = ADDRESSES[int(label.removeprefix("[host")[0])]
        assert connection.split()[2:] == [address, str(OTHER_PORT)]
        assert ip_config == f"{ADDRESSES[0]} 30050\n{ADDRESSES[1]} 30070\n"
    assert len(lines) == 4


@over_ssh
def test_a_jump_host_users_and_ports_come_from_the_configuration_of_ssh(place):
    hosts = place.ssh_hosts()
    config = hosts.configure(place.directory / "config", (
        f"Host {BEHIND[1]}\nProxyJump {ADDRESSES[0]}\nUser {USER}\nPort {OTHER_PORT}\n"))
    job = [*place.listed(BEHIND[1]), "--", "python", *TELL]
    result = place.run("--ssh-config", config, *job)
    assert result.status == 0, result.err
    user, connection, _ = json.loads(result.lines("host0 trainer0")[0])
    assert user == USER
    assert connection.split()[0] == BEHIND[0]
    assert connection.split()[2:] == [BEHIND[1], str(OTHER_PORT)]
    result = place.run("--ssh-config", hosts.config, *job)
    assert result.status == 1
    assert result.error == (
        f"cannot start processes on host0 ({BEHIND[1]}) over ssh (status 255): ssh: connect to "
        f"host {BEHIND[1]} port 22: Network is unreachable; is it up, and is this the port of its "
        "sshd (--ssh-port)?")


@over_ssh
def test_spaces_and_quotes_arrive_as_they_are(place):
    directory = place.directory / "it's a \"directory\" of $HOME"
    directory.mkdir()
    words = ["a b", "it's", '"x" $HOME `id`', "\\ *", "", "ü;&"]
    result = place.run(*place.where("ssh"), "--workdir", directory, "--env", "WORD=it's \"$HOME\"",
                       "--", "python", "-c", "import json, os, sys; print(json.dumps(["
                       "os.getcwd(), os.environ['WORD'], *sys.argv[1:]]))", *words)
    assert result.status == 0, result.err
    for label in ("host0 server0", "host1 trainer1"):
        assert json.loads(result.lines(label)[0]) == [str(directory), "it's \"$HOME\"", *words]


@over_ssh
@pytest.mark.parametrize(("options", "status", "reason", "remedy"), [
    ({"first": f"Host {ADDRESSES[1]}\nPort 23\n"}, 255,
     f"ssh: connect to host {ADDRESSES[1]} port 23: Connection refused",
     "is it up, and is this the port of its sshd (--ssh-port)?"),
    ({"first": f"Host {ADDRESSES[1]}\nHostName 10.99.0.77\n"}, 255,
     "ssh: connect to host 10.99.0.77 port 22: No route to host",
     "is it up, and is this the port of its sshd (--ssh-port)?"),
    ({"first": f"Host {ADDRESSES[1]}\nProxyJump {LAUNCHER}\n"}, 255,
     f"ssh: connect to host {LAUNCHER} port 22: Connection refused",
     "is it up, and is this the port of its sshd (--ssh-port)?"),
    ({"first": f"Host {ADDRESSES[0]}\nIdentityFile {{directory}}/key\n", "key": "other_key"},
     255, f"root@{ADDRESSES[1]}: Permission denied (publickey).",
     f"let it accept a key of yours (ssh-copy-id {ADDRESSES[1]}), or name key and user in ssh's "
     "config"),
    ({"known": ("host0", "other_key")}, 255,
     f"Host key for {ADDRESSES[1]} has changed and you have requested strict checking.",
     "if the host was set up anew, remove its old key (ssh-keygen -R 10.99.0.2) and connect by "
     "hand"),
    ({"known": ("host0",)}, 255, "Host key verification failed.",
     "connect by hand and compare its key's fingerprint, or put its key into known_hosts"),
    ({"without_python": True}, 127, "/bin/python: not found",
     "give the path of the host's Python in the command"),
], ids=["refused", "no route", "no jump host", "wrong key", "changed host key", "unknown host",
        "no python"])
def test_a_host_that_cannot_be_reached_is_named_with_the_reason_and_what_to_do(
        place, monkeypatch, options, status, reason, remedy):
    asked = place.directory / "asked"
    ask = place.script(f"#!/bin/sh\ntouch {asked}\necho yes\n", "ask")
    ask.chmod(0o755)
    monkeypatch.setenv("SSH_ASKPASS", str(ask))
    monkeypatch.setenv("SSH_ASKPASS_REQUIRE", "force")
    hosts, python = place.ssh_hosts(), place.directory / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    config = hosts.configure(place.directory / "config", **{
        "first": options.get("first", "").format(directory=hosts.directory),
        **{name: options[name] for name in ("key", "known") if name in options}})
    with ExitStack() as stack:
        if "without_python" in options:
            stack.enter_context(hosts.mounted(1, python.parent))
        result = place.run("--ssh-config", config, *place.listed(*ADDRESSES), "--", python, "-c",
                           "raise SystemExit('started')")
    assert result.status == 1
    start = f"cannot start processes on host1 ({ADDRESSES[1]}) over ssh (status {status}): "
    assert result.error.startswith(start)
    assert result.error.endswith(f"{reason}; {remedy}")
    assert result.seconds < PROMPT
    assert not asked.exists()
    place.assert_nothing_left(within=PROMPT)


@over_ssh
def test_a_silent_host_is_given_up(place):
    hosts = place.ssh_hosts()
    with socket.create_server((LAUNCHER, 0)) as silent:
        config = hosts.configure(place.directory / "config", (
            f"Host {ADDRESSES[0]}\nHostName {LAUNCHER}\nPort {silent.getsockname()[1]}\n"))
        result = place.run("--ssh-config", config, *place.listed(ADDRESSES[0]), "--timeout", 1,
                           "--", "python", "-c", "raise SystemExit('started')")
    assert result.status == 1
    assert result.error == f"no answer from host0 ({ADDRESSES[0]}) within 1 s (--timeout)"
    assert result.seconds < PROMPT
    place.assert_nothing_left(within=PROMPT)


def test_without_ssh_nothing_starts(place, monkeypatch):
    monkeypatch.setenv("PATH", str(place.directory))
    result = place.run(*place.where("nowhere"), "--", "python", "t.py")
    assert result.status == 2
    assert result.error.startswith("host0 (203.0.113.1) cannot be reached: there is no ssh here")
    result = place.run(*place.where("nowhere"), "--ssh-config", "none", "--", "python", "t.py")
    assert (result.status, result.error) == (2, (
        "--ssh-config none: there is no such file; name one that is written as ~/.ssh/config is"))


def metadata(package: str) -> Path:
    """The file that says which version is installed."""
    name = package.replace("-", "_")
    (file,) = Path(sysconfig.get_path("purelib")).glob(f"{name}-*.dist-info/METADATA")
    return file


@over_ssh
@pytest.mark.parametrize("package", ["dgl-heta", pytest.param(
    "dgl", marks=pytest.mark.needs("dgl"))])
def test_another_version_on_a_host_is_named_with_all_versions(place, package):
    """The first host is this machine, the second one has another version."""
    hosts, file = place.ssh_hosts(), metadata(package)
    version = importlib.metadata.version(package)
    other = place.script(file.read_text().replace(f"\nVersion: {version}", "\nVersion: 0.0.1"),
                         "other")
    with hosts.mounted(1, file, other):
        result = place.run("--ssh-config", hosts.config, *place.listed(LAUNCHER, ADDRESSES[1]),
                           "--", "python", place.script("raise SystemExit('started')"))
    assert result.status == 2
    assert result.error == (
        f"all hosts need the same version of {package}: host0 ({LAUNCHER}) has {version}, host1 "
        f"({ADDRESSES[1]}) has 0.0.1" + (f", this machine has {version}" * (package != "dgl")))
    place.assert_nothing_left(within=PROMPT)


def missing(file: Path) -> str:
    return f"no file {file}: copy it there, or share its directory"


@over_ssh
def test_what_a_host_lacks_is_named_and_what_others_have_it_needs_not(place):
    hosts = place.ssh_hosts()
    work = place.directory / "shared" / "work"
    for part in ("part0", "part1"):
        (work / part).mkdir(parents=True)
        (work / part / "graph.dgl").touch()
    (work / "scripts").mkdir()
    (work / "scripts" / "train.py").write_text("print('trained')")
    config = work / "mag.json"
    config.write_text(json.dumps({"num_parts": 2, **{
        f"part-{i}": {"part_graph": f"part{i}/graph.dgl", "halo": 1} for i in range(2)}}))
    args = ["--ssh-config", hosts.config, *place.listed(*ADDRESSES), "--workdir", work,
            "--part-config", config, "--", "python", "scripts/train.py"]
    with hosts.mounted(1, work / "part0"):
        result = place.run(*args)
        assert result.status == 0, result.err
        assert result.lines("host1 trainer1") == ["trained"]
    for file in ("part1/graph.dgl", "scripts/train.py"):
        with hosts.mounted(1, (work / file).parent):
            result = place.run(*args)
        said = f"host1 ({ADDRESSES[1]}): {missing(work / file)}"
        assert (result.status, result.error) == (2, said)
    with hosts.mounted(1, work.parent):
        result = place.run(*args)
    assert result.status == 2
    assert result.error.startswith(f"host1 ({ADDRESSES[1]}): no working directory {work} "
                                   "(--workdir): No such file or directory (and 3 more: ")
    place.assert_nothing_left(within=PROMPT)


@over_ssh
def test_a_check_shows_what_all_hosts_have_and_starts_nothing(place):
    hosts = place.ssh_hosts()
    script = place.script("raise SystemExit('started')")
    args = [*place.where("ssh"), "--check", "--", "python", script]
    result = place.run(*args)
    assert result.status == 0, result.err
    for host in ("host0 (10.99.0.1)", "host1 (10.99.0.2)"):
        (row,) = [line for line in result.out.splitlines() if line.startswith(host)]
        assert importlib.metadata.version("dgl-heta") in row.split()
        assert importlib.metadata.version("torch") in row.split()
        assert row.split()[-1] == "0"
    (place.directory / "data").mkdir()
    data = place.directory / "data" / "t.py"
    data.touch()
    down = hosts.configure(place.directory / "config", f"Host {ADDRESSES[0]}\nPort 23\n")
    with hosts.mounted(1, data.parent):
        result = place.run("--ssh-config", down, *args[2:-1], data)
        shown = place.run("--ssh-config", down, *args[2:-3], "--json", *args[-3:-1], data).json
    assert result.status == 1
    reason = result.error
    assert reason.startswith("cannot start processes on host0 (10.99.0.1) over ssh (status 255): ")
    assert f"host0 (10.99.0.1): {reason}\n" in result.out
    assert f"host1 (10.99.0.2): {missing(data)}\n" in result.out
    assert [host["problems"] for host in shown["hosts"]] == [[reason], [missing(data)]]
    assert shown["hosts"][1]["versions"]["torch"] == importlib.metadata.version("torch")
    place.assert_nothing_left(within=PROMPT)


@over_ssh
def test_many_hosts_are_asked_though_sshd_drops_who_comes_at_once(place):
    config = place.ssh_hosts().config
    result = place.run("--ssh-config", config, *place.listed(*MANY), "--check", "--json", "--",
                       "sh", "-c", "exit 1")
    assert result.status == 0, result.err
    assert [host["problems"] for host in result.json["hosts"]] == [[]] * len(MANY)


@over_ssh
def test_settings_reach_other_hosts(place, monkeypatch):
    monkeypatch.setenv("DGL_HETA_TRAIN__LR", "0.25")
    config = place.script("[train]\nbatch_size = 33\n", "heta.toml")
    script = place.script("""
import os
words = open("/proc/self/cmdline").read().split("\\0")
print(os.environ["DGL_HETA_TRAIN__LR"])
print(open(words[words.index("-c") + 1]).read())
""")
    with place.ssh_hosts().mounted(0, config, place.script("", "empty")):
        result = place.run(*place.where("ssh", hosts=1), "-c", "heta.toml", "--", "python", script)
    assert result.status == 0, result.err
    for label in ("host0 server0", "host0 trainer0"):
        assert result.lines(label) == ["0.25", *config.read_text().splitlines(), ""]


@over_ssh
@pytest.mark.parametrize(("how", "reason"), [
    ("sshd is killed", "Connection to 10.99.0.2 closed by remote host.|Broken pipe"),
    ("cable is pulled", "Timeout, server 10.99.0.2 not responding.")])  # ssh's own words
def test_a_connection_that_is_lost_ends_the_run_on_both_sides(place, monkeypatch, how, reason):
    monkeypatch.setattr(remote, "ALIVE_S", 1)
    hosts, script = place.ssh_hosts(), place.script(SLEEP + "\n")

    def lose() -> None:
        while sum(str(script) in line for line in place.living()) < 4:
            if ended.wait(0.05):
                return
        if how == "cable is pulled":
            hosts.link(1, "down")
        else:
            for session in hosts.sessions(1):
                session.kill()

    ended, beside = threading.Event(), threading.Thread(target=lose)
    beside.start()
    try:
        result = place.run("--ssh-port", OTHER_PORT, *place.where("ssh"), "--", "python", script)
    finally:
        ended.set()
        beside.join()
        left = until(lambda: not place.living())  # before the cable is back
        hosts.link(1, "up")
    assert result.status == 1
    ended_so = re.escape(f"the connection to host1 ({ADDRESSES[1]}) ended (status 255); all "
                         "processes were ended: ")
    assert re.fullmatch(f"{ended_so}.*({reason})", result.error)
    assert result.seconds < PROMPT
    assert left
    place.assert_nothing_left(within=PROMPT)


@pytest.mark.thorough  # on emulated hosts: tests/distdgl/test_distdgl_hosts.py
@over_ssh
@pytest.mark.needs("dgl")
def test_a_script_computes_over_ssh_what_one_process_does(place):
    from tests.support import dist_script
    from tests.support.dist_reference import compare_all, parts, whole_graph

    graph, cases, out = whole_graph(), ["rgcn", "SparseAdagrad"], place.directory / "out"
    out.mkdir()
    result = place.run(
        *place.where("ssh"), "--part-config", parts(graph, 2, place.directory / "parts"),
        "--num-omp-threads", 1, "--set", "train.learnable=exact", "--", "python",
        dist_script.__file__, "--ip-config", "{ip_config}", "--part-config", "{part_config}",
        "--out", out, "--cases", ",".join(cases))
    assert result.status == 0, result.err
    assert compare_all(graph, cases, out, 2) == []
