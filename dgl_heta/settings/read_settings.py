"""Settings from a TOML file, the environment and the command line."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from dgl_heta.errors import InputError, listing, nearest, quoted, shortened
from dgl_heta.settings.fanouts import default_fanouts
from dgl_heta.settings.origins import Origin
from dgl_heta.settings.sections import Settings
from dgl_heta.settings.toml import NotToml, parse_toml, read_toml

ENV_PREFIX = "DGL_HETA_"
PLAIN_VARIABLES = ("DGL_HETA_CONFIG", "DGL_HETA_TRACE", "DGL_HETA_LAUNCHER", "DGL_HETA_RENDEZVOUS",
                   "DGL_HETA_READS", "DGL_HETA_MEETING", "DGL_HETA_MACHINE", "DGL_HETA_EVENTS")


def setting_variables(environ: Iterable[str]) -> list[str]:
    """The variables of an environment, or of such names, that are settings."""
    return sorted(name for name in environ
                  if name.startswith(ENV_PREFIX) and name not in PLAIN_VARIABLES)


def load_settings(
    file: str | Path | None = None,
    overrides: Iterable[str] = (),
    environ: Mapping[str, str] | None = None,
    base: Mapping[str, Any] | None = None,
    base_origin: Origin = Origin.PROGRAM,
) -> Settings:
    """Settings from all sources; :meth:`Settings.origin` tells which source named each.

    Parameters
    ----------
    file : TOML file; default: what DGL_HETA_CONFIG names, or none.
    overrides : `section.key=value` strings, the value in TOML (a bare word is a string).
    environ : environment to read, default `os.environ`.
    base : nested values that are weaker than all of these.
    base_origin : where `base` comes from.

    Raises
    ------
    InputError
        An unknown key (naming the nearest), a value of the wrong type, an unreadable file.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for section, content in (base or {}).items():
        values[section] = copy.deepcopy(dict(content))
        origins.update((f"{section}.{key}", base_origin) for key in content)
    before = values.get("model", {}).get("name")
    file = file or environ.get("DGL_HETA_CONFIG") or None
    if file:
        origins |= dict.fromkeys(
            _merge(values, read_toml(Path(file), "settings"), str(file)), Origin.FILE)
    for name in setting_variables(environ):
        section, _, key = name[len(ENV_PREFIX):].lower().partition("__")
        content = _one(section, key.replace("__", "."), environ[name])
        origins |= dict.fromkeys(_merge(values, content, f"variable {name}"), Origin.VARIABLE)
    name = values.get("model", {}).get("name")
    if isinstance(name, str) and ".py:" in name and name != before:
        raise InputError(f"model.name '{name}' names a file of code, which the command line alone "
                         "may do: give --model, or name a module, as in mine:Net")
    for text in overrides:
        path, equals, value = text.partition("=")
        section, dot, key = path.strip().partition(".")
        if not equals or not dot:
            raise InputError(f"--set {shortened(text)}: write section.key=value, for example "
                             "train.lr=0.01" + _suggestion(path.strip()))
        origins |= dict.fromkeys(
            _merge(values, _one(section, key, value), f"--set {shortened(text)}"), Origin.FLAG)
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise _wrong(error) from None
    train = settings.train
    if train.global_batch_size is not None and "batch_size" in values["train"]:
        raise InputError(f"train.global_batch_size = {train.global_batch_size} is for all workers "
                         f"together, train.batch_size = {train.batch_size} for each, and both are "
                         "set; leave one of them out")
    if "fanouts" not in values.get("train", {}):
        fanouts = list(default_fanouts(settings.model.layers))
        train = settings.train.model_copy(update={"fanouts": fanouts})
        settings = settings.model_copy(update={"train": train})
        origins["train.fanouts"] = Origin.DEFAULT
    settings.note_origins(origins)
    return settings.check()


def keys() -> dict[str, Any]:
    """All settings as `section.key` → pydantic field."""
    return {f"{section}.{key}": field
            for section, info in Settings.model_fields.items() if section != "plugins"
            for key, field in info.default.__class__.model_fields.items()}


