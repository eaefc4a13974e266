"""DistEmbedding and DGL's sparse optimizers on a meta-partitioned graph.

The arithmetic is DGL's: a row's gradient is the mean over the times that trainers have read it, in
batches or for themselves (:mod:`..batch_ids`), and Adam counts steps per row. Rows live
where DGL keeps them, in the key-value store's shared memory on the machine that owns them. A type
whose rows only one trainer's batches have never leaves it, but for what others read for themselves.
For one that several use, `train.learnable` says how:

- `exact`: rows are pulled from their owners, gradients go to them: the same as DistDGL. Gradients
  of a machine's trainers are summed before they leave it. Rows are pulled by each trainer for
  itself: a script reads when it likes, and to share what was pulled trainers would have to wait for
  each other, at reads that the others may not make.
- `replica`: every user trains copies of the rows that it does not own; only a row's first value
  moves (Heta §4). A read through `emb.weight` gives the owner's row.
"""

from __future__ import annotations

from typing import Any

import torch
from dgl.distributed.dist_tensor import DistTensor
from torch import Tensor

from dgl_heta.distdgl.autograd.loss_scope import weakly
from dgl_heta.distdgl.batch_ids import bare
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.rows.embedding_steps import step
from dgl_heta.distdgl.rows.embedding_table import Table
from dgl_heta.distdgl.rows.uneven_steps import Optimizers
from dgl_heta.distdgl.session import current
from dgl_heta.distdgl.state import state_of
from dgl_heta.distdgl.versions import homes
from dgl_heta.system.patching import patch_all, plain


def call(embedding: Any, index: Tensor, device: torch.device) -> Tensor:
    """Return rows of an embedding by node id, as `DistEmbedding.__call__` does.

    With gradients enabled they are leaves of autograd, and DGL's trace of the embedding has them
    until the next step of a sparse optimizer, with the trainers whose batches have each row.
    """
    table: Table = embedding.heta
    reading = table.session.reading
    if reading is not None:  # a copy of a module, for a proof
        given: Tensor = reading(embedding.name, bare(index), table.owners_rows(index).to(device))
        return given
    with table.session.scope.aside():
        rows = table.read(index).to(device, non_blocking=True)
    if torch.is_grad_enabled():
        # Leaves, as in DGL: a sparse optimizer reads their `grad` from the trace. No gradient of
        # rows is reduced by a module wrapper.
        rows.requires_grad_()
        rows.heta_rows = True  # type: ignore[attr-defined]
        with table.session.scope.aside():
            readers = table.session.batch_ids.readers(table.ntype, index)
        if readers is not None:
            # Rows of other trainers' batches are read here, too. A loss of theirs alone is theirs.
            table.session.scope.learn(rows, table.ntype, readers.others)
        elif table.session.scope.computed(bare(index)):
            refuse("computed ids", ntype=table.ntype)
        embedding._trace.append((bare(index).to("cpu"), rows, readers))
    table.session.scope.read(rows, bare(index), weakly(
        table, lambda table, ids: table.read(ids).to(device)))
    return rows


def _open(embedding: Any) -> None:
    """Take over a new DistEmbedding, if it is of nodes of the meta-partitioned graph."""
    session, policy = current(), embedding._tensor.part_policy
    # Of edges, and of node types that a script makes up, all is DGL's own; so it is in reference
    # mode, which shows what DGL computes.
    embedding.heta = None
    if session is None or session.reference or not policy.policy_str.startswith("node~"):
        return
    embedding.heta = Table(session, embedding, policy.policy_str.removeprefix("node~"),
                           plain(DistTensor.__getitem__))
    session.embedded.add(embedding.heta.ntype)


def _init(original: Any) -> Any:
    def __init__(self: Any, num_embeddings: int, embedding_dim: int, name: Any = None,
                 init_func: Any = None, part_policy: Any = None) -> None:
        original(self, num_embeddings, embedding_dim, name, init_func, part_policy)
        _open(self)
    return __init__


def _call(original: Any) -> Any:
    def __call__(self: Any, idx: Any, device: Any = None) -> Any:
        device = torch.device("cpu") if device is None else device
        if getattr(self, "heta", None) is None:
            return original(self, idx, device)
        return call(self, idx, device)
    return __call__


def _step(original: Any) -> Any:
    def sparse_step(self: Any) -> None:
        of_graph = [e for e in self._params if getattr(e, "heta", None) is not None]
        if not of_graph:
            optimizers = state_of(Optimizers)
            optimizers.step(self) if optimizers.apart else original(self)
            return
        clean, others = self._clean_grad, [e for e in self._params if e not in of_graph]
        step(self, of_graph)
        if others:
            # DGL's own step is for those of other graphs alone. It reads and resets
            # `_clean_grad`, which ours has reset.
            everything, self._params, self._clean_grad = self._params, others, clean
            try:
                original(self)
            finally:
                self._params = everything
    return sparse_step


def _init_optimizer(original: Any) -> Any:
    def __init__(self: Any, params: Any, lr: float) -> None:
        original(self, params, lr)
        state_of(Optimizers).add(self)
    return __init__


PATCHES = (
    *patch_all(homes("DistEmbedding", "__init__"), _init, "learnable features"),
    *patch_all(homes("DistEmbedding", "__call__"), _call, "learnable features"),
    *patch_all(homes("DistSparseGradOptimizer", "__init__"), _init_optimizer,
               "steps of trainers that have unequal numbers of them"),
    *patch_all(homes("DistSparseGradOptimizer", "step"), _step,
               "learnable features; steps of trainers that have unequal numbers of them"),
)
