"""What a proof asks of the run that a call belongs to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor

from dgl_heta.comm.collectives import Comm
from dgl_heta.graph.schema import Relation
from dgl_heta.proof.gather import Ids, PlainLayer
from dgl_heta.proof.replay import Reads
from dgl_heta.raf.chain import NotedLinks
from dgl_heta.sampling.blocks import MiniBatch

Instead = Callable[[Any], Callable[[Any], Any]]
"""From a call's arguments, whose tensors have been replaced, to what replaces other items."""


class Setting(Protocol):
    """The run that a call belongs to.

    Attributes
    ----------
    group, world : the trainers of a model-parallel group, and all; bytes count apart.
    nones : whether a gradient that no trainer has must be None with RAF, too, and not zeros.
    links : is told of backward passes through the chain (:mod:`dgl_heta.raf.chain`).
    """

    group: Comm
    world: Comm
    nones: bool
    links: NotedLinks

    @property
    def relations(self) -> Sequence[Relation]: ...

    @property
    def types(self) -> Sequence[str]: ...

    def sample(self, most: int) -> MiniBatch:
        """The batch, or one of the first `most` seeds of each trainer, with the same draws."""

    def shared(self, value: Any) -> bool:
        """Return whether copies of a module refer to the same object."""

    def known(self, value: Any) -> bool:
        """Return whether `ours` and `plain` know what to give instead of an argument."""

    def ours(self, batch: MiniBatch) -> Instead:
        """Return the arguments in place of blocks: those of a batch, with RAF."""

    def plain(self, layers: Sequence[PlainLayer], ids: Sequence[Ids]) -> Instead:
        """The same the plain way: layers over all relations, and the ids of each level."""

    def reading(self, reads: Reads) -> AbstractContextManager[None]:
        """For the body reads of tables in the key-value store go to `reads`."""

    def chain(self) -> list[Tensor]:
        """The tokens of the chain of exchanges."""
