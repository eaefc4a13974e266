"""Options that several commands share, and a way to take options in groups."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from dgl_heta.errors import InputError

if TYPE_CHECKING:
    from dgl_heta.launch.remote import Ssh

Input = Annotated[str, typer.Argument(
    help="Schema (.json), relation store, partition, directory (or URL) of edge files or of a "
    "GraphBolt data set, part_config of DistDGL's parts, or the name of a data set (see `dgl-heta "
    "datasets`).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object (last line).")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing output.")]


@dataclass(frozen=True)
class SettingsOptions:
    """Where settings come from, beside the environment."""

    config: Annotated[Path | None, typer.Option(
        "-c", "--config", metavar="FILE", help="Settings in TOML (see `dgl-heta settings`).")
    ] = None
    overrides: Annotated[list[str], typer.Option(
        "--set", metavar="SECTION.KEY=VALUE",
        help="Override a setting, e.g. --set train.lr=0.003.")] = field(default_factory=list)


@dataclass(frozen=True)
class SshOptions:
    """How other machines are reached."""

    ssh_port: Annotated[int | None, typer.Option(
        min=1, max=65535, help="Port of ssh. Default: as ssh is configured.")] = None
    ssh_user: Annotated[str | None, typer.Option(
        help="User of ssh. Default: as ssh is configured.")] = None
    ssh_config: Annotated[Path | None, typer.Option(
        metavar="FILE", help="Configuration of ssh: keys, users, ports, a jump host. Default: "
        "~/.ssh/config.")] = None

    def ssh(self, timeout: float) -> Ssh:
        """Return ssh with these options.

        Raises
        ------
        InputError
            There is no such configuration.
        """
        from dgl_heta.launch.remote import Ssh

        if self.ssh_config is not None and not self.ssh_config.is_file():
            raise InputError(f"--ssh-config {self.ssh_config}: there is no such file; name one "
                             "that is written as ~/.ssh/config is")
        return Ssh(self.ssh_port, self.ssh_user, timeout,
                   self.ssh_config and self.ssh_config.absolute())


@dataclass(frozen=True)
class ReadingOptions:
    """How a graph is read that is no store yet."""

    reverse: Annotated[bool, typer.Option(
        "--reverse", help="Add a reverse relation, rev-NAME, for each that has none.")] = False
    feature: Annotated[list[str], typer.Option(
        "--feature", metavar="TYPE=ARRAY", help="Take this array of a node type for its features; "
        "default: feat.")] = field(default_factory=list)
    feature_dtype: Annotated[str, typer.Option(
        "--feature-dtype", help="Keep features as float16, or as int8 with a scale for each "
        "column, in files, memory and caches. Default: as they are.")] = ""
    task: Annotated[str | None, typer.Option(
        "--task", help="Of a database the query for (id, time, label); of a GraphBolt data set the "
        "name of the task.")] = None


def _number_or_auto(text: str) -> int | str:
    if text != "auto" and not text.removeprefix("-").isdecimal():
        raise typer.BadParameter(f"'{text}' is neither a number nor auto.")
    return text if text == "auto" else int(text)


@dataclass(frozen=True)
class PlanOptions:
    """Options about a plan; None where the user has not said."""

    target: Annotated[list[str] | None, typer.Option(
        "--target", help="Target node type; repeat it, or separate by commas, for several. "
        "Default: that of the settings (task.targets, task.relation), the partition's or the "
        "graph's task's.")] = None
    hops: Annotated[int | None, typer.Option(
        help="Layers of the model. Default: model.layers if it is set, else the partition's, "
        "else 2, or the longest metapath.")] = None
    parts: Annotated[Any, typer.Option(
        parser=_number_or_auto, metavar="NUMBER",
        help="Number of partitions, or auto where the backend decides it. Default: the "
        "partition's, else 2.")] = None
    metapaths: Annotated[Path | None, typer.Option(
        help='JSON file: a list of metapaths, each a list of relations in edge direction, e.g. '
        '[[["author", "writes", "paper"]]].')] = None
    method: Annotated[str | None, typer.Option(
        help="Partition backend (see `dgl-heta plugins`). Default: the partition's, else "
        "meta.")] = None
    seed: Annotated[int | None, typer.Option(
        help="Seed of backends that draw at random. Default: 0.")] = None
    replication: Annotated[str | None, typer.Option(
        help="full: each partition has all relations that its sub-metatrees need; none: a "
        "relation is on one partition only. Default: the method's own.")] = None
    memory_mb: Annotated[float | None, typer.Option(
        "--memory-mb", help="Memory that a partition may hold, as predicted; with --replication "
        "none large relations are cut.")] = None
    cut: Annotated[str | None, typer.Option(
        help="How a relation that is too large for a partition is cut (see `dgl-heta plugins`). "
        "Default: the method's own, or ranges.")] = None

    def given(self) -> dict[str, Any]:
        """The options that the user has given, by their names on the command line."""
        values = {f"--{field.name.replace('_', '-')}": getattr(self, field.name)
                  for field in dataclasses.fields(self)}
        return {option: value for option, value in values.items() if value is not None}


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command for typer in which a parameter that is a dataclass stands for all its fields."""
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, type] = {}
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            groups[parameter.name] = kind
            parameters += _parameters_of(kind)
        else:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=kind))

    @functools.wraps(command)
    def with_groups(**values: Any) -> None:
        options = {name: kind(**{field.name: values.pop(field.name)
                              for field in dataclasses.fields(kind)})
                for name, kind in groups.items()}
        command(**values, **options)

    with_groups.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_groups.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_groups


def _parameters_of(group: type) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY,
                              annotation=hints[each.name], default=_default(each))
            for each in dataclasses.fields(group)]


def _default(each: dataclasses.Field[Any]) -> Any:
    if each.default_factory is not dataclasses.MISSING:
        return each.default_factory()
    return inspect.Parameter.empty if each.default is dataclasses.MISSING else each.default


def refuse(options: dict[str, Any], reason: str) -> None:
    """Refuse options that have no effect here.

    Raises
    ------
    InputError
        One of them is given; the message goes on with `reason`.
    """
    for option, value in options.items():
        if value is not None:
            raise InputError(f"{option} has {reason}")


def at_least_one(value: int, option: str) -> int:
    """The value of an option that must be 1 or more."""
    if value < 1:
        raise InputError(f"{option} is {value}; it must be 1 or more")
    return value
