"""Tensors that say `cuda:N` while their numbers are in memory, and the operators on them.

Autograd, autocast and the checks of arguments are PyTorch's own. Here operators run, on the CPU,
and are counted; a mix of devices that CUDA refuses is refused.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.pretended import streams
from tests.support.pretended.counts import COUNTS, line
from tests.support.pretended.driver import library

VIEWS = set(
    "view _unsafe_view slice select t transpose permute expand unsqueeze squeeze split "
    "split_with_sizes unbind detach alias as_strided _reshape_alias diagonal chunk narrow "
    "lift_fresh empty new_empty empty_like new_empty_strided empty_strided unfold sym_size "
    "reshape view_as_real".split())
"""Operators that launch nothing."""
SYNCS = set("nonzero masked_select unique_dim _unique2 unique_consecutive equal is_nonzero "
            "bincount _local_scalar_dense".split())
"""Operators whose result the host needs."""
INDEXING = {"index", "index_put", "_index_put_impl", "_unsafe_index"}
WITH_NUMBERS = set(
    "add sub mul div where maximum minimum eq ne lt gt le ge fill pow masked_fill rsub addcmul "
    "addcdiv lerp full_like bitwise_and bitwise_or logical_and".split())
"""Operators that take a CPU tensor of one number beside tensors of a GPU."""
DRAWS = set("bernoulli uniform normal rand randn randint rand_like randn_like randperm multinomial "
            "native_dropout random exponential".split())
"""Operators that draw from the device's generator."""
GENERATOR = torch.Generator()
_pinned: dict[int, weakref.finalize] = {}


def here() -> torch.device:
    """The device of this thread."""
    return torch.device("cuda", library().current_device())


class OnDevice(Tensor):
    """A tensor of the pretended device; `host` has its numbers."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> OnDevice:
        made: OnDevice = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, host.size(), strides=host.stride(), storage_offset=host.storage_offset(),
            dtype=host.dtype, layout=host.layout, device=here(), requires_grad=False)
        made.host = host
        if streams._address(host):
            weakref.finalize(made, streams.gone, streams.made(host),
                             host.untyped_storage()).atexit = False
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(func, args, kwargs or {})

    def __repr__(self, **kwargs: Any) -> str:
        return f"OnDevice({tuple(self.shape)}, {self.dtype}, {self.device})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            with torch.no_grad():
                copy: Any = self.detach().clone()
            memo[id(self)] = (nn.Parameter(copy, self.requires_grad)
                              if isinstance(self, nn.Parameter)
                              else copy.requires_grad_(self.requires_grad))
        return memo[id(self)]

    def as_subclass(self, cls: Any) -> Any:
        """A tensor of another class, too, whose functions come first; of `Tensor` of none."""
        with torch._C.DisableTorchFunctionSubclass():
            return _Alike.apply(self, OnDevice if cls is Tensor else _mixed(cls))

    def __getitem__(self, index: Any) -> Tensor:
        """A list of numbers is copied where no mode sees it."""
        def copied(part: Any) -> Any:
            if not isinstance(part, list):
                return part
            COUNTS.sync("index of a list")
            return OnDevice(torch.tensor(part))
        return super().__getitem__(tuple(map(copied, index)) if isinstance(index, tuple)
                                   else copied(index))

    def record_stream(self, stream: streams.Stream) -> None:  # type: ignore[override]
        streams.record(self.host, stream)

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        COUNTS.problem("numpy", "numpy() of a CUDA tensor")
        raise TypeError("can't convert cuda device type tensor to numpy. Use Tensor.cpu() to copy "
                        "the tensor to host memory first.")

    __array__ = numpy

    def tolist(self) -> Any:
        COUNTS.sync("tolist")
        streams.use([self.host], [], "tolist")
        streams.host_waits()
        return self.host.tolist()

    def data_ptr(self) -> int:
        return self.host.data_ptr()


class _Alike(torch.autograd.Function):
    """The same numbers as a tensor of another class."""

    @staticmethod
    def forward(ctx: Any, tensor: OnDevice, cls: Any) -> Any:
        return cls.__new__(cls, tensor.host)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        return grad, None


@functools.cache
def _mixed(cls: type[Tensor]) -> Any:
    """The class of tensors of the device that are of another class, too."""
    return type(cls.__name__, (cls, OnDevice), {})


class Pretending(TorchDispatchMode):
    """Operators of this thread that make tensors make them on the pretended device if they are
    asked for one on a GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(func, args, kwargs or {})


