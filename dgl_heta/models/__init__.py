"""Models, written for one process over blocks; distribution is applied from outside."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import nn

from dgl_heta.errors import InputError
from dgl_heta.hooks.protocols import ModelProvider
from dgl_heta.models.han import HANLayer
from dgl_heta.models.hgnn import HGNN, HGNNLayer
from dgl_heta.models.hgt import HGTLayer
from dgl_heta.models.nars import NARS, SubsetModel
from dgl_heta.models.relations import Edges, Relations
from dgl_heta.models.rgat import RGATLayer
from dgl_heta.models.rgcn import RGCNLayer
from dgl_heta.models.sehgnn import PathModel, SeHGNN
from dgl_heta.models.spec import ModelSpec, slot

if TYPE_CHECKING:
    from dgl_heta.hooks.manager import Plugins

__all__ = ["HGNN", "NARS", "BlockModel", "Edges", "HANLayer", "HGNNLayer", "HGTLayer",
           "ModelProvider", "ModelSpec", "PathModel", "RGATLayer", "RGCNLayer", "Relations",
           "SeHGNN", "SubsetModel", "find_model", "slot"]


class BlockModel(ModelProvider):
    """A provider of models that are layers of one class between projections and heads."""

    def __init__(self, name: str, layer: Callable[[ModelSpec], nn.Module]) -> None:
        self.name, self._layer = name, layer

    def build(self, spec: ModelSpec) -> nn.Module:
        return HGNN(spec, self._layer)


def find_model(plugins: Plugins, name: str) -> ModelProvider:
    """A model by the name of its provider, or by `module:attribute`.

    The attribute is a provider, or what makes a layer from a :class:`ModelSpec`, as a subclass
    of :class:`HGNNLayer` does.
    """
    if ":" not in name:
        provider: ModelProvider = plugins.get("model", name)
        return provider
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a module beside the data, as for `python -m`
    try:
        chosen = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(f"model.name '{name}' cannot be imported: {error}") from None
    return chosen if hasattr(chosen, "build") else BlockModel(name, chosen)
