"""Whether a loss depends on values that are not the trainer's own: it is computed with others.

At a step to prove a :class:`Trace` notes every operation of PyTorch's on what comes from rows and
ids that were handed out, as PyTorch's dispatcher is given it. Merges are left out: what they return
is handed out anew. Before a backward pass the loss is computed twice from the trace: with the
values that were there, and with other ones in the rows that are no own seed's. If the results are
equal to the last bit, it does not depend on them.

The same tells which rows a script writes to a memory of states: those may not be among them that
are incomplete here, because no edge reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
    _pop_mode,
    _push_mode,
)
from torch.utils._pytree import tree_flatten, tree_unflatten

from dgl_heta.distdgl.state import state_of
from dgl_heta.errors import HetaError
from dgl_heta.features.deferred import LazyRows, peek

_ARITHMETIC = {f"aten::{name}{end}" for end in ("", "_") for name in (
    "mul", "div", "add", "sub", "rsub", "pow", "addcmul", "addcdiv", "lerp", "floor_divide")}
_WEIGHTS = 4096
"""So many weights, all alike, are one number."""
_COPIED = 1 << 22
"""So many numbers at most are copied of a tensor that is written to."""
_WRITTEN_COPIES = {f"aten::{name}" for name in (
    "index_put", "index_copy", "index_add", "scatter", "scatter_add", "scatter_reduce",
    "masked_scatter", "select_scatter", "slice_scatter")}
"""Operations that give their first argument with other rows in it."""


class Traces:
    """The traces of this process.

    Attributes
    ----------
    running : the one that looks at operations now, if there is one.
    stopped : those that look no longer, and are still among PyTorch's modes.
    """

    def __init__(self) -> None:
        self.running: Trace | None = None
        self.stopped: list[Trace] = []


@dataclass(eq=False)
class Source:
    """What was handed out.

    Attributes
    ----------
    value : ids or rows.
    foreign : bool (rows,), which ones are no own seed's.
    what : for an error.
    nodes : how many the type has.
    ids : whether these are ids.
    missing : bool (rows,), which states are not complete here; None if all are.
    """

    value: Tensor
    foreign: Tensor
    what: str
    nodes: int
    ids: bool = False
    missing: Tensor | None = None

    def other(self, rows: Tensor) -> Tensor:
        """The same with other values in some rows."""
        value, rows = self.value.clone(), rows.to(self.value.device)
        if not bool(rows.any()):
            return value
        if self.ids:  # one for all, so that means over all nodes of a type differ, too
            free = torch.arange(min(self.nodes, len(value) + 1), device=value.device)
            free = free[~torch.isin(free, value)]
            value[rows] = free[0] if len(free) else value[rows][-1].clone()
        elif value.is_floating_point():
            value = _noisy(value, rows)
        else:
            value[rows] = ~value[rows] if value.dtype == torch.bool else value[rows] + 1
        return value


class Ref(NamedTuple):
    """A result of an entry of the trace."""

    entry: int
    place: int


@dataclass(eq=False)
class Made:
    """An operation: `run` computes its results from `given`, in which :class:`Ref` stand for what
    was noted; `numbers` are among the arguments."""

    run: Callable[[list[Any]], list[Any]]
    given: list[Any]
    numbers: list[float] = field(default_factory=list)


class View(NamedTuple):
    """How a tensor is a view of another one: `steps` lead from its base to it."""

    base: Tensor
    steps: tuple[Callable[[Tensor], Tensor], ...]


class Trace(TorchDispatchMode):
    """What was done in this thread with the values of a batch since it was handed out."""

    def __init__(self) -> None:
        super().__init__()
        self._entries: list[Source | Made] = []
        self._taken: list[tuple[Ref, float]] = []
        self._floats: dict[float, Ref] = {}
        """Numbers that were taken out of tensors; those with many digits, by their value."""
        self._nearby: dict[int, tuple[Tensor, Tensor]] = {}
        self._on, self._inside = False, False
        self._forget()

    def _forget(self) -> None:
        self._refs: dict[int, Ref] = {}
        self._views: dict[int, View] = {}
        self._of_base: dict[int, list[Tensor]] = {}
        """By the ids of tensors. As attributes scripts would save them."""
        self._kept: dict[int, Tensor] = {}
        """These tensors. Weak references would be wrong: PyTorch cannot take hold of a tensor that
        another thread (of gloo, of DGL) is about to free."""

    def start(self) -> None:
        """Look at operations from now on, below the modes that the script uses; no other trace does
        so any longer."""
        traces = state_of(Traces)
        if traces.running is not None:
            traces.running.stop()
        tidy()
        traces.running = self
        above = _popped()
        for mode in (self, *above):
            _push_mode(mode)
        self._on, self._inside = True, torch.is_inference_mode_enabled()

    def stop(self) -> None:
        """Look no longer, and forget everything."""
        if self._on:
            state_of(Traces).stopped.append(self)
            tidy()
        self._on = False
        self._entries.clear()
        self._taken.clear()
        self._floats.clear()
        self._nearby.clear()
        self._forget()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Look at nothing for the body."""
        on, self._on = self._on, False
        taken = on and _get_current_dispatch_mode() is self
        if taken:  # so that it costs nothing
            _pop_mode()
        try:
            yield
        finally:
            if taken:
                _push_mode(self)
                self._inside = self._inside and torch.is_inference_mode_enabled()
            self._on = on

    @property
    def can_go(self) -> bool:
        """Whether it may be taken away: inference_mode, when it ends, brings modes back that it
        began with, and PyTorch fails if there are none then."""
        return self._inside or not torch.is_inference_mode_enabled()

    # --- noting ---------------------------------------------------------------------------------

    def add(self, tensor: Tensor, source: Source) -> None:
        """A tensor is handed out."""
        self._note(tensor, Ref(self._enter(source), 0))

    def read(self, rows: Tensor, ids: Any, again: Callable[[Tensor], Tensor]) -> None:
        """Rows of a table were read by ids; `again` reads those of others."""
        if (ref := self._ref(ids)) is None:
            return
        kept = ids.clone()

        def run(given: list[Any]) -> list[Any]:
            found = again(given[0])
            if found.is_floating_point() and given[0].shape == kept.shape:
                found = _noisy(found, given[0] != kept)  # which may be all the same at first
            return [found]
        self._note(rows, Ref(self._enter(Made(run, [ref])), 0))

    def _enter(self, entry: Source | Made) -> int:
        self._entries.append(entry)
        return len(self._entries) - 1

    def _note(self, tensor: Tensor, ref: Ref) -> None:
        self._kept[id(tensor)] = tensor
        self._refs[id(tensor)] = ref

    def _ref(self, item: Any) -> Ref | None:
        if isinstance(item, Tensor):
            return self._refs.get(id(item))
        return self._floats.get(item) if type(item) is float else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self._on or not hasattr(func, "_schema"):
            return func(*args, **kwargs)
        items, spec = tree_flatten((args, kwargs))
        given = [self._ref(item) or item for item in items]
        numbers = _numbers(func, given)
        if not numbers and not any(isinstance(item, Ref) for item in given):
            out = func(*args, **kwargs)
        elif func._schema.is_mutable:
            out = self._write(func, args, kwargs, given, numbers)
        else:
            if func._schema.name in _WRITTEN_COPIES and args[0].dim():
                self.check_memory(len(args[0]), [item for item in given if isinstance(item, Ref)])
            run = _runner(func, spec, _random_state(func, kwargs))
            out = func(*args, **kwargs)
            self._made(tree_flatten(out)[0], Made(run, given, numbers))
        self._note_views(func, args, kwargs, out)
        return out

    def _made(self, results: Sequence[Any], made: Made) -> None:
        entry = self._enter(made)
        for place, item in enumerate(results):
            if isinstance(item, Tensor):
                self._note(item, Ref(entry, place))
            elif isinstance(item, int | float):
                self._taken.append((Ref(entry, place), float(item)))
                if isinstance(item, float) and not item.is_integer():
                    self._floats[item] = Ref(entry, place)

    def _write(self, func: Any, args: Any, kwargs: Any, given: list[Any], numbers: list[float]
               ) -> Any:
        """An operation that writes to one of its arguments: as one that returns another value of
        the tensor that the argument is a view of."""
        written = _written(func, args)
        if written is not None:
            whole, _ = self._base(written)
            self.check_memory(max(map(len, (part for part in (written, whole) if part.dim())),
                                  default=0), [item for item in given if isinstance(item, Ref)])
        if written is None or (written.is_leaf and written.requires_grad):
            return func(*args, **kwargs)
        base, steps = self._base(written)
        before: Any = self._ref(base)
        if before is None:
            if base.numel() > _COPIED:
                return func(*args, **kwargs)
            before = base.detach().clone()
        state = _random_state(func, kwargs)
        items, spec = tree_flatten((args, kwargs))
        place = next(i for i, item in enumerate(items) if item is written)

        def run(values: list[Any]) -> list[Any]:
            *rest, whole = values
            whole = whole.clone()
            rest[place] = part = _follow(steps, whole)
            _runner(func, spec, state)(rest)
            return [whole, part]

        given = [None if i == place else item for i, item in enumerate(given)] + [before]
        out = func(*args, **kwargs)
        self._made([base, written], Made(run, given, numbers))
        for other in self._of_base.get(id(base), ()):
            if other is not written and self._base(other)[0] is base:
                self._made([other], Made(_following(self._views[id(other)].steps),
                                         [self._refs[id(base)]]))
        return out

    def carry(self, tensor: Tensor, other: Tensor) -> None:
        """Another object has a tensor's values and memory."""
        if (ref := self._ref(tensor)) is not None:
            base, steps = self._base(tensor)
            self._note(other, ref)
            self._is_view(other, base, steps)

    def _is_view(self, tensor: Tensor, base: Tensor,
                 steps: tuple[Callable[[Tensor], Tensor], ...]) -> None:
        self._kept[id(tensor)] = tensor
        self._views[id(tensor)] = View(base, steps)
        self._of_base.setdefault(id(base), []).append(tensor)

    def _note_views(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Note what is a view of which argument."""
        returns = func._schema.returns
        if func._schema.is_mutable or not args or not isinstance(args[0], Tensor) or not any(
                r.alias_info is not None for r in returns):
            return
        base, steps = self._base(args[0])
        for place, view in enumerate(tree_flatten(out)[0]):
            def step(value: Tensor, place: int = place) -> Tensor:
                found: Tensor = tree_flatten(func(value, *args[1:], **kwargs))[0][place]
                return found
            if isinstance(view, Tensor):
                self._is_view(view, base, (*steps, step))

    def _base(self, tensor: Tensor) -> tuple[Tensor, tuple[Callable[[Tensor], Tensor], ...]]:
        """What a tensor is a view of, itself if of nothing, and how."""
        view = self._views.get(id(tensor))
        return (tensor, ()) if view is None else (view.base, view.steps)

    # --- asking ---------------------------------------------------------------------------------

    def dependence(self, tensors: Sequence[Tensor]) -> str | None:
        """Rows that are no own seed's and that one of these tensors depends on; None if there are
        none."""
        return self._dependence(self.refs(tensors), lambda source: source.foreign)

    def check_memory(self, length: int, refs: Sequence[Ref]) -> None:
        """Values are written to a tensor of so many rows.

        Raises
        ------
        HetaError
            It has a row for each node of a type, and incomplete states of that type are written.
        """
        what = self._dependence(refs, lambda source: (
            source.missing if length >= source.nodes else None))
        if what is not None:
            raise HetaError(
                f"{what} are written to a tensor with a row for each node, and some of them are "
                "not complete here: of other trainers' seeds those that no edge of this machine "
                "reads; set train.complete_states = true, or write the rows of own seeds, which "
                "come first (rows[:n])")

    def numbers(self, tensors: Sequence[Tensor]) -> list[float]:
        """Numbers that were arguments of the operations that tensors come from, in order."""
        return [number for entry in sorted(self._below(self.refs(tensors)))
                if isinstance(made := self._entries[entry], Made) for number in made.numbers]

    def taken(self) -> list[float]:
        """Numbers that were taken out of tensors, in order; 0 for those of own rows alone."""
        return [0.0 if self._dependence([ref], lambda source: source.foreign) is None else value
                for ref, value in self._taken]

    def _dependence(self, refs: Sequence[Ref], rows: Callable[[Source], Tensor | None]
                    ) -> str | None:
        sources = [source for entry in self._below(refs)
                   if isinstance(source := self._entries[entry], Source)
                   and (chosen := rows(source)) is not None and bool(chosen.any())]
        if not sources:
            return None
        whole = self._values(refs, [], rows)
        if _same(whole, self._values(refs, sources, rows)) or not _same(
                whole, self._values(refs, [], rows)):
            return None
        return next((source.what for source in sources
                     if not _same(whole, self._values(refs, [source], rows))), sources[0].what)

    def refs(self, tensors: Sequence[Tensor]) -> list[Ref]:
        return [ref for tensor in tensors if (ref := self._ref(tensor)) is not None]

    def _below(self, refs: Sequence[Ref]) -> set[int]:
        """The entries that some depend on, with their own."""
        found, pending = set(), [ref.entry for ref in refs]
        while pending:
            entry = pending.pop()
            if entry in found:
                continue
            found.add(entry)
            made = self._entries[entry]
            if isinstance(made, Made):
                pending += [item.entry for item in made.given if isinstance(item, Ref)]
        return found

    @torch.no_grad()
    def _values(self, refs: Sequence[Ref], changed: Sequence[Source],
                rows: Callable[[Source], Tensor | None]) -> list[Any]:
        """What is referred to, with other values in some rows of the sources that are changed."""
        values: dict[int, list[Any]] = {}
        for entry in sorted(self._below(refs)):
            made = self._entries[entry]
            if isinstance(made, Made):
                values[entry] = made.run([values[item.entry][item.place] if isinstance(item, Ref)
                                          else self._argument(item) for item in made.given])
            else:
                chosen = rows(made)
                values[entry] = [made.other(chosen) if made in changed and chosen is not None
                                 else made.value]
        return [values[ref.entry][ref.place] for ref in refs]

    def _argument(self, item: Any) -> Any:
        """An argument that was not noted: of parameters, which may be zeros, values nearby."""
        if isinstance(item, LazyRows):
            return peek(item)
        if not isinstance(item, nn.Parameter) or item.numel() > _COPIED:
            return item
        if id(item) not in self._nearby:
            self._nearby[id(item)] = _noisy(item.detach(), torch.ones(
                item.shape[:1], dtype=torch.bool)), item
        return self._nearby[id(item)][0]


def carried(tensor: Tensor, other: Tensor) -> Tensor:
    """Another object of a tensor's values and memory, with what a trace knows of it."""
    if (trace := state_of(Traces).running) is not None:
        trace.carry(tensor, other)
    return other


def _noisy(value: Tensor, rows: Tensor) -> Tensor:
    """The same numbers, but other ones in some rows."""
    generator = torch.Generator().manual_seed(1)
    noise = torch.rand(value.shape, dtype=torch.float64, generator=generator)
    noise = noise.to(value) * (1 + value.abs().mean())
    return torch.where(rows.to(value.device).view(-1, *[1] * (value.dim() - 1)), value + noise,
                       value)


def tidy() -> None:
    """Take away traces that look no longer, if they may be."""
    traces = state_of(Traces)
    if gone := [trace for trace in traces.stopped if trace.can_go]:
        for mode in _popped():
            if mode not in gone:
                _push_mode(mode)
        traces.stopped = [trace for trace in traces.stopped if trace not in gone]


def _popped() -> list[Any]:
    """All modes, which are taken away; the lowest first."""
    modes: list[Any] = []
    while _get_current_dispatch_mode() is not None:
        modes.insert(0, _pop_mode())
    return modes


def _numbers(func: Any, given: Sequence[Any]) -> list[float]:
    """Numbers that a function of a loss is computed with."""
    if func._schema.name not in _ARITHMETIC or not torch.is_grad_enabled():
        return []
    found = [float(item) for item in given if isinstance(item, int | float)
             and not isinstance(item, bool)]
    for item in given:
        if isinstance(item, Tensor) and not item.requires_grad and 0 < item.numel() <= _WEIGHTS:
            first = item.detach().flatten()[0]
            if not item.is_complex() and bool((item == first).all()):
                found.append(float(first))
    return found


def _random_state(func: Any, kwargs: Any) -> Tensor | None:
    """The state of the generator that a function is about to draw from."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return None
    state: Tensor = (kwargs.get("generator") or torch.default_generator).get_state()
    return state


def _runner(func: Any, spec: Any, state: Tensor | None) -> Callable[[list[Any]], list[Any]]:
    """A function of flat arguments that returns flat results, and draws what was drawn."""
    if "batch_norm" in func._schema.name:  # that it looks at all rows is documented
        return lambda items: [items[0], None, None, None]

    def run(items: list[Any]) -> list[Any]:
        args, kwargs = tree_unflatten(items, spec)
        if state is None:
            return tree_flatten(func(*args, **kwargs))[0]
        if kwargs.get("generator") is not None:
            kwargs = {**kwargs, "generator": torch.Generator()}
            kwargs["generator"].set_state(state)
        before = torch.get_rng_state()
        torch.set_rng_state(state)
        try:
            return tree_flatten(func(*args, **kwargs))[0]
        finally:
            torch.set_rng_state(before)
    return run


def _written(func: Any, args: Sequence[Any]) -> Tensor | None:
    """The argument that a function writes to; None if it is not one tensor."""
    schema = func._schema.arguments
    names = [a for a in schema if a.alias_info is not None and a.alias_info.is_write]
    place = schema.index(names[0]) if len(names) == 1 else len(args)
    return args[place] if place < len(args) and isinstance(args[place], Tensor) else None


def _follow(steps: Sequence[Callable[[Tensor], Tensor]], value: Tensor) -> Tensor:
    for step in steps:
        value = step(value)
    return value


def _following(steps: Sequence[Callable[[Tensor], Tensor]]) -> Callable[[list[Any]], list[Any]]:
    return lambda values: [_follow(steps, values[0])]


def _same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether results are equal to the last bit."""
    return all(a == b if not isinstance(a, Tensor) else a.shape == b.shape and bool(
        ((a == b) | (a != a) & (b != b)).all()) for a, b in zip(some, others))
