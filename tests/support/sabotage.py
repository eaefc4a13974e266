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


def s2() -> None:
    """Rows of a DistEmbedding are taken for those of the batch that was drawn last."""
    import numpy as np

    from dgl_heta.distdgl.handed import Handed

    def bits(self, ntype, index, rank):  # type: ignore[no-untyped-def]
        arrays = [a for ref in list(self._living.values()) if (a := ref()) is not None]
        last = [a for a in arrays if a.ntype == ntype and a.base is not None][-1]
        found = np.zeros(1 + max(int(max(index, default=0)), int(last.max(initial=0))), np.int64)
        found[last] = last.bits
        return found[index.numpy()]

    Handed.bits = bits  # type: ignore[method-assign]
