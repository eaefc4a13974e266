"""Names of other packages that are replaced while something is enabled, and put back."""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from dgl_heta.errors import InputError


@dataclass(frozen=True)
class Patch:
    """A name and what stands there while dgl-heta is enabled.

    Attributes
    ----------
    target : "module:attribute" or "module:Class.attribute".
    make : makes the replacement from the original (None: the class inherits it).
    why : for the list of patched names in the documentation.
    """

    target: str
    make: Callable[[Any], Any]
    why: str

    def place(self) -> tuple[Any, str]:
        """The object that has the name, and the name."""
        module, _, path = self.target.partition(":")
        owner: Any = importlib.import_module(module)
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        return owner, name


class PatchTable:
    """Patches that are the tuple `PATCHES` of a module, imported when they are applied.

    So it can be listed where what they change is not installed.
    """

    settings: Any = None

    def __init__(self, name: str, module: str) -> None:
        self.name, self._module = name, module

    def patches(self) -> Sequence[Patch]:
        """Import the module and return its patches."""
        patches: Sequence[Patch] = importlib.import_module(self._module).PATCHES
        return patches


def patch_all(targets: Iterable[str], make: Callable[[Any], Any], why: str) -> Iterator[Patch]:
    """The same patch for several names of one thing."""
    for target in targets:
        yield Patch(target, make, why)


_MISSING = object()
_WITHIN = ("dgl", "torch", "dgl_heta")
"""Packages whose own names are replaced one by one."""


_applied: list[tuple[Any, str, Any]] = []


def apply(patches: Sequence[Patch]) -> None:
    """Put replacements in place; nothing changes if one of the names is not there.

    The original of a name's second patch is what the first one made.

    Raises
    ------
    InputError
        The installed DGL or PyTorch has not all of the names.
    """
    if _applied:
        return
    replaced = []
    for patch in patches:
        try:
            owner, name = patch.place()
            inherited = getattr(owner, name)
        except (ImportError, AttributeError) as error:
            raise InputError(f"the installed DGL cannot be used: {patch.target} is not there "
                             f"({error}); docs/patched-names.md lists what must be, by release "
                             "of DGL") from error
        replaced.append((owner, name, inherited, vars(owner).get(name, _MISSING), patch))
    # By place, because what a class inherits must not be what was put into its parent here.
    before: dict[tuple[int, str], Any] = {}
    functions: dict[int, Any] = {}
    for owner, name, inherited, own, patch in replaced:
        original = before.get((id(owner), name), inherited)
        replacement = patch.make(original)
        if callable(original) and not isinstance(original, type) and replacement is not original:
            functools.update_wrapper(replacement, original)
            replacement.dgl_heta_original = plain(original)
        if (id(owner), name) not in before:
            _applied.append((owner, name, own))
        before[id(owner), name] = replacement
        setattr(owner, name, replacement)
        if isinstance(owner, ModuleType) and callable(inherited):
            functions[id(inherited)] = replacement
    for module in [*sys.modules.values()]:  # into which names were imported before
        if isinstance(module, ModuleType) and module.__name__.partition(".")[0] not in _WITHIN:
            for name, value in [*vars(module).items()]:
                if id(value) in functions:
                    _applied.append((module, name, value))
                    setattr(module, name, functions[id(value)])


def remove() -> None:
    """Put all originals back."""
    while _applied:
        owner, name, own = _applied.pop()
        if own is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


def applied() -> bool:
    """Return whether the replacements are in place."""
    return bool(_applied)


def plain(function: Any) -> Any:
    """DGL's own function behind a name that may be patched."""
    return getattr(function, "dgl_heta_original", function)


def when_imported(module: str, do: Callable[[ModuleType], None]) -> None:
    """Do something with a module once it has been imported: now, when that is, or never."""
    if module in sys.modules:
        do(sys.modules[module])
        return
    waiting = _waiting.setdefault(module, [])
    if do not in waiting:
        waiting.append(do)
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def no_longer(do: Callable[[ModuleType], None]) -> None:
    """Do it with no module any more; the finder goes where nothing else waits."""
    for name, waiting in [*_waiting.items()]:
        if do in waiting:
            waiting.remove(do)
        if not waiting:
            del _waiting[name]
    if not _waiting and _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds a module as all others do, and does what waits for it once it has run.

    It stays where it is: who asks for a module's spec may not import it.
    """

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
                  ) -> ModuleSpec | None:
        if name not in _waiting:
            return None
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path
                 if finder is not self)
        spec = next((s for s in specs if s is not None and s.loader is not None), None)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_do(module: ModuleType) -> None:
            run(module)
            for do in _waiting.get(name, ()):
                do(module)
            _waiting.pop(name, None)  # not before: what fails ends this import, and the next one

        spec.loader.exec_module = run_and_do  # type: ignore[method-assign]
        return spec


_waiting: dict[str, list[Callable[[ModuleType], None]]] = {}
"""Module → what is to be done with it once it has been imported."""
_FINDER = _Finder()
