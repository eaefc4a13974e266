"""`dgl-heta settings`: all settings with the values in effect."""

from __future__ import annotations

import json
from typing import Any, Literal, get_args, get_origin

import typer
from rich.markup import escape

from dgl_heta.cli.options import AsJson, SettingsOptions, grouped
from dgl_heta.report.console import out, print_json, table

app = typer.Typer()


@app.command("settings", epilog="Example: dgl-heta settings -c heta.toml --set train.lr=0.003")
@grouped
def list_settings(source: SettingsOptions, as_json: AsJson = False) -> None:
    """List all settings with their values, as a file, the environment and --set give them."""
    from dgl_heta.hooks.manager import plugins
    from dgl_heta.settings import keys, load_settings

    settings = load_settings(source.config, source.overrides)
    sections = plugins().configured(settings).sections()
    values = {**settings.model_dump(), "plugins": {
        name: section.model_dump(mode="json") for name, section in sections.items()}}
    if as_json:
        print_json(values)
        return
    rows = table("setting", "value", "meaning")
    for name, field in keys().items():
        section, key = name.split(".")
        rows.add_row(name, escape(json.dumps(values[section][key])),
                     escape(_meaning(field)))
    for section, model in sections.items():
        for key, field in type(model).model_fields.items():
            rows.add_row(f"plugins.{section}.{key}",
                         escape(json.dumps(values["plugins"][section][key])),
                         escape(_meaning(field)))
    out.print(rows)


def _meaning(field: Any) -> str:
    """Return a setting's description, with its allowed values where it is one of a few texts."""
    kinds = [field.annotation, *get_args(field.annotation)]
    allowed = [str(value) for kind in kinds if get_origin(kind) is Literal
               for value in get_args(kind)]
    text = field.description or ""
    return f"{text} ({', '.join(allowed)})" if allowed else text
