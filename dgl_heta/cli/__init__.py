"""The command line: `dgl-heta plan | partition | train | launch | inspect | plugins | …`.

A file per command. What a command needs is imported when it runs, so that `--help` is there at
once. Errors are one line on standard error: exit status 2 for wrong input, 1 for other failures.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated, Any

import typer
from rich.text import Text

from dgl_heta._version import __version__
from dgl_heta.cli import (
    check_model,
    datasets,
    inspect,
    launch,
    manifest_command,
    partition,
    plan_command,
    plugin_commands,
    plugins,
    predict,
    profile_command,
    prove,
    report,
    run,
    settings,
    stage,
    train,
)
from dgl_heta.errors import LONGEST_MESSAGE, HetaError, shortened
from dgl_heta.report.console import err, show_warnings
from dgl_heta.report.text import visible
from dgl_heta.system.finish import UNWRITTEN, flush_files
from dgl_heta.system.memory import no_memory
from dgl_heta.system.parent import die_with_torchrun

app = typer.Typer(name="dgl-heta", cls=plugin_commands.Commands, pretty_exceptions_enable=False,
                  rich_markup_mode="rich", add_completion=False,
                  help="Meta-partitioning and RAF training of heterogeneous GNNs.",
                  epilog="Plugins bring further commands; `dgl-heta plugins` lists them.")
for command in (plan_command, partition, stage, train, report, predict, profile_command,
                check_model, run, inspect, plugins, datasets, settings, launch,
                manifest_command, prove):
    app.add_typer(command.app)
UsageError: Any = typer.BadParameter.__base__  # its home depends on the version of typer


def _version(show: bool) -> None:
    if show:
        print(f"dgl-heta {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(context: typer.Context, version: Annotated[bool, typer.Option(
        "--version", callback=_version, is_eager=True, help="Show the version.")] = False) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """The entry point; turns errors into a line and an exit status."""
    die_with_torchrun()
    show_warnings()
    for stream in (sys.stdout, sys.stderr):  # a picture in ASCII beats a lost exit status
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    # An error is kept with its frames: DistDGL's DistTensors wait for all trainers to be freed.
    kept: BaseException | None = None
    try:
        status = app(prog_name="dgl-heta", standalone_mode=False) or 0
    except UsageError as error:
        path = error.ctx.command_path if error.ctx else "dgl-heta"
        status = _fail(2, f"{error.format_message().rstrip('.')}; see `{path} --help`")
    except HetaError as error:
        kept, status = error, _fail(error.exit_status, str(error), error.details)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    except (MemoryError, RuntimeError, ImportError, OSError) as error:
        if said := no_memory(error):
            status = 1
            print(f"error: {visible(said)}", file=sys.stderr)  # the console wants more
        elif isinstance(error, OSError):
            from dgl_heta.system.disk import no_space

            parts = (error.filename, error.strerror or error)
            status = _fail(2 if error.errno == errno.ENAMETOOLONG else 1,
                           no_space(error) or ": ".join(str(x) for x in parts if x))
        else:
            raise
    except (KeyboardInterrupt, typer.Abort):
        status = _fail(130, "interrupted")
    _leave_process_group(status)
    del kept
    # Where Ctrl-C ended code of a string (dataclasses), Python would end by SIGINT, not by status.
    exec("")  # noqa: S102
    sys.exit(status)


def _fail(status: int, message: str, details: str = "") -> int:
    if details:
        err.print(Text.from_ansi(details), soft_wrap=True)
    line = shortened(visible(" ".join(message.splitlines())), LONGEST_MESSAGE)
    err.print(f"error: {line}", style="red", markup=False, highlight=False, soft_wrap=True)
    return status


def _leave_process_group(status: int) -> None:
    """End a rank at once: its process group's threads can hang an ordinary exit.

    After an error DistDGL, too, would wait at exit for the others, without end.
    """
    torch, dgl = sys.modules.get("torch"), sys.modules.get("dgl.distributed.dist_context")
    if (dgl is not None and dgl.is_initialized()) or (
            torch is not None and torch.distributed.is_available()
            and torch.distributed.is_initialized()):
        written = flush_files()
        os._exit(status or (0 if written else UNWRITTEN))
