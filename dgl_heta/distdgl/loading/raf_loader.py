"""The base of all data loaders on a meta-partitioned graph.

All trainers of a group step together: the seeds of a step are those of every trainer, and each
trainer samples its machine's relations for all of them, from its disk. What comes out is as
without dgl-heta: input nodes, the trainer's own seeds, blocks.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from dgl_heta.distdgl.blocks.dgl_block import PlainBlock, tell
from dgl_heta.distdgl.blocks.raf_block import RafBlock
from dgl_heta.distdgl.loading.group_sampling import SampledBatch, sample_blocks
from dgl_heta.distdgl.loading.loader_arguments import LoaderOptions
from dgl_heta.distdgl.loading.sampled_relations import check_types, loader_scope
from dgl_heta.distdgl.loading.script_sampler import Fanouts
from dgl_heta.distdgl.loading.step_plan import agree_on_steps
from dgl_heta.distdgl.loading.typed_ids import gather_seeds
from dgl_heta.distdgl.modules.script_blocks import make_blocks
from dgl_heta.distdgl.proof import script_proof
from dgl_heta.distdgl.proof.recording import recorder
from dgl_heta.distdgl.proof.script_setting import Step
from dgl_heta.distdgl.session import Session
from dgl_heta.distdgl.store.masked_store import masked_store
from dgl_heta.distdgl.watchdog import watchdog
from dgl_heta.sampling.blocks import MiniBatch, forget_reads
from dgl_heta.sampling.sampler import NeighborSampler

Sample = tuple[dict[str, Tensor], dict[str, Tensor], list[RafBlock | PlainBlock]]
"""Input nodes and own seeds by type (ids, int64), and blocks, input layer first."""


class RafLoader:
    """A data loader's steps, in which all trainers take part.

    Parameters
    ----------
    session : of this trainer.
    fanouts : what is sampled around the seeds.
    seeds : how many this trainer has.
    ntypes : node types of the seeds, where they are known.

    Attributes
    ----------
    kind : of the loader, which all trainers must have alike.
    seeds : how many this trainer has.
    plan : of the steps.

    Raises
    ------
    InputError
        More layers than the partition has hops, nodes of another type, or a trainer that has not
        a seed for every step.
    """

    kind = 0

    def __init__(self, session: Session, fanouts: Fanouts, options: LoaderOptions, seeds: int,
                 ntypes: Iterable[str] = ()) -> None:
        layers = fanouts.layers
        check_types(session, ntypes, len(layers))
        session.connect()
        self._session, self.options, self.seeds = session, options, seeds
        self._scope = loader_scope(session, ntypes, len(layers))
        self._source = session.sources.serving(options.num_workers)
        self.plan = agree_on_steps(session, options, seeds, [
            _checksum(self._source.name, self._source.settings, fanouts.mask), self.kind,
            int(self._scope.planned), *(fanout for layer in layers for fanout in (
                layer.values() if isinstance(layer, dict) else [layer]))])
        self._store = session.store if fanouts.mask is None else masked_store(
            session.store, fanouts.mask, session.edge_columns(fanouts.mask))
        self.sampler = NeighborSampler(
            self._store, self._scope.sampling, layers, self.plan.seed,
            threads=session.settings.train.sampling_threads or torch.get_num_threads(),
            remote_states=False, together=True)
        self._epoch = -1
        self._step = 0

    def __len__(self) -> int:
        return len(self.plan)

    def _begin_pass(self) -> None:
        """Begin a pass over the loader, on all trainers."""
        self._close_pass()
        self._epoch += 1
        self._step = 0
        session = self._session
        session.groups.agree("the epoch of a data loader, and whether all states are complete",
                      [self.plan.loader, self._epoch, int(session.all_complete)])
        # A script may evaluate by other modules: what trainers agreed on is asked anew.
        session.groups.agreed.clear()
        if (recording := recorder()) is not None:
            recording.start_pass(session)

    def _begin_step(self) -> None:
        """Begin a step; StopIteration at the end of the pass."""
        recording = recorder()
        if self._step >= len(self) or (recording is not None and recording.ends_pass(self._step)):
            self._end_pass()
            raise StopIteration
        self._take_step()

    def _take_step(self) -> None:
        session = self._session
        if session.world.size > 1:
            # For the watchdog, which says at which step of which loader a trainer waits.
            watchdog().take((self.plan.loader, self._epoch, self._step))
        self._step += 1

    def _end_pass(self) -> None:
        if not torch.is_grad_enabled():  # else batches may be in the script's hands
            self._session.scope.end()
        self._session.merges.check_earlier()
        self._close_pass()
        watchdog().end_pass()

    def _close_pass(self) -> None:
        """Give back what a pass uses, which the script may have left early."""

    def _key(self) -> int:
        """Return the key that samples of the step under way follow from."""
        return self.plan.sampling_key(self._epoch, self._step - 1)

    def _hand_out(self, sampled: SampledBatch) -> Sample:
        """Return what a script is given of a batch, and tell the session of it."""
        session, batch = self._session, sampled.batch
        # A batch norm that was wrapped after this batch was sampled wants all states complete.
        if session.all_complete:
            forget_reads(batch.blocks)
        # Before blocks are made: the last batch's reductions are checked first, its exchange ends.
        session.begin(batch.blocks)
        # From here on the tensors of ids are known as this batch's: rows of a DistEmbedding are
        # read by them, and divided among the trainers that have the batch.
        levels = session.batch_ids.hand_out(batch, sampled.sources, session.world.rank)
        # Every node type is a key, as in DGL, though a machine may have no relation from it.
        inputs = {t: levels[0].get(t, torch.empty(0, dtype=torch.int64))
                  for t in session.store.schema.node_types}
        seeds = {t: ids for t, ids in levels[-1].items() if len(ids)}
        blocks = make_blocks(session, batch, levels, self._scope.planned)
        if session.reference:
            tell(blocks, self._seeds_with_raf(seeds))
        if (recording := recorder()) is not None:
            recording.begin_batch(inputs, seeds)
        proved = script_proof.handed_out(self._step_to_prove(sampled), session, batch, blocks)
        session.scope.begin(batch, (inputs, *blocks), proved)
        return inputs, seeds, blocks

    def _step_to_prove(self, sampled: SampledBatch) -> Step:
        session, excluded = self._session, sampled.batch.excluded
        sampler = self.sampler

        def sample(seeds: Sequence[Mapping[str, np.ndarray]]) -> MiniBatch:
            # The session's group while it proves, not today's: its bytes are counted apart.
            return sample_blocks(session, sampler, sampled.key, session.group, seeds, excluded)

        return Step(sample, self.plan.seed, self._epoch, self._step - 1, len(self), sampled.key,
                    self._scope.planned)

    def _seeds_with_raf(self, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what `all_seeds` would give with RAF, in reference mode; all trainers call it."""
        session, targets = self._session, self._scope.targets
        every = gather_seeds(session.world, targets, own)
        rank = session.world.rank
        ranks = [rank, *(partner for partner in session.partners if partner != rank)]
        return {t: torch.cat([every[trainer][t] for trainer in ranks]) for t in targets}


def _checksum(*values: object) -> int:
    """Return a number of values that trainers compare, of any kinds."""
    return zlib.crc32(" ".join(map(repr, values)).encode())
