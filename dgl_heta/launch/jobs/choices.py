"""Which settings and which plan a graph is trained with."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from dgl_heta.errors import InputError
from dgl_heta.hooks.manager import Plugins
from dgl_heta.launch.scheduler import is_worker
from dgl_heta.partition.directory import is_partition
from dgl_heta.partition.graph_input import GraphInput, Reading, open_input
from dgl_heta.partition.own_plan import (
    check_memory,
    check_plan,
    followed,
    settings_beside,
    with_parts,
)
from dgl_heta.partition.request import make_request
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
        settings = settings_beside(opened.plan, config, overrides)
        if not is_worker():
            opened = with_parts(opened, settings, lambda: _targets(opened, settings))
        return opened, settings, registry.configured(settings)
    settings = load_settings(config, overrides, base={"partition": {"parts": int(
        os.environ["WORLD_SIZE"])}} if is_worker() else None, base_origin=Origin.PLAN)
    registry = registry.configured(settings)
    return open_input(graph, registry, reading=reading), settings, registry


def plan_for(opened: GraphInput, settings: Settings, registry: Plugins) -> Plan:
    """The plan that a partition has, or a new one as the settings ask for.

    Raises
    ------
    InputError
        The partition was made for something else than the settings ask for; a worker would hold too
        much.
    """
    targets = _targets(opened, settings)
    if opened.plan is not None:
        check_plan(opened.plan, opened, settings, targets)
    plan = _sharing(opened.plan or _new_plan(opened, settings, registry, targets), opened, settings)
    if opened.plan is not None:
        check_memory(plan, settings)
    followed(plan, settings, registry)
    return plan


def _targets(opened: GraphInput, settings: Settings) -> Sequence[str]:
    return resolve(settings.task, opened.task, opened.schema, opened.info).targets or ()


def _new_plan(opened: GraphInput, settings: Settings, registry: Plugins, targets: Sequence[str]
              ) -> Plan:
    if opened.store is not None:
        opened.store.check_whole()
    wishes = settings.partition
    if wishes.cut is not None:
        raise InputError(f"partition.cut is {wishes.cut}, but a cutter sees the edges when a graph "
                         "is partitioned; write a partition first (`dgl-heta partition --cut "
                         f"{wishes.cut}`), and train that")
    backend = registry.get("partition backend", wishes.method)
    plan: Plan = backend.plan(opened.schema, make_request(
        backend, opened.schema, wishes.parts, targets, hops=settings.model.layers,
        metapaths=wishes.metapaths, seed=wishes.seed, replication=wishes.replication,
        memory_mb=wishes.memory_mb, workload=Workload.of(settings),
        shared=way_of(settings), word=lambda name: f"partition.{name}"))
    return plan


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
