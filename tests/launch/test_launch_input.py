"""Wrong input to `dgl-heta launch` is named before anything starts."""

from __future__ import annotations

import socket
import time

import pytest

from dgl_heta.errors import InputError
from dgl_heta.launch.cluster import Host, read_ip_config
from tests.support.launching import PRINT


@pytest.mark.parametrize(("options", "message"), [
    ([], "give either --ip-config with the hosts' addresses, or --hosts"),
    (["--hosts", 2, "--ip-config", "ip_config.txt"], "give either --ip-config"),
    (["--hosts", 3], "parts2.json has 2 partitions, but there are 3 hosts"),
    (["--hosts", 1], "parts2.json has 2 partitions, but there is 1 host;"),
    (["--hosts", 0], "Invalid value for '--hosts'"),
    (["--hosts", 251], "250 hosts can be emulated at most"),
    (["--hosts", 2, "--rate", "fast"], "--rate fast: write a number with kbit, mbit or gbit"),
    (["--hosts", 2, "--rate", "0gbit"], "--rate 0gbit: the rate must be more than 0"),
    (["--hosts", 2, "--env", "=x"], "--env =x: write NAME=VALUE, or NAME for the variable of this"),
    (["--hosts", 2, "--env", "NO_NAME"], "--env NO_NAME: there is no variable NO_NAME here"),
    (["--hosts", 2, "--env", "DGL_HETA_CACHE__POLICY=x"],  # which did nothing
     "--env DGL_HETA_CACHE__POLICY: it is a setting; give it to this command"),
    (["--hosts", 2, "--json-file", "none/x.json"], "--json-file none/x.json: there is no direc"),
    (["--hosts", 2, "--json-file", "."], "--json-file . cannot be written; name another file"),
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
    ("10.0.0.1\n\nnode2\n", "line 3: 'node2' is no IPv4 address (as a name this machine does not "
     "know it: "),
    ("10.0.1\n", "line 1: '10.0.1' is no IPv4 address (it cannot be a name either)"),
    ("-oProxyCommand=sh\n", "line 1: '-oProxyCommand=sh' is no IPv4 address (it cannot be a name"),
    ("10.0.0.1\nlocalhost\n", "'localhost' is 127.0.0.1 here, by which other hosts do"),
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
    path.write_text("localhost\n")
    assert read_ip_config(path) == [Host(0, "127.0.0.1", 30050, "localhost")]


def test_many_hosts_are_read_in_seconds(tmp_path):
    path = tmp_path / "ip_config.txt"
    path.write_text("".join(f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}\n" for i in range(16_384)))
    start = time.process_time()
    assert len(read_ip_config(path)) == 16_384
    assert time.process_time() - start < 10


def test_no_command_and_an_unknown_command(place):
    where = place.where("direct", 1)
    assert "Missing argument 'COMMAND'" in place.run(*where).error
    result = place.run(*where, "--", "pythn", "t.py")
    assert (result.status, result.error[:18]) == (2, "no command 'pythn'")


@pytest.mark.parametrize("command", ["python", "python -", "python -u - x", "bash", "sh -s t.sh"])
def test_a_program_on_standard_input_reaches_no_host_and_is_refused(place, command):
    result = place.run(*place.where("direct", 1), "--", *command.split())
    assert result.status == 2
    assert f"{command}' would read its program from standard input, which" in result.error


@pytest.mark.parametrize("options", [[], ["--set", "train.lr=0.1"]])
def test_a_missing_script_is_named_before_anything_starts(place, options):
    result = place.run(*place.where("direct", 1), *options, "--", "python", "-u", "trian.py", "-x")
    assert result.status == 2
    assert result.error.startswith(f"there is no script {place.directory / 'trian.py'}; its path")


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
