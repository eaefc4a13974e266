"""DGL blocks for a script, made from sampled blocks.

What a script sees is a DGLBlock whose leading destination rows at the last layer are the
trainer's own seeds; what is aggregated for the other trainers' seeds stays inside
(:class:`.layer.Layer`) and is reached by HeteroGraphConv and multi_update_all
alone.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import dgl
import torch
from dgl.base import ALL
from dgl.frame import Frame
from dgl.heterograph import DGLBlock
from torch import Tensor

from dgl_heta.distdgl.blocks.block_index import BlockIndex, itself, kinds
from dgl_heta.distdgl.blocks.edge_view import Columns, EdgeFrames, EdgeView, SliceData
from dgl_heta.distdgl.blocks.layer import Layer
from dgl_heta.distdgl.blocks.refusals import EDGES, REFUSED, SLICE, SLICED, refuse
from dgl_heta.distdgl.modules import hetero, multi_update, slices
from dgl_heta.distdgl.modules.hetero_convs import Called
from dgl_heta.distdgl.reference import PlainBlock
from dgl_heta.distdgl.session import Session
from dgl_heta.distdgl.versions import homes
from dgl_heta.sampling.blocks import MiniBatch
from dgl_heta.system.patching import patch_all


class RafBlock(DGLBlock):
    """A block of a meta-partitioned graph, or a slice of one.

    It has every node type and relation of the schema. It can be looked at, moved and carry node
    data as any block. What reads edges would leave out those that other machines hold, and is
    refused (`REFUSED`), but in a group of one worker; so are all others of DGL's functions that
    come to the edges by the graph's index (:class:`BlockIndex`).
    """

    layer: Layer | None = None

    def __init__(self, index: BlockIndex, ntypes: Any, etypes: list[str], node_frames: Any,
                 edge_frames: Any = None) -> None:
        frames = edge_frames or ([Columns()] if index.partial else None)
        self._init(index, ntypes, etypes, node_frames, frames)

    @property
    def partial(self) -> bool:
        """Whether other workers of the group hold other relations."""
        return getattr(self._graph, "partial", False)

    @property
    def _edge_frames(self) -> Any:
        return self.__dict__["_edge_frames"]

    @_edge_frames.setter
    def _edge_frames(self, frames: Any) -> None:
        self.__dict__["_edge_frames"] = EdgeFrames(frames) if self.partial else frames

    def num_edges(self, etype: Any = None) -> int:
        if not self.partial:
            return int(super().num_edges(etype))
        places = range(len(self.etypes)) if etype is None else [self.get_etype_id(etype)]
        return sum(map(self._graph.count_edges, places))

    def number_of_edges(self, etype: Any = None) -> int:
        return self.num_edges(etype)

    def heta_merge(self, conv: Any, inputs: Any, mod_args: Any, mod_kwargs: Any, called: Called
                   ) -> dict[str, Tensor]:
        """What a registered class in the place of HeteroGraphConv gives for the block."""
        return hetero.forward(conv, self, inputs, mod_args, mod_kwargs, called)

    def update_all(self, message_func: Any, reduce_func: Any, apply_node_func: Any = None,
                   etype: Any = None) -> None:
        if self.partial:
            slices.update_all(self._slice("update_all", etype), message_func, reduce_func,
                              apply_node_func)
        else:
            super().update_all(message_func, reduce_func, apply_node_func, etype)

    def apply_edges(self, func: Any, edges: Any = ALL, etype: Any = None) -> None:
        if self.partial:
            slices.apply_edges(self._slice("apply_edges", etype), func, edges)
        else:
            super().apply_edges(func, edges, etype)

    def in_degrees(self, v: Any = ALL, etype: Any = None) -> Any:
        if self.partial:
            return slices.in_degrees(self._slice("in_degrees", etype), v)
        return super().in_degrees(v, etype)

    @property
    def edata(self) -> Any:
        if self.partial:
            return SliceData(self._slice("edata"), self.etypes[0], None, self._graph.layer)
        return super().edata

    def _slice(self, name: str, etype: Any = None) -> RafBlock:
        """The slice that an operation of that name is for."""
        if etype is not None:
            return self[etype]  # type: ignore[no-any-return]
        if len(self.etypes) > 1:
            refuse(name, SLICE)
        return self

    def multi_update_all(self, etype_dict: Any, cross_reducer: Any,
                         apply_node_func: Any = None) -> None:
        if self.partial:
            multi_update.multi_update_all(self, etype_dict, cross_reducer, apply_node_func)
        else:
            super().multi_update_all(etype_dict, cross_reducer, apply_node_func)

    def clone(self) -> Any:
        return self.local_var()

    def __getitem__(self, key: Any) -> Any:
        if not self.partial:
            whole = self._plain(PlainBlock)
            whole.layer = self._graph.layer  # type: ignore[attr-defined]
            return whole[key]
        every = slice(None)
        found = self._find_etypes(key if isinstance(key, tuple) else (every, key, every))
        if not found:
            return super().__getitem__(key)  # which says what is wrong
        if len(found) > 1:
            refuse("a slice of several relations", EDGES)
        src, etype, dst = self._canonical_etypes[found[0]]
        ends = self.get_ntype_id_from_src(src), self.get_ntype_id_from_dst(dst)
        return RafBlock(self._graph.get_relation_graph(found[0]), ([src], [dst]), [etype],
                        [self._node_frames[i] for i in ends], self._edge_frames)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.partial:
            refuse("copying or pickling", "keep blocks in the process that samples them")
        return itself, (self._plain(),)

    def _plain(self, kind: type[DGLBlock] = DGLBlock) -> DGLBlock:
        """DGL's own block, with the same data, in a group of one worker."""
        return kind(self._graph.real(), (self.srctypes, self.dsttypes), self.etypes,
                    self._node_frames, self._edge_frames)


