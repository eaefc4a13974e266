"""The block that a script sees: its nodes, and what it refuses.

It is a DGLBlock whose leading destination rows at the last layer are the trainer's own seeds. What
is aggregated for the other trainers' seeds stays inside (:class:`.layer.Layer`). What runs on it is
in :mod:`..modules`.
"""

from __future__ import annotations

from typing import Any

from dgl.heterograph import DGLBlock

from dgl_heta.distdgl.blocks.block_index import BlockIndex, itself
from dgl_heta.distdgl.blocks.block_names import REFUSED, SLICED
from dgl_heta.distdgl.blocks.dgl_block import PlainBlock
from dgl_heta.distdgl.blocks.edge_view import EdgeColumns, EdgeFrames, EdgeView, SliceData
from dgl_heta.distdgl.blocks.layer import Layer
from dgl_heta.distdgl.blocks.refusing import check_names
from dgl_heta.distdgl.refusals import refuse


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
        frames = edge_frames or ([EdgeColumns()] if index.partial else None)
        self._init(index, ntypes, etypes, node_frames, frames)

    @property
    def partial(self) -> bool:
        """Return whether other workers of the group have other relations."""
        return getattr(self._graph, "partial", False)

    # DGL sets this attribute in many places, and reads frames by it, which must be refused.
    @property
    def _edge_frames(self) -> Any:
        return self.__dict__["_edge_frames"]

    @_edge_frames.setter
    def _edge_frames(self, frames: Any) -> None:
        self.__dict__["_edge_frames"] = EdgeFrames(frames) if self.partial else frames

    def num_edges(self, etype: Any = None) -> int:
        if not self.partial:
            return int(super().num_edges(etype))
        numbers = range(len(self.etypes)) if etype is None else [self.get_etype_id(etype)]
        return sum(map(self._graph.count_edges, numbers))

    def number_of_edges(self, etype: Any = None) -> int:
        return self.num_edges(etype)

    def _slice(self, name: str, etype: Any = None) -> RafBlock:
        """Return the slice that an operation of that name is for."""
        if etype is not None:
            return self[etype]  # type: ignore[no-any-return]
        if len(self.etypes) > 1:
            refuse("several relations at once", operation=name)
        return self

    def check_name(self, name: str) -> None:
        """Refuse a name of DGLBlock that would see this machine's relations alone."""
        if self.partial:
            refuse(REFUSED[name], operation=name)

    @property
    def edges(self) -> EdgeView:
        dgls = None if self.partial else super().edges
        return EdgeView(self, dgls, self._graph.layer)

    @property
    def edata(self) -> Any:
        if self.partial:
            return SliceData(self._slice("edata"), self.etypes[0], None, self._graph.layer)
        return super().edata

    def clone(self) -> Any:
        return self.local_var()  # DGL's clone makes the index again, from the edges

    def __getitem__(self, key: Any) -> Any:
        if not self.partial:
            whole = self._dgls(PlainBlock)
            whole.layer = self._graph.layer  # type: ignore[attr-defined]
            return whole[key]
        every = slice(None)  # as DGL itself looks a relation up by its name
        numbers = self._find_etypes(key if isinstance(key, tuple) else (every, key, every))
        if not numbers:
            return super().__getitem__(key)  # which says what is wrong
        if len(numbers) > 1:
            refuse("edges of a block", operation="a slice of several relations")
        src, etype, dst = self._canonical_etypes[numbers[0]]
        ends = self.get_ntype_id_from_src(src), self.get_ntype_id_from_dst(dst)
        # The frames themselves: data put on a slice are on the block, as in DGL.
        return type(self)(self._graph.get_relation_graph(numbers[0]), ([src], [dst]), [etype],
                          [self._node_frames[i] for i in ends], self._edge_frames)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.partial:
            refuse("copies of a block")
        return itself, (self._dgls(),)

    def _dgls(self, kind: type[DGLBlock] = DGLBlock) -> DGLBlock:
        """Return DGL's own block, with the same data, in a group of one worker."""
        return kind(self._graph.real(), (self.srctypes, self.dsttypes), self.etypes,
                    self._node_frames, self._edge_frames)


# Those that a slice has, RafBlock has itself.
check_names(RafBlock, REFUSED.keys() - {*SLICED, "edges"})
