"""The order of collectives in a script's backward passes.

A backward pass runs the adjoints of exchanges, which are collectives: all trainers of a group must
run the same ones in the same order, whatever their losses depend on. Each exchange takes the
*token* of the one before it and returns its own, so that autograd has no choice; the exchanges of
one forward pass are the links of a *chain* (why, and a drawing: :mod:`dgl_heta.raf.chain`).

A model of dgl-heta has one forward pass at a time. A script may have several open: two models, two
losses, batches kept for later. Each has a chain of its own. A backward pass through one of them
needs nothing else: the loss depends on the last exchange, and the chain brings in the others. Where
several are open, the trainers agree first which chains take part and how far, so that none waits
for an adjoint that another trainer's loss does not come to. A trainer whose loss does not come to
such a link begins its backward pass at the link's token, too, with a gradient of zero. They agree
also where one is open whose gradients nobody averages. Where DistributedDataParallel does, each
trainer knows by itself: a loss of the module's parameters alone belongs to the module's pass.
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
from dgl_heta.distdgl.autograd.partial_gradients import below_merges, check_inputs
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.raf.backward_end import BackwardEnd
from dgl_heta.raf.chain import Chain, LinkId, NotedLinks, is_link, links_of, walk
from dgl_heta.sampling.blocks import Block
from dgl_heta.system.nested import of_type


class CollectiveOrder(NotedLinks):
    """The chains of one trainer's forward passes, and the backward passes through them.

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
    averaging : returns the modules whose gradients are averaged after the backward pass through a
        chain, by its number.
    """

    flags = True

    def __init__(self, group: Comm, backward: BackwardEnd) -> None:
        super().__init__()
        self.group, self._backward = group, backward
        # Chains that a backward pass may still go through, by their numbers, and the batches that
        # they are of (the set of merges that a batch's blocks have in common).
        self._open: dict[int, tuple[Chain, weakref.ref[Any]]] = {}
        self._number = 0
        self._chain: Chain | None = None  # of the last merge
        self._call: set[int] | None = None  # chains in the call of a wrapped module under way
        self._last_call: set[int] | None = None  # the call of the last merge
        # Of the backward pass under way:
        self._ran: set[int] = set()  # the chains that it ran through so far
        self._running = self._retain = False
        self.passed: set[int] = set()
        self.parameters: list[nn.Parameter] = []
        self.checking, self.wrapped_only = True, False
        self.before: Callable[[list[Tensor], list[Any], bool | None], None] = lambda *told: None
        self.averaging: Callable[[int], list[nn.Module]] = lambda number: []
        self._empty: list[nn.Parameter] = []  # parameters without a gradient before it
        backward.actions.append(self._passed)

    @contextmanager
    def call(self) -> Iterator[set[int]]:
        """Let the body run a wrapped module: what it exchanges is one forward pass. Yields its
        chains, which are known at the end."""
        before = self._call
        chains = self._call = set() if before is None else before
        try:
            yield chains
        finally:
            self._call = before

    @property
    def running(self) -> bool:
        """True inside a backward pass."""
        return self._running

    @property
    def under_way(self) -> bool:
        """True if a wrapped module runs."""
        return self._call is not None

    def merging(self, block: Block, inputs: Any = ()) -> None:
        """Note that relations of a block are about to be merged, whose source rows are in
        `inputs`, and begin a chain if this is another forward pass.

        A forward pass is one call of a wrapped module; outside of such a call every merge is one.

        Raises
        ------
        HetaError
            What is below the first layer would get a part of a gradient.
        """
        if not torch.is_grad_enabled():
            return
        if block.layer == 1 and self.checking and self.group.size > 1:
            check_inputs(inputs, self.parameters if self.wrapped_only else None,
                         complete=not block.reads)
        chain = self._chain
        if chain is None or self._call is None or self._last_call is not self._call or (
                self._open[chain.number][1]() is not block.done):
            self._number += 1
            self._chain = chain = Chain(self._number, self)
            self._open[self._number] = chain, weakref.ref(block.done)
        if self._call is not None:
            self._call.add(chain.number)
        self._last_call = self._call

    def chain_of(self, block: Block) -> Chain:
        """Return the chain for an exchange of a block."""
        if self._chain is None:
            self.merging(block)
        return self._chain or _NONE

    def begin(self) -> None:
        """Note that another batch was handed out; let forward passes go whose batches are gone."""
        for chain, batch in self._open.values():
            if batch() is None:
                chain.tokens.clear()
                if chain is self._chain:
                    self._chain = None

    def backward(self, original: Any, tensors: Any, grad_tensors: Any = None,
                 retain_graph: bool | None = None, create_graph: bool = False,
                 grad_variables: Any = None, inputs: Any = None) -> None:
        """Run `torch.autograd.backward`, on all trainers through the same exchanges."""
        if self._running or self.group.size == 1 or grad_variables is not None:
            given = {id(p) for p in self._empty if p.grad is not None}
            with BackwardEnd.whole_pass():
                original(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
            # To what a checkpoint's pass has given gradients no walk from the roots comes.
            self._empty = [p for p in self._empty if p.grad is None or id(p) in given]
            return
        roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        grads = _gradients_of(roots, grad_tensors)
        self._running = True
        self._retain = create_graph if retain_graph is None else retain_graph
        try:
            # With one open forward pass of a wrapped module its chain alone keeps the order.
            # Nothing is agreed upon then, and a loss of no exchange waits for nobody.
            agree = len(self._open) > 1 or any(not self.averaging(n) for n in self._open)
            added = self._missing(roots) if agree else self._strayed(roots)
            # What is below an added token gets gradients, too, in parts.
            roots, grads = [*roots, *added], [*grads, *map(torch.zeros_like, added)]
            self.before(roots, grads, True if agree or added else None)
            self.roots = roots
            self._empty = [p for p in self.parameters if p.grad is None]
            if inputs is not None:  # what is not on the way to them would not run
                inputs = [*([inputs] if isinstance(inputs, Tensor) else inputs),
                          *(chain.tokens[0] for chain, _ in self._open.values() if chain.tokens)]
            with BackwardEnd.whole_pass():
                original(roots, grads, retain_graph, create_graph, None, inputs)
        finally:
            self._running = self._retain = False
            # A pass that failed ran through chains, too; the next one is not to end for them.
            self.roots, self._empty, self._ran = [], [], set()

    def grad(self, original: Any, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Run `torch.autograd.grad`: of what lies above all exchanges, and of parameters.

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
        grads = _gradients_of(roots, given.get("grad_outputs"))
        below = below_merges(roots, wanted)
        if self._open and any(isinstance(x, nn.Parameter) for x in wanted):
            # A machine without relations of a type has its parameters above all merges, where
            # others have them below one. All trainers send this, also those that have them above:
            # open forward passes are the same on all.
            below = bool(self.group.all_reduce(torch.tensor([int(below)]), "max", "control"))
        self.before(roots, grads, below)
        if not below:
            return original(outputs, inputs, *args, **kwargs)
        if given.get("create_graph") or given.get("is_grads_batched"):
            refuse("second derivatives")
        self._running, self._retain = True, bool(given.get("retain_graph"))
        try:
            with self._backward.unheard():  # nothing is averaged, and no epoch has a step more
                gradients = self._own_gradients(original, roots, grads, wanted)
        finally:
            self._finished()
            self._running = self._retain = False
            self.roots = []
        zeros = given.get("materialize_grads", False)
        if not zeros and not given.get("allow_unused") and (
                any(grad is None for grad in gradients)):
            raise RuntimeError(  # PyTorch's own words
                "One of the differentiated Tensors appears to not have been used in the graph. Set "
                "allow_unused=True if this is the desired behavior.")
        return tuple(torch.zeros_like(x) if grad is None and zeros else grad
                     for grad, x in zip(gradients, wanted))

    def _own_gradients(self, original: Any, roots: list[Tensor], grads: list[Any],
                       wanted: list[Tensor]) -> list[Tensor | None]:
        """Return gradients of parameters of this trainer's own loss; all trainers of the group
        call it.

        A backward pass gives a machine gradients by its relations of all trainers' losses. So there
        is a pass for each trainer, in which its loss alone has a gradient; what machines have of
        its gradients is summed.
        """
        group, chains = self.group, [chain for chain, _ in self._open.values()]
        ends, missing = self._ends(roots)
        # The first tokens are asked for, too, or autograd would not run links that no wanted
        # parameter is below.
        firsts = [chain.tokens[0] for chain in chains if chain.tokens]
        retain, pieces = self._retain, []
        for rank in range(group.size):
            self._retain = retain or rank + 1 < group.size
            if rank == group.rank:
                outputs, given = [*roots, *missing], [*grads, *map(torch.zeros_like, missing)]
            else:
                outputs, given = ends, [*map(torch.zeros_like, ends)]
            self.roots = outputs
            parts = original(outputs, [*wanted, *firsts], given, retain_graph=self._retain,
                             allow_unused=True)[:len(wanted)]
            if self.unused_links:
                used = self._used()
                parts = [grad if id(x) in used else None for x, grad in zip(wanted, parts)]
                self.unused_links.clear()
            pieces.append(_as_row(parts, wanted))
        # Row r has the parts of trainer r's gradients, which go there and are summed.
        total = group.reduce_scatter_rows(torch.stack(pieces), [1] * group.size, "gradients")[0]
        return _from_row(total, wanted)

    def _ends(self, roots: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return the tokens at which backward passes end that come to all links of all trainers'
        losses, and those of them that this one's does not come to."""
        lengths = self._lengths(roots)
        every = self.group.all_reduce(torch.tensor(lengths), "max", "control").tolist()
        ends, missing = [], []
        for (chain, _), here, anywhere in zip(self._open.values(), lengths, every):
            if anywhere:
                ends.append(self._token(chain, anywhere))
            if here < anywhere:
                missing.append(self._token(chain, anywhere))
        return ends, missing

    def _lengths(self, roots: Sequence[Tensor]) -> list[int]:
        """Return how many links of each open chain a backward pass comes to."""
        last = links_of(roots)
        return [last.get(number, -1) + 1 for number in self._open]

    @staticmethod
    def _token(chain: Chain, link: int) -> Tensor:
        """Return what a backward pass begins at that comes to the first so many links of a
        chain."""
        if len(chain.tokens) <= link:
            refuse("forward pass let go")
        return chain.tokens[link]

    @contextmanager
    def cut_exchanges(self) -> Iterator[None]:
        """Let no gradient go through exchanges while the body runs."""
        self.cut = True
        try:
            yield
        finally:
            self.cut = False

    def _missing(self, roots: Sequence[Tensor]) -> list[Tensor]:
        """Return tokens of the links that other trainers' losses come to, and this one's does not.

        Chains that nobody's loss can come to any longer are closed, on all trainers at once: they
        must have the same open chains, as what they agree on is by these.
        """
        here = [[length, int(chain.alive)] for length, (chain, _) in zip(
            self._lengths(roots), self._open.values())]
        every = self.group.all_reduce(torch.tensor(here), "max", "control").tolist()
        added = []
        for (number, (chain, _)), (length, _), (longest, alive) in zip(
                list(self._open.items()), here, every):
            if length < longest:
                added.append(self._token(chain, longest))
            elif not alive:
                self._close(number)
        return added

    def _strayed(self, roots: Sequence[Tensor]) -> list[Tensor]:
        """Return the last token of the one open chain where a loss does not come to it, but to
        parameters of a module whose gradients are averaged after it.

        Nothing is sent for it. In plain DGL, too, all trainers come to such parameters in one
        backward pass, or in none: their gradients are averaged in it. So if another trainer's loss
        comes to the chain, its adjoints wait for this one; and if none does, all add the token.
        """
        nodes = walk(roots, above=True) if self._open else []
        if any(map(is_link, nodes)):
            return []
        reached = {id(node.variable) for node in nodes if hasattr(node, "variable")}
        return [self._token(chain, chain.length) for number, (chain, _) in self._open.items()
                if chain.length and any(id(parameter) in reached
                                        for module in self.averaging(number)
                                        for parameter in module.parameters())]

    def ran(self, link: LinkId) -> None:
        """Note that a link's adjoint begins."""
        self._ran.add(link[0])
        self._backward.under_way()

    def _forget_zeros(self) -> None:
        """Take gradients away from parameters that no trainer's loss depends on.

        Functions below an exchange whose result nobody used were run nevertheless, for the chain's
        sake, and some of them give zeros for a gradient that is missing.
        """
        if self.unused_links and self._empty:
            used = self._used()
            for parameter in self._empty:
                if id(parameter) not in used:
                    parameter.grad = None
        self.unused_links.clear()

    def _used(self) -> set[int]:
        """Return the leaves that the backward pass came to past links that are used, by id."""
        return {id(node.variable) for node in walk(self.roots, self.unused_links)
                if hasattr(node, "variable")}

    def _passed(self) -> None:
        """Note that a backward pass has ended."""
        self._forget_zeros()
        self.passed = self._finished()

    def _finished(self) -> set[int]:
        """Close the chains that the backward pass went through, unless it keeps its graph, and
        return them."""
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


