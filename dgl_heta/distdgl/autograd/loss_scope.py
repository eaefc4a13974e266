"""Whose a row or a number is: the trainer's own, or its group's.

A trainer of plain DGL has a batch for itself: its seeds, and all rows that these reach. Under RAF
the trainers of a group have one batch together. What one of them is given of it, beside the rows of
its own seeds, is what its *machine* reads for the seeds of *all*::

                 for               by which relations
    plain DGL    its own seeds     all
    RAF          everybody's       its machine's

So rows of input nodes and of states between layers, and how many nodes, edges and ids there are,
have another scope than in plain DGL: the group's. A merge of relations turns one into the other: it
sums over the machines, its adjoint over the trainers, and what it gives the trainer's own seeds is
what plain DGL gives them. That is the principle: **a value of the group's scope may come to a loss
only by way of a merge.** Past all merges a row would count as often as machines read it, and for
the seeds of others. The gradient would be another one than plain DGL's, and nothing would say so.

The trainer's own seeds lead the rows of their type at every level, and are complete there. A loss
may use them in any way (residuals, jumping knowledge, `rows[:n]`).

Three checks hold it. None has a list of operations that a script may use:

- **Gradients**, at every backward pass (here). Rows are marked in autograd's graph where they are
  given to a merge, come from one below the last layer, or from a DistEmbedding. Where a loss
  comes to a mark past all merges, gradients are computed with the merges cut. Rows that are no own
  seed's must have none.
- **Values** without a gradient (ids, features, masks, numbers taken out of tensors), at steps to
  prove (:mod:`.dependence`). The loss is computed again from what was handed out,
  with other values in rows that are no own seed's. It must be the same to the last bit.
- **Counts**, of which Python makes plain integers, at these steps (:mod:`.batch_counts`).
  A number in the loss is one if it follows from the same count on each trainer, and differs.

Batch and instance norms may look at all rows: it is documented that these are their machine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from dgl import NID
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.utils.weak import WeakTensorKeyDictionary

from dgl_heta.comm.collectives import Comm
from dgl_heta.distdgl.autograd.batch_counts import Counts
from dgl_heta.distdgl.autograd.collective_order import CollectiveOrder
from dgl_heta.distdgl.autograd.dependence import Source, Trace, tidy
from dgl_heta.distdgl.autograd.partial_gradients import watch
from dgl_heta.distdgl.batch_ids import bare
from dgl_heta.errors import HetaError
from dgl_heta.proof.gather import CAUSE
from dgl_heta.raf.chain import is_link, walk, walk_below
from dgl_heta.sampling.blocks import Block, MiniBatch
from dgl_heta.settings import Settings
from dgl_heta.store import Store
from dgl_heta.system.nested import items_of, of_type
from dgl_heta.system.patching import plain

_KEY = "dgl-heta rows"
"""In the metadata of a node of autograd's graph: output → :class:`Rows`."""


class Rows(NamedTuple):
    """Rows of the group's scope.

    Attributes
    ----------
    others : bool (rows,), which ones are no own seed's.
    what : for an error.
    """

    others: Tensor
    what: str


class _Run(Protocol):
    """What is asked of the session of a run."""

    order: CollectiveOrder
    settings: Settings
    store: Store

    @property
    def group(self) -> Comm: ...

    def say(self, text: str) -> None: ...


