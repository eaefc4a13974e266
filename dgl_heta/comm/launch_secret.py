"""Connections that prove that they know the run's secret; others are closed.

Each side sends random bytes, and answers the other's by a keyed hash over both, so a recorded proof
is of no use. Who connects has a second for it. Only few unproven connections are kept, the
youngest, so that a crowd keeps nobody out.
"""

from __future__ import annotations

import hmac
import os
import secrets
import selectors
import socket
import time
from dataclasses import dataclass, field

SECRET = "DGL_HETA_MEETING"
"""The variable that has the run's secret, in processes that `dgl-heta launch` starts."""
PROOF_S = 1.0  # for a connection to prove itself
ATTEMPT_S = 5.0  # for a listener to prove itself; its process may be busy
MOST_UNPROVEN = 64
NONCE = 32
PROOF = 32


def secret_for(purpose: str) -> bytes | None:
    """The secret of this process's run for one kind of connection; None where it has none."""
    secret = os.environ.get(SECRET)
    return hmac.digest(secret.encode(), purpose.encode(), "sha256") if secret else None


def proof(secret: bytes, side: str, asked: bytes, own: bytes) -> bytes:
    """The answer of a side ("client" or "server") to the other side's random bytes `asked`."""
    return hmac.digest(secret, b"dgl-heta " + side.encode() + asked + own, "sha256")


def prove(connection: socket.socket, secret: bytes, end: float) -> None:
    """Prove to a listener that this side knows the secret, and let it prove the same.

    Parameters
    ----------
    end : when it must be done, on the monotonic clock.

    Raises
    ------
    OSError
        It does not know the secret, closed the connection, or did not answer in time.
    """
    asked, own = receive(connection, NONCE, end), secrets.token_bytes(NONCE)
    connection.sendall(own + proof(secret, "client", asked, own))
    given = receive(connection, PROOF, end)
    if not hmac.compare_digest(given, proof(secret, "server", own, asked)):
        raise ConnectionError("who listens there does not know this run's secret")


def receive(connection: socket.socket, size: int, end: float) -> bytes:
    """So many bytes, before a time on the monotonic clock.

    Raises
    ------
    OSError
        They did not come.
    """
    data = b""
    while len(data) < size:
        connection.settimeout(max(0.001, end - time.monotonic()))
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("it closed the connection")
        data += piece
    return data


@dataclass
class _Unproven:
    nonce: bytes
    deadline: float
    received: bytearray = field(default_factory=bytearray)


class Gate:
    """Takes connections to a listener, and gives those that have proved themselves.

    Parameters
    ----------
    selector : its user's, which gives what this gate waits for with the gate as data.

    Attributes
    ----------
    turned_away : how many connections have been closed without a proof.
    """

    def __init__(self, listener: socket.socket, secret: bytes,
                 selector: selectors.BaseSelector) -> None:
        self.listener, self.secret, self.selector = listener, secret, selector
        self.unproven: dict[socket.socket, _Unproven] = {}  # the oldest first
        self.turned_away = 0
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ, self)

    def wait_s(self) -> float | None:
        """Seconds until :meth:`close_late` has something to do; None: none is waited for."""
        oldest = next(iter(self.unproven.values()), None)
        return max(0.0, oldest.deadline - time.monotonic()) if oldest else None

    def take(self, ready: socket.socket) -> socket.socket | None:
        """Read from a socket that is ready; the connection, if it has now proved itself.

        It does not block, and the selector does not have it any longer.
        """
        if ready is self.listener:
            self._accept()
            return None
        if ready not in self.unproven:  # closed meanwhile
            return None
        peer = self.unproven[ready]
        try:
            data = ready.recv(NONCE + PROOF + 1 - len(peer.received))
            if not data:
                raise ConnectionError
            peer.received += data
            if len(peer.received) < NONCE + PROOF:
                return None
            nonce, given = bytes(peer.received[:NONCE]), bytes(peer.received[NONCE:])
            if not hmac.compare_digest(given, proof(self.secret, "client", peer.nonce, nonce)):
                raise ConnectionError
            ready.sendall(proof(self.secret, "server", nonce, peer.nonce))  # little: it has room
        except BlockingIOError:
            return None
        except OSError:
            self._close(ready)
            return None
        self.selector.unregister(ready)
        del self.unproven[ready]
        return ready

    def close_late(self) -> None:
        """Close what has not proved itself in time."""
        now = time.monotonic()
        for connection in [c for c, peer in self.unproven.items() if peer.deadline <= now]:
            self._close(connection)

    def close(self) -> None:
        """Close all that is unproven, and wait for nothing more."""
        for connection in list(self.unproven):
            self._close(connection)
        self.selector.unregister(self.listener)

    def _accept(self) -> None:
        try:
            connection, _ = self.listener.accept()
        except BlockingIOError:
            return
        except OSError:  # it has gone again, or this process has too many files open
            time.sleep(0.01)
            return
        if len(self.unproven) >= MOST_UNPROVEN:
            self._close(next(iter(self.unproven)))
        connection.setblocking(False)
        peer = _Unproven(secrets.token_bytes(NONCE), time.monotonic() + PROOF_S)
        self.unproven[connection] = peer
        self.selector.register(connection, selectors.EVENT_READ, self)
        try:
            connection.sendall(peer.nonce)
        except OSError:
            self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        self.turned_away += 1
        del self.unproven[connection]
        self.selector.unregister(connection)
        connection.close()
