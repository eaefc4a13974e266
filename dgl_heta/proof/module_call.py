"""Input rows of a call, for both ways: the same for a node on every trainer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dgl_heta.comm.collectives import Comm
from dgl_heta.features.deferred import peek
from dgl_heta.proof.alignment import Argument, show
from dgl_heta.proof.copies import NotProvedError
from dgl_heta.proof.difference import Levels
from dgl_heta.proof.gather import Ids, Places, RowExchange, Rows, gather_arrays
from dgl_heta.sampling.blocks import MiniBatch
from dgl_heta.system.nested import Path

Given = dict[Path, tuple[Argument, np.ndarray, Tensor]]
"""Path → an argument, and the nodes and rows that a copy is given of it."""


@dataclass
class Call:
    """A module's call.

    Attributes
    ----------
    arguments : {"args": …, "kwargs": …}, and what else it reads of its blocks.
    ids : ids of each level of the real batch.
    whole : level → node type → which of them have complete rows; all for a level that is not there.
    first : the level that its first block starts from.
    complete : whether it returns rows of the own seeds, below which nothing is left out.
    trained : whether gradients were on.
    drawn : whether random numbers were drawn since the batch was handed out.
    rough : whether states are computed or sent in less than single precision.
    unknown : why it is not known what the module has read.
    """

    module: nn.Module
    arguments: dict[str, Any]
    ids: list[Ids]
    whole: Mapping[int, Mapping[str, np.ndarray]]
    first: int
    complete: bool
    trained: bool
    drawn: bool
    seed: int
    replicas: bool = False
    unknown: str | None = None
    rough: bool = False

    def name(self, path: Path) -> str:
        """`features['paper']`, by the names of the module's parameters."""
        if path[0] == "args":
            try:
                names = list(inspect.signature(self.module.forward).parameters)
                return show((names[path[1]], *path[2:]))
            except (ValueError, TypeError, IndexError):
                return show(path)
        return show(path[1:]) if path[0] == "kwargs" else show(path)


