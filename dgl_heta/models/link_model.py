"""Models that predict links: the states of a link's ends, and what their score needs beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dgl_heta.hooks.protocols import ModelProvider
from dgl_heta.models.spec import ModelSpec


class DistMult(ModelProvider):
    """A provider of models whose links are scored by DistMult (Yang et al. 2015,
    https://arxiv.org/abs/1412.6575): sum_i h_u[i] r[i] h_v[i], with a vector r per relation.

    Parameters
    ----------
    of : the provider of the model that gives the states h.
    relations : that are predicted.
    """

    def __init__(self, of: ModelProvider, relations: Sequence[str]) -> None:
        self.name, self.precomputed = of.name, getattr(of, "precomputed", None)
        self.reads = getattr(of, "reads", None)
        self._of, self._relations = of, relations

    def build(self, spec: ModelSpec) -> nn.Module:
        return Linked(self._of.build(spec), self._relations, max(spec.num_classes.values()))


class Linked(nn.Module):
    """A model of states, and a vector for each relation that is predicted.

    `relation` (relations, width) begins with ones, as the dot product; the task multiplies states
    by it.
    """

    def __init__(self, model: nn.Module, relations: Sequence[str], width: int) -> None:
        super().__init__()
        self.model, self._relations = model, list(relations)
        self.relation = nn.Parameter(torch.ones(len(relations), width))

    def decoder(self) -> dict[str, Any]:
        """Return the arguments for :func:`decoded`, as `model.json` has them."""
        return {"decoder": "distmult", "relations": self._relations}

    def forward(self, *inputs: Any) -> dict[str, Tensor]:
        outputs: dict[str, Tensor] = self.model(*inputs)
        return outputs


def decoded(provider: ModelProvider, decoder: str, relations: Sequence[str]) -> ModelProvider:
    """A provider whose models score links of `relations` by `decoder`: dot or distmult."""
    return DistMult(provider, relations) if decoder == "distmult" else provider


def without_decoder(model: nn.Module) -> nn.Module:
    """The model that gives the states."""
    inner: nn.Module = model.model if isinstance(model, Linked) else model
    return inner
