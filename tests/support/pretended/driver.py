"""`driver.cpp`, built for the torch that is installed, once for all processes."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("driver.cpp")


def lacking() -> str | None:
    """Why it cannot be built or used here, or None."""
    if _built().exists() or shutil.which(_compiler()):
        return None
    return f"the pretended CUDA device needs a C++ compiler; there is no {_compiler()}"


@functools.cache
def library() -> ctypes.CDLL:
    """The library, built if it is not there yet; other processes wait until it is whole."""
    built = _built()
    built.parent.mkdir(exist_ok=True)
    with open(built.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            part = built.with_suffix(".part")
            root = Path(torch.__file__).parent
            subprocess.run(
                [_compiler(), "-O0", "-std=c++20", "-shared", "-fPIC",
                 f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
                 f"-I{root / 'include'}", str(SOURCE), "-o", str(part), f"-L{root / 'lib'}",
                 "-lc10", "-ltorch_cpu"], check=True)
            os.replace(part, built)
    return ctypes.CDLL(str(built))


def _compiler() -> str:
    return os.environ.get("CXX", "g++")


def _built() -> Path:
    """Where the library of this source and this torch is."""
    key = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:12]
    return SOURCE.with_name("__pycache__") / f"driver-{key}.so"
