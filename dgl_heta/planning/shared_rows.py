"""`partition.shared`, decided in one place for all who partition, train and run scripts.

Learnable features that several partitions read at layer 1 are shared in one of two ways: their rows
move, or one partition aggregates them for the others (:mod:`dgl_heta.planning.offloading`). What
decides: the setting with its origin, the plan as it was partitioned, and the training.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dgl_heta.errors import InputError
from dgl_heta.planning.limit import largest, mb
from dgl_heta.planning.offloading import SharingDecision
from dgl_heta.planning.owner_choice import Choice, choose, worth_choosing
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.workload import MODELS, Workload
from dgl_heta.settings import Origin, Settings

log = logging.getLogger("dgl_heta")


def share_rows(plan: Plan, work: Workload, way: str, origin: Origin, limit: int | None = None
               ) -> tuple[Plan, Sequence[Choice]]:
    """The plan that is to be partitioned, with what is best for shared rows.

    Parameters
    ----------
    plan : one in which nothing is offloaded.
    way : `partition.shared`.
    limit : bytes that a partition may hold. An owner has relations and rows that the plan did not
        give it: where they are too much, rows move.

    Raises
    ------
    InputError
        `way` is "delegate" and the plan cannot, or a partition would hold too much.
    """
    chosen, choices = choose(plan, work, way)
    if limit is not None and chosen.offloaded and (most := largest(chosen, work)) > limit:
        holds = (f"the partition that aggregates for the others would hold {mb(most)} MB, "
                 f"more than partition.memory_mb = {mb(limit)}")
        if way == "delegate":
            raise InputError(f"partition.shared = delegate: {holds}; use partition.shared = rows "
                             "or a higher limit")
        log.warning("partition.shared = %s: rows move, as %s", way, holds)
        return _decided(plan, way, origin, holds), []
    reason = (f"partition.shared = {way}" if way != "auto" else "; ".join(map(str, choices))
              or "nothing can be delegated, or it would not be worth it")
    return _decided(chosen, way, origin, reason), choices


def way_of(settings: Settings) -> str:
    """`partition.shared`, as plans are made for it: replicas move no rows, whatever it is."""
    return "rows" if settings.train.learnable == "replica" else settings.partition.shared


def share_rows_in_training(plan: Plan, settings: Settings, staged: Path | None = None,
                           work: Workload | None = None, limit: int | None = None
                           ) -> tuple[Plan, Sequence[Choice]]:
    """The plan as `dgl-heta train` runs it; where every worker reads the whole store, what a
    partition was made with can be chosen anew.

    Parameters
    ----------
    staged : the partition, where workers have what its plan says alone.
    work, limit : where they are others than the settings say.

    Raises
    ------
    InputError
        As :func:`share_rows` and :func:`share_rows_as_partitioned`.
    """
    way, origin = settings.partition.shared, settings.origin("partition.shared")
    work = work or Workload.of(settings, parts=plan.num_parts)
    if way == "auto":
        why = ("train.learnable = replica moves no rows" if settings.train.learnable == "replica"
               else f"of model '{settings.model.name}' it is not known what it reads"
               if settings.model.name not in MODELS else None)
        if why is not None:
            return _decided(plan.without_owners(), way, origin, why), []
    if staged is not None:
        return share_rows_as_partitioned(plan, settings, str(staged)), []
    # What was partitioned for stays: only a user's word, or a model for which it does not pay,
    # changes it.
    if plan.offloaded and not origin.asked and worth_choosing(work):
        return _decided(plan, way, origin, "as it was partitioned"), []
    return share_rows(plan.without_owners(), work, way, origin,
                      limit or settings.partition.memory_limit)


def share_rows_as_partitioned(plan: Plan, settings: Settings, where: str) -> Plan:
    """The plan as machines that have a part each run it, those of a script among them: what was not
    partitioned for cannot be offloaded any more.

    Parameters
    ----------
    where : the partition, for a message.

    Raises
    ------
    InputError
        `partition.shared` is "delegate" and the partition was made without it.
    """
    way, origin = settings.partition.shared, settings.origin("partition.shared")
    if way == "delegate" and origin.asked and not plan.offloaded:
        raise InputError(f"partition.shared = delegate, but the partition {where} was made "
                         "without it; partition the graph with this setting")
    # A part on a machine has the relations that it was partitioned with. Without owners it runs
    # more of them, which a staged part does not have (StoreFiles.check_here); with others than it
    # was partitioned for, it would, too, so that none are chosen anew.
    why = ("partition.shared = rows" if way == "rows" else
           "train.learnable = replica moves no rows" if settings.train.learnable == "replica" else
           "a reference runs as plain DGL does" if settings.run.reference else None)
    return _decided(plan if why is None else plan.without_owners(), way, origin,
                    why or "as it was partitioned")


def _decided(plan: Plan, way: str, origin: Origin, reason: str) -> Plan:
    owners = {r.src: owner for r, owner in plan.offloaded.items()}
    return replace(plan, shared=SharingDecision(way, origin, owners, reason))
