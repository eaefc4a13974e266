"""What an evaluation of a split finds, and which score of it training follows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dgl_heta.errors import InputError
from dgl_heta.settings import Settings
from dgl_heta.training.engine import Engine
from dgl_heta.training.metrics import smaller_is_better, values


@dataclass(frozen=True)
class Evaluated:
    """Score, mean loss and further metrics of a split; None where there are none."""

    score: float | None
    loss: float | None
    metrics: dict[str, float | None] | None


NOTHING = Evaluated(None, None, None)


def evaluate(engine: Engine, split: str) -> Evaluated:
    """Evaluate a split; all workers call it."""
    names = engine.settings.train.watched
    tallies = engine.task.tallies(names) if names else {}
    score, loss = (None if math.isnan(value) else value  # of an empty split: JSON has no NaN
                   for value in engine.evaluate(split, tallies))
    return Evaluated(score, loss, values(tallies, names) if names and score is not None else None)


def followed(settings: Settings, score: float | None, metrics: Mapping[str, float | None] | None
             ) -> float | None:
    """The score that the best epoch follows, larger is better; None without a validation.

    Raises
    ------
    InputError
        The metric is not defined on what is for validation.
    """
    name = settings.train.monitor
    if name is None or metrics is None:
        return score if name is None else None
    value = metrics.get(name)
    if value is None:
        raise InputError(f"train.monitor = {name} is not defined on what is for validation, for "
                         "example because all nodes are of one class; follow another metric")
    return -value if smaller_is_better(name) else value
