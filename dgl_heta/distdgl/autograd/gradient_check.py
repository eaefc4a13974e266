"""Find rows of the group's scope that get a gradient past all merges.

Rows are marked in autograd's graph, at the node that gives them. The part of the graph between a
loss and the merges below it ends at marks, too. With all merges cut, a gradient that arrives at a
mark came by another way; none may arrive in rows that are no own seed's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from dgl_heta.raf.chain import is_link
from dgl_heta.system.patching import plain

_KEY = "dgl-heta rows"
"""In the metadata of a node of autograd's graph: output → :class:`GroupRows`."""


class GroupRows(NamedTuple):
    """Rows of the group's scope.

    Attributes
    ----------
    foreign : bool (rows,), which ones are no own seed's.
    what : for an error.
    """

    foreign: Tensor
    what: str


def foreign_rows(own: int, count: int) -> Tensor:
    """Return which of `count` rows are no own seed's, bool (count,): the first `own` ones are."""
    return torch.arange(count) >= own


def mark_rows(rows: Tensor, own: int, what: str) -> None:
    """Mark rows in autograd's graph, of which the first `own` ones are own seeds'."""
    node: Any = rows.grad_fn
    if node is not None and own < len(rows):
        node.metadata.setdefault(_KEY, {}).setdefault(
            rows.output_nr, GroupRows(foreign_rows(own, len(rows)), what))


def mark_leaf(rows: Tensor, foreign: Tensor, what: str) -> None:
    """Mark rows that are a leaf of autograd's graph."""
    rows.heta_scope = GroupRows(foreign, what)  # type: ignore[attr-defined]


def _rows_of(edge: tuple[Any, int]) -> GroupRows | None:
    """Return the rows that an output of a node is, if they are marked."""
    node, output = edge
    rows: GroupRows | None = getattr(getattr(node, "variable", None), "heta_scope", None) or (
        node.metadata.get(_KEY, {}).get(output))
    return rows


class AboveMerges:
    """The part of autograd's graph between a loss and all merges and marks below it.

    Parameters
    ----------
    roots : of the backward pass.

    Attributes
    ----------
    marked : outputs of nodes at which rows are marked.
    merged : whether there are merges below it.
    structure : a hash of its nodes' names, of what is right below each, and of what is marked.
    """

    def __init__(self, roots: Sequence[Tensor]) -> None:
        pending: list[tuple[Any, int]] = [
            (t.grad_fn, t.output_nr) for t in roots if t.grad_fn is not None]
        # By outputs and not by nodes: one output of a node may be rows of the group, and another
        # not (`split`).
        places = {edge: place for place, edge in enumerate(pending)}
        self._roots = list(roots)
        self.marked: dict[tuple[Any, int], GroupRows] = {}
        self.merged = False
        forms = []
        for edge in pending:  # which grows
            node, output = edge
            below = []
            if (rows := _rows_of(edge)) is not None:
                self.marked[edge] = rows  # what is below it is the group's, too
            elif is_link(node):
                self.merged = True
            else:
                for each in node.next_functions:
                    if each[0] is not None:
                        if each not in places:
                            places[each] = len(pending)
                            pending.append(each)
                        below.append(places[each])
            forms.append((node.name(), output, None if rows is None else rows.what, *below))
        self._nodes = [node for node, _ in pending]
        # Losses of two node types, or of two layers, may have functions of the same names. What is
        # marked tells them apart, and which functions read it.
        self.structure = hash(tuple(forms))

    def wrong(self, grads: Sequence[Tensor | None], cut: AbstractContextManager[None]
              ) -> tuple[str | None, bool]:
        """Return rows that get a gradient and must not; and whether that is sure.

        It is not sure where rows get none at all: their weight may be 0 now, and another one in
        the next step.

        Parameters
        ----------
        grads : of the roots.
        cut : while it is entered, no gradient goes through merges.

        Raises
        ------
        RuntimeError
            Autograd cannot compute them.
        """
        edges = [GradientEdge(*edge) for edge in self.marked]
        with cut, self._row_by_row():
            gradients = plain(torch.autograd.grad)(
                self._roots, edges, list(grads), retain_graph=True, allow_unused=True)
        sure = True
        for rows, grad in zip(self.marked.values(), gradients):
            if grad is None:
                continue
            # What is not a number tells nothing: 0 times infinity is such a one.
            used = ((grad != 0) & ~grad.isnan()).reshape(len(grad), -1).any(1)
            sure = sure and bool(used.any())
            wrong = int((used & rows.foreign.to(used.device)).sum())
            if wrong:
                return f"{rows.what} ({wrong} of them)", True
        return None, sure

    @contextmanager
    def _row_by_row(self) -> Iterator[None]:
        """Let batch norms give the gradient of a row to this row alone while the body runs.

        They may look at all rows, which is documented; what comes to them must be own seeds'.
        """
        handles = [node.register_hook(lambda below, above: (above[0], *below[1:]))
                   for node in {*self._nodes} if "BatchNorm" in node.name()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
