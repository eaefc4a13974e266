"""`block.edges`: ids of edges, and data that a script puts on them.

Programs ask a block for `block.edges[etype].data[dgl.EID]`, and read edge features by them where
there are some. Ids are found when they are read by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

import dgl
from torch import Tensor

from dgl_heta.distdgl.blocks.block_names import EDGES, refuse
from dgl_heta.distdgl.blocks.edge_rows import EdgeIds, edge_rows, ids_of, of_edges
from dgl_heta.errors import HetaError
from dgl_heta.graph.schema import Relation

if TYPE_CHECKING:
    from dgl_heta.distdgl.blocks.layer import Layer


class EdgeView:
    """What a block has as `edges`.

    Parameters
    ----------
    plain : DGL's own view of the edges; None where there is none, because other machines hold
        other relations.
    layer : what is behind the block.
    """

    def __init__(self, block: Any, plain: Any, layer: Layer) -> None:
        self._block, self._plain, self._layer = block, plain, layer

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return refuse("edges", EDGES) if self._plain is None else self._plain(*args, **kwargs)

    def __getitem__(self, key: Any) -> Any:
        space = None if self._plain is None else self._plain[key]
        if not isinstance(key, str) and not (isinstance(key, tuple) and len(key) == 3):
            return refuse("edges", EDGES) if space is None else space
        return EdgeSpace(EdgeData(self._block, key, None if space is None else space.data,
                                  self._layer))


class EdgeSpace:
    """The edges of one relation: `data` alone, as in DGL."""

    def __init__(self, data: EdgeData) -> None:
        self.data = data


class EdgeData(MutableMapping[str, Any]):
    """Data of the edges of one relation: DGL's own, and `dgl.EID`.

    Where other machines hold other relations, ids are :class:`EdgeIds` and data that a script has
    put there :class:`EdgeRows`.
    """

    def __init__(self, block: Any, etype: Any, plain: Any, layer: Layer) -> None:
        self._block, self._plain, self._layer = block, plain, layer
        self._relation: Any = block.to_canonical_etype(etype)

    def __getitem__(self, name: str) -> Any:
        if self._plain is not None:
            if name != dgl.EID or name in self._plain:
                return self._plain[name]
            return ids_of(self._layer, Relation(*self._relation)).to(self._block.device)
        if name == dgl.EID:
            return self._ids()
        if name not in self._data:
            refuse(f"edge data '{name}'", EDGES)
        return edge_rows(self._data[name], self._ids())

    def __contains__(self, name: object) -> bool:
        return name == dgl.EID or name in (self._data if self._plain is None else self._plain)

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self:
            return default
        return self[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if self._plain is not None:
            self._plain[name] = value
            return
        if name == dgl.EID:
            raise HetaError(f"the ids of edges of {self._relation} cannot be written")
        self._data[name] = of_edges(value, self._ids(), f"'{name}' on")

    def _ids(self) -> EdgeIds:
        return EdgeIds(self._relation, self._layer)

    def __delitem__(self, name: str) -> None:
        del (self._data if self._plain is None else self._plain)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data if self._plain is None else self._plain)

    def __len__(self) -> int:
        return len(self._data if self._plain is None else self._plain)

    def __repr__(self) -> str:
        return repr([*self])

    @property
    def _data(self) -> Any:
        return self._block._edge_frames.of(self._relation)


class SliceData(EdgeData):
    """`edata` of a slice. DGL asks it for ids before each message function, which none needs."""

    def get(self, name: str, default: Any = None) -> Any:
        return default if name == dgl.EID else super().get(name, default)


class Columns:
    """Data that a script has put on the edges of a block, where DGL has a frame per relation.

    Attributes
    ----------
    by_relation : relation → name → tensor (edges, …).
    """

    def __init__(self, by_relation: Any = None) -> None:
        self.by_relation: dict[Any, dict[str, Tensor]] = by_relation or {}

    @property
    def _columns(self) -> dict[str, Any]:
        return {}

    def _each(self, function: Callable[[Tensor], Tensor]) -> Columns:
        return Columns({r: {name: function(x) for name, x in data.items()}
                        for r, data in self.by_relation.items()})

    def clone(self) -> Columns:
        return self._each(lambda x: x)

    def to(self, device: Any, **kwargs: Any) -> Columns:
        return self._each(lambda x: x.to(device, **kwargs))


class EdgeFrames(list[Any]):
    """`_edge_frames` of a block with this machine's edges alone: :class:`Columns`, once."""

    def of(self, relation: Any) -> dict[str, Tensor]:
        """The data of a relation's edges, to be read and written."""
        columns: Columns = next(iter(self))
        return columns.by_relation.setdefault(tuple(relation), {})

    def __getitem__(self, place: Any) -> Any:
        refuse("edge data", EDGES)
