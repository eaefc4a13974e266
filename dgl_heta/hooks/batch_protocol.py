"""The protocol of a source of batches: hook `dgl_heta_batch_sources`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dgl_heta.hooks.provider import Provider

if TYPE_CHECKING:
    import torch

Batch = TypeVar("Batch")


@dataclass(frozen=True)
class Stage:
    """One part of making a batch; each batch goes through all stages of a pass in turn.

    Attributes
    ----------
    name : "sample", the first: given a step's number, 0 … steps - 1, it makes the batch of the
        step, always the same one. "fetch", in `dgl-heta train` alone: it reads what no step changes
        (rows of static features) into the batch that it is given, copies it to the device, and
        returns it.
    run : does it, on any thread. Stages may run side by side, and the first one for several batches
        at once unless they are made `in_order`; others for one batch after the other in the order
        of the steps: caches count and replace rows in this order.
    """

    name: str
    run: Callable[[Any], Any]


class BatchSource(Provider, Protocol):
    """Where a worker's mini-batches come from; hook `dgl_heta_batch_sources`.

    It decides when batches are made, and by which threads; what is in them is the sampler's.
    """

    ahead: bool = True
    """True if batches are made while training computes. Reports then say what training waited for.
    """
    serves_workers: bool = False
    """True if it is used in scripts that ask for sampling workers (`num_workers` of a data loader,
    `--num-samplers`), where `train.batches` is not set."""
    serves_gpus: bool = False
    """True if it is what `train.batches = auto` means where `dgl-heta train` computes on GPUs."""
    in_scripts: bool = True
    """False if `dgl-heta train` alone can use it; scripts refuse it."""

    @abstractmethod
    def batches(self, steps: int, sample: Callable[[int], Batch], in_order: bool
                ) -> Iterator[Batch]:
        """The batches of an epoch, one for each step in order; closed early if a script stops.

        Parameters
        ----------
        steps : number of steps.
        sample : makes the batch of a step, 0 … steps - 1, always the same one; it may be called
            ahead of time and on other threads.
        in_order : whether workers agree on their batches when they are sampled. Then `sample` must
            be called for one step after the other, by one thread at a time, and when closed after
            so many batches, a source must have called for the same steps on all workers.
        """

    def staged(self, steps: int, stages: Sequence[Stage], in_order: bool) -> Iterator[Any]:
        """The batches of an epoch, each through all stages; this is what is called.

        By default, `batches` for the first stage, and the other stages when a batch is asked for.
        A source that overrides it can run all stages ahead; rows that steps change are in none of
        them. Steps and order are as for `batches`.
        """
        batches = self.batches(steps, stages[0].run, in_order)
        try:
            for batch in batches:
                for stage in stages[1:]:
                    batch = stage.run(batch)
                yield batch
        finally:
            getattr(batches, "close", lambda: None)()

    def side_by_side(self, in_order: bool) -> int:
        """How many batches are sampled at the same time, 1 by default. Where it is one, several
        threads sample its relations (`train.sampling_threads`). `in_order` is as for `batches`."""
        return 1

    def layers(self, sampler: Any, device: torch.device) -> Any:
        """What samples the layers of batches in `dgl-heta train` in place of the CPU's cores, the
        same blocks bit for bit; None, the default, for the cores.

        Parameters
        ----------
        sampler : the worker's `NeighborSampler`, with its scope, graph, fanouts and weights; or
            `SeedBlocks`, of a model that samples nothing.
        device : where the worker computes.

        Returns
        -------
        None, or a :class:`dgl_heta.sampling.relation_samples.LayerSampling`.

        Raises
        ------
        InputError
            It cannot sample what this sampler does.
        """
        return None
