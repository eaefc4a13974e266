"""The merges of relations that a batch needs, and those that a script has done.

A merge is a collective: where one trainer leaves it out and another does not, that one waits in
vain, and where all leave it out, a result is incomplete. What a batch needs follows from its
blocks. What was done they note themselves (`Block.done`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dgl_heta.distdgl.autograd.collective_order import CollectiveOrder
from dgl_heta.distdgl.groups import Groups
from dgl_heta.distdgl.watchdog import watchdog
from dgl_heta.graph.schema import Schema
from dgl_heta.sampling.blocks import Block

Merges = set[tuple[int, str]]
"""Layers and node types whose relations are merged."""

_SKIPPING_S = 60.0
"""How long a trainer that skips a merge waits for the others to do so, at most."""
_WAITING = 64
"""So many batches that were not used yet are remembered, to be checked when they are."""


@dataclass
class _Batch:
    """The merges that a batch needs, and those that were done, as its blocks note them."""

    due: Merges
    done: Merges


class DueMerges:
    """The merges of the batches that a trainer was given.

    Parameters
    ----------
    schema : of the graph.
    groups, order : of this trainer.
    timeout_s : the limit of every wait.
    """

    def __init__(self, schema: Schema, groups: Groups, order: CollectiveOrder, timeout_s: float
                 ) -> None:
        self._into, self._groups, self._order = schema.into, groups, order
        self._patience_s = min(_SKIPPING_S, timeout_s / 2)
        self._batches: list[_Batch] = []

    def _of(self, blocks: Iterable[Block]) -> Merges:
        """Return the merges that blocks need: of node types with seeds that relations lead into,
        and of those that are aggregated for others, or by them."""
        # Whether relations lead into a type is asked of the schema and not of the block's edges: a
        # machine without such relations merges, too, or the others would wait for it.
        seeds = {(block.layer, t) for block in blocks for t, shares in block.seeds.items()
                 if shares.total and self._into.get(t)}
        return seeds | {(block.layer, t) for block in blocks for t, guests in block.remote.items()
                        if guests.total or any(guests.sent)}

    def begin(self, blocks: Sequence[Block]) -> None:
        """Note that a batch is handed out, after a check of those before it."""
        self.check_earlier()
        self._batches = [*self._batches[-_WAITING:], _Batch(self._of(blocks), blocks[0].done)]

    def check_earlier(self) -> None:
        """Check every batch that was used, as :meth:`check` does.

        A batch without any merge was not used yet: scripts draw batches ahead, or hold several.
        """
        waiting = []
        for batch in self._batches:
            # A module that asks for the next batch inside its forward pass is not done with it.
            if not batch.done or self._order.under_way:
                waiting.append(batch)
            else:
                self._check(batch.due, batch.done)
        self._batches = waiting

    def check(self, blocks: Iterable[Block], done: Merges) -> None:
        """Note in `done` which merges of blocks were not done; all trainers of the group have
        skipped the same ones.

        Raises
        ------
        HetaError
            They have not.
        """
        self._check(self._of(blocks), done)

    def _check(self, due: Merges, done: Merges) -> None:
        group = self._groups.group
        if (skipped := due - done) and group.size > 1:
            watchdog().skip_alike(skipped, group.ranks, self._patience_s)
            done |= skipped  # agreed on once: it is no fault the next time
