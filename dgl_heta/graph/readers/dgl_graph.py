"""A `dgl.DGLGraph` in memory, heterogeneous or homogeneous.

Node data `feat` (or the name given for a type, or else a type's only floating-point matrix) are
the static features, `label` or `labels`
the labels; other node data are carried along under their own names. A homogeneous graph has
node type `_N` and relation `_N _E _N`, as DGL names them. Edges keep their ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dgl_heta.errors import InputError, listing, nearest
from dgl_heta.graph.labels import NodeLabels, in_mask
from dgl_heta.graph.readers.arrays import (
    check_finite,
    check_node_array,
    node_array,
    node_task,
)
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import (
    MASKS,
    TRAIN_MASK,
    EdgeSource,
    Given,
    GraphSource,
    Task,
    as_numpy,
)
from dgl_heta.system.checksums import npy_sum
from dgl_heta.system.disk import row_starts
from dgl_heta.system.optional import optional

_DGLS_OWN = {"node": ("_ID", "inner_node"), "edge": ("_ID", "inner_edge")}
"""Data that DGL's own partitions leave out, too: ids in a graph that this one was taken from."""


def read_dgl_graph(graph: Any, name: str, target: str | None = None,
                   num_classes: int | None = None,
                   node_features: Mapping[str, str] | None = None,
                   as_given: bool = False) -> GraphSource:
    """Describe a DGLGraph. Edges and node data share memory with it where they can.

    Parameters
    ----------
    graph : the graph, on any device.
    name : name of the graph.
    target : node type to predict; without it, the only type with labels and a train mask.
    num_classes : number of classes; without it, the largest label plus one.
    node_features : node type to the name of the node data that are its features, for types
        where that is not `feat`.
    as_given : keep data whatever their form, for scripts that read them again; training converts
        them when it reads. Where labels of the target are no classes there is no task.

    Raises
    ------
    InputError
        Not a DGLGraph, a block, an unknown type or name, or data that cannot be stored.
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
    given: dict[Any, dict[str, Given]] = {}
    node_arrays = {}
    for ntype, count in node_counts.items():
        data = _data(graph.nodes[ntype].data, "node")
        names = _names(data, ntype, chosen.get(ntype), notes)
        arrays = {name: _to_numpy(data[key], f"node data '{key}' of '{ntype}'")
                  for key, name in names.items()}
        if as_given:
            given[ntype] = {name: _given(data[key], key, name, ntype)
                            for key, name in names.items()}
        else:
            arrays = {name: node_array(name, arrays[name], ntype, count,
                                       origin=None if key == name else f"node data '{key}'")
                      for key, name in names.items()}
            if changed := {name: key for key, name in names.items() if key != name}:
                renamed[ntype] = changed
        if arrays:
            node_arrays[ntype] = arrays

    edges: dict[Relation, EdgeSource] = {
        Relation(*etype): _GraphEdges(graph, etype) for etype in graph.canonical_etypes}
    edge_arrays = _edge_arrays(graph, notes, given if as_given else None)
    info: dict[str, Any] = {"format": "DGLGraph"}
    task = _only_task(target, num_classes, node_arrays, node_counts, info, notes,
                      given if as_given else None)
    if renamed:
        info["renamed"] = renamed
    if notes:
        info["notes"] = notes
    return GraphSource(name, node_counts, edges, node_arrays, task, info, edge_arrays, given=given)


def _edge_arrays(graph: Any, notes: list[str], given: dict[Any, dict[str, Given]] | None
                 ) -> dict[Relation, dict[str, np.ndarray]]:
    """Data of edges by relation; what they are on the graph is put into `given`, if there is one.
    """
    edge_arrays = {}
    for etype in graph.canonical_etypes:
        relation = Relation(*etype)
        if data := _data(graph.edges[etype].data, "edge"):
            edge_arrays[relation] = {key: _to_numpy(data[key], f"edge data '{key}' of '{relation}'")
                                     for key in data}
            if given is not None:
                given[relation] = {key: _given(data[key], key) for key in data}
            notes.append(f"edge data of '{relation}' are in a store with edge ids alone: "
                         f"{listing(data)}")
    return edge_arrays


def _only_task(target: str | None, num_classes: int | None,
               node_arrays: dict[str, dict[str, np.ndarray]], node_counts: dict[str, int],
               info: dict[str, Any], notes: list[str],
               given: dict[Any, dict[str, Given]] | None) -> Task | None:
    """The task of the target, or of the only type with labels; None, and a note, if there is none.

    Arrays of the target become those that training reads, unless they are kept as `given`.
    """
    candidates = [target] if target is not None else [
        t for t, arrays in node_arrays.items() if "label" in arrays and TRAIN_MASK in arrays]
    if len(candidates) > 1:
        notes.append(f"no task: several types have labels ({listing(candidates)})")
    if len(candidates) != 1:
        return None
    (ntype,) = candidates
    try:
        # Labels that are kept as given are read as such, so codes get no numbers then.
        task, common = _task(ntype, num_classes, node_arrays.get(ntype, {}), node_counts,
                             info if given is None else None)
    except InputError as error:
        if target is not None and given is None:
            raise
        notes.append(f"no task: {error}")
        return None
    if given is None:
        node_arrays[ntype] = common
    else:
        given[ntype]["label"] = replace(given[ntype]["label"], unfit="")
    return task


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
    matrices = [key for key, name in names.items() if name not in ("label", *MASKS)
                and data[key].is_floating_point() and data[key].dim() == 2 and data[key].shape[1]]
    if "feat" not in names.values() and len(matrices) == 1:
        names[matrices[0]] = "feat"  # as in the GraphBolt reader: a type's only vector
    elif "feat" not in names.values() and matrices:
        notes.append(f"no features of '{ntype}': none of {listing(matrices)} is named feat")
    return names


def _data(frame: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Node or edge data without what is DGL's own."""
    return {key: frame[key] for key in frame if key not in _DGLS_OWN[kind]}


def _given(tensor: Any, key: str, name: str | None = None, ntype: str = "") -> Given:
    """Return the description of data that are kept as they are; of node data, also whether training
    can read them as its array `name`."""
    array = as_numpy(tensor)
    starts = row_starts(len(array), array.nbytes // max(len(array), 1))
    total = npy_sum(array.dtype, array.shape, (array[i:i + starts.step] for i in starts))
    unfit = ""
    if name is not None:
        try:
            check_node_array(name, array, ntype, len(array),
                             None if key == name else f"node data '{key}'")
            for start in starts if name == "feat" else ():
                check_finite(key, array[start:start + starts.step], ntype, start)
        except InputError as error:
            unfit = str(error)
    return Given(key, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), total, unfit)


def _task(target: str, num_classes: int | None, arrays: Mapping[str, np.ndarray],
          node_counts: Mapping[str, int], info: dict[str, Any] | None
          ) -> tuple[Task, dict[str, np.ndarray]]:
    """The task of a type with labels, and its arrays with labels and masks in the common form."""
    common = {name: node_array(name, array, target, node_counts[target])
              if name in ("label", *MASKS) else array for name, array in arrays.items()}
    task = node_task(target, num_classes, "label", {target: common}, node_counts, info=info)
    labels = NodeLabels(common["label"], task.kind, task.num_classes, task.unlabelled,
                        f"array 'label' of node type '{target}'")
    for name in MASKS:
        if name in common:
            labels.check(in_mask(common[name]), name)
    return task, common


def _to_numpy(tensor: Any, what: str) -> np.ndarray:
    import torch

    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
        raise InputError(f"{what} is not a dense tensor; make it dense, or remove it")
    try:
        return as_numpy(tensor)
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
