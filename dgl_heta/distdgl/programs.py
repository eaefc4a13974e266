"""Programs that plugins adapt (hook `dgl_heta_programs`), whenever a script imports them.

Nothing of them is imported for it: what is to be done waits until a program's own import of the
module.
"""

from __future__ import annotations

import sys
from types import ModuleType

from dgl_heta.errors import InputError
from dgl_heta.hooks.manager import Plugins
from dgl_heta.hooks.packaged import DISTRIBUTIONS
from dgl_heta.hooks.protocols import Adapt
from dgl_heta.system.patching import no_longer, when_imported

_ADAPTED = "__dgl_heta_adapted__"
"""Attribute of a module that was adapted. What was done to it stays after `disable()`, so that the
next `enable()` must not do it again."""
_watched: dict[str, list[Adapt]] = {}
"""Module → what plugins do to it."""


def watch_programs(plugins: Plugins) -> None:
    """Adapt the programs' modules that were imported, and others as soon as they are.

    Raises
    ------
    InputError
        As a plugin raises it.
    """
    forget_programs()
    for name in plugins.providers("program"):
        for module, adapt in plugins.get("program", name).modules.items():
            _watched.setdefault(module, []).append(adapt)
    for module in _watched:
        when_imported(module, _adapt)


def forget_programs() -> None:
    """Adapt no module that is imported from now on."""
    _watched.clear()
    no_longer(_adapt)


def _adapt(module: ModuleType) -> None:
    """Adapt a module, once."""
    if module.__name__ in _watched and not hasattr(module, _ADAPTED):
        for adapt in _watched[module.__name__]:
            adapt(module)
        setattr(module, _ADAPTED, True)


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
