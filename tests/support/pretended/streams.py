"""Streams and events of the pretended device, and the order of what they do.

Every stream has a vector clock (as in `torch.cuda._sanitizer`): its own time, and how far it has
waited for others. A read or write of memory must be ordered after the writes, and a write after the
reads, of other streams; else it is noted as a race. Memory that is freed, on the host, while
another stream than the one that allocated it may still use it, is noted too: `record_stream` is
missing.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from tests.support.pretended.counts import COUNTS, line

_lock = threading.RLock()
_of_thread = threading.local()
_times: dict[int, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
_host: defaultdict[int, int] = defaultdict(int)  # how far the host has waited for each stream
_memory: dict[int, _Memory] = {}  # by address
_live: defaultdict[int, int] = defaultdict(int)  # tensors at an address
_copies: list[tuple[int, int, Callable[[], object]]] = []  # to memory: stream, time, what it does
_reads_of_pinned: dict[int, tuple[int, int]] = {}  # address: stream, time of the copy


def _tick(stream: int) -> int:
    _times[stream][stream] += 1
    return _times[stream][stream]


def _sees(stream: int, other: int, time: int) -> bool:
    return stream == other or max(_times[stream][other], _host[other]) >= time


def _join(times: defaultdict[int, int], others: dict[int, int]) -> None:
    for stream, time in others.items():
        times[stream] = max(times[stream], time)


def _host_joins(times: dict[int, int]) -> None:
    """The host has waited; copies to memory that it has waited for are there now."""
    _join(_host, times)
    for copy in [copy for copy in _copies if _host[copy[0]] >= copy[1]]:
        _copies.remove(copy)
        copy[2]()


class Event:
    """Stands for torch.cuda.Event."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._times: dict[int, int] = {}
        self._recorded = 0.0

    def record(self, stream: Stream | None = None) -> None:
        number = (stream or current_stream()).number
        with _lock:
            _tick(number)
            self._times = dict(_times[number])
        self._recorded = perf_counter()

    def elapsed_time(self, end: Event) -> float:
        return 1000 * (end._recorded - self._recorded)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or current_stream()).wait_event(self)

    def synchronize(self) -> None:
        COUNTS.sync("Event.synchronize")
        with _lock:
            _host_joins(self._times)

    def query(self) -> bool:
        return True


class Stream:
    """Stands for torch.cuda.Stream."""

    _made = 0

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.number = Stream._made
        Stream._made += 1

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        with _lock:
            _join(_times[self.number], event._times)

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def synchronize(self) -> None:
        COUNTS.sync("Stream.synchronize")
        host_waits(self.number)


DEFAULT = Stream()


def current_stream(device: Any = None) -> Stream:
    found: Stream = getattr(_of_thread, "stream", DEFAULT)
    return found


@contextmanager
def stream(chosen: Stream | None) -> Iterator[None]:
    before = current_stream()
    _of_thread.stream = chosen or before
    try:
        yield
    finally:
        _of_thread.stream = before


def host_waits(number: int | None = None) -> None:
    """The host waits for a stream, by default the current one."""
    number = current_stream().number if number is None else number
    with _lock:
        _tick(number)
        _host_joins(_times[number])


class _Memory:
    """What streams did with an allocation, which counts as a write: the memory may be in use by
    earlier work of the stream that it is allocated on."""

    def __init__(self, stream: int) -> None:
        self.stream, self.line = stream, line()
        self.recorded: set[int] = set()
        self.reads: dict[int, int] = {}
        self.uses: dict[int, int] = {}
        self.writes = {stream: (_tick(stream), f"its allocation, {self.line}", None)}


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0


def _memory_of(tensor: Tensor) -> _Memory:
    address = _address(tensor)
    if address not in _memory:
        _memory[address] = _Memory(current_stream().number)
    return _memory[address]


def made(tensor: Tensor) -> int:
    """A tensor of the device was made with this memory; returns what :func:`gone` is told."""
    with _lock:
        _memory_of(tensor)
        _live[_address(tensor)] += 1
        return _address(tensor)


def gone(address: int, storage: Any) -> None:
    """It is gone. `storage` is given so that the address is nobody else's until then."""
    with _lock:
        _live[address] -= 1
        if _live[address]:
            return
        memory = _memory.pop(address)
        for number, time in memory.uses.items():
            if number not in memory.recorded and not _sees(memory.stream, number, time):
                COUNTS.problem("freed while another stream uses it", "no record_stream",
                               memory.line)


def record(tensor: Tensor, chosen: Stream) -> None:
    """`Tensor.record_stream`."""
    with _lock:
        _memory_of(tensor).recorded.add(chosen.number)


def use(reads: Iterable[Tensor], writes: Iterable[Tensor], name: str,
        rows: frozenset[int] | None = None) -> None:
    """An operator on the current stream reads and writes memory; of what it writes these rows, if
    it is not all."""
    here = current_stream().number
    with _lock:
        now = _tick(here)
        for memory in map(_memory_of, filter(_address, reads)):  # what is empty has no memory
            for other, (time, where, _) in memory.writes.items():
                if not _sees(here, other, time):
                    COUNTS.problem("race", f"{name} reads what was written at {where}")
            memory.reads[here] = memory.uses[here] = now
        for memory in map(_memory_of, filter(_address, writes)):
            beside = {}
            for other, (time, where, of) in memory.writes.items():
                if _sees(here, other, time):
                    continue
                beside[other] = time, where, of
                if rows is None or of is None or rows & of:
                    COUNTS.problem("race", f"{name} writes what was written at {where}")
            for other, time in memory.reads.items():
                if not _sees(here, other, time):
                    COUNTS.problem("race", f"{name} writes what another stream reads")
            memory.writes, memory.reads = {**beside, here: (now, line(), rows)}, {}
            memory.uses[here] = now


def copy_reads(pinned: Tensor) -> None:
    """A copy that nobody waits for reads pinned memory."""
    number = current_stream().number
    with _lock:
        _reads_of_pinned[_address(pinned)] = number, _tick(number)


def copy_writes(copy: Callable[[], object]) -> None:
    """A copy that nobody waits for writes to memory: when the host has waited for the stream."""
    number = current_stream().number
    with _lock:
        _copies.append((number, _tick(number), copy))


def host_writes(tensor: Tensor) -> None:
    """The host writes memory."""
    number, time = _reads_of_pinned.get(_address(tensor), (0, 0))
    if _host[number] < time:
        COUNTS.problem("race", "pinned memory is written while a copy reads it")
