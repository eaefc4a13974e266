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

- **Gradients**, at every backward pass (:mod:`.gradient_check`). Rows are marked in autograd's
  graph where they are given to a merge, come from one below the last layer, or from a
  DistEmbedding. Where a loss comes to a mark past all merges, gradients are computed with the
  merges cut. Rows that are no own seed's must have none.
- **Values** without a gradient (ids, features, masks, numbers taken out of tensors), at steps to
  prove. Operations are noted (:mod:`.trace`), and the loss is computed again (:mod:`.dependence`)
  with other values in rows that are no own seed's. It must be the same to the last bit.
- **Counts**, of which Python makes plain integers, at these steps (:mod:`.batch_counts`).
  A number in the loss is one if it follows from the same count on each trainer, and differs.

Gradients *below* merges are in parts until they are averaged: :mod:`.partial_gradients`.

Batch and instance norms may look at all rows: it is documented that these are their machine's.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol, TypeVar

import torch
from dgl import NID
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from dgl_heta.comm.collectives import Comm
from dgl_heta.distdgl.autograd.batch_counts import BatchCounts
from dgl_heta.distdgl.autograd.collective_order import CollectiveOrder
from dgl_heta.distdgl.autograd.dependence import Source
from dgl_heta.distdgl.autograd.gradient_check import (
    AboveMerges,
    foreign_rows,
    mark_leaf,
    mark_rows,
)
from dgl_heta.distdgl.autograd.partial_gradients import has_hooks, watch
from dgl_heta.distdgl.autograd.trace import Trace, tidy
from dgl_heta.distdgl.batch_ids import bare
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.errors import HetaError
from dgl_heta.proof.gather import CAUSE
from dgl_heta.raf.chain import is_link, walk, walk_below
from dgl_heta.sampling.blocks import Block, MiniBatch
from dgl_heta.settings import Settings
from dgl_heta.store import Store
from dgl_heta.system.nested import items_of, of_type

T = TypeVar("T")
_PASSES = 3
"""The first backward passes, in which hooks of parameters below merges are looked for."""
_LOOK = "dgl-heta look"
"""In the metadata of a node of autograd's graph: by what a script looks at its gradient."""
_NOT = "not proved: whether the loss depends on rows of the group's batch"


