"""The block that a script sees: its nodes, and what it refuses.

It is a DGLBlock whose leading destination rows at the last layer are the trainer's own seeds. What
is aggregated for the other trainers' seeds stays inside (:class:`.layer.Layer`). What runs on it is
in :mod:`..modules`.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from dgl.heterograph import DGLBlock

from dgl_heta.distdgl.blocks.block_index import BlockIndex, itself
from dgl_heta.distdgl.blocks.block_names import EDGES, REFUSED, SLICE, SLICED, refuse
from dgl_heta.distdgl.blocks.dgl_block import PlainBlock
from dgl_heta.distdgl.blocks.edge_view import Columns, EdgeFrames, EdgeView, SliceData
from dgl_heta.distdgl.blocks.layer import Layer


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

    def _slice(self, name: str, etype: Any = None) -> RafBlock:
        """The slice that an operation of that name is for."""
        if etype is not None:
            return self[etype]  # type: ignore[no-any-return]
        if len(self.etypes) > 1:
            refuse(name, SLICE)
        return self

    @property
    def edata(self) -> Any:
        if self.partial:
            return SliceData(self._slice("edata"), self.etypes[0], None, self._graph.layer)
        return super().edata

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
        return type(self)(self._graph.get_relation_graph(found[0]), ([src], [dst]), [etype],
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
