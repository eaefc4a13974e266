"""Connections of DGL's servers and trainers: no stranger has a part in them, waits have limits."""

from __future__ import annotations

import ctypes
import re
import sys

import pytest

from dgl_heta.system.library_links import replace_call
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.needs("dgl")

STRANGERS = """
import os, socket, sys, threading, time
os.environ["DGLBACKEND"] = "pytorch"
stay = []
def crowd(address, port):
    while True:
        try:
            first = socket.create_connection((address, port))
        except OSError:
            time.sleep(0.001)
            continue
        for said in (None, b"x", b"", bytes(8), b"\\x10" + bytes(7) + os.urandom(5000)):
            stay.append(socket.create_connection((address, port)))
            if said:
                stay[-1].sendall(said)
            elif said == b"":
                stay[-1].shutdown(socket.SHUT_WR)
        stay.extend(socket.create_connection((address, port)) for _ in range(200))
        stay.append(first)
        return

ip_config = sys.argv[1]
address, port = open(ip_config).read().split()
server = os.environ["DGL_ROLE"] == "server"
if server:
    from pathlib import Path
    threading.Thread(target=crowd, args=(address, int(port)), daemon=True).start()
from dgl.distributed import dist_context, rpc, rpc_client, rpc_server
if server:
    from dgl.distributed.server_state import ServerState
    rpc_server.start_server(0, ip_config, 1, 2, ServerState(None, None, None))
else:
    chosen = rpc_client.get_local_usable_addr
    def met(probe):
        found = chosen(probe)
        at, number = found.split(":")
        threading.Thread(target=crowd, args=(at, int(number)), daemon=True).start()
        return found
    rpc_client.get_local_usable_addr = met
    rpc_client.connect_to_server(ip_config, 1)
    print("connected as", rpc.get_rank(), "of", rpc.get_num_client(), flush=True)
    rpc.client_barrier()
    print("strangers:", len(stay))
    if rpc.get_rank() == 0:
        rpc.send_request(0, rpc.ShutDownRequest(0))
        time.sleep(1)
    os._exit(0)
"""

ALONE = """
import os, socket, sys, time
sys.path.insert(0, os.path.dirname(__file__))
address, port = open(sys.argv[1]).read().split()
rank = os.environ.get("RANK")
if rank is None:
    import selectors
    from dgl_heta.comm.launch_secret import Gate, secret_for
    deaf = socket.create_server((address, int(port) + 1))
    with selectors.DefaultSelector() as selector:
        gate = Gate(socket.create_server((address, int(port))), secret_for("DGL"), selector)
        kept = []
        while True:
            for key, _ in selector.select():
                kept.append(gate.take(key.fileobj))
os.environ["DGLBACKEND"] = "pytorch"
from dgl.distributed.rpc_client import connect_to_server
with open(sys.argv[1] + rank, "w") as file:
    file.write(f"{address} {int(port) + int(rank)}\\n")
connect_to_server(sys.argv[1] + rank, 1)
"""


def test_strangers_at_every_port_of_dgl_have_no_effect(place) -> None:
    """Silent ones, one byte, half open, the end signal of DGL, a message, and 200 at once."""
    result = place.run(*place.where("direct"), "--stop-after", PATIENCE, "--", "python",
                       place.script(STRANGERS), "{ip_config}")
    assert result.status == 0, result.err
    told = [line for i in (0, 1) for line in result.lines(f"host0 trainer{i}")]
    assert {"connected as 0 of 2", "connected as 1 of 2"} <= set(told)
    assert told.count("strangers: 206") == 2
    assert result.err.count("that does not prove to be of this launch was closed") == 3
    place.assert_nothing_left()


def test_a_trainer_that_waits_for_dgl_in_vain_ends_and_says_for_what(place) -> None:
    """Trainer 0 for a server of this run that never answers, trainer 1 for who is of no run."""
    result = place.run(*place.where("direct"), "--set", "run.timeout_s=2", "--stop-after",
                       PATIENCE, "--", "python", place.script(ALONE), "{ip_config}")
    assert result.status == 1
    found = re.fullmatch(r"trainer (\d) on host0 \(127.0.0.1\) \(rank \d\): timed out after 2 s "
                         r"\(run.timeout_s\): (.*); all processes were ended", result.error)
    assert found, result.error
    assert re.fullmatch((
        r"waited at 127\.0\.0\.1:\d+ for 1 server of DGL to connect, 0 did",
        r"who listens at 127\.0\.0\.1:\d+ does not prove to be a process of DGL of this run "
        r"\(timed out\)")[int(found[1])], found[2])
    place.assert_nothing_left()


def test_a_port_that_another_program_has_taken_meanwhile_is_named(place) -> None:
    script = place.script("""
import os, socket, sys, time
address, port = open(sys.argv[1]).read().split()
taken = sys.argv[1] + ".taken"
if os.environ["DGL_ROLE"] == "client":
    listener = socket.create_server((address, int(port)))
    open(taken, "w").close()
    time.sleep(600)
os.environ["DGLBACKEND"] = "pytorch"
from dgl.distributed import rpc
while not os.path.exists(taken):
    time.sleep(0.05)
rpc.create_receiver(1 << 20)
rpc.wait_for_senders(address, port, 1)
""")
    result = place.run(*place.where("direct", 1), "--stop-after", PATIENCE, "--", "python", script,
                       "{ip_config}")
    assert result.status == 2
    assert re.match(r"DGL cannot listen at 127\.0\.0\.1:\d+, as where another program does; ",
                    result.error)
    place.assert_nothing_left()


def test_a_call_that_a_library_does_not_make_is_not_replaced() -> None:
    function = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)
    assert not replace_call(sys.modules["_ctypes"].__file__, "accept", function)
    assert not replace_call("/no/such/library.so", "accept", function)