def dispatch(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What an operator of ATen returns."""
    name = func._schema.name.split("::")[1]
    tensors = _tensors((*args, *kwargs.values()))
    if name in ("_pin_memory", "pin_memory"):
        if isinstance(args[0], OnDevice):
            COUNTS.problem("pinned", "a CUDA tensor cannot be pinned")
            raise RuntimeError("cannot pin a CUDA tensor, only dense CPU tensors can be pinned")
        return _pin(args[0].clone())
    if name == "is_pinned":
        return not isinstance(args[0], OnDevice) and streams._address(args[0]) in _pinned
    device = kwargs.get("device")
    if name in ("_to_copy", "copy_") and (source := args[name == "copy_"]) is not None:
        target = args[0].device if name == "copy_" else torch.device(
            source.device if device is None else device)
        if target.type != source.device.type:
            return _moved(func, name, args, kwargs, source, target)
    if not any(isinstance(x, OnDevice) for x in tensors) and (
            device is None or torch.device(device).type != "cuda"):
        return _on_host(func, name, args, kwargs)
    _check_devices(name, args, tensors)
    return _launched(func, name, args, kwargs, tensors)


def _on_host(func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    if name == "copy_":
        streams.host_writes(args[0])
    pin = kwargs.get("pin_memory")
    made = func(*args, **({**kwargs, "pin_memory": False} if pin else kwargs))
    return _pin(made) if pin else made


def _pin(tensor: Tensor) -> Tensor:
    if address := streams._address(tensor):
        _pinned[address] = weakref.finalize(tensor, _pinned.pop, address, None)
        _pinned[address].atexit = False
        streams._reads_of_pinned.pop(address, None)  # of what had this address before
    return tensor


def _moved(func: Any, name: str, args: Any, kwargs: dict[str, Any], source: Tensor,
           target: torch.device) -> Tensor:
    """A copy between memory and the device."""
    host = _host(source)
    if name == "copy_":
        made = args[0]
        asynchronous = kwargs.get("non_blocking") or (len(args) > 2 and args[2])
        if target.type == "cpu" and asynchronous and streams._address(made) in _pinned:
            COUNTS.down[line()] += host.nbytes
            streams.use([host], [], name)
            streams.copy_writes(lambda: made.copy_(host))
            return made
        func(_host(made), host)
    else:
        kept = {k: v for k, v in kwargs.items() if k not in ("device", "non_blocking")}
        made = func(host, **kept)
        if streams._address(made) == streams._address(host):
            made = made.clone()
        made = OnDevice(made) if target.type == "cuda" else made
    if target.type == "cuda":
        COUNTS.up[line()] += host.nbytes
        streams.use([], [made.host], name)
        if streams._address(host) in _pinned:
            streams.copy_reads(host)
        elif host.numel():
            COUNTS.sync("copy of pageable memory")
    else:
        COUNTS.down[line()] += host.nbytes
        COUNTS.sync("copy to memory")
        streams.use([host], [], name)
        streams.host_waits()
    return made


def _check_devices(name: str, args: Any, tensors: list[Tensor]) -> None:
    """
    Raises
    ------
    RuntimeError
        Tensors of two devices, where CUDA does not take them.
    """
    gpus = {x.device for x in tensors if isinstance(x, OnDevice)}
    others = [x for x in tensors if not isinstance(x, OnDevice)]
    if name.rstrip("_") in INDEXING:
        for index in (x for x in args[1] if x is not None and not isinstance(x, OnDevice)):
            COUNTS.sync("index in memory")
            COUNTS.up[line()] += index.nbytes
        others = [x for x in (args[0], *args[2:3]) if isinstance(x, Tensor)
                  and not isinstance(x, OnDevice) and x.dim()]
    elif name.rstrip("_") in WITH_NUMBERS:
        others = [x for x in others if x.dim()]
    if (others and gpus) or len(gpus) > 1:
        text = ", ".join(f"{x.device}{tuple(x.shape)}" for x in tensors)
        COUNTS.problem("two devices", f"{name} of {text}")
        raise RuntimeError("Expected all tensors to be on the same device, but found at least two "
                           f"devices ({name} of {text} at {line()})")


def _launched(func: Any, name: str, args: Any, kwargs: dict[str, Any], tensors: list[Tensor]
              ) -> Any:
    """An operator that runs on the device."""
    if _waits(name, args, kwargs):
        COUNTS.sync(name)
        streams.host_waits()
    inputs = [x.host for x in tensors if isinstance(x, OnDevice)]
    asked = {k: _host(v) for k, v in kwargs.items()}
    if asked.get("device") is not None:
        asked["device"] = torch.device("cpu")
    with _drawing() if name.rstrip("_") in DRAWS else nullcontext():
        made = func(*map(_host, args), **asked)
    if name == "_local_scalar_dense":
        streams.use(inputs, [], name)
        return made
    written = _written(func, args, kwargs)
    if name not in VIEWS:
        COUNTS.kernel(name)
    if written:
        own = [x.host for x in written]
        rows = frozenset(_host(args[2]).tolist()) if name == "index_copy_" else None
        streams.use([x for x in inputs if all(x is not y for y in own)], own, name, rows)
        if made is None or isinstance(made, Tensor):
            return made if made is None else written[0]
    wrapped = _on_device(made)
    if name not in VIEWS and not written:
        streams.use(inputs, [x.host for x in _tensors([wrapped])], name)
    return wrapped


@contextmanager
def _drawing() -> Iterator[None]:
    """What the body draws is the device's generator's."""
    before = torch.get_rng_state()
    torch.set_rng_state(GENERATOR.get_state())
    try:
        yield
    finally:
        GENERATOR.set_state(torch.get_rng_state())
        torch.set_rng_state(before)


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among arguments or results, which may be lists of some."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _tensors(value)
    return found


def _host(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_host(x) for x in value]
    return value.host if isinstance(value, OnDevice) else value


def _on_device(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(_on_device, value))
    return OnDevice(value) if isinstance(value, Tensor) else value


def _waits(name: str, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether the host waits for the result of an operator."""
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None and (len(args) < 2 or args[1] is None)
    if name.rstrip("_") in INDEXING:
        return any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])
    return name in SYNCS


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> list[OnDevice]:
    """The arguments that an operator writes into."""
    if not func._schema.is_mutable:
        return []
    named = [*zip(func._schema.arguments, args),
             *((a, kwargs[a.name]) for a in func._schema.arguments if a.name in kwargs)]
    return [x for argument, value in named
            if argument.alias_info is not None and argument.alias_info.is_write
            for x in _tensors([value]) if isinstance(x, OnDevice)]
