"""The code that Python runs at its start (see this directory's `__init__.py`)."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any


class _WhenImported(importlib.abc.MetaPathFinder):
    """Has dgl-heta enabled once dgl has been imported. Nothing of it is imported before somebody
    looks for dgl."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "dgl" or _is_a_command():
            return None
        from dgl_heta.system.patching import when_imported

        sys.meta_path.remove(self)
        when_imported("dgl", _enable)
        return importlib.util.find_spec(name)


def _enable(_: Any) -> None:
    from dgl_heta.distdgl.activate import enable

    enable()


def _is_a_command() -> bool:
    """Return whether a command of dgl-heta runs here, or started this process. These have their
    settings in other ways."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return "dgl_heta.cli" in sys.modules or (
        main is not None and main.name.partition(".")[0] == "dgl_heta")


def _run_the_next() -> None:
    """Run the `sitecustomize` that would have been run without this one."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize":  # as Python imports it at its start
    if os.environ.get("DGL_HETA_CONFIG"):
        sys.meta_path.insert(0, _WhenImported())
    _run_the_next()
