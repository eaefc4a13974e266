"""Where the trainers of a launched script meet: keys and values, for who knows the run's secret.

Trainer 0 listens on the one address that the others reach it by. A connection has to prove that it
knows the secret (:mod:`dgl_heta.comm.launch_secret`). Frames have a greatest length, and what is in
them is bytes: nothing is unpickled.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
from collections.abc import Callable, Sequence

from dgl_heta.comm.launch_secret import Gate

MOST_FRAME = 1 << 20
_PIECE = 1 << 16

Parts = Sequence[bytes]


def frame(parts: Parts) -> bytes:
    """Parts as they are sent: the length of all, then each with its length.

    Raises
    ------
    ValueError
        They are longer than a frame may be.
    """
    body = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    if len(body) > MOST_FRAME:
        raise ValueError(f"a value of {len(body)} bytes is too long; {MOST_FRAME} is the most")
    return len(body).to_bytes(4, "big") + body


def parts_of(body: bytes) -> list[bytes]:
    """The parts of a frame, without the length of all.

    Raises
    ------
    ValueError
        It is no frame.
    """
    parts, at = [], 0
    while at < len(body):
        end = at + 4 + int.from_bytes(body[at:at + 4], "big")
        if at + 4 > len(body) or end > len(body):
            raise ValueError("a frame ends too early")
        parts.append(body[at + 4:end])
        at = end
    return parts


class Table:
    """The keys and values; requests never wait, clients ask again."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}

    def answer(self, request: Parts) -> list[bytes]:
        """Do a request, its name first; all of it is bytes, numbers are written in ASCII.

        Raises
        ------
        ValueError, TypeError, KeyError
            It is none.
        """
        name, *arguments = request
        do: dict[bytes, Callable[..., list[bytes]]] = {
            b"set": self._set, b"get": self._get, b"add": self._add, b"append": self._append,
            b"compare": self._compare, b"check": self._check, b"delete": self._delete,
            b"count": self._count}
        return do[name](*arguments)

    def _set(self, key: bytes, value: bytes) -> list[bytes]:
        self.values[key] = value
        return []

    def _get(self, key: bytes) -> list[bytes]:
        return [self.values[key]] if key in self.values else []

    def _add(self, key: bytes, amount: bytes) -> list[bytes]:
        self.values[key] = b"%d" % (int(self.values.get(key, b"0")) + int(amount))
        return [self.values[key]]

    def _append(self, key: bytes, value: bytes) -> list[bytes]:
        self.values[key] = self.values.get(key, b"") + value
        return []

    def _compare(self, key: bytes, expected: bytes, desired: bytes) -> list[bytes]:
        """As torch's stores: an absent key is set where an empty value is expected."""
        if self.values.get(key, b"") == expected:
            self.values[key] = desired
        return [self.values.get(key, expected)]

    def _check(self, *keys: bytes) -> list[bytes]:
        """The first key that is not there."""
        return [key for key in keys if key not in self.values][:1]

    def _delete(self, key: bytes) -> list[bytes]:
        return [b"1"] if self.values.pop(key, None) is not None else []

    def _count(self) -> list[bytes]:
        return [b"%d" % len(self.values)]


class _Peer:
    """A connection that has proved itself."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.received, self.to_send = bytearray(), bytearray()


class Server:
    """Serves a table at an address from a thread, until it is closed or this process ends.

    Raises
    ------
    OSError
        Nothing can listen there.
    """

    def __init__(self, address: str, port: int, secret: bytes) -> None:
        self.table = Table()
        self.listener = socket.create_server((address, port), backlog=128)
        self.selector = selectors.DefaultSelector()
        self.gate = Gate(self.listener, secret, self.selector)
        self._wake, waiting = socket.socketpair()
        self.selector.register(waiting, selectors.EVENT_READ, self)
        os.register_at_fork(after_in_child=self.listener.close)  # the port is this process's
        self._thread = threading.Thread(target=self._serve, name="dgl-heta meeting", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Serve no longer; connections end."""
        if self._wake.fileno() < 0:
            return
        self._wake.close()
        self._thread.join()
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self.selector.close()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.listener.getsockname()[1])

    def _serve(self) -> None:
        while True:
            for key, _ in self.selector.select(self.gate.wait_s()):
                if key.data is self:  # closed
                    return
                if key.data is not self.gate:
                    self._serve_peer(key.data)
                elif (proved := self.gate.take(key.fileobj)) is not None:  # type: ignore[arg-type]
                    self.selector.register(proved, selectors.EVENT_READ, _Peer(proved))
            self.gate.close_late()

    def _serve_peer(self, peer: _Peer) -> None:
        """Read what there is, or go on sending; close at anything that is not as it should be."""
        try:
            if peer.to_send:
                self._send(peer, b"")
                return
            data = peer.socket.recv(_PIECE)
            if not data:
                raise ConnectionError
            peer.received += data
            while (body := self._next_frame(peer)) is not None:
                self._send(peer, frame(self.table.answer(parts_of(body))))
        except BlockingIOError:
            pass
        except (OSError, ValueError, TypeError, KeyError):
            self._close(peer)

    def _next_frame(self, peer: _Peer) -> bytes | None:
        length = int.from_bytes(peer.received[:4], "big")
        if length > MOST_FRAME:
            raise ValueError
        if len(peer.received) < 4 + length or len(peer.received) < 4:
            return None
        body = bytes(peer.received[4:4 + length])
        del peer.received[:4 + length]
        return body

    def _send(self, peer: _Peer, data: bytes) -> None:
        peer.to_send += data
        try:
            while peer.to_send:
                del peer.to_send[:peer.socket.send(peer.to_send)]
        except BlockingIOError:
            pass
        except OSError:
            self._close(peer)
            return
        self.selector.modify(peer.socket, selectors.EVENT_WRITE if peer.to_send
                             else selectors.EVENT_READ, peer)

    def _close(self, peer: _Peer) -> None:
        if peer.socket.fileno() >= 0:
            self.selector.unregister(peer.socket)
            peer.socket.close()