class LossScope:
    """Holds the principle for the batches of one trainer."""

    def __init__(self, session: _Run) -> None:
        self._session = session
        self._checked: set[int] = set()
        self._below: Any = WeakTensorKeyDictionary()
        """Parameters below merges."""
        self._passes = 0
        self._trace: Trace | None = None
        self._batches: list[set[tuple[int, str]]] = []
        """Of the trace, by what their blocks note."""
        self._used = False
        self._counts = Counts()

    @property
    def _holds(self) -> bool:
        """Whether there are other trainers' rows, and this is the run and not a replay of it."""
        session = self._session
        return (session.group.size > 1 and session.order.checking
                and session.settings.run.record is None)  # else runs are compared as they are

    # --- what is of the group's scope -----------------------------------------------------------

    def begin(self, batch: MiniBatch, given: Sequence[Any], prove: bool) -> None:
        """A batch is handed out, at a step to prove or not; what a script is given of it are ids by
        node type, and blocks."""
        tidy()
        if self._used:
            self.end()
        if not self._holds or not (prove or self._counts.wanted):
            return
        schema, shares = self._session.store.schema, batch.blocks[-1].seeds
        if self._trace is None:
            self._trace = Trace()
            self._counts.begin(batch, schema.node_types, schema.relations)
            self._trace.start()
        self._batches.append(batch.blocks[0].done)
        with self.aside():
            for ntype, ids in (pair for part in given for pair in _ids(part)):
                own = shares[ntype].own if ntype in shares else 0
                self._trace.add(ids, Source(
                    bare(ids).clone(), _foreign(own, len(ids)), f"what is read by ids of '{ntype}'",
                    schema.node_counts[ntype], ids=True))

    def end(self) -> None:
        """No batch is looked at any longer."""
        if self._trace is not None:
            self._trace.stop()
        self._trace, self._used = None, False
        self._batches.clear()

    def _is_traced(self, block: Block) -> bool:
        """Whether a block's batch is looked at; it ends when another one's turn has come."""
        traced = any(done is block.done for done in self._batches)
        if self._used and not traced:
            self.end()
        return traced

    @contextmanager
    def aside(self) -> Iterator[None]:
        """For the body nothing is noted: it is no part of what a script computes its loss by."""
        if self._holds:  # and not inside a replay, which ends an inference_mode for a while
            tidy()
        with nullcontext() if self._trace is None else self._trace.aside():
            yield

    @contextmanager
    def merge(self, block: Block, inputs: Any) -> Iterator[Callable[[str, Tensor], None]]:
        """A merge of a block's relations runs, of rows by node type in `inputs`; yields what is to
        be told of each result."""
        if not self._holds:
            yield lambda ntype, rows: None
            return
        for path, rows in items_of(Tensor, inputs):
            ntype = next((key for key in path if key in block.num_src), None)
            if ntype is not None and len(rows) == block.num_src[ntype]:
                _mark(rows, _own(block, ntype),
                      f"the rows of '{ntype}' that layer {block.layer} reads")
        trace = self._trace if self._is_traced(block) else None

        def merged(ntype: str, rows: Tensor) -> None:
            if block.last:  # of own seeds
                return
            own, what = _own(block, ntype), f"the states of '{ntype}' after layer {block.layer}"
            _mark(rows, own, what)
            if trace is not None:
                trace.add(rows, Source(rows.detach(), _foreign(own, len(rows)), what,
                                       self._session.store.schema.node_counts[ntype],
                                       missing=_incomplete(block, ntype, len(rows))))

        with self.aside():
            yield merged

    def learn(self, rows: Tensor, ntype: str, others: Tensor) -> None:
        """Rows of a DistEmbedding were read by ids of batches, as leaves that get a gradient;
        `others` are no own seed's, bool (rows,). What a trainer reads for itself is its own."""
        if not self._holds or not bool(others.any()):
            return
        watch(rows)
        rows.heta_scope = Rows(  # type: ignore[attr-defined]
            others, f"rows of the DistEmbedding of '{ntype}'")

    def is_below(self, parameter: Tensor) -> bool:
        """Whether a parameter is below a merge, so that its gradients are in parts."""
        return self._holds and parameter in self._below

    def written(self, length: int, values: Any) -> None:
        """Values are written to a table of so many rows.

        Raises
        ------
        HetaError
            They are incomplete states.
        """
        if self._trace is not None and self._holds:
            with self._trace.aside():
                self._trace.check_memory(length, self._trace.refs([*of_type(Tensor, values)]))

    def read(self, rows: Tensor, ids: Any, again: Callable[[Tensor], Tensor]) -> None:
        """Rows of a table were read by ids; `again` reads those of others."""
        if self._trace is not None and self._holds:
            self._trace.read(rows, ids, again)

    # --- what may come to a loss ----------------------------------------------------------------

    def check(self, roots: Sequence[Tensor], grads: Sequence[Tensor | None],
              together: bool | None) -> None:
        """A backward pass begins, on all trainers of the group `together` or not; None: on those
        whose loss comes to merges.

        Raises
        ------
        HetaError
            Rows or numbers of the group's scope come to it past all merges; at a step to prove on
            all trainers of the group alike.
        """
        if not self._holds:
            return
        above, trace, text = _Above(roots), self._trace, None
        self._passes += 1
        if trace is not None or self._passes < _PASSES:
            self._watch_below(roots)
        if above.marked and (trace is not None or above.structure not in self._checked):
            text, sure = self._gradients(above, roots, grads)
            if sure:
                self._checked.add(above.structure)
        if trace is not None:
            self._used = True
            text = text or self._dependence(trace, [*roots, *(g for g in grads if g is not None)])
            if above.merged if together is None else together:
                text = self._agreed(trace, text, trace.numbers(roots))
        if text is not None:
            raise HetaError(text + _WHY)

    def _watch_below(self, roots: Sequence[Tensor]) -> None:
        """Gradients of parameters below merges are marked, unless they are averaged at once."""
        wrapped = {id(p) for p in self._session.order.parameters}
        for node in walk_below([node for node in walk(roots) if is_link(node)]):
            leaf = getattr(node, "variable", None)
            if leaf is None or self.is_below(leaf) or getattr(leaf, "heta_rows", False):
                continue
            self._below[leaf] = True
            if id(leaf) not in wrapped:
                watch(leaf)

    def _gradients(self, above: _Above, roots: Sequence[Tensor], grads: Sequence[Tensor | None]
                   ) -> tuple[str | None, bool]:
        """What gets a gradient past all merges and must not; and whether that is sure: rows that
        get none at all, as their weight is 0 now, may get one in the next step."""
        edges = [GradientEdge(*edge) for edge in above.marked]
        try:
            with self._session.order.paths_beside(), above.row_by_row():
                gradients = plain(torch.autograd.grad)(
                    list(roots), edges, list(grads), retain_graph=True, allow_unused=True)
        except RuntimeError as error:  # checkpoint(use_reentrant=True), or backward() says it, too
            self._session.say(f"{_NOT} past all merges: {error}")
            return None, False
        sure = True
        for rows, grad in zip(above.marked.values(), gradients):
            if grad is None:
                continue
            used = ((grad != 0) & ~grad.isnan()).reshape(len(grad), -1).any(1)
            sure = sure and bool(used.any())
            wrong = int((used & rows.others.to(used.device)).sum())
            if wrong:
                return f"the loss depends on {rows.what} ({wrong} of them)", True
        return None, sure

    def _dependence(self, trace: Trace, tensors: Sequence[Tensor]) -> str | None:
        try:
            with trace.aside():
                what = trace.dependence(tensors)
        except Exception as error:  # of a script's operations, on other values
            self._session.say(f"{_NOT} by their values: {type(error).__name__}: {error}")
            return None
        return None if what is None else f"the loss depends on {what}"

    def _taken(self, trace: Trace) -> list[float]:
        try:
            with trace.aside():
                return trace.taken()
        except Exception as error:
            self._session.say(f"{_NOT} by numbers taken from them: {error}")
            return []

    def _agreed(self, trace: Trace, text: str | None, numbers: Sequence[float]) -> str | None:
        """What the first trainer of the group says that found something, or what all find."""
        group = self._session.group
        every = group.all_gather_json([text, list(numbers)], CAUSE)
        for rank, (told, _) in zip(group.ranks, every):
            if told is not None:
                return f"on trainer {rank} {told}"
        of_each = [of_trainer for _, of_trainer in every]
        if not all(of_each):
            return None
        values = group.all_gather_json([*self._counts.values, *self._taken(trace)], CAUSE)
        name = self._counts.found(of_each, values)
        return None if name is None else f"the loss depends on {name}"


