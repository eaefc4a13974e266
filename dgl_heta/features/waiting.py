"""The promise of rows that wait for their values: rows of an array, multiplied by weights."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dgl_heta.errors import HetaError
from dgl_heta.features.chunks import ChunkedRows


class Linear(NamedTuple):
    """A product, as it was asked for.

    Attributes
    ----------
    weight : (in, out). `bias` : (out,) or None.
    graded : whether weight and bias wanted a gradient then.
    marks : versions and memory of both then, by which a change is seen.
    """

    weight: Tensor
    bias: Tensor | None
    graded: tuple[bool, bool]
    marks: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None) -> Linear:
        both = (weight, bias)
        return cls(weight, bias, (weight.requires_grad, bias is not None and bias.requires_grad),
                   _marks(both))

    def values(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias, without a gradient.

        Raises
        ------
        HetaError
            One was changed since the product was asked for.
        """
        if self.marks != _marks((self.weight, self.bias)):
            raise HetaError("a weight was changed in place between a product with feature rows and "
                            "its use; use train.lazy_features=false")
        return self.weight.detach(), None if self.bias is None else self.bias.detach()

    def with_gradient(self) -> tuple[Tensor, Tensor | None]:
        """The same, with the gradient of those that wanted one."""
        weight, bias = self.values()
        return (self.weight if self.graded[0] else weight, self.bias if self.graded[1] else bias)


class Waiting:
    """The state that lazy rows and their parts share. It refers to none of these tensors, whose
    autograd graph can refer to it.

    Attributes
    ----------
    source : where rows come from.
    linear : what they are multiplied by, None for the source's rows.
    factor : the product that is multiplied; None for a product of the source's rows.
    graded : whether autograd knows the factor's product.
    value : the rows, once they were computed; parts are views of it then.
    viewed : whether there are parts that autograd takes for views.
    exposed : whether somebody may write to `value`.
    observed : whether somebody has asked to see the rows' own gradient.
    bypassed : whether something was computed of them that gives them no gradient of their own.
    """

    def __init__(self, source: ChunkedRows, dtype: torch.dtype, linear: Linear | None = None,
                 factor: Waiting | None = None, graded: bool = False) -> None:
        self.source, self.dtype, self.linear = source, dtype, linear
        self.factor, self.graded = factor, graded
        self.value: Tensor | None = None
        self._some: tuple[slice, Tensor] | None = None
        self.viewed = self.exposed = self.observed = self.bypassed = False

    @property
    def width(self) -> int:
        return self.source.width if self.linear is None else self.linear.weight.shape[1]

    def kept(self) -> Tensor:
        """The rows, kept for everything that is done with them from now on."""
        if self.value is None:
            self.value = self.compute(slice(None))
        return self.value

    def some(self, rows: slice) -> Tensor:
        """Some rows, which nobody writes to: the last ones are not computed again."""
        if self._some is None or self._some[0] != rows:
            self._some = rows, self.compute(rows)
        return self._some[1]

    def compute(self, rows: slice) -> Tensor:
        """Some rows, without a gradient, as they were when they were asked for."""
        if self.linear is None:
            return self.source.gather(self.source.ids[rows], self.dtype)
        weight, bias = self.linear.values()
        if self.factor is None:
            return self.source.times(self.source.ids[rows], weight, bias)
        if not self.factor.exposed and (rows == slice(None) or self.factor.value is not None):
            return times(self.factor.kept()[rows], weight, bias)
        return times(self.factor.compute(rows), weight, bias)

    def peek(self, part: slice, index: slice | Tensor) -> Tensor:
        """Some rows of a part, without a gradient; nothing is kept of them."""
        if self.value is not None:
            return self.value.detach()[part][index]
        ids = self.source.ids[part]
        ids = ids[index if isinstance(index, slice) else index.numpy()]
        if self.linear is None:
            return self.source.gather(ids, self.dtype)
        weight, bias = self.linear.values()
        if self.factor is None:
            return self.source.times(ids, weight, bias)
        assert self.factor.linear is not None
        first, constant = self.factor.linear.values()
        return times(self.source.times(ids, first, constant), weight, bias)

    def may_be_passed(self) -> bool:
        """Return whether something can be computed past the rows' values: nothing has needed
        these, or something was computed so before. Then activation checkpointing, which computes
        again what it has not kept, finds as many tensors saved as before."""
        return self.value is None or (self.bypassed and not self.exposed)

    def is_observed(self) -> bool:
        return self.observed or (self.factor is not None and self.factor.is_observed())

    def bypass(self, graded: bool) -> tuple[Tensor, Tensor | None]:
        """All products as one: weight (width of the source, out) and bias or None.

        What is computed of these gives the rows, and those that they are products of, no gradient
        of their own, which is noted. The weights get theirs if `graded`.
        """
        assert self.linear is not None
        self.bypassed = True
        weight, bias = self.linear.with_gradient()
        if not graded or not torch.is_grad_enabled():
            weight, bias = self.linear.values()
        if self.factor is None:
            return weight, bias
        first, constant = self.factor.bypass(graded and self.graded)
        if constant is not None:
            constant = constant @ weight
            bias = constant if bias is None else constant + bias
        return first @ weight, bias


def times(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return rows.mm(weight) if bias is None else torch.addmm(bias, rows, weight)


def _marks(tensors: tuple[Tensor | None, ...]) -> tuple[tuple[int, ...], ...]:
    """Versions, which inference tensors have none of, and memory."""
    return tuple((t.data_ptr(), *(() if t.is_inference() else (t._version,)))
                 for t in tensors if t is not None)
