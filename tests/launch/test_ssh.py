"""Hosts over ssh, played by a script named `ssh` that runs the command here."""

from __future__ import annotations

import sys

from tests.support.launching import Place
from tests.support.waiting import PROMPT


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
