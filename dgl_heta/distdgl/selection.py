"""Which settings are in force in a process, for all that is patched in it."""

from __future__ import annotations

from dgl_heta.settings import Settings

_settings: Settings | None = None


def select(settings: Settings | None) -> None:
    """Let these settings be in force, or none."""
    global _settings
    _settings = settings


def selected() -> Settings:
    """The settings in force; the defaults if there are none."""
    return _settings or Settings()


def names(section: str, key: str) -> bool:
    """Whether the settings in force name a value themselves."""
    return key in getattr(selected(), section).model_fields_set