_PASSES = 3
"""The first backward passes, in which parameters below merges are looked for."""
_NOT = "not proved: whether the loss depends on rows of the group's batch"
_WHY = (", beyond this trainer's own seeds and past all merges of relations. With RAF that is of "
        "what this machine reads for the seeds of all trainers, so gradients would not be those of "
        "plain DGL. Use rows of own seeds, which come first (rows[:n]), numbers of own seeds, or "
        "whole parameters (weight_decay); see docs/switching.md, 'Whose rows and numbers'")


def _ids(part: Any) -> Iterator[tuple[str, Tensor]]:
    """Ids by node type: of input nodes, or of a block's nodes on both sides."""
    if isinstance(part, Mapping):
        yield from part.items()
        return
    for types, nodes in ((part.srctypes, part.srcnodes), (part.dsttypes, part.dstnodes)):
        yield from ((t, nodes[t].data[NID]) for t in types)


def _foreign(own: int, count: int) -> Tensor:
    """Which of so many rows are no own seed's, bool (count,)."""
    return torch.arange(count) >= own


def _own(block: Block, ntype: str) -> int:
    """How many leading rows of a type are the trainer's own seeds'."""
    return block.seeds[ntype].own if ntype in block.seeds else 0


def _incomplete(block: Block, ntype: str, count: int) -> Tensor | None:
    """Which states are not complete, because no edge reads them here; bool (count,)."""
    reads = block.reads.get(ntype)
    if reads is None:
        return None
    missing = torch.zeros(count, dtype=torch.bool)
    missing[_own(block, ntype):block.num_seeds(ntype)] = True
    missing[reads.rows] = False
    return missing


