"""The store of :mod:`dgl_heta.comm.meeting_server` as torch.distributed asks for one."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError, Store

from dgl_heta.comm.launch_secret import ATTEMPT_S, prove, receive
from dgl_heta.comm.meeting_server import MOST_FRAME, Parts, frame, parts_of

PAUSE_S = 0.1, 0.01, 0.1  # between attempts to connect; between looks at a key, at first and later

_kept: list[Store] = []  # torch keeps the C++ part alone, which is nothing without this one


class MeetingStore(Store):
    """A connection to the meeting of a run.

    Parameters
    ----------
    timeout : for the connection, and for each wait until :meth:`set_timeout` says another.

    Raises
    ------
    DistStoreError
        Nobody at the address proved in time that it knows the secret.
    """

    timeout: timedelta  # of torch's Store, where its stub has none

    def __init__(self, address: str, port: int, secret: bytes, timeout: timedelta) -> None:
        super().__init__()
        self.set_timeout(timeout)
        self.address, self.secret = (address, port), secret
        self._lock = threading.Lock()
        self._socket = self._connected(timeout.total_seconds())
        _kept.append(self)

    # --- what torch calls, by its names in C++ or in Python ----------------------------------

    def set(self, key: str, value: str | bytes) -> None:
        self._ask(b"set", key.encode(), _bytes(value))

    def get(self, key: str) -> bytes:
        self.wait([key])
        answer = self._ask(b"get", key.encode())
        if not answer:
            raise DistStoreError(f"'{key}' was deleted while it was read")
        return answer[0]

    def add(self, key: str, value: int) -> int:
        return int(self._ask(b"add", key.encode(), b"%d" % value)[0])

    def append(self, key: str, value: str | bytes) -> None:
        self._ask(b"append", key.encode(), _bytes(value))

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes
                    ) -> bytes:
        return self._ask(b"compare", key.encode(), _bytes(expected_value),
                         _bytes(desired_value))[0]

    def check(self, keys: Sequence[str]) -> bool:
        return not self._missing(keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        limit = (self.timeout if timeout is None else timeout).total_seconds()
        end, pause = time.monotonic() + limit, PAUSE_S[1]
        while missing := self._missing(keys):
            if time.monotonic() > end:
                raise DistStoreError(f"timed out after {limit:g} s: the other trainers have not "
                                     f"come to the meeting at {self._where} (no '{missing}')")
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_S[2])

    def delete_key(self, key: str) -> bool:
        return bool(self._ask(b"delete", key.encode()))

    def num_keys(self) -> int:
        return int(self._ask(b"count")[0])

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def clone(self) -> MeetingStore:
        return MeetingStore(*self.address, self.secret, self.timeout)

    deleteKey, getNumKeys = delete_key, num_keys

    # --- the connection ----------------------------------------------------------------------

    @property
    def _where(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def _missing(self, keys: Sequence[str]) -> str | None:
        missing = self._ask(b"check", *(key.encode() for key in keys))
        return missing[0].decode() if missing else None

    def _connected(self, limit: float) -> socket.socket:
        end = time.monotonic() + limit
        while True:
            try:
                return self._attempt(min(end, time.monotonic() + ATTEMPT_S))
            except OSError as error:
                reason = error.strerror or str(error)
            if time.monotonic() > end:
                raise DistStoreError(f"trainer 0 was not met at {self._where} within "
                                     f"{limit:g} s: {reason}")
            time.sleep(PAUSE_S[0])

    def _attempt(self, end: float) -> socket.socket:
        connection = socket.create_connection(self.address, max(0.1, end - time.monotonic()))
        with contextlib.ExitStack() as undo:
            undo.callback(connection.close)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            prove(connection, self.secret, end)
            undo.pop_all()
        return connection

    def _ask(self, *request: bytes) -> Parts:
        limit = self.timeout.total_seconds()
        data, end = frame(request), time.monotonic() + limit
        with self._lock:
            try:
                self._socket.settimeout(limit)
                self._socket.sendall(data)
                length = int.from_bytes(receive(self._socket, 4, end), "big")
                if length > MOST_FRAME:
                    raise ConnectionError("it answers what is no frame")
                return parts_of(receive(self._socket, length, end))
            except (OSError, ValueError) as error:
                self._socket.close()  # an answer that comes later would be taken for another's
                raise DistStoreError(f"the meeting at {self._where} was lost, closed by peer or "
                                     f"silent for {limit:g} s: {error}") from None


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
