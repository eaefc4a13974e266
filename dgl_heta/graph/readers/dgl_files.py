"""Graphs and arrays in DGL's own binary format: arrays, names and sizes, nothing that can be run.

DGL's C++ ends the process, or takes all memory, where sizes in a file are wrong, so another
process reads each file first.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dgl_heta.errors import InputError
from dgl_heta.system.optional import optional

_TRY = """
import os, resource, sys
import dgl
from dgl.data.utils import load_tensors
own = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
for line in sys.stdin.read().split("\\0"):
    kind, file = line[0], line[1:]
    size = own + 20 * os.path.getsize(file) + (1 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
    print(file, flush=True)
    (dgl.load_graphs if kind == "g" else load_tensors)(file)
"""
_READING_S = 600


def try_files(graphs: Sequence[Path] = (), tensors: Sequence[Path] = ()) -> None:
    """Let another process read files, with memory in proportion to their sizes.

    Raises
    ------
    InputError
        A file is not there, or cannot be read; it is named.
    """
    files = [("g", file) for file in graphs] + [("t", file) for file in tensors]
    for _, file in files:
        if not file.is_file():
            raise InputError(f"there is no file {file}")
    if not files:
        return
    try:
        tried = subprocess.run(
            [sys.executable, "-c", _TRY], input="\0".join(f"{k}{file}" for k, file in files),
            text=True, check=False, capture_output=True, timeout=_READING_S * len(files))
    except subprocess.TimeoutExpired:
        raise InputError(f"{files[0][1]} and the {len(files) - 1} other files of the parts were "
                         f"not read within {_READING_S} s each") from None
    if tried.returncode:
        last = (tried.stdout.splitlines() or [str(files[0][1])])[-1]
        raise InputError(f"{last} cannot be read: nothing that DGL saved, or damaged")


def load_graph(file: Path) -> Any:
    """The one graph of a file that :func:`try_files` has tried.

    Raises
    ------
    InputError
        It holds none, or several.
    """
    dgl = optional("dgl", f"reading {file.name}", "dgl")
    try:
        graphs, _ = dgl.load_graphs(str(file))
    except dgl.DGLError:
        raise InputError(f"{file} is no graph that DGL saved") from None
    if len(graphs) != 1:
        raise InputError(f"{file} holds {len(graphs)} graphs; it should be one")
    return graphs[0]


def load_tensors(file: Path) -> dict[str, Any]:
    """The arrays of a file that :func:`try_files` has tried, by name.

    Raises
    ------
    InputError
        It holds no arrays.
    """
    dgl = optional("dgl", f"reading {file.name}", "dgl")
    try:
        return dict(dgl.data.utils.load_tensors(str(file)))
    except dgl.DGLError:
        raise InputError(f"{file} holds no arrays that DGL saved") from None
