"""The record of single classes: precision, recall, F1, and which are confused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dgl_heta.settings import TaskSettings
from dgl_heta.store import Store
from dgl_heta.training.metrics import ClassTally, LabelTally, Tally, of_classes

MATRIX_CLASSES = 50
"""The whole confusion matrix is recorded of at most so many classes."""
MOST_CLASSES = 1000
"""The figures of at most so many classes are recorded."""
CONFUSIONS = 20
"""So many pairs of confused classes are recorded."""


def class_names(store: Store, ntype: str, task: TaskSettings) -> list[str]:
    """The names of the classes of a node type's label; none where the store has none for it."""
    known, names = store.manifest.task, store.manifest.info.get("classes")
    own = (known is not None and (ntype, task.label, task.kind, task.table) == (
        known.target, known.label, known.kind, None)
           and isinstance(names, list) and len(names) == known.num_classes)
    return [str(name) for name in names] if own and names else []


def per_class(tallies: Mapping[str, Tally], names: Mapping[str, list[str]]
              ) -> dict[str, dict[str, Any]]:
    """Per node type its classes, the worst confusions and the confusion matrix.

    Parameters
    ----------
    tallies : of all workers; those of other tasks than classification are left out.
    names : node type → names of its classes, or none.

    Returns
    -------
    dict
        Node type → `number` of classes; `classes`, an object for each (`class`, `name` if there is
        one, `precision`, `recall`, `f1`, `support`, `predicted`), those with most nodes where there
        are more than :data:`MOST_CLASSES`; with one class per node also `confusions`, the pairs
        with most nodes (`true`, `predicted`, `count`), and `matrix`, a row for each true class,
        where there are at most :data:`MATRIX_CLASSES`.
    """
    of_types: dict[str, dict[str, Any]] = {}
    for ntype, tally in tallies.items():
        if not isinstance(tally, ClassTally | LabelTally) or not tally.count:
            continue
        right, predicted, support = tally.per_class()
        figures = of_classes(right, predicted, support)
        chosen = np.sort(np.argsort(-support, kind="stable")[:MOST_CLASSES])
        of_types[ntype] = {"number": len(support), "classes": [
            {"class": int(c), **({"name": names[ntype][c]} if names.get(ntype) else {}),
             **{what: float(each[c]) for what, each in figures.items()},
             "support": int(support[c]), "predicted": int(predicted[c])} for c in chosen]}
        if isinstance(tally, ClassTally):
            of_types[ntype] |= _confusions(tally, names.get(ntype) or [])
    return of_types


def _confusions(tally: ClassTally, names: list[str]) -> dict[str, Any]:
    true, predicted = np.divmod(tally.pairs, tally.classes)
    wrong = np.flatnonzero(true != predicted)
    worst = wrong[np.argsort(-tally.counts[wrong], kind="stable")[:CONFUSIONS]]
    record: dict[str, Any] = {"confusions": [
        {"true": int(true[i]), "predicted": int(predicted[i]), "count": int(tally.counts[i]),
         **({"names": [names[true[i]], names[predicted[i]]]} if names else {})} for i in worst]}
    if tally.classes <= MATRIX_CLASSES:
        matrix = np.zeros((tally.classes, tally.classes), np.int64)
        matrix[true, predicted] = tally.counts
        record["matrix"] = matrix.tolist()
    return record
