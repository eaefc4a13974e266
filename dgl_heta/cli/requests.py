"""Requests to a partition backend, made from the options about a plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from dgl_heta.cli.options import PlanOptions, ReadingOptions
from dgl_heta.errors import InputError, listing
from dgl_heta.graph.changes import columns_text, features_text, labels_text, unreached_text
from dgl_heta.graph.source import Task
from dgl_heta.hooks.cutter_protocol import Cutter
from dgl_heta.hooks.manager import Plugins
from dgl_heta.hooks.protocols import PartitionBackend
from dgl_heta.partition.backends.metatree_backend import MetatreeBackend
from dgl_heta.partition.graph_input import GraphInput, Reading
from dgl_heta.partition.own_plan import OF_METATREES
from dgl_heta.partition.request import PartitionRequest, make_request, option
from dgl_heta.planning.plan import Plan
from dgl_heta.report.console import note
from dgl_heta.settings import Origin, Settings, TaskSettings, section_name


def partition_request(backend: PartitionBackend, opened: GraphInput, options: PlanOptions,
                      settings: Settings, **given: Any) -> PartitionRequest:
    """The request for a graph; what the options leave open is as the settings or its task say, else
    the default.

    `given` are further arguments of :func:`~dgl_heta.partition.request.make_request`, which win
    over the options.
    """
    if (options.hops is not None and "num_hops" in backend.honours
            and hasattr(backend.settings, "hops")):
        raise InputError(f"--hops is the depth of a plan, which --method {backend.name} does not "
                         "make; for hops of neighbours around its parts give --set plugins."
                         f"{section_name(backend.name)}.hops={options.hops}")
    request = make_request(backend, opened.schema, **{
        "target": targets_of(opened, options.target, settings),
        "hops": hops_of(options, settings), "parts": 2 if options.parts is None else options.parts,
        "metapaths": options.metapaths, "seed": options.seed or 0,
        "replication": options.replication, "memory_mb": options.memory_mb,
        **given}, word=option)
    if opened.plan is not None and isinstance(backend, MetatreeBackend):
        _check_replaced(opened.plan, options, "hops" in given or options.hops is not None
                        or settings.origin("model.layers").asked)
    opened.check_seeds(request.target)
    return request


def reading(options: ReadingOptions) -> Reading:
    """Return the changes that the options make to a graph that is read."""
    return Reading(options.reverse, tuple(options.feature), options.feature_dtype, options.task)


def say_of_graph(opened: GraphInput, targets: tuple[str, ...], metapaths: bool,
                 notes: Iterable[str] = ()) -> None:
    """Say `notes`, and what of a graph that was read training will use, and what not."""
    for text in notes:
        note(text)
    if opened.source is None:
        return
    for text in (features_text(opened.source), *columns_text(opened.source)):
        note(text)
    if opened.source.task is not None:
        note(labels_text(opened.source, opened.source.task))
    if left := opened.source.info.get("left out"):
        note(f"left out: {listing(left)}")
    if not metapaths and (text := unreached_text(opened.schema, targets)):
        note(text)


def without_labels(opened: GraphInput, targets: tuple[str, ...], task: TaskSettings) -> list[str]:
    """Return a warning for each target without labels, which only link prediction and a table of
    seeds do without.

    Raises
    ------
    InputError
        `task` is one that needs labels.
    """
    if (task.kind == "link" or task.relation or task.table is not None
            or (opened.source is not None and opened.source.write_seeds is not None)):
        return []
    label = task.label or (opened.task.label if opened.task else Task.label)
    if opened.store is not None:
        arrays = {t: list(opened.store.manifest.arrays.get(t, {})) for t in targets}
    else:
        arrays = {t: list(opened.source.node_arrays.get(t, {})) if opened.source else []
                  for t in targets}
    texts = []
    for ntype in targets:
        if label in arrays[ntype] or ntype not in opened.schema.node_counts:
            continue
        has = f"has no array '{label}' with labels (its arrays: {listing(arrays[ntype])})"
        other = "name another array by task.label or another --target"
        if task.kind or task.label:
            raise InputError(f"target '{ntype}' {has}, which {task.kind or 'classification'} needs "
                             f"as the settings ask for it; {other}, or predict links by "
                             "task.relation")
        texts.append(f"target '{ntype}' {has}, so `dgl-heta train` can train for links alone "
                     f"(task.relation); to predict labels, {other}")
    return texts


def of_one_class(opened: GraphInput, targets: tuple[str, ...], task: TaskSettings) -> list[str]:
    """Return a warning for each target, of a graph being read, whose labels are all of one class.
    """
    if (opened.source is None or task.relation
            or (task.kind or (opened.task.kind if opened.task else "")) != "classification"):
        return []
    label = task.label or (opened.task.label if opened.task else Task.label)
    texts = []
    for ntype in targets:
        labels = opened.source.node_arrays.get(ntype, {}).get(label)
        if labels is None or labels.ndim != 1 or labels.dtype.kind not in "iu":
            continue
        known = labels >= 0
        most = labels.max(where=known, initial=0)
        if known.any() and labels.min(where=known, initial=most) == most:
            texts.append(f"all labels of target '{ntype}' are class {most}, so there is "
                         "nothing to learn")
    return texts


_ASKED_BY_OPTIONS = ("method", "parts", "metapaths", "seed", "replication", "memory_mb", "cut")
"""Settings of `partition` that options replace; of the targets, a graph's own task decides."""


