"""The plugin manager: finds providers by kind and name, wherever they come from."""

from __future__ import annotations

import copy
import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint, distributions
from typing import Any

import pluggy
from pydantic import BaseModel

from dgl_heta._version import __version__
from dgl_heta.errors import InputError, listing, nearest
from dgl_heta.hooks import protocols, specs
from dgl_heta.hooks.kernel_protocol import Kernel
from dgl_heta.hooks.packaged import to_install
from dgl_heta.settings import Settings, read_section, section_name
from dgl_heta.system.memory import no_memory

ENTRY_POINT_GROUP = "dgl_heta"
KINDS: dict[str, tuple[str, type]] = {
    "partition backend": ("dgl_heta_partition_backends", protocols.PartitionBackend),
    "cutter": ("dgl_heta_cutters", protocols.Cutter),
    "module wrapper": ("dgl_heta_module_wrappers", protocols.ModuleWrapper),
    "cache policy": ("dgl_heta_cache_policies", protocols.CachePolicy),
    "aggregation kernel": ("dgl_heta_kernels", Kernel),
    "batch source": ("dgl_heta_batch_sources", protocols.BatchSource),
    "logger": ("dgl_heta_loggers", protocols.Logger),
    "dataset": ("dgl_heta_datasets", protocols.Dataset),
    "reader": ("dgl_heta_readers", protocols.Reader),
    "model": ("dgl_heta_models", protocols.ModelProvider),
    "patches": ("dgl_heta_patches", protocols.Patches),
    "model inputs": ("dgl_heta_model_inputs", protocols.ModelInputs),
    "program": ("dgl_heta_programs", protocols.Program),
    "command": ("dgl_heta_commands", protocols.Command),
    "settings": ("dgl_heta_settings", protocols.Provider),
}
"""Kind → the hook that its providers come from, and their protocol."""
LISTENERS = ("dgl_heta_run_started", "dgl_heta_epoch_ended", "dgl_heta_run_ended")
DISTRIBUTION = "dgl-heta"
"""The distribution of the built-ins: `dgl_heta.builtin` is its entry point."""


