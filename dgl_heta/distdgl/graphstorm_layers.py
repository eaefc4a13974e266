"""GraphStorm's layers on blocks of a meta-partitioned graph.

Its RGCN and RGAT layers merge relations by a HeteroGraphConv of GraphStorm's own. Its HGT layer
attends relation by relation on slices of the block, and takes the mean over relations by
multi_update_all. The attention of a relation is normalised over that relation's in-edges alone, so
it is a module of the relation, and the mean is a merge as any other. The rest of the layer is
GraphStorm's own `forward`, which is given a block without relations.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import dgl.function as fn
import torch
from dgl.nn.functional import edge_softmax
from torch import Tensor, nn

from dgl_heta.distdgl.hetero_convs import DGLS, register_hetero_conv
from dgl_heta.graph.schema import Relation


def register_convolutions(module: ModuleType) -> None:
    """GraphStorm's HeteroGraphConv was imported."""
    register_hetero_conv(module.HeteroGraphConv, keys="canonical")


def register_attention(module: ModuleType) -> None:
    """GraphStorm's HGT layer was imported."""
    layer: Any = module.HGTLayer
    layer.forward = _forward(layer.forward)


def _forward(original: Any) -> Any:
    """`HGTLayer.forward`; a layer with edge features has its own, and is refused by its edges."""
    @functools.wraps(original)
    def forward(self: Any, g: Any, h: Mapping[str, Tensor]) -> Any:
        return original(self, g if getattr(g, "heta_merge", None) is None else
                        _MergedBlock(self, g, h), h)
    return forward


class _MergedBlock:
    """A block as HGTLayer's `forward` is given it: it finds no relation to compute, and its
    multi_update_all gives the merge over all of them."""

    canonical_etypes: tuple[()] = ()

    def __init__(self, layer: nn.Module, block: Any, states: Mapping[str, Tensor]) -> None:
        self._layer, self._block, self._states = layer, block, states

    def multi_update_all(self, _: Any, cross_reducer: str) -> None:
        block = self._block
        own = {t: x[:block.num_dst_nodes(t)] for t, x in self._states.items()}
        merged = block.heta_merge(_attention_of(self._layer, cross_reducer),
                                  ({**self._states}, own), None, None, DGLS)
        for ntype, rows in merged.items():
            block.dstnodes[ntype].data["t"] = rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._block, name)


class _Attention:
    """The relations of an HGT layer, in the place of a HeteroGraphConv."""

    def __init__(self, layer: nn.Module, cross_reducer: str) -> None:
        self._layer, self.agg_fn = weakref.ref(layer), cross_reducer

    @property
    def training(self) -> bool:
        return self.layer.training

    @property
    def layer(self) -> Any:
        return self._layer()

    def parameters(self) -> Iterator[nn.Parameter]:
        parameters: Iterator[nn.Parameter] = self.layer.parameters()
        return parameters

    def _get_module(self, etype: tuple[str, str, str]) -> _Relation:
        if "_".join(etype) not in self.layer.relation_att:
            raise KeyError(etype)
        return _Relation(self.layer, Relation(*etype))


_attentions: weakref.WeakKeyDictionary[nn.Module, _Attention] = weakref.WeakKeyDictionary()


def _attention_of(layer: nn.Module, cross_reducer: str) -> _Attention:
    """One for each layer, as shapes are agreed on by it."""
    if layer not in _attentions:
        _attentions[layer] = _Attention(layer, cross_reducer)
    return _attentions[layer]


class _Relation:
    """The attention of one relation in an HGT layer, as a module of the relation."""

    def __init__(self, layer: nn.Module, relation: Relation) -> None:
        self.layer, self.relation = layer, relation

    def buffers(self) -> Any:
        return iter(())

    def modules(self) -> Any:
        return iter(())

    def __call__(self, graph: Any, rows: tuple[Tensor, Tensor]) -> Tensor:
        """The messages that each destination attends to, summed: (destinations, heads, width)."""
        layer, (sources, destinations) = self.layer, rows
        name = "_".join(self.relation)
        shape = (-1, layer.num_heads, layer.d_k)
        key = torch.einsum("nhi,hio->nho", layer.k_linears[self.relation.src](sources).view(shape),
                           layer.relation_att[name])
        value = torch.einsum("nhi,hio->nho",
                             layer.v_linears[self.relation.src](sources).view(shape),
                             layer.relation_msg[name])
        query = layer.q_linears[self.relation.dst](destinations).view(shape)
        with graph.local_scope():
            graph.srcdata.update({"key": key, "value": value})
            graph.dstdata["query"] = query
            graph.apply_edges(fn.v_dot_u("query", "key", "score"))
            scores = graph.edata["score"].sum(-1) * layer.relation_pri[name] / layer.sqrt_dk
            graph.edata["share"] = edge_softmax(graph, scores).unsqueeze(-1)
            graph.update_all(fn.u_mul_e("value", "share", "message"), fn.sum("message", "sum"))
            return graph.dstdata["sum"]