class Inputs:
    """Rows of a call's arguments; all trainers of a group make it alike.

    Attributes
    ----------
    ours, plain : for the smaller batch with RAF, and the plain way.
    texts : inputs that are not the same on all trainers.

    Raises
    ------
    NotProvedError
        Rows are on no trainer, or are random; on all trainers of the group alike, or not.
    """

    def __init__(self, group: Comm, call: Call, levels: Levels, arguments: Sequence[Argument]
                 ) -> None:
        self._call, self._levels = call, levels
        self.texts: list[str] = []
        known, call = self._levels, self._call
        aligned = [a for a in arguments if a.level is not None]
        domains = {a.path: f"{a.level}" + ("" if a.everywhere else show(a.path)) for a in aligned}
        needed: dict[str, np.ndarray] = {}
        real: dict[str, np.ndarray] = {}
        for argument in aligned:
            level, ntype = argument.level or (0, "")
            domain = domains[argument.path]
            needed[domain] = known.ours[level][ntype][_chosen(known.whole, level, ntype)]
            real[domain] = call.ids[level][ntype][_chosen(call.whole, level, ntype)]
            if not argument.given:
                needed[domain], real[domain] = needed[domain][:0], real[domain][:0]
        # A seed of the batch that is none of the smaller one has its neighbours here now.
        lacking = gather_arrays(group, [torch.from_numpy(np.setdiff1d(needed[d], real[d]))
                                        for d in needed]) if needed else []
        ids = {d: np.intersect1d(np.union1d(needed[d], torch.cat(every).numpy()), real[d])
               for d, every in zip(needed, lacking)}
        rows = {a.path: Rows(show(a.path), domains[a.path], self._given(a, ids[domains[a.path]]))
                for a in aligned}
        exchange = RowExchange(group, ids, [rows[a.path] for a in aligned])
        wanted: dict[str, np.ndarray] = {}
        inexact = set()
        for argument, worst in zip(aligned, exchange.differences):
            of = rows[argument.path]
            if worst.size > self._tolerance(argument):
                if call.drawn or (call.replicas and (argument.learned or not call.trained)):
                    raise NotProvedError(
                        f"{call.name(argument.path)} of a node is not the same on all trainers, "
                        "and random numbers were drawn for it (or each trains its own copy)")
                ntype = argument.level[1] if argument.level else ""
                trainers = " and ".join(str(group.ranks[w]) for w in worst.workers)
                self.texts.append(
                    f"the input {call.name(argument.path)} of node {worst.node} of '{ntype}' "
                    f"differs by {worst.size:.1e} between trainers {trainers}: a node has one "
                    "state for the seeds of all trainers, so its inputs must not depend on whose "
                    "seeds it is reached from (hide labels by dgl_heta.all_seeds)")
            if worst.size:
                inexact.add(of.domain)
        for argument in aligned:
            level, ntype = argument.level or (0, "")
            domain = rows[argument.path].domain
            plain = known.plain[level][ntype]
            asked = np.union1d(plain, needed[domain])
            if domain not in inexact:
                asked = asked[Places(ids[domain]).of(asked) < 0]
            if (exchange.first_holders(domain, asked) < 0).any():
                raise NotProvedError(f"rows of {call.name(argument.path)} are on no trainer")
            wanted[domain] = asked
        by_id = exchange.fetch(wanted)
        self.ours: Given = {a.path: self._merged(a, rows.get(a.path), by_id) for a in arguments}
        self.plain: Given = {
            a.path: (a, np.zeros(1, np.int64), peek(a.tensor)) if a.level is None else
            (a, known.plain[a.level[0]][a.level[1]],
             by_id(rows[a.path], known.plain[a.level[0]][a.level[1]])) for a in arguments}

    def _given(self, argument: Argument, ids: np.ndarray) -> Tensor:
        """Rows by id as the script gave them, other ones for nodes that it gave none of."""
        level, ntype = argument.level or (0, "")
        if not argument.given or not len(argument.tensor):
            return argument.tensor.new_zeros((len(ids), *argument.tensor.shape[1:]))
        return peek(argument.tensor, Places(self._call.ids[level][ntype]).of(ids).clip(0))

    def _merged(self, argument: Argument, own: Rows | None,
                by_id: Callable[[Rows, np.ndarray], Tensor]) -> tuple[Argument, np.ndarray, Tensor]:
        """This worker's rows with RAF: also those that are not complete, as they are."""
        if argument.level is None or own is None:
            return argument, np.zeros(1, np.int64), peek(argument.tensor)
        here = self._levels.ours[argument.level[0]][argument.level[1]]
        if not argument.given:
            return argument, here[:0], argument.tensor[:0]
        mask = _chosen(self._levels.whole, *argument.level)
        if isinstance(mask, slice) or mask.all():
            return argument, here, by_id(own, here)
        value = self._given(argument, here)
        value[torch.arange(len(here))[mask]] = by_id(own, here[mask])
        return argument, here, value

    def _tolerance(self, argument: Argument) -> float:
        kind = argument.tensor.dtype
        if not kind.is_floating_point:
            return 0.0
        if kind in (torch.float16, torch.bfloat16):
            return 5e-2
        if argument.exact and self._call.trained:
            return 1e-5
        return 2e-2 if self._call.rough else 1e-3


def complete(batch: MiniBatch, ids: Sequence[Ids]) -> dict[int, dict[str, np.ndarray]]:
    """Below the last layer, which rows are complete for sure: its sources, and the own seeds."""
    last, below = batch.blocks[-1], len(batch.blocks) - 1
    if not below:
        return {}
    masks = {t: np.zeros(len(of), bool) for t, of in ids[below].items()}
    for ntype, mask in masks.items():
        mask[:last.wanted(ntype) if ntype in last.num_dst else 0] = True
    for edges in last.edges:
        masks[edges.relation.src][edges.indices.cpu().numpy()] = True
    return {below: masks}


def _chosen(whole: Mapping[int, Mapping[str, np.ndarray]], level: int, ntype: str
            ) -> np.ndarray | slice:
    return whole[level][ntype] if level in whole else slice(None)
