"""Processes of a launched script meet by the run's secret, in place of torch's open TCPStore.

torch's `env://` and `tcp://` end in one function that opens a TCPStore at an address and a port:
it listens on every interface, asks nobody's name, and waits without limit for a connection that
says nothing. Under `dgl-heta launch` that function gives the store of
:mod:`dgl_heta.comm.meeting_store` at MASTER_ADDR and MASTER_PORT; elsewhere it is torch's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dgl_heta.comm.launch_secret import secret_for
from dgl_heta.system.patching import Patch, when_imported

if TYPE_CHECKING:
    from dgl_heta.comm.meeting_server import Server

MODULE = "torch.distributed.rendezvous"

_servers: dict[tuple[str, int], Server] = {}
_meetings = 0


def _create_store(original: Callable[..., Any]) -> Callable[..., Any]:
    def create(hostname: str, port: int, rank: int, world_size: int, timeout: timedelta,
               *more: Any, **options: Any) -> Any:
        secret = secret_for("meeting")
        here = (os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT"))
        if not secret or (hostname, str(port)) != here or (
                os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"):
            return original(hostname, port, rank, world_size, timeout, *more, **options)
        return _join(hostname, port, rank, timeout, secret)

    return create


def _join(address: str, port: int, rank: int, timeout: timedelta, secret: bytes) -> Any:
    """The store of this process's next meeting there; rank 0 serves it.

    Raises
    ------
    OSError
        Rank 0 cannot listen there.
    DistStoreError
        Rank 0 was not met in time.
    """
    global _meetings
    from torch.distributed import PrefixStore

    from dgl_heta.comm.meeting_server import Server
    from dgl_heta.comm.meeting_store import MeetingStore

    if rank == 0 and (address, port) not in _servers:
        try:
            _servers[address, port] = Server(address, port, secret)
        except OSError as error:
            raise OSError(error.errno, f"trainer 0 cannot listen at {address}:{port} "
                          f"(MASTER_PORT): {error.strerror}") from None
    store = MeetingStore(address, port, secret, timeout)
    # A process group that is made again has the same keys: every trainer counts them.
    _meetings += 1
    return PrefixStore(f"meeting {_meetings}", store)


PATCHES = (
    Patch(f"{MODULE}:_create_c10d_store", _create_store,
          "trainers of `dgl-heta launch` meet by the run's secret, at one address"),
)


def meet_by_secret() -> None:
    """Replace torch's function as soon as this process imports torch.distributed, which may be
    never; without a secret nothing is done."""
    if secret_for("meeting"):
        when_imported(MODULE, _replace)


def _replace(module: ModuleType) -> None:
    module._create_c10d_store = _create_store(module._create_c10d_store)  # type: ignore[attr-defined]
