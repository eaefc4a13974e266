"""Collectives by gloo in the place of NCCL, which refuse what that refuses."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from tests.support.pretended import streams
from tests.support.pretended.counts import COUNTS
from tests.support.pretended.device import OnDevice, _host

BITWISE = (dist.ReduceOp.BOR, dist.ReduceOp.BAND, dist.ReduceOp.BXOR)
_backends: dict[Any, str] = {}
"""What groups were asked for; None: the group of all."""


def install() -> None:
    """Replace what dgl-heta calls of `torch.distributed`."""
    begin, group, backend = dist.init_process_group, dist.new_group, dist.get_backend

    def init_process_group(of: str = "gloo", *args: Any, **kwargs: Any) -> None:
        begin("gloo", *args, **kwargs)
        _backends[None] = of

    def new_group(*args: Any, backend: str | None = None, **kwargs: Any) -> Any:
        made = group(*args, backend="gloo", **kwargs)
        _backends[made] = backend or _backends[None]
        return made

    dist.init_process_group, dist.new_group = init_process_group, new_group
    dist.get_backend = lambda group=None: _backends.get(group) or backend(group)
    for name in ("all_reduce", "broadcast", "all_to_all_single"):
        setattr(dist, name, _checked(getattr(dist, name), name))


def _checked(real: Any, name: str) -> Any:
    def collective(*args: Any, group: Any = None, **kwargs: Any) -> Any:
        tensors, backend = [x for x in args if isinstance(x, Tensor)], dist.get_backend(group)
        if not any(isinstance(x, OnDevice) for x in tensors):
            if "gloo" not in backend:
                COUNTS.problem("nccl", f"{name} of a CPU tensor")
                raise RuntimeError("No backend type associated with device type cpu")
            return real(*args, group=group, **kwargs)
        if "nccl" not in backend:
            COUNTS.problem("gloo", f"{name} of a CUDA tensor")
        if any(type(x) in (type(BITWISE[0]), dist.ReduceOp) and x in BITWISE for x in args):
            COUNTS.problem("nccl", f"{name} with a bitwise operation")
            raise RuntimeError("Cannot use ReduceOp.BOR with NCCL")
        if not all(isinstance(x, OnDevice) for x in tensors):
            COUNTS.problem("nccl", f"{name} of tensors of two devices")
        COUNTS.collectives[name] += 1
        hosts = [_host(x) for x in tensors]
        try:
            with _disable_current_modes():
                ended = real(*map(_host, args), group=group, **kwargs)
        except RuntimeError:
            if os.environ.get("TORCH_NCCL_BLOCKING_WAIT") != "1":
                os.kill(os.getpid(), signal.SIGABRT)  # as the watchdog of PyTorch does
            raise
        streams.use(hosts[1:] if name == "all_to_all_single" else hosts, hosts[:1], name)
        return ended
    return collective
