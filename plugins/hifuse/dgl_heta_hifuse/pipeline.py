"""The source of batches `pipeline`: the stages of later batches run while training computes.

After HiFuse, Section 4.3 (asynchronous pipeline): each stage of making a batch has a thread, and a
few batches are under way at a time. Each thread takes the batches in the order of their steps, so
that everything is read, counted and drawn as without a pipeline. What is sampled depends on the
step alone, so where cores are free several batches are sampled side by side, each by a thread.

How far ahead is the same on all workers: when training has taken n batches, exactly n + `depth` are
sampled, no sooner, and where workers agree on what they sample, no fewer either, whatever becomes
of them. So the messages of sampling match, also when all workers leave an epoch early.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import torch
from pydantic import BaseModel, Field

from dgl_heta import BatchSource, Stage

log = logging.getLogger(__name__)
SWITCH_S = 0.0003
"""How long a thread may keep Python's lock while another waits; stages take it often, briefly."""


class PipelineSettings(BaseModel):
    depth: int = Field(2, ge=1, le=64, description="batches that are made ahead of the one that "
                       "training computes on; memory holds the rows of so many more")
    at_once: int = Field(4, ge=1, le=64, description="batches that are sampled side by side, if so "
                         "many cores are free; so many more are sampled ahead, and each thread "
                         "that samples one takes 4 bytes per node")
    all_cores: bool = Field(False, description="without a GPU make batches ahead also where "
                            "training computes on all cores (train.threads): for rows that come "
                            "from a slow disk; otherwise steps take longer there, not shorter")


class Pipeline(BatchSource):
    """Batches made ahead of time, each stage on a thread."""

    name = "pipeline"
    settings = PipelineSettings()
    serves_workers = serves_gpus = True

    def batches(self, steps: int, sample: Callable[[int], Any], in_order: bool) -> Iterator[Any]:
        return map(sample, range(steps))  # with no core to spare

    def staged(self, steps: int, stages: Sequence[Stage], in_order: bool
               ) -> Generator[Any, None, None]:
        # Where workers agree on batches, all must be equally far ahead, whatever cores they have.
        cores, free = _cores()
        if not (in_order or self.settings.all_cores or free):
            _say_once(cores)
            yield from super().staged(steps, stages, in_order)
            return
        yield from ahead(steps, stages, in_order, self.settings.depth, self.side_by_side(in_order))

    def side_by_side(self, in_order: bool) -> int:
        return 1 if in_order else max(min(self.settings.at_once, _cores()[1]), 1)


def ahead(steps: int, stages: Sequence[Stage], in_order: bool, depth: int, samplers: int
          ) -> Generator[Any, None, None]:
    """The batches of a pass, `depth` of them made ahead.

    The first stage is run by so many threads. For each but the first it runs one batch further
    ahead, so that all have one to make.
    """
    line = _Line(steps, stages, in_order, samplers)
    line.allow(depth)
    try:
        line.start()
        for taken in range(1, steps + 1):
            batch = line.take()
            line.allow(taken + depth)
            yield batch
            del batch  # its memory can be used while the next one is waited for
    except GeneratorExit:
        line.close()
        line.check()
        raise
    finally:
        line.close()


