"""DGL's servers and clients take connections of their own run alone, and wait with a limit.

DGL takes so many connections as it expects, asks nobody's name, waits for them without limit, and
unpickles what they send: one stranger takes a server's or a trainer's place, and the launch stalls.
Under `dgl-heta launch` a connection begins with a proof of the run's secret on both sides. DGL's
C++ accepts and connects; the two calls are replaced in its library, so that what it gets are
connections that have proved themselves, and all else is as it was.

A client waits `run.timeout_s` for the servers to connect and for all clients to come. A server
waits longer for its clients, by the time that they try to reach a server.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import importlib
import logging
import os
import re
import selectors
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

from dgl_heta.comm.launch_secret import ATTEMPT_S, Gate, prove, secret_for
from dgl_heta.errors import EXIT_PEER, InputError, several
from dgl_heta.system.library_links import LIBC, replace_call
from dgl_heta.system.patching import Patch, plain, when_imported

RPC, CONTEXT = "dgl.distributed.rpc", "dgl.distributed.dist_context"
TRIES, TRY_S = 1024, 3  # of a client that looks for a server, as DGL has them
NOWHERE = ctypes.create_string_buffer(16)  # an address of no family, which undoes a connection

log = logging.getLogger("dgl_heta")

_Accept = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p,
                           use_errno=True)
_Connect = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint,
                            use_errno=True)


class _Limit:
    """Ends this process unless a wait is over in time; `what` says then what was waited for."""

    def __init__(self, seconds: float, what: Callable[[], str]) -> None:
        self.over = threading.Event()
        threading.Thread(target=self._watch, args=(seconds, what), daemon=True,
                         name="dgl-heta limit").start()

    def _watch(self, seconds: float, what: Callable[[], str]) -> None:
        if not self.over.wait(seconds):
            _give_up(f"timed out after {seconds:g} s (run.timeout_s): {what()}")


class _Listening:
    """A socket that DGL listens at."""

    def __init__(self, handle: int, secret: bytes) -> None:
        self.selector = selectors.DefaultSelector()
        self.socket = socket.socket(fileno=os.dup(handle))
        self.gate = Gate(self.socket, secret, self.selector)
        self.where, self.came, self.said = self.socket.getsockname(), 0, False

    def next(self) -> int:
        """The handle of the next connection that has proved itself."""
        while True:
            for key, _ in self.selector.select(self.gate.wait_s()):
                if (proved := self.gate.take(key.fileobj)) is not None:  # type: ignore[arg-type]
                    self.came += 1
                    proved.setblocking(True)
                    return proved.detach()
            self.gate.close_late()
            if self.gate.turned_away and not self.said:
                self.said = True
                log.warning("%s:%d: a connection that does not prove to be of this launch was "
                            "closed; where it was one of the script's own, start no further Python "
                            "in which dgl.distributed.initialize is called", *self.where)

    def close(self) -> None:
        self.gate.close()
        self.selector.close()
        self.socket.close()


_listening: dict[int, _Listening] = {}
"""By handle, while DGL waits for connections there."""
_waits: list[_Limit] = []
"""Of a client, until all clients have come."""
_unproved: dict[tuple[str, int], float] = {}
"""Who listens and proves nothing, and since when."""
_limit: list[float] = []
_replaced: list[bool] = []


def wait_at_most(seconds: float) -> None:
    """Limit the waits of this process; the default is the setting `run.timeout_s`."""
    _limit[:] = [seconds]


def guard_connections() -> None:
    """Replace the names of :data:`PATCHES` when this process imports them, which may be never."""
    when_imported(CONTEXT, _guard)


def _guard(_: ModuleType) -> None:
    for patch in PATCHES:
        owner, name = patch.place()
        original = getattr(owner, name)
        replacement = patch.make(original)
        replacement.dgl_heta_original = original
        setattr(owner, name, replacement)


def _limit_s() -> float:
    if not _limit:
        from dgl_heta.settings import load_settings

        wait_at_most(load_settings().run.timeout_s)
    return _limit[0]


def _give_up(message: str) -> None:
    with contextlib.suppress(OSError):
        print(f"error: {message}", file=sys.stderr, flush=True)
    os._exit(EXIT_PEER)


# --- what DGL's library calls ----------------------------------------------------------------


def _replace_calls() -> None:
    """Let DGL's library accept and connect by the run's secret, if there is one."""
    secret = secret_for("DGL")
    if secret is None or _replaced:
        return
    library = importlib.import_module("dgl._ffi.base")._LIB._name
    _replaced.append(all([
        replace_call(library, "accept", _Accept(functools.partial(_called, _accept, secret))),
        replace_call(library, "connect", _Connect(functools.partial(_called, _connect, secret)))]))
    if not _replaced[0]:
        log.warning("%s accepts and connects in a way that is not known, so DGL's connections are "
                    "not proved: a stranger at its ports can stall this launch", library)


def _called(call: Callable[..., int], secret: bytes, handle: int, address: int, length: int
            ) -> int:
    """A call as C knows it: -1 and a number for an error."""
    try:
        return call(secret, handle, address, length)
    except OSError as error:
        ctypes.set_errno(error.errno or errno.ECONNREFUSED)
        return -1
    except BaseException:  # C++ would try again, as often as it likes
        traceback.print_exc()
        os._exit(1)


def _accept(secret: bytes, handle: int, address: int, length: int) -> int:
    if handle not in _listening:
        _listening[handle] = _Listening(handle, secret)
    connection = _listening[handle].next()
    LIBC.getpeername(connection, ctypes.c_void_p(address), ctypes.c_void_p(length))
    return connection


def _connect(secret: bytes, handle: int, address: int, length: int) -> int:
    """Connect and prove; where that fails the socket is as before, for the next try.

    Nobody may listen yet, which DGL waits for. Who listens and proves nothing is not of this run,
    or hangs: that has a limit.
    """
    if LIBC.connect(handle, ctypes.c_void_p(address), length):
        raise OSError(ctypes.get_errno(), "")
    with socket.socket(fileno=os.dup(handle)) as connection:
        where = connection.getpeername()
        try:
            prove(connection, secret, time.monotonic() + ATTEMPT_S)
        except OSError as error:
            LIBC.connect(handle, NOWHERE, len(NOWHERE))
            since = _unproved.setdefault(where, time.monotonic())
            if time.monotonic() - since > _limit_s():
                _give_up(f"timed out after {_limit_s():g} s (run.timeout_s): who listens at "
                         f"{where[0]}:{where[1]} does not prove to be a process of DGL of this run "
                         f"({error.strerror or error})")
            raise ConnectionRefusedError(errno.ECONNREFUSED, "") from None
        finally:
            connection.setblocking(True)
    return 0


# --- DGL's names in Python -------------------------------------------------------------------


def _create_sender(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_sender(*args: Any, **kwargs: Any) -> Any:
        _replace_calls()
        return original(*args, **kwargs)

    return create_sender


def _wait_for_senders(original: Callable[..., Any]) -> Callable[..., Any]:
    def wait_for_senders(ip_addr: str, port: int, num_senders: int) -> None:
        server = os.environ.get("DGL_ROLE", "client") == "server"
        others = several(num_senders, "trainer or sampler" if server else "server")

        def what() -> str:
            told = f"waited at {ip_addr}:{port} for {others} of DGL to connect"
            if _replaced and _replaced[0]:
                told += f", {sum(each.came for each in _listening.values())} did"
            return told

        limit = _limit_s()
        if server:  # a trainer may try to reach another one, which reads a large part
            limit += int(os.environ.get("DGL_DIST_MAX_TRY_TIMES", TRIES)) * TRY_S
        wait = _Limit(limit, what)
        try:
            original(ip_addr, port, num_senders)
        except Exception as error:
            if re.search(r"Cannot (bind to|listen on) ", str(error)):
                raise InputError(f"DGL cannot listen at {ip_addr}:{port}, as where another program "
                                 "does; give other ports in ip_config, or wait for its end"
                                 ) from None
            raise
        finally:
            wait.over.set()
            while _listening:
                _listening.popitem()[1].close()
        if not server:
            _waits.append(_Limit(limit, lambda: "waited in dgl.distributed.initialize for all "
                                 "trainers and samplers to come to DGL's servers"))

    return wait_for_senders


def _init_kvstore(original: Callable[..., Any]) -> Callable[..., Any]:
    def init_kvstore(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:
            while _waits:
                _waits.pop().over.set()

    return init_kvstore


class _Sampler:
    """DGL's main function of a sampler process, which multiprocessing starts with a Python that has
    replaced nothing yet."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s

    def __reduce__(self) -> Any:
        return type(self), (self.limit_s,)

    def __call__(self, *args: Any) -> Any:
        wait_at_most(self.limit_s)
        context = importlib.import_module(CONTEXT)
        if not isinstance(context.init_process, _Sampler):
            _guard(context)
        return plain(context.init_process)(*args)


PATCHES = (
    Patch(f"{RPC}:create_sender", _create_sender,
          "processes of `dgl-heta launch` connect by the run's secret"),
    Patch(f"{RPC}:wait_for_senders", _wait_for_senders, "a limit of the wait for connections"),
    Patch(f"{CONTEXT}:init_kvstore", _init_kvstore, "the end of the waits of initialize"),
    Patch(f"{CONTEXT}:init_process", lambda original: _Sampler(_limit_s()),
          "samplers connect by the run's secret, too"),
)
