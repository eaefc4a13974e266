"""The other end of `dgl-heta stage --hosts`: `python -m dgl_heta.launch.receiving WHAT DIRECTORY`.

`ask` says whether a directory has the staging that standard input describes, else how much room its
disk has; `finish` compares what rsync has brought, and puts it in place. The answer is a line of
JSON. An error is a line `error: …`, with status 2 for what the user can mend and 1 for the rest.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
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


def main() -> None:
    """Do what the arguments say."""
    what, out = sys.argv[1:]
    try:
        answer = {"ask": ask, "finish": finish}[what](Path(out), json.load(sys.stdin))
    except (HetaError, OSError) as error:
        print("error:", " ".join(str(error).splitlines()), file=sys.stderr)
        sys.exit(getattr(error, "exit_status", 1))
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
