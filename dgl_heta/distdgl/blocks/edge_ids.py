"""Numbers and ids of a block's edges in a script's hands.

A machine has the edges of its own relations, for the seeds of all trainers. Their ids are good for
reading a DistTensor of edge data (:mod:`.edge_rows`), and their number for leaving relations
without edges out, which all trainers of a group must do alike.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from dgl_heta.distdgl.refusals import TABLE, refuse
from dgl_heta.distdgl.store.masked_store import sampled_edge_ids
from dgl_heta.errors import InputError
from dgl_heta.features.row_kernels import check_ids
from dgl_heta.graph.schema import Relation

if TYPE_CHECKING:
    from dgl_heta.distdgl.blocks.layer import Layer


class EdgeCount(int):
    """The number of edges that this machine has, for the seeds of all trainers.

    Models leave relations without edges out, and all trainers of a group must leave out the same.
    So a comparison, or whether it is 0, is of the edges that all their machines have. For that they
    exchange numbers, once for a block; all of them must ask.

    Parameters
    ----------
    count : on this machine.
    everywhere : gives the number on all machines.
    """

    everywhere: Callable[[], int]

    def __new__(cls, count: int, everywhere: Callable[[], int]) -> EdgeCount:
        number = super().__new__(cls, count)
        number.everywhere = everywhere
        return number

    def __add__(self, other: int) -> int:
        """Return a count again for other counts, as in a sum."""
        if isinstance(other, EdgeCount):
            return EdgeCount(int(self) + int(other),
                             lambda: self.everywhere() + other.everywhere())
        return int(self) + other if other else self

    __radd__ = __add__

    def __bool__(self) -> bool:
        return self.everywhere() != 0

    __hash__ = int.__hash__

    # A number in a file or in another process cannot ask the group.
    def __reduce__(self) -> Any:
        return int, (int(self),)


def _compared(compare: Callable[[Any, Any], Any]) -> Any:
    def method(self: EdgeCount, other: Any) -> Any:
        # Counts of one machine are compared as they are, with no message.
        if isinstance(other, EdgeCount):
            return compare(int(self), int(other))
        return compare(self.everywhere(), other)
    return method


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(EdgeCount, f"__{_name}__", _compared(getattr(operator, _name)))


class EdgeIds:
    """Ids of this machine's edges of a relation in a block, (edges,) int64.

    A DistTensor can be indexed by them: the rows are :class:`.edge_rows.EdgeRows`. Nothing else can
    be read but their number.

    Attributes
    ----------
    relation : (source type, name, destination type).
    layer : what is behind the block.
    """

    dtype, ndim = torch.int64, 1

    def __init__(self, relation: Any, layer: Layer) -> None:
        self.relation, self.layer = Relation(*relation), layer

    def __len__(self) -> int:
        return self.counted(self.layer.count(self.relation))  # type: ignore[no-any-return]

    @property
    def shape(self) -> torch.Size:
        return self.counted(torch.Size([len(self)]))  # type: ignore[no-any-return]

    def counted(self, number: Any) -> Any:
        """Return a number of edges, or a shape, as a script gets it: with an EdgeCount."""
        # multi_update_all tells the group who has asked (:mod:`..modules.message_functions`).
        self.layer.asked.add(self.relation)

        def everywhere() -> int:
            return self.layer.edges_of_all(self.relation)
        if isinstance(number, torch.Size):
            return torch.Size([EdgeCount(number[0], everywhere), *number[1:]])
        return EdgeCount(number, everywhere)

    def like(self, other: EdgeIds) -> bool:
        """Return whether they are of the same edges."""
        return self.layer is other.layer and self.relation == other.relation

    def same(self, *_: Any, **__: Any) -> EdgeIds:
        """Return themselves: they are on no device, and have one dtype."""
        return self

    to = long = cpu = clone = detach = contiguous = same

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        refuse("edge ids as numbers", relation=tuple(self.relation))

    __getitem__ = __iter__ = __array__ = __torch_function__ = __int__ = __bool__ = _refuse
    __eq__ = __lt__ = __add__ = __sub__ = __index__ = _refuse  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy, pickle and DGL look whether there is such a method
            raise AttributeError(name)
        self._refuse()


def ids_of(layer: Layer, relation: Relation) -> Tensor:
    """Return ids of a relation's edges in a block, int64 (edges,), in the order of the block's
    edges.

    Raises
    ------
    HetaError
        The store keeps none.
    """
    store, ids = layer.session.store, [torch.empty(0, dtype=torch.int64)]
    for edges in layer.pieces(relation):
        if not len(edges.indices):
            continue
        # Places of sampled edges in the CSC that was sampled from; the store has their ids there.
        assert edges.sample is not None  # only training on edges by ourselves leaves some out
        try:
            stored = sampled_edge_ids(store, relation, edges.sample.csc)
        except InputError as error:
            raise TABLE["edge ids that are not stored"].error(relation=tuple(relation)) from error
        nodes = layer.destination_ids(relation.dst)[edges.index].numpy()
        numbers = stored[edges.sample.positions(nodes, len(edges.indices))].astype("int64")
        check_ids(numbers, store.schema.edge_counts[relation])
        ids.append(torch.from_numpy(numbers))
    return torch.cat(ids)
