"""Names that a module loads when they are first used; its stub file is the list of them."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any


def homes_of(file: str) -> dict[str, str]:
    """Return what the stub beside a module's file imports: name → the module it comes from."""
    stub = Path(file).with_suffix(".pyi").read_text(encoding="utf-8")
    return {alias.name: node.module or "" for node in ast.parse(stub).body
            if isinstance(node, ast.ImportFrom) for alias in node.names}


def lazy_names(module: str, file: str) -> tuple[Callable[[str], Any], list[str]]:
    """Return the `__getattr__` and the `__all__` of a module, from the stub beside it."""
    homes = homes_of(file)

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{module}' has no attribute '{name}'")
        return getattr(importlib.import_module(homes[name]), name)
    return load, sorted(homes)
