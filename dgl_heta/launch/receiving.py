"""The other end of `dgl-heta stage --hosts`: `python -m dgl_heta.launch.receiving WHAT DIRECTORY`.

`ask` says whether a directory has the staging that a line of standard input describes, else how
much room its disk has; `finish` compares what rsync has brought, and puts it in place; `stage`
reads all from object storage. These two end when their input does: sshd leaves running what it has
started. The answer is a line of JSON. An error is a line `error: …`, with status 2 for what the
user can mend and 1 for the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from dgl_heta._version import __version__
from dgl_heta.errors import HetaError


def ask(out: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    """The version of this dgl-heta, whether `out` is staged as wanted, and bytes for it."""
    from dgl_heta.partition.staged_directory import (
        bytes_in,
        check_free,
        check_out,
        is_staged,
        working_directory,
    )
    from dgl_heta.store.staged import Staged

    check_free(out)
    work = working_directory(out)
    parent = next(p for p in work.parents if p.exists())
    if wanted["overwrite"]:
        check_out(out, overwrite=True)
    staged = is_staged(out, Staged.from_json(wanted["staged"]), compare=wanted["overwrite"])
    return {"version": __version__, "staged": staged, "exists": out.exists(),
            "room": shutil.disk_usage(parent).free + bytes_in(work)}


def finish(out: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    """Put in place what was gathered for `out`."""
    from dgl_heta.partition import staged_directory
    from dgl_heta.store.staged import Staged

    with staged_directory.receiving(out, wanted["overwrite"]) as work:
        staged_directory.finish(work, out, wanted["overwrite"], Staged.from_json(wanted["staged"]))
    return {"version": __version__, "staged": True}


def stage(out: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    """Stage from object storage, with this machine's own keys."""
    from dgl_heta.partition.staging import Staging, opened_partition

    with opened_partition(wanted["source"]) as opened:
        Staging.of(opened, wanted["parts"], wanted["also"]).write(
            out, overwrite=wanted["overwrite"])
    return {"version": __version__, "staged": True}


def _end_with_input() -> None:
    """Wait for the end of standard input, and end this process."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Do what the arguments say."""
    what, out = sys.argv[1:]
    wanted = json.loads(sys.stdin.readline())
    if what != "ask":
        threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        answer = {"ask": ask, "finish": finish, "stage": stage}[what](Path(out), wanted)
    except (HetaError, OSError) as error:
        print("error:", " ".join(str(error).splitlines()), file=sys.stderr)
        sys.exit(getattr(error, "exit_status", 1))
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
