"""Which settings and which plan a graph is trained with."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dgl_heta.errors import InputError
from dgl_heta.hooks.manager import Plugins
from dgl_heta.launch.scheduler import is_worker
from dgl_heta.partition.directory import is_partition
from dgl_heta.partition.graph_input import GraphInput, Reading, open_input
from dgl_heta.partition.request import make_request
from dgl_heta.planning.limit import largest, mb
from dgl_heta.planning.metatree import load_metapaths
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.shared_rows import share_rows_in_training, way_of
from dgl_heta.planning.workload import Workload
from dgl_heta.settings import Origin, Settings, load_settings
from dgl_heta.store import Store
from dgl_heta.training.tasks import resolve

log = logging.getLogger("dgl_heta")


def open_for(graph: str, config: Path | None, overrides: Iterable[str], registry: Plugins,
             reading: Reading | None = None) -> tuple[GraphInput, Settings, Plugins]:
    """Return the graph that the user names, its settings, and the plugins with these settings.

    Readers and data sets have their settings, too; a partition, whose plan is a source of
    settings, needs neither of them.
    """
    if is_partition(Path(graph)):
        opened = open_input(graph, registry, reading=reading)
        settings = _settings(opened.plan, config, overrides)
        return _with_parts(opened, settings), settings, registry.configured(settings)
    settings = _settings(None, config, overrides)
    registry = registry.configured(settings)
    return open_input(graph, registry, reading=reading), settings, registry


def _settings(plan: Plan | None, config: Path | None, overrides: Iterable[str]) -> Settings:
    """The settings from all sources; a partition's own plan is weaker than any of them."""
    base: dict[str, Any] = {}
    if plan is not None:
        base = {"partition": {"parts": plan.num_parts, "method": plan.method},
                "model": {"layers": plan.hops}}
    elif is_worker():
        base = {"partition": {"parts": int(os.environ["WORLD_SIZE"])}}
    return load_settings(config, overrides, base=base, base_origin=Origin.PLAN)


def _with_parts(opened: GraphInput, settings: Settings) -> GraphInput:
    """The partition, or its store where the settings ask for another number of parts.

    A plan of sub-metatrees is made anew at once. One with metapaths or cut relations has
    what the settings cannot say, so another partition is to be made.
    """
    plan, parts = opened.plan, settings.partition.parts
    staged = opened.store is not None and opened.store.staged is not None
    if plan is None or parts == plan.num_parts or is_worker() or staged:
        return opened
    if plan.metapaths or plan.replication != "full" or plan.method not in (
            "meta", "meta-whole", "meta-shared"):
        return opened
    log.warning("the partition is for %d parts; its store is opened with a new plan for %d",
                plan.num_parts, parts)
    return replace(opened, plan=None)


def plan_for(opened: GraphInput, settings: Settings, registry: Plugins) -> Plan:
    """The plan that a partition has, or a new one as the settings ask for.

    Raises
    ------
    InputError
        The partition was made for something else than the settings ask for.
    """
    targets = resolve(settings.task, opened.task, opened.schema, opened.info).targets or []
    if opened.plan is not None:
        _check_plan(opened.plan, opened, settings, targets)
        plan = _sharing(opened.plan, opened, settings)
        _check_memory(plan, settings)
        return plan
    if opened.store is not None:
        opened.store.check_whole()
    wishes = settings.partition
    if wishes.cut is not None:
        raise InputError(f"partition.cut is {wishes.cut}, but a cutter sees the edges when a graph "
                         "is partitioned; write a partition first (`dgl-heta partition --cut "
                         f"{wishes.cut}`), and train that")
    backend = registry.get("partition backend", wishes.method)
    plan = backend.plan(opened.schema, make_request(
        backend, opened.schema, wishes.parts, targets, hops=settings.model.layers,
        metapaths=wishes.metapaths, seed=wishes.seed, replication=wishes.replication,
        memory_mb=wishes.memory_mb, workload=Workload.of(settings),
        shared=way_of(settings), word=lambda name: f"partition.{name}"))
    return _sharing(plan, opened, settings)


def check_staged(store: Store | None, plan: Plan, trainers: int) -> None:
    """Check that what this command's workers read is on this machine.

    Raises
    ------
    InputError
        The store was staged for other partitions, or for a plan in which others aggregate for them.
    """
    if store is not None and store.staged is not None:
        for part in parts_here(plan, trainers):
            store.staged.check(part, store.directory)
            if plan.shared is not None:
                store.check_here(plan.partitions[part].relations, plan.shared.reason)


def parts_here(plan: Plan, trainers: int) -> Sequence[int]:
    """The partitions that this command's workers run: that of a scheduler's worker, else all."""
    if not is_worker():
        return range(plan.num_parts)
    # Ranks beyond the plan's are named when they meet.
    return range(plan.num_parts)[int(os.environ["RANK"]) // trainers:][:1]


def _sharing(plan: Plan, opened: GraphInput, settings: Settings) -> Plan:
    """The plan with what `partition.shared` comes to, which is logged."""
    store = opened.store
    plan, choices = share_rows_in_training(
        plan, settings, store.directory if store and store.staged else None)
    for choice in choices:
        log.info("partition.shared = %s: %s", settings.partition.shared, choice)
    return plan


def _check_plan(plan: Plan, opened: GraphInput, settings: Settings, targets: list[str]) -> None:
    """Refuse settings that ask for another plan than the partition has."""
    wishes = settings.partition
    if set(targets) != set(plan.targets):
        raise InputError(
            f"the partition was made for target {', '.join(plan.targets)}, but the task "
            f"is about {', '.join(targets)}; make another partition with "
            f"{' '.join(f'--target {t}' for t in targets)}")
    for what, asked, planned in (("parts", wishes.parts, plan.num_parts),
                                 ("layers", settings.model.layers, plan.hops),
                                 ("method", wishes.method, plan.method)):
        if asked != planned:
            raise InputError(
                f"the partition was made for {what} {planned}, but the settings ask for {asked}; "
                f"leave the setting out, or make another partition from its store "
                f"({opened.store.directory if opened.store else ''})")
    if wishes.metapaths and tuple(
            load_metapaths(wishes.metapaths, opened.schema)) != plan.metapaths:
        raise InputError("the partition was not made for the metapaths of "
                         f"partition.metapaths={wishes.metapaths}; leave the setting out, or make "
                         "another partition with --metapaths")
    if wishes.replication not in (None, plan.replication):
        raise InputError(
            f"the partition was made with replication = {plan.replication}, but the "
            f"settings ask for {wishes.replication}; leave the setting out, or "
            "make another partition")
    if wishes.cut is not None:
        raise InputError("partition.cut has no effect on a partition that exists; leave it out, or "
                         "make another partition with --cut")
    if wishes.seed:
        raise InputError("partition.seed has no effect on a partition that exists; leave it "
                         "out, or make another partition with --seed")


def _check_memory(plan: Plan, settings: Settings) -> None:
    """Refuse a partition that holds more than the settings allow: its plan stays as it is."""
    limit = settings.partition.memory_limit
    if limit is None:
        return
    most = largest(plan, Workload.of(settings, parts=plan.num_parts))
    if most > limit:
        raise InputError(
            f"a part of the partition holds {mb(most)} MB, {mb(most - limit)} MB more than "
            f"partition.memory_mb = {mb(limit)}; make another partition with --memory-mb, or "
            "raise the limit")
