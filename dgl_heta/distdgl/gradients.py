"""What a script asks of autograd: backward passes through exchanges."""

from __future__ import annotations

from typing import Any

from dgl_heta.distdgl.session import current
from dgl_heta.distdgl.versions import homes
from dgl_heta.system.patching import patch_all


def _backward(original: Any) -> Any:
    def backward(*args: Any, **kwargs: Any) -> None:
        session = current()
        if session is None:
            original(*args, **kwargs)
        else:
            session.chains.backward(original, *args, **kwargs)
    return backward


PATCHES = (
    *patch_all(homes("backward"), _backward,
               "one order of exchanges where a loss depends on several forward passes"),
)
