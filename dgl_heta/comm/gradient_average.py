"""Averaging the gradients of dense parameters over workers.

Under RAF most parameters belong to a relation, and a relation to one worker: it alone has their
gradients. Such a gradient is sent to the others as it is, which is half of what an all-reduce
moves; those that several workers have are all-reduced. The averages are the same: 1 / n Σ_w g_w
over all n workers, in which a worker without a gradient counts as zero.

Bytes a worker sends, by the cause `gradients`: of P numbers that it alone has, (n - 1) P; of Q that
several have, 2 (n - 1) / n Q.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from dgl_heta.comm.collectives import Comm
from dgl_heta.errors import InputError

NOBODY, SEVERAL = -1, -2


class GradientAverage:
    """Averages gradients step by step; all workers call it alike, with the same parameters.

    It learns whose a parameter is from the gradients of earlier steps. A worker that gets a
    gradient of what was another's says so in the step itself, so nothing is left out.

    Parameters
    ----------
    in_place : whether averages are written into gradients that are there, see :func:`give`.

    Attributes
    ----------
    owners : per parameter the worker that alone has had a gradient of it, or NOBODY or SEVERAL so
        far. Sums of three or more workers are rounded by how they are laid out, and that follows
        from the owners: with those of an earlier step, the next one is equal to the last bit.
    """

    def __init__(self, in_place: bool = False) -> None:
        self.owners: list[int] = []
        self._in_place = in_place

    def __call__(self, parameters: Iterable[nn.Parameter], world: Comm) -> None:
        """Average in place. A parameter that no worker used keeps no gradient.

        Raises
        ------
        InputError
            A gradient is sparse: averaged, it would be as large as the table.
        """
        params = [p for p in parameters if p.requires_grad]
        if world.size == 1 or not params:
            return
        _check_dense(params)
        if self._in_place:
            _separate(params)
        # A script may freeze or add parameters between steps. What was learned of owners is then
        # about others, and every worker forgets it alike.
        if len(self.owners) != len(params):
            self.owners = [NOBODY] * len(params)
        owners = self.owners
        # Nothing can be saved, so who has which goes with the sums, in one collective in place of
        # two.
        if all(owner == SEVERAL for owner in owners):
            self._all_reduce(params, world)
            return
        # From here on the workers decide by what all of them have seen: `users` is the same
        # everywhere, and so are the collectives that follow.
        users = self._exchange(params, world)
        rest = []
        for index, (owner, used) in enumerate(zip(owners, users)):
            if len(used) > 1 or (owner >= 0 and any(rank != owner for rank in used)):
                owners[index] = SEVERAL
            elif used and owner == NOBODY:
                owners[index] = used[0]
            # Gradients that came from somebody who was not known to be alone: their sums have to be
            # made.
            if used and (owner < 0 or used != [owner]):
                rest.append(index)
        self._reduce([params[index] for index in rest], world)
        for param, used in zip(params, users):
            if not used:
                param.grad = None

    def _exchange(self, params: Sequence[nn.Parameter], world: Comm) -> list[list[int]]:
        """Send and take in the gradients that one worker alone has; returns who has which."""
        sizes = [sum(p.numel() for p, owner in zip(params, self.owners) if owner == rank)
                 for rank in range(world.size)]
        flags = _flags(params)
        own = [p for p, owner in zip(params, self.owners) if owner == world.rank]
        gathered = world.all_gather_rows(
            torch.cat([flags, *(_flat(p).to(flags.dtype) for p in own)]),
            [len(params) + size for size in sizes], "gradients")
        # The mean over all workers, though one alone has it: the others count as zeros.
        pieces = (gathered / world.size).split([len(params) + size for size in sizes])
        everyone = torch.stack([piece[:len(params)] for piece in pieces], 1).tolist()
        users = [[rank for rank, has in enumerate(of) if has] for of in everyone]
        reached = [len(params)] * world.size
        for param, owner, used in zip(params, self.owners, users):
            if owner < 0:
                continue
            start, reached[owner] = reached[owner], reached[owner] + param.numel()
            if used == [owner]:
                give(param, pieces[owner][start:reached[owner]].view_as(param), self._in_place)
        return users

    def _reduce(self, params: Sequence[nn.Parameter], world: Comm) -> None:
        if not params:
            return
        flat = torch.cat([_flat(p) for p in params])  # of the dtype that all of them promote to
        self._spread(params, world.all_reduce(flat, cause="gradients") / world.size)

    def _all_reduce(self, params: Sequence[nn.Parameter], world: Comm) -> None:
        """All at once, with who has which."""
        flat = world.all_reduce(torch.cat([*map(_flat, params), _flags(params)]),
                                cause="gradients")
        self._spread(params, flat[:-len(params)] / world.size)
        for param, count in zip(params, flat[-len(params):].tolist()):
            if not count:
                param.grad = None

    def _spread(self, params: Sequence[nn.Parameter], flat: Tensor) -> None:
        for param, piece in zip(params, flat.split([p.numel() for p in params])):
            give(param, piece.view_as(param), self._in_place)


def _check_dense(params: Sequence[nn.Parameter]) -> None:
    for param in params:
        if param.grad is not None and param.grad.layout != torch.strided:
            raise InputError(
                f"a parameter of shape {tuple(param.shape)} has a sparse gradient; keep rows in "
                "dgl.distributed.DistEmbedding or torch.nn.Embedding, whose rows move alone, or "
                "use sparse=False")


def _separate(params: Sequence[nn.Parameter]) -> None:
    """Let each parameter have a gradient of its own: autograd gives both summands of a sum the same
    tensor, and two averages cannot be written into it."""
    storages = set[int]()
    for param in params:
        if param.grad is not None and param.numel():
            if param.grad.data_ptr() in storages:
                param.grad = param.grad.clone()
            storages.add(param.grad.data_ptr())


def _flags(params: Sequence[nn.Parameter]) -> Tensor:
    """Whether each parameter has a gradient, as numbers beside the gradients."""
    device = params[0].device
    flags = torch.tensor([p.grad is not None for p in params], dtype=_dtype(params),
                         pin_memory=device.type == "cuda")
    return flags.to(device, non_blocking=True)


def _flat(param: nn.Parameter) -> Tensor:
    return param.grad.reshape(-1) if param.grad is not None else param.new_zeros(param.numel())


def give(param: Tensor, average: Tensor, in_place: bool) -> None:
    """Let a parameter have an average for its gradient, in the memory of the gradient that is there
    if `in_place`, as DistributedDataParallel does: a script may have made gradients views of one
    tensor, which it clips and zeroes as a whole."""
    grad = param.grad
    if in_place and grad is not None and grad.layout == average.layout == torch.strided and (
            not grad.requires_grad):  # as with create_graph
        grad.copy_(average)
    else:
        param.grad = average.to(param.dtype)


def _dtype(params: Sequence[nn.Parameter]) -> torch.dtype:
    """One that holds all gradients, the same on all workers whichever of them they have."""
    return functools.reduce(torch.promote_types, (p.dtype for p in params))


def average_rows(table: Tensor, world: Comm, in_place: bool = False) -> None:
    """Average the gradient of an embedding over all workers; only rows that have one move. With
    `in_place` as of :func:`give`."""
    if world.size == 1:
        return
    grad = table.grad
    ids, values = _rows(table, grad)
    ones = [1] * world.size
    own = torch.tensor([[len(ids), int(grad is not None), int(grad is not None and
                                                               grad.is_sparse)]])
    every = world.all_gather_rows(own, ones, "gradients")
    sizes, used, sparse = every[:, 0].tolist(), bool(every[:, 1].any()), bool(every[:, 2].any())
    if not used:
        return
    # Both gathers run on all workers, also on those without a row: somebody has one.
    ids = world.all_gather_rows(ids, sizes, "gradients")
    values = world.all_gather_rows(values, sizes, "gradients") / world.size
    if sparse:
        table.grad = torch.sparse_coo_tensor(ids[None], values, table.shape).coalesce()
    else:
        give(table, torch.zeros_like(table).index_add_(0, ids, values), in_place)


def _rows(table: Tensor, grad: Tensor | None) -> tuple[Tensor, Tensor]:
    if grad is None:
        return (torch.empty(0, dtype=torch.int64, device=table.device),
                table.new_empty((0, *table.shape[1:])))
    if grad.is_sparse:
        whole = grad.coalesce()
        return whole.indices()[0].contiguous(), whole.values()
    ids = grad.abs().sum(dim=tuple(range(1, grad.dim()))).nonzero()[:, 0]
    return ids, grad[ids]
