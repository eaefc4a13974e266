"""The plugin manager: finds providers by kind and name, wherever they come from."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pluggy

from dgl_heta import hookspecs
from dgl_heta._version import __version__
from dgl_heta.errors import InputError, listing, nearest

ENTRY_POINT_GROUP = "dgl_heta"
KINDS = {
    "partition backend": "dgl_heta_partition_backends",
    "module wrapper": "dgl_heta_module_wrappers",
    "cache policy": "dgl_heta_cache_policies",
    "aggregation kernel": "dgl_heta_kernels",
    "dataset": "dgl_heta_datasets",
    "model": "dgl_heta_models",
}
BUILT_INS = (
    "dgl_heta.partition",
    "dgl_heta.datasets",
    "dgl_heta.builtins",
)


@dataclass(frozen=True)
class Provider:
    """One thing that a plugin provides, with where it comes from."""

    kind: str
    name: str
    source: str
    version: str
    value: Any


class Plugins:
    """A plugin manager with the built-ins and all entry points of group `dgl_heta`."""

    def __init__(self, load_entry_points: bool = True) -> None:
        self.manager = pluggy.PluginManager("dgl_heta")
        self.manager.add_hookspecs(hookspecs)
        for module in BUILT_INS:
            self.manager.register(importlib.import_module(module), name=module)
        if load_entry_points:
            try:
                self.manager.load_setuptools_entrypoints(ENTRY_POINT_GROUP)
            except Exception as error:
                raise InputError(
                    f"a plugin of entry point group '{ENTRY_POINT_GROUP}' cannot be loaded: "
                    f"{type(error).__name__}: {error}; repair or uninstall its distribution"
                ) from error
        self._known: dict[str, dict[str, Provider]] = {}
        if os.environ.get("DGL_HETA_TRACE", "") not in ("", "0"):
            self._trace()

    @property
    def hook(self) -> Any:
        """Call a lifecycle hook: `plugins.hook.dgl_heta_epoch_ended(…)`."""
        return self.manager.hook

    def providers(self, kind: str) -> dict[str, Provider]:
        """Providers of a kind by name.

        Raises
        ------
        InputError
            Two plugins provide the same name.
        """
        if kind not in self._known:
            found: dict[str, Provider] = {}
            for implementation in getattr(self.manager.hook, KINDS[kind]).get_hookimpls():
                source, version = self._origin(implementation.plugin, implementation.plugin_name)
                for value in self._call(implementation, kind, source):
                    provider = Provider(kind, value.name, source, version, value)
                    if provider.name in found:
                        other = found[provider.name]
                        raise InputError(
                            f"two plugins provide {kind} '{provider.name}': {other.source} "
                            f"{other.version} and {source} {version}; uninstall or rename one"
                        )
                    found[provider.name] = provider
            self._known[kind] = found
        return self._known[kind]

    def get(self, kind: str, name: str) -> Any:
        """The provider of a kind by name, or an :class:`InputError` that lists the names."""
        known = self.providers(kind)
        if name not in known:
            raise InputError(f"unknown {kind} '{name}'; known are: {listing(known)}"
                             + nearest(name, known))
        return known[name].value

    def all(self) -> list[Provider]:
        """Every provider of every kind."""
        return [p for kind in KINDS for p in self.providers(kind).values()]

    def _call(self, implementation: Any, kind: str, source: str) -> list[Any]:
        others = [p for p in self.manager.get_plugins() if p is not implementation.plugin]
        (result,) = self.manager.subset_hook_caller(KINDS[kind], others)()
        if not isinstance(result, list) or not all(hasattr(v, "name") for v in result):
            raise InputError(f"plugin {source}: {KINDS[kind]} returned {result!r}; it must return "
                             "a list of providers, each with a name")
        return result

    def _origin(self, plugin: Any, name: str) -> tuple[str, str]:
        for candidate, distribution in self.manager.list_plugin_distinfo():
            if candidate is plugin:
                return distribution.project_name, distribution.version
        return (("built in", __version__) if name in BUILT_INS else (name, "?"))

    def _trace(self) -> None:
        self.manager.trace.root.setwriter(lambda text: print(text, end="", file=sys.stderr))
        self.manager.enable_tracing()


@lru_cache(maxsize=1)
def plugins() -> Plugins:
    """The plugin manager of this process."""
    return Plugins()
