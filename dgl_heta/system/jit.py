"""Compilation of kernels, cached where a directory can be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function when it is first called; it releases the GIL.

    Numba refuses to cache where neither the package's directory nor the user's cache can be
    written (containers with a random user id); then every process compiles for itself.
    """
    try:
        return numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:
        return numba.njit(nogil=True, error_model="numpy")(function)