class _Run(Protocol):
    """The part of a session that is read here."""

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
        self._checked: set[int] = set()  # structures of graphs above merges
        self._below: Any = WeakTensorKeyDictionary()  # parameters below merges
        self._passes = 0
        self._looks = False  # whether the script has put a hook on a tensor
        self._trace: Trace | None = None
        # Of the trace's batches the sets of merges that their blocks have in common, by which
        # blocks are known as theirs.
        self._batches: list[set[tuple[int, str]]] = []
        self._used = False  # whether a backward pass has come to the trace
        self._counts = BatchCounts()

    @property
    def _holds(self) -> bool:
        """True if there are other trainers' rows, and this is the run and not a replay of it."""
        session = self._session
        # While `dgl-heta prove` records, two runs are compared as they are.
        return (session.group.size > 1 and session.order.checking
                and session.settings.run.record is None)

    # --- what is of the group's scope -----------------------------------------------------------

    def begin(self, batch: MiniBatch, given: Sequence[Any], prove: bool) -> None:
        """Note a batch that is handed out, at a step to `prove` or not. `given` to the script are
        ids by node type, and blocks."""
        tidy()
        if self._used:  # a backward pass came to it: the next batch is looked at by its own
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
                    bare(ids).clone(), foreign_rows(own, len(ids)),
                    f"what is read by ids of '{ntype}'", schema.node_counts[ntype], ids=True))

    def end(self) -> None:
        """Look at no batch any longer."""
        if self._trace is not None:
            self._trace.stop()
        self._trace, self._used = None, False
        self._batches.clear()

    def _is_traced(self, block: Block) -> bool:
        """Return whether a block's batch is looked at; it ends when another one's turn has come."""
        traced = any(done is block.done for done in self._batches)
        if self._used and not traced:
            self.end()
        return traced

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Note nothing while the body runs: it is no part of what a script computes its loss by."""
        if self._holds:  # and not inside a replay, which ends an inference_mode for a while
            tidy()
        with nullcontext() if self._trace is None else self._trace.aside():
            yield

    @contextmanager
    def merge(self, block: Block, inputs: Any) -> Iterator[Callable[[str, Tensor], None]]:
        """Let the body merge a block's relations, of rows by node type in `inputs`; yields what is
        to be told of each result."""
        if not self._holds:
            yield lambda ntype, rows: None
            return
        for path, rows in items_of(Tensor, inputs):
            ntype = next((key for key in path if key in block.num_src), None)
            if ntype is not None and len(rows) == block.num_src[ntype]:
                mark_rows(rows, _own(block, ntype),
                          f"the rows of '{ntype}' that layer {block.layer} reads")
        trace = self._trace if self._is_traced(block) else None

        def merged(ntype: str, rows: Tensor) -> None:
            if block.last:  # the rows are own seeds', and complete
                return
            own, what = _own(block, ntype), f"the states of '{ntype}' after layer {block.layer}"
            mark_rows(rows, own, what)
            if trace is not None:
                trace.add(rows, Source(rows.detach(), foreign_rows(own, len(rows)), what,
                                       self._session.store.schema.node_counts[ntype],
                                       missing=_incomplete(block, ntype, len(rows))))

        with self.aside():
            yield merged

    def learn(self, rows: Tensor, ntype: str, others: Tensor) -> None:
        """Note rows of a DistEmbedding that were read by ids of batches, leaves that get a
        gradient; `others` are no own seed's, bool (rows,). What a trainer reads for itself is its
        own."""
        if not self._holds or not bool(others.any()):
            return
        watch(rows)
        mark_leaf(rows, others, f"rows of the DistEmbedding of '{ntype}'")

    def computed(self, ids: Tensor) -> bool:
        """Return whether ids, by which a trainer reads for itself, follow from ids of a batch that
        are no own seeds'; False outside of steps to prove."""
        trace = self._trace
        return trace is not None and self._holds and self._tried(
            trace, lambda: trace.dependence([ids]) is not None, False, "by ids")

    def is_below(self, parameter: Tensor) -> bool:
        """Return whether a parameter is below a merge, so that its gradients are in parts."""
        return self._holds and parameter in self._below

    def written(self, length: int, values: Any) -> None:
        """Check values that are written to a table of so many rows.

        Raises
        ------
        HetaError
            They are incomplete states.
        """
        if self._trace is not None and self._holds:
            with self._trace.aside():
                self._trace.check_memory(length, self._trace.refs([*of_type(Tensor, values)]))

    def read(self, rows: Tensor, ids: Any, again: Callable[[Tensor], Tensor]) -> None:
        """Note that rows of a table were read by ids; `again` reads those of others."""
        if self._trace is not None and self._holds:
            self._trace.read(rows, ids, again)

    # --- what may come to a loss ----------------------------------------------------------------

    def check(self, roots: Sequence[Tensor], grads: Sequence[Tensor | None],
              together: bool | None) -> None:
        """Check a loss before its backward pass, which begins on all trainers of the group
        `together` or not; None: on those whose loss comes to merges.

        Raises
        ------
        HetaError
            Rows or numbers of the group's scope come to it past all merges; at a step to prove on
            all trainers of the group alike.
        """
        if not self._holds:
            return
        above, trace, text = AboveMerges(roots), self._trace, None
        self._passes += 1
        if self._looks or self._passes < _PASSES:
            self._check_looks(roots)
        self._watch_below(roots)
        if above.marked and (trace is not None or above.structure not in self._checked):
            text = _depends(self._gradients(above, grads))
        if trace is not None:
            self._used = True
            of = [*roots, *(grad for grad in grads if grad is not None)]
            text = text or _depends(self._tried(
                trace, lambda: trace.dependence(of), None, "by their values"))
            # At a step to prove the trainers tell each other, so that all end with one message. A
            # collective is for all or none: whether losses come to merges is alike on all trainers
            # where it decides, as these would wait for each other in the backward pass, too.
            if above.merged if together is None else together:
                text = self._of_any_trainer(trace, text, trace.numbers(roots))
        if text is not None:
            refuse("loss", text=text)

    def look(self, tensor: Tensor, call: str) -> None:
        """Note that a script looks at a tensor's gradient, by a hook or by retain_grad."""
        if self._holds:
            self._looks = True
            if tensor.grad_fn is not None:
                tensor.grad_fn.metadata[_LOOK] = call  # type: ignore[index]

    def _check_looks(self, roots: Sequence[Tensor]) -> None:
        """
        Raises
        ------
        HetaError
            The script would see a part of a gradient below a merge.
        """
        rows = [node.next_functions[0][0] for node in walk(roots) if is_link(node)]
        for node in walk_below([node for node in rows if node is not None]):
            leaf = getattr(node, "variable", None)
            if leaf is not None and has_hooks(leaf):
                refuse("hook of a parameter", name=f"of shape {tuple(leaf.shape)}")
            if call := node.metadata.get(_LOOK):
                refuse("look at a gradient inside a model", call=call)

    def _watch_below(self, roots: Sequence[Tensor]) -> None:
        """Mark gradients of parameters below merges from now on, unless they are averaged at
        once."""
        wrapped = {id(p) for p in self._session.order.parameters}
        for node in walk_below([node for node in walk(roots) if is_link(node)]):
            leaf = getattr(node, "variable", None)
            if leaf is None or self.is_below(leaf) or getattr(leaf, "heta_rows", False):
                continue
            self._below[leaf] = True
            if id(leaf) not in wrapped:
                watch(leaf)

    def _gradients(self, above: AboveMerges, grads: Sequence[Tensor | None]) -> str | None:
        """Return what gets a gradient past all merges and must not; None if nothing does."""
        try:
            what, sure = above.wrong(grads, self._session.order.cut_exchanges())
        except RuntimeError as error:  # checkpoint(use_reentrant=True), or backward() says it, too
            self._session.say(f"{_NOT} past all merges: {error}")
            return None
        if sure:
            self._checked.add(above.structure)
        return what

    def _tried(self, trace: Trace, ask: Callable[[], T], otherwise: T, how: str) -> T:
        """Return what a trace says, or `otherwise` where it cannot: the script's operations run on
        values that the script does not expect."""
        try:
            with trace.aside():
                return ask()
        except Exception as error:
            self._session.say(f"{_NOT} {how}: {type(error).__name__}: {error}")
            return otherwise

    def _of_any_trainer(self, trace: Trace, text: str | None, numbers: Sequence[float]
                        ) -> str | None:
        """Return the text of the first trainer of the group that has one; else, where a count is
        among the numbers of all, a text on this."""
        group = self._session.group
        every = group.all_gather_json([text, list(numbers)], CAUSE)
        for rank, (told, _) in zip(group.ranks, every):
            if told is not None:
                return f"on trainer {rank} {told}"
        of_each = [of_trainer for _, of_trainer in every]
        if not all(of_each):
            return None
        nothing: list[float] = []
        taken = self._tried(trace, trace.taken, nothing, "by numbers taken from them")
        values = group.all_gather_json([*self._counts.values, *taken], CAUSE)
        return _depends(self._counts.counted(of_each, values))


