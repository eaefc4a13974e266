"""Packages that not every installation has: they come with an extra of the distribution."""

from __future__ import annotations

import importlib
from typing import Any

from dgl_heta.errors import InputError
from dgl_heta.system.memory import no_memory


def optional(module: str, purpose: str, extra: str, distribution: str = "dgl-heta") -> Any:
    """Import a module of a package that only an extra brings.

    Parameters
    ----------
    module : for example `pyarrow.parquet`.
    purpose : what needs it, at the start of a sentence: "Parquet".
    extra : of the pyproject.toml of `distribution`.

    Raises
    ------
    InputError
        It cannot be imported; says what to install.
    """
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:  # OSError: a library that the package loads
        if no_memory(error):
            raise
        package = module.partition(".")[0]
        raise InputError(f"{purpose} needs {package}, which cannot be imported "
                         f"({' '.join(str(error).split())}); install "
                         f"'{distribution}[{extra}]'") from None
