"""Models that predict links: what they give of the ends of a link is made ready for its score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dgl_heta.hooks.protocols import ModelProvider
from dgl_heta.models.spec import ModelSpec


class DistMult(ModelProvider):
    """A provider of models whose links are scored by DistMult (Yang et al. 2015,
    https://arxiv.org/abs/1412.6575): sum_i h_u[i] r[i] h_v[i], with a vector r of the relation.

    Parameters
    ----------
    of : the provider of the model that gives the states h.
    src, dst : node types at the ends of the relation.
    """

    def __init__(self, of: ModelProvider, src: str, dst: str) -> None:
        self.name, self.precomputed = of.name, getattr(of, "precomputed", None)
        self._of, self._src, self._dst = of, src, dst

    def build(self, spec: ModelSpec) -> nn.Module:
        return Linked(self._of.build(spec), self._src, self._dst, spec.num_classes[self._src])


class Linked(nn.Module):
    """A model and a relation's vector, which the states of sources are multiplied by.

    Where both ends are of one type its outputs are both, side by side: as sources, and as
    destinations. So the score is always the dot product of the first `width` columns of a source
    with the last ones of a destination. `relation` begins with ones: as the dot product.
    """

    def __init__(self, model: nn.Module, src: str, dst: str, width: int) -> None:
        super().__init__()
        self.model, self.src, self.dst = model, src, dst
        self.relation = nn.Parameter(torch.ones(width))

    def decoder(self) -> dict[str, str]:
        """What :func:`decoded` is to be given, as `model.json` has it."""
        return {"decoder": "distmult", "src": self.src, "dst": self.dst}

    def forward(self, *inputs: Any) -> dict[str, Tensor]:
        outputs: Mapping[str, Tensor] = self.model(*inputs)
        scaled = outputs[self.src] * self.relation
        if self.src == self.dst:
            scaled = torch.cat([scaled, outputs[self.src]], 1)
        return {**outputs, self.src: scaled}


def decoded(provider: ModelProvider, decoder: str, src: str, dst: str) -> ModelProvider:
    """A provider whose models score links by `decoder`: dot or distmult."""
    return DistMult(provider, src, dst) if decoder == "distmult" else provider


def without_decoder(model: nn.Module) -> nn.Module:
    """The model that gives the states."""
    inner: nn.Module = model.model if isinstance(model, Linked) else model
    return inner
