"""The call of one relation's module inside HeteroGraphConv, as the fused convolutions see it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dgl.base import DGLError
from torch import Tensor

from dgl_heta.nn.row_parts import Part
from dgl_heta.sampling.blocks import Block, InEdges, RelationBlock


@dataclass(frozen=True)
class RelationCall:
    """A relation's module and what it is called with.

    Attributes
    ----------
    edges : the relation's in-edges on this machine, for a range of destination rows.
    source : rows of the source type, (sources, …); may be several tensors in a container.
    destination : rows of all destinations on this machine, of which `edges` has some.
    args, kwargs : the script's `mod_args` and `mod_kwargs` of the relation.
    summed : whether relations are added up, so that rows whose value is 0 may be left out.
    """

    module: Any
    edges: RelationBlock
    source: Any
    destination: Any
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    summed: bool = False

    @property
    def in_edges(self) -> InEdges:
        """Return the edges on the device of the source rows."""
        device = self.source.device
        return InEdges(self.edges.indptr.to(device), self.edges.indices.to(device))


def check_sources(block: Block, ntype: str, rows: Tensor) -> None:
    """Check the rows of a source type as plain DGL does where a module puts them on its graph.

    Raises
    ------
    DGLError
        There are more of them than source nodes, or fewer.
    """
    sources = block.num_src.get(ntype, 0)
    if len(rows) != sources:
        raise DGLError(
            f"HeteroGraphConv is given {len(rows)} rows of '{ntype}' for a block with {sources} "
            f"source nodes of that type; give a row for each (block.srcnodes['{ntype}'])")


class FusedConvolution(Protocol):
    """A module of this package that computes the calls of several relations at once, which is where
    the time is saved; :data:`.hetero_graph_conv.FUSED` lists them."""

    def fits(self, call: RelationCall) -> bool:
        """Return whether it computes what the relation's module would."""

    def run_together(self, calls: Sequence[RelationCall]) -> list[Part]:
        """Return what the modules would, each with the edges of its rows."""


def run_alike(calls: Sequence[RelationCall], kind: Callable[[RelationCall], Hashable],
              run: Callable[[list[RelationCall]], Sequence[Tensor]]) -> list[Tensor]:
    """Run calls of one kind together; return all values in the order of the calls."""
    # Each call of a kernel has a cost of its own, which hundreds of relations would pay one by one.
    alike: dict[Hashable, list[int]] = {}
    for number, call in enumerate(calls):
        alike.setdefault(kind(call), []).append(number)
    values: dict[int, Tensor] = {}
    for numbers in alike.values():
        values.update(zip(numbers, run([calls[number] for number in numbers])))
    return [values[number] for number in range(len(calls))]
