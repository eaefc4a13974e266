"""Buffers of a wrapped module: all trainers have the same before a forward pass.

They are those of trainer 0, as with DistributedDataParallel's `broadcast_buffers`. Under RAF its
machine may have no row of some node type, though; a norm of that type's rows is then as it was on
trainer 0, and has learned on others. So running statistics are those of the first trainer on which
they have changed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dgl_heta.comm.collectives import Comm


class Buffers:
    """The buffers that a module has when it is wrapped, the same on all trainers then.

    Parameters
    ----------
    module : the script's.
    world : all trainers.
    of_parts : whether a trainer may have no row of a node type that others have rows of.
    """

    def __init__(self, module: nn.Module, world: Comm, of_parts: bool) -> None:
        self._module, self._world = module, world
        # By names, as a forward pass may assign them anew. One that comes later is none of them: a
        # relation's module, which runs on one machine, may have it there alone, and all trainers
        # must send the same.
        self._names = [name for name, _ in module.named_buffers()]
        norms = [f"{name}." if name else "" for name, part in module.named_modules() if of_parts
                 and isinstance(part, nn.modules.batchnorm._NormBase)]
        # In the order of the modules, which all trainers have in common.
        self._norms = [names for norm in norms if (names := [
            f"{norm}{end}" for end in ("running_mean", "running_var", "num_batches_tracked")
            if f"{norm}{end}" in self._names])]
        self._sent: dict[str, Tensor] = {}
        self._keep(dict(module.named_buffers()))

    def send(self) -> None:
        """Let all trainers have the same; all call it, before the same forward pass."""
        if not self._names or self._world.size == 1:
            return
        now = dict(self._module.named_buffers())
        sources = self._sources(now)
        for name in self._names:
            if name in now and now[name].numel():
                self._world.broadcast(now[name].data, "control", sources.get(name, 0))
        self._keep(now)

    def _sources(self, now: dict[str, Tensor]) -> dict[str, int]:
        """Return whose statistics count, by the names of buffers.

        Each trainer knows of its own alone, so they tell each other, in one message that all send
        if the module has a norm: here, before the buffers, where all of them are in any case.
        """
        if not self._norms:
            return {}
        rank, size = self._world.rank, self._world.size
        told = torch.tensor([rank if self._changed(names, now) else size for names in self._norms])
        first = self._world.all_reduce(told, "min", "control").tolist()
        return {name: rank for names, rank in zip(self._norms, first) if rank < size
                for name in names}

    def _changed(self, names: list[str], now: dict[str, Tensor]) -> bool:
        # Not by num_batches_tracked: a forward pass of no row counts, too.
        return any(name in now and not torch.equal(now[name], self._sent[name])
                   for name in names if name in self._sent)

    def _keep(self, now: dict[str, Tensor]) -> None:
        self._sent = {name: now[name].detach().clone() for names in self._norms for name in names
                      if name in now and now[name].is_floating_point()}
