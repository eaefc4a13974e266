"""The result of evaluating a split, and which score of it training follows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dgl_heta.errors import InputError, several
from dgl_heta.settings import Settings
from dgl_heta.training.engine import Engine
from dgl_heta.training.metrics import RankTally, Tally, smaller_is_better, values
from dgl_heta.training.per_class import class_names, per_class
from dgl_heta.training.tasks import resolve


@dataclass(frozen=True)
class Evaluated:
    """Score, mean loss and further metrics of a split; None where there are none.

    Attributes
    ----------
    not_finite : nodes with an output that is NaN or infinite; there is no score then.
    """

    score: float | None
    loss: float | None
    metrics: dict[str, float | None] | None
    tallies: Mapping[str, Tally]
    not_finite: int = 0


NOTHING = Evaluated(None, None, None, {})


def evaluate(engine: Engine, split: str, count: bool = False) -> Evaluated:
    """Evaluate a split; all workers call it. `count` fills tallies where no metric needs them."""
    names = engine.settings.train.watched
    tallies = engine.task.tallies(names) if names or count else {}
    score, loss = (value if math.isfinite(value) and not engine.not_finite else None
                   for value in engine.evaluate(split, tallies))  # NaN is of an empty split
    metrics = values(tallies, names) if names and score is not None else None
    return Evaluated(score, loss, metrics, tallies, engine.not_finite)


def not_finite_text(evaluated: Evaluated, split: str) -> str:
    """One sentence where outputs were not finite, or ""."""
    what = {"val": "validation", "test": "test"}[split]
    be = "is" if evaluated.not_finite == 1 else "are"
    return (f"{several(evaluated.not_finite, 'output')} of {what} nodes {be} NaN or infinite, so "
            f"that there is no score of {what}: look for such values in the features of these "
            "nodes and of their neighbours (`dgl-heta inspect`); if they have none, training "
            "diverged" if evaluated.not_finite else "")


def classes(engine: Engine, evaluated: Mapping[str, Evaluated]) -> dict[str, Any] | None:
    """Results of single classes: of the test, or else of validation; None without classes.

    Returns
    -------
    dict
        `split`, and `types` as :func:`dgl_heta.training.per_class.per_class` makes them.
    """
    task = resolve(engine.settings.task, engine.store.manifest.task, engine.store.schema)
    names = {t: class_names(engine.store, t, task) for t in task.targets or ()}
    for split in ("test", "val"):
        if of_type := per_class(evaluated[split].tallies, names):
            return {"split": split, "types": of_type}
    return None


def of_relations(evaluated: Mapping[str, Evaluated], names: Iterable[str]
                 ) -> dict[str, Any] | None:
    """Results of single relations: of the test, or else of validation; None without several.

    Returns
    -------
    dict
        `split`, and `relations`: relation → number of `links`, `mrr` and the metrics of these
        `names`.
    """
    for split in ("test", "val"):
        tally = evaluated[split].tallies.get("links")
        if isinstance(tally, RankTally) and tally.count and len(tally.relations) > 1:
            return {"split": split, "relations": {
                relation: {"links": each.count,
                           **{name: each.value(name) for name in ("mrr", *names)}}
                for relation, each in tally.of_each().items() if each.count}}
    return None


def followed(settings: Settings, score: float | None, metrics: Mapping[str, float | None] | None
             ) -> float | None:
    """What is monitored, errors as negative numbers: larger is better, as of the best epoch."""
    value = monitored(settings, score, metrics)
    return -value if value is not None and smaller_is_better(settings.train.monitor) else value


def monitored(settings: Settings, score: float | None, metrics: Mapping[str, float | None] | None
              ) -> float | None:
    """The score of validation, or the metric of `train.monitor`; None without a validation.

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
    return value
