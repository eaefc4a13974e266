"""How batches are made, stage by stage, and what of it training waits for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dgl_heta.hooks.batch_protocol import BatchSource, Stage


@dataclass
class _Made:
    """A batch between stages: its value, and when each stage began and ended with it."""

    value: Any
    times: list[tuple[float, float]] = field(default_factory=list)


class Making:
    """The stages of batches, with their seconds.

    Parameters
    ----------
    stages : name → what it does, the first one given the number of a step, the others what the one
        before returned. See :class:`dgl_heta.hooks.batch_protocol.Stage`.

    Attributes
    ----------
    worked : name → seconds that the stage took for the batches that were asked for, on whichever
        thread.
    waited : name → seconds of waiting for a batch, by the stage that it was in then. What is left
        of `worked` was hidden behind other work.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self.reset()

    def reset(self) -> None:
        """Count from zero."""
        self.worked = dict.fromkeys(self._names, 0.0)
        self.waited = dict.fromkeys(self._names, 0.0)

    def start(self, source: BatchSource, steps: int, in_order: bool,
              stages: Mapping[str, Callable[[Any], Any]]) -> Iterator[Any]:
        """A source's batches of so many steps, for :meth:`next`."""
        first, *others = stages.items()
        return source.staged(steps, [
            Stage(first[0], _first(first[1])),
            *(Stage(name, _following(run)) for name, run in others)], in_order)

    def next(self, batches: Iterator[Any]) -> Any:
        """The next batch, or None at the end."""
        begin = time.perf_counter()
        batch: _Made | None = next(batches, None)
        if batch is None:
            return None
        now, last = time.perf_counter(), len(batch.times) - 1
        for stage, (name, (start, end)) in enumerate(zip(self._names, batch.times)):
            self.worked[name] += end - start
            until = now if stage == last else min(end, now)
            self.waited[name] += max(until - begin, 0.0)
            begin = max(begin, until)
        return batch.value

    @property
    def seconds(self) -> dict[str, dict[str, float]]:
        """Stage → `{"worked", "waited"}`."""
        return {name: {"worked": self.worked[name], "waited": self.waited[name]}
                for name in self._names}


def _first(run: Callable[[int], Any]) -> Callable[[int], _Made]:
    def first(step: int) -> _Made:
        begin = time.perf_counter()
        value = run(step)
        return _Made(value, [(begin, time.perf_counter())])
    return first


def _following(run: Callable[[Any], Any]) -> Callable[[_Made], _Made]:
    def following(batch: _Made) -> _Made:
        begin = time.perf_counter()
        batch.value = run(batch.value)
        batch.times.append((begin, time.perf_counter()))
        return batch
    return following
