"""A PyG model in a training loop of one's own: merged over its group, its gradients averaged."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_flatten

from dgl_heta import InputError, Partition
from dgl_heta.tools import DistributedModel, GroupExchange
from dgl_heta_pyg.data import PartitionData, part_of
from dgl_heta_pyg.merging import Merging, check_rows
from dgl_heta_pyg.proof import HopProof
from dgl_heta_pyg.relation_edges import edges_in


class DistributedPyG(DistributedModel):
    """A PyG model on one worker, in step with the others; :func:`distribute` makes one.

    It is called as the model is, with what a batch has. All else is as of
    :class:`dgl_heta.training.distributed.DistributedModel`.
    """

    proved_by = HopProof

    def __init__(self, module: nn.Module, part: Partition) -> None:
        merging = (Merging(module, part.group, GroupExchange(part.group))
                   if part.group.size > 1 else None)
        super().__init__(module, part, merged=merging or module)
        self._merging = [merging]  # in a list: parameters of it are those of `module`

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns, complete for the own seeds. All workers must call it alike."""
        (merging,) = self._merging
        edges = edges_in((args, kwargs))
        origin = edges[0].origin if edges else None
        if merging is not None and origin is None:
            raise InputError("the distributed model was called without the edges of a batch of "
                             "dgl_heta_pyg.NeighborLoader; give it batch.x_dict and "
                             "batch.edge_index_dict as they are")
        train = self.begin()
        with self.precision():
            outputs = (merging(origin.hops, args, kwargs) if merging and origin
                       else self.module(*args, **kwargs))
        if train:
            rows = [x for x in tree_flatten(outputs)[0] if isinstance(x, Tensor)]
            if isinstance(self.proof, HopProof) and origin:
                self.proof.compare(self.module, origin, (args, kwargs), rows)
            self.await_backward(
                rows, origin.step.reads if origin else self.part.learnable.reads)
        return outputs


def distribute(model: nn.Module, data: PartitionData | Partition) -> DistributedPyG:
    """A PyG model that trains on a partition, in step with the other workers.

    On several workers its convolutions are merged (docs/pyg.md has a table); on one it computes
    what it computed before. All workers have the parameters of worker 0 afterwards.

    The model takes `batch.x_dict`, `batch.edge_index_dict` and the like, and returns rows of nodes,
    in any tuple, list or dict. Layers whose sizes it is to find by itself (-1) find them now.

    Raises
    ------
    InputError : a module takes the nodes of a batch together; a layer without sizes.
    """
    part = part_of(data)
    if part.group.size > 1:
        check_rows(model, part.schema.node_types)
    if any(map(is_lazy, model.parameters())):
        _find_sizes(model, part)
    return DistributedPyG(model, part)


def _find_sizes(model: nn.Module, part: Partition) -> None:
    """Let layers of size -1 meet a node of each type, without edges."""
    widths, none = part.spec(1).input_dims, torch.empty((2, 0), dtype=torch.int64)
    dtype = next((p.dtype for p in model.parameters()), torch.float32)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()  # so that nothing is counted, such as a batch norm's averages
    try:
        with torch.no_grad():
            model({t: torch.zeros(1, widths[t], dtype=dtype) for t in part.schema.node_types},
                  {tuple(r): none for r in part.schema.relations})
    except Exception as error:
        raise InputError(f"{type(model).__name__} has layers without a size (-1) and cannot be "
                         f"called with x_dict and edge_index_dict alone ({error}); give the sizes, "
                         "or call it once, before distribute, with a node of each type") from error
    finally:
        for module, mode in modes:
            module.training = mode
