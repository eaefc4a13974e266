"""`train.exchange_dtype`: float32 numbers that are sent as bfloat16, in half the bytes.

The sender rounds them, the receiver makes them float32 again, and every sum is one of float32. What
a worker sends to itself is rounded, too, so that all workers see the same numbers; gradients that a
DistDGL script's trainer has of its own rows are not sent, nor rounded.
:class:`dgl_heta.comm.collectives.Comm` does this in :meth:`all_to_all_rows`, of which its other
collectives of rows are made. Nothing else converts; who keeps own rows beside others' asks
:meth:`Comm.rounded` for what the others see.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDED = ("partials", "learnable")
"""The causes whose numbers are rounded: partial aggregations, learnable rows and their gradients.
Gradients of dense parameters are not, nor are ids, counts and doubles."""


def wire_dtype(name: str) -> torch.dtype | None:
    """Return the dtype in which numbers are sent, by the setting's value; None: as they are."""
    return torch.bfloat16 if name == "bfloat16" else None


def is_rounded(tensor: Tensor, cause: str) -> bool:
    """Return whether a tensor that is sent for a cause is one of those numbers."""
    return tensor.dtype == torch.float32 and cause in ROUNDED


def packed(rows: Tensor, wire: torch.dtype) -> Tensor:
    """Return rows as they are sent: their bits in the dtype `wire`."""
    # As float16 only by name: gloo moves no bfloat16, and nothing is computed on the way.
    return rows.to(wire).view(torch.float16)


def unpacked(bits: Tensor, wire: torch.dtype) -> Tensor:
    """Return what arrived of :func:`packed` rows, as float32."""
    return bits.view(wire).float()
