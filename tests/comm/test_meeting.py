"""Where trainers meet: a store like torch's own, and strangers, who change nothing."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from torch.distributed import DistStoreError, HashStore, Store

from dgl_heta.comm.launch_secret import MOST_UNPROVEN, NONCE, PROOF_S, proof
from dgl_heta.comm.meeting_server import MOST_FRAME, Server, frame
from dgl_heta.comm.meeting_store import MeetingStore
from tests.support.waiting import PATIENCE, PROMPT, until

SECRET = secrets.token_bytes(32)
HERE = "127.0.0.1"


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server(HERE, 0, SECRET)
    yield running
    running.close()
    assert not [t for t in threading.enumerate() if t.name == "dgl-heta meeting"]


def joined(server: Server, limit: float = PATIENCE, secret: bytes = SECRET) -> MeetingStore:
    return MeetingStore(HERE, server.port, secret, timedelta(seconds=limit))


@contextlib.contextmanager
def stranger(server: Server, *said: bytes) -> Iterator[socket.socket]:
    with socket.create_connection((HERE, server.port), PATIENCE) as connection:
        for data in said:
            connection.sendall(data)
        yield connection


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side closes it, after whatever it says."""
    connection.settimeout(PROMPT)
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def use(store: Store) -> list[Any]:
    """What a store answers to a sequence of requests."""
    store.set("key", "value")
    answers = [store.get("key"), store.add("n", 3), store.add("n", -5), store.get("n"),
               store.compare_set("new", "", "first"), store.compare_set("new", "first", "second"),
               store.compare_set("new", "first", "third"), store.compare_set("none", "x", "y"),
               store.delete_key("key"), store.delete_key("key")]
    store.set("empty", "")
    store.set("bytes", bytes(range(128)).decode())
    store.wait(["n", "empty"])
    return [*answers, store.get("empty"), store.get("bytes"), store.num_keys()]


def test_it_answers_as_a_store_of_torch_does(server: Server) -> None:
    assert use(joined(server)) == use(HashStore())


def test_what_one_sets_another_waits_for_and_a_wait_has_its_limit(server: Server) -> None:
    one, other = joined(server), joined(server)
    threading.Timer(0.2, one.set, ("late", "here")).start()
    assert other.get("late") == b"here"
    started = time.monotonic()
    with pytest.raises(DistStoreError, match=r"timed out after 0\.3 s: the other .* \(no 'never'"):
        other.wait(["late", "never"], timedelta(seconds=0.3))
    assert 0.3 <= time.monotonic() - started < PROMPT