def _depends(what: str | None) -> str | None:
    return None if what is None else f"the loss depends on {what}"


def _ids(part: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield ids by node type: of input nodes, or of a block's sources and destinations."""
    if isinstance(part, Mapping):
        yield from part.items()
        return
    for types, nodes in ((part.srctypes, part.srcnodes), (part.dsttypes, part.dstnodes)):
        yield from ((t, nodes[t].data[NID]) for t in types)


def weakly(table: Any, read: Callable[[Any, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a function of ids that reads rows of a table, and does not keep it: its rows are gone
    when the script lets it go, and a new one of the same name has new ones."""
    held = weakref.ref(table)

    def again(ids: Tensor) -> Tensor:
        if (there := held()) is None:
            raise HetaError("rows were read of a table that the script has let go")
        return read(there, ids)
    return again


def _own(block: Block, ntype: str) -> int:
    """Return how many leading rows of a type are the trainer's own seeds'."""
    return block.seeds[ntype].own if ntype in block.seeds else 0


def _incomplete(block: Block, ntype: str, count: int) -> Tensor | None:
    """Return which states are not complete, because no edge reads them here; bool (count,)."""
    reads = block.reads.get(ntype)
    if reads is None:
        return None
    missing = torch.zeros(count, dtype=torch.bool)
    missing[_own(block, ntype):block.num_seeds(ntype)] = True
    missing[reads.rows] = False
    return missing
