"""Run a program with dgl-heta enabled: what `dgl-heta run` does."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from dgl_heta.distdgl.activate import enable
from dgl_heta.errors import HetaError, InputError
from dgl_heta.system.finish import UNWRITTEN, finish
from dgl_heta.system.main_module import main_that_stays


def run_program(name: str, arguments: Sequence[str], config: Path | None,
                overrides: Iterable[str], module: bool = False, overwrite: bool = False) -> None:
    """Run `python NAME ARGS`, or `python -m NAME ARGS` of a `module`, with dgl-heta enabled.

    `overwrite` says whether it may replace partitions of dgl-heta that were there before it.

    Raises
    ------
    InputError
        No such script or module, or as :func:`~dgl_heta.distdgl.activate.enable`.
    HetaError
        It failed.
    """
    path = Path(name)
    safe = getattr(sys.flags, "safe_path", False)  # from Python 3.11 on
    if module:
        if not safe:
            sys.path[0] = str(Path.cwd())
        package = name.partition(".")[0]
        if not package or importlib.util.find_spec(package) is None:  # imports nothing
            raise _no_module(name)
    elif not path.is_file():
        raise InputError(f"there is no script {name}")
    enable(config, settings=overrides)
    from dgl_heta.distdgl.graph.partitions import keep_earlier

    keep_earlier(not overwrite)
    if not module and not safe:
        sys.path[0] = str(path.resolve().parent)  # as Python does; it was the command's own
    _run(name, arguments, (lambda: _start(name)) if module else (
        lambda: runpy.run_path(name, run_name="__main__")))


def _start(name: str) -> None:
    """Run a module whose package is installed.

    Raises
    ------
    InputError
        The package has no such module, or is none that can be run.
    """
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # of what a package on the way imports
        spec = None
    if spec is None:
        raise _no_module(name)
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _no_module(name: str) -> InputError:
    return InputError(f"there is no module {name} that can be run (-m), in {Path.cwd()} or among "
                      "what is installed; a file is run without -m")


def _run(name: str, arguments: Sequence[str], start: Callable[[], Any]) -> None:
    """Run a program to its end, and end this process if it ends well.

    Raises
    ------
    HetaError
        It failed.
    """
    sys.argv = [name, *arguments]
    try:
        with main_that_stays():
            start()
    except SystemExit as leave:
        if leave.code not in (None, 0):
            # As Python does: a text is printed, and the status is 1.
            if isinstance(leave.code, str):
                print(leave.code, file=sys.stderr)
            raise HetaError(f"{name} ended with exit status {leave.code}") from None
    except HetaError:
        raise
    except Exception:
        traceback.print_exc()
        raise HetaError(f"{name} failed") from None
    from dgl_heta.distdgl.training.ending import end

    end()
    # DistDGL leaves its servers when the interpreter ends; after that the threads of a process
    # group can hang or abort an ordinary exit.
    os._exit(0 if finish() else UNWRITTEN)