@dataclass(frozen=True)
class Registered:
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
        self._known: dict[str, dict[str, Registered]] = {}
        self._sections: dict[str, BaseModel] = {}
        self._used: dict[str, BaseModel] = {}
        if os.environ.get("DGL_HETA_TRACE", "") not in ("", "0"):
            self._trace()

    @property
    def hook(self) -> Any:
        """Call a lifecycle hook: `plugins.hook.dgl_heta_epoch_ended(…)`."""
        return self.manager.hook

    def providers(self, kind: str) -> dict[str, Registered]:
        """Providers of a kind by name.

        Raises
        ------
        InputError
            Two plugins provide the same name.
        """
        if kind not in self._known:
            by_name: dict[str, Registered] = {}
            for implementation in getattr(self.manager.hook, KINDS[kind][0]).get_hookimpls():
                source, version = self._origins[implementation.plugin_name]
                for value in self._call(implementation, kind, f"{source} {version}"):
                    _check_members(value, kind, f"{source} {version}")
                    provider = Registered(kind, value.name, source, version, value)
                    if provider.name in by_name:
                        other = by_name[provider.name]
                        raise InputError(
                            f"two plugins provide {kind} '{provider.name}': {other.source} "
                            f"{other.version} and {source} {version}; uninstall or rename one"
                        )
                    by_name[provider.name] = provider
            self._known[kind] = by_name
        return self._known[kind]

    def get(self, kind: str, name: str, besides: Sequence[str] = ()) -> Any:
        """The provider of a kind by name, with its settings; `besides` are other names that a
        setting may have.

        Raises
        ------
        InputError
            There is none of that name; the message lists those that there are.
        """
        known = self.providers(kind)
        if name not in known:
            names = [*besides, *known]
            raise InputError(f"unknown {kind} '{name}'; known are: {listing(names)}"
                             + (to_install(kind, name) or nearest(name, names)))
        provider = known[name].value
        if provider.settings is None:
            return provider
        key = section_name(name)
        chosen = self._used[key] = self._sections.get(key, provider.settings)
        if chosen is not provider.settings:
            provider = copy.copy(provider)
            object.__setattr__(provider, "settings", chosen)
        return provider

    def serving_gpus(self, kind: str) -> Any | None:
        """The first provider of a kind that serves GPUs, with its settings; None if none does."""
        return next((self.get(kind, name) for name, each in self.providers(kind).items()
                     if getattr(each.value, "serves_gpus", False)), None)

    def kernel(self, name: str, gpu: bool) -> Kernel:
        """The aggregation kernel of a name; `auto` is `fused`, where a GPU computes the first that
        serves GPUs, if any does."""
        served = self.serving_gpus("aggregation kernel") if gpu and name == "auto" else None
        kernel: Kernel = served or self.get("aggregation kernel",
                                            "fused" if name == "auto" else name, ("auto",))
        return kernel

    def configured(self, settings: Settings) -> Plugins:
        """The same plugins with the sections `[plugins.NAME]` of these settings.

        Raises
        ------
        InputError
            A section of no provider (the message lists the sections that there are), or a key or
            value that its model refuses.
        """
        other = copy.copy(self)
        other._sections, other._used = {}, {}
        sections = self.sections() if settings.plugins else {}
        for key, values in settings.plugins.items():
            if key not in sections:
                raise InputError(f"no plugin has settings 'plugins.{key}'; sections: "
                                 f"{listing(f'plugins.{n}' for n in sections)}"
                                 + nearest(key, sections))
            other._sections[key] = read_section(type(sections[key]), values, f"plugins.{key}")
        return other

    def sections(self) -> dict[str, BaseModel]:
        """The settings of all providers that have some, by the key of their section.

        Raises
        ------
        InputError
            Providers of one name have different settings.
        """
        defaults: dict[str, BaseModel] = {}
        for provider in (p for kind in KINDS for p in self.providers(kind).values()):
            default = provider.value.settings
            if default is None:
                continue
            key = section_name(provider.name)
            if type(defaults.setdefault(key, default)) is not type(default):
                raise InputError(f"two providers have different settings in one section plugins."
                                 f"{key}, one of them {provider.kind} '{provider.name}' of "
                                 f"{provider.source} {provider.version}; rename one")
        return {**defaults, **self._sections}

    def recorded(self, settings: Settings) -> Settings:
        """Settings with the complete sections of the user and of the providers in use."""
        alone = {section_name(p.name): p.value.settings for p in self.providers("settings").values()
                 if p.value.settings is not None}
        sections = {**alone, **self._used, **self._sections}
        return settings.model_copy(update={"plugins": {
            name: section.model_dump(mode="json") for name, section in sorted(sections.items())}})

    def all(self) -> list[Registered]:
        """Every provider of every kind, and the plugins that listen to training."""
        providers = [p for kind in KINDS for p in self.providers(kind).values()]
        listening = {implementation.plugin_name: implementation.plugin for hook in LISTENERS
                     for implementation in getattr(self.manager.hook, hook).get_hookimpls()}
        return providers + [
            Registered("listener", name.rpartition(":")[2], *self._origins[name], plugin)
            for name, plugin in listening.items()]

    def _load(self, entry: EntryPoint, source: str, version: str) -> None:
        try:
            plugin = entry.load()
        except (Exception, SystemExit) as error:
            if no_memory(error):
                raise
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
            known = [*(hook for hook, _ in KINDS.values()), *LISTENERS]
            raise InputError(
                f"plugin {source} {version} does not keep to the hooks of dgl-heta {__version__}: "
                f"{' '.join(str(error).split())}; hooks: {listing(known)}"
            ) from None

    def _call(self, implementation: Any, kind: str, source: str) -> list[Any]:
        hook, _ = KINDS[kind]
        others = [p for p in self.manager.get_plugins() if p is not implementation.plugin]
        try:
            (result,) = self.manager.subset_hook_caller(hook, others)() or (None,)
        except (Exception, SystemExit) as error:
            if no_memory(error):
                raise
            raise InputError(f"plugin {source}: {hook} failed with {type(error).__name__}: "
                             f"{error}; repair or uninstall it") from error
        if not isinstance(result, list) or not all(_is_named(value) for value in result):
            raise InputError(f"plugin {source}: {hook} returned {result!r}; it must return a list "
                             "of providers, each with a name")
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


def _check_members(provider: Any, kind: str, source: str) -> None:
    """Raise an :class:`InputError` unless a provider has all members of its protocol."""
    _, protocol = KINDS[kind]
    members = {name for base in protocol.__mro__ for name in (
        *vars(base), *inspect.get_annotations(base)) if name == "__call__" or name[0] != "_"}
    for name in sorted(members):
        if not hasattr(provider, name):
            raise InputError(
                f"plugin {source}: {kind} '{provider.name}' has no '{name}'; give it one, or "
                f"derive it from dgl_heta.{protocol.__name__}, which has the defaults")
    settings = provider.settings
    if settings is not None and not isinstance(settings, BaseModel):
        raise InputError(f"plugin {source}: {kind} '{provider.name}' has settings {settings!r}; "
                         "they must be an instance of a pydantic model, with its defaults")


def _is_named(provider: Any) -> bool:
    name = getattr(provider, "name", None)
    return isinstance(name, str) and bool(name)


@lru_cache(maxsize=1)
def _installed() -> Plugins:
    return Plugins()


_in_use: Plugins | None = None


def plugins() -> Plugins:
    """The plugin manager of this process: all that is installed, or what :func:`use` was given."""
    return _in_use or _installed()


def use(registry: Plugins | None) -> None:
    """Let :func:`plugins` return this one from now on; None: all that is installed, again."""
    global _in_use
    _in_use = registry