def filled(options: PlanOptions, settings: Settings) -> PlanOptions:
    """The options, where they leave something open with what the settings say of it.

    Of a partition the settings are to be those beside its plan
    (:func:`~dgl_heta.partition.own_plan.settings_beside`), which has a method and a number of
    parts.
    """
    values = {name: getattr(settings.partition, name) for name in _ASKED_BY_OPTIONS
              if settings.origin(f"partition.{name}") is not Origin.DEFAULT
              and getattr(options, name) is None}
    return replace(options, **values)


def _check_replaced(plan: Plan, options: PlanOptions, depth_given: bool) -> None:
    """Refuse options that ask for another plan than a partition's, but do not say what of its own
    no plan has by default.

    Parameters
    ----------
    depth_given : whether its depth is, so that all relations within that are asked for.

    Raises
    ------
    InputError
        The partition's plan has metapaths, or no replication.
    """
    if plan.metapaths and options.metapaths is None and not depth_given:
        raise InputError("the partition follows metapaths, which another plan of it would not; "
                         f"give --metapaths, or --hops {plan.hops} for all relations within its "
                         "depth")
    if (plan.replication == "none" and options.replication is None
            and options.method == plan.method and plan.method in OF_METATREES):
        raise InputError("the partition was made with --replication none, but another plan of it "
                         "would replicate relations; give --replication none, or full")


def hops_of(options: PlanOptions, settings: Settings) -> int | None:
    """The depth of the plan that is given, else the layers of the model that somebody asked for,
    else those of a partition's plan; None where it is for metapaths to say."""
    if options.hops is not None:
        return options.hops
    origin = settings.origin("model.layers")
    known = origin.asked or (origin is Origin.PLAN and options.metapaths is None)
    return settings.model.layers if known else None


def cutter_of(options: PlanOptions, registry: Plugins) -> Cutter | None:
    """The cutter that is named; None where the method is to cut in its own way."""
    cutter: Cutter | None = (None if options.cut is None
                             else registry.get("cutter", options.cut))
    return cutter


def targets_of(opened: GraphInput, given: list[str] | None, settings: Settings) -> tuple[str, ...]:
    """The target node types that are given, else those of the task that the settings ask for, else
    those of the graph's plan or task."""
    if given:
        types = opened.schema.node_types  # a name may hold a comma itself
        return tuple(t for text in given for t in ([text] if text in types else text.split(",")))
    if settings.task.targets or settings.task.of_links:
        from dgl_heta.training.tasks import resolve  # which takes torch, and seconds with it

        return tuple(resolve(settings.task, opened.task, opened.schema, opened.info).targets or ())
    if opened.plan is not None:
        return opened.plan.targets
    return (opened.target,) if opened.target else ()
