"""A PyG model in a training loop of one's own: merged over its group, its gradients averaged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dgl_heta import HetaError, InputError, Partition
from dgl_heta.tools import DistributedModel
from dgl_heta_pyg.data import PartitionData, part_of
from dgl_heta_pyg.loader import rows_of
from dgl_heta_pyg.merging import Merging, check_rows, hops_of


class DistributedPyG(DistributedModel):
    """A PyG model on one worker, in step with the others; :func:`distribute` makes one.

    It is called as the model is, with what a batch of :class:`~dgl_heta_pyg.NeighborLoader` has.
    `save`, `resume` and the averages of gradients are those of
    :class:`dgl_heta.training.distributed.DistributedModel`.
    """

    def __init__(self, module: nn.Module, part: Partition) -> None:
        merging = Merging(module, part.group) if part.group.size > 1 else None
        super().__init__(module, part, merged=merging or module)
        self._merging = [merging]  # in a list: parameters of it are those of `module`
        self._rows = rows_of(part)
        self._backward.actions.append(self._backward_came)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns, complete for the own seeds. All workers must call it alike."""
        (merging,) = self._merging
        hops = None if merging is None else hops_of((args, kwargs))
        if merging is not None and hops is None:
            raise InputError("the distributed model was called without the edges of a batch of "
                             "dgl_heta_pyg.NeighborLoader; give it batch.x_dict and "
                             "batch.edge_index_dict as they are")
        train = self.begin()
        if train and hops is not None and self.part.learnable.counts and (
                self._rows.last is not hops):
            raise HetaError("another batch was read after this one, so this one's learnable rows "
                            "collect no gradients; iterate over batches that are not trained on "
                            "under torch.no_grad()")
        with self.precision():
            outputs = (self.module(*args, **kwargs) if merging is None
                       else merging(hops, args, kwargs))
        if train:
            self._rows.waits = True
            self.await_backward(_tensors(outputs))
        return outputs

    def _backward_came(self) -> None:
        self._rows.waits = False


def distribute(model: nn.Module, data: PartitionData | Partition) -> DistributedPyG:
    """A PyG model that trains on a partition, in step with the other workers.

    On several workers its convolutions are merged: those of HeteroConv, of models that `to_hetero`
    made, and those that are called by themselves, with the edges of one relation each; and HGTConv.
    On one worker it computes what it computed before. All workers have the parameters of worker 0
    afterwards.

    Parameters
    ----------
    model : takes `batch.x_dict`, `batch.edge_index_dict` and the like; returns rows of nodes, in
        any tuple, list or dict. Layers whose sizes it is to find by itself (-1) find them now.
    data : from :func:`dgl_heta_pyg.open_partition` or :func:`dgl_heta.open_partition`.

    Raises
    ------
    InputError
        A module takes the nodes of a batch together (batch normalisation); a layer without sizes.
    """
    part = part_of(data)
    if part.group.size > 1:
        check_rows(model)
    if any(map(is_lazy, model.parameters())):
        _find_sizes(model, part)
    return DistributedPyG(model, part)


@torch.no_grad()
def _find_sizes(model: nn.Module, part: Partition) -> None:
    """Let layers of size -1 meet a node of each type, without edges."""
    widths, none = part.spec(1).input_dims, torch.empty((2, 0), dtype=torch.int64)
    dtype = next((p.dtype for p in model.parameters()), torch.float32)
    modes = {module: module.training for module in model.modules()}
    model.eval()  # so that nothing is counted, such as a batch norm's averages
    try:
        model({t: torch.zeros(1, widths[t], dtype=dtype) for t in part.schema.node_types},
              {tuple(r): none for r in part.schema.relations})
    except Exception as error:
        raise InputError(f"{type(model).__name__} has layers without a size (-1) and cannot be "
                         f"called with x_dict and edge_index_dict alone ({error}); give the sizes, "
                         "or call it once, before distribute, with a node of each type") from error
    finally:
        for module, mode in modes.items():
            module.training = mode


def _tensors(outputs: Any) -> Iterator[Tensor]:
    if isinstance(outputs, Tensor):
        yield outputs
    elif isinstance(outputs, dict):
        yield from _tensors(list(outputs.values()))
    elif isinstance(outputs, list | tuple):
        for x in outputs:
            yield from _tensors(x)
