"""Programs that plugins adapt (hook `dgl_heta_programs`), whenever a script imports them.

Nothing of them is imported for it: what is to be done waits until a program's own import of the
module.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from dgl_heta.errors import InputError
from dgl_heta.hooks.manager import Plugins
from dgl_heta.hooks.packaged import DISTRIBUTIONS
from dgl_heta.hooks.protocols import Adapt

_ADAPTED = "__dgl_heta_adapted__"
"""Attribute of a module that was adapted. What was done to it stays after `disable()`, so that the
next `enable()` must not do it again."""


def watch_programs(plugins: Plugins) -> None:
    """Adapt the programs' modules that were imported, and others as soon as they are.

    Raises
    ------
    InputError
        As a plugin raises it.
    """
    forget_programs()
    known = plugins.providers("program")
    modules: dict[str, list[Adapt]] = {}
    for name in known:
        for module, adapt in plugins.get("program", name).modules.items():
            modules.setdefault(module, []).append(adapt)
    watch = _Watch(modules)
    # Before the finder is there, so that where this raises nothing is left behind.
    for name in modules.keys() & sys.modules.keys():
        watch.adapt(sys.modules[name])
    sys.meta_path.insert(0, watch)


def forget_programs() -> None:
    """Adapt no module that is imported from now on."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Watch)]


def check_programs(plugins: Plugins) -> None:
    """Check that what a program needs on a meta-partitioned graph is installed.

    Raises
    ------
    InputError
        A program was imported whose plugin is not installed.
    """
    for kind, name in DISTRIBUTIONS:
        if kind == "program" and name in sys.modules and name not in plugins.providers("program"):
            raise InputError(f"{name} was imported, which runs on meta-partitioned graphs by a "
                             f"plugin that is not installed: pip install "
                             f"{DISTRIBUTIONS[kind, name]}")


class _Watch(MetaPathFinder):
    """Finds modules as all other finders do, and adapts those of the table after their import."""

    def __init__(self, modules: Mapping[str, Sequence[Adapt]]) -> None:
        self._modules = modules

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
                  ) -> ModuleSpec | None:
        if name not in self._modules:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                # The module does not exist yet: its own loader is to tell when it has run.
                self._follow(spec.loader)
                return spec
        return None

    def adapt(self, module: ModuleType) -> None:
        """Adapt a module of the table, once."""
        if not hasattr(module, _ADAPTED):
            for adapt in self._modules[module.__name__]:
                adapt(module)
            setattr(module, _ADAPTED, True)

    def _follow(self, loader: Any) -> None:
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            self.adapt(module)
        loader.exec_module = exec_module
