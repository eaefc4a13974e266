"""DistNodeDataLoader on a meta-partitioned graph: which loader it is, and batches made ahead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from dgl_heta.distdgl.loading.collated_loader import (
    CollatedNodeLoader,
    SamplerProxy,
    dgl_collators,
)
from dgl_heta.distdgl.loading.group_sampling import PassSampling
from dgl_heta.distdgl.loading.loader_arguments import LoaderOptions, read_options
from dgl_heta.distdgl.loading.raf_loader import RafLoader, Sample
from dgl_heta.distdgl.loading.script_sampler import BY_ITSELF, Fanouts, fanouts_of, way_of
from dgl_heta.distdgl.loading.seed_loader import SeedLoader
from dgl_heta.distdgl.loading.typed_ids import TypedIds, check_once
from dgl_heta.distdgl.session import Session
from dgl_heta.errors import HetaError, InputError
from dgl_heta.sampling.stages import Making


class NodeLoader(RafLoader):
    """Batches of nodes, all of which are known when a pass begins.

    So every trainer of a group knows the seeds of all, and batches can be made ahead of time, as
    the batch source says.

    Parameters
    ----------
    nids : target node type → ids (int64) of this trainer's nodes.
    fanouts, options : as for :class:`RafLoader`.

    Raises
    ------
    InputError
        A node is not in the graph, or as :class:`RafLoader`.
    """

    def __init__(self, session: Session, nids: Mapping[str, Tensor], fanouts: Fanouts,
                 options: LoaderOptions) -> None:
        super().__init__(session, fanouts, options, sum(map(len, nids.values())), nids)
        self._check_ids(nids)
        group = session.group
        self._ranks = group.ranks if session.world.size > 1 else (0,)
        self._nodes = TypedIds.of(self._scope.targets, nids.items()).gathered(
            group, [self.plan.counts[rank] for rank in self._ranks])
        # Looked for once: nodes that are there once cannot be twice in a batch, however shuffled.
        self._repeated = any(nodes.repeats() for nodes in self._nodes)
        self._making = Making(("sample",))
        self._batches: Iterator[Any] = iter(())
        self._open = ExitStack()

    def _check_ids(self, nids: Mapping[str, Tensor]) -> None:
        for ntype, ids in nids.items():
            count = self._session.store.schema.node_counts[ntype]
            if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < count:
                raise InputError(f"the data loader's nodes of type '{ntype}' reach from "
                                 f"{int(ids.min())} to {int(ids.max())}, but the graph has {count}")

    def start(self) -> None:
        """Begin an epoch: shuffle as each trainer's own generator says."""
        self._begin_pass()
        session = self._session
        if self.options.shuffle:
            self._shuffle()
        if self._repeated:
            self._check_batches()
        # Where trainers exchange rows while they sample, they must do so in one order of steps,
        # and by process groups that no other pass uses: it may be sampled on another thread.
        in_order = session.plan.exchanges_while_sampling or (bool(session.embedded) and any(
            len(members) > 1 for members in session.plan.groups))
        group = (self._open.enter_context(session.groups.sampling.one(session.world)) if in_order
                 else session.group)
        sampling = PassSampling(
            session, self.sampler, [*self._nodes], [self.plan.sizes[rank] for rank in self._ranks],
            group, self.plan.sampling_key(self._epoch, 0))
        self._batches = self._making.start(self._source, len(self), in_order,
                                           {"sample": sampling.sample})

    def _shuffle(self) -> None:
        """Put the nodes of every trainer into the order that its generator gives."""
        group = self._session.group
        state = torch.get_rng_state()
        states = group.all_gather_rows(state[None], [1] * group.size, "seeds")
        for trainer, nodes in enumerate(self._nodes):
            generator = torch.Generator()
            generator.set_state(states[trainer])
            self._nodes[trainer] = nodes[torch.randperm(len(nodes), generator=generator)]
        # DGL's own loader draws the order from the script's generator, which goes on after it.
        torch.randperm(len(self._nodes[group.rank]))

    def _check_batches(self) -> None:
        """Check that no node is twice in one of a trainer's batches of this pass.

        Raises
        ------
        InputError
            One is.
        """
        for rank, nodes in zip(self._ranks, self._nodes):
            sizes = self.plan.sizes[rank]
            for step, rows in enumerate(nodes.rows[:sum(sizes)].split([*sizes])):
                for ntype, ids in TypedIds(nodes.types, rows).by_type().items():
                    check_once(ids, ntype, f"batch {step + 1} of trainer {rank}")

    def next(self) -> Sample:
        """Return the next batch; StopIteration at the end of the epoch."""
        self._begin_step()
        sampled = self._making.next(self._batches)
        if sampled is None:
            raise HetaError(f"batch source '{self._source.name}' gave {self._step - 1} batches "
                            f"for {len(self)} steps; it must give one for each")
        return self._hand_out(sampled)

    def _close_pass(self) -> None:
        """Let no more be sampled, and give the pass's process group back."""
        getattr(self._batches, "close", lambda: None)()
        self._batches = iter(())
        self._open.close()
        if self._source.ahead:
            self._session.sources.count(**self._making.seconds["sample"])
        self._making.reset()


def open_node_loader(session: Session, graph: Any, nids: Any, sampler: Any, device: Any,
                     given: Mapping[str, Any]) -> RafLoader | SeedLoader | None:
    """Return the loader of a DistNodeDataLoader on a meta-partitioned graph.

    None where the script samples by itself, so that DGL's own does.
    """
    way = way_of(sampler)
    if way == "own":
        session.say(BY_ITSELF)
        return None
    options = read_options("DistNodeDataLoader", device, given)
    if not isinstance(nids, Mapping):
        nids = {session.plan.targets[0]: nids}
    nids = {t: torch.as_tensor(ids, dtype=torch.int64) for t, ids in nids.items()}
    fanouts = fanouts_of(sampler, session)
    if way == "derived":
        collator = dgl_collators().NodeCollator(graph, nids, SamplerProxy(sampler))
        return CollatedNodeLoader(session, collator, fanouts, options, nids)
    if not fanouts.layers:
        return SeedLoader(nids, options)
    return NodeLoader(session, nids, fanouts, options)
