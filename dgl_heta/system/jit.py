"""Compilation of kernels, cached where a directory can be written.

Numba compiles them. Where it cannot be imported, all else runs: what has a way by PyTorch operators
asks :data:`COMPILES` and takes it, and a kernel that is called all the same says what is missing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

from dgl_heta.errors import HetaError

COMPILES: bool
"""True if kernels can be compiled here."""


def __getattr__(name: str) -> bool:
    if name == "COMPILES":
        return _numba()[0] is not None
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


@functools.cache
def _numba() -> tuple[Any, str]:
    """numba, which takes half a second to import; or None and why it cannot be imported."""
    try:
        import numba
    except ImportError as error:  # also of a numba that does not fit the numpy that is there
        return None, " ".join(str(error).split())
    return numba, ""


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
    numba, missing = _numba()
    if numba is None:
        return _absent(function, missing)
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
    try:
        compiled: Callable[..., Any] = numba.njit(cache=True, **options)(function)
    except RuntimeError:
        compiled = numba.njit(**options)(function)
    return compiled


def late_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """:func:`kernel` for modules that are imported where nothing may be compiled, as for a plan:
    numba is imported at the first call. No kernel can call the function."""
    compiled = functools.cache(functools.partial(kernel, function))

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        return compiled()(*arguments)
    return call


def _absent(function: Callable[..., Any], missing: str) -> Callable[..., NoReturn]:
    @functools.wraps(function)
    def call(*_: Any, **__: Any) -> NoReturn:
        raise HetaError(f"'{function.__module__}.{function.__qualname__}' is compiled by numba, "
                        f"which cannot be imported ({missing}); install numba, or use the kernel "
                        "'torch'")
    return call