def _cores() -> tuple[int, int]:
    """How many cores of the machine are this worker's, and how many of them training leaves free:
    where a GPU is used, all."""
    every = (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity")
             else os.cpu_count() or 1)
    beside = os.environ.get("LOCAL_WORLD_SIZE", "")
    own = max(every // max(int(beside) if beside.isdecimal() else 1, 1), 1)
    return own, own if torch.cuda.is_initialized() else max(own - torch.get_num_threads(), 0)


@functools.cache
def _say_once(cores: int) -> None:
    if cores > 1:
        log.info("pipeline: training computes on all %d cores, so no batch is made ahead; "
                 "train.threads=%d leaves one free, plugins.pipeline.all_cores=true does it "
                 "nevertheless", cores, cores - 1)


class _Failure:
    """The error of a stage; it goes down the line in the place of its batch."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Line:
    """The threads of a pass and what they have in common. It does not refer to who takes batches,
    so who forgets them ends it, too.

    The first of the `stages` has as many threads as `samplers` says, the others one each.
    """

    def __init__(self, steps: int, stages: Sequence[Stage], in_order: bool, samplers: int) -> None:
        self._steps, self._stages, self._in_order = steps, stages, in_order
        self._further = samplers - 1
        self._workers = [0] * samplers + [*range(1, len(stages))]  # each thread's stage
        self._changed = threading.Condition()
        self._ready: list[dict[int, Any]] = [{} for _ in stages]
        """Batches of each stage by step, which the next one, at last training, has not taken."""
        self._next = [0] * (len(stages) + 1)
        """The step of the batch that each stage, at last training, takes next."""
        self._allowed = 0
        self._closed = False
        self._failure: _Failure | None = None
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads, in which PyTorch's operators use one core."""
        _share_python_sooner(self)
        cores = torch.get_num_threads()
        try:
            for number in self._workers:
                ready = threading.Event()
                thread = threading.Thread(target=self._work, args=(number, ready), daemon=True,
                                          name=f"dgl-heta {self._stages[number].name}")
                thread.start()
                self._threads.append(thread)
                ready.wait()
        finally:
            torch.set_num_threads(cores)  # part of which all threads have in common

    def allow(self, batches: int) -> None:
        """Let so many batches of the pass be made."""
        with self._changed:
            self._allowed = min(batches, self._steps)
            self._changed.notify_all()

    def take(self) -> Any:
        """The next batch. What a stage raised for it is raised here, with its traceback."""
        with self._changed:
            while self._next[-1] not in self._ready[-1]:
                self._changed.wait()
            batch = self._ready[-1].pop(self._next[-1])
            self._next[-1] += 1
        if isinstance(batch, _Failure):
            raise batch.error
        return batch

    def close(self, at_exit: bool = False) -> None:
        """Take no more batches, and wait until the threads have ended."""
        with self._changed:
            self._closed = True
            self._in_order = self._in_order and not at_exit
            for batches in self._ready:
                batches.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_AT_EXIT_S if at_exit else None)
        _running.discard(self)
        if not _running:
            sys.setswitchinterval(_usual_switch_s)

    def check(self) -> None:
        """Raise what sampling raised for a batch that nobody took, if others wait for this worker
        to sample it."""
        if self._in_order and self._failure is not None:
            raise self._failure.error

    def _work(self, number: int, ready: threading.Event) -> None:
        """One stage, for all batches in order."""
        try:
            torch.get_num_threads()  # which gives this thread the process's number, once
            torch.set_num_threads(1)
        finally:
            ready.set()
        run = self._stages[number].run
        while (given := self._given(number)) is not None:
            step, made = given
            batch = made if isinstance(made, _Failure) else _batch_or_failure(run, made)
            with self._changed:
                if not self._closed:
                    self._ready[number][step] = batch
                    self._changed.notify_all()
                if isinstance(batch, _Failure):
                    self._failure = batch
                    self._steps = min(self._steps, step + 1)  # later ones are nobody's any more
            del given, made, batch

    def _given(self, number: int) -> tuple[int, Any] | None:
        """Return the next step of a stage and what it is given, or None when it has no more to do.
        """
        with self._changed:
            while True:
                step = self._next[number]
                # With `_in_order` other workers sample all that was allowed.
                done = self._closed and (number or not self._in_order or step >= self._allowed)
                if done or step >= self._steps:
                    return None
                if not number and step < self._allowed + self._further:
                    self._next[0] += 1
                    return step, step
                if number and step < self._allowed and step in self._ready[number - 1]:
                    self._next[number] += 1
                    return step, self._ready[number - 1].pop(step)
                self._changed.wait()


def _batch_or_failure(run: Callable[[Any], Any], given: Any) -> Any:
    try:
        return run(given)
    except BaseException as error:
        return _Failure(error)


def _share_python_sooner(line: _Line) -> None:
    """Note a line that runs; as long as any does, threads wait less for Python's lock."""
    global _usual_switch_s
    if not _running:
        _usual_switch_s = sys.getswitchinterval()
    _running.add(line)
    sys.setswitchinterval(min(SWITCH_S, sys.getswitchinterval()))


_usual_switch_s = sys.getswitchinterval()
_AT_EXIT_S = 10
_running: weakref.WeakSet[_Line] = weakref.WeakSet()


@atexit.register
def _end() -> None:
    """The process ends: so do the threads of a pass that nobody has ended."""
    for line in list(_running):
        line.close(at_exit=True)
