"""The forward passes of a script, and the backward passes through them.

Every forward pass has a token chain of its own (:mod:`dgl_heta.raf.chain`). A backward pass through
one of them needs nothing else: the loss depends on the last exchange, and the chain brings in the
others. Where several are open (two models, two losses, batches kept for later), the trainers of a
group agree first which exchanges take part, so that none waits for an adjoint that another
trainer's loss does not come to; those of the missing ones are added.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dgl_heta.comm.collectives import Comm
from dgl_heta.distdgl.autograd.backward_end import BackwardEnd
from dgl_heta.distdgl.autograd.partial_gradients import below_merges, check_inputs
from dgl_heta.errors import HetaError
from dgl_heta.raf.chain import Chain, Place, Watch, links_of, reached_by_rows, walk
from dgl_heta.sampling.blocks import Block
from dgl_heta.system.nested import of_type


class CollectiveOrder(Watch):
    """The token chains of one trainer.

    Parameters
    ----------
    group : the trainers that exchange partial aggregations.
    backward : told of every backward pass that runs through an exchange.

    Attributes
    ----------
    group : as given; there may be another one until the first exchange.
    passed : the chains that the last backward pass ran through.
    parameters : whose gradients are to be None where no trainer's loss depends on them.
    checking : whether to refuse what would see parts of a gradient.
    before : is told of the roots of a backward pass, their gradients, and whether all trainers of
        the group are in it (None: those whose roots come to an exchange), before it begins.
    wrapped_only : whether to refuse parameters below the first layer that are none of these.
    """

    flags = True

    def __init__(self, group: Comm, backward: BackwardEnd) -> None:
        self.group, self._backward = group, backward
        self._open: dict[int, tuple[Chain, weakref.ref[Any]]] = {}
        self._number = 0
        self._call: set[int] | None = None  # chains in the call of a wrapped module under way
        self._chain: Chain | None = None
        self._at: set[int] | None = None  # the call of the last merge
        self._ran: set[int] = set()
        self._running = self._retain = False
        self.passed: set[int] = set()
        self.parameters: list[nn.Parameter] = []
        self.checking, self.wrapped_only = True, False
        self.before: Callable[[list[Tensor], list[Any], bool | None], None] = lambda *told: None
        self._unused: set[Place] = set()
        self._roots: list[Tensor] = []
        self._empty: list[nn.Parameter] = []
        backward.actions.append(self._passed)

    @contextmanager
    def call(self) -> Iterator[set[int]]:
        """A wrapped module runs: what it exchanges is one forward pass. Yields its chains, which
        are known at the end."""
        before = self._call
        own = self._call = set() if before is None else before
        try:
            yield own
        finally:
            self._call = before

    @property
    def under_way(self) -> bool:
        """Whether a wrapped module runs."""
        return self._call is not None

    def merging(self, block: Block, inputs: Any = ()) -> None:
        """Relations of a block are merged; `inputs` are what its source rows are in.

        A forward pass is one call of a wrapped module; outside of such a call every merge is one.
        """
        if not torch.is_grad_enabled():
            return
        if block.layer == 1 and self.checking and self.group.size > 1:
            check_inputs(inputs, self.parameters if self.wrapped_only else None)
        chain = self._chain
        if chain is None or self._call is None or self._at is not self._call or (
                self._open[chain.number][1]() is not block.done):
            self._number += 1
            self._chain = chain = Chain(self._number, self)
            self._open[self._number] = chain, weakref.ref(block.done)
        if self._call is not None:
            self._call.add(chain.number)
        self._at = self._call

    def chain_of(self, block: Block) -> Chain:
        """The chain for an exchange of a block."""
        if self._chain is None:
            self.merging(block)
        return self._chain or _NONE

    def begin(self) -> None:
        """Another batch was handed out; of those that are gone, forward passes are let go."""
        for chain, batch in self._open.values():
            if batch() is None:
                chain.tokens.clear()
                if chain is self._chain:
                    self._chain = None

    def backward(self, original: Any, tensors: Any, grad_tensors: Any = None,
                 retain_graph: bool | None = None, create_graph: bool = False,
                 grad_variables: Any = None, inputs: Any = None) -> None:
        """`torch.autograd.backward`, on all trainers through the same exchanges."""
        if self._running or self.group.size == 1 or grad_variables is not None:
            original(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
            return
        roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        grads: list[Any] = ([None] * len(roots) if grad_tensors is None else [grad_tensors]
                 if isinstance(grad_tensors, Tensor) else list(grad_tensors))
        self._running = True
        self._retain = create_graph if retain_graph is None else retain_graph
        try:
            self.before(roots, grads, True if len(self._open) > 1 else None)
            if len(self._open) > 1:
                added = self._missing(roots)
                roots, grads = [*roots, *added], [*grads, *map(torch.zeros_like, added)]
            self._roots = roots
            self._empty = [p for p in self.parameters if p.grad is None]
            if inputs is not None:  # what is not on the way to them would not run
                inputs = [*([inputs] if isinstance(inputs, Tensor) else inputs),
                          *(chain.tokens[0] for chain, _ in self._open.values() if chain.tokens)]
            original(roots, grads, retain_graph, create_graph, None, inputs)
        finally:
            self._running = self._retain = False
            self._roots, self._empty = [], []

    def grad(self, original: Any, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """`torch.autograd.grad`: of what lies above all exchanges, and of parameters.

        Raises
        ------
        HetaError
            Something else lies below an exchange: its gradient is in parts on several trainers. Or
            a second derivative through exchanges is wanted.
        """
        if not self.checking or self.group.size == 1 or self._running:
            return original(outputs, inputs, *args, **kwargs)
        roots, wanted = list(of_type(Tensor, outputs)), list(of_type(Tensor, inputs))
        given = _GRAD.bind(outputs, inputs, *args, **kwargs).arguments
        grads = given.get("grad_outputs")
        grads = [None] * len(roots) if grads is None else (
            [grads] if isinstance(grads, Tensor) else list(grads))
        below = below_merges(roots, wanted)
        self.before(roots, grads, below)
        if not below:
            return original(outputs, inputs, *args, **kwargs)
        if given.get("create_graph") or given.get("is_grads_batched"):
            raise HetaError("torch.autograd.grad of parameters below a merge of relations cannot "
                            "be taken with create_graph or is_grads_batched on a meta-partitioned "
                            "graph")
        self._running, self._retain = True, bool(given.get("retain_graph"))
        try:
            with self._backward.unheard():
                found = self._own_gradients(original, roots, grads, wanted)
        finally:
            self._finished()
            self._running = self._retain = False
            self._roots = []
        zeros = given.get("materialize_grads", False)
        if not zeros and not given.get("allow_unused") and any(grad is None for grad in found):
            raise RuntimeError(
                "One of the differentiated Tensors appears to not have been used in the graph. Set "
                "allow_unused=True if this is the desired behavior.")
        return tuple(torch.zeros_like(x) if grad is None and zeros else grad
                     for grad, x in zip(found, wanted))

    def _own_gradients(self, original: Any, roots: list[Tensor], grads: list[Any],
                       wanted: list[Tensor]) -> list[Tensor | None]:
        """Gradients of parameters of this trainer's own loss; all trainers of the group call it.

        A backward pass gives a machine gradients by its relations of all trainers' losses. So there
        is a pass for each trainer, in which its loss alone has a gradient; what machines have of
        its gradients is summed.
        """
        group, chains = self.group, [chain for chain, _ in self._open.values()]
        own = links_of(roots)
        mine = [own.get(number, -1) + 1 for number in self._open]
        every = group.all_reduce(torch.tensor(mine), "max", "control").tolist()
        ends = [self._token(chain, link) for chain, link in zip(chains, every) if link]
        more = [self._token(chain, link) for chain, link, before in zip(chains, every, mine)
                if before < link]
        firsts = [chain.tokens[0] for chain in chains if chain.tokens]
        retain, pieces = self._retain, []
        for rank in range(group.size):
            self._retain = retain or rank + 1 < group.size
            outputs, given = ([*roots, *more], [*grads, *map(torch.zeros_like, more)]) if (
                rank == group.rank) else (ends, [*map(torch.zeros_like, ends)])
            self._roots = outputs
            found = original(outputs, [*wanted, *firsts], given, retain_graph=self._retain,
                             allow_unused=True)[:len(wanted)]
            if self._unused:
                used = self._used()
                found = [grad if id(x) in used else None for x, grad in zip(wanted, found)]
                self._unused.clear()
            pieces.append(torch.cat([
                *(torch.zeros_like(x).flatten() if grad is None else grad.to_dense().flatten()
                  for x, grad in zip(wanted, found)),
                torch.tensor([float(grad is not None) for grad in found], dtype=wanted[0].dtype)]))
        total = group.reduce_scatter_rows(torch.stack(pieces), [1] * group.size, "gradients")[0]
        there = total[-len(wanted):].tolist()
        values = total[:-len(wanted)].split([x.numel() for x in wanted])
        return [value.view_as(x).to(x.dtype) if count else None
                for value, x, count in zip(values, wanted, there)]

    @staticmethod
    def _token(chain: Chain, link: int) -> Tensor:
        """What a backward pass begins at that comes to the first so many links of a chain."""
        if len(chain.tokens) <= link:
            raise HetaError(
                "another trainer's loss depends on a forward pass that this trainer's does not "
                "depend on, and has let go; let the losses of all trainers depend on the same "
                "forward passes")
        return chain.tokens[link]

    @contextmanager
    def paths_beside(self) -> Iterator[None]:
        """For the body no gradient goes through exchanges."""
        self.cut = True
        try:
            yield
        finally:
            self.cut = False

    def _missing(self, roots: Sequence[Tensor]) -> list[Tensor]:
        """Tokens of the exchanges that other trainers' losses come to, and this one's does not."""
        own = links_of(roots)
        mine = [[own.get(number, -1) + 1, int(chain.alive)]
                for number, (chain, _) in self._open.items()]
        every = self.group.all_reduce(torch.tensor(mine), "max", "control").tolist()
        added = []
        for (number, (chain, _)), (before, _), (reached, alive) in zip(
                list(self._open.items()), mine, every):
            if before < reached:
                added.append(self._token(chain, reached))
            elif not alive:
                self._close(number)
        return added

    def ran(self, place: Place) -> None:
        self._ran.add(place[0])
        self._backward.under_way()

    def unused(self, place: Place) -> None:
        self._unused.add(place)

    def is_used(self, place: Place) -> bool:
        return not self._unused or place in reached_by_rows(self._roots, self._unused)

    def _forget_zeros(self) -> None:
        """Parameters that no trainer's loss depends on have no gradient.

        Functions below an exchange whose result nobody used were run nevertheless, for the chain's
        sake, and some of them give zeros for a gradient that is missing.
        """
        if self._unused and self._empty:
            used = self._used()
            for parameter in self._empty:
                if id(parameter) not in used:
                    parameter.grad = None
        self._unused.clear()

    def _used(self) -> set[int]:
        """The leaves that the backward pass came to past links that are used."""
        return {id(node.variable) for node in walk(self._roots, self._unused)
                if hasattr(node, "variable")}

    def _passed(self) -> None:
        """At the end of a backward pass."""
        self._forget_zeros()
        self.passed = self._finished()

    def _finished(self) -> set[int]:
        """What a backward pass went through cannot be gone through again. Returns the chains."""
        if not self._retain:
            for number in self._ran & set(self._open):
                self._close(number)
        ran, self._ran, self._chain = self._ran, set(), None
        return ran

    def _close(self, number: int) -> None:
        chain, _ = self._open.pop(number)
        chain.tokens.clear()
        if chain is self._chain:
            self._chain = None


_GRAD = inspect.signature(torch.autograd.grad)
_NONE = Chain()
"""For exchanges without gradients."""
