"""Run a script as it is, but end at once when it fails.

A DistDGL process that fails waits at exit for the others, without end, so that nobody learns of it.
`python -m dgl_heta.launch.fail_fast SCRIPT ARGS` differs from `python SCRIPT ARGS` in that alone,
and with `-m MODULE ARGS` from `python -m MODULE ARGS`.
"""

from __future__ import annotations

import atexit
import os
import runpy
import sys
import traceback
from pathlib import Path

from dgl_heta.comm.dgl_connections import guard_connections
from dgl_heta.comm.meeting import meet_by_secret
from dgl_heta.errors import HetaError
from dgl_heta.system.finish import flush_files
from dgl_heta.system.main_module import main_that_stays


def main() -> None:
    atexit.register(flush_files)  # of the script, whose names Python does not clear at its end
    meet_by_secret()
    guard_connections()
    named = sys.argv[1] == "-m"
    script = sys.argv[1 + named]
    sys.argv = sys.argv[1 + named:]
    try:
        with main_that_stays():
            _run(script, named)
    except SystemExit as leave:
        if leave.code in (None, 0):
            return  # the ordinary way out, on which DistDGL leaves its servers
        if not isinstance(leave.code, int):
            print(leave.code, file=sys.stderr)
        _leave(leave.code if isinstance(leave.code, int) else 1)
    except HetaError as error:  # of what is replaced in DGL
        print("error:", error, file=sys.stderr)
        _leave(error.exit_status)
    except BaseException:
        traceback.print_exc()
        _leave(1)


def _run(script: str, named: bool) -> None:
    if named:  # its path begins with the working directory, as this process's does
        runpy.run_module(script, run_name="__main__", alter_sys=True)
        return
    if not getattr(sys.flags, "safe_path", False):  # from Python 3.11 on
        sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


def _leave(status: int) -> None:
    flush_files()
    os._exit(status)


if __name__ == "__main__":
    main()
