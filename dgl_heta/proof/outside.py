"""Objects outside of a module that it refers to, and may change when it is called.

Globals of the script, variables of functions around it, attributes of classes, generators of random
numbers: a copy of the module has these in common with the run. They are put back after each
replay. So all replays begin alike, and the run goes on as if there had been none.
"""

from __future__ import annotations

import functools
import pickle
import random
import sys
import zlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_FUNCTIONS = (FunctionType, MethodType, functools.partial, staticmethod, classmethod, property)
_CONTAINERS = (dict, OrderedDict, defaultdict, Counter, list, deque, set)
_LARGE = 1 << 20
"""Numbers of an array, or items of a container, beyond which it is not put back."""
_MOST = 20_000
"""Objects that are looked at."""
_DEPTH = 6
_MISSING = object()


class Outside:
    """Objects that a script's code refers to, not that of libraries.

    Parameters
    ----------
    held : objects of which copies are made, and all that these refer to.

    Attributes
    ----------
    generators : of random numbers, those of the process first.
    """

    def __init__(self, objects: Iterable[Any]) -> None:
        self.generators: list[Any] = [*torch_generators(), random._inst,  # type: ignore[attr-defined]
                                      np.random.mtrand._rand]  # type: ignore[attr-defined]
        self._seen = {id(generator) for generator in self.generators}
        self._names: list[tuple[Any, str]] = []
        self._values: list[Any] = []
        for value in objects:
            self._visit(value if isinstance(value, (*GENERATORS, *_FUNCTIONS)) else type(value))

    # One branch per kind of value; what each does is a line or two.
    def _visit(self, value: Any, depth: int = _DEPTH) -> None:  # noqa: C901, PLR0912
        if not depth or id(value) in self._seen or len(self._seen) > _MOST or isinstance(
                value, nn.Module | nn.Parameter):
            return
        self._seen.add(id(value))
        if isinstance(value, GENERATORS):
            self.generators.append(value)
        elif isinstance(value, FunctionType):
            self._function(value, depth)
        elif isinstance(value, _FUNCTIONS):
            for name in ("__func__", "func", "fget", "fset"):
                self._visit(getattr(value, name, None), depth)
        elif isinstance(value, type):
            for kind in value.__mro__:
                if _is_script(str(kind.__module__)):
                    for name in [*vars(kind)]:
                        self._name(kind, name, depth)
        elif isinstance(value, np.ndarray) or type(value) is Tensor:
            if np.prod(value.shape) <= _LARGE:
                self._values.append(value)
        elif type(value) in _CONTAINERS:
            if len(value) <= _LARGE:
                self._values.append(value)
                for item in list(value.values() if isinstance(value, dict) else value)[:1000]:
                    self._visit(item, depth - 1)
        elif hasattr(value, "__dict__") and _is_script(str(type(value).__module__)):
            self._values.append(value)
            for item in (type(value), *vars(value).values()):
                self._visit(item, depth - 1)

    def _function(self, function: FunctionType, depth: int) -> None:
        space = function.__globals__
        if not _is_script(space.get("__name__", "builtins")):
            return
        for cell in function.__closure__ or ():
            self._name(cell, "cell_contents", depth)
        names = {*_names_in(function.__code__)}
        for name in names & space.keys():
            self._name(space, name, depth)
            if isinstance(module := space[name], ModuleType) and _is_script(module.__name__):
                for attribute in names & vars(module).keys():
                    self._name(vars(module), attribute, depth)

    def _name(self, space: Any, name: str, depth: int) -> None:
        value = _bound(space, name)
        if value is not _MISSING and (isinstance(value, FunctionType) or name[:2] != "__"):
            self._names.append((space, name))
            self._visit(value, depth - 1)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """After the body all is as it was."""
        states = [(value, _state(value)) for value in (*self.generators, *self._values)]
        bound = [(space, name, _bound(space, name)) for space, name in self._names]
        try:
            yield
        finally:
            for value, state in states:
                _put_back(value, state)
            for space, name, value in bound:
                if _bound(space, name) is not value:
                    _bind(space, name, value)

    def marks(self) -> list[int]:
        """For each generator a number, another one when it has been drawn from."""
        states = map(_state, self.generators)
        return [zlib.crc32(pickle.dumps(s.numpy() if isinstance(s, Tensor) else s)) for s in states]


def torch_generators() -> list[torch.Generator]:
    """Return those that PyTorch draws from by default: of the CPU, and of GPUs in use."""
    return [torch.default_generator,
            *(torch.cuda.default_generators if torch.cuda.is_initialized() else ())]


def torch_states() -> list[Tensor]:
    """Return their states."""
    return [generator.get_state() for generator in torch_generators()]


def drawn_since(states: Sequence[Tensor]) -> bool:
    """Return whether random numbers were drawn from one of them since it had its state."""
    return not all(map(torch.equal, states, torch_states()))


@functools.cache
def _is_script(name: str) -> bool:
    """Return whether a Python module is the script's: not of the standard library, installed or
    ours."""
    top, file = name.partition(".")[0], getattr(sys.modules.get(name), "__file__", None) or ""
    return name == "__main__" or (
        top not in (*sys.stdlib_module_names, "torch", "dgl", "dgl_heta")
        and not ("site-packages" in file or "dist-packages" in file))


def _names_in(code: CodeType) -> Iterator[str]:
    """Names that a function, and functions in it, look up outside of it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _bound(space: Any, name: str) -> Any:
    if isinstance(space, CellType):
        try:
            return space.cell_contents
        except ValueError:  # not bound yet
            return _MISSING
    return (space if isinstance(space, dict) else vars(space)).get(name, _MISSING)


def _bind(space: Any, name: str, value: Any) -> None:
    if isinstance(space, dict):
        space[name] = value
    else:
        setattr(space, name, value)


def _state(value: Any) -> Any:
    """Return the contents of an object, copied one level deep."""
    if isinstance(value, torch.Generator | np.random.RandomState):
        return value.get_state()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    return type(value)(value) if type(value) in (list, deque, set) else dict(
        value if isinstance(value, dict) else vars(value))


def _put_back(value: Any, state: Any) -> None:
    """Let an object have in it what it had; one that has not changed is left alone."""
    if isinstance(value, torch.Generator | np.random.RandomState):
        value.set_state(state)
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = state
    elif isinstance(value, random.Random):
        value.setstate(state)
    elif isinstance(value, Tensor):
        if not torch.equal(value.detach(), state):
            value.data.copy_(state)
    elif isinstance(value, np.ndarray):
        if not np.array_equal(value, state):
            value[...] = state
    elif isinstance(value, list | deque):
        if len(value) != len(state) or any(a is not b for a, b in zip(value, state)):
            value.clear()
            value.extend(state)
    else:
        inside = value if isinstance(value, dict | set) else vars(value)
        if inside != state if isinstance(inside, set) else (
                inside.keys() != state.keys() or any(inside[k] is not state[k] for k in state)):
            inside.clear()
            inside.update(state)
