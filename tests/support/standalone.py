"""Scripts in DistDGL's standalone mode: one process, without servers."""

from __future__ import annotations

import os
import subprocess

from tests.support import warm
from tests.support.waiting import PATIENCE


def run(*command: object, heta: bool, status: int = 0) -> str:
    """Run a script in standalone mode, with or without dgl-heta; returns what it wrote."""
    words = [warm.with_dgl(), *(["-m", "dgl_heta", "run"] if heta else []), *map(str, command)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("DGL_DIST_MODE", None)
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, timeout=PATIENCE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == status, done.stdout
    return done.stdout
