"""The temporary directory of a benchmark or a campaign."""

from __future__ import annotations

import argparse
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def work_dir(args: argparse.Namespace, name: str) -> Iterator[Path]:
    """A directory dgl-heta-NAME-… that is removed however the script ends, by SIGTERM, too.

    `args.work_dir` is where it goes (None: the system's place). The directory of `args.json`, a
    file to write at the end, is made now.
    """
    def stop(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    for needed in (args.work_dir, args.json and args.json.parent):  # not first after hours
        if needed:
            needed.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"dgl-heta-{name}-", dir=args.work_dir) as path:
        yield Path(path)
