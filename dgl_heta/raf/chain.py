"""The token chain: why all workers run the adjoints of all exchanges, in one order.

A collective works if all workers of a group call the same one in the same order. Forward, the order
is the program's. Backward, autograd chooses it, and it runs nothing that the loss does not depend
on. Workers run different relations, so their graphs differ: one whose loss does not depend on
`author` has no need of the gradient of these rows, and never comes to their adjoint, in which the
others wait for it. Or it goes on to the adjoint for `paper`, and rows of one node type are added to
those of another.

So all exchanges of a forward pass share a chain. Each takes a token, a tensor of one number, and
returns a new one that depends on it; the next exchange takes that::

    x₁ ─┐          x₂ ─┐          x₃ ─┐
        ├─ link₁ ──────┼─ link₂ ──────┼─ link₃ ──────────── anchor ── loss
    t₀ ─┘   │     t₁ ──┘   │     t₂ ──┘   │    t₃ ────────────┘
            y₁             y₂             y₃

Autograd runs link₂ backward only when link₃ has given the gradient of t₂. So the adjoints run in
reverse order of the forward pass on every worker, and because the anchor makes what the model
returns depend on the last token, all of them run, on whatever the worker's own loss depends. Tokens
carry no information; their gradients are zero. The chain costs no bytes.

Several forward passes have a chain each, so that the backward pass of one leaves the others alone.
Where one backward pass runs through several of them, their links run in reverse order of the
forward passes: of what is ready, autograd takes what was made last.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence, Set
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dgl_heta.comm.collectives import Comm

Map = Callable[[Tensor], Tensor]
LinkId = tuple[int, int]
"""The number of a chain, and of a link in it."""


class Carry:
    """Lets an adjoint's collectives tell whether any worker has a gradient.

    Attributes
    ----------
    own : whether this worker has one.
    anyone : whether any of the workers of the collectives so far has one.
    """

    def __init__(self, own: bool) -> None:
        self.own = self.anyone = own

    def __call__(self, group: Comm) -> Comm:
        """The group, with collectives that carry a row (or number) more for each receiver."""
        return group if group.size == 1 else _Carrying(group, self)  # type: ignore[return-value]


class Silent(Carry):
    """Collectives as they are: a gradient that no worker has counts as zeros."""

    def __init__(self) -> None:
        super().__init__(True)

    def __call__(self, group: Comm) -> Comm:
        return group


class _Carrying:
    """The collectives of :class:`Comm` that adjoints call."""

    def __init__(self, group: Comm, carry: Carry) -> None:
        self._group, self._carry = group, carry
        self.size, self.rank = group.size, group.rank

    # Reductions add these rows up, gathers bring them all: whatever the collective, what arrives is
    # zero only if no worker has a gradient. It travels with the rows, as a collective of its own
    # would be one more round trip for every link.
    def _flag(self, rows: Tensor) -> Tensor:
        return rows.new_full((1, *rows.shape[1:]), float(self._carry.own))

    def _heard(self, flags: Tensor) -> None:
        # Rows of width 0 cannot carry a flag: then a gradient is taken to be there, and is zeros.
        self._carry.anyone |= bool((flags != 0).any()) or not flags.numel()

    def all_reduce(self, rows: Tensor, op: str = "sum", cause: str = "partials") -> Tensor:
        out = self._group.all_reduce(torch.cat([rows, self._flag(rows)]), op, cause)
        self._heard(out[-1])
        return out[:-1]

    def all_to_all_rows(self, rows: Tensor, send: Sequence[int], receive: Sequence[int],
                        cause: str) -> Tensor:
        return self.begin_all_to_all_rows(rows, send, receive, cause)()

    def begin_all_to_all_rows(self, rows: Tensor, send: Sequence[int], receive: Sequence[int],
                              cause: str) -> Callable[[], Tensor]:
        flag = self._flag(rows)
        pieces = [piece for part in rows.split(list(send)) for piece in (part, flag)]
        begun = self._group.begin_all_to_all_rows(torch.cat(pieces), [n + 1 for n in send],
                                                  [n + 1 for n in receive], cause)

        def end() -> Tensor:
            arrived = begun().split([n + 1 for n in receive])
            for piece in arrived:
                self._heard(piece[-1])
            return torch.cat([piece[:-1] for piece in arrived])
        return end

    def all_gather_rows(self, rows: Tensor, sizes: Sequence[int], cause: str) -> Tensor:
        flagged = torch.cat([rows, self._flag(rows)])
        out = self._group.all_gather_rows(flagged, [n + 1 for n in sizes], cause)
        arrived = out.split([n + 1 for n in sizes])
        for piece in arrived:
            self._heard(piece[-1])
        return torch.cat([piece[:-1] for piece in arrived])

    def reduce_scatter_rows(self, rows: Tensor, sizes: Sequence[int], cause: str) -> Tensor:
        flag = self._flag(rows)
        pieces = [piece for part in rows.split(list(sizes)) for piece in (part, flag)]
        out = self._group.reduce_scatter_rows(torch.cat(pieces), [n + 1 for n in sizes], cause)
        self._heard(out[-1])
        return out[:-1]


Adjoint = Callable[[Tensor, Carry], Tensor]


class Watch:
    """Who wants to know what a backward pass does with links; here nobody.

    Attributes
    ----------
    flags : whether adjoints tell each other who has a gradient: where no worker has, none goes on.
        Else it counts as zeros.
    cut : whether no gradient goes through links, and nothing is exchanged.
    """

    flags = False
    cut = False

    def ran(self, link: LinkId) -> None:
        """A link's adjoint begins."""

    def unused(self, link: LinkId) -> None:
        """No worker has a gradient of what the link gave."""

    def is_used(self, link: LinkId) -> bool:
        """Return whether a gradient that came to a link is one: not if it only stands for those
        that links above have not passed on, for which some functions give zeros."""
        return True


