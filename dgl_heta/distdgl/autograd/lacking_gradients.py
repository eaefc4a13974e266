"""Zeros for gradients that a trainer has no part of, where a script averages by itself.

Under RAF a machine has gradients of the parameters of its own relations. A script may sum those
that are there (`if p.grad is not None: all_reduce(p.grad)`), which in plain DGL are the same on all
trainers. Here each would leave out others, and gradients of different parameters would be added up.
So when a backward pass ends that nobody averages, the trainers of a group tell each other which
parameters they have parts for, and who has none for another's parameter gets zeros.

Parameters have no names that trainers have in common, but trainers make their models alike. So
parameters are numbered as they come into modules. What a number stands for is compared before it
is used: shapes and first values are the same on all trainers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils.weak import WeakIdKeyDictionary

from dgl_heta.comm.collectives import Comm
from dgl_heta.distdgl.autograd.partial_gradients import is_part, mark, parts, whole
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.state import state_of

_BITS = 32
_CAUSE = "control"
_VALUES = 8
"""So many values of a parameter are compared."""
_Look = tuple[list[int], list[float]]
"""The shape of a parameter, and its first values."""


class ParameterNumbers:
    """Numbers of the parameters of modules, the same on all trainers that make modules alike."""

    def __init__(self) -> None:
        # Of places and not of parameters: `module.to(…)` may put others there.
        self._places: Any = WeakIdKeyDictionary()  # module → name → number
        self._next = 0
        self._hook = register_module_parameter_registration_hook(self._came)

    def close(self) -> None:
        self._hook.remove()

    def _came(self, module: nn.Module, name: str, parameter: Tensor) -> None:
        if name not in self._places.get(module, {}):
            self._add(module, name)

    def _add(self, module: nn.Module, name: str) -> None:
        self._places.setdefault(module, {})[name] = self._next
        self._next += 1

    def begin(self) -> None:
        """Let numbers go on at a place that is the same on all trainers, also if one of them has
        made modules of its own; all trainers call it."""
        self._next = ((self._next >> _BITS) + 1) << _BITS

    def renumber(self, module: nn.Module) -> range:
        """Number a module's parameters again, at such a place; those of a copy have no number.
        Returns the numbers."""
        self.begin()
        first = self._next
        for part in module.modules():
            for name in part._parameters:
                self._add(part, name)
        return range(first, self._next)

    def parameters(self) -> dict[int, Tensor]:
        """Return the parameters that are there, by number, the largest number first."""
        there = {number: module._parameters.get(name) for module, names in self._places.items()
                 for name, number in names.items()}
        return {number: parameter for number, parameter in sorted(there.items(), reverse=True)
                if parameter is not None}


class LackingGradients:
    """The zeros that one trainer was given, since it has opened a graph.

    Attributes
    ----------
    same : numbers that stand for the same on all trainers.
    """

    def __init__(self) -> None:
        state_of(ParameterNumbers).begin()
        # Of models of before, which may be gone on other trainers.
        self._old = {id(p.grad): p.grad for p in parts()}
        self.same: set[int] = set()
        self._zeros: list[tuple[Tensor, Tensor]] = []  # parameters and their gradients

    def fill(self, group: Comm) -> None:
        """Give parameters zeros for a gradient that another trainer has a part of; all trainers of
        the group call it.

        Raises
        ------
        HetaError
            Trainers have gradients of different parameters, and cannot tell each other of which.
        """
        parameters = state_of(ParameterNumbers).parameters()
        numbers = {id(p): number for number, p in parameters.items()}  # of several the first
        own = [(numbers.get(id(p)), p) for p in parts() if id(p.grad) not in self._old]
        named = sorted((number, _is_sparse(p)) for number, p in own if number is not None)
        unknown = sorted(_look(p) for number, p in own if number is None)
        # Every trainer sends it, also one without any part: the others wait for what it has.
        every = group.all_gather_json([named, unknown], _CAUSE)
        of_each = [dict(pairs) for pairs, _ in every]
        sparse = {number: is_sparse for of in of_each for number, is_sparse in of.items()}
        lacking = sorted(number for number in sparse if not all(number in of for of in of_each))
        self._compare([n for n in lacking if n not in self.same], parameters, group)
        if not all(_alike(of, unknown) for _, of in every):
            refuse("gradients of unknown parameters")
        for number in lacking:
            parameter = parameters.get(number)  # None: of a model that is gone here
            if parameter is not None and parameter.grad is None:
                parameter.grad = _zeros(parameter, sparse[number])
                mark(parameter)
                self._zeros.append((parameter, parameter.grad))

    def _compare(self, new: list[int], parameters: dict[int, Tensor], group: Comm) -> None:
        """Check that numbers stand for the same parameters on all trainers."""
        if not new:  # on all trainers alike, as it follows from what all have sent
            return
        own = [_look(parameters[n]) if n in parameters else None for n in new]
        for looks in zip(*group.all_gather_json(own, _CAUSE)):
            # One that a trainer does not have may have another number there.
            if None in looks or not all(_alike([look], [looks[0]]) for look in looks):
                refuse("gradients of unknown parameters")
        self.same.update(new)

    def drop(self) -> None:
        """Take zeros away that nobody has used, before another backward pass: averages go by who
        has a gradient."""
        for parameter, zeros in self._zeros:
            if parameter.grad is zeros and is_part(zeros) and not (
                    zeros._nnz() if zeros.is_sparse else whole(zeros).any()):
                parameter.grad = None
        self._zeros.clear()


def _is_sparse(parameter: Tensor) -> bool:
    return parameter.grad is not None and parameter.grad.layout != torch.strided


def _zeros(parameter: Tensor, sparse: bool) -> Tensor:
    """Return a gradient of zeros, as of an nn.Embedding where it is sparse."""
    if not sparse:
        return torch.zeros_like(parameter)
    ids = torch.empty((1, 0), dtype=torch.int64, device=parameter.device)
    return torch.sparse_coo_tensor(ids, parameter.new_empty((0, *parameter.shape[1:])),
                                   parameter.shape)


def _look(parameter: Tensor) -> _Look:
    first = parameter.detach().reshape(-1)[:_VALUES].double()
    return list(parameter.shape), first.tolist()


def _alike(some: list[_Look], others: list[_Look]) -> bool:
    """Return whether parameters look the same, up to rounding."""
    return len(some) == len(others) and all(
        a[0] == b[0] and np.allclose(a[1], b[1], 1e-3, 1e-6, equal_nan=True)
        for a, b in zip(some, others))
