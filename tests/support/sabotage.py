"""Repairs switched off, one at a time, to show that the proof finds what they repair.

Each function changes dgl_heta in the process that calls it, and says which wrong it lets in.
"""

from __future__ import annotations


def s3() -> None:
    """Own operations over a block see this machine's relations, without a word."""
    from dgl_heta.distdgl import block_index

    block_index.is_partial = lambda layer: False


def s9() -> None:
    """Exchanges whose results nobody uses give zeros as gradients, where plain DGL has none."""
    from dgl_heta.distdgl.chains import Chains

    Chains.flags = False
