"""Averaging models over workers, weighted by training nodes (CATGNN, §3.3).

The average of models W_1 … W_p with n_1 … n_p training nodes is Σ α_i W_i, α_i = n_i / Σ n_j. A
worker may have trained several of the models, or none: its own are merged where they are, so what
is sent does not depend on how many there are. Of w workers each sends 2 (w - 1) / w of a model's
bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dgl_heta import InputError

State = Mapping[str, Tensor]


class ModelAverage:
    """The weighted mean of models, which are added one by one; all workers call it alike.

    Numbers of floating point are averaged, running statistics of norms, too. Of others (how many
    batches BatchNorm has seen) the largest is taken. Sums are in double precision on a worker; they
    are sent as the model has its numbers, half precision in single.

    Parameters
    ----------
    like : a state with the names, shapes, dtypes and devices of the models; nothing is taken from
        its values. A worker that has no model needs it, too.
    """

    def __init__(self, like: State) -> None:
        self._like = like
        self._mean: dict[str, Tensor] = {}
        self.weight = 0.0

    def add(self, state: State, weight: float) -> None:
        """Add a model, which is copied, with its number of training nodes.

        Raises
        ------
        InputError
            A weight below 0, or a state of another model.
        """
        if not weight >= 0:
            raise InputError(f"a model's weight is {weight}; it is a number of training nodes")
        if {k: v.shape for k, v in state.items()} != {k: v.shape for k, v in self._like.items()}:
            raise InputError("models with other parameters cannot be averaged: their states differ "
                             "in names or shapes")
        if weight == 0:
            return
        self.weight += weight
        for name, value in state.items():
            own = value.detach()
            if own.is_complex():
                raise InputError(f"'{name}' has complex numbers, which are not averaged")
            before = self._mean.get(name)
            if not own.is_floating_point():
                self._mean[name] = own.clone() if before is None else torch.maximum(before, own)
            elif before is None:
                self._mean[name] = own.to(torch.float64, copy=True)
            else:
                before += (own.to(torch.float64) - before) * (weight / self.weight)

    def over(self, world: Any, cause: str = "gradients") -> dict[str, Tensor]:
        """The mean of all models that workers have added; the same numbers on all workers.

        Parameters
        ----------
        world : a `dgl_heta` Comm of all workers; its limit holds, and a worker that is gone is an
            error with its cause.
        cause : what the bytes that are sent are counted as.

        Returns
        -------
        A state as `like`; new tensors.

        Raises
        ------
        InputError
            No model has a training node, or workers have models of different sizes.
        """
        numbers = sum(value.numel() for value in self._like.values())
        every = world.all_gather_rows(
            torch.tensor([[self.weight, float(numbers)]], dtype=torch.float64),
            [1] * world.size, "control")
        if len(sizes := set(every[:, 1].tolist())) > 1:
            raise InputError("workers have models of different sizes, which cannot be averaged: "
                             f"{', '.join(str(int(size)) for size in sorted(sizes))} numbers")
        total = float(every[:, 0].sum())
        if not total:
            raise InputError("no worker has a training node, so there is no model to average")
        share, out = self.weight / total, {}
        for dtype, names in self._kinds().items():
            floating = dtype.is_floating_point
            sent = _promoted(dtype)
            flat = torch.cat([self._part(name, share, sent).reshape(-1) for name in names])
            flat = world.all_reduce(flat, "sum" if floating else "max", cause)
            pieces = flat.split([self._like[name].numel() for name in names])
            out.update({name: piece.view(self._like[name].shape).to(dtype, copy=True)
                        for name, piece in zip(names, pieces)})
        return {name: out[name] for name in self._like}

    def _kinds(self) -> dict[torch.dtype, list[str]]:
        """Names by dtype, so that each dtype is sent at once."""
        kinds: dict[torch.dtype, list[str]] = {}
        for name, value in self._like.items():
            kinds.setdefault(value.dtype, []).append(name)
        return kinds

    def _part(self, name: str, share: float, dtype: torch.dtype) -> Tensor:
        """This worker's summand; without a model the neutral one."""
        like, mean = self._like[name], self._mean.get(name)
        if mean is None:
            least = 0 if dtype.is_floating_point else torch.iinfo(dtype).min
            return torch.full(like.shape, least, dtype=dtype, device=like.device)
        return (mean * share if dtype.is_floating_point else mean).to(dtype)


def average_state(state: State, weight: float, world: Any, cause: str = "gradients"
                  ) -> dict[str, Tensor]:
    """The mean of one model of each worker: Σ α_i state_i; all workers call it alike.

    Parameters
    ----------
    state : the worker's own, e.g. a `state_dict()`.
    weight : its number of training nodes; 0 for a worker that has none.
    world, cause : as :meth:`ModelAverage.over`, which says what is raised, too.
    """
    average = ModelAverage(state)
    average.add(state, weight)
    return average.over(world, cause)


@functools.cache
def _promoted(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that numbers are sent in: float32 for half precision, bytes for bool."""
    if dtype == torch.bool:
        return torch.uint8
    if dtype in (torch.float16, torch.bfloat16):
        return torch.float32
    return dtype
