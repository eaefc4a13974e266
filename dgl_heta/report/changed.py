"""The settings of a run that are not the defaults."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dgl_heta.settings import Settings, default_fanouts


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested values as `section.key`, value."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def changed_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Of the settings that a run recorded, those that differ from the defaults of this version.

    Settings of plugins, of which no default is known here, and names that are not settings count
    as different, unless there is nothing in them.
    """
    usual = dict(flat(Settings().model_dump()))
    model = values.get("model")
    layers = model.get("layers") if isinstance(model, Mapping) else None
    if type(layers) is int and 1 <= layers <= 100:
        usual["train.fanouts"] = list(default_fanouts(layers))
    return {key: value for key, value in flat(values)
            if (key not in usual and value not in ({}, None)) or usual.get(key, value) != value}


def shown_value(value: Any) -> str:
    """A value as tables have it: numbers with few digits, texts as they are, else JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return json.dumps(value, ensure_ascii=False, default=str)
