"""A process that runs one command of dgl-heta after the other and says how each ended.

Lines of JSON on standard input: `args` and `cwd`. After each, a line on standard output: `status`,
`out` and `err` (their ends), `traceback` where an exception came out, `grown` in bytes.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

AS_MUCH = 12 << 30


def main() -> None:
    import torch  # noqa: F401  what every command has loaded before it reads a file

    from dgl_heta import cli
    answers = os.fdopen(os.dup(1), "w")
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + AS_MUCH, size + AS_MUCH))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    requests = os.fdopen(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # /dev/stdin is among the names of files
    for line in requests:
        request = json.loads(line)
        answers.write(json.dumps(_answer(cli, request["args"], request["cwd"])) + "\n")
        answers.flush()


def _answer(cli: Any, args: list[str], cwd: str) -> dict[str, Any]:
    os.chdir(cwd)
    Path("/proc/self/clear_refs").write_text("5")
    before = _peak()
    answer: dict[str, Any] = {"status": 0, "traceback": ""}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        sys.argv = ["dgl-heta", *args]
        try:
            cli.main()
        except SystemExit as ended:
            answer["status"] = ended.code if isinstance(ended.code, int) else 1
        except BaseException:
            answer["traceback"] = traceback.format_exc()[-3000:]
        sys.stdout.flush()
        sys.stderr.flush()
        answer["grown"] = _peak() - before
        for name, file in (("out", out), ("err", err)):
            file.seek(0)
            content = file.read(1 << 20).decode("utf-8", "replace")
            answer[name], answer[f"{name}_size"] = content[:20_000], file.seek(0, 2)
    return answer


def _peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    main()