class NotedLinks(Watch):
    """Notes the links of whose results no worker has a gradient.

    Attributes
    ----------
    roots : what the backward pass under way begins at; set before it begins.
    unused_links : those that it has found so far.
    """

    def __init__(self) -> None:
        self.roots: Sequence[Tensor] = ()
        self.unused_links: set[LinkId] = set()

    def unused(self, link: LinkId) -> None:
        self.unused_links.add(link)

    def is_used(self, link: LinkId) -> bool:
        return not self.unused_links or link in reached_by_rows(self.roots, self.unused_links)


class Chain:
    """The exchanges of one forward pass.

    Parameters
    ----------
    number : of the chain; a later one's is larger.
    watch : is told of the backward pass.

    Attributes
    ----------
    tokens : the first one, then one for each link; emptied by who wants the graph to be let go.
    length : the number of links.
    """

    def __init__(self, number: int = 0, watch: Watch | None = None) -> None:
        self.number, self.watch, self.length = number, watch or Watch(), 0
        self.tokens = [torch.zeros(1, requires_grad=torch.is_grad_enabled())]
        self.tokens[0].heta_token = True  # type: ignore[attr-defined]  # no input of the script's
        self._living: weakref.ref[_Life] | None = None

    def link(self, rows: Tensor, forward: Map, adjoint: Adjoint) -> Tensor:
        """One exchange: `forward(rows)`, and in the backward pass its adjoint."""
        if not torch.is_grad_enabled():
            return forward(rows)
        life = (self._living and self._living()) or _Life()
        # Weak: it only tells whether autograd's graph still has a link, and must not keep one.
        self._living = weakref.ref(life)
        out, token = _Link.apply(rows, self.tokens[-1], forward, adjoint, self.watch,
                                 (self.number, self.length), life)
        self.tokens.append(token)
        self.length += 1
        return out

    def anchor(self, out: Tensor) -> Tensor:
        """`out`, depending on every exchange so far: the end of the chain."""
        return _Anchor.apply(out, self.tokens[-1])

    @property
    def alive(self) -> bool:
        """Return whether a backward pass may still come to a link."""
        return self._living is not None and self._living() is not None