def test_a_value_that_is_too_long_is_refused_and_the_rest_goes_on(server: Server) -> None:
    store = joined(server)
    with pytest.raises(ValueError, match="is too long"):
        store.set("key", b"x" * MOST_FRAME)
    store.set("key", b"x" * (MOST_FRAME // 2))
    assert len(store.get("key")) == MOST_FRAME // 2


@pytest.mark.parametrize("said", [
    b"", b"x", b"GET / HTTP/1.1\r\n\r\n", os.urandom(NONCE + 32), os.urandom(5000),
    os.urandom(NONCE) + bytes(32) + frame([b"set", b"key", b"false"])],
    ids=["nothing", "a byte", "http", "no proof", "garbage", "a frame without a proof"])
def test_a_stranger_is_closed_soon_and_changes_nothing(server: Server, said: bytes) -> None:
    store = joined(server)
    store.set("key", "true")
    with stranger(server, said) as connection:
        assert joined(server).get("key") == b"true"  # while it stays
        assert is_closed(connection)
    assert store.get("key") == b"true"
    assert not server.gate.unproven


def test_a_slow_stranger_has_no_more_time(server: Server) -> None:
    with stranger(server) as connection:
        closed = False
        started = time.monotonic()
        while not closed and time.monotonic() - started < PROMPT:
            try:
                connection.sendall(b"x")
                time.sleep(0.05)
            except ConnectionError:
                closed = True
        assert closed
    joined(server).set("key", "value")


def test_an_honest_exchange_that_was_recorded_is_of_no_use(server: Server) -> None:
    said = bytearray()
    with socket.create_server((HERE, 0)) as gate:  # between an honest one and the server
        def pass_on() -> None:
            inner, _ = gate.accept()
            with inner, stranger(server) as outer:
                inner.sendall(outer.recv(NONCE))
                while data := inner.recv(4096):
                    said.extend(data)
                    outer.sendall(data)
                    if answer := outer.recv(4096):
                        inner.sendall(answer)

        threading.Thread(target=pass_on, daemon=True).start()
        honest = MeetingStore(HERE, gate.getsockname()[1], SECRET, timedelta(seconds=PATIENCE))
        honest.set("key", "once")
        honest.set("key", "twice")
    assert b"once" in said
    with stranger(server, bytes(said)) as connection:
        assert is_closed(connection)
    assert joined(server).get("key") == b"twice"


def test_a_crowd_of_strangers_keeps_nobody_out(server: Server) -> None:
    with contextlib.ExitStack() as crowd:
        opened = [crowd.enter_context(stranger(server, b"x")) for _ in range(5 * MOST_UNPROVEN)]
        store = joined(server)
        store.set("key", "value")
        assert len(server.gate.unproven) <= MOST_UNPROVEN
        assert len(server.selector.get_map()) <= MOST_UNPROVEN + 2
        assert until(lambda: not server.gate.unproven)
        assert all(is_closed(one) for one in opened)
        assert store.get("key") == b"value"


def test_one_who_knows_the_secret_and_sends_nonsense_loses_its_connection(server: Server) -> None:
    for nonsense in (b"\xff" * 100, frame([b"no such request"]), frame([b"set", b"one"]),
                     frame([b"add", b"key", b"many"]), b"\x00\x00\x00\x02ab"):
        with stranger(server) as connection:
            asked, own = connection.recv(NONCE, socket.MSG_WAITALL), bytes(NONCE)
            connection.sendall(own + proof(SECRET, "client", asked, own))
            assert len(connection.recv(32, socket.MSG_WAITALL)) == 32
            connection.sendall(nonsense)
            assert is_closed(connection)
    joined(server).set("key", "value")


def test_who_listens_without_the_secret_is_not_met(server: Server) -> None:
    with pytest.raises(DistStoreError, match=f"trainer 0 was not met at {HERE}:{server.port} "
                       "within 1 s: (who listens|it closed|Connection reset)"):
        joined(server, 1, secrets.token_bytes(32))
    with socket.create_server((HERE, 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(DistStoreError, match=f"not met at {HERE}:{port} within 0.5 s: "):
            MeetingStore(HERE, port, SECRET, timedelta(seconds=0.5))
    with pytest.raises(DistStoreError, match="within 0.5 s: Connection refused"):
        MeetingStore(HERE, port, SECRET, timedelta(seconds=0.5))


def test_a_server_that_proves_nothing_learns_nothing_it_can_use(server: Server) -> None:
    """It cannot answer with what the client sent: each side has a proof of its own."""
    with socket.create_server((HERE, 0)) as mirror:
        def reflect() -> None:
            inner, _ = mirror.accept()
            with inner:
                inner.sendall(bytes(NONCE))
                answer = inner.recv(NONCE + 32, socket.MSG_WAITALL)
                inner.sendall(answer[NONCE:])
                inner.recv(1)

        threading.Thread(target=reflect, daemon=True).start()
        with pytest.raises(DistStoreError, match="not met"):
            MeetingStore(HERE, mirror.getsockname()[1], SECRET, timedelta(seconds=0.3))


def test_a_meeting_that_ends_is_an_error_at_once(server: Server) -> None:
    store = joined(server)
    server.close()
    with pytest.raises(DistStoreError, match="was lost, closed by peer"):
        store.get("key")


def test_a_proof_takes_a_second_at_most() -> None:
    assert PROOF_S <= 1
