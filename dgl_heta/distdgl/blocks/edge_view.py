"""`block.edges`: ids of edges, and data that a script puts on them.

Programs ask a block for `block.edges[etype].data[dgl.EID]`, and read edge features by them where
there are some. Ids are looked up when they are read by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

import dgl
from dgl.view import EdgeSpace
from torch import Tensor

from dgl_heta.distdgl.blocks.edge_ids import EdgeIds, ids_of
from dgl_heta.distdgl.blocks.edge_rows import edge_rows, of_edges
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.graph.schema import Relation

if TYPE_CHECKING:
    from dgl_heta.distdgl.blocks.layer import Layer


class EdgeView:
    """The attribute `edges` of a block.

    Parameters
    ----------
    dgls : DGL's own view of the edges; None where there is none, because other machines hold
        other relations.
    layer : what is behind the block.
    """

    def __init__(self, block: Any, dgls: Any, layer: Layer) -> None:
        self._block, self._dgls, self._layer = block, dgls, layer

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._dgls is None:
            refuse("edges of a block", operation="edges")
        return self._dgls(*args, **kwargs)

    def __getitem__(self, key: Any) -> Any:
        space = None if self._dgls is None else self._dgls[key]
        if isinstance(key, str) or (isinstance(key, tuple) and len(key) == 3):
            data = None if space is None else space.data
            return EdgeSpace(EdgeData(self._block, key, data, self._layer))
        if space is None:
            refuse("edges of a block", operation="edges")
        return space


class EdgeData(MutableMapping[str, Any]):
    """Data of the edges of one relation: DGL's own, and `dgl.EID`.

    Where other machines hold other relations, ids are :class:`EdgeIds` and data that a script has
    put there :class:`EdgeRows`.
    """

    def __init__(self, block: Any, etype: Any, dgls: Any, layer: Layer) -> None:
        self._block, self._dgls, self._layer = block, dgls, layer
        self._relation: Any = block.to_canonical_etype(etype)

    @property
    def _columns(self) -> Any:
        if self._dgls is not None:
            return self._dgls
        return self._block._edge_frames.of(self._relation)

    @property
    def _ids(self) -> EdgeIds:
        return EdgeIds(self._relation, self._layer)

    def __getitem__(self, name: str) -> Any:
        if self._dgls is not None:
            if name != dgl.EID or name in self._dgls:
                return self._dgls[name]
            return ids_of(self._layer, Relation(*self._relation)).to(self._block.device)
        if name == dgl.EID:
            return self._ids
        if name not in self._columns:
            refuse("edges of a block", operation=f"edge data '{name}'")
        return edge_rows(self._columns[name], self._ids)

    def __contains__(self, name: object) -> bool:
        return name == dgl.EID or name in self._columns

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self:  # which `[]` refuses, with another error than KeyError
            return default
        return self[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if self._dgls is None:
            if name == dgl.EID:
                refuse("writing edge ids", relation=self._relation)
            # Bare: kernels and message functions read them, and see whole in-edges.
            value = of_edges(value, self._ids, f"'{name}' on")
        self._columns[name] = value

    def __delitem__(self, name: str) -> None:
        del self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return repr([*self])


class SliceData(EdgeData):
    """`edata` of a slice. DGL asks it for ids before each message function, which none needs."""

    def get(self, name: str, default: Any = None) -> Any:
        return default if name == dgl.EID else super().get(name, default)


class EdgeColumns:
    """Data that a script has put on the edges of a block, where DGL has a frame per relation.

    Attributes
    ----------
    by_relation : relation → name → tensor (edges, …).
    """

    def __init__(self, by_relation: Any = None) -> None:
        self.by_relation: dict[Any, dict[str, Tensor]] = by_relation or {}

    @property
    def _columns(self) -> dict[str, Any]:
        """Return nothing for DGL to pin or to record on a stream."""
        return {}

    def _each(self, function: Callable[[Tensor], Tensor]) -> EdgeColumns:
        return EdgeColumns({r: {name: function(x) for name, x in data.items()}
                            for r, data in self.by_relation.items()})

    def clone(self) -> EdgeColumns:
        return self._each(lambda x: x)

    def to(self, device: Any, **kwargs: Any) -> EdgeColumns:
        return self._each(lambda x: x.to(device, **kwargs))


class EdgeFrames(list[Any]):
    """`_edge_frames` of a block with this machine's edges alone: :class:`EdgeColumns`, once."""

    def of(self, relation: Any) -> dict[str, Tensor]:
        """Return the data of a relation's edges, to be read and written."""
        columns: EdgeColumns = next(iter(self))
        return columns.by_relation.setdefault(tuple(relation), {})

    def __getitem__(self, index: Any) -> Any:
        refuse("edges of a block", operation="edge data")
