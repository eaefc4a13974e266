"""The session: what a trainer process knows of the meta-partitioned graph that it trains on.

It holds one object for each thing that a trainer keeps, and owns what belongs to no such object.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from dgl_heta.comm.collectives import Comm, Traffic
from dgl_heta.comm.exchange_dtype import wire_dtype
from dgl_heta.distdgl.autograd.collective_order import CollectiveOrder
from dgl_heta.distdgl.autograd.lacking_gradients import LackingGradients
from dgl_heta.distdgl.autograd.loss_scope import LossScope
from dgl_heta.distdgl.batch_ids import IdRegistry
from dgl_heta.distdgl.batch_sources import BatchSources
from dgl_heta.distdgl.due_merges import DueMerges
from dgl_heta.distdgl.groups import Groups
from dgl_heta.distdgl.reference import Reference
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.state import process_state, without_effect
from dgl_heta.distdgl.store.edge_ends import EdgeEnds
from dgl_heta.errors import InputError, several
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import graph_names
from dgl_heta.hooks.manager import Plugins
from dgl_heta.hooks.protocols import ModuleWrapper
from dgl_heta.nn import use_kernel
from dgl_heta.partition.directory import open_partition
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.shared_rows import share_rows_as_partitioned
from dgl_heta.raf.backward_end import BackwardEnd
from dgl_heta.raf.chain import Chain
from dgl_heta.raf.exchange import GroupExchange
from dgl_heta.sampling.blocks import Block
from dgl_heta.settings import Settings

log = logging.getLogger("dgl_heta")

Column = Callable[[], np.ndarray]
"""Reads a value for each edge of a relation."""


class Session:
    """One meta-partitioned graph in one trainer.

    Parameters
    ----------
    part_config : part_config JSON of the partition.
    part : the partition of this machine.
    settings, plugins : which providers, with which settings.

    Attributes
    ----------
    store, plan : of the partition; the plan as the wrapper wants it.
    wrapper : keeps parameters equal on all trainers.
    groups : who trains together, and what they have agreed on.
    sources : where batches come from.
    batch_ids : which ids a script was given, and for whose seeds they are.
    merges : which merges of relations the batches need.
    order : the order of collectives in backward passes.
    scope : what may come to a loss.
    lacking : zeros for gradients that nobody averages, where another trainer has a part.
    exchange : of partial aggregations and rows.
    backward : tells when a backward pass ends.
    edge_ends : sources and destinations of edges, by their ids.
    server_column : reads edge data from DistDGL's servers, by relation and name; None where the
        graph has none of that name.
    embedded : node types that the script has had DistEmbeddings of.
    replicas : tables whose rows trainers have copies of, by names in the key-value store.
    parallels : modules that the script wrapped.
    loaders : the number of data loaders so far.
    all_complete : whether states of all seeds are complete on all machines, read or not.
    watch, reading : what looks at calls at steps to prove, and what is given rows of tables
        meanwhile (:mod:`dgl_heta.distdgl.proof.script_proof`).

    Raises
    ------
    InputError
        The partition is damaged, a provider is unknown, or a setting has no meaning here.
    """

    def __init__(self, part_config: str, part: int, settings: Settings, plugins: Plugins) -> None:
        _check_settings(settings)
        self.settings, self.part, self.part_config = settings, part, part_config
        plan = self._open_partition()
        self._choose_providers(plugins)
        # The wrapper may make another plan (`ddp`: every machine has all relations), but what
        # plain DGL's trainers had in common follows from the one that was stored.
        self._stored_groups = plan.groups
        self.plan: Plan = self.wrapper.plan(plan)
        self._make_state(plugins)

    def _open_partition(self) -> Plan:
        """Open the store and check its files; return the plan, with delegation or without."""
        self.store, plan = open_partition(Path(self.part_config).parent)
        self.store.check_untimed("scripts of DistDGL and GraphBolt go")
        self.store.check_unscaled()
        if self.store.staged is not None:
            self.store.staged.check(self.part, self.store.directory)
        if self.settings.run.verify and self._verifies():
            plan.verify()
            partition = plan.partitions[self.part]
            self.store.verify(partition.node_types, partition.relations)
        self._stored_names = {(t, given): stored for t in self.store.schema.node_types
                              for stored, given in graph_names(self.store.manifest, t).items()}
        plan = share_rows_as_partitioned(plan, self.settings, self.part_config)
        if plan.shared is not None:
            self.store.check_here(plan.partitions[self.part].relations, plan.shared.reason)
        if cut := [r for r, own in plan.ownership.items() if own.hubs]:
            refuse("in-edges of a node that are cut", part_config=self.part_config,
                   relation=cut[0])
        return plan.for_scripts()

    def _choose_providers(self, plugins: Plugins) -> None:
        settings = self.settings
        self.wrapper: ModuleWrapper = (Reference() if self.reference else plugins.get(
            "module wrapper", settings.train.wrapper))
        # An unknown one is an error now.
        plugins.get("cache policy", settings.cache.policy_on(False))
        # The kernel is the process's, as dgl_heta.nn knows no session.
        self._kernel_before = use_kernel(plugins.kernel(settings.train.kernel, gpu=False))

    def _make_state(self, plugins: Plugins) -> None:
        settings, run = self.settings, self.settings.run
        # Runs that are compared send numbers as they are: rounded ones would differ.
        exact = self.reference or run.record is not None
        self.groups = Groups(self.part, run.timeout_s,
                             None if exact else wire_dtype(settings.train.exchange_dtype))
        self.sources = BatchSources(settings, plugins, self.groups, self.say)
        self.backward = BackwardEnd()
        self.order = CollectiveOrder(self.group, self.backward)
        self.exchange = GroupExchange(self.group, self.order.chain_of)
        self.scope = LossScope(self)
        self.order.before = self.scope.check
        self.order.averaging = lambda chain: [
            parallel.module for parallel in self.parallels if parallel.averages_after(chain)]
        self.lacking = LackingGradients()
        self.backward.actions.append(self._fill_gradients)
        self.merges = DueMerges(self.store.schema, self.groups, self.order, run.timeout_s)
        self.batch_ids = IdRegistry(self._say_of_group)
        self.edge_ends = EdgeEnds(self.store)
        self.server_column: Callable[[Relation, str], Column | None] = lambda relation, name: None
        # Not the tables: DGL keeps rows, and states of optimizers, as long as the script does. Nor
        # are types forgotten with them: trainers exchange by this, and free memory at other times.
        self.embedded: set[str] = set()
        self.replicas: Any = weakref.WeakValueDictionary()
        self.parallels: list[Any] = []
        self.loaders = 0
        self.all_complete = settings.train.complete_states
        self.watch: Any = None
        self.reading: Any = None
        self._connected = False
        self._said: set[str] = set()

    def _fill_gradients(self) -> None:
        """Give parameters zeros for gradients that others have, after a backward pass through a
        forward pass that nobody averages: on all trainers, which have run through the same ones."""
        if self.group.size > 1 and not all(map(self.order.averaging, self.order.passed)):
            self.lacking.fill(self.group)

    def _verifies(self) -> bool:
        """Return whether to compare checksums: its machine's other trainers read the same files,
        and need this one."""
        return os.environ.get("LOCAL_RANK", "0") == "0"

    def _count_trainers(self) -> int:
        """Return how many trainers there are."""
        from dgl.distributed import role

        return int(role.get_num_trainers())

    @property
    def world(self) -> Comm:
        """All trainers."""
        return self.groups.world

    @property
    def group(self) -> Comm:
        """The trainers of this one's group."""
        return self.groups.group

    @property
    def traffic(self) -> Traffic:
        """The bytes that this trainer has sent."""
        return self.groups.traffic

    @property
    def reference(self) -> bool:
        """True if the script runs as with plain DGL (:mod:`dgl_heta.distdgl.reference`)."""
        return self.settings.run.reference

    @property
    def partition(self) -> Any:
        """This machine's part of the plan."""
        return self.plan.partitions[self.part]

    @property
    def partners(self) -> list[int]:
        """Ranks of the trainers that the stored plan has in a group with this one."""
        return self.groups.partners(next(
            members for members in self._stored_groups if self.part in members))

    def connect(self) -> None:
        """Form the groups; every trainer calls it at the same point (the first data loader)."""
        if self._connected:
            return
        trainers = self._count_trainers()
        if trainers > 1 and not dist.is_initialized():
            refuse("no process group")
        if trainers > 1:
            if dist.get_world_size() != trainers:
                raise InputError(f"torch.distributed has {dist.get_world_size()} ranks, but "
                                 f"DistDGL has {several(trainers, 'trainer')}; they must be equal")
            self.groups.form(self.plan, by_machine=self.settings.train.learnable == "exact")
        elif self.plan.num_parts != 1:
            raise InputError(f"the partition has {self.plan.num_parts} parts, but there is one "
                             "trainer; start one machine per part (`dgl-heta launch`)")
        # Both were made for a trainer by itself, when the DistGraph was: a script may ask a graph
        # before it calls init_process_group.
        self.order.group = self.group
        self.exchange = GroupExchange(self.group, self.order.chain_of)
        # Only now is it known which trainer is the first, who says it.
        if unused := without_effect(self.settings):
            self.say(unused)
        self._connected = True

    def begin(self, blocks: Sequence[Block]) -> None:
        """Note that a loader hands out a batch."""
        self.merges.begin(blocks)
        self.exchange.begin()
        self.order.begin()

    @contextmanager
    def replayed(self, world: Comm, group: Comm, chain: Chain) -> Iterator[None]:
        """Let the body compute a step again, on other communicators and with a chain of its own.

        The run does not see it: its forward passes stay open, its backward pass is not told of,
        and what the trainers agreed on is as it was.
        """
        before = self.exchange, self.order
        self.exchange = GroupExchange(group)
        self.exchange.chain = chain
        self.order = CollectiveOrder(group, BackwardEnd())
        self.order.checking = False
        try:
            with self.groups.replaced(world, group), self.backward.unheard():
                yield
        finally:
            self.exchange, self.order = before

    def say(self, text: str) -> None:
        """Log a line on the first trainer, once a run."""
        if text not in self._said and self.world.rank == 0:
            log.warning("%s", text)
        self._said.add(text)

    def _say_of_group(self, text: str) -> None:
        """Log a line as :meth:`say`, where other trainers have the same batches."""
        if self.group.size > 1:
            self.say(text)

    def edge_columns(self, name: str) -> dict[Relation, Column]:
        """Return what reads edge data of this name that a script has made, by relation: such as
        DistDGL's servers have and the store has not."""
        columns = {item.relation: self.server_column(item.relation, name)
                   for item in self.store.manifest.relations if name not in item.arrays}
        return {relation: read for relation, read in columns.items() if read is not None}

    def stored(self, name: str) -> tuple[str, str] | None:
        """Return node type and name of the array that the store has for a DistTensor, by its name
        in the key-value store; None if it has none."""
        ntype, _, array = name.removeprefix("node~").partition("~")
        array = self._stored_names.get((ntype, array), array)
        there = name.startswith("node~") and self.store.has_array(ntype, array)
        return (ntype, array) if there else None

    def rows(self, name: str) -> np.ndarray | None:
        """Return the stored array of such a DistTensor, if it is on this machine."""
        stored = self.stored(name)
        return self.store.held_array(*stored) if stored and self.store.is_here(*stored) else None

    def users(self, ntype: str) -> list[int]:
        """Return the ranks of the trainers that use a node type's features."""
        return sorted(r for m in self.plan.users(ntype) for r in self.groups.trainers[m])

    def close(self) -> None:
        """Look at no batch any longer, and leave the process as it was before the session."""
        self.scope.end()
        use_kernel(self._kernel_before)
        self.groups.agreed.clear()


def _check_settings(settings: Settings) -> None:
    """
    Raises
    ------
    InputError
        A setting has no meaning for a script.
    """
    train = settings.train
    if not train.seed_states:
        refuse("train.seed_states")
    if train.dtype != "float32":
        refuse("train.dtype", dtype=train.dtype)
    if train.trainers != 1:
        refuse("train.trainers", trainers=train.trainers)


def current() -> Session | None:
    """Return the session of this process, if it has opened a meta-partitioned graph."""
    session: Session | None = process_state().session
    return session


def open_session(part_config: str, part: int, settings: Settings, plugins: Plugins) -> Session:
    """Open the session of this process; the last one that was opened counts."""
    return use_session(Session(part_config, part, settings, plugins))


def leave_session() -> None:
    """Have no session any longer: the graph that was opened last is none of ours."""
    state = process_state()
    if state.session is not None:
        state.session.close()
        state.session = None


def use_session(session: Session) -> Session:
    """Let a session be that of this process."""
    state = process_state()
    if state.session is not None and state.session is not session:
        # The kernel that the process had before the first of them is put back at the end.
        session._kernel_before = state.session._kernel_before
    state.session = session
    return session
