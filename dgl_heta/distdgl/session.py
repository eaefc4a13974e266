"""What a trainer process knows of the meta-partitioned graph that it trains on."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from dgl_heta.comm.collectives import Comm, Traffic, wire_dtype
from dgl_heta.comm.machines import join_machine
from dgl_heta.distdgl.autograd.backward_end import BackwardEnd
from dgl_heta.distdgl.autograd.collective_order import Chains
from dgl_heta.distdgl.autograd.loss_scope import Scope
from dgl_heta.distdgl.batch_ids import Handed
from dgl_heta.distdgl.groups import SamplingGroups
from dgl_heta.distdgl.reference import Reference
from dgl_heta.distdgl.state import process_state, without_effect
from dgl_heta.distdgl.store.edge_ends import EdgeEnds
from dgl_heta.distdgl.watchdog import meet, skip_alike
from dgl_heta.errors import HetaError, InputError, listing, several
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import graph_names
from dgl_heta.hooks.manager import Plugins
from dgl_heta.hooks.protocols import BatchSource
from dgl_heta.nn import use_kernel
from dgl_heta.partition.directory import open_partition
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.shared_rows import share_rows_in_script
from dgl_heta.raf.exchange import GroupExchange
from dgl_heta.sampling.blocks import Block
from dgl_heta.settings import Settings

log = logging.getLogger("dgl_heta")


@dataclass
class Batch:
    """A batch that a loader handed out, and which reductions it needs."""

    expected: set[tuple[int, str]]
    done: set[tuple[int, str]]
    """Those that were done, as its blocks note them."""


_SKIPPING_S = 60.0
"""How long a trainer that skips a merge waits for the others to do so, at most."""
_WAITING = 64
"""So many batches that were not used yet are remembered, to be checked when they are."""


class Session:
    """One meta-partitioned graph in one trainer.

    Parameters
    ----------
    part_config : part_config JSON of the partition.
    part : the partition of this machine.
    settings, plugins : which providers, with which settings.

    Raises
    ------
    InputError
        The partition is damaged, a provider is unknown, or a setting has no meaning here.
    """

    def __init__(self, part_config: str, part: int, settings: Settings, plugins: Plugins) -> None:
        train = settings.train
        if not train.seed_states:
            raise InputError("train.seed_states = false cannot be used with DistDGL scripts: "
                             "HeteroGraphConv reads the destinations' states; leave it out")
        if train.dtype != "float32":
            raise InputError(f"train.dtype = '{train.dtype}' cannot be used with DistDGL scripts: "
                             "the script's own model decides; leave it out")
        if train.trainers != 1:
            raise InputError(f"train.trainers = {train.trainers} has no effect on DistDGL scripts: "
                             "the launcher says how many trainers a machine has; leave it out")
        self.settings, self.part, self.part_config = settings, part, part_config
        self.whole: Any = None
        self.store, plan = open_partition(Path(part_config).parent)
        if settings.run.verify and self._reads_first():
            plan.verify()
            own = plan.partitions[part]
            self.store.verify(own.node_types, own.relations)
        self._stored_names = {(t, given): stored for t in self.store.schema.node_types
                              for stored, given in graph_names(self.store.manifest, t).items()}
        plan = share_rows_in_script(plan, settings, part_config)
        if plan.replication != "full":
            raise InputError(f"the partition {part_config} was made with replication = "
                             f"{plan.replication}, which DistDGL scripts cannot use: their blocks "
                             "have common rows for seeds alone; partition with --replication full")
        self.reference = settings.run.reference
        """Whether the script runs as with plain DGL (:mod:`dgl_heta.distdgl.reference`)."""
        self.wrapper = (Reference() if self.reference else
                        plugins.get("module wrapper", train.wrapper))
        self.source: BatchSource = plugins.get("batch source", train.batches)
        self._plugins = plugins
        plugins.get("cache policy", settings.cache.policy)
        use_kernel(plugins.get("aggregation kernel", train.kernel))
        self._stored_groups = plan.groups
        self.plan: Plan = self.wrapper.plan(plan)
        self.traffic = Traffic()
        exact = self.reference or settings.run.record is not None
        self._wire = None if exact else wire_dtype(train.exchange_dtype)
        self.world = self.group = Comm(self.traffic)
        """All trainers; those of this trainer's group."""
        self.sampling = SamplingGroups(self.make_group)
        """Process groups for what the group agrees on when batches are sampled, maybe on another
        thread."""
        self._groups: list[list[int]] = []
        self._said: set[str] = set()
        self._ahead = [0.0, 0.0]
        self.trainers: list[list[int]] = [[0]]
        """Ranks of the trainers of each machine."""
        self.members: tuple[int, ...] = (part,)
        """Partitions of this trainer's group, in the order of its ranks."""
        self._connected = False
        self.batches: list[Batch] = []
        self.loaders = 0
        self.embeddings: list[Any] = []
        self.ends = EdgeEnds(self.store)
        self.column: Callable[[Relation, str], Callable[[], np.ndarray] | None] = (
            lambda relation, name: None)
        """What reads edge data of the graph from DistDGL's servers, by relation and name."""
        self.handed = Handed(self.say_of_group)
        self._meetings = 0
        self.at_batch: tuple[int, int, int] | None = None
        """Data loader, epoch and step of the last batch, if it was not the last of a pass."""
        self.parallels: list[Any] = []
        """The modules that the script wrapped."""
        self.backward = BackwardEnd()
        self.chains = Chains(self.group, self.backward)
        self.exchange = GroupExchange(self.group, self.chains.of)
        self.scope = Scope(self)
        self.chains.before = self.scope.check
        self.watch: Any = None
        self.reading: Any = None
        """What looks at calls at steps to prove, and what is given rows of tables meanwhile (see
        :mod:`dgl_heta.distdgl.proof.step_proof`)."""
        self.shapes: dict[Any, Any] = {}
        self.types: dict[Any, dict[str, tuple[torch.Size, torch.dtype] | None]] = {}
        self._answers: dict[Any, bool] = {}
        self.all_complete = settings.train.complete_states
        """Whether the states of all seeds are wanted on all machines, read or not."""

    def _reads_first(self) -> bool:
        """Whether to compare checksums: its machine's other trainers read the same files, and need
        this one."""
        return os.environ.get("LOCAL_RANK", "0") == "0"

    def _count_trainers(self) -> int:
        """How many trainers there are."""
        from dgl.distributed import role

        return int(role.get_num_trainers())

    @property
    def partition(self) -> Any:
        """This machine's part of the plan."""
        return self.plan.partitions[self.part]

    def connect(self) -> None:
        """Form the groups; every trainer calls it at the same point (the first data loader)."""
        if self._connected:
            return
        trainers = self._count_trainers()
        if trainers > 1 and not dist.is_initialized():
            raise InputError("call torch.distributed.init_process_group before the first data "
                             "loader: trainers exchange partial aggregations")
        if trainers > 1:
            if dist.get_world_size() != trainers:
                raise InputError(f"torch.distributed has {dist.get_world_size()} ranks, but "
                                 f"DistDGL has {several(trainers, 'trainer')}; they must be equal")
            self._form_groups(timedelta(seconds=self.settings.run.timeout_s))
        elif self.plan.num_parts != 1:
            raise InputError(f"the partition has {self.plan.num_parts} parts, but there is one "
                             "trainer; start one machine per part (`dgl-heta launch`)")
        self.chains.group = self.group
        self.exchange = GroupExchange(self.group, self.chains.of)
        if unused := without_effect(self.settings):
            self.say(unused)
        self._connected = True

    def _form_groups(self, timeout: timedelta) -> None:
        everyone = range(dist.get_world_size())
        self.world = Comm(self.traffic, everyone,
                          dist.new_group(list(everyone), timeout=timeout, backend="gloo"),
                          self._wire)
        ones = [1] * self.world.size
        machine = self.world.all_gather_rows(torch.tensor([self.part]), ones, "control").tolist()
        self.trainers = [[r for r in everyone if machine[r] == m]
                         for m in range(self.plan.num_parts)]
        counts = {len(ranks) for ranks in self.trainers}
        if len(counts) != 1 or 0 in counts:
            raise InputError("every part needs the same number of trainers; there are "
                             f"{listing(str(len(r)) for r in self.trainers)} on machines 0 … "
                             f"{self.plan.num_parts - 1}")
        if self.settings.train.learnable == "exact":
            join_machine(self.world, list(map(str, machine)), timeout.total_seconds())
        for members in self.plan.groups:
            if self.part in members:
                self.members = members
            for place in range(min(counts)):
                ranks = [self.trainers[m][place] for m in members]
                self._groups.append(ranks)
        self.group = self.make_group(self.traffic)

    def make_group(self, traffic: Traffic | None = None) -> Comm:
        """This trainer's group with a process group of its own; all trainers call it alike."""
        timeout, own = timedelta(seconds=self.settings.run.timeout_s), self.group
        for ranks in self._groups:  # every trainer must take part in making every group
            made = (dist.new_group(ranks, timeout=timeout, backend="gloo") if len(ranks) > 1
                    else None)
            if dist.get_rank() in ranks:
                own = Comm(traffic or Traffic(), ranks, made, self._wire)
        return own

    def source_for(self, workers: int) -> BatchSource:
        """Where the batches of a data loader come from that asks for so many sampling workers.

        What `train.batches` says; where it says nothing and there are to be workers, a source that
        serves them, if there is one.
        """
        chosen: BatchSource = self.source
        asked = self.settings.origin("train.batches").asked
        if workers and not asked:
            chosen = next((self._plugins.get("batch source", name) for name, provider
                           in self._plugins.providers("batch source").items()
                           if provider.value.serves_workers), self.source)
        if chosen.ahead:
            self.say(f"batches are made ahead of time, on threads (train.batches = {chosen.name})")
        elif workers:
            self.say("no sampling workers are started: on a meta-partitioned graph each trainer "
                      "samples from its own disk, when it takes a batch"
                      + ("" if asked else
                         "; with dgl-heta-hifuse installed, it does so ahead of time"))
        return chosen

    def say_of_group(self, text: str) -> None:
        """Log a line as :meth:`say`, where other trainers have the same batches."""
        if self.group.size > 1:
            self.say(text)

    def say(self, text: str) -> None:
        """Log a line on the first trainer, once a run."""
        if text not in self._said and self.world.rank == 0:
            log.warning("%s", text)
        self._said.add(text)

    def drew_ahead(self, worked: float, waited: float) -> None:
        """A pass over a data loader has ended, whose batches were drawn in so many seconds ahead of
        time, of which this trainer waited for some. The first trainer says at the end how many."""
        if not worked:
            return
        if not any(self._ahead) and self.world.rank == 0:
            atexit.register(self._tell_ahead)
        self._ahead[0] += worked
        self._ahead[1] += waited

    def _tell_ahead(self) -> None:
        worked, waited = self._ahead
        hidden = max(worked - waited, 0.0)
        print(f"dgl-heta: {worked:.2f} s of sampling ahead of time, {hidden:.2f} s of them "
              f"({100 * hidden / worked:.0f} %) behind training", file=sys.stderr, flush=True)

    def made_by_script(self, name: str) -> dict[Relation, Callable[[], np.ndarray]]:
        """What reads edge data of this name that are not stored, of relations with such."""
        found = {r: self.column(r, name) for r in self.store.schema.relations
                 if name not in self.store.edge_arrays(r)}
        return {relation: read for relation, read in found.items() if read is not None}

    @property
    def partners(self) -> list[int]:
        """Ranks of the trainers that the partition's plan has in a group with this one."""
        rank = dist.get_rank() if self.world.size > 1 else 0
        place = self.trainers[self.part].index(rank) if self.world.size > 1 else 0
        members = next(group for group in self._stored_groups if self.part in group)
        return [self.trainers[m][place] for m in members] if self.world.size > 1 else [rank]

    def agree(self, what: str, values: Sequence[int]) -> None:
        """Check that all trainers are at the same point with the same values.

        Raises
        ------
        HetaError
            They are not; the message says `what`.
        """
        if self.world.size == 1:
            return
        self._meetings += 1
        meet(self._meetings, self.settings.run.timeout_s, self.at_batch)
        mine = torch.tensor([list(values)], dtype=torch.int64)
        every = self.world.all_gather_rows(mine, [1] * self.world.size, "control")
        for rank, row in enumerate(every.tolist()):
            if row != every[0].tolist():
                raise HetaError(f"trainers do not agree on {what}: {every[0].tolist()} on trainer "
                                f"0, {row} on trainer {rank}; all trainers must create and "
                                "iterate their data loaders alike")

    def agreed(self, what: Any, holds: bool) -> bool:
        """Whether something holds on all trainers of the group, asked once an epoch.

        All call it at the same point.
        """
        if self.group.size == 1:
            return holds
        if what not in self._answers:
            answer = self.group.all_reduce(torch.tensor([int(holds)]), "min", "control")
            self._answers[what] = bool(answer)
        return self._answers[what]

    def forget_agreements(self) -> None:
        """An epoch begins on all trainers: what they agreed on is asked again."""
        self._answers.clear()
        self.shapes.clear()
        self.types.clear()

    def begin(self, expected: set[tuple[int, str]], done: set[tuple[int, str]]) -> None:
        """A loader hands out a batch that needs these reductions; `done` is what its blocks note.
        """
        self.check_batches()
        self.batches = [*self.batches[-_WAITING:], Batch(expected, done)]
        self.exchange.begin()
        self.chains.begin()

    def expected(self, block: Block) -> set[tuple[int, str]]:
        """The reductions that a block needs: of node types with seeds that relations lead into."""
        into = self.store.schema.into
        return {(block.layer, t) for t, shares in block.seeds.items()
                if shares.total and into.get(t)} | {
                    (block.layer, t) for t, guests in block.remote.items()
                    if guests.total or any(guests.sent)}

    def check_batches(self) -> None:
        """Fail if a reduction of a batch is missing, unless the batch was not used yet."""
        waiting = []
        for batch in self.batches:
            if not batch.done or self.chains.under_way:
                waiting.append(batch)
            else:
                self.check(batch.expected, batch.done)
        self.batches = waiting

    def check(self, expected: set[tuple[int, str]], done: set[tuple[int, str]]) -> None:
        """Note in `done` which of these reductions were not done: all trainers of the group have
        skipped the same ones.

        Raises
        ------
        HetaError
            They have not.
        """
        skipped = expected - done
        if skipped and self.group.size > 1:
            skip_alike(skipped, self.group.ranks, min(
                _SKIPPING_S, self.settings.run.timeout_s / 2))
            done |= skipped

    def rows(self, name: str) -> np.ndarray | None:
        """The stored array of a DistTensor (its name in the key-value store), if it is here."""
        ntype, _, array = name.removeprefix("node~").partition("~")
        array = self._stored_names.get((ntype, array), array)
        if not name.startswith("node~") or not self.store.has_array(ntype, array):
            return None
        return self.store.held_array(ntype, array)

    def users(self, ntype: str) -> list[int]:
        """Ranks of the trainers that use a node type's features."""
        return sorted(r for m in self.plan.users(ntype) for r in self.trainers[m])


def current() -> Session | None:
    """Return the session of this process, if it has opened a meta-partitioned graph."""
    session: Session | None = process_state().session
    return session


def open_session(part_config: str, part: int, settings: Settings, plugins: Plugins) -> Session:
    """Open the session of this process; the last one that was opened counts."""
    return use_session(Session(part_config, part, settings, plugins))


def use_session(session: Session) -> Session:
    """Let a session be that of this process."""
    process_state().session = session
    return session
