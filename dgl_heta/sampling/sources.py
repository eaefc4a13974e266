"""Built-in sources of batches (hook `dgl_heta_batch_sources`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dgl_heta.hooks.batch_protocol import Batch, BatchSource


class OnDemand(BatchSource):
    """The source `on-demand`: a batch is sampled when training asks for it."""

    name = "on-demand"
    ahead = False

    def batches(self, steps: int, sample: Callable[[int], Batch], in_order: bool
                ) -> Iterator[Batch]:
        return map(sample, range(steps))


class Auto(OnDemand):
    """The source `auto`: training on GPUs takes one that serves them, if there is such a source;
    else batches are sampled on demand."""

    name = "auto"