def _gradients_of(roots: Sequence[Tensor], given: Any) -> list[Any]:
    """Return the gradient of each root, None if none is given."""
    if given is None:
        return [None] * len(roots)
    return [given] if isinstance(given, Tensor) else list(given)


def _as_row(gradients: Sequence[Tensor | None], wanted: Sequence[Tensor]) -> Tensor:
    """Return gradients in one row, and for each whether it is there: trainers may have none of a
    parameter whose relations are elsewhere, which only the sum of all tells from zeros."""
    there = torch.tensor([float(grad is not None) for grad in gradients], dtype=wanted[0].dtype,
                         device=wanted[0].device)
    return torch.cat([*(torch.zeros_like(x).flatten() if grad is None else
                        grad.to_dense().flatten() for x, grad in zip(wanted, gradients)), there])


def _from_row(row: Tensor, wanted: Sequence[Tensor]) -> list[Tensor | None]:
    """Return gradients from such a row, None for those that nobody has."""
    values = row[:-len(wanted)].split([x.numel() for x in wanted])
    return [value.view_as(x).to(x.dtype) if count else None
            for value, x, count in zip(values, wanted, row[-len(wanted):].tolist())]


_GRAD = inspect.signature(torch.autograd.grad)
_NONE = Chain()
"""For exchanges without gradients."""
