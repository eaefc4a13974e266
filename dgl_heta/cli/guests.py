"""Commands of plugins, beside the built-in ones."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from dgl_heta.errors import HetaError, InputError


class InterruptedCommandError(HetaError):
    """Ctrl-C ended a command that says no more about it."""

    exit_status = 130


class Commands(TyperGroup):
    """The built-in commands; a name that none of them has is looked for in the plugins.

    So plugins are loaded only where they may be meant, and `--help` is there at once.
    """

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return super().get_command(ctx, cmd_name) or self._guest(cmd_name)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # typer would end without a word
            raise InterruptedCommandError("interrupted") from None

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
