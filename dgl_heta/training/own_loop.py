"""What a training loop of one's own has of a partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dgl_heta.errors import InputError
from dgl_heta.features.row_optimizers import AdamSettings
from dgl_heta.graph.schema import Schema
from dgl_heta.models import ModelSpec
from dgl_heta.sampling.sampler import Fanout
from dgl_heta.training.loader import Ids, LinkLoader, Loader
from dgl_heta.training.setup import model_spec
from dgl_heta.training.worker_partition import WorkerPartition


class Partition(WorkerPartition):
    """A partition, open for a training loop of one's own; :func:`dgl_heta.open_partition` opens it.

    Attributes
    ----------
    schema : node types, relations and their sizes.
    targets : the node types that seeds are of.
    """

    @property
    def schema(self) -> Schema:
        return self.store.schema

    @property
    def targets(self) -> tuple[str, ...]:
        return self.plan.targets

    def spec(self, outputs: int | Mapping[str, int] | None = None) -> ModelSpec:
        """What a model of this package is built from; see :class:`~dgl_heta.ModelSpec`.

        Parameters
        ----------
        outputs : numbers that the model returns for a node, per target type; default: those that
            the labels need, or `model.hidden` where links are predicted.
        """
        if outputs is None and self.task.kind == "link":
            outputs = self.link_task.outputs
        elif outputs is None:
            outputs = {t: self.labels(t).outputs for t in self.targets}
        elif isinstance(outputs, int):
            outputs = dict.fromkeys(self.targets, outputs)
        return model_spec(self.store, self.settings, outputs, self.plan)

    def loader(self, seeds: str | Ids | Mapping[str, Ids], fanouts: Sequence[Fanout],
               batch_size: int = 1024, shuffle: bool | None = None, seed: int | None = None,
               drop_last: bool = False) -> Loader:
        """Batches of nodes, or of links, with their sampled neighbourhoods.

        Parameters
        ----------
        seeds : "train", "val" or "test", for the nodes of the mask; where links are predicted
            (`task.relation`), for those of the split, which :attr:`Batch.links` has. Or ids of
            nodes of the target type, each once; with several target types, ids per type.
        fanouts : in-edges sampled per relation and layer, input side first; -1 for all. Of a layer
            a number, or one for each relation: those that are not there have none.
        batch_size : seeds, or links, of each worker in a step.
        shuffle : whether each epoch has an order and draws of its own; default: for "train". Else
            all iterations give the same batches.
        seed : of the order and of the draws; default: `train.seed`, which is that of links.
        drop_last : whether to leave out a last step with fewer seeds than the others.

        Raises
        ------
        InputError
            Another number of fanouts than the partition has hops, seeds of another type than its
            targets or that there are not, another loader on another worker.
        """
        if isinstance(seeds, str) and self.task.kind == "link":
            return LinkLoader(self, seeds, fanouts, batch_size, shuffle, seed, drop_last)
        return Loader(self, seeds, fanouts, batch_size, shuffle, seed, drop_last)

    def row_optimizer(self, lr: float | None = None) -> RowOptimizer:
        """The optimizer of learnable rows; `lr` is by default `train.sparse_lr`."""
        return RowOptimizer(self, lr)


class RowOptimizer:
    """Adam on the learnable rows that a batch has read, and on no others.

    Steps are those of `torch.optim.SparseAdam`; gradients are averaged over the workers.
    """

    def __init__(self, part: WorkerPartition, lr: float | None) -> None:
        self._learnable = part.learnable
        if lr is not None:
            self.lr = lr

    @property
    def lr(self) -> float:
        """The learning rate; a schedule may set it between steps."""
        return self._learnable.adam.lr

    @lr.setter
    def lr(self, lr: float) -> None:
        if not lr > 0:
            raise InputError(f"lr is {lr}; it must be more than 0")
        self._learnable.adam = AdamSettings(lr)

    def step(self) -> None:
        """Take a step; all workers call it, after each backward pass."""
        self._learnable.update()
