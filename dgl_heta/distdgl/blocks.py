"""DGL blocks for a script, made from sampled blocks.

What a script sees is a DGLBlock whose leading destination rows at the last layer are the
trainer's own seeds; what is aggregated for the other trainers' seeds stays inside
(:class:`dgl_heta.distdgl.layers.Layer`) and is reached by HeteroGraphConv and multi_update_all
alone.
"""

from __future__ import annotations

from typing import Any

import dgl
import numpy as np
import torch
from dgl.heterograph import DGLBlock
from torch import Tensor

from dgl_heta.distdgl import hetero, multi_update
from dgl_heta.distdgl.layers import Layer, csc_with_ids
from dgl_heta.distdgl.reference import PlainBlock
from dgl_heta.distdgl.session import Session
from dgl_heta.distdgl.versions import homes
from dgl_heta.errors import HetaError
from dgl_heta.sampling.blocks import MiniBatch, RelationBlock
from dgl_heta.system.patching import patch_all


class RafBlock(DGLBlock):
    """A block of a meta-partitioned graph.

    It can be looked at, moved and carry data as any block. Aggregating over it other than by
    HeteroGraphConv or multi_update_all would leave out what other trainers hold, and is refused.
    """

    layer: Layer | None = None

    def update_all(self, *args: Any, **kwargs: Any) -> None:
        _refuse("update_all")

    def send_and_recv(self, *args: Any, **kwargs: Any) -> None:
        _refuse("send_and_recv")

    def pull(self, *args: Any, **kwargs: Any) -> None:
        _refuse("pull")

    def push(self, *args: Any, **kwargs: Any) -> None:
        _refuse("push")

    def multi_update_all(self, etype_dict: Any, cross_reducer: Any,
                         apply_node_func: Any = None) -> None:
        multi_update.multi_update_all(self, etype_dict, cross_reducer, apply_node_func)

    def __getitem__(self, key: Any) -> Any:
        self._touch()
        return super().__getitem__(key)

    def local_var(self) -> Any:
        self._touch()
        return super().local_var()

    def _touch(self) -> None:
        if self.layer is not None and self.layer.session.batch is not None:
            self.layer.session.batch.touched = True


def _refuse(operation: str) -> None:
    raise HetaError(f"{operation} on a block of a meta-partitioned graph would leave out the "
                    "relations of other partitions; merge relations by dgl.nn.HeteroGraphConv or "
                    "block.multi_update_all")


def make_blocks(session: Session, batch: MiniBatch) -> list[RafBlock | PlainBlock]:
    """The blocks of a batch as a script sees them, with node ids (dgl.NID) on both sides.

    In reference mode they are DGL's own, with every relation of the schema.
    """
    blocks: list[RafBlock | PlainBlock] = []
    everything = session.store.schema.node_types  # as in DistDGL, on both sides of every block
    ids = {t: torch.from_numpy(nodes) for t, nodes in batch.input_nodes.items()}
    for block in batch.blocks:
        destinations = {t: block.wanted(t) if t in block.num_dst else 0 for t in everything}
        sources = {t: block.num_src.get(t, 0) for t in everything}
        edges = {tuple(r): ("csc", _csc([], destinations[r.dst]))
                 for r in session.store.schema.relations} if session.reference else {}
        for into in block.num_dst:
            for relation, parts in _by_relation(block.into(into)).items():
                edges[tuple(relation)] = ("csc", _csc(parts, destinations[into]))
        graph = dgl.create_block(edges, sources, destinations)
        public: RafBlock | PlainBlock
        if session.reference:
            public = PlainBlock(graph._graph, (graph.srctypes, graph.dsttypes), graph.etypes)
            public.heta_layer = block.layer
        else:
            public = RafBlock(graph._graph, (graph.srctypes, graph.dsttypes), graph.etypes)
            public.layer = Layer(session, block)
        for t in everything:
            public.srcnodes[t].data[dgl.NID] = ids.get(t, _NO_IDS)[:sources[t]]
            public.dstnodes[t].data[dgl.NID] = ids.get(t, _NO_IDS)[:destinations[t]]
        blocks.append(public)
    return blocks


def _by_relation(edges: list[RelationBlock]) -> dict[Any, list[RelationBlock]]:
    by_relation: dict[Any, list[RelationBlock]] = {}
    for part in edges:
        by_relation.setdefault(part.relation, []).append(part)
    return by_relation


def _csc(parts: list[RelationBlock], rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """CSC over destination rows 0 … rows - 1 from ascending ranges of rows."""
    indptr = np.zeros(rows + 1, np.int64)
    indices = []
    for part in parts:
        low, high = min(part.start, rows), min(part.stop, rows)
        if high > low:
            pointers = part.indptr.numpy()[:high - low + 1]
            indptr[low + 1:high + 1] = np.diff(pointers)
            indices.append(part.indices[:int(pointers[-1])])
    np.cumsum(indptr, out=indptr)
    joined = indices[0] if len(indices) == 1 else torch.cat(indices) if indices else _NO_IDS
    return csc_with_ids(torch.from_numpy(indptr), joined)


_NO_IDS = torch.empty(0, dtype=torch.int64)


def _hetero_forward(original: Any) -> Any:
    def forward(self: Any, g: Any, inputs: Any, mod_args: Any = None,
                mod_kwargs: Any = None) -> Any:
        if not isinstance(g, RafBlock):
            return original(self, g, inputs, mod_args, mod_kwargs)
        return hetero.forward(self, g, inputs, mod_args, mod_kwargs)
    return forward


PATCHES = (
    *patch_all(homes("HeteroGraphConv", "forward"), _hetero_forward,
               "merge relations over the group"),
)
