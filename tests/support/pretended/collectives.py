"""Collectives by gloo in the place of NCCL, which refuse what that refuses."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from tests.support.pretended import streams
from tests.support.pretended.counts import COUNTS
from tests.support.pretended.device import OnDevice, _host

BITWISE = (dist.ReduceOp.BOR, dist.ReduceOp.BAND, dist.ReduceOp.BXOR)
_by_nccl: set[Any] = set()


def install() -> None:
    """Replace what dgl-heta calls of `torch.distributed`."""
    begin, group, backend = dist.init_process_group, dist.new_group, dist.get_backend

    def init_process_group(of: str | None = None, *args: Any, **kwargs: Any) -> None:
        begin("gloo" if of == "nccl" else of, *args, **kwargs)
        if of == "nccl":
            _by_nccl.update((None, dist.group.WORLD))

    def new_group(*args: Any, backend: str | None = None, **kwargs: Any) -> Any:
        made = group(*args, backend="gloo", **kwargs)
        if backend == "nccl" or (backend is None and None in _by_nccl):
            _by_nccl.add(made)
        return made

    dist.init_process_group, dist.new_group = init_process_group, new_group
    dist.get_backend = lambda group=None: "nccl" if group in _by_nccl else backend(group)
    for name, writes in (("all_reduce", 1), ("broadcast", 1), ("all_to_all_single", 1)):
        setattr(dist, name, _checked(getattr(dist, name), name, writes))


def _checked(real: Any, name: str, writes: int) -> Any:
    """A collective; the first `writes` of its tensors are results."""
    def collective(*args: Any, group: Any = None, **kwargs: Any) -> Any:
        tensors = [x for x in args if isinstance(x, Tensor)]
        if group not in _by_nccl:
            if any(isinstance(x, OnDevice) for x in tensors):
                COUNTS.problem("gloo", f"{name} of a CUDA tensor")
            return real(*args, group=group, **kwargs)
        if not all(isinstance(x, OnDevice) for x in tensors):
            COUNTS.problem("nccl", f"{name} of a CPU tensor")
            raise RuntimeError("No backend type associated with device type cpu")
        if any(operation in BITWISE for operation in args if not isinstance(operation, Tensor)
               and isinstance(operation, type(dist.ReduceOp.SUM))):
            COUNTS.problem("nccl", f"{name} with a bitwise operation")
            raise RuntimeError("Cannot use ReduceOp.BOR with NCCL")
        COUNTS.collectives[name] += 1
        hosts = [_host(x) for x in tensors]
        with _disable_current_modes():
            ended = real(*map(_host, args), group=group, **kwargs)
        streams.use(hosts[writes:] if name == "all_to_all_single" else hosts, hosts[:writes], name)
        return ended
    return collective
