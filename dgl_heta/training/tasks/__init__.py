"""Training tasks: which seeds a step has, its loss, its score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dgl_heta.errors import InputError, listing
from dgl_heta.graph.schema import Schema
from dgl_heta.graph.source import Task
from dgl_heta.settings import Settings, TaskSettings
from dgl_heta.settings.sections import TrainSettings
from dgl_heta.store import Store
from dgl_heta.training.metrics import check_names
from dgl_heta.training.tasks.link import (
    LinkEnds,
    LinkPrediction,
    LinkStep,
    named_reverses,
    predicted,
)
from dgl_heta.training.tasks.node import (
    NodePrediction,
    NodeStep,
    chosen,
    labels_of,
    node_steps,
)
from dgl_heta.training.tasks.task import SPLITS, Step, TrainingTask

__all__ = ["SPLITS", "LinkEnds", "LinkPrediction", "LinkStep", "NodePrediction", "NodeStep", "Step",
           "TrainingTask", "chosen", "labels_of", "make_task", "node_steps", "resolve"]


def resolve(task: TaskSettings, known: Task | None, schema: Schema,
            info: Mapping[str, Any] | None = None) -> TaskSettings:
    """The task settings, completed by the graph's own task and checked against the schema.

    `info` is what is known of the graph, why it has no task among it.

    Raises
    ------
    InputError
        Nothing says what to train for; an unknown type or relation.
    """
    if task.of_links:
        if not task.relation:
            raise InputError("link prediction needs task.relation, the relation to predict; "
                             f"relations: {listing(schema.relations)}")
        if task.unlabelled is not None:
            raise InputError("task.unlabelled is about labels of nodes, which link prediction has "
                             "none of; leave it out")
        named_reverses(task, schema)
        for name in ("links", "table"):
            if getattr(task, name) is not None and task.held_out != TaskSettings().held_out:
                raise InputError(f"task.{name} says which links are held out, so task.held_out "
                                 "means nothing; leave one of them out")
        targets = list(dict.fromkeys(t for r in predicted(task, schema) for t in (r.src, r.dst)))
        return task.model_copy(update={"kind": "link", "targets": targets})
    if task.table is not None and len(task.targets or ()) > 1:
        raise InputError(f"task.table has seeds of one type, but task.targets is "
                         f"{listing(task.targets or ())}; name one")
    for name in ("relation", "reverse", "links", "decoder"):
        if getattr(task, name) not in (None, "", "dot"):
            raise InputError(f"task.{name} is for link prediction; set task.kind = 'link', or "
                             "leave it out")
    targets = task.targets or ([known.target] if known else [])
    if not targets:
        notes = (info or {}).get("notes")
        why = [note for note in notes if str(note).startswith("no task: ")] if isinstance(
            notes, list) else []
        raise InputError("the graph has no task (target, labels, masks), so there is nothing to "
                         "train for; name the node types by task.targets, or a relation to "
                         "predict by task.relation" + "".join(f"; {note}" for note in why))
    for ntype in targets:
        schema.check_node_type(ntype, "target node type")
    kind = task.kind or (known.kind if known else "classification")
    label = task.label or (known.label if known else "label")
    unlabelled = task.unlabelled
    if unlabelled is None and known is not None and (label, kind) == (known.label, known.kind) and (
            known.target in targets):
        unlabelled = known.unlabelled
    return task.model_copy(update={"kind": kind, "targets": targets, "label": label,
                                   "unlabelled": unlabelled})


def _check_no_times(task: TaskSettings, train: TrainSettings) -> None:
    """Refuse what a graph without times would leave out in silence."""
    if task.table is not None:
        raise InputError("task.table has seeds with times, but the graph has no times; write its "
                         "store with times")
    asked = [*(f"task.{name}" for name in ("val_time", "test_time") if getattr(task, name)),
             *(f"train.{name}" for name in ("latest", "strictly_before") if getattr(train, name))]
    if asked:
        raise InputError(f"{asked[0]} is about times, and the graph has none; write its store with "
                         "times, or leave the setting out")


def make_task(store: Store, settings: Settings) -> TrainingTask:
    """The training task that the settings ask for, on a store.

    Raises
    ------
    InputError
        As :func:`resolve`; labels or masks that are missing or do not fit the kind of task;
        metrics that are unknown or of another kind.
    """
    task = resolve(settings.task, store.manifest.task, store.schema, store.manifest.info)
    weights = settings.train.class_weights
    if weights is not None and task.kind != "classification":
        raise InputError("train.class_weights are for task.kind = 'classification', where a node "
                         f"has one class; this task is '{task.kind}': leave them out")
    training_task: TrainingTask
    if not store.manifest.timed:
        _check_no_times(task, settings.train)
    if task.kind == "link":
        training_task = LinkPrediction(store, task, settings.model.hidden, settings.train.seed)
        most = task.eval_negatives + 1
    else:
        training_task = NodePrediction(store, task, settings.train.seed, weights)
        most = min(training_task.outputs.values())
    check_names(settings.train.watched, str(task.kind), most)
    return training_task
