"""The plugin manager: finds providers by kind and name, wherever they come from."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint, distributions
from typing import Any

import pluggy

from dgl_heta._version import __version__
from dgl_heta.errors import InputError, listing, nearest
from dgl_heta.hooks import specs

ENTRY_POINT_GROUP = "dgl_heta"
KINDS = {
    "partition backend": "dgl_heta_partition_backends",
    "module wrapper": "dgl_heta_module_wrappers",
    "cache policy": "dgl_heta_cache_policies",
    "aggregation kernel": "dgl_heta_kernels",
    "dataset": "dgl_heta_datasets",
    "model": "dgl_heta_models",
}
LISTENERS = ("dgl_heta_run_started", "dgl_heta_epoch_ended", "dgl_heta_run_ended")
DISTRIBUTION = "dgl-heta"
"""The distribution of the built-ins: `dgl_heta.builtin` is its entry point."""


@dataclass(frozen=True)
class Provider:
    """One thing that a plugin provides, with where it comes from."""

    kind: str
    name: str
    source: str
    version: str
    value: Any


class Plugins:
    """A plugin manager with all entry points of group `dgl_heta`, the built-ins' among them.

    Parameters
    ----------
    guests : whether to load other distributions' plugins, too.

    Raises
    ------
    InputError
        A plugin cannot be loaded or does not keep to the hooks; dgl-heta is not installed.
    """

    def __init__(self, guests: bool = True) -> None:
        self.manager = pluggy.PluginManager("dgl_heta")
        self.manager.add_hookspecs(specs)
        self._origins: dict[str, tuple[str, str]] = {}
        entries = sorted(_entry_points(), key=lambda entry: entry[0].name != DISTRIBUTION)
        if not entries or entries[0][0].name != DISTRIBUTION:
            raise InputError("dgl-heta is not installed, so its own providers are not known; "
                             "install it (pip install dgl-heta, or pip install -e . in its source)")
        for distribution, entry in entries:
            built_in = distribution.name == DISTRIBUTION
            if built_in or guests:
                self._load(entry, "built in" if built_in else distribution.name,
                           __version__ if built_in else distribution.version)
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
                source, version = self._origins[implementation.plugin_name]
                for value in self._call(implementation, kind, f"{source} {version}"):
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
        """Every provider of every kind, and the plugins that listen to training."""
        found = [p for kind in KINDS for p in self.providers(kind).values()]
        listening = {implementation.plugin_name: implementation.plugin for hook in LISTENERS
                     for implementation in getattr(self.manager.hook, hook).get_hookimpls()}
        return found + [Provider("listener", name.rpartition(":")[2], *self._origins[name], plugin)
                        for name, plugin in listening.items()]

    def _load(self, entry: EntryPoint, source: str, version: str) -> None:
        try:
            plugin = entry.load()
        except Exception as error:
            raise InputError(
                f"plugin {source} {version} cannot be loaded: its entry point "
                f"'{entry.name} = {entry.value}' gives {type(error).__name__}: {error}; "
                "repair or uninstall it"
            ) from error
        if not self.manager.is_registered(plugin):
            name = entry.value if source == "built in" else f"{source}:{entry.name}"
            self._register(plugin, name, source, version)

    def _register(self, plugin: Any, name: str, source: str, version: str) -> None:
        self._origins[name] = source, version
        try:
            self.manager.register(plugin, name=name)
            self.manager.check_pending()
        except pluggy.PluginValidationError as error:
            known = [*KINDS.values(), *LISTENERS]
            raise InputError(
                f"plugin {source} {version} does not keep to the hooks of dgl-heta {__version__}: "
                f"{' '.join(str(error).split())}; hooks: {listing(known)}"
            ) from None

    def _call(self, implementation: Any, kind: str, source: str) -> list[Any]:
        others = [p for p in self.manager.get_plugins() if p is not implementation.plugin]
        try:
            (result,) = self.manager.subset_hook_caller(KINDS[kind], others)() or (None,)
        except Exception as error:
            raise InputError(f"plugin {source}: {KINDS[kind]} failed with "
                             f"{type(error).__name__}: {error}; repair or uninstall it") from error
        if not isinstance(result, list) or not all(_is_named(value) for value in result):
            raise InputError(f"plugin {source}: {KINDS[kind]} returned {result!r}; it must return "
                             "a list of providers, each with a name")
        return result

    def _trace(self) -> None:
        self.manager.trace.root.setwriter(lambda text: print(text, end="", file=sys.stderr))
        self.manager.enable_tracing()


def _entry_points() -> Iterator[tuple[Distribution, EntryPoint]]:
    """Entry points of the group, a distribution that is on the path twice counted once."""
    seen = set()
    for distribution in distributions():
        entries = [e for e in distribution.entry_points if e.group == ENTRY_POINT_GROUP]
        if entries and distribution.name not in seen:
            seen.add(distribution.name)
            yield from ((distribution, entry) for entry in entries)


def _is_named(provider: Any) -> bool:
    name = getattr(provider, "name", None)
    return isinstance(name, str) and bool(name)


@lru_cache(maxsize=1)
def plugins() -> Plugins:
    """The plugin manager of this process."""
    return Plugins()
