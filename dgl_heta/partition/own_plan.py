"""The plan that a partition has, beside settings and options that may ask for another one.

`plan`, `partition` and `train` settle here what a partition's depth, method and number of parts are
where nobody names them: what it was made with.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from dgl_heta.errors import InputError
from dgl_heta.hooks.manager import Plugins
from dgl_heta.partition.directory import is_partition, open_partition
from dgl_heta.partition.graph_input import GraphInput
from dgl_heta.planning.limit import largest, mb
from dgl_heta.planning.metatree import load_metapaths
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.workload import Workload
from dgl_heta.settings import Origin, Settings, load_settings

log = logging.getLogger("dgl_heta")
OF_METATREES = ("meta", "meta-whole", "meta-shared")
"""Methods whose plans follow from what settings say, where they replicate all relations."""


def own_plan(graph: str) -> Plan | None:
    """The plan of a partition; None for any other input."""
    return open_partition(Path(graph))[1] if is_partition(Path(graph)) else None


def settings_beside(plan: Plan | None, config: Path | None, overrides: Iterable[str]) -> Settings:
    """The settings from all sources; a partition's own plan is weaker than any of them."""
    base = None if plan is None else {
        "partition": {"parts": plan.num_parts, "method": plan.method},
        "model": {"layers": plan.hops}}
    return load_settings(config, overrides, base=base, base_origin=Origin.PLAN)


def with_parts(opened: GraphInput, settings: Settings, targets: Callable[[], Iterable[str]]
               ) -> GraphInput:
    """The partition, or its store where the settings ask for another number of parts.

    A plan of sub-metatrees is made anew at once. One with metapaths or cut relations, or for other
    targets, has what the settings do not say, so another partition is to be made.

    Parameters
    ----------
    targets : gives those that a new plan would have: of the settings, or of the graph's task.
    """
    plan, parts = opened.plan, settings.partition.parts
    staged = opened.store is not None and opened.store.staged is not None
    if plan is None or parts == plan.num_parts or staged:
        return opened
    if plan.metapaths or plan.replication != "full" or plan.method not in OF_METATREES:
        return opened
    if set(targets()) != set(plan.targets):
        return opened
    log.warning("the partition is for %d parts; its store is opened with a new plan for %d",
                plan.num_parts, parts)
    return replace(opened, plan=None)


def check_plan(plan: Plan, opened: GraphInput, settings: Settings, targets: Sequence[str]) -> None:
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


def check_memory(plan: Plan, settings: Settings, work: Workload | None = None) -> None:
    """Refuse a partition that holds more than the settings allow: its plan stays as it is.

    Parameters
    ----------
    work : default: that of a training with these settings.
    """
    _check_holds(plan, settings.partition.memory_limit, work or _work(plan, settings),
                 "a part of the partition", "make another partition with --memory-mb")


def _check_holds(plan: Plan, limit: int | None, work: Workload, what: str, remedy: str) -> None:
    if limit is not None and (most := largest(plan, work)) > limit:
        raise InputError(f"{what} holds {mb(most)} MB, {mb(most - limit)} MB more than "
                         f"partition.memory_mb = {mb(limit)}; {remedy}, or raise the limit")


def _work(plan: Plan, settings: Settings) -> Workload:
    return Workload.of(settings, parts=plan.num_parts)


def followed(plan: Plan, settings: Settings, registry: Plugins,
             work: Workload | None = None, limit: int | None = None) -> Plan:
    """The plan that workers follow: what the module wrapper makes of a partition backend's.

    Parameters
    ----------
    work, limit : where they are others than the settings say.

    Raises
    ------
    InputError
        It is another one, and a worker would hold more than the settings allow.
    """
    wrapper = registry.get("module wrapper", settings.train.wrapper)
    new: Plan = wrapper.plan(plan)
    if new is not plan:
        _check_holds(new, limit or settings.partition.memory_limit, work or _work(new, settings),
                     f"with train.wrapper = {wrapper.name} a worker", "leave the wrapper out")
    return new
