"""Conditions that make two runs of a script comparable, the same in both.

Dropout is the identity: its draws are over rows, which the runs have in different orders. Batch and
instance norms use running statistics: those of a batch are over the rows of a machine. Parameters
and embeddings that are all zeros get small numbers, because zeros agree with anything.
"""

from __future__ import annotations

import gc
import os
import random
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import dgl
import numpy as np
import torch
from dgl.distributed import DistEmbedding, DistTensor, role
from dgl.distributed.optim.pytorch.sparse_optim import DistSparseGradOptimizer
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dgl_heta.distdgl.session import Session, current

SIZE = 0.1
"""Largest of the numbers that stand in for zeros."""
_DROPOUTS = ("dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d",
             "feature_alpha_dropout")
_IN_TORCH = ("dropout", "dropout_", "alpha_dropout", "alpha_dropout_", "feature_dropout",
             "feature_dropout_", "feature_alpha_dropout", "feature_alpha_dropout_")


def seed_all(number: int) -> None:
    """Seed every generator, for a script that does not seed its own."""
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)
    dgl.seed(number)


def ranks_of_the_launch() -> None:
    """Let DistDGL number trainers as RANK does.

    It numbers those of a machine by their ports, which are others in each run, and splits nodes by
    its own number.
    """
    for name in ("get_trainer_rank", "get_global_rank"):
        setattr(role, name, _launched_rank(getattr(role, name)))


def _launched_rank(original: Callable[[], int]) -> Callable[[], int]:
    def rank() -> int:
        if role.get_role() == "default" and not role.IS_STANDALONE and "RANK" in os.environ:
            return int(os.environ["RANK"])
        return original()
    return rank


def in_double() -> None:
    """Let a script compute in double precision, where it names no other itself.

    Modules are made so, node data are read so, and `float()` is `double()`. Rows of DistEmbeddings
    stay in single precision, but what a script gets of them is double.
    """
    torch.set_default_dtype(torch.float64)
    setattr(torch, "FloatTensor", torch.DoubleTensor)  # noqa: B010  # GATConv's parameters
    Tensor.float = Tensor.double  # type: ignore[method-assign]
    DistEmbedding.__call__ = _doubled(DistEmbedding.__call__, lambda _: True)
    DistTensor.__getitem__ = _doubled(DistTensor.__getitem__, _of_the_graph)
    DistSparseGradOptimizer.step = _in_single(DistSparseGradOptimizer.step)


def _doubled(original: Callable[..., Tensor], meant: Callable[[Any], bool]
             ) -> Callable[..., Tensor]:
    def read(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        rows = original(self, *args, **kwargs)
        return rows.double() if rows.is_floating_point() and meant(self) else rows
    return read


def _in_single(original: Callable[..., None]) -> Callable[..., None]:
    """Return a step in single precision.

    DGL's sparse optimizers make tensors of the default dtype, and take them for singles.
    """
    def step(self: Any) -> None:
        torch.set_default_dtype(torch.float32)
        try:
            original(self)
        finally:
            torch.set_default_dtype(torch.float64)
    return step


def _of_the_graph(tensor: Any) -> bool:
    """Return whether a DistTensor is node data of the graph; others are written to as they are."""
    session = current()
    return session is not None and session.stored(tensor._name) is not None


def without_randomness() -> None:
    """Make dropout the identity and norms those of running statistics, in this process."""
    functional: Any = nn.functional
    for name in _DROPOUTS:
        setattr(functional, name, _identity)
    for name in _IN_TORCH:
        setattr(torch, name, _identity)
    functional.batch_norm = functional.instance_norm = _by_running_statistics


def _identity(input: Tensor, *_: Any, **__: Any) -> Tensor:
    return input


def _by_running_statistics(input: Tensor, running_mean: Tensor | None = None,
                           running_var: Tensor | None = None, weight: Tensor | None = None,
                           bias: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
    """Normalize as batch_norm does in evaluation; without statistics by mean 0 and variance 1."""
    width = input.shape[1] if input.dim() > 1 else input.shape[0]
    mean = input.new_zeros(width) if running_mean is None else running_mean
    variance = input.new_ones(width) if running_var is None else running_var
    return torch.batch_norm(input, weight, bias, mean, variance, False, 0.0, 1e-5, False)


def is_norm(module: nn.Module) -> bool:
    """Return whether a module uses a batch's statistics where it is trained."""
    return isinstance(module, nn.modules.batchnorm._NormBase)


def fill_parameters(named: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Give parameters that are all zeros numbers that depend on their names alone."""
    for name, parameter in named:
        if (is_lazy(parameter) or not parameter.numel() or not parameter.is_floating_point()
                or bool(parameter.detach().any())):
            continue
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        noise = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            parameter.copy_((2 * noise - 1) * SIZE)


def fill_embeddings(session: Session) -> None:
    """Give DistEmbeddings that are all zeros numbers that depend on node ids alone.

    Each machine fills the rows that it owns, in shared memory. All trainers call it alike.
    """
    if os.environ.get("LOCAL_RANK", "0") == "0":
        for embedding in gc.get_objects():
            if type(embedding) is DistEmbedding:
                _fill(embedding)
    session.world.barrier()


def _fill(embedding: Any) -> None:
    rows = embedding._tensor.local_partition.numpy()
    if rows.any():
        return
    policy = embedding._tensor.part_policy
    book = policy.partition_book
    name = policy.policy_str.partition("~")[2]
    low = sum(len(book.partid2nids(part, name)) for part in range(book.partid))
    for start in range(0, len(rows), 1 << 16):
        part = rows[start:start + (1 << 16)]
        numbers = np.arange(part.size, dtype=np.float64) + (low + start) * part.shape[1]
        part[:] = (SIZE * np.sin(numbers * 12.9898 + 1.0)).reshape(part.shape)
