"""What runs where with which environment, and what is told of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgl_heta.launch.agent import Stream
from tests.support.launching import ELSEWHERE, PRINT, command_lines_of_ssh, over_ssh


@pytest.mark.parametrize("kind", ELSEWHERE)
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
            assert ("GLOO_SOCKET_IFNAME" in variables) == (kind == "emulated")
        else:
            expected |= {"DGL_ROLE": "client", "DGL_DIST_MODE": "distributed",
                         "DGL_GROUP_ID": "0", "OMP_NUM_THREADS": "5", "RANK": str(number),
                         "WORLD_SIZE": "4", "LOCAL_RANK": str(number - 2 * host),
                         "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "10.99.0.1",
                         "GLOO_SOCKET_IFNAME": "eth0"}
            assert "DGL_SERVER_ID" not in variables
        assert {name: variables.get(name) for name in expected} == expected
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
    where = [*place.where("nowhere"), "--num-trainers", 2, "--dry-run"]
    shown = place.run(*where, "--json", "--", "python", "-u", script, "a b").json
    assert [(p["host"], p["role"], p["number"]) for p in shown] == [
        (0, "server", 0), (0, "trainer", 0), (0, "trainer", 1),
        (1, "server", 1), (1, "trainer", 2), (1, "trainer", 3)]
    assert shown[-1]["environment"]["RANK"] == "3"
    assert shown[-1]["command"] == ["python", "-u", "-m", "dgl_heta.launch.fail_fast", str(script),
                                    "a b"]
    result = place.run(*where, "--", "python", "-u", script, "a b")
    assert result.status == 0
    assert "[host1 trainer3] at 203.0.113.2 over ssh\n" in result.out
    assert f"  python -u -m dgl_heta.launch.fail_fast {script} 'a b'\n" in result.out
    assert "  RANK=3\n" in result.out


@over_ssh
def test_a_variable_by_name_has_its_value_and_is_on_no_command_line(place, monkeypatch):
    monkeypatch.setenv("TOKEN_OF_A_TEST", "hush = 7")
    script = place.script("""
import os, time
from pathlib import Path
print(os.environ["TOKEN_OF_A_TEST"])
while not os.path.exists(__file__ + ".seen"):
    time.sleep(0.05)
for process in Path("/proc").glob("[0-9]*"):
    try:
        assert "hush" not in (process / "cmdline").read_text(), process
    except OSError:
        pass
""")
    where = [*place.where("ssh"), "--env", "TOKEN_OF_A_TEST"]
    with command_lines_of_ssh(Path(f"{script}.seen")) as lines:
        result = place.run(*where, "--", "python", script)
    assert result.status == 0, result.err
    for label in ("host0 server0", "host1 trainer1"):
        assert result.lines(label) == ["hush = 7"]
    assert not any("hush" in line for line in lines)
    shown = place.run(*where, "--dry-run", "--", "python", script).out
    assert "TOKEN_OF_A_TEST='…'" in shown
    assert "hush" not in shown


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


def test_what_filters_the_output_of_a_process_has_time_for_its_last_words(place):
    result = place.run(*place.where("direct", 1), "--", "bash", "-c",
                       "exec > >(sleep 1; cat); echo last")
    assert (result.status, result.lines("host0 trainer0")) == (0, ["last"])


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
        with open(os.devnull) as pipe:
            stream = Stream("", "", pipe)
        found = [line for chunk in chunks for line in stream.feed(chunk)]
        return [line.rstrip(b"\r") for line in [*found, stream.flush()] if line.strip(b"\r")]

    cut = [data[i:i + size] for i in range(0, len(data), size)]
    assert lines(cut) == lines([data]) == [p for p in data.replace(b"\r", b"\n").split(b"\n") if p]


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
