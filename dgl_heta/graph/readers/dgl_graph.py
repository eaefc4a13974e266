"""A `dgl.DGLGraph` in memory, heterogeneous or homogeneous.

Node data `feat` (or the name given for a type, or else a type's only floating-point vector) are
the static features, `label` or `labels`
the labels; other node data are carried along under their own names. A homogeneous graph has
node type `_N` and relation `_N _E _N`, as DGL names them. Edges keep their ids.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dgl_heta.errors import InputError, listing, nearest
from dgl_heta.graph.readers.arrays import node_array, node_task
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import TRAIN_MASK, EdgeSource, GraphSource
from dgl_heta.system.optional import optional


def read_dgl_graph(graph: Any, name: str, target: str | None = None,
                   num_classes: int | None = None,
                   node_features: Mapping[str, str] | None = None) -> GraphSource:
    """Describe a DGLGraph. Edges and node data share memory with it where they can.

    Parameters
    ----------
    graph : the graph, on any device.
    name : name of the graph.
    target : node type to predict; without it, the only type with labels and a train mask.
    num_classes : number of classes; without it, the largest label plus one.
    node_features : node type to the name of the node data that are its features, for types
        where that is not `feat`.

    Raises
    ------
    InputError
        Not a DGLGraph, a block, an unknown type or name, or node data that cannot be stored.
    """
    check_graph(graph)
    node_counts = {ntype: int(graph.num_nodes(ntype)) for ntype in graph.ntypes}
    chosen = dict(node_features or {})
    for ntype in chosen:
        if ntype not in node_counts:
            raise InputError(
                f"node_features names node type '{ntype}', which is not in the graph; node types: "
                f"{listing(node_counts)}" + nearest(ntype, node_counts)
            )
    notes: list[str] = []
    renamed: dict[str, dict[str, str]] = {}
    node_arrays = {}
    for ntype, count in node_counts.items():
        names = _names(graph.nodes[ntype].data, ntype, chosen.get(ntype), notes)
        arrays = _node_arrays(graph.nodes[ntype].data, ntype, count, names)
        if arrays:
            node_arrays[ntype] = arrays
        if changed := {name: key for key, name in names.items() if key != name}:
            renamed[ntype] = changed

    edges: dict[Relation, EdgeSource] = {}
    edge_arrays = {}
    for etype in graph.canonical_etypes:
        edges[Relation(*etype)] = _GraphEdges(graph, etype)
        if len(graph.edges[etype].data):
            edge_arrays[Relation(*etype)] = _edge_arrays(graph.edges[etype].data)
            notes.append(f"edge data of '{Relation(*etype)}' are in a store with edge ids alone: "
                         f"{listing(graph.edges[etype].data)}")

    task = None
    if target is not None:
        task = node_task(target, num_classes, "label", node_arrays, node_counts)
    else:
        candidates = [t for t, arrays in node_arrays.items()
                      if "label" in arrays and TRAIN_MASK in arrays]
        if len(candidates) > 1:
            notes.append(f"no task: several types have labels ({listing(candidates)})")
        elif candidates:
            try:
                task = node_task(candidates[0], num_classes, "label", node_arrays, node_counts)
            except InputError as error:
                notes.append(f"no task: {error}")
    info: dict[str, Any] = {"format": "DGLGraph"}
    if renamed:
        info["renamed"] = renamed
    if notes:
        info["notes"] = notes
    return GraphSource(name, node_counts, edges, node_arrays, task, info, edge_arrays)


def check_graph(graph: Any) -> None:
    """Refuse what is no whole graph of DGL, with an :class:`InputError`."""
    dgl = optional("dgl", "reading a DGLGraph", "dgl")
    if not isinstance(graph, dgl.DGLGraph):
        raise InputError(f"expected a dgl.DGLGraph, got {type(graph).__module__}."
                         f"{type(graph).__qualname__}")
    if graph.is_block:
        raise InputError("the graph is a block (a sampled message flow graph); give the graph that "
                         "it was sampled from")


def _names(data: Mapping[str, Any], ntype: str, chosen: str | None, notes: list[str]
           ) -> dict[str, str]:
    """The graph's names of a type's node data, each with the name in the store."""
    if chosen is not None and chosen not in data:
        raise InputError(f"node type '{ntype}' has no node data '{chosen}'; it has: "
                         f"{listing(data)}" + nearest(chosen, data))
    names = {key: key for key in data}
    if "labels" in names and "label" not in names:
        names["labels"] = "label"
    if chosen is not None and chosen != "feat":
        if names.pop("feat", None):
            notes.append(f"node data 'feat' of '{ntype}' left out: '{chosen}' are its features")
        names[chosen] = "feat"
    vectors = [key for key in names if data[key].is_floating_point() and data[key].dim() == 2]
    if "feat" not in names.values() and len(vectors) == 1:
        names[vectors[0]] = "feat"  # as in the GraphBolt reader: a type's only vector
    elif "feat" not in names.values() and vectors:
        notes.append(f"no features of '{ntype}': none of {listing(vectors)} is named feat")
    return names


def _node_arrays(data: Mapping[str, Any], ntype: str, count: int, names: Mapping[str, str]
                 ) -> dict[str, np.ndarray]:
    return {name: node_array(name, _to_numpy(data[key], f"node data '{key}' of '{ntype}'"),
                             ntype, count, origin=None if key == name else f"node data '{key}'")
            for key, name in names.items()}


def _edge_arrays(data: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Edge data by name; what cannot be an array is left out."""
    arrays = {}
    for key in data:
        with contextlib.suppress(InputError):
            arrays[key] = _to_numpy(data[key], f"edge data '{key}'")
    return arrays


def _to_numpy(tensor: Any, what: str) -> np.ndarray:
    import torch

    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
        raise InputError(f"{what} is not a dense tensor; make it dense, or remove it")
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    try:
        return tensor.numpy()
    except (TypeError, RuntimeError):
        raise InputError(f"{what} has type {tensor.dtype}, which cannot be stored; convert it to "
                         "floating point, integers or bool") from None


@dataclass(frozen=True)
class _GraphEdges:
    """Edges of one relation in the order of their ids, taken from the graph when asked for."""

    graph: Any
    etype: tuple[str, str, str]

    @property
    def num_edges(self) -> int:
        return int(self.graph.num_edges(self.etype))

    def chunks(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        src, dst = (ids.cpu().numpy() for ids in self._by_id())
        for start in range(0, len(src), size):
            yield src[start:start + size], dst[start:start + size]

    def _by_id(self) -> tuple[Any, Any]:
        formats = self.graph.formats()
        if "coo" in (*formats["created"], *formats["not created"]):
            return self.graph.edges(form="uv", order="eid", etype=self.etype)
        # A graph restricted to CSR or CSC cannot put its edges in order itself.
        src, dst, ids = self.graph.edges(form="all", order=None, etype=self.etype)
        order = ids.argsort()
        return src[order], dst[order]
