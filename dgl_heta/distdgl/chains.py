"""The forward passes of a script, and the backward passes through them.

Every forward pass has a token chain of its own (:mod:`dgl_heta.raf.chain`). A backward pass through
one of them needs nothing else: the loss depends on the last exchange, and the chain brings in the
others. Where several are open (two models, two losses, batches kept for later), the trainers of a
group agree first which exchanges take part, so that none waits for an adjoint that another
trainer's loss does not come to; those of the missing ones are added.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dgl_heta.comm.collectives import Comm
from dgl_heta.distdgl.backward import BackwardEnd
from dgl_heta.distdgl.partial import check_grad, check_inputs
from dgl_heta.errors import HetaError
from dgl_heta.raf.chain import Chain, Place, Watch, links_of, reached_by_rows, walk
from dgl_heta.sampling.blocks import Block
from dgl_heta.system.nested import of_type


class Chains(Watch):
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
        the group are in it, before it begins.
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
        self.before: Callable[[list[Tensor], list[Any], bool], None] = lambda *told: None
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

    def of(self, block: Block) -> Chain:
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
            self.before(roots, grads, True)
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
        """`torch.autograd.grad`, of what lies above all exchanges.

        Raises
        ------
        HetaError
            It lies below one: its gradient is in parts on several trainers.
        """
        if self.checking and self.group.size > 1 and not self._running:
            check_grad(outputs, inputs)
            roots = [*of_type(Tensor, outputs)]
            given = args[0] if args else kwargs.get("grad_outputs")
            self.before(roots, [*of_type(Tensor, given)] or [None] * len(roots), False)
        return original(outputs, inputs, *args, **kwargs)

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
                if len(chain.tokens) <= reached:
                    raise HetaError(
                        "another trainer's loss depends on a forward pass that this trainer's does "
                        "not depend on, and has let go; let the losses of all trainers depend on "
                        "the same forward passes")
                added.append(chain.tokens[reached])
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
            used = {id(node.variable) for node in walk(self._roots, self._unused)
                    if hasattr(node, "variable")}
            for parameter in self._empty:
                if id(parameter) not in used:
                    parameter.grad = None
        self._unused.clear()

    def _passed(self) -> None:
        """At the end of a backward pass: what it went through cannot be gone through again."""
        self._forget_zeros()
        if not self._retain:
            for number in self._ran & set(self._open):
                self._close(number)
        self.passed, self._ran = self._ran, set()
        self._chain = None

    def _close(self, number: int) -> None:
        chain, _ = self._open.pop(number)
        chain.tokens.clear()
        if chain is self._chain:
            self._chain = None


_NONE = Chain()
"""For exchanges without gradients."""
