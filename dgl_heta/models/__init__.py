"""Models, written for one process over blocks; distribution is applied from outside."""

from __future__ import annotations

from dgl_heta.hooks.protocols import ModelProvider
from dgl_heta.models.han import HANLayer
from dgl_heta.models.hgnn import HGNN, HGNNLayer
from dgl_heta.models.hgt import HGTLayer
from dgl_heta.models.model_names import BlockModel, find_model
from dgl_heta.models.relations import Edges, Relations
from dgl_heta.models.rgat import RGATLayer
from dgl_heta.models.rgcn import RGCNLayer
from dgl_heta.models.spec import ModelSpec, slot

__all__ = ["HGNN", "BlockModel", "Edges", "HANLayer", "HGNNLayer", "HGTLayer", "ModelProvider",
           "ModelSpec", "RGATLayer", "RGCNLayer", "Relations", "find_model", "slot"]
