"""A CUDA device that is not there, for tests of what `train.device = "cuda"` does.

:func:`pretend` lets tensors of this process say `cuda:N` while their numbers are in memory. So what
dgl-heta does on a GPU runs without one, with PyTorch's own parsing of arguments, autograd engine
(backward passes on a thread of the device) and autocast. What a GPU refuses is refused and noted
(:class:`~tests.support.pretended.counts.Counts`): operators on tensors of two devices, NumPy on a
tensor of the device, memory tensors in collectives of NCCL and its bitwise operations. What would
go wrong there and not here is noted: work of two streams without an order, memory that is freed too
early. Kernels, waits of the host and copied bytes are counted.

It cannot show CUDA's numbers, speed, NCCL's timing, the allocator, several GPUs in one process.
There is no way back: tests do this in processes of their own
(:mod:`tests.support.pretended_worker`).
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from tests.support.pretended import collectives, device, streams
from tests.support.pretended.driver import library

MEMORY = 6 << 30
"""Bytes of a GPU."""


@contextmanager
def pretend() -> Iterator[None]:
    """Let this process see the GPUs that CUDA_VISIBLE_DEVICES names (8 at most); for the body, and
    threads that are started in it, tensors can be made there."""
    import torch._dynamo  # looks at the classes of torch.cuda when it is imported
    from torch.nn.utils import clip_grad
    from torch.optim import optimizer

    library().pretend()
    # After a fork PyTorch makes its pool of threads anew when it is first asked for; of the threads
    # that a backward pass starts for each device two may ask at once, which ends the process.
    torch.set_num_threads(torch.get_num_threads())
    gpus = len([*filter(None, os.environ["CUDA_VISIBLE_DEVICES"].split(","))])
    cuda: Any = torch.cuda
    cuda._initialized = True
    cuda._lazy_init = lambda: None
    cuda.is_available = cuda.is_initialized = lambda: gpus > 0
    cuda.is_bf16_supported = lambda *args: True
    cuda.is_current_stream_capturing = lambda: False
    cuda.device_count = lambda: gpus
    cuda.current_device = library().current_device
    cuda.set_device = lambda chosen: library().set_device(_index(chosen))
    cuda.device = _device
    cuda.Stream, cuda.Event = streams.Stream, streams.Event
    cuda.current_stream, cuda.stream = streams.current_stream, streams.stream
    cuda.synchronize = lambda chosen=None: streams.DEFAULT.synchronize()
    cuda.mem_get_info = lambda chosen=None: (MEMORY, MEMORY)
    cuda.get_device_properties = lambda chosen: SimpleNamespace()  # no uuid, as before torch 2.4
    cuda.get_device_name = lambda chosen=None: "pretended"
    cuda.default_generators = (device.GENERATOR,) * gpus
    cuda.manual_seed_all = device.GENERATOR.manual_seed
    cuda.get_rng_state = lambda chosen=None: device.GENERATOR.get_state()
    cuda.set_rng_state = lambda state, chosen=None: device.GENERATOR.set_state(state)
    torch.tensor = _tensor_of(torch.tensor)  # type: ignore[assignment]
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    if hasattr(optimizer, "_foreach_supported_types"):
        optimizer._foreach_supported_types.append(device.OnDevice)
    clip_grad._has_foreach_support = lambda tensors, device: True  # type: ignore[assignment]
    threading.Thread.run = _pretending(threading.Thread.run)  # type: ignore[method-assign]
    collectives.install()
    gc.disable()  # it clears attributes of tensors that C++ alone refers to, and so their `host`
    with device.Pretending():
        yield


def _index(chosen: Any) -> int:
    if isinstance(chosen, int):
        return chosen
    index = torch.device(chosen).index
    return library().current_device() if index is None else index


@contextmanager
def _device(chosen: Any) -> Iterator[None]:
    """Stands for `torch.cuda.device`."""
    before = library().current_device()
    library().set_device(_index(chosen))
    try:
        yield
    finally:
        library().set_device(before)


def _tensor_of(made: Any) -> Any:
    """`torch.tensor`, which copies to the device where no mode sees it."""
    def tensor(data: Any, *, device: Any = None, requires_grad: bool = False,
               pin_memory: bool = False, **kwargs: Any) -> Any:
        out = made(data, **kwargs)
        out = out.pin_memory() if pin_memory else out
        out = out if device is None else out.to(device)
        return out.requires_grad_() if requires_grad else out
    return tensor


def _pretending(run: Any) -> Any:
    """Threads have modes of their own."""
    def with_mode(self: threading.Thread) -> None:
        with device.Pretending():
            run(self)
    return with_mode