def _refusing(name: str, instead: str) -> Any:
    """A name of DGLBlock, refused on partial blocks."""
    original: Any = inspect.getattr_static(DGLBlock, name)
    if isinstance(original, property):
        def get(self: RafBlock) -> Any:
            if self.partial:
                refuse(name, instead)
            return original.__get__(self)
        return property(get, doc=original.__doc__)

    @functools.wraps(original)
    def call(self: RafBlock, *args: Any, **kwargs: Any) -> Any:
        if self.partial:
            refuse(name, instead)
        return original(self, *args, **kwargs)
    return call


def _edges(self: RafBlock) -> EdgeView:
    return EdgeView(self, None if self.partial else DGLBlock.edges.fget(self), self._graph.layer)


for _name, _instead in REFUSED.items():
    if _name not in SLICED:
        setattr(RafBlock, _name, _refusing(_name, _instead))
setattr(RafBlock, "edges", property(_edges, doc=DGLBlock.edges.__doc__))  # noqa: B010


def make_blocks(session: Session, batch: MiniBatch,
                levels: Sequence[Mapping[str, Tensor]] = (), planned: bool = True
                ) -> list[RafBlock | PlainBlock]:
    """The blocks of a batch as a script sees them, with node ids (dgl.NID) on both sides.

    `levels` has the ids of each block's sources and, last, of the last one's destinations.
    `planned` says whether each machine has the relations that the plan gives it.

    In reference mode they are DGL's own.
    """
    schema = session.store.schema
    types = tuple(schema.node_types)  # as in DistDGL, on both sides of every block
    every = kinds(types, types, tuple(schema.relations))
    etypes = [relation.etype for relation in every.relations]
    ids = {t: torch.from_numpy(nodes) for t, nodes in batch.input_nodes.items()}
    blocks: list[RafBlock | PlainBlock] = []
    for number, block in enumerate(batch.blocks):
        layer = Layer(session, block, ids, batch.blocks)
        layer.planned = planned
        index = BlockIndex(layer, every)
        sides = levels[number:number + 2] or (ids, ids)
        frames = [Frame({dgl.NID: sides[i >= len(types)].get(t, _NO_IDS)[:index.num_nodes(i)]})
                  for i, t in enumerate((*types, *types))]
        both: Any = ([*types], [*types])
        if session.reference:
            plain = PlainBlock(index.real(), both, etypes, frames)
            plain.heta_layer, plain.layer = block.layer, layer
            blocks.append(plain)
        else:
            public = RafBlock(index, both, etypes, frames)
            public.layer = layer
            blocks.append(public)
    return blocks


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
