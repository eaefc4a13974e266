"""Note the operations on what comes of a batch, so that it can be computed again.

A :class:`Trace` is one of PyTorch's dispatch modes: it is given every operation below autograd, on
plain tensors, whatever function of Python asked for it. Operations on nothing that was handed out
are left out, and so are merges: what they return is handed out anew.

Operations that write to a tensor are noted as such that return another value of it. A view shares
its memory with a *base*, so that is written to, and views of it are taken anew.

The same tells which rows a script writes to a memory of states: those may not be among them that
are incomplete here, because no edge reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
    _pop_mode,
    _push_mode,
)
from torch.utils._pytree import tree_flatten, tree_unflatten

from dgl_heta.distdgl.autograd.dependence import (
    MOST_COPIED,
    Computation,
    Operation,
    Ref,
    Source,
    noisy,
)
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.state import state_of

_ARITHMETIC = {f"aten::{name}{end}" for end in ("", "_") for name in (
    "mul", "div", "add", "sub", "rsub", "pow", "addcmul", "addcdiv", "lerp", "floor_divide")}
_WEIGHTS = 4096
"""So many weights, all alike, are one number."""
_WRITTEN_COPIES = {f"aten::{name}" for name in (
    "index_put", "index_copy", "index_add", "scatter", "scatter_add", "scatter_reduce",
    "masked_scatter", "select_scatter", "slice_scatter")}
"""Operations that give their first argument with other rows in it."""

Step = Callable[[Tensor], Tensor]


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


class View(NamedTuple):
    """How a tensor is a view of another one: `steps` lead from its base to it."""

    base: Tensor
    steps: tuple[Step, ...]


class Trace(TorchDispatchMode):
    """The operations in this thread on the values of a batch since it was handed out."""

    def __init__(self) -> None:
        super().__init__()
        self._computation = Computation()
        self._taken: list[tuple[Ref, float]] = []
        self._floats: dict[float, Ref] = {}
        """Numbers that were taken out of tensors; those with many digits, by their value."""
        self._on, self._inside = False, False
        self._forget()

    def _forget(self) -> None:
        # By the ids of tensors: attributes of theirs would be saved by scripts.
        self._refs: dict[int, Ref] = {}
        self._views: dict[int, View] = {}
        self._of_base: dict[int, list[Tensor]] = {}
        # These tensors. Weak references would be wrong: PyTorch cannot take hold of a tensor that
        # another thread (of gloo, of DGL) is about to free.
        self._kept: dict[int, Tensor] = {}

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
        self._computation.clear()
        self._taken.clear()
        self._floats.clear()
        self._forget()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Look at nothing while the body runs."""
        on, self._on = self._on, False
        on_top = on and _get_current_dispatch_mode() is self
        if on_top:  # so that operations of the body do not come here at all, which takes time
            _pop_mode()
        try:
            yield
        finally:
            if on_top:
                _push_mode(self)
                self._inside = self._inside and torch.is_inference_mode_enabled()
            self._on = on

    @property
    def can_go(self) -> bool:
        """True if the mode may be taken away. When inference_mode ends, it brings back the modes
        that it began with, and PyTorch fails if they are gone."""
        return self._inside or not torch.is_inference_mode_enabled()

    # --- noting ---------------------------------------------------------------------------------

    def add(self, tensor: Tensor, source: Source) -> None:
        """Note that a tensor is handed out."""
        self._note(tensor, Ref(self._computation.add(source), 0))

    def read(self, rows: Tensor, ids: Any, again: Callable[[Tensor], Tensor]) -> None:
        """Note that rows of a table were read by ids; `again` reads those of others."""
        if (ref := self._ref(ids)) is None:
            return
        ids_then = ids.clone()

        def run(given: list[Any]) -> list[Any]:
            read = again(given[0])
            # Rows of a table may all be the same at first, and would hide which ones are read.
            if read.is_floating_point() and given[0].shape == ids_then.shape:
                read = noisy(read, given[0] != ids_then)
            return [read]
        self._note(rows, Ref(self._computation.add(Operation(run, [ref])), 0))

    def carry(self, tensor: Tensor, other: Tensor) -> None:
        """Note that another object has a tensor's values and memory."""
        if (ref := self._ref(tensor)) is not None:
            base, steps = self._base(tensor)
            self._note(other, ref)
            self._is_view(other, base, steps)

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
        # An operation of numbers alone is noted for these: they may be counts.
        numbers = _numbers(func, given)
        if not numbers and not any(isinstance(item, Ref) for item in given):
            out = func(*args, **kwargs)
        elif func._schema.is_mutable:
            out = self._write(func, args, kwargs, given, numbers)
        else:
            if func._schema.name in _WRITTEN_COPIES and args[0].dim():
                self.check_memory(len(args[0]), [item for item in given if isinstance(item, Ref)])
            run = _runner(func, spec, *_random_state(func, items))
            out = func(*args, **kwargs)
            self._note_results(tree_flatten(out)[0], Operation(run, given, numbers))
        self._note_views(func, args, kwargs, out)
        return out

    def _note_results(self, results: Sequence[Any], operation: Operation) -> None:
        entry = self._computation.add(operation)
        for number, item in enumerate(results):
            ref = Ref(entry, number)
            if isinstance(item, Tensor):
                self._note(item, ref)
            elif isinstance(item, int | float):
                self._taken.append((ref, float(item)))
                # A float of many digits is known again where a script computes with it; an integer
                # is not, as the same one may come from anywhere.
                if isinstance(item, float) and not item.is_integer():
                    self._floats[item] = ref

    def _write(self, func: Any, args: Any, kwargs: Any, given: list[Any], numbers: list[float]
               ) -> Any:
        """Run an operation that writes to one of its arguments, and note it as one that returns
        another value of the tensor that the argument is a view of."""
        written = _written(func, args)
        if written is not None:
            whole, _ = self._base(written)
            self.check_memory(max(map(len, (part for part in (written, whole) if part.dim())),
                                  default=0), [item for item in given if isinstance(item, Ref)])
        # A parameter that is written to (by an optimizer) has no past in the trace.
        if written is None or (written.is_leaf and written.requires_grad):
            return func(*args, **kwargs)
        base, steps = self._base(written)
        before: Any = self._ref(base)
        if before is None:
            if base.numel() > MOST_COPIED:
                return func(*args, **kwargs)
            before = base.detach().clone()
        items, spec = tree_flatten((args, kwargs))
        drawn = _random_state(func, items)
        position = next(i for i, item in enumerate(items) if item is written)

        def run(values: list[Any]) -> list[Any]:
            *rest, whole = values
            whole = whole.clone()
            rest[position] = part = _follow(steps, whole)
            _runner(func, spec, *drawn)(rest)
            return [whole, part]

        given = [None if i == position else item for i, item in enumerate(given)] + [before]
        out = func(*args, **kwargs)
        self._note_results([base, written], Operation(run, given, numbers))
        # Views that were taken before have the new values now.
        for other in self._of_base.get(id(base), ()):
            if other is not written and self._base(other)[0] is base:
                self._note_results([other], Operation(
                    _following(self._views[id(other)].steps), [self._refs[id(base)]]))
        return out

    def _is_view(self, tensor: Tensor, base: Tensor, steps: tuple[Step, ...]) -> None:
        self._kept[id(tensor)] = tensor
        self._views[id(tensor)] = View(base, steps)
        self._of_base.setdefault(id(base), []).append(tensor)

    def _note_views(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Note which results are views of the first argument, by what the schema says."""
        returns = func._schema.returns
        if func._schema.is_mutable or not args or not isinstance(args[0], Tensor) or not any(
                r.alias_info is not None for r in returns):
            return
        base, steps = self._base(args[0])
        for number, view in enumerate(tree_flatten(out)[0]):
            def step(value: Tensor, number: int = number) -> Tensor:
                result: Tensor = tree_flatten(func(value, *args[1:], **kwargs))[0][number]
                return result
            if isinstance(view, Tensor):
                self._is_view(view, base, (*steps, step))

    def _base(self, tensor: Tensor) -> View:
        """Return what a tensor is a view of, and how; itself if it is a view of nothing."""
        return self._views.get(id(tensor), View(tensor, ()))

    # --- asking ---------------------------------------------------------------------------------

    def dependence(self, tensors: Sequence[Tensor]) -> str | None:
        """Return rows that are no own seed's and that one of these tensors depends on; None if
        there are none."""
        return self._computation.dependence(self.refs(tensors), _foreign)

    def check_memory(self, length: int, refs: Sequence[Ref]) -> None:
        """Check values that are written to a tensor of so many rows.

        Raises
        ------
        HetaError
            It has a row for each node of a type, and incomplete states of that type are written.
        """
        what = self._computation.dependence(refs, lambda source: (
            source.missing if length >= source.nodes else None))
        if what is not None:
            refuse("incomplete states", what=what)

    def numbers(self, tensors: Sequence[Tensor]) -> list[float]:
        """Return the numbers that were arguments of the operations that tensors come from."""
        return self._computation.numbers(self.refs(tensors))

    def taken(self) -> list[float]:
        """Return the numbers that were taken out of tensors, in order; 0 for those of own rows
        alone."""
        return [0.0 if self._computation.dependence([ref], _foreign) is None else value
                for ref, value in self._taken]

    def refs(self, tensors: Sequence[Tensor]) -> list[Ref]:
        """Return which of the tensors are results of something that was noted."""
        return [ref for tensor in tensors if (ref := self._ref(tensor)) is not None]


def _foreign(source: Source) -> Tensor:
    return source.foreign


def carried(tensor: Tensor, other: Tensor) -> Tensor:
    """Return another object of a tensor's values and memory, with what a trace knows of it."""
    if (trace := state_of(Traces).running) is not None:
        trace.carry(tensor, other)
    return other


def tidy() -> None:
    """Take away traces that look no longer, if they may be."""
    # A mode can only be taken from the top of the stack, so all are, and others are put back.
    traces = state_of(Traces)
    if gone := [trace for trace in traces.stopped if trace.can_go]:
        for mode in _popped():
            if mode not in gone:
                _push_mode(mode)
        traces.stopped = [trace for trace in traces.stopped if trace not in gone]


def _popped() -> list[Any]:
    """Take away all modes and return them, the lowest first."""
    modes: list[Any] = []
    while _get_current_dispatch_mode() is not None:
        modes.insert(0, _pop_mode())
    return modes


def _numbers(func: Any, given: Sequence[Any]) -> list[float]:
    """Return the numbers that an operation of a loss is computed with."""
    if func._schema.name not in _ARITHMETIC or not torch.is_grad_enabled():
        return []
    numbers = [float(item) for item in given if isinstance(item, int | float)
               and not isinstance(item, bool)]
    for item in given:
        # PyTorch may make a tensor of a number, and so may a script, of as many as it has rows.
        if isinstance(item, Tensor) and not item.requires_grad and 0 < item.numel() <= _WEIGHTS:
            first = item.detach().flatten()[0]
            if not item.is_complex() and bool((item == first).all()):
                numbers.append(float(first))
    return numbers


def _random_state(func: Any, items: Sequence[Any]) -> tuple[torch.Generator, Tensor | None]:
    """Return the generator that a function of these items would draw from, and its state if it is
    about to."""
    given = [item for item in items if isinstance(item, torch.Generator)]
    on_gpu = [x for x in (getattr(item, "device", item) for item in items)
              if isinstance(x, torch.device) and x.type == "cuda"]
    generator = given[0] if given else (
        torch.cuda.default_generators[on_gpu[0].index or 0] if on_gpu else torch.default_generator)
    draws = torch.Tag.nondeterministic_seeded in func.tags
    return generator, generator.get_state() if draws else None


def _runner(func: Any, spec: Any, generator: torch.Generator, state: Tensor | None
            ) -> Callable[[list[Any]], list[Any]]:
    """Return a function of flat arguments that returns flat results, and draws what was drawn."""
    if "batch_norm" in func._schema.name:  # that it looks at all rows is documented
        return lambda items: [items[0], None, None, None]

    def run(items: list[Any]) -> list[Any]:
        args, kwargs = tree_unflatten(items, spec)
        if state is None:
            return tree_flatten(func(*args, **kwargs))[0]
        before = generator.get_state()
        generator.set_state(state)
        try:
            return tree_flatten(func(*args, **kwargs))[0]
        finally:
            generator.set_state(before)
    return run


def _written(func: Any, args: Sequence[Any]) -> Tensor | None:
    """Return the argument that a function writes to; None if it is not one tensor."""
    schema = func._schema.arguments
    names = [a for a in schema if a.alias_info is not None and a.alias_info.is_write]
    position = schema.index(names[0]) if len(names) == 1 else len(args)
    return args[position] if position < len(args) and isinstance(args[position], Tensor) else None


def _follow(steps: Sequence[Step], value: Tensor) -> Tensor:
    for step in steps:
        value = step(value)
    return value


def _following(steps: Sequence[Step]) -> Callable[[list[Any]], list[Any]]:
    return lambda values: [_follow(steps, values[0])]
