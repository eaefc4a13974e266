"""Processes of a run meet where no stranger has a part, and listen at one address."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dgl_heta.launch.local import run_workers
from tests.support.launching import EVERYWHERE, command_lines_of_ssh, over_ssh
from tests.support.waiting import PATIENCE

JOINS = """
import json, os, socket, sys, time
if os.environ["DGL_ROLE"] == "server":
    sys.exit()
sys.path.insert(0, {root!r})
from tests.support.listening import listeners
if os.environ["RANK"] == "1":  # before the others can meet, and until the end
    while True:
        try:
            place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            stranger = socket.create_connection(place)
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    stranger.send(b"x")
import torch
import torch.distributed as dist
for number in range({times}):
    dist.init_process_group({init})
    ones = torch.ones(1)
    dist.all_reduce(ones)
    print(json.dumps([ones.item(), listeners()]))
    time.sleep(0.5)  # torch 2.2 can hang where a group is destroyed while its threads are busy
    dist.destroy_process_group()
os._exit(0)
"""
ROOT = str(Path(__file__).parents[2])


@pytest.mark.parametrize("kind", EVERYWHERE)
def test_trainers_meet_beside_a_stranger_and_listen_at_one_address(place, kind) -> None:
    script = place.script(JOINS.format(root=ROOT, times=1, init='"gloo"'))
    result = place.run(*place.where(kind), "--stop-after", PATIENCE, "--", "python", script)
    assert result.status == 0, result.err
    labels = (["host0 trainer0", "host0 trainer1"] if kind == "direct"
              else ["host0 trainer0", "host1 trainer1"])
    told = [json.loads(line) for label in labels for line in result.lines(label)]
    assert [total for total, _ in told] == [2, 2]
    addresses = {address for _, at in told for address, _ in at}
    assert addresses == ({"127.0.0.1"} if kind == "direct" else {"10.99.0.1", "10.99.0.2"})


def test_groups_that_are_made_again_meet_again_also_by_url(place) -> None:
    init = ('"gloo", init_method=f"tcp://{place[0]}:{place[1]}", '
            'rank=int(os.environ["RANK"]), world_size=2')
    text = JOINS.format(root=ROOT, times=2, init=init).replace(
        "import torch\n", 'place = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]\n'
        "import torch\n")
    result = place.run(*place.where("direct"), "--stop-after", PATIENCE, "--", "python",
                       place.script(text))
    assert result.status == 0, result.err
    assert [json.loads(x)[0] for x in result.lines("host0 trainer1")] == [2, 2]


@over_ssh
def test_the_secret_is_another_in_each_run_and_on_no_command_line(place) -> None:
    script = place.script("""
import os, time
from pathlib import Path
secret = os.environ.get("DGL_HETA_MEETING")
print(secret)
while not os.path.exists(__file__ + ".seen"):
    time.sleep(0.05)
for process in Path("/proc").glob("[0-9]*"):
    try:
        assert secret.encode() not in (process / "cmdline").read_bytes(), process
    except OSError:
        pass
""")
    args = [*place.where("ssh"), "--", "python", script]
    with command_lines_of_ssh(Path(f"{script}.seen")) as lines:
        runs = [place.run(*args)]
    runs.append(place.run(*args))
    assert [run.status for run in runs] == [0, 0]
    found = [{line for i in range(2) for role in ("server", "trainer")
              for line in run.lines(f"host{i} {role}{i}")} for run in runs]
    assert [len(each) for each in found] == [1, 1]
    assert found[0] != found[1]
    assert all(len(secret) == 64 for each in found for secret in each)
    assert not any(secret in line for line in lines for secret in found[0])


def test_workers_of_one_machine_meet_without_a_listener_of_ours(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    summary = run_workers({"timeout_s": PATIENCE}, 3, tmp_path, events.append,
                          "tests.support.listening")
    assert summary == {"workers": 3.0}
    assert len(events) == 3
    for event in events:  # gloo's own, on the loopback interface
        assert {address for address, _ in event["at"]} == {"127.0.0.1"}
        assert len(event["at"]) == 1
    assert sorted(x.name for x in tmp_path.iterdir()) == [
        "job.json", "worker-0.log", "worker-1.log", "worker-2.log"]
