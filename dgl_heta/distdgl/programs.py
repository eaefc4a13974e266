"""Programs that are known here: what they have in the place of DGL's names.

Nothing of them is imported for it: what is to be done waits until a program's own import of the
module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from dgl_heta.distdgl import graphstorm
from dgl_heta.distdgl.modules.hetero_convs import register_hetero_conv

AFTER: dict[str, Callable[[ModuleType], None]] = {
    "graphstorm.config.argument": graphstorm.adapt,
    "graphstorm.model.gnn_encoder_base": lambda module: register_hetero_conv(
        module.HeteroGraphConv, keys="canonical"),
}
"""Module → what is done after its import, once in a process. It changes nothing for graphs that are
not meta-partitioned."""
_done: set[str] = set()


def watch_programs() -> None:
    """See to the modules that were imported, and to others as soon as they are."""
    for name in [*AFTER]:
        if name in sys.modules:
            _see_to(sys.modules[name])
    if _watch not in sys.meta_path:
        sys.meta_path.insert(0, _watch)


def forget_programs() -> None:
    """See to no more imports."""
    if _watch in sys.meta_path:
        sys.meta_path.remove(_watch)


def _see_to(module: ModuleType) -> None:
    if module.__name__ not in _done:
        _done.add(module.__name__)
        AFTER[module.__name__](module)


class _Watch(MetaPathFinder):
    """Finds modules as all others do, and is told when one of the table was imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
                  ) -> ModuleSpec | None:
        if name not in AFTER or name in _done:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: Any) -> None:
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            _see_to(module)
        loader.exec_module = exec_module


_watch = _Watch()
