"""Sets of trainers as int64 words, a bit for each trainer by its rank.

A node of a batch may be read for the seeds of several trainers. One word for each node says of
which. Sets are united by a bitwise or: in NumPy, in kernels and in all-reduces alike.

Of the 64 bits of a word the sign is left alone, as it would make comparisons and shifts surprising,
and :data:`BESIDES` is beside the trainers'; 62 are left.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dgl_heta.errors import HetaError
from dgl_heta.system.jit import kernel

MOST_TRAINERS = 62
"""As many as a word has bits for."""

BESIDES = 1 << MOST_TRAINERS
"""A bit that is no trainer's, for what else is to be known of a node."""


def bit(rank: int) -> int:
    """The word of one trainer alone."""
    return 1 << rank


def words_of(ranks: Sequence[int]) -> np.ndarray:
    """The words of trainers, each alone: int64 (len(ranks),)."""
    return np.asarray([bit(rank) for rank in ranks], np.int64)


def check_trainers(count: int, message: str) -> None:
    """Refuse more trainers than a word has bits for.

    Raises
    ------
    HetaError
        `message`, filled in with the count (`{count}`) and the limit (`{most}`).
    """
    if count > MOST_TRAINERS:
        raise HetaError(message.format(count=count, most=MOST_TRAINERS))


@kernel
def count_trainers(words):  # type: ignore[no-untyped-def]
    """How many trainers each int64 word has: float32, as gradients are divided by it."""
    out = np.empty(len(words), np.float32)
    for i in range(len(words)):
        word, n = words[i], 0
        while word != 0:
            word &= word - 1
            n += 1
        out[i] = n
    return out