def read_section(model: type[BaseModel], values: Mapping[str, Any], name: str) -> BaseModel:
    """The section `name` of a provider, by its model; strings are read as those of `--set` are.

    Raises
    ------
    InputError
        An unknown key (naming the nearest), a value of the wrong type or out of range.
    """
    fields = model.model_fields
    read = {}
    for key, value in values.items():
        if key not in fields:
            raise InputError(f"unknown setting '{name}.{key}'; settings: "
                             f"{listing(f'{name}.{k}' for k in fields)}" + nearest(key, fields))
        annotation = fields[key].annotation
        read[key] = _parse(value, annotation) if isinstance(value, str) else value
        if isinstance(read[key], bool) and not _may_be(bool, annotation):
            raise InputError(f"setting {name}.{key}: this setting is no switch, so it cannot be "
                             f"true or false; got {read[key]}")
    try:
        return model(**read)
    except ValidationError as error:
        refused = {each["loc"][:1] for each in error.errors()}
        with contextlib.suppress(ValidationError):  # a choice of texts may look like a number
            return model(**{key: values[key] if (key,) in refused else value
                            for key, value in read.items()})
        raise _wrong(error, name) from None


def _wrong(error: ValidationError, *section: str) -> InputError:
    first = error.errors()[0]
    where = ".".join(map(str, (*section, *first["loc"])))
    message = first["msg"].removeprefix("Value error, ")
    return InputError(f"setting {where}: {message}; got {quoted(first['input'])}")


def _one(section: str, key: str, text: str) -> dict[str, Any]:
    """Nested values with one in them; a provider's own stays text until its type is known."""
    if section == "plugins":
        name, _, key = key.rpartition(".")
        return {section: {name: {key: text}} if name else {key: text} if key else text}
    field = keys().get(f"{section}.{key}")
    return {section: {key: _parse(text, field.annotation if field else None)} if key else text}


def _merge(values: dict[str, Any], new: Mapping[str, Any], origin: str) -> list[str]:
    """Put new values over those that there are; returns the names of those settings.

    Parameters
    ----------
    origin : the source, as a message names it.
    """
    known, named = keys(), []
    for section, content in new.items():
        if section == "plugins":
            _merge_plugins(values.setdefault(section, {}), content, origin)
            continue
        if section not in Settings.model_fields:
            raise InputError(f"{origin}: unknown section '{section}'; sections: "
                             f"{listing(Settings.model_fields)}"
                             + nearest(section, Settings.model_fields))
        if not isinstance(content, Mapping):
            raise InputError(f"{origin}: '{section}' is a section; set its keys: "
                             f"{listing(k for k in known if k.startswith(section + '.'))}")
        for key in content:
            name = f"{section}.{key}"
            if name not in known:
                raise InputError(f"{origin}: unknown setting '{name}'"
                                 + (_suggestion(name) or f"; settings: {listing(known, 40)}"))
            named.append(name)
        values.setdefault(section, {}).update(content)
    return named


def _merge_plugins(values: dict[str, dict[str, Any]], new: Any, origin: str) -> None:
    sections = new if isinstance(new, Mapping) else {"": None}
    for name, content in sections.items():
        if not name or not isinstance(content, Mapping):
            raise InputError(f"{origin}: 'plugins' has a section for each provider; write "
                             f"plugins.{name or 'NAME'}.key=value, or [plugins.{name or 'NAME'}] "
                             "in TOML")
        values.setdefault(section_name(name), {}).update(content)


def section_name(provider: str) -> str:
    """The key of a provider's section: its name as a variable of the environment can have it."""
    return provider.lower().replace("-", "_")


def _suggestion(name: str) -> str:
    """The nearest setting: the same key in another section, or the most similar name."""
    known = list(keys())
    same = [k for k in known if k.partition(".")[2] == name.rpartition(".")[2]]
    if same:
        return nearest(name, same) or f"; did you mean '{same[0]}'?"
    return nearest(name, known)


def _may_be(kind: type, annotation: Any) -> bool:
    """Return whether an annotation is a type, or a union (`X | None`) or a list that has it."""
    return annotation in (kind, Any) or any(_may_be(kind, a) for a in get_args(annotation))


def _parse(text: str, annotation: Any) -> Any:
    """A TOML value, with brackets around a list left out or not; else, the text itself.

    A setting that is text needs no quotes, whatever it looks like (a year, `a,b`).
    """
    textual = annotation in (str, str | None, Path, Path | None)
    for toml in (text, f"[{text}]") if text.strip() else ():
        try:
            value = parse_toml(f"value = {toml}")["value"]
        except NotToml:
            continue
        return text if textual and not isinstance(value, str) else value
    return text
