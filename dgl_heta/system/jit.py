"""Compilation of kernels, cached where a directory can be written.

Numba compiles them. Where it cannot be imported, all else runs: what has a way by PyTorch operators
asks :data:`COMPILES` and takes it, and a kernel that is called all the same says what is missing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

from dgl_heta.errors import HetaError

try:
    import numba
    _ABSENT = ""
except ImportError as error:  # also of a numba that does not fit the numpy that is there
    _ABSENT = " ".join(str(error).split())

COMPILES = not _ABSENT
"""True if kernels can be compiled here."""


def kernel(function: Callable[..., Any], fastmath: bool | set[str] = False) -> Callable[..., Any]:
    """Compile a function when it is first called; it releases the GIL.

    Numba refuses to cache where neither the package's directory nor the user's cache can be
    written (containers with a random user id); then every process compiles for itself. `fastmath`
    is numba's.

    Raises
    ------
    HetaError
        When the function is called, where numba cannot be imported.
    """
    if not COMPILES:
        return _absent(function)
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:
        return numba.njit(**options)(function)


def _absent(function: Callable[..., Any]) -> Callable[..., NoReturn]:
    @functools.wraps(function)
    def call(*_: Any, **__: Any) -> NoReturn:
        raise HetaError(f"'{function.__module__}.{function.__qualname__}' is compiled by numba, "
                        f"which cannot be imported ({_ABSENT}); install numba, or use the kernel "
                        "'torch'")
    return call