class _Life:
    """Lives as long as autograd's graph has a link of the chain."""


class _Link(torch.autograd.Function):
    """One exchange as a link of the token chain; see the module's text."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, token: Tensor, forward: Map, adjoint: Adjoint,
                watch: Watch, link: LinkId, life: _Life) -> tuple[Tensor, Tensor]:
        out = forward(rows)
        # Autograd would fill in zeros for a missing gradient, and then nobody could tell the two
        # apart.
        ctx.set_materialize_grads(False)
        ctx.adjoint, ctx.watch, ctx.link, ctx.life = adjoint, watch, link, life
        ctx.like = (out.shape, out.dtype, out.device)
        # Each link gives a token of its own, so that the next one depends on this one.
        return out.view_as(out) if out is rows else out, token.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, token: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """A worker without a gradient takes part with zeros."""
        watch: Watch = ctx.watch
        if watch.cut:
            return (None,) * 7
        watch.ran(ctx.link)
        own = grad is not None and watch.is_used(ctx.link)
        carry = Carry(own) if watch.flags else Silent()
        if grad is None:
            shape, dtype, device = ctx.like
            grad = torch.zeros(shape, dtype=dtype, device=device)
        # Every worker comes here, with zeros if need be: the others are waiting in this collective.
        rows: Tensor | None = ctx.adjoint(grad, carry)
        if not carry.anyone:
            watch.unused(ctx.link)
            rows = None
        # The token has a gradient always, so that the links below run, in their order, even if
        # these rows have none.
        return rows, torch.zeros(1), None, None, None, None, None


class _Anchor(torch.autograd.Function):
    """The output of a model, made to depend on the last token."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, token: Tensor) -> Tensor:
        return rows.view_as(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return grad, torch.zeros(1)


def links_of(roots: Sequence[Tensor]) -> dict[int, int]:
    """Chain → the last of its links that a backward pass from `roots` comes to."""
    last_of: dict[int, int] = {}
    for node in walk(roots):
        link: LinkId | None = getattr(node, "link", None)
        if link is not None and type(node).__name__ == _NODE:
            last_of[link[0]] = max(last_of.get(link[0], -1), link[1])
    return last_of


def is_link(node: Any) -> bool:
    """Return whether a node of autograd's graph is an exchange."""
    return type(node).__name__ == _NODE and hasattr(node, "link")


def reached_by_rows(roots: Sequence[Tensor], unused: Set[LinkId]) -> set[LinkId]:
    """Links whose rows, and not their token alone, tensors depend on, by no way through links that
    are `unused`."""
    edges: list[tuple[Any, int]] = [(t.grad_fn, t.output_nr) for t in roots]
    edges += [edge for node in walk(roots, unused) for edge in _below(node, unused)]
    return {node.link for node, output in edges if output == 0 and is_link(node)}


def walk(roots: Sequence[Tensor], unused: Set[LinkId] = frozenset(), above: bool = False
         ) -> list[Any]:
    """The nodes of autograd's graph below tensors; below links that are `unused` those alone that
    their tokens come from, with `above` none below any link."""
    return walk_below([t.grad_fn for t in roots if t.grad_fn is not None], unused, above)


def walk_below(nodes: Sequence[Any], unused: Set[LinkId] = frozenset(), above: bool = False
               ) -> list[Any]:
    """The same from nodes of the graph, which are among them."""
    pending = list(nodes)
    seen: set[Any] = set()
    nodes_below = []
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        nodes_below.append(node)
        if not (above and is_link(node)):
            pending.extend(below for below, _ in _below(node, unused) if below is not None)
    return nodes_below


def _below(node: Any, unused: Set[LinkId]) -> Sequence[tuple[Any, int]]:
    """Nodes and their outputs that a node comes from; of an `unused` link, its token's."""
    # Inputs of a link are its rows (0) and its token (1), in the order of `_Link.forward`.
    below: Sequence[tuple[Any, int]] = node.next_functions
    return below[1:2] if unused and is_link(node) and node.link in unused else below


_NODE = "_LinkBackward"