def _mark(rows: Tensor, own: int, what: str) -> None:
    """Let autograd's graph tell whose rows these are: the first ones are own seeds'."""
    node: Any = rows.grad_fn
    if node is not None and own < len(rows):
        node.metadata.setdefault(_KEY, {}).setdefault(
            rows.output_nr, Rows(_foreign(own, len(rows)), what))


class _Above:
    """The part of autograd's graph that lies above all merges.

    Attributes
    ----------
    marked : outputs of nodes at which rows are marked, which end it, too.
    merged : whether there are merges below it.
    structure : a hash of its nodes' names.
    """

    def __init__(self, roots: Sequence[Tensor]) -> None:
        pending: list[tuple[Any, int]] = [
            (t.grad_fn, t.output_nr) for t in roots if t.grad_fn is not None]
        seen = set(pending)
        self.marked: dict[tuple[Any, int], Rows] = {}
        self.merged = False
        self._nodes: list[Any] = []
        while pending:
            node, output = edge = pending.pop()
            self._nodes.append(node)
            rows = getattr(getattr(node, "variable", None), "heta_scope", None) or (
                node.metadata.get(_KEY, {}).get(output))
            if rows is not None:
                self.marked[edge] = rows
            elif is_link(node):
                self.merged = True
            else:
                new = {below for below in node.next_functions if below[0] is not None} - seen
                seen |= new
                pending += new
        self.structure = hash(tuple(sorted(node.name() for node in self._nodes)))

    @contextmanager
    def row_by_row(self) -> Iterator[None]:
        """For the body batch norms give the gradient of a row to this row alone."""
        handles = [node.register_hook(lambda below, above: (above[0], *below[1:]))
                   for node in {*self._nodes} if "BatchNorm" in node.name()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
