"""Commands of plugins, beside the built-in ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperGroup

from dgl_heta.errors import HetaError, InputError, quoted


class InterruptedCommandError(HetaError):
    """Ctrl-C ended a command that says no more about it."""

    exit_status = 130


@contextlib.contextmanager
def _interrupted() -> Iterator[None]:
    """Ctrl-C inside is an error with a line; typer would end without a word."""
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptedCommandError("interrupted") from None


class Commands(TyperGroup):
    """The built-in commands; a name that none of them has is looked for in the plugins.

    So plugins are loaded only where they may be meant, and `--help` is there at once.
    """

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return super().get_command(ctx, cmd_name) or self._guest(cmd_name)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _interrupted():  # its first call imports pydantic, which takes a while
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _interrupted():
            try:
                return super().invoke(ctx)
            except SystemExit as left:
                by_signal = type(left.code) is int and left.code > 128
                unread = isinstance(left.__context__, BrokenPipeError)  # `… | head`: rich leaves so
                if by_signal or unread or ctx.invoked_subcommand not in self.commands:
                    raise
                raise HetaError("code that this command runs, as of a plugin or a model, called "
                                f"sys.exit({quoted(left.code)})") from None

    def _guest(self, name: str) -> Any:
        from dgl_heta.hooks.manager import plugins

        known = plugins().providers("command")
        for provider in known.values():
            if provider.name in self.commands:
                raise InputError(f"plugin {provider.source} {provider.version} provides command "
                                 f"'{provider.name}', which dgl-heta has itself; rename it")
        if name not in known:
            return None
        command = plugins().get("command", name).command()
        if isinstance(command, typer.Typer):
            command = typer.main.get_command(command)
        if not hasattr(command, "make_context"):
            raise InputError(f"plugin {known[name].source}: command '{name}' gave {command!r}; it "
                             "must give a typer.Typer or a click.Command")
        command.name = name
        return command
